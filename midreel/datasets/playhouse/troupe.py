"""Troupes: the things, colours and backdrops that the videos of a dataset have in common."""

from dataclasses import dataclass

import numpy as np

from midreel.datasets.playhouse import art
from midreel.datasets.playhouse.motion import COVERS


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


@dataclass(frozen=True, kw_only=True)
class TroupeSize:
    """How many plays, things in a play, colours and backdrops a troupe has."""

    plays: int
    cast: int
    colours: int
    backdrops: int


def draw_troupe(rng: np.random.Generator, size: TroupeSize) -> Troupe:
    """Return a random troupe. Each play has one thing that can cover the others."""
    covers = rng.permutation(COVERS)[: size.plays].tolist()
    others = [thing for thing in rng.permutation(list(art.THINGS)).tolist() if thing not in COVERS]
    return Troupe(
        plays=tuple((cover, *others[number :: size.plays][: size.cast - 1]) for number, cover in enumerate(covers)),
        colours=tuple(rng.permutation(EVERYTHING.colours)[: size.colours].tolist()),
        backdrops=tuple(rng.permutation(EVERYTHING.backdrops)[: size.backdrops].tolist()),
    )
