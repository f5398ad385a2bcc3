"""The recipes of the toy method: one function for each dataset."""

from typing import Any

from midreel.recipes.recipe import Recipe
from midreel_toy.method import ToyConfig


def playhouse(**changes: Any) -> Recipe:
    """Return the settings on a playhouse dataset."""
    return Recipe(config=ToyConfig(**changes), lr=1e-3, batch_size=8, epochs=2, warmup=0.1)


RECIPES = {"playhouse": playhouse}
