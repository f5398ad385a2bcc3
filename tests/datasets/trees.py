"""Miniature trees of every layout that is understood, with known content.

A world is what is said about videos, by split. `write_*` puts it into files as the benchmarks do, and returns the
splits that must be read from them.
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
class Told:
    """A sentence, and when it happens."""

    text: str
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Video:
    id: str
    duration: float
    told: tuple[Told, ...]


World = Mapping[str, Sequence[Video]]

# Ids as the benchmarks have them, sentences that two videos share, times that only just fit.
TVR: World = {
    "train": [
        Video(
            "show_s01e02_seg02_clip_03",
            61.46,
            (Told("Ann opens the window.", ((16.48, 33.87),)), Told("Bob nods.", ((0, 2.29),))),
        ),
        Video("s02e14_seg02_clip_02", 64.02, (Told("Bob nods.", ((60.0, 64.02),)),)),
    ],
    "val": [Video("show_s10e17-18_seg02_clip_15", 53.02, (Told("Ann and Bob argue.", ((8.22, 21.21),)),))],
}
ACTIVITYNET: World = {
    "train": [
        Video(
            "v_AbCdEfGhIjK",
            82.73,
            (Told("A man holds a rope.", ((0.83, 19.86),)), Told("He climbs a wall.", ((17.37, 60.81),))),
        )
    ],
    "val": [
        Video("v_-_v_34567AB", 11.31, (Told("A slide is shown.", ((0, 2.88),)),)),
        Video("v_v_cdefghijk", 50.0, (Told("A race starts.", ((8.3, 24.15),)),)),
    ],
}
CHARADES: World = {
    "train": [
        Video("AB1CD", 30.96, (Told("person turns a light on.", ((24.3, 30.4),)), Told("a door opens.", ((0, 6.5),))))
    ],
    "test": [Video("3MSZA", 12.0, (Told("a door opens.", ((1.25, 12.0),)),))],
}
WORLDS = {"activitynet": ACTIVITYNET, "charades": CHARADES, "tvr": TVR}


def split_of(videos: Iterable[Video], ids: Iterable[str], moments: bool = True) -> Split:
    """The split that says what the videos say, the queries having these ids, in order."""
    of_id = iter(ids)
    queries = tuple(
        Query(
            id=next(of_id),
            text=told.text.strip(),
            video_id=video.id,
            moments=tuple(Moment(start=float(start), end=float(end)) for start, end in told.windows if moments),
        )
        for video in videos
        for told in video.told
    )
    return Split(video_ids=tuple(dict.fromkeys(query.video_id for query in queries)), queries=queries)


def caption_ids(videos: Iterable[Video], mark: str = "enc") -> list[str]:
    return [f"{video.id}#{mark}#{number}" for video in videos for number in range(len(video.told))]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


# ---------------------------------------------------------------- originals


def write_tvr(folder: Path, world: World = TVR) -> dict[str, Split]:
    """Descriptions that end with a space; a test file that keeps its videos to itself."""
    splits, number = {}, 100
    for split, videos in world.items():
        first = number
        rows = []
        for video in videos:
            for told in video.told:
                (window,) = told.windows
                row = {"vid_name": video.id, "duration": video.duration, "ts": window}
                rows.append(row | {"desc": f"{told.text} ", "type": "v", "desc_id": number})
                number += 1
        write_lines(folder / f"tvr_{split}_release.jsonl", rows)
        splits[split] = split_of(videos, map(str, range(first, number)))
    write_lines(
        folder / "tvr_test_public_release.jsonl", [{"desc": "Ann waits. ", "desc_id": 7}, {"desc": "?", "desc_id": 8}]
    )
    return splits


def write_activitynet(folder: Path, world: World = ACTIVITYNET) -> dict[str, Split]:
    """Sentences that begin with a space; `val` in val_1.json."""
    for split, videos in world.items():
        captions = {
            video.id: {
                "duration": video.duration,
                "timestamps": [told.windows[0] for told in video.told],
                "sentences": [f" {told.text}" for told in video.told],
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
            f"{video.id} {told.windows[0][0]} {told.windows[0][1]}##{told.text}\n"
            for video in videos
            for told in video.told
        ]
        (folder / f"charades_sta_{split}.txt").write_text("".join(lines), encoding="utf-8")
        if durations:
            with (folder / f"Charades_v1_{split}.csv").open("w", newline="") as file:
                rows = [(video.id, "a door, a light", "c001 0 1", video.duration) for video in videos]
                csv.writer(file).writerows([("id", "script", "actions", "length"), *rows])
    return {split: split_of(videos, caption_ids(videos)) for split, videos in world.items()}


def write_uniform(folder: Path, name: str, world: World) -> dict[str, Split]:
    """The lines that moment retrieval projects share, numbered through all splits."""
    splits, number = {}, 0
    for split, videos in world.items():
        first = number
        rows = []
        for video in videos:
            for told in video.told:
                row = {"qid": number, "query": f" {told.text}", "duration": video.duration, "vid": video.id}
                rows.append(row | {"relevant_windows": told.windows})
                number += 1
        write_lines(folder / f"{name}_{split}_release.jsonl", rows)
        splits[split] = split_of(videos, map(str, range(first, number)))
    return splits


@dataclass(frozen=True)
class Segment:
    """A stretch of a YouTube video from `start` to `end`, of which `duration` seconds are left."""

    youtube_id: str
    start: float
    end: float
    duration: int
    told: tuple[Told, ...]

    @property
    def id(self) -> str:
        return f"{self.youtube_id}_{self.start}_{self.end}"


# The segments are not in order, one is shorter than its name says, and one YouTube id has an underscore in it.
QVHIGHLIGHTS = {
    "train": [
        Segment("aBc_dEfGh12", 210.0, 360.0, 150, (Told("A cat jumps.", ((4, 8), (140, 150))),)),
        Segment("aBc_dEfGh12", 60.0, 210.0, 126, (Told("A dog barks.", ((0, 126),)), Told("A cat jumps.", ((2, 4),)))),
        Segment("-_s0sXOfS3w", 360.0, 510.0, 150, (Told("A man walks.", ((10, 20),)),)),
    ],
    "val": [Segment("NUsG9BgSes0", 60.0, 210.0, 150, (Told("A girl cooks.", ((82, 150),)),))],
    "test": [Segment("T0123456789", 0.0, 150.0, 150, (Told("Who knows when."),))],
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
# What the joined videos show, by hand: the first segment of aBc_dEfGh12 lasts 126 s.
QVHIGHLIGHTS_JOINED: World = {
    "train": [
        Video("aBc_dEfGh12", 276.0, (Told("A cat jumps.", ((130, 134), (266, 276))),)),
        Video("aBc_dEfGh12", 276.0, (Told("A dog barks.", ((0, 126),)), Told("A cat jumps.", ((2, 4),)))),
        Video("-_s0sXOfS3w", 150.0, (Told("A man walks.", ((10, 20),)),)),
    ],
    "val": [Video("NUsG9BgSes0", 150.0, (Told("A girl cooks.", ((82, 150),)),))],
    "test": [Video("T0123456789", 150.0, (Told("Who knows when."),))],
}


def write_qvhighlights(folder: Path) -> dict[str, Split]:
    number = 0
    for split, segments in QVHIGHLIGHTS.items():
        rows = []
        for segment in segments:
            for told in segment.told:
                row = {"qid": number, "query": told.text, "duration": segment.duration, "vid": segment.id}
                number += 1
                if told.windows:
                    row |= {"relevant_windows": told.windows, "relevant_clip_ids": [0], "saliency_scores": [[4, 3, 3]]}
                rows.append(row)
        write_lines(folder / f"highlight_{split}_release.jsonl", rows)
    ids = map(str, range(number))
    return {split: split_of(videos, ids) for split, videos in QVHIGHLIGHTS_JOINED.items()}


# ---------------------------------------------------------------- releases


def write_captions(folder: Path, name: str, world: World, line_end: str = "\n") -> dict[str, Split]:
    """The caption files of a release in `folder`, which is the dataset's."""
    texts = folder / "TextData"
    texts.mkdir(parents=True, exist_ok=True)
    for split, videos in world.items():
        told = [told for video in videos for told in video.told]
        lines = [f"{query_id} {each.text}{line_end}" for query_id, each in zip(caption_ids(videos), told, strict=True)]
        (texts / f"{name}{split}.caption.txt").write_bytes("".join(lines).encode())
    return {split: split_of(videos, caption_ids(videos), moments=False) for split, videos in world.items()}
