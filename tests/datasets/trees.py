"""Miniature datasets of every supported layout, with known content.

A world is the videos of each split with the sentences about them. Each `write_*` function writes a world in the format
of a benchmark, and returns the splits that a reader must find.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midreel.datasets.annotations import Part
from midreel.types import Moment, Query, Split

Window = tuple[float, float]


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the windows (start, end) of its moments."""

    text: str
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Video:
    id: str
    duration: float
    sentences: tuple[Sentence, ...]


World = Mapping[str, Sequence[Video]]

# Ids in the style of the benchmarks, sentences that two videos share, and moments that end with the video.
TVR: World = {
    "train": [
        Video(
            "show_s01e02_seg02_clip_03",
            61.46,
            (Sentence("Ann opens the window.", ((16.48, 33.87),)), Sentence("Bob nods.", ((0, 2.29),))),
        ),
        Video("s02e14_seg02_clip_02", 64.02, (Sentence("Bob nods.", ((60.0, 64.02),)),)),
    ],
    "val": [Video("show_s10e17-18_seg02_clip_15", 53.02, (Sentence("Ann and Bob argue.", ((8.22, 21.21),)),))],
}
ACTIVITYNET: World = {
    "train": [
        Video(
            "v_AbCdEfGhIjK",
            82.73,
            (Sentence("A man holds a rope.", ((0.83, 19.86),)), Sentence("He climbs a wall.", ((17.37, 60.81),))),
        )
    ],
    "val": [
        Video("v_-_v_34567AB", 11.31, (Sentence("A slide is shown.", ((0, 2.88),)),)),
        Video("v_v_cdefghijk", 50.0, (Sentence("A race starts.", ((8.3, 24.15),)),)),
    ],
}
CHARADES: World = {
    "train": [
        Video(
            "AB1CD",
            30.96,
            (Sentence("person turns a light on.", ((24.3, 30.4),)), Sentence("a door opens.", ((0, 6.5),))),
        )
    ],
    "test": [Video("3MSZA", 12.0, (Sentence("a door opens.", ((1.25, 12.0),)),))],
}
WORLDS = {"activitynet": ACTIVITYNET, "charades": CHARADES, "tvr": TVR}


def split_of(videos: Iterable[Video], ids: Iterable[str], moments: bool = True) -> Split:
    """Return the split of the videos. The queries have these ids, in order."""
    of_id = iter(ids)
    queries = tuple(
        Query(
            id=next(of_id),
            text=sentence.text.strip(),
            video_id=video.id,
            moments=tuple(Moment(start=float(start), end=float(end)) for start, end in sentence.windows if moments),
        )
        for video in videos
        for sentence in video.sentences
    )
    return Split(video_ids=tuple(dict.fromkeys(query.video_id for query in queries)), queries=queries)


def caption_ids(videos: Iterable[Video], mark: str = "enc") -> list[str]:
    return [f"{video.id}#{mark}#{number}" for video in videos for number in range(len(video.sentences))]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


# ---------------------------------------------------------------- originals


def write_tvr(folder: Path, world: World = TVR) -> dict[str, Split]:
    """Write descriptions that end with a space, and a test file that does not name its videos."""
    splits, number = {}, 100
    for split, videos in world.items():
        first = number
        rows = []
        for video in videos:
            for sentence in video.sentences:
                (window,) = sentence.windows
                row = {"vid_name": video.id, "duration": video.duration, "ts": window}
                rows.append(row | {"desc": f"{sentence.text} ", "type": "v", "desc_id": number})
                number += 1
        write_lines(folder / f"tvr_{split}_release.jsonl", rows)
        splits[split] = split_of(videos, map(str, range(first, number)))
    write_lines(
        folder / "tvr_test_public_release.jsonl", [{"desc": "Ann waits. ", "desc_id": 7}, {"desc": "?", "desc_id": 8}]
    )
    return splits


def write_activitynet(folder: Path, world: World = ACTIVITYNET) -> dict[str, Split]:
    """Write sentences that begin with a space. The split `val` is val_1.json."""
    for split, videos in world.items():
        captions = {
            video.id: {
                "duration": video.duration,
                "timestamps": [sentence.windows[0] for sentence in video.sentences],
                "sentences": [f" {sentence.text}" for sentence in video.sentences],
            }
            for video in videos
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / {"val": "val_1.json"}.get(split, f"{split}.json")).write_text(json.dumps(captions))
    return {
        split: split_of(videos, caption_ids(videos, split if split == "val_2" else "enc"))
        for split, videos in world.items()
    }


def write_charades(folder: Path, world: World = CHARADES, durations: bool = True) -> dict[str, Split]:
    folder.mkdir(parents=True, exist_ok=True)
    for split, videos in world.items():
        lines = [
            f"{video.id} {sentence.windows[0][0]} {sentence.windows[0][1]}##{sentence.text}\n"
            for video in videos
            for sentence in video.sentences
        ]
        (folder / f"charades_sta_{split}.txt").write_text("".join(lines), encoding="utf-8")
        if durations:
            with (folder / f"Charades_v1_{split}.csv").open("w", newline="") as file:
                rows = [(video.id, "a door, a light", "c001 0 1", video.duration) for video in videos]
                csv.writer(file).writerows([("id", "script", "actions", "length"), *rows])
    return {split: split_of(videos, caption_ids(videos)) for split, videos in world.items()}


