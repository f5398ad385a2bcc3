"""The settings of GMMFormer on each dataset: those of its release, with the features of the MSC paper.

The release uses RoBERTa features and at most 30 words. The MSC paper compares methods on CLIP features, with queries of
up to 77 words. For the features of the release, set video_width, text_width and max_words=30.
"""

from typing import Any

from midreel.methods.gmmformer import GMMFormerConfig
from midreel.recipes.recipe import CLIP_L14, PLAYHOUSE, Recipe

CLIP_WORDS = {"max_words": 77}


def qvhighlights(**changes: Any) -> Recipe:
    """Return the recipe for QVHighlights: SlowFast and CLIP-B features (2816 wide), CLIP-B words.

    No settings were released for this dataset. These are those of ActivityNet Captions.
    """
    settings = {"video_width": 2816, "text_width": 512, **CLIP_WORDS}
    return Recipe(config=GMMFormerConfig(**settings | changes), lr=2.5e-4)


def tvr(**changes: Any) -> Recipe:
    """Return the recipe for TVR: CLIP-L/14 features."""
    settings = {
        **CLIP_L14,
        **CLIP_WORDS,
        "margin": 0.1,
        "clip_nce_weight": 0.05,
        "diversity_weight": 0.001,
        "diversity_shift": 0.15,
        "hard_from_epoch": 30,
    }
    return Recipe(config=GMMFormerConfig(**settings | changes), lr=3e-4)


def activitynet(**changes: Any) -> Recipe:
    """Return the recipe for ActivityNet Captions: CLIP-L/14 features."""
    return Recipe(config=GMMFormerConfig(**CLIP_L14 | CLIP_WORDS | changes), lr=2.5e-4)


def charades(**changes: Any) -> Recipe:
    """Return the recipe for Charades-STA: CLIP-L/14 features. All epochs draw random negatives."""
    settings = {
        **CLIP_L14,
        **CLIP_WORDS,
        "frame_nce_weight": 0.02,
        "diversity_weight": 0.005,
        "diversity_shift": 0.15,
        "input_dropout": 0.15,
        "dropout": 0.15,
        "hard_from_epoch": 100,
    }
    return Recipe(config=GMMFormerConfig(**settings | changes), lr=2.5e-4)


def playhouse(**changes: Any) -> Recipe:
    """Return the recipe for the playhouse: tiny CLIP features, one frame per second.

    The sizes and the schedule are those of MSC, so that the methods are comparable.
    """
    return Recipe(config=GMMFormerConfig(**PLAYHOUSE | changes), lr=7e-4, batch_size=32, epochs=10, warmup=0.1)


RECIPES = {
    "activitynet": activitynet,
    "charades": charades,
    "playhouse": playhouse,
    "qvhighlights": qvhighlights,
    "tvr": tvr,
}
