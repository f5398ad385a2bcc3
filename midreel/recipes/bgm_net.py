"""The settings of BGM-Net on each dataset: those of its release, with the features of the MSC paper.

The release uses RoBERTa features and at most 30 words. The MSC paper compares methods on CLIP features, here with up to
77 words. It does not state the number of clips, so that is the release's. For the features of the release, set
video_width, text_width and max_words=30.
"""

from typing import Any

from midreel.methods.bgm_net import BGMNetConfig
from midreel.recipes.recipe import CLIP_L14, PLAYHOUSE, Recipe

CLIP_WORDS = {"max_words": 77}
TRAINING: dict[str, Any] = {"lr": 2.5e-4, "schedule": "warmup_cosine", "seed": 2018}  # of the release


def qvhighlights(**changes: Any) -> Recipe:
    """Return the recipe for QVHighlights: SlowFast and CLIP-B features (2816 wide), CLIP-B words.

    Neither paper states the settings. These are the ones for ActivityNet Captions, with 32 clips.
    """
    settings = {"video_width": 2816, "text_width": 512, **CLIP_WORDS, "num_clips": 32}
    return Recipe(config=BGMNetConfig(**settings | changes), **TRAINING)


def tvr(**changes: Any) -> Recipe:
    """Return the recipe for TVR: CLIP-L/14 features."""
    settings = {**CLIP_L14, **CLIP_WORDS, "num_clips": 32, "matching_from_epoch": 0, "margin": 0.1}
    return Recipe(config=BGMNetConfig(**settings | changes), **TRAINING)


def activitynet(**changes: Any) -> Recipe:
    """Return the recipe for ActivityNet Captions: CLIP-L/14 features."""
    return Recipe(config=BGMNetConfig(**CLIP_L14 | CLIP_WORDS | changes), **TRAINING)


def charades(**changes: Any) -> Recipe:
    """Return the recipe for Charades-STA: CLIP-L/14 features, small batches."""
    settings = {**CLIP_L14, **CLIP_WORDS, "matching_from_epoch": 5, "frame_weight": 0.4}
    return Recipe(config=BGMNetConfig(**settings | changes), batch_size=16, **TRAINING)


def playhouse(**changes: Any) -> Recipe:
    """Return the recipe for the playhouse: tiny CLIP features, one frame per second.

    The sizes are those of MSC, so that the methods are comparable. Matching begins together with hard negatives, as on
    ActivityNet Captions.
    """
    settings = {**PLAYHOUSE, "matching_from_epoch": 6}
    training: dict[str, Any] = {"lr": 7e-4, "batch_size": 32, "epochs": 10, "warmup": 0.1, "schedule": "warmup_cosine"}
    return Recipe(config=BGMNetConfig(**settings | changes), **training)


RECIPES = {
    "activitynet": activitynet,
    "charades": charades,
    "playhouse": playhouse,
    "qvhighlights": qvhighlights,
    "tvr": tvr,
}
