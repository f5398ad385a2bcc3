"""The settings of DL-DKD++ on each dataset: those of its release, with the features of the MSC paper.

With `objective="iccv"`, a recipe has the settings of the ICCV release instead: another dropout rate, learning rate,
number of epochs and seed.

The release trains a student on I3D and RoBERTa features with CLIP-B/32 as its teacher, and at most 30 words. Here the
CLIP features of the MSC paper are student and teacher, and queries have up to 77 words. For the student of the release,
join its features with CLIP's (docs/methods.md).
"""

from typing import Any

from midreel.methods.dl_dkd import DLDKDConfig
from midreel.recipes.recipe import CLIP_L14, PLAYHOUSE, Recipe

CLIP_WORDS = {"max_words": 77}
CLIP_L14_TEACHER = {**CLIP_L14, **CLIP_WORDS, "teacher_width": 768}


def _recipe(settings: dict[str, Any], changes: dict[str, Any], *, dropout: float, lr: float) -> Recipe:
    """Return a recipe of DL-DKD++, or of ICCV if the changes say so. Its scripts set no other values by dataset."""
    if changes.get("objective") == "iccv":
        rates = {"input_dropout": 0.1, "dropout": 0.1}
        return Recipe(config=DLDKDConfig(**settings | rates | changes), lr=2.5e-4, epochs=100, seed=2018)
    rates = {"input_dropout": dropout, "dropout": dropout}
    return Recipe(config=DLDKDConfig(**settings | rates | changes), lr=lr, epochs=120)


def qvhighlights(**changes: Any) -> Recipe:
    """Return the recipe for QVHighlights: SlowFast and CLIP-B features (2816 wide), CLIP-B words.

    The paper has no results on QVHighlights. The settings are those of ActivityNet Captions.
    """
    settings = {"video_width": 2816, "text_width": 512, "teacher_width": 512, **CLIP_WORDS}
    return _recipe(settings, changes, dropout=0.25, lr=2.5e-4)


def tvr(**changes: Any) -> Recipe:
    """Return the recipe for TVR: CLIP-L/14 features."""
    return _recipe({**CLIP_L14_TEACHER, "margin": 0.1}, changes, dropout=0.2, lr=3e-4)


def activitynet(**changes: Any) -> Recipe:
    """Return the recipe for ActivityNet Captions: CLIP-L/14 features."""
    return _recipe(CLIP_L14_TEACHER, changes, dropout=0.25, lr=2.5e-4)


def charades(**changes: Any) -> Recipe:
    """Return the recipe for Charades-STA: CLIP-L/14 features.

    The ICCV release has no script for Charades-STA. With `objective="iccv"` the settings are those of ActivityNet
    Captions.
    """
    return _recipe(CLIP_L14_TEACHER, changes, dropout=0.15, lr=2.4e-4)


def playhouse(**changes: Any) -> Recipe:
    """Return the recipe for the playhouse: tiny CLIP features, one frame per second.

    The sizes and the schedule are those of MSC, so that the methods are comparable.
    """
    settings = {**PLAYHOUSE, "teacher_width": 128}
    return Recipe(config=DLDKDConfig(**settings | changes), lr=7e-4, batch_size=32, epochs=10, warmup=0.1)


RECIPES = {
    "activitynet": activitynet,
    "charades": charades,
    "playhouse": playhouse,
    "qvhighlights": qvhighlights,
    "tvr": tvr,
}
