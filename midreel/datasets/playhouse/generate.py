"""The playhouse: a dataset of small untrimmed videos with sentences about their parts, made from a seed.

A video holds a few events in sequence, some of them never described. The same kinds of events recur in other videos, so
the sentences of one video differ and those of different videos resemble each other. As cooks and kitchens do in real
videos, things go together: each video is one of a few plays, and only the things of that play appear in it. That is the
setting in which semantic collapse happens: who learns from pairs of sentence and video alone learns the play. Many
actions show in no single frame (what rises looks like what falls), so that time has to be understood.

First comes the description, a pure function of (seed, split, index); frames are a pure function of the description
and the time. No frame needs a file, and a file holds what `render` gives.
"""

import json
import math
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from midreel.datasets import own, parsing
from midreel.datasets.playhouse import art, motion, words
from midreel.datasets.playhouse.motion import COVERS, HIDING, PAIR_ACTIONS, SOLO_ACTIONS, Pose
from midreel.datasets.playhouse.words import Actor
from midreel.errors import BadSetting, UnknownName
from midreel.media.decode import write_video
from midreel.types import Moment, Query, Split

Frame = NDArray[np.uint8]  # height x width x RGB

# "stills" is for what is learnt from single frames before there is any video to search.
SPLITS = ("train", "val", "test", "stills")
FRAME_RATE = 12
FRAME_SIZE = (192, 144)  # width, height
NUM_PLAYS, CAST_SIZE, NUM_COLOURS, NUM_BACKDROPS = 3, 4, 4, 3  # of a dataset
DESCRIPTION = "playhouse.json"  # of a folder: what all of it can be made from again
VERSION = 3  # of the generator: to be raised when the same seed gives other videos, for folders outlive it
_ID = re.compile(rf"playhouse-(?P<split>{'|'.join(SPLITS)})-(?P<index>[0-9]{{5}}|[1-9][0-9]{{5,}})")


# ---------------------------------------------------------------- what happens, where, to whom


@dataclass(frozen=True, kw_only=True)
class Event:
    """Actors doing something on a backdrop. A second actor in a solo action only watches.

    `side` is where an actor comes from or goes to, or mirrors what has no direction; `place` and `scale` make no two
    performances quite alike.
    """

    action: str
    side: str
    actors: tuple[Actor, ...]
    backdrop: str
    start: float
    end: float
    place: float = 0.0
    scale: float = 1.0

    def poses(self, time: float | int) -> tuple[Pose, ...]:
        """Where the actors are at `time` (seconds of the video), in the order of `actors`."""
        poses = motion.perform(
            self.action, len(self.actors), float(time) - self.start, self.end - self.start, place=self.place
        )
        poses = tuple(replace(pose, size=pose.size * self.scale) for pose in poses)
        return tuple(map(motion.mirrored, poses)) if self.side == "right" else poses


@dataclass(frozen=True, kw_only=True)
class PlayhouseVideo:
    """All there is to know about a video: who appears when, and what is said about it."""

    id: str
    duration: float
    events: tuple[Event, ...]
    queries: tuple[Query, ...]
    event_of_query: tuple[int, ...]

    @property
    def backdrops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.backdrop for event in self.events))

    def at(self, time: float | int) -> tuple[str, Event | None]:
        """The backdrop at `time`, and the event if there is one; between two events the scene changes half-way."""
        for event in self.events:
            if event.start <= time < event.end:
                return event.backdrop, event
        for before, after in pairwise(self.events):
            if time < (before.end + after.start) / 2:
                return before.backdrop, None
        return self.events[-1].backdrop, None


# ---------------------------------------------------------------- the generator


@dataclass(frozen=True, kw_only=True)
class Troupe:
    """Who and what a dataset has to play with: the things that appear in each of its plays, and what all share."""

    plays: tuple[tuple[str, ...], ...]
    colours: tuple[str, ...]
    backdrops: tuple[str, ...]


