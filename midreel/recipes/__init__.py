"""Recipes: a dataset's settings as the paper states them, each a function that returns the whole.

"Hyper-parameter configurations are adopted from GMMFormer-v2" (Sec. 4), except for what Sec. 4 states itself.
"""

from collections.abc import Callable
from typing import Any

from midreel.methods.msc import MSCConfig
from midreel.training.recipe import Recipe

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


RECIPES: dict[str, Callable[..., Recipe]] = {
    "activitynet": activitynet,
    "charades": charades,
    "qvhighlights": qvhighlights,
    "tvr": tvr,
}
