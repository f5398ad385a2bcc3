"""Generate the playhouse: a dataset of small untrimmed videos with sentences about their parts, from a seed.

A video is a sequence of a few events. Most events have a sentence, some have none. The same kinds of events occur in
other videos. So the sentences of one video differ, and sentences of different videos are similar.

Certain things appear together, as cooks and kitchens do in real videos. Each video is one of a few plays, with only the
things of this play. This setting leads to semantic collapse: a model that learns only from pairs of sentence and video
learns to recognise the play. Many actions cannot be recognised in a single frame, because a rising thing looks like a
falling one. So a model has to use time.

The description of a video is a pure function of seed, split and index. A frame is a pure function of the description
and the time. No file is needed, and a file contains the frames that `render` returns.
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

# "stills" has single frames, to train a backbone.
SPLITS = ("train", "val", "test", "stills")
FRAME_RATE = 12
FRAME_SIZE = (192, 144)  # width, height
NUM_PLAYS, CAST_SIZE, NUM_COLOURS, NUM_BACKDROPS = 3, 4, 4, 3  # in a dataset
DESCRIPTION = "playhouse.json"  # the settings from which a folder can be generated again
VERSION = 3  # of the generator. Raise it when the same seed gives other videos: old folders must not mix with new ones.
_REPEATED = "repeated-"  # in the id of a video whose events repeat
_ID = re.compile(
    rf"playhouse-(?P<repeated>{_REPEATED})?(?P<split>{'|'.join(SPLITS)})-(?P<index>[0-9]{{5}}|[1-9][0-9]{{5,}})"
)


# ---------------------------------------------------------------- descriptions


@dataclass(frozen=True, kw_only=True)
class Event:
    """An action of one or two actors in front of a backdrop.

    Attributes:
        action: A key of SOLO_ACTIONS or PAIR_ACTIONS.
        side: left or right: where the actor comes from or goes to. An action without direction is mirrored.
        actors: The actors. The second actor of a solo action only watches.
        backdrop: A key of art.BACKDROPS.
        start: The start, in seconds of the video.
        end: The end, in seconds of the video.
        place: Moves the actor along the stage, from -1 to 1, for variety.
        scale: Scales the actors, for variety.
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
        """Return the poses of the actors at `time` (seconds of the video), in the order of `actors`."""
        poses = motion.perform(
            self.action, len(self.actors), float(time) - self.start, self.end - self.start, place=self.place
        )
        poses = tuple(replace(pose, size=pose.size * self.scale) for pose in poses)
        return tuple(map(motion.mirrored, poses)) if self.side == "right" else poses


@dataclass(frozen=True, kw_only=True)
class PlayhouseVideo:
    """The description of a video: its events, and the queries about them.

    Attributes:
        id: Such as playhouse-train-00000.
        duration: The duration, in seconds.
        events: The events, in order of time.
        queries: The sentences about events. Some events have none.
        event_of_query: The position in `events` of the event that each query describes, the first one if it repeats.
    """

    id: str
    duration: float
    events: tuple[Event, ...]
    queries: tuple[Query, ...]
    event_of_query: tuple[int, ...]

    @property
    def backdrops(self) -> tuple[str, ...]:
        """The backdrops of the video, in order of appearance."""
        return tuple(dict.fromkeys(event.backdrop for event in self.events))

    def at(self, time: float | int) -> tuple[str, Event | None]:
        """Return the backdrop at `time`, and the event, or None between events.

        The backdrop changes half-way between two events.
        """
        for event in self.events:
            if event.start <= time < event.end:
                return event.backdrop, event
        for before, after in pairwise(self.events):
            if time < (before.end + after.start) / 2:
                return before.backdrop, None
        return self.events[-1].backdrop, None


# ---------------------------------------------------------------- generator
# The order of the calls to `rng` determines the videos of a seed. If you change it, raise VERSION.


@dataclass(frozen=True, kw_only=True)
class Troupe:
    """The things, colours and backdrops of a dataset.

    Attributes:
        plays: The things that appear together, for each play.
        colours: The colours of all plays.
        backdrops: The backdrops of all plays.
    """

    plays: tuple[tuple[str, ...], ...]
    colours: tuple[str, ...]
    backdrops: tuple[str, ...]


