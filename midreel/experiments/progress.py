"""Whom an experiment tells how it goes."""

from collections.abc import Callable

from midreel.features.extract import Progress
from midreel.recipes.recipe import Recipe
from midreel.training.fit import Monitor


class Audience:
    """Nobody, unless a command line overrides it."""

    def say(self, line: str) -> None:
        """A step begins."""

    def files(self, total: int) -> Callable[[str], None] | None:
        """Who is told of each video file."""

    def features(self, total: int) -> Progress | None:
        """Who is told of each extracted sentence, and of each video, of which there are so many."""

    def training(self, title: str, recipe: Recipe) -> Monitor | None:
        """Who is told of each step."""
