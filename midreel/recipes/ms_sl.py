"""The settings of MS-SL on each dataset: those of its release, with the features of the MSC paper.

The release uses RoBERTa features and at most 30 words. The MSC paper compares methods on CLIP features. Its number of
parameters on QVHighlights, 4.57 million, is that of queries with up to 77 words. For the features of the release, set
video_width, text_width and max_words=30.
"""

from typing import Any

from midreel.methods.ms_sl import MSSLConfig
from midreel.recipes.recipe import CLIP_L14, PLAYHOUSE, Recipe

CLIP_WORDS = {"max_words": 77}
SEED = 2018  # of the release


def qvhighlights(**changes: Any) -> Recipe:
    """Return the recipe for QVHighlights: SlowFast and CLIP-B features (2816 wide), CLIP-B words.

    Neither paper states the settings, so these are the ones for ActivityNet Captions.
    """
    settings = {"video_width": 2816, "text_width": 512, **CLIP_WORDS}
    return Recipe(config=MSSLConfig(**settings | changes), lr=2.5e-4, seed=SEED)


def tvr(**changes: Any) -> Recipe:
    """Return the recipe for TVR: CLIP-L/14 features."""
    settings = {**CLIP_L14, **CLIP_WORDS, "margin": 0.1}
    return Recipe(config=MSSLConfig(**settings | changes), lr=2.5e-4, seed=SEED)


def activitynet(**changes: Any) -> Recipe:
    """Return the recipe for ActivityNet Captions: CLIP-L/14 features."""
    return Recipe(config=MSSLConfig(**CLIP_L14 | CLIP_WORDS | changes), lr=2.5e-4, seed=SEED)


def charades(**changes: Any) -> Recipe:
    """Return the recipe for Charades-STA: CLIP-L/14 features."""
    settings = {**CLIP_L14, **CLIP_WORDS, "frame_weight": 0.5}
    return Recipe(config=MSSLConfig(**settings | changes), lr=2.5e-4, seed=SEED)


def playhouse(**changes: Any) -> Recipe:
    """Return the recipe for the playhouse: tiny CLIP features, one frame per second.

    The sizes and the schedule are those of MSC, so that the methods are comparable.
    """
    return Recipe(config=MSSLConfig(**PLAYHOUSE | changes), lr=7e-4, batch_size=32, epochs=10, warmup=0.1)


RECIPES = {
    "activitynet": activitynet,
    "charades": charades,
    "playhouse": playhouse,
    "qvhighlights": qvhighlights,
    "tvr": tvr,
}
