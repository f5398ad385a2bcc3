"""The settings of the reconstruction of ARL on each dataset. The paper's own settings are unknown.

The learning rates, margins and sizes are those of its siblings on the same features. The MSC paper reports ARL on TVR
and ActivityNet Captions.
"""

from typing import Any

from midreel.methods.arl import ARLConfig
from midreel.recipes.recipe import CLIP_L14, PLAYHOUSE, Recipe


def tvr(**changes: Any) -> Recipe:
    """Return the recipe for TVR: CLIP-L/14 features."""
    settings = {**CLIP_L14, "margin": 0.1, "ambiguous_margin": 0.05}
    return Recipe(config=ARLConfig(**settings | changes), lr=3e-4)


def activitynet(**changes: Any) -> Recipe:
    """Return the recipe for ActivityNet Captions: CLIP-L/14 features."""
    return Recipe(config=ARLConfig(**CLIP_L14 | changes), lr=2.5e-4)


def playhouse(**changes: Any) -> Recipe:
    """Return the recipe for the playhouse: tiny CLIP features, one frame per second.

    The sizes and the schedule are those of MSC, so that the methods are comparable. Ambiguous pairs begin earlier,
    because training is shorter.
    """
    settings = {**PLAYHOUSE, "ambiguity_from_epoch": 3}
    return Recipe(config=ARLConfig(**settings | changes), lr=7e-4, batch_size=32, epochs=10, warmup=0.1)


RECIPES = {"activitynet": activitynet, "playhouse": playhouse, "tvr": tvr}
