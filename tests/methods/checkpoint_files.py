"""Checkpoints in the format of the released training code, from the twins of its models."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.methods.released_twin import Released

VIDEO_WIDTH, TEXT_WIDTH = 20, 12
# The keys that the import reads or ignores. The widths and map_size are wrong on purpose: the shapes decide.
CONFIG = {
    "model_name": "some name",
    "root": "somewhere/on/a/disk",
    "dataset_name": "qvhighlight",
    "seed": 9527,
    "map_size": 128,
    "clip_scale_w": 0.4,
    "frame_scale_w": 0.6,
    "sim_thr": 0.5,
    "sft_factor": 0.45,
    "lr": 0.00025,
    "margin": 0.3,
    "hard_negative_start_epoch": 0,
    "hard_pool_size": 1,
    "use_hard_negative": True,
    "loss_factor": [0.02, 0.04, 0.003, 0.11],
    "neg_factor": [0.2, 32, 1],
    "vl_coef": 0.1,
    "rkd_d_coef": 15.0,
    "rkd_a_coef": 30,
    "max_desc_l": 77,
    "max_ctx_l": 128,
    "visual_feat_dim": 768,
    "q_feat_size": 768,
    "hidden_size": 24,
    "n_heads": 4,
    "input_drop": 0.31,
    "drop": 0.25,
}
GMMFORMER_V2_CONFIG = {
    name: value for name, value in CONFIG.items() if name not in ("sim_thr", "vl_coef", "rkd_d_coef", "rkd_a_coef")
} | {"model_name": "gmmformer_v2", "map_size": 32, "clip_scale_w": 0.7, "frame_scale_w": 0.3, "max_desc_l": 30}


OPTIMIZATION: Any = types.ModuleType("Opts.optimization")
OPTIMIZATION.WarmupLinearSchedule = type("WarmupLinearSchedule", (), {"__module__": "Opts.optimization"})


def released(*, msc: bool, seed: int = 0, **changes: Any) -> Released:
    """A model in evaluation mode with random weights, including norms and biases."""
    torch.manual_seed(seed)
    model = Released((CONFIG if msc else GMMFORMER_V2_CONFIG) | changes, VIDEO_WIDTH, TEXT_WIDTH, msc=msc)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "position" not in name:
                weight.normal_(std=weight.shape[1] ** -0.5)
            elif name.endswith("bias") or "position" in name:
                weight.normal_(std=0.2)
            elif name != "weight_token":
                weight.normal_(mean=1, std=0.2)
    return model.eval()


def checkpoint(model: Released, *, parallel: bool = False) -> dict[str, Any]:
    """The contents that the training loop saves. The optimiser state has an object of a class of its own."""
    prefix = "module." if parallel else ""
    state = type(model.state_dict())((prefix + name, weight) for name, weight in model.state_dict().items())
    groups = [{"params": list(range(len(state))), "lr": 2.5e-4, "schedule": _schedule(), "weight_decay": 0.01}]
    moments = {
        number: {"step": 60, "next_m": torch.randn_like(weight), "next_v": torch.rand_like(weight)}
        for number, weight in enumerate(state.values())
    }
    return {
        "config": dict(model.config),
        "epoch": 57,
        "model_val": [np.float64(23.9), 51.5, 63.7, 95.5, np.float64(234.6)],
        "state_dict": state,
        "optimizer": {"state": moments, "param_groups": groups},
    }


def save(value: Any, path: Path, *, is_zip: bool = True) -> Path:
    """Write the file while the module of the schedule's class exists. A reader does not have this module."""
    sys.modules["Opts"], sys.modules["Opts.optimization"] = types.ModuleType("Opts"), OPTIMIZATION
    try:
        torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    finally:
        del sys.modules["Opts"], sys.modules["Opts.optimization"]
    return path


def _schedule() -> Any:
    schedule = OPTIMIZATION.WarmupLinearSchedule()
    schedule.warmup, schedule.t_total, schedule.warned_for_t_total_at_progress = 0.01, 5700, -1
    return schedule