EVERYTHING = Troupe(plays=(tuple(art.THINGS),), colours=tuple(art.COLOURS), backdrops=tuple(art.BACKDROPS))


def make_troupe(seed: int, split: str = "train") -> Troupe:
    """A dataset has a small troupe, so that its videos resemble each other and often only events tell them apart.

    All splits of a seed have the same, so that what goes together in one goes together in the others. Stills show
    everything there is.
    """
    if split == "stills":
        return EVERYTHING
    rng = np.random.default_rng([seed, len(SPLITS)])
    covers = rng.permutation(COVERS)[:NUM_PLAYS].tolist()
    others = [thing for thing in rng.permutation(list(art.THINGS)).tolist() if thing not in COVERS]
    return Troupe(
        plays=tuple((cover, *others[number::NUM_PLAYS][: CAST_SIZE - 1]) for number, cover in enumerate(covers)),
        colours=tuple(rng.permutation(EVERYTHING.colours)[:NUM_COLOURS].tolist()),
        backdrops=tuple(rng.permutation(EVERYTHING.backdrops)[:NUM_BACKDROPS].tolist()),
    )


def make_video(seed: int, index: int, split: str = "train") -> PlayhouseVideo:
    """The video number `index` of a split: the same whatever else is made, and in no other split."""
    video_id = f"playhouse-{split}-{index:05d}"
    rng = _generator(seed, index, split)
    duration, spans = _timetable(rng, num_events=int(rng.integers(3, 7)))
    # Left and right are different actions where the words tell them apart, hence twice as likely.
    programme = rng.permutation([*SOLO_ACTIONS, "enters", "leaves", *PAIR_ACTIONS])[: len(spans)].tolist()
    troupe = make_troupe(seed, split)
    cast = rng.permutation(words.pick(rng, troupe.plays)).tolist()
    backdrops = cycle(rng.permutation(troupe.backdrops).tolist())
    backdrop = next(backdrops)
    events: list[Event] = []
    for action, (start, end) in zip(programme, spans, strict=True):
        things = _players(action, action in PAIR_ACTIONS or rng.random() < 0.55, cast)
        cast = [thing for thing in cast if thing not in things] + things  # now the others
        if events and rng.random() < 0.6:
            backdrop = next(backdrops)
        colours = rng.permutation(troupe.colours).tolist()
        events.append(
            Event(
                action=action,
                side=words.pick(rng, ("left", "right")),
                actors=tuple(Actor(thing, colour) for thing, colour in zip(things, colours, strict=False)),
                backdrop=backdrop,
                start=start,
                end=end,
                place=rng.uniform(-1, 1),
                scale=rng.uniform(0.92, 1.08),
            )
        )
    queries, event_of_query = _queries(rng, video_id, events)
    return PlayhouseVideo(
        id=video_id, duration=duration, events=tuple(events), queries=queries, event_of_query=event_of_query
    )


def _players(action: str, accompanied: bool, cast: Sequence[str]) -> list[str]:
    """Who plays: those of the cast who come first, where somebody is to be hidden with one behind whom that can be."""
    if action not in HIDING:
        return list(cast[: 2 if accompanied else 1])
    cover = next(thing for thing in cast if thing in COVERS)
    return [next(thing for thing in cast if thing != cover), cover]


def find_video(seed: int, video_id: str) -> PlayhouseVideo:
    """The video of that id."""
    found = _ID.fullmatch(video_id)
    if found is None:
        raise UnknownName(f"no playhouse video {video_id!r}; expected an id such as playhouse-train-00000")
    return make_video(seed, int(found["index"]), found["split"])


def make_split(seed: int, split: str, num_videos: int) -> tuple[PlayhouseVideo, ...]:
    return tuple(make_video(seed, index, split) for index in range(num_videos))


