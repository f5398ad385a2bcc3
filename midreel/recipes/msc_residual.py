"""The settings of MSC as a residual of CLIP: those of MSC, with the weights of its own InfoNCE.

On the benchmarks they are untested: the features were not available.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from midreel.methods.msc_residual import MSCResidualConfig
from midreel.recipes import msc
from midreel.recipes.recipe import Recipe

_OWN = ("method", "variant", "clip_nce_weight", "frame_nce_weight")  # settings that are not MSC's


def _like_msc(of_msc: Callable[..., Recipe], joint_width: int, /, **changes: Any) -> Recipe:
    """Return MSC's recipe for a dataset, as one of this method."""
    recipe = of_msc()
    settings = {name: value for name, value in asdict(recipe.config).items() if name not in _OWN}
    return replace(recipe, config=MSCResidualConfig(**settings | {"joint_width": joint_width} | changes))


def _slow(of_msc: Callable[..., Recipe], /, **changes: Any) -> Recipe:
    """Return the recipe for a playhouse. The learning rate is lower than MSC's, so that it keeps what CLIP knows."""
    return replace(_like_msc(of_msc, 128, **changes), lr=3e-4)


RECIPES: dict[str, Callable[..., Recipe]] = {
    "activitynet": partial(_like_msc, msc.activitynet, 768),
    "charades": partial(_like_msc, msc.charades, 768),
    "playhouse": partial(_slow, msc.playhouse),
    "playhouse-large": partial(_slow, msc.playhouse_large),
    "qvhighlights": partial(_like_msc, msc.qvhighlights, 512),
    "tvr": partial(_like_msc, msc.tvr, 768),
}