EVERYTHING = Troupe(plays=(tuple(art.THINGS),), colours=tuple(art.COLOURS), backdrops=tuple(art.BACKDROPS))


def make_troupe(seed: int, split: str = "train") -> Troupe:
    """Return the things, colours and backdrops of a split.

    A troupe is small, so that videos are similar and often differ only in their events. The splits train, val and test
    of a seed have the same troupe. The split stills has all things, colours and backdrops.
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
    """Return one video of a split. It does not depend on the number of videos in the split.

    Args:
        seed: The seed of the dataset.
        index: The number of the video in the split, from 0.
        split: The name of the split.

    Raises:
        UnknownName: There is no such split.
        BadSetting: The seed or the index is negative.

    >>> make_video(seed=0, index=0).id
    'playhouse-train-00000'
    """
    return _make_video(_generator(seed, index, split), f"playhouse-{split}-{index:05d}", make_troupe(seed, split))


def _make_video(rng: np.random.Generator, video_id: str, troupe: Troupe) -> PlayhouseVideo:
    duration, spans = _timetable(rng, num_events=int(rng.integers(3, 7)))
    # Sentences about entering and leaving name the side, so these actions count twice, once for each side.
    programme = rng.permutation([*SOLO_ACTIONS, "enters", "leaves", *PAIR_ACTIONS])[: len(spans)].tolist()
    cast = rng.permutation(words.pick(rng, troupe.plays)).tolist()
    backdrops = cycle(rng.permutation(troupe.backdrops).tolist())
    backdrop = next(backdrops)
    events: list[Event] = []
    for action, (start, end) in zip(programme, spans, strict=True):
        things = _players(action, action in PAIR_ACTIONS or rng.random() < 0.55, cast)
        cast = [thing for thing in cast if thing not in things] + things  # the others are next
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


def make_repeated_video(seed: int, index: int, split: str = "train") -> PlayhouseVideo:
    """Return a video in which one described event happens two or three times, with other events in between.

    The actors, the action and the backdrop of a repetition are the same, so every sentence about the event describes
    all of its moments. The other events have one moment, as in `make_video`.

    Args:
        seed: The seed of the dataset.
        index: The number of the video in the split, from 0.
        split: The name of the split.

    Raises:
        UnknownName: There is no such split.
        BadSetting: The seed or the index is negative.

    >>> [len(query.moments) for query in make_repeated_video(seed=0, index=0).queries]
    [1, 1, 2]
    """
    rng = _generator(seed, index, split, 2)  # 1 is for stills
    video = _make_video(rng, f"playhouse-{_REPEATED}{split}-{index:05d}", make_troupe(seed, split))
    chosen = words.pick(rng, sorted(set(video.event_of_query)))
    programme = [number for number in range(len(video.events)) if number != chosen]
    # Each repetition has its own place between, before or after the others, so no two of them are neighbours.
    places = rng.permutation(len(programme) + 1)[: int(rng.integers(2, 4))].tolist()
    for place in sorted(places, reverse=True):
        programme.insert(place, chosen)
    duration, spans = _timetable(rng, num_events=len(programme))
    events = tuple(
        replace(video.events[number], start=start, end=end, place=rng.uniform(-1, 1), scale=rng.uniform(0.92, 1.08))
        for number, (start, end) in zip(programme, spans, strict=True)
    )
    moments = [
        tuple(
            Moment(start=start, end=end) for each, (start, end) in zip(programme, spans, strict=True) if each == number
        )
        for number in video.event_of_query
    ]
    return PlayhouseVideo(
        id=video.id,
        duration=duration,
        events=events,
        queries=tuple(replace(query, moments=each) for query, each in zip(video.queries, moments, strict=True)),
        event_of_query=tuple(programme.index(number) for number in video.event_of_query),
    )


def _players(action: str, accompanied: bool, cast: Sequence[str]) -> list[str]:
    """Return the first one or two of the cast. For a hiding action, the second is a thing that can cover the first."""
    if action not in HIDING:
        return list(cast[: 2 if accompanied else 1])
    cover = next(thing for thing in cast if thing in COVERS)
    return [next(thing for thing in cast if thing != cover), cover]


def find_video(seed: int, video_id: str) -> PlayhouseVideo:
    """Return the video with this id.

    Raises:
        UnknownName: No playhouse video has this id.
    """
    found = _ID.fullmatch(video_id)
    if found is None:
        raise UnknownName(f"no playhouse video {video_id!r}; expected an id such as playhouse-train-00000")
    make = make_repeated_video if found["repeated"] else make_video
    return make(seed, int(found["index"]), found["split"])


def make_split(seed: int, split: str, num_videos: int, *, repeated: bool = False) -> tuple[PlayhouseVideo, ...]:
    """Return the first videos of a split.

    Args:
        seed: The seed of the dataset.
        split: The name of the split.
        num_videos: The number of videos.
        repeated: Return videos in which an event repeats.
    """
    make = make_repeated_video if repeated else make_video
    return tuple(make(seed, index, split) for index in range(num_videos))


def annotations(videos: Sequence[PlayhouseVideo]) -> Split:
    """Return the videos and their queries as a split."""
    return Split(
        video_ids=tuple(video.id for video in videos),
        queries=tuple(query for video in videos for query in video.queries),
    )


def _generator(seed: int, index: int, split: str, *purpose: int) -> np.random.Generator:
    """Return the random generator of a video. `purpose` makes it independent of the one for the description."""
    if split not in SPLITS:
        raise UnknownName.among("playhouse split", split, SPLITS)
    if seed < 0 or index < 0:
        raise BadSetting(f"seed is {seed} and index is {index}, expected 0 or more for both.")
    return np.random.default_rng([seed, SPLITS.index(split), index, *purpose])


def _timetable(rng: np.random.Generator, num_events: int) -> tuple[float, list[tuple[float, float]]]:
    """Return a duration of 20 to 60 s, and the start and end of each event, with pauses in between.

    All times are multiples of a quarter of a second, which is a whole number of frames.
    """
    duration = round(4 * rng.uniform(max(20.0, 6.0 * num_events), 9.5 * num_events)) / 4
    shares = np.empty(2 * num_events + 1)
    shares[1::2] = rng.uniform(0.8, 1.2, num_events)
    shares[0::2] = rng.uniform(0.05, 0.25, num_events + 1)
    bounds = np.round(4 * duration * np.cumsum(shares) / shares.sum()) / 4
    return duration, [(float(bounds[2 * k]), float(bounds[2 * k + 1])) for k in range(num_events)]


def _queries(
    rng: np.random.Generator, video_id: str, events: Sequence[Event]
) -> tuple[tuple[Query, ...], tuple[int, ...]]:
    """Return the queries of a video, and the event of each.

    Most events get one sentence, some two, and almost a third none. At least two events of a video get a sentence.
    """
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


# ---------------------------------------------------------------- frames


def render(video: PlayhouseVideo, time: float | int, size: tuple[int, int] = FRAME_SIZE) -> Frame:
    """Return the frame at a time.

    Args:
        video: The description of the video.
        time: Seconds from the start of the video.
        size: The width and height of the frame, in pixels. A frame narrower than 4:3 shows the middle of the stage: a
            frame of 64 × 64 is the centre crop of one of 85 × 64.
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
    """Return the times of the frames at `rate` frames per second."""
    return [k / rate for k in range(math.ceil(video.duration * rate))]


