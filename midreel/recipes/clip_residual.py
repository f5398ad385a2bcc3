"""The settings of CLIP plus a residual on each dataset. They were chosen on val videos of the playhouse.

On the benchmarks they are untested: the features were not available.
"""

from dataclasses import replace
from typing import Any

from midreel.methods.clip_residual import ClipResidualConfig
from midreel.recipes.recipe import Recipe

TRAINING: dict[str, Any] = {"lr": 3e-4, "batch_size": 32, "epochs": 10, "warmup": 0.1}


def qvhighlights(**changes: Any) -> Recipe:
    """Return the recipe for QVHighlights: SlowFast and CLIP-B features (2816 wide)."""
    return Recipe(config=ClipResidualConfig(**{"video_width": 2816} | changes), **TRAINING)


def clip_l14(**changes: Any) -> Recipe:
    """Return the recipe for CLIP-L/14 features of any dataset."""
    return Recipe(config=ClipResidualConfig(**{"video_width": 768, "joint_width": 768} | changes), **TRAINING)


def playhouse(**changes: Any) -> Recipe:
    """Return the recipe for the playhouse: tiny CLIP features, one frame per second."""
    settings = {"video_width": 128, "joint_width": 128, "num_frames": 32, "num_clips": 8}
    return Recipe(config=ClipResidualConfig(**settings | changes), **TRAINING)


def playhouse_large(**changes: Any) -> Recipe:
    """Return the recipe for large playhouse videos: as many frames, clips and epochs as MSC has there."""
    recipe = playhouse(**{"num_frames": 128, "num_clips": 32} | changes)
    return replace(recipe, epochs=2 * recipe.epochs)


RECIPES = {
    "activitynet": clip_l14,
    "charades": clip_l14,
    "playhouse": playhouse,
    "playhouse-large": playhouse_large,
    "qvhighlights": qvhighlights,
    "tvr": clip_l14,
}
