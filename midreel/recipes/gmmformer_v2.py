"""GMMFormer v2's settings on each dataset: those of its release, on the features of the MSC paper's tables.

The MSC paper compares on CLIP features, and prints as many parameters for GMMFormer v2 as for MSC, so queries have up
to 77 words as MSC's have; the release, on RoBERTa words, takes 30. For the release's own features, set video_width,
text_width and max_words=30.
"""

from typing import Any

from midreel.methods.gmmformer_v2 import GMMFormerV2Config
from midreel.recipes.recipe import CLIP_L14, PLAYHOUSE, Recipe

CLIP_WORDS = {"max_words": 77}


def qvhighlights(**changes: Any) -> Recipe:
    """SlowFast and CLIP-B features, 2816 wide; CLIP-B words. Settings as MSC's configuration files have them."""
    settings = {"video_width": 2816, "text_width": 512, **CLIP_WORDS}
    return Recipe(config=GMMFormerV2Config(**settings | changes), lr=2.5e-4)


def tvr(**changes: Any) -> Recipe:
    """CLIP-L/14 features."""
    settings = {
        **CLIP_L14,
        **CLIP_WORDS,
        "margin": 0.1,
        "clip_nce_weight": 0.05,
        "diversity_weight": 8e-5,
        "diversity_shift": 0.15,
        "matching_weight": 0.09,
        "input_dropout": 0.2,
        "dropout": 0.2,
        "temperature": 0.09,
    }
    return Recipe(config=GMMFormerV2Config(**settings | changes), lr=3e-4)


def activitynet(**changes: Any) -> Recipe:
    """CLIP-L/14 features."""
    return Recipe(config=GMMFormerV2Config(**CLIP_L14 | CLIP_WORDS | changes), lr=2.5e-4)


def charades(**changes: Any) -> Recipe:
    """CLIP-L/14 features."""
    settings = {**CLIP_L14, **CLIP_WORDS, "matching_weight": 0.1, "input_dropout": 0.25, "dropout": 0.25}
    return Recipe(config=GMMFormerV2Config(**settings | changes), lr=2e-4)


def playhouse(**changes: Any) -> Recipe:
    """Tiny CLIP features, one frame per second: the sizes and the schedule of MSC's recipe, so that the two compare."""
    return Recipe(config=GMMFormerV2Config(**PLAYHOUSE | changes), lr=7e-4, batch_size=32, epochs=10, warmup=0.1)


RECIPES = {
    "activitynet": activitynet,
    "charades": charades,
    "playhouse": playhouse,
    "qvhighlights": qvhighlights,
    "tvr": tvr,
}