def write_moment_jsonl(folder: Path, name: str, world: World) -> dict[str, Split]:
    """Write the JSON Lines format of moment retrieval projects. Query ids are numbered across all splits."""
    splits, number = {}, 0
    for split, videos in world.items():
        first = number
        rows = []
        for video in videos:
            for sentence in video.sentences:
                row = {"qid": number, "query": f" {sentence.text}", "duration": video.duration, "vid": video.id}
                rows.append(row | {"relevant_windows": sentence.windows})
                number += 1
        write_lines(folder / f"{name}_{split}_release.jsonl", rows)
        splits[split] = split_of(videos, map(str, range(first, number)))
    return splits


@dataclass(frozen=True)
class Segment:
    """A segment of a YouTube video. Its file has `duration` seconds, perhaps less than from `start` to `end`."""

    youtube_id: str
    start: float
    end: float
    duration: int
    sentences: tuple[Sentence, ...]

    @property
    def id(self) -> str:
        return f"{self.youtube_id}_{self.start}_{self.end}"


# The segments are not in order, one is shorter than its id says, and one YouTube id contains an underscore.
QVHIGHLIGHTS = {
    "train": [
        Segment("aBc_dEfGh12", 210.0, 360.0, 150, (Sentence("A cat jumps.", ((4, 8), (140, 150))),)),
        Segment(
            "aBc_dEfGh12",
            60.0,
            210.0,
            126,
            (Sentence("A dog barks.", ((0, 126),)), Sentence("A cat jumps.", ((2, 4),))),
        ),
        Segment("-_s0sXOfS3w", 360.0, 510.0, 150, (Sentence("A man walks.", ((10, 20),)),)),
    ],
    "val": [Segment("NUsG9BgSes0", 60.0, 210.0, 150, (Sentence("A girl cooks.", ((82, 150),)),))],
    "test": [Segment("T0123456789", 0.0, 150.0, 150, (Sentence("Who knows when."),))],
}
QVHIGHLIGHTS_PARTS = {
    "aBc_dEfGh12": (
        Part(id="aBc_dEfGh12_60.0_210.0", duration=126.0),
        Part(id="aBc_dEfGh12_210.0_360.0", duration=150.0),
    ),
    "-_s0sXOfS3w": (Part(id="-_s0sXOfS3w_360.0_510.0", duration=150.0),),
    "NUsG9BgSes0": (Part(id="NUsG9BgSes0_60.0_210.0", duration=150.0),),
    "T0123456789": (Part(id="T0123456789_0.0_150.0", duration=150.0),),
}
# The joined videos, computed by hand: the first segment of aBc_dEfGh12 lasts 126 s.
QVHIGHLIGHTS_JOINED: World = {
    "train": [
        Video("aBc_dEfGh12", 276.0, (Sentence("A cat jumps.", ((130, 134), (266, 276))),)),
        Video("aBc_dEfGh12", 276.0, (Sentence("A dog barks.", ((0, 126),)), Sentence("A cat jumps.", ((2, 4),)))),
        Video("-_s0sXOfS3w", 150.0, (Sentence("A man walks.", ((10, 20),)),)),
    ],
    "val": [Video("NUsG9BgSes0", 150.0, (Sentence("A girl cooks.", ((82, 150),)),))],
    "test": [Video("T0123456789", 150.0, (Sentence("Who knows when."),))],
}


def write_qvhighlights(folder: Path) -> dict[str, Split]:
    number = 0
    for split, segments in QVHIGHLIGHTS.items():
        rows = []
        for segment in segments:
            for sentence in segment.sentences:
                row = {"qid": number, "query": sentence.text, "duration": segment.duration, "vid": segment.id}
                number += 1
                if sentence.windows:
                    row |= {
                        "relevant_windows": sentence.windows,
                        "relevant_clip_ids": [0],
                        "saliency_scores": [[4, 3, 3]],
                    }
                rows.append(row)
        write_lines(folder / f"highlight_{split}_release.jsonl", rows)
    ids = map(str, range(number))
    return {split: split_of(videos, ids) for split, videos in QVHIGHLIGHTS_JOINED.items()}


# ---------------------------------------------------------------- releases


def write_captions(folder: Path, name: str, world: World, line_end: str = "\n") -> dict[str, Split]:
    """Write the caption files of a release into the folder of the dataset."""
    texts = folder / "TextData"
    texts.mkdir(parents=True, exist_ok=True)
    for split, videos in world.items():
        sentences = [sentence for video in videos for sentence in video.sentences]
        lines = [
            f"{query_id} {each.text}{line_end}" for query_id, each in zip(caption_ids(videos), sentences, strict=True)
        ]
        (texts / f"{name}{split}.caption.txt").write_bytes("".join(lines).encode())
    return {split: split_of(videos, caption_ids(videos), moments=False) for split, videos in world.items()}
