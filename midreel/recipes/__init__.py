"""Recipes: a dataset's settings as the paper states them, each a function that returns the whole.

"Hyper-parameter configurations are adopted from GMMFormer-v2" (Sec. 4), except for what Sec. 4 states itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from midreel.errors import UnknownName
from midreel.methods.msc import MSCConfig
from midreel.recipes.recipe import Recipe

LISTED = "docs/settings.md, and with their values in the recipe.json of any run"
CLIP_L14 = {"video_width": 768, "text_width": 768}


def qvhighlights(**changes: Any) -> Recipe:
    """SlowFast and CLIP-B features, 2816 wide; CLIP-B words."""
    return Recipe(config=MSCConfig(**{"similarity_threshold": 0.7} | changes), lr=2.5e-4)


def tvr(**changes: Any) -> Recipe:
    settings = {
        **CLIP_L14,
        "similarity_threshold": 0.8,
        "margin": 0.1,
        "clip_nce_weight": 0.05,
        "input_dropout": 0.2,
        "dropout": 0.2,
        "temperature": 0.09,
    }
    return Recipe(config=MSCConfig(**settings | changes), lr=3e-4)


def activitynet(**changes: Any) -> Recipe:
    return Recipe(config=MSCConfig(**CLIP_L14 | {"similarity_threshold": 0.8} | changes), lr=2.5e-4)


def charades(**changes: Any) -> Recipe:
    settings = {**CLIP_L14, "similarity_threshold": 0.85, "input_dropout": 0.25, "dropout": 0.25}
    return Recipe(config=MSCConfig(**settings | changes), lr=2e-4)


def playhouse(**changes: Any) -> Recipe:
    """The generated library on the tiny CLIP, by measurement: minutes on two cores, and more than zero-shot search.

    For a frame a second; clips are about as long as an event. At a learning rate of 1e-3 with the paper's warm-up, on
    the first library that was tried, the base model's losses stayed at the margin for six epochs: all queries had one
    vector.
    """
    settings = {
        "video_width": 128,
        "text_width": 128,
        "num_frames": 32,
        "num_clips": 8,
        "min_clips": 4,
        "max_words": 40,
        "width": 128,
        "input_dropout": 0.1,
        "dropout": 0.1,
        "similarity_threshold": 0.3,  # merges clips in 124 of 150 videos, 0.5 in 8, 0.6 in none
        "hard_from_epoch": 6,
    }
    return Recipe(config=MSCConfig(**settings | changes), lr=7e-4, batch_size=32, epochs=10, warmup=0.1)


RECIPES: dict[str, Callable[..., Recipe]] = {
    "activitynet": activitynet,
    "charades": charades,
    "playhouse": playhouse,
    "qvhighlights": qvhighlights,
    "tvr": tvr,
}


def build(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of that name, with some settings changed: the method's, or the training's own."""
    if name not in RECIPES:
        raise UnknownName.among("recipe", name, RECIPES)
    changes = changes or {}
    recipe = RECIPES[name]()
    known = [field.name for part in (recipe.config, recipe) for field in fields(part) if field.name != "config"]
    for setting in changes:
        if setting not in known:
            raise UnknownName.among("setting", setting, known, listed=LISTED)
    own = {field.name: changes[field.name] for field in fields(recipe) if field.name in changes}
    return replace(RECIPES[name](**{key: value for key, value in changes.items() if key not in own}), **own)