def frames(
    video: PlayhouseVideo, rate: float | int, size: tuple[int, int] = FRAME_SIZE
) -> Iterator[tuple[float, Frame]]:
    """Yield the time and image of each frame, as a decoder of the video's file would, but without compression loss.

    Args:
        video: The video.
        rate: Frames per second.
        size: Width and height in pixels.
    """
    for time in frame_times(video, rate):
        yield time, render(video, time, size)


# ---------------------------------------------------------------- stills


@dataclass(frozen=True, kw_only=True)
class Still:
    """A frame, and sentences that are true of this frame alone."""

    image: Frame
    captions: tuple[str, ...]


def still_captions(video: PlayhouseVideo, time: float | int, rng: np.random.Generator) -> list[str]:
    """Return sentences about a frame: its things, colours and backdrop, but no actions.

    They describe only the centre square of the stage, because a model with a square input sees only that.

    Args:
        video: The video.
        time: The time of the frame in seconds.
        rng: Chooses the words.
    """
    backdrop, event = video.at(time)
    if event is None:
        return words.describe_still(rng, (), None, backdrop)
    visible = _visible_actors(event, time)
    seen = [_seen(actor, pose) for actor, pose in visible]
    relation = _relation(visible[0][1], visible[1][1]) if len(visible) == 2 else None
    return words.describe_still(rng, seen, relation, backdrop)


