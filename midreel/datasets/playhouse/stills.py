"""Stills: single frames with captions that are true of the frame alone, to train a backbone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from midreel.datasets.playhouse import words
from midreel.datasets.playhouse.generate import generator, make_video
from midreel.datasets.playhouse.motion import Pose
from midreel.datasets.playhouse.scenes import Event, Frame, PlayhouseVideo, render
from midreel.datasets.playhouse.words import Actor


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
        rng = generator(seed, index, "stills", 1)
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