def annotations(videos: Sequence[PlayhouseVideo]) -> Split:
    """What there is to learn from or to search for, in the project's own terms."""
    return Split(
        video_ids=tuple(video.id for video in videos),
        queries=tuple(query for video in videos for query in video.queries),
    )


def _generator(seed: int, index: int, split: str, *purpose: int) -> np.random.Generator:
    if split not in SPLITS:
        raise UnknownName.among("playhouse split", split, SPLITS)
    if seed < 0 or index < 0:
        raise BadSetting(f"seed is {seed} and index is {index}, expected both to be 0 or more; count from 0")
    return np.random.default_rng([seed, SPLITS.index(split), index, *purpose])


def _timetable(rng: np.random.Generator, num_events: int) -> tuple[float, list[tuple[float, float]]]:
    """20 to 60 s, the events in it and the pauses around them, all in quarters of a second, which are whole frames."""
    duration = round(4 * rng.uniform(max(20.0, 6.0 * num_events), 9.5 * num_events)) / 4
    shares = np.empty(2 * num_events + 1)
    shares[1::2] = rng.uniform(0.8, 1.2, num_events)
    shares[0::2] = rng.uniform(0.05, 0.25, num_events + 1)
    bounds = np.round(4 * duration * np.cumsum(shares) / shares.sum()) / 4
    return duration, [(float(bounds[2 * k]), float(bounds[2 * k + 1])) for k in range(num_events)]


def _queries(
    rng: np.random.Generator, video_id: str, events: Sequence[Event]
) -> tuple[tuple[Query, ...], tuple[int, ...]]:
    """Most events are described once, some twice, and nearly a third not at all; two of a video always are."""
    num_wordings = [0 if rng.random() < 0.5 else 2 if rng.random() < 0.3 else 1 for _ in events]
    for number in rng.permutation(len(events))[:2].tolist():
        num_wordings[number] = max(num_wordings[number], 1)
    queries: list[Query] = []
    event_of_query: list[int] = []
    for number, (event, count) in enumerate(zip(events, num_wordings, strict=True)):
        texts = [words.describe(rng, event.action, event.side, event.actors, event.backdrop) for _ in range(count)]
        for text in dict.fromkeys(texts):
            query_id = f"{video_id}#{len(queries)}"
            moment = Moment(start=event.start, end=event.end)
            queries.append(Query(id=query_id, text=text, video_id=video_id, moments=(moment,)))
            event_of_query.append(number)
    return tuple(queries), tuple(event_of_query)


# ---------------------------------------------------------------- pictures


def render(video: PlayhouseVideo, time: float | int, size: tuple[int, int] = FRAME_SIZE) -> Frame:
    """The frame at `time` seconds, `size` (width, height) pixels large.

    A frame narrower than 4:3 shows the middle of the stage: 64 × 64 is what is left of 85 × 64 after a centre crop.
    """
    backdrop, event = video.at(time)
    if event is None:
        return art.draw(backdrop, (), *size)
    cast = sorted(zip(event.actors, event.poses(time), strict=True), key=lambda pair: pair[1].depth)
    placed = [
        art.Placed(
            thing=actor.thing,
            colour=actor.colour,
            x=pose.x,
            y=pose.y,
            size=pose.size,
            angle=pose.angle,
            flipped=pose.faces_left,
        )
        for actor, pose in cast
        if pose.visible
    ]
    return art.draw(backdrop, placed, *size)


def frame_times(video: PlayhouseVideo, rate: float | int) -> list[float]:
    return [k / rate for k in range(math.ceil(video.duration * rate))]


def frames(
    video: PlayhouseVideo, rate: float | int, size: tuple[int, int] = FRAME_SIZE
) -> Iterator[tuple[float, Frame]]:
    """What a decoder would give of the video's file, but for the losses of compression."""
    for time in frame_times(video, rate):
        yield time, render(video, time, size)


# ---------------------------------------------------------------- stills


@dataclass(frozen=True, kw_only=True)
class Still:
    """A single frame and sentences that it alone shows to be true."""

    image: Frame
    captions: tuple[str, ...]