def in_view(video: PlayhouseVideo, time: float | int) -> tuple[Actor, ...]:
    """Return the actors that are clearly visible in the frame at `time`."""
    _, event = video.at(time)
    return () if event is None else tuple(actor for actor, _ in _visible_actors(event, time))


def stills(seed: int, num_videos: int, per_video: int = 4, size: tuple[int, int] = (64, 64)) -> Iterator[Still]:
    """Yield frames of the split "stills" at random times, with their captions.

    Args:
        seed: The seed of the dataset.
        num_videos: The number of videos to draw frames of.
        per_video: The number of frames of each video.
        size: Width and height in pixels.
    """
    for index in range(num_videos):
        video = make_video(seed, index, "stills")
        rng = _generator(seed, index, "stills", 1)
        for _ in range(per_video):
            time = rng.uniform(0, video.duration)
            yield Still(image=render(video, time, size), captions=tuple(still_captions(video, time, rng)))


def _visible_actors(event: Event, time: float | int) -> list[tuple[Actor, Pose]]:
    poses = event.poses(time)
    return [(actor, pose) for actor, pose in zip(event.actors, poses, strict=True) if _is_visible(pose, poses)]


def _is_visible(pose: Pose, others: Sequence[Pose]) -> bool:
    """Return whether most of the actor is inside the centre square and not covered by another."""
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
    """Return the properties of an actor that a sentence can mention."""
    across = "left" if pose.x < -0.14 else "right" if pose.x > 0.14 else ""
    along = "top" if pose.y < -0.14 else "bottom" if pose.y > 0.14 else ""
    place = (across if abs(pose.x) > abs(pose.y) else along) or across or along or "middle"
    turned = abs(math.remainder(pose.angle, 2 * math.pi))
    turn = "" if turned < 0.35 else "tilted" if turned < 0.9 else "sideways" if turned < 2.25 else "upside_down"
    return words.Seen(
        actor=actor,
        place=place,
        size="big" if pose.size > 0.46 else "small" if pose.size < 0.25 else "",
        turn=turn if actor.thing != "ball" else "",  # a ball looks the same whichever way it is turned
    )


def _relation(first: Pose, second: Pose) -> tuple[str, int, int]:
    """Return the spatial relation of two actors, and the positions of its first and second actor."""
    across, along = second.x - first.x, second.y - first.y
    if first.depth != second.depth and math.hypot(across, along) < 0.65 * (first.size + second.size) / 2:
        return ("in_front_of", 0, 1) if first.depth > second.depth else ("in_front_of", 1, 0)
    if abs(along) > abs(across):
        return ("above", 0, 1) if along > 0 else ("above", 1, 0)
    return ("left_of", 0, 1) if across > 0 else ("left_of", 1, 0)


# ---------------------------------------------------------------- files


def write_file(video: PlayhouseVideo, path: Path, size: tuple[int, int] = FRAME_SIZE, rate: int = FRAME_RATE) -> str:
    """Write a video as an mp4 file. Return its id.

    Args:
        video: The video.
        path: The file to write.
        size: Width and height in pixels.
        rate: Frames per second.
    """
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
    repeated: bool = False,
    size: tuple[int, int] = FRAME_SIZE,
    rate: int = FRAME_RATE,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Split]:
    """Write a dataset: annotations, and mp4 files of some splits. Existing files are kept.

    A split without files can be used too, because `draw_frames` draws its frames. The annotations are written last, so
    a folder with annotations is complete.

    Args:
        folder: A new folder, or a playhouse with the same settings to complete or extend.
        seed: The seed of all videos.
        num_train: The number of videos in the split train.
        num_val: The number of videos in the split val.
        num_test: The number of videos in the split test.
        files: The splits whose videos are written as mp4 files.
        repeated: Write videos in which an event repeats (`make_repeated_video`).
        size: The width and height of the files, in pixels.
        rate: The frames per second of the files.
        progress: Called with the id of each video that has a file.

    Returns:
        The splits, by name.

    Raises:
        UnknownName: `files` names an unknown split.
        BadSetting: No video is requested, or the folder contains something else.
    """
    counts = {"train": num_train, "val": num_val, "test": num_test}
    for name in files:
        if name not in counts:
            raise UnknownName.among("playhouse split", name, counts)
    if not any(counts.values()):
        raise BadSetting(
            "0 videos requested, expected at least 1 for train, val or test. Set num_train, num_val or num_test."
        )
    dataset = {name: make_split(seed, name, count, repeated=repeated) for name, count in counts.items() if count}
    splits = {name: annotations(of_split) for name, of_split in dataset.items()}
    _write_description(folder, {"version": VERSION, "seed": seed, "size": list(size), "rate": rate})
    _expect_no_loss(folder, splits)
    wanted = [(video, folder / f"{video.id}.mp4", size, rate) for name in files for video in dataset.get(name, ())]
    made = [video.id for video, path, *_ in wanted if path.exists()]
    for video_id in chain(made, _in_parallel(write_file, [each for each in wanted if each[0].id not in made])):
        if progress is not None:
            progress(video_id)
    own.write(folder, splits)
    return splits


