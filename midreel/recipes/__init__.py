"""Recipes: the settings of one method on one dataset. Each method is a file, each dataset a function in it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from midreel.errors import BadSetting, UnknownName
from midreel.features import kinds
from midreel.methods import METHODS
from midreel.methods.base import Method
from midreel.methods.registry import Registry
from midreel.recipes import (
    amdnet,
    arl,
    bgm_net,
    clip_residual,
    dl_dkd,
    gmmformer,
    gmmformer_v2,
    ms_sl,
    msc,
    msc_residual,
    proto_prvr,
)
from midreel.recipes.recipe import Recipe

LISTED = "the documentation under Settings, and with their values in the recipe.json of any run"
DEFAULT = "playhouse"  # for datasets without a recipe
NOT_SETTINGS = ("config", "features")  # fields of a recipe that are not changed one by one

RecipesOfMethod = Mapping[str, Callable[..., Recipe]]  # by dataset
RECIPES: Registry[RecipesOfMethod] = Registry(
    "method with recipes",
    "midreel.recipes",
    {
        "amdnet": amdnet.RECIPES,
        "arl": arl.RECIPES,
        "bgm_net": bgm_net.RECIPES,
        "clip_residual": clip_residual.RECIPES,
        "dl_dkd": dl_dkd.RECIPES,
        "gmmformer": gmmformer.RECIPES,
        "gmmformer_v2": gmmformer_v2.RECIPES,
        "ms_sl": ms_sl.RECIPES,
        "msc": msc.RECIPES,
        "msc_residual": msc_residual.RECIPES,
        "proto_prvr": proto_prvr.RECIPES,
    },
    expected=Mapping,
)


def of_method(method: str) -> RecipesOfMethod:
    """Return the recipes of a method, by dataset.

    Raises:
        UnknownName: The method does not exist, has no recipes, or is not trained.
    """
    found = METHODS[method]  # raises for an unknown method, with the names of all methods
    if method in RECIPES:
        return RECIPES[method]
    if found.losses is Method.losses:
        raise UnknownName(
            f"{method} needs no training. Evaluate it as it is, see midreel evaluate --help, or train one of: "
            f"{', '.join(RECIPES)}"
        )
    raise UnknownName(
        f"{method} has no recipes, expected one for each dataset. Add an entry point of the group midreel.recipes "
        f"(docs/extend.md)."
    )


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
    known = [field.name for part in (recipe.config, recipe) for field in fields(part) if field.name not in NOT_SETTINGS]
    for name in names:
        if name not in known:
            raise UnknownName.among("setting", name, known, listed=LISTED)


def known_settings(method: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those changes that are settings of the method or of its training.

    >>> known_settings("clip_residual", {"epochs": 5, "tcpl": False})
    {'epochs': 5}
    """
    recipe = of_method(method)[name_for(method, DEFAULT)]()
    known = {field.name for part in (recipe.config, recipe) for field in fields(part)}
    return {name: value for name, value in changes.items() if name in known}


def build(method: str, dataset: str, changes: Mapping[str, Any] | None = None, features: str | None = None) -> Recipe:
    """Return the recipe of a method on a dataset, for a kind of features, with some settings changed.

    Args:
        method: The name of a method.
        dataset: The name of one of its recipes.
        changes: New values, for settings of the method or of its training.
        features: The kind of features, a name of `features.kinds.KINDS`. It sets `video_width`, `text_width`,
            `teacher_width`, `joint_width` and `max_words`, if the method has them, and `query` to words for features
            without sentence vectors. Default: the features that the recipe is for.

    Raises:
        UnknownName: The method, recipe, setting or kind of features does not exist.
        BadSetting: A value is out of range, or contradicts the features.

    >>> recipe = build("msc", "tvr", {"epochs": 5, "tcpl": False})
    >>> recipe.epochs, recipe.lr, recipe.config.tcpl, recipe.features
    (5, 0.0003, False, 'clip-l14')
    >>> recipe = build("msc", "tvr", features="i3d-roberta")
    >>> recipe.config.video_width, recipe.config.text_width, recipe.config.max_words
    (3072, 768, 30)
    """
    recipes = of_method(method)
    if dataset not in recipes:
        raise UnknownName.among(f"recipe of {method}", dataset, recipes)
    changes = changes or {}
    expect_settings(method, changes)
    recipe = recipes[dataset]()
    own = {field.name: changes[field.name] for field in fields(recipe) if field.name in changes}
    of_config = {key: value for key, value in changes.items() if key not in own}
    if features is not None:
        implied = _settings_of_kind(features, dataset, of_config)
        if features != _kind_of(recipe, dataset):  # otherwise the recipe has these widths, and its own number of words
            of_config = {name: value for name, value in implied.items() if hasattr(recipe.config, name)} | of_config
    recipe = replace(recipes[dataset](**of_config), **own)
    return replace(recipe, features=features or _kind_of(recipe, dataset) or "")


def _settings_of_kind(kind: str, dataset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a kind of features implies. Raise BadSetting if the changes contradict it."""
    widths = kinds.widths_of(kind, dataset)
    fixed = {"video_width": widths.video, "text_width": widths.text}
    for name, width in fixed.items():
        if changes.get(name, width) != width:
            raise BadSetting(
                f"{name} is {changes[name]}, but the features {kind} have {width}. Remove --set {name}, or choose "
                f"other features."
            )
    found = kinds.KINDS[kind]
    words = {} if found.sentences else {"query": "words"}
    settings = {
        "max_words": found.max_words,
        "teacher_width": found.teacher_width,
        "joint_width": found.teacher_width,
    }
    return fixed | settings | words


def _kind_of(recipe: Recipe, dataset: str) -> str | None:
    config = recipe.config
    # A method that reads no words has the width of the sentences, which is that of the words in every kind with CLIP.
    text_width = getattr(config, "text_width", getattr(config, "joint_width", None))
    return kinds.find_kind(dataset, getattr(config, "video_width", None), text_width)