def still_captions(video: PlayhouseVideo, time: float | int, rng: np.random.Generator) -> list[str]:
    """Sentences about the frame at `time`: things, colours, backdrop, where and how large; nothing only time reveals.

    They speak of what lies in the middle square of the stage, which is all that a model with a square input sees.
    """
    backdrop, event = video.at(time)
    if event is None:
        return words.describe_still(rng, (), None, backdrop)
    clear = _clear(event, time)
    seen = [_seen(actor, pose) for actor, pose in clear]
    relation = _relation(clear[0][1], clear[1][1]) if len(clear) == 2 else None
    return words.describe_still(rng, seen, relation, backdrop)


def in_view(video: PlayhouseVideo, time: float | int) -> tuple[Actor, ...]:
    """Whom the frame at `time` shows clearly enough to speak of."""
    _, event = video.at(time)
    return () if event is None else tuple(actor for actor, _ in _clear(event, time))


def stills(seed: int, num_videos: int, per_video: int = 4, size: tuple[int, int] = (64, 64)) -> Iterator[Still]:
    """Frames at random times of the videos of the split "stills", with their captions."""
    for index in range(num_videos):
        video = make_video(seed, index, "stills")
        rng = _generator(seed, index, "stills", 1)
        for _ in range(per_video):
            time = rng.uniform(0, video.duration)
            yield Still(image=render(video, time, size), captions=tuple(still_captions(video, time, rng)))


def _clear(event: Event, time: float | int) -> list[tuple[Actor, Pose]]:
    poses = event.poses(time)
    return [(actor, pose) for actor, pose in zip(event.actors, poses, strict=True) if _in_view(pose, poses)]


def _in_view(pose: Pose, others: Sequence[Pose]) -> bool:
    """Whether most of the actor is inside the middle square and not behind somebody."""
    inside = (0.5 + pose.size / 2 - abs(pose.x)) / pose.size
    covered = any(
        other.visible
        and other.depth > pose.depth
        and math.hypot(other.x - pose.x, other.y - pose.y) < other.size * 0.45
        for other in others
        if other.size > 1.5 * pose.size
    )
    return pose.visible and inside > 0.6 and not covered


def _seen(actor: Actor, pose: Pose) -> words.Seen:
    across = "left" if pose.x < -0.14 else "right" if pose.x > 0.14 else ""
    along = "top" if pose.y < -0.14 else "bottom" if pose.y > 0.14 else ""
    place = (across if abs(pose.x) > abs(pose.y) else along) or across or along or "middle"
    turned = abs(math.remainder(pose.angle, 2 * math.pi))
    turn = "" if turned < 0.35 else "tilted" if turned < 0.9 else "sideways" if turned < 2.25 else "upside_down"
    return words.Seen(
        actor=actor,
        place=place,
        size="big" if pose.size > 0.46 else "small" if pose.size < 0.25 else "",
        turn=turn if actor.thing != "ball" else "",  # which way up is it?
    )


def _relation(first: Pose, second: Pose) -> tuple[str, int, int]:
    """How two actors stand to each other, and which is named first."""
    across, along = second.x - first.x, second.y - first.y
    if first.depth != second.depth and math.hypot(across, along) < 0.65 * (first.size + second.size) / 2:
        return ("in_front_of", 0, 1) if first.depth > second.depth else ("in_front_of", 1, 0)
    if abs(along) > abs(across):
        return ("above", 0, 1) if along > 0 else ("above", 1, 0)
    return ("left_of", 0, 1) if across > 0 else ("left_of", 1, 0)


# ---------------------------------------------------------------- files


def write_file(video: PlayhouseVideo, path: Path, size: tuple[int, int] = FRAME_SIZE, rate: int = FRAME_RATE) -> str:
    """Renders a video into an mp4; returns its id."""
    write_video(path, (image for _, image in frames(video, rate, size)), rate)
    return video.id