def draw_frames(folder: Path, video_id: str, rate: float | int) -> tuple[Iterator[tuple[float, Frame]], float] | None:
    """Return the frames and the duration of a playhouse video that has no file; None if it is no playhouse video.

    Args:
        folder: A folder that `write_dataset` wrote.
        video_id: The id of the video.
        rate: Frames per second.

    Raises:
        BadSetting: Another version of the generator wrote the folder, or its description is damaged.
    """
    if not can_draw(folder, video_id):
        return None
    description = _read_description(folder / DESCRIPTION)
    if description["version"] != VERSION:
        raise BadSetting(
            f"{folder} has version {description['version']} of the playhouse, expected {VERSION}, which draws other "
            f"videos. Generate the dataset again in a new folder."
        )
    width, height = description["size"]
    video = find_video(description["seed"], video_id)
    return frames(video, rate, (width, height)), video.duration


def can_draw(folder: Path, video_id: str) -> bool:
    """Return whether `draw_frames` can draw a video, so that it needs no file."""
    return (folder / DESCRIPTION).is_file() and _ID.fullmatch(video_id) is not None


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {"seed", "size", "rate"} <= set(description):
            return {"version": 1} | description
    except (ValueError, TypeError) as error:
        raise BadSetting(f"{path} is not JSON ({error}). Delete the folder and generate it again.") from error
    raise BadSetting(
        f"{path} is {description}, expected seed, size, rate and version. Delete the folder and generate it again."
    )


def _write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write the settings of a new folder, or check that an existing folder has the same.

    Raises:
        BadSetting: The folder has other settings, or videos or annotations that the playhouse did not write.
    """
    path = folder / DESCRIPTION
    if path.is_file():
        found = _read_description(path)
        if found != description:
            names = [name for name in found | description if found.get(name) != description.get(name)]
            others = [f"{name} {found.get(name)}, not {description.get(name)}" for name in names]
            raise BadSetting(
                f"{folder} contains a playhouse with {', '.join(others)}. Use the same settings, or another folder."
            )
        return
    if own.annotation_files(folder):
        raise BadSetting(f"{folder} contains other annotations, expected a new folder. Choose another folder.")
    if folder.exists() and not folder.is_dir():
        raise BadSetting(f"{folder} is a file, expected a new folder. Choose another name.")
    if any(not path.name.startswith("playhouse-") for path in own.video_files(folder)):
        raise BadSetting(f"{folder} contains other videos, expected a new folder. Choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    parsing.write_if_changed(path, json.dumps(description) + "\n")


def _expect_no_loss(folder: Path, splits: Mapping[str, Split]) -> None:
    """Raise BadSetting if writing these splits would delete a sentence from the annotations of the folder."""
    if not own.annotation_files(folder):
        return
    known = {query for split in splits.values() for query in split.queries}
    lost = [query for split in own.read(folder).values() for query in split.queries if query not in known]
    if lost:
        raise BadSetting(
            f"{own.annotation_file(folder)} would lose {len(lost)} sentences, such as {lost[0].text!r}. Generate at "
            f"least as many videos as before, or choose another folder."
        )


def _in_parallel(function: Callable[..., str], arguments: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Yield the results in order of completion, from one process per core. A few calls run in this process."""
    workers = min(os.cpu_count() or 1, len(arguments) // 8)
    if workers <= 1:
        yield from (function(*each) for each in arguments)
        return
    # A forked process may hang if this one has used torch's threads, so the pool spawns new processes. They ignore
    # Ctrl-C: only this process reacts to it, and waits for the running calls to finish.
    ignore_interrupts = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), signal.signal, ignore_interrupts) as pool:
        try:
            with _interrupts_blocked():
                futures = [pool.submit(function, *each) for each in arguments]
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Delay Ctrl-C until the block ends. Processes that start in the block never receive it.

    A child inherits the signal mask, so it ignores Ctrl-C even before its initializer has run. Windows has no signal
    masks.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---------------------------------------------------------------- contact sheet

