"""What is said in the videos of a library: read their subtitles, search them, and fuse what is said with what is seen.

A plain sentence is searched in the picture and in what is said. Reciprocal rank fusion joins both orders:
score = (1 - w) / (K + rank in the picture) + w / (K + rank in what is said).
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from midreel.library.hits import Hit, RelevanceCurve
from midreel.library.records import Records, Spoken
from midreel.media import subtitles
from midreel.media.subtitles import Line
from midreel.ops.moments import ScoredMoment

WEIGHT, SMOOTHING = 0.3, 0  # w and K; measured: docs/results/subtitles.md
DEPTH = 100  # hits in the picture, and videos in which something is said, that are fused
SHARE = 0.6  # the least share of the words of a sentence that a line must have
NOTHING = "[]"  # the stamp of a video without subtitle files
MOST_SHOWN = 5  # lines of a hit
_MOST_LINES = 2000  # that a search reads

_MARK = "\x02"  # before each found word
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about an and are as at be been but by can could did do does for from had has have he her him his how i if "
        "in into is it its just me my no not of on or our out she so some than that the their them then there these "
        "they this to up us was we were what when where which who will with would you your",
    )
)


# ---------------------------------------------------------------- what a video has


def stamp_of(files: Iterable[Path]) -> str:
    """Return the names, sizes and times of the subtitle files beside some videos, as one text."""
    found = []
    for path in sorted({side for file in files for side in subtitles.beside(file)}):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append([path.name.encode("utf-8", "backslashreplace").decode(), status.st_size, status.st_mtime_ns])
    return json.dumps(found)


def spoken_in(files: Sequence[Path]) -> Spoken:
    """Return what is said in a video: the lines of the subtitle files beside its files, or else of its own tracks.

    Args:
        files: The files of the video, which all have the same content.
    """
    stamp, lines = stamp_of(files), set[Line]()
    for path in sorted({side for file in files for side in subtitles.beside(file)}):
        try:
            lines.update(subtitles.read(path))
        except OSError:
            continue  # the stamp has it, if it can be seen: when it changes, it is read again
    if not lines and files:
        lines.update(subtitles.embedded(files[0]))
    return Spoken(lines=tuple(sorted(lines)), stamp=stamp)


def refresh(catalogue: Records, files: Mapping[str, Sequence[Path]], *, every: bool = False) -> int:
    """Read the subtitles of videos again whose subtitle files have changed. Return how many videos that were.

    Args:
        catalogue: The catalogue, open for writing.
        files: The files of each video, by id.
        every: Read all, whether they have changed or not.
    """
    known, number = catalogue.stamps(), 0
    for video_id, paths in files.items():
        if every or stamp_of(paths) != known.get(video_id, NOTHING):
            catalogue.put_spoken(video_id, spoken_in(paths))
            number += 1
    return number


# ---------------------------------------------------------------- search


@dataclass(frozen=True, kw_only=True)
class Heard:
    """The lines of a video that a search found, best first."""

    video_id: str
    lines: tuple[Line, ...]


def search(
    catalogue: Records, words: Sequence[str], *, phrase: bool, among: Iterable[str] | None = None
) -> list[Heard]:
    """Return the videos in which something is said, best first.

    Args:
        catalogue: The catalogue.
        words: Texts. As phrases, all must be said in a video; as sentences, a line must have most of their words.
        phrase: Whether the texts are phrases.
        among: Search only these videos. Default: all.

    Raises:
        BadQuery: The library cannot keep subtitles.
    """
    found: list[dict[str, list[Line]]] = []
    for text in words:
        terms = _terms(text, keep_all=phrase)
        if not terms:
            found.append({})
            continue
        enough = 1 if phrase else max(1, math.ceil(SHARE * len(terms)))
        lines: dict[str, list[Line]] = {}
        for video_id, line, marked in catalogue.spoken(terms, among, phrase=phrase, most=_MOST_LINES, mark=_MARK):
            if len(set(re.findall(rf"{_MARK}(\w+)", marked.lower()))) >= enough:
                lines.setdefault(video_id, []).append(line)
        found.append(lines)
    if not found:
        return []
    shared = [video_id for video_id in found[0] if all(video_id in each for each in found[1:])]
    return [
        Heard(video_id=video_id, lines=tuple(dict.fromkeys(line for each in found for line in each[video_id])))
        for video_id in shared
    ]


def _terms(text: str, *, keep_all: bool) -> list[str]:
    """Return the words of a text, without those that every text has.

    >>> _terms("What did the dog's owner say?", keep_all=False)
    ['dog', 's', 'owner', 'say']
    """
    words = re.findall(r"\w+", text.lower())
    return words if keep_all else list(dict.fromkeys(word for word in words if word not in _STOP_WORDS))


def fused(
    seen: Sequence[Hit], heard: Sequence[Heard], find: Callable[[list[str]], Sequence[Hit]], *, top: int, weight: float
) -> list[Hit]:
    """Join the order of hits in the picture with the order of what is said.

    Args:
        seen: The hits in the picture, best first.
        heard: The videos in which it is said, best first.
        find: Returns the hits of given videos, for those that were only heard.
        top: The number of hits, at most.
        weight: The weight w of what is said, from 0 to 1.
    """
    if not heard or not weight:
        return list(seen[:top])
    heard = heard[:DEPTH]
    hits = {hit.video_id: hit for hit in seen}
    only_heard = [each.video_id for each in heard if each.video_id not in hits]
    hits |= {hit.video_id: hit for hit in find(only_heard)} if only_heard else {}
    in_picture = {video_id: rank for rank, video_id in enumerate(hits, start=1)}
    in_speech = {each.video_id: rank for rank, each in enumerate(heard, start=1)}
    lines = {each.video_id: each.lines for each in heard}
    order = sorted(hits, key=lambda each: -fused_score(in_picture[each], in_speech.get(each), weight))
    return [replace(hits[each], said=lines.get(each, ())[:MOST_SHOWN]) for each in order[:top]]


def fused_score(picture: int, speech: int | None, weight: float) -> float:
    """Return the score of reciprocal rank fusion.

    Args:
        picture: The rank in the picture, from 1.
        speech: The rank in what is said, or None.
        weight: The weight of what is said.

    >>> fused_score(2, None, 0.5), fused_score(2, 1, 0.5)
    (0.25, 0.75)
    """
    return (1 - weight) / (SMOOTHING + picture) + (weight / (SMOOTHING + speech) if speech else 0)


def as_said(hit: Hit, heard: Heard) -> Hit:
    """Return a hit whose moments are the lines that were found.

    Args:
        hit: The hit.
        heard: The lines.
    """
    shown = heard.lines[:MOST_SHOWN]
    moments = tuple(
        ScoredMoment(
            start=min(line.start, hit.duration),
            end=min(line.end, hit.duration),
            score=hit.score,
            peak=min((line.start + line.end) / 2, hit.duration),
        )
        for line in shown
    )
    return replace(hit, said=shown, moments=moments)


def unseen(hit_id: str, paths: tuple[Path, ...], duration: float, heard: Heard, rank: int) -> Hit:
    """Return the hit of a video that is found by what is said alone.

    Args:
        hit_id: The id of the video.
        paths: Its files.
        duration: Its length in seconds.
        heard: The lines that were found.
        rank: Its rank, from 1.
    """
    middles = sorted((line.start + line.end) / 2 for line in heard.lines)
    curve = RelevanceCurve(times=[0.0, *middles, duration], values=[0.0, *[1.0] * len(middles), 0.0])
    hit = Hit(
        video_id=hit_id,
        score=(SMOOTHING + 1) / (SMOOTHING + rank),  # 1 for the first
        branch_scores={},
        path=paths[0],
        paths=paths,
        duration=duration,
        moments=(),
        curve=curve,
    )
    return as_said(hit, heard)
