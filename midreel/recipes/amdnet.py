"""The settings of AMDNet on each dataset: those of its release, with the features of the MSC paper.

The release uses CLIP-B/32 features. The MSC paper compares methods on CLIP-L/14 features. Queries are sentence vectors
in both.
"""

from typing import Any

from midreel.methods.amdnet import AMDNetConfig
from midreel.recipes.recipe import CLIP_L14, PLAYHOUSE, Recipe

SEED = 3407  # of the release, on all datasets but TVR


def qvhighlights(**changes: Any) -> Recipe:
    """Return the recipe for QVHighlights: SlowFast and CLIP-B features (2816 wide), CLIP-B sentences.

    The release does not have this dataset. The settings are those of ActivityNet Captions, a suggestion.
    """
    settings = {"video_width": 2816, "text_width": 512}
    return Recipe(config=AMDNetConfig(**settings | changes), lr=2.5e-4, patience=15, seed=SEED)


def tvr(**changes: Any) -> Recipe:
    """Return the recipe for TVR: CLIP-L/14 features."""
    settings = {**CLIP_L14, "width": 384, "nce_weight": 0.04, "margin": 0.1}
    return Recipe(config=AMDNetConfig(**settings | changes), lr=3e-4, epochs=200, patience=15)


def activitynet(**changes: Any) -> Recipe:
    """Return the recipe for ActivityNet Captions: CLIP-L/14 features."""
    return Recipe(config=AMDNetConfig(**CLIP_L14 | changes), lr=2.5e-4, patience=15, seed=SEED)


def charades(**changes: Any) -> Recipe:
    """Return the recipe for Charades-STA: CLIP-L/14 features."""
    settings = {**CLIP_L14, "input_dropout": 0.15, "dropout": 0.15}
    return Recipe(config=AMDNetConfig(**settings | changes), lr=2.5e-4, seed=SEED)


def playhouse(**changes: Any) -> Recipe:
    """Return the recipe for the playhouse: tiny CLIP features, one frame per second.

    The sizes and the schedule are those of MSC, so that the methods are comparable.
    """
    settings = {name: value for name, value in PLAYHOUSE.items() if name != "max_words"}  # it takes sentences
    return Recipe(config=AMDNetConfig(**settings | changes), lr=7e-4, batch_size=32, epochs=10, warmup=0.1)


RECIPES = {
    "activitynet": activitynet,
    "charades": charades,
    "playhouse": playhouse,
    "qvhighlights": qvhighlights,
    "tvr": tvr,
}