_CELL, _BAR, _LINE, _MARGIN = (128, 96), 20, 22, 12  # pixels: a frame, the bar below it, a line of text, the border
_DARK, _GREY = (30, 30, 36), (120, 120, 128)


def contact_sheet(videos: Sequence[PlayhouseVideo], path: Path, every: float | int = 1.5, columns: int = 14) -> None:
    """Write an overview image: for each video a strip of frames, a colour bar for each event, and the sentences.

    Args:
        videos: The videos to show.
        path: The image file.
        every: Seconds between two frames.
        columns: The number of frames in a row.
    """
    strips = [[k * every for k in range(math.ceil(video.duration / every))] for video in videos]
    strip_heights = [math.ceil(len(times) / columns) * (_CELL[1] + _BAR) for times in strips]
    heights = [
        _MARGIN + _LINE + strip_height + (len(video.queries) + 1) * _LINE
        for video, strip_height in zip(videos, strip_heights, strict=True)
    ]
    sheet = Image.new("RGB", (columns * _CELL[0] + 2 * _MARGIN, sum(heights) + _MARGIN), art.PAPER)
    draw = ImageDraw.Draw(sheet)
    top = 0
    for video, times, strip_height, height in zip(videos, strips, strip_heights, heights, strict=True):
        y = top + _MARGIN
        title = f"{video.id}   {video.duration:g} s"
        draw.text((_MARGIN, y), title, fill=_DARK, font=ImageFont.load_default(15))
        _draw_strip(sheet, video, times, y + _LINE, columns)
        _draw_sentences(draw, video, y + _LINE + strip_height)
        top += height
    sheet.save(path)


def _draw_strip(sheet: Image.Image, video: PlayhouseVideo, times: Sequence[float | int], y: int, columns: int) -> None:
    """Draw frames of a video from the height `y` down, with their times and the colours of their events."""
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(11)
    colours = list(art.COLOURS.values())
    width, height = _CELL
    for number, time in enumerate(times):
        left, top = _MARGIN + number % columns * width, y + number // columns * (height + _BAR)
        sheet.paste(Image.fromarray(render(video, time, (width - 2, height))), (left, top))
        _, event = video.at(time)
        if event is not None:
            bar = [left, top + height, left + width - 1, top + height + 4]
            draw.rectangle(bar, fill=colours[video.events.index(event)])
        draw.text((left + 2, top + height + 6), f"{time:g} s", fill=_GREY, font=font)


def _draw_sentences(draw: ImageDraw.ImageDraw, video: PlayhouseVideo, y: int) -> None:
    """Write the sentences of a video from the height `y` down, and mark the events without a sentence."""
    font = ImageFont.load_default(15)
    colours = list(art.COLOURS.values())

    def mark(left: int, event_number: int) -> None:
        draw.rectangle([left, y + 3, left + 12, y + 15], fill=colours[event_number])

    for query, event_number in zip(video.queries, video.event_of_query, strict=True):
        event = video.events[event_number]
        mark(_MARGIN, event_number)
        sentence = f"{event.start:g} - {event.end:g} s   {query.text}"
        draw.text((_MARGIN + 20, y), sentence, fill=_DARK, font=font)
        y += _LINE
    undescribed = [number for number in range(len(video.events)) if number not in video.event_of_query]
    for place, event_number in enumerate(undescribed):
        mark(_MARGIN + 16 * place, event_number)
    if undescribed:
        draw.text((_MARGIN + 16 * len(undescribed) + 4, y), "not described", fill=_GREY, font=font)
