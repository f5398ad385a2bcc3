"""Recipes: the settings of one method on one dataset. A method is a file, a dataset a function in it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from midreel.errors import UnknownName
from midreel.methods import METHODS
from midreel.methods.registry import Registry
from midreel.recipes import gmmformer_v2, msc
from midreel.recipes.recipe import Recipe

LISTED = "the documentation under Settings, and with their values in the recipe.json of any run"
DEFAULT = "playhouse"  # for datasets of your own

RecipesOfMethod = Mapping[str, Callable[..., Recipe]]  # by dataset
RECIPES: Registry[RecipesOfMethod] = Registry(
    "method with recipes",
    "midreel.recipes",
    {"gmmformer_v2": gmmformer_v2.RECIPES, "msc": msc.RECIPES},
    expected=Mapping,
)


def of_method(method: str) -> RecipesOfMethod:
    """The recipes of a method, by dataset. Raises UnknownName if there is no such method, or if it is not trained."""
    _ = METHODS[method]
    return RECIPES[method]


def name_for(method: str, dataset: str) -> str:
    """The name of the recipe that a method has for a dataset; its default one, if it has none of that name."""
    recipes = of_method(method)
    return next((name for name in (dataset, DEFAULT) if name in recipes), next(iter(recipes)))


def expect_settings(method: str, names: Iterable[str]) -> None:
    """Raises UnknownName unless these are settings of the method, or of its training."""
    recipe = of_method(method)[name_for(method, DEFAULT)]()
    known = [field.name for part in (recipe.config, recipe) for field in fields(part) if field.name != "config"]
    for name in names:
        if name not in known:
            raise UnknownName.among("setting", name, known, listed=LISTED)


def build(method: str, dataset: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a method on a dataset, with some settings changed: the method's, or the training's own.

    Raises UnknownName if there is no such method, recipe or setting, and BadSetting for a value that cannot be.
    """
    recipes = of_method(method)
    if dataset not in recipes:
        raise UnknownName.among(f"recipe of {method}", dataset, recipes)
    changes = changes or {}
    expect_settings(method, changes)
    recipe = recipes[dataset]()
    own = {field.name: changes[field.name] for field in fields(recipe) if field.name in changes}
    return replace(recipes[dataset](**{key: value for key, value in changes.items() if key not in own}), **own)
