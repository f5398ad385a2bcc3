"""The progress of an experiment, for a command line to show."""

from collections.abc import Callable

from midreel.features.extract import Progress
from midreel.recipes.recipe import Recipe
from midreel.training.fit import Monitor


class Audience:
    """A receiver of progress. It ignores everything; subclasses show it."""

    def say(self, line: str) -> None:
        """Receive a message about the current step."""

    def files(self, total: int) -> Callable[[str], None] | None:
        """Return a callback for each video file written, or None."""

    def features(self, total: int) -> Progress | None:
        """Return a callback for each extracted sentence and video, or None. `total` counts the videos."""

    def training(self, title: str, recipe: Recipe) -> Monitor | None:
        """Return a monitor for one training run, or None."""
