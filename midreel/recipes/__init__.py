"""Recipes: the settings of one method on one dataset. Each method is a file, each dataset a function in it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from midreel.errors import UnknownName
from midreel.methods import METHODS
from midreel.methods.registry import Registry
from midreel.recipes import arl, gmmformer_v2, msc, proto_prvr
from midreel.recipes.recipe import Recipe

LISTED = "the documentation under Settings, and with their values in the recipe.json of any run"
DEFAULT = "playhouse"  # for datasets without a recipe

RecipesOfMethod = Mapping[str, Callable[..., Recipe]]  # by dataset
RECIPES: Registry[RecipesOfMethod] = Registry(
    "method with recipes",
    "midreel.recipes",
    {
        "arl": arl.RECIPES,
        "gmmformer_v2": gmmformer_v2.RECIPES,
        "msc": msc.RECIPES,
        "proto_prvr": proto_prvr.RECIPES,
    },
    expected=Mapping,
)


def of_method(method: str) -> RecipesOfMethod:
    """Return the recipes of a method, by dataset.

    Raises:
        UnknownName: The method does not exist, or is not trained.
    """
    _ = METHODS[method]  # raises for an unknown method, with the names of all methods
    return RECIPES[method]


def name_for(method: str, dataset: str) -> str:
    """Return the name of a method's recipe for a dataset, or of its default recipe.

    >>> name_for("msc", "tvr"), name_for("msc", "my videos")
    ('tvr', 'playhouse')
    """
    recipes = of_method(method)
    return next((name for name in (dataset, DEFAULT) if name in recipes), next(iter(recipes)))


def expect_settings(method: str, names: Iterable[str]) -> None:
    """Raise UnknownName unless these are settings of the method or of its training."""
    recipe = of_method(method)[name_for(method, DEFAULT)]()
    known = [field.name for part in (recipe.config, recipe) for field in fields(part) if field.name != "config"]
    for name in names:
        if name not in known:
            raise UnknownName.among("setting", name, known, listed=LISTED)


def build(method: str, dataset: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe of a method on a dataset, with some settings changed.

    Args:
        method: The name of a method.
        dataset: The name of one of its recipes.
        changes: New values, for settings of the method or of its training.

    Raises:
        UnknownName: The method, recipe or setting does not exist.
        BadSetting: A value is out of range.

    >>> recipe = build("msc", "tvr", {"epochs": 5, "tcpl": False})
    >>> recipe.epochs, recipe.lr, recipe.config.tcpl
    (5, 0.0003, False)
    """
    recipes = of_method(method)
    if dataset not in recipes:
        raise UnknownName.among(f"recipe of {method}", dataset, recipes)
    changes = changes or {}
    expect_settings(method, changes)
    recipe = recipes[dataset]()
    own = {field.name: changes[field.name] for field in fields(recipe) if field.name in changes}
    return replace(recipes[dataset](**{key: value for key, value in changes.items() if key not in own}), **own)