def write_dataset(
    folder: Path,
    *,
    seed: int,
    num_train: int = 0,
    num_val: int = 0,
    num_test: int = 0,
    files: Sequence[str] = ("train", "val", "test"),
    size: tuple[int, int] = FRAME_SIZE,
    rate: int = FRAME_RATE,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Split]:
    """Writes the annotations, and an mp4 for every video of the splits named in `files`; files that exist are kept.

    What is only trained on needs no file, for `frames` gives its frames. The annotations come last, so a folder that
    has them is complete. `progress` is told the id of each file that is there.
    """
    counts = {"train": num_train, "val": num_val, "test": num_test}
    for name in files:
        if name not in counts:
            raise UnknownName.among("playhouse split", name, counts)
    if not any(counts.values()):
        raise BadSetting("no video is asked for, expected at least one for train, val or test; ask for some")
    dataset = {name: make_split(seed, name, count) for name, count in counts.items() if count}
    splits = {name: annotations(of_split) for name, of_split in dataset.items()}
    _describe(folder, {"version": VERSION, "seed": seed, "size": list(size), "rate": rate})
    _expect_room(folder, splits)
    wanted = [(video, folder / f"{video.id}.mp4", size, rate) for name in files for video in dataset.get(name, ())]
    made = [video.id for video, path, *_ in wanted if path.exists()]
    for video_id in chain(made, _in_parallel(write_file, [each for each in wanted if each[0].id not in made])):
        if progress is not None:
            progress(video_id)
    own.write(folder, splits)
    return splits


def drawn(folder: Path, video_id: str, rate: float | int) -> tuple[Iterator[tuple[float, Frame]], float] | None:
    """The frames and the duration of a video of `folder` without its file, if `write_dataset` made the folder."""
    if not can_draw(folder, video_id):
        return None
    description = _read_description(folder / DESCRIPTION)
    if description["version"] != VERSION:
        raise BadSetting(
            f"{folder} is of version {description['version']} of the playhouse, expected {VERSION}: its videos would "
            f"be others; make the dataset anew in another folder"
        )
    width, height = description["size"]
    video = find_video(description["seed"], video_id)
    return frames(video, rate, (width, height)), video.duration


def can_draw(folder: Path, video_id: str) -> bool:
    """Whether a video of `folder` needs no file."""
    return (folder / DESCRIPTION).is_file() and _ID.fullmatch(video_id) is not None


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {"seed", "size", "rate"} <= set(description):
            return {"version": 1} | description
    except (ValueError, TypeError) as error:
        raise BadSetting(f"{path} is not JSON ({error}), expected what midreel wrote; delete the folder") from error
    raise BadSetting(f"{path} holds {description}, expected seed, size, rate and version; delete the folder")


