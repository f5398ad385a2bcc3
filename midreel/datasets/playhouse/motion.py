"""The motion of the playhouse's actors: a pure function of the action and the time.

Stage coordinates: the centre is (0, 0) and the height is 1. x grows to the right, y grows downwards.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from midreel.datasets.playhouse import art

# Actions take place within the centre square, because a model sees only that after cropping. A thing is off the stage
# beyond this distance from the centre.
EDGE = art.STAGE_WIDTH / 2
# The period of repeated motion, in seconds. It is not a multiple of 0.5, 1, 1.5 or 2 s, because frames at such an
# interval would show only a few phases of the motion.
BEAT = 2.4


@dataclass(frozen=True, kw_only=True)
class Pose:
    """The place and look of an actor at one time.

    Attributes:
        x: The centre, to the right, in stage coordinates.
        y: The centre, downwards, in stage coordinates.
        size: The side of the actor's box; the height of the stage is 1.
        angle: The rotation, clockwise, in radians.
        faces_left: Whether the actor is mirrored.
        visible: Whether the actor is drawn.
        depth: The drawing order. An actor with a greater depth covers the others.
    """

    x: float
    y: float
    size: float
    angle: float = 0.0
    faces_left: bool = False
    visible: bool = True
    depth: int = 0


def perform(action: str, num_actors: int, seconds: float, length: float, *, place: float = 0.0) -> tuple[Pose, ...]:
    """Return the poses of the actors in an action, for the side "left".

    Args:
        action: A key of SOLO_ACTIONS or PAIR_ACTIONS.
        num_actors: 1 or 2. The second actor of a solo action only watches.
        seconds: The time since the start of the action.
        length: The duration of the action, in seconds.
        place: Moves a single actor along the stage, from -1 to 1.
    """
    progress = seconds / length
    if action in PAIR_ACTIONS:
        return PAIR_ACTIONS[action](progress, seconds)
    hero = SOLO_ACTIONS[action](progress, seconds)
    if num_actors == 1:
        return (_moved(hero, 0.12 * place, 1.0),)
    return _moved(hero, -0.17, 0.9), Pose(x=0.3, y=0.16, size=0.32, angle=_idle(seconds, 1.0))


# ---------------------------------------------------------------- actions
# Each function maps the progress of the event (0 to 1) and its seconds to poses, for the side "left".


def _between(progress: float, start: float, end: float) -> float:
    """Return 0 before `start`, 1 after `end`, and a smooth step in between."""
    s = min(max((progress - start) / (end - start), 0.0), 1.0)
    return s * s * (3 - 2 * s)


def _idle(seconds: float, phase: float = 0.0) -> float:
    """Return the small angle by which an idle actor sways."""
    return 0.05 * math.sin(2 * math.pi * seconds / BEAT + phase)


def _moved(pose: Pose, x: float, scale: float) -> Pose:
    """Move a pose along the stage and scale it.

    The shift fades to 0 at the edge, so that an actor that starts or ends off the stage stays off it.
    """
    share = max(0.0, 1 - abs(pose.x) / EDGE)
    return replace(pose, x=pose.x + x * share, size=pose.size * scale)


def mirrored(pose: Pose) -> Pose:
    """Return the pose for the other side of the stage."""
    return replace(pose, x=-pose.x, angle=-pose.angle, faces_left=not pose.faces_left)


def _enters(progress: float, seconds: float) -> Pose:
    way = 1 - min(progress / 0.6, 1.0)
    return Pose(x=-0.78 * way * way, y=0.08, size=0.42, angle=_idle(seconds))


def _leaves(progress: float, seconds: float) -> Pose:
    way = max(progress - 0.35, 0.0) / 0.65
    return Pose(x=-0.86 * way * way, y=0.08, size=0.42, angle=_idle(seconds), faces_left=way > 0)


def _rises(progress: float, seconds: float) -> Pose:
    return Pose(x=0.0, y=0.28 - 0.56 * _between(progress, 0.05, 0.95), size=0.4, angle=_idle(seconds))


def _falls(progress: float, seconds: float) -> Pose:
    return Pose(x=0.0, y=-0.28 + 0.56 * _between(progress, 0.05, 0.95), size=0.4, angle=_idle(seconds))


def _spins(progress: float, seconds: float) -> Pose:
    return Pose(x=0.0, y=0.0, size=0.46, angle=2 * math.pi * 0.3 * seconds)


def _grows(progress: float, seconds: float) -> Pose:
    return Pose(x=0.0, y=0.0, size=0.14 + 0.4 * _between(progress, 0.05, 0.9), angle=_idle(seconds))


def _shrinks(progress: float, seconds: float) -> Pose:
    return Pose(x=0.0, y=0.0, size=0.54 - 0.4 * _between(progress, 0.1, 0.95), angle=_idle(seconds))


def _bounces(progress: float, seconds: float) -> Pose:
    return Pose(x=0.0, y=0.24 - 0.46 * abs(math.sin(math.pi * seconds / BEAT)), size=0.38)


def _blinks(progress: float, seconds: float) -> Pose:
    return Pose(x=0.0, y=0.0, size=0.44, visible=seconds % BEAT < 0.5 * BEAT)


def _sways(progress: float, seconds: float) -> Pose:
    swing = math.sin(2 * math.pi * seconds / BEAT)
    return Pose(x=0.08 * swing, y=0.05, size=0.44, angle=0.6 * swing)


def _chases(progress: float, seconds: float) -> tuple[Pose, Pose]:
    lead = -0.28 + 1.06 * progress
    hop = 0.05 * math.sin(2 * math.pi * seconds / 1.1)
    return Pose(x=lead - 0.4, y=0.08 - hop, size=0.34), Pose(x=lead, y=0.08 + hop, size=0.34)


def _hides_behind(progress: float, seconds: float) -> tuple[Pose, Pose]:
    x = -0.36 + 0.48 * _between(progress, 0.25, 0.7)
    return Pose(x=x, y=0.02, size=0.27, angle=_idle(seconds)), Pose(x=0.12, y=0.06, size=0.6, depth=1)


def _comes_out_from_behind(progress: float, seconds: float) -> tuple[Pose, Pose]:
    hero, cover = _hides_behind(1 - progress, seconds)
    return replace(hero, faces_left=True), cover


def _circles(progress: float, seconds: float) -> tuple[Pose, Pose]:
    turn = 2 * math.pi * seconds / 4.4
    hero = Pose(x=-0.36 * math.cos(turn), y=-0.34 * math.sin(turn), size=0.26, faces_left=math.sin(turn) < 0)
    return hero, Pose(x=0.0, y=0.0, size=0.34, angle=_idle(seconds))


def _meet_and_part(progress: float, seconds: float) -> tuple[Pose, Pose]:
    apart = 1 - _between(progress, 0.0, 0.4) + _between(progress, 0.6, 1.0)
    hero = Pose(x=-0.16 - 0.36 * apart, y=0.08, size=0.34, angle=_idle(seconds), faces_left=progress > 0.6)
    return hero, mirrored(hero)


def _jumps_over(progress: float, seconds: float) -> tuple[Pose, Pose]:
    across = min(max((progress - 0.25) / 0.5, 0.0), 1.0)
    hero = Pose(x=-0.36 + 0.72 * across, y=0.18 - 0.52 * math.sin(math.pi * across), size=0.28, depth=1)
    return hero, Pose(x=0.0, y=0.18, size=0.32, angle=_idle(seconds))


def _above(progress: float, seconds: float) -> tuple[Pose, Pose]:
    return Pose(x=-0.04, y=-0.24, size=0.38, angle=_idle(seconds)), Pose(x=0.04, y=0.22, size=0.4)


def _below(progress: float, seconds: float) -> tuple[Pose, Pose]:
    upper, lower = _above(progress, seconds)
    return lower, upper


def _beside(progress: float, seconds: float) -> tuple[Pose, Pose]:
    return Pose(x=-0.24, y=0.1, size=0.4, angle=_idle(seconds)), Pose(
        x=0.22, y=0.1, size=0.4, angle=_idle(seconds, 2.0)
    )


def _in_front_of(progress: float, seconds: float) -> tuple[Pose, Pose]:
    return Pose(x=-0.12, y=0.17, size=0.32, angle=_idle(seconds), depth=1), Pose(x=0.06, y=-0.03, size=0.54)


SOLO_ACTIONS: dict[str, Callable[[float, float], Pose]] = {
    "enters": _enters,
    "leaves": _leaves,
    "rises": _rises,
    "falls": _falls,
    "spins": _spins,
    "grows": _grows,
    "shrinks": _shrinks,
    "bounces": _bounces,
    "blinks": _blinks,
    "sways": _sways,
}
PAIR_ACTIONS: dict[str, Callable[[float, float], tuple[Pose, ...]]] = {
    "chases": _chases,
    "hides_behind": _hides_behind,
    "comes_out_from_behind": _comes_out_from_behind,
    "circles": _circles,
    "meet_and_part": _meet_and_part,
    "jumps_over": _jumps_over,
    "above": _above,
    "below": _below,
    "beside": _beside,
    "in_front_of": _in_front_of,
}
HIDING = ("hides_behind", "comes_out_from_behind")
# The things that can hide another: large, and without gaps.
COVERS = ("ball", "cup", "hat", "heart", "house", "mushroom", "tree")
