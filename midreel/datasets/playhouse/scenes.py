"""Scenes of the playhouse: the description of a video, and its frames.

A frame is a pure function of the description and the time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from midreel.datasets.playhouse import art, motion
from midreel.datasets.playhouse.motion import Pose
from midreel.datasets.playhouse.words import Actor
from midreel.types import Query

Frame = NDArray[np.uint8]  # height x width x RGB

FRAME_SIZE = (192, 144)  # width, height


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
