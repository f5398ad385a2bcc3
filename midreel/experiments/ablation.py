"""The rows of the paper's ablation (Table 1) and of its control (Table 2), and rows beyond the paper."""

from typing import Any

from midreel.methods.model_files import ZERO_SHOT, ZERO_SHOT_CLIPS

_BASE = {"tcpl": False, "cbva": False, "clips": "uniform", "adaptive": False}
_TCPL = _BASE | {"tcpl": True}
_CBVA = _TCPL | {"cbva": True}
_OP_TOME = _CBVA | {"clips": "order_preserving"}

UNTRAINED = (ZERO_SHOT, ZERO_SHOT_CLIPS)
# The settings of each row, by its name on the command line. Rows (a) to (e) add one part each.
ROWS: dict[str, dict[str, Any]] = {
    "base": _BASE,
    "tcpl": _TCPL,
    "cbva": _CBVA,
    "op_tome": _OP_TOME,
    "msc": _OP_TOME | {"adaptive": True},
    "vcpl_retrieved": _TCPL | {"vcpl": "retrieved"},
    "vcpl_uniform": _TCPL | {"vcpl": "uniform"},
}
# Methods that start as zero-shot. No paper describes them.
BEYOND = ("clip_residual", "msc_residual")
LABELS = {
    ZERO_SHOT: "CLIP zero-shot",
    ZERO_SHOT_CLIPS: "CLIP zero-shot, with OP-ToMe clips",
    "base": "(a) base",
    "tcpl": "(b) + TCPL",
    "cbva": "(c) + naive CBVA",
    "op_tome": "(d) + OP-ToMe",
    "msc": "(e) + adaptive = MSC",
    "vcpl_retrieved": "(b) + VCPL, retrieved segment",
    "vcpl_uniform": "(b) + VCPL, uniform sampling",
    **{name: f"beyond the paper: {name}" for name in BEYOND},
}
