"""The settings of the reconstruction of ProtoPRVR on each dataset. The paper's own settings are unknown.

The learning rates, margins and sizes are those of its siblings on the same features. The MSC paper reports ProtoPRVR on
QVHighlights, TVR and ActivityNet Captions.
"""

from typing import Any

from midreel.methods.proto_prvr import ProtoPRVRConfig
from midreel.recipes.recipe import CLIP_L14, PLAYHOUSE, Recipe


def qvhighlights(**changes: Any) -> Recipe:
    """Return the recipe for QVHighlights: SlowFast and CLIP-B features (2816 wide), CLIP-B words."""
    settings = {"video_width": 2816, "text_width": 512}
    return Recipe(config=ProtoPRVRConfig(**settings | changes), lr=2.5e-4)


def tvr(**changes: Any) -> Recipe:
    """Return the recipe for TVR: CLIP-L/14 features."""
    return Recipe(config=ProtoPRVRConfig(**CLIP_L14 | {"margin": 0.1} | changes), lr=3e-4)


def activitynet(**changes: Any) -> Recipe:
    """Return the recipe for ActivityNet Captions: CLIP-L/14 features."""
    return Recipe(config=ProtoPRVRConfig(**CLIP_L14 | changes), lr=2.5e-4)


def playhouse(**changes: Any) -> Recipe:
    """Return the recipe for the playhouse: tiny CLIP features, one frame per second.

    The sizes are those of MSC, but the epochs are three times as many, because prototypes start as random vectors and
    learn slowly: docs/results/methods.md has both. A comparison under equal conditions sets the epochs of all methods.
    """
    return Recipe(config=ProtoPRVRConfig(**PLAYHOUSE | changes), lr=7e-4, batch_size=32, epochs=30, warmup=0.1)


RECIPES = {"activitynet": activitynet, "playhouse": playhouse, "qvhighlights": qvhighlights, "tvr": tvr}