def _describe(folder: Path, description: dict[str, Any]) -> None:
    """Says what the folder's files are made from; a folder holds one dataset, and what people wrote is theirs."""
    path = folder / DESCRIPTION
    if path.is_file():
        found = _read_description(path)
        if found != description:
            names = [name for name in found | description if found.get(name) != description.get(name)]
            others = [f"{name} {found.get(name)}, not {description.get(name)}" for name in names]
            raise BadSetting(
                f"{folder} holds a playhouse of {', '.join(others)}; ask for the same, or choose another folder"
            )
        return
    if own.annotation_files(folder):
        raise BadSetting(f"{folder} holds annotations of its own, expected a new folder; choose another")
    if folder.exists() and not folder.is_dir():
        raise BadSetting(f"{folder} is a file, expected a new folder; choose another name")
    if any(not path.name.startswith("playhouse-") for path in own.video_files(folder)):
        raise BadSetting(f"{folder} holds videos of its own, expected a new folder; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    parsing.write_whole(path, json.dumps(description) + "\n")


def _expect_room(folder: Path, splits: Mapping[str, Split]) -> None:
    """Annotations are replaced by longer ones of this dataset only, never by others or by fewer."""
    if not own.annotation_files(folder):
        return
    known = {query for split in splits.values() for query in split.queries}
    strays = [query for split in own.read(folder).values() for query in split.queries if query not in known]
    if strays:
        raise BadSetting(
            f"{own.annotation_file(folder)} has {len(strays)} sentences that this dataset would not have, such as "
            f"{strays[0].text!r}, and would lose them; ask for at least as many videos, or choose another folder"
        )


def _in_parallel(function: Callable[..., str], arguments: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """The results as they come, from a process for each core; a few calls are not worth starting one."""
    workers = min(os.cpu_count() or 1, len(arguments) // 8)
    if workers <= 1:
        yield from (function(*each) for each in arguments)
        return
    # Processes that start afresh: a fork of one that has computed with torch's threads may hang.
    # An interruption is for this process to tell, which then waits for the calls that have begun.
    deaf = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), signal.signal, deaf) as pool:
        try:
            with _interruptions_held_back():
                waiting = [pool.submit(function, *each) for each in arguments]
            yield from (done.result() for done in as_completed(waiting))
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interruptions_held_back() -> Iterator[None]:
    """An interruption arrives when the block ends, and never at processes that are started in it, which inherit what is
    held back: they are deaf even before they can say so. Windows has no such thing.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def contact_sheet(videos: Sequence[PlayhouseVideo], path: Path, every: float | int = 1.5, columns: int = 14) -> None:
    """A picture for people: per video a strip of frames, a colour bar under each event, and what is said about it."""
    cell, bar, line, margin = (128, 96), 20, 22, 12
    text, small = ImageFont.load_default(15), ImageFont.load_default(11)
    ink, grey = (30, 30, 36), (120, 120, 128)
    strips = [[k * every for k in range(math.ceil(video.duration / every))] for video in videos]
    heights = [
        margin + line + math.ceil(len(times) / columns) * (cell[1] + bar) + (len(video.queries) + 1) * line
        for video, times in zip(videos, strips, strict=True)
    ]
    sheet = Image.new("RGB", (columns * cell[0] + 2 * margin, sum(heights) + margin), art.PAPER)
    draw = ImageDraw.Draw(sheet)
    colours = list(art.COLOURS.values())
    top = 0
    for video, times, height in zip(videos, strips, heights, strict=True):
        y = top + margin
        draw.text((margin, y), f"{video.id}   {video.duration:g} s", fill=ink, font=text)
        y += line
        for number, time in enumerate(times):
            x, row = margin + number % columns * cell[0], y + number // columns * (cell[1] + bar)
            sheet.paste(Image.fromarray(render(video, time, (cell[0] - 2, cell[1]))), (x, row))
            event = video.at(time)[1]
            if event is not None:
                strip = [x, row + cell[1], x + cell[0] - 1, row + cell[1] + 4]
                draw.rectangle(strip, fill=colours[video.events.index(event)])
            draw.text((x + 2, row + cell[1] + 6), f"{time:g} s", fill=grey, font=small)
        y += math.ceil(len(times) / columns) * (cell[1] + bar)
        for query, event_number in zip(video.queries, video.event_of_query, strict=True):
            event = video.events[event_number]
            draw.rectangle([margin, y + 3, margin + 12, y + 15], fill=colours[event_number])
            draw.text((margin + 20, y), f"{event.start:g} - {event.end:g} s   {query.text}", fill=ink, font=text)
            y += line
        silent = [k for k in range(len(video.events)) if k not in video.event_of_query]
        for place, number in enumerate(silent):
            draw.rectangle([margin + 16 * place, y + 3, margin + 16 * place + 12, y + 15], fill=colours[number])
        if silent:
            draw.text((margin + 16 * len(silent) + 4, y), "not described", fill=grey, font=text)
        top += height
    sheet.save(path)
