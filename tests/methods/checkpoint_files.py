"""Checkpoints in the format of the released training code, from the twins of its models."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.methods.released_twin import Released

VIDEO_WIDTH, TEXT_WIDTH = 20, 12
Shapes = dict[str, tuple[int, ...]]
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


class EasyDict(dict):  # type: ignore[type-arg]
    """A dictionary whose items are attributes too, as in the package easydict."""

    __module__ = "easydict"

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__.update(items)


EASYDICT: Any = types.ModuleType("easydict")
EASYDICT.EasyDict = EasyDict


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
    """Write the file while the modules of its classes exist. A reader does not have these modules."""
    modules = {"Opts": types.ModuleType("Opts"), "Opts.optimization": OPTIMIZATION, "easydict": EASYDICT}
    sys.modules.update(modules)
    try:
        torch.save(value, path, _use_new_zipfile_serialization=is_zip)
    finally:
        for name in modules:
            del sys.modules[name]
    return path


# ---------------------------------------------------------------- state dicts by the names of the releases


def state_dict_of(
    family: str, *, hidden: int = 24, dv: int = VIDEO_WIDTH, dq: int = TEXT_WIDTH, words: int = 30
) -> Shapes:
    """The shape of each tensor of a release, written down from the list of its names.

    Args:
        family: the title of the released code.
        hidden: the width of the model.
        dv: the width of the frames.
        dq: the width of the words.
        words: the longest query.
    """

    def position(name: str, length: int) -> Shapes:
        return {f"{name}.position_embeddings.weight": (length, hidden)} | norm(f"{name}.LayerNorm", hidden)

    def norm(name: str, width: int) -> Shapes:
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    def linear(name: str, width: int, inputs: int) -> Shapes:
        return {f"{name}.weight": (width, inputs), f"{name}.bias": (width,)}

    def projection(name: str, inputs: int) -> Shapes:
        return norm(f"{name}.LayerNorm", inputs) | linear(f"{name}.net.1", hidden, inputs)

    def attention(name: str) -> Shapes:
        parts: Shapes = {}
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            parts |= linear(f"{name}.{part}", hidden, hidden)
        return parts | norm(f"{name}.output.LayerNorm", hidden)

    def encoder(name: str, length: int, start: str = "") -> Shapes:
        return {
            **position(f"{start}{name}_pos_embed", length),
            **projection(f"{start}{name}_input_proj", dq if name == "query" else dv),
        }

    three = {**encoder("query", words), **encoder("clip", 128), **encoder("frame", 128)}
    if family in ("MS-SL", "BGM-Net"):
        found = three | attention("query_encoder") | attention("clip_encoder") | attention("frame_encoder")
        found |= {"modular_vector_mapping.weight": (1, hidden)}
        found |= {"mapping_linear.0.weight": (hidden, hidden), "mapping_linear.1.weight": (hidden, hidden)}
    elif family == "GMMFormer":
        found = three | attention("query_encoder")
        for block in ("clip_encoder", "clip_encoder_2", "frame_encoder_1", "frame_encoder_2"):
            for k in range(4):
                found |= attention(f"{block}.attn{k}")
        found |= {"modular_vector_mapping.weight": (1, hidden), "modular_vector_mapping_2.weight": (1, hidden)}
    elif family in ("DL-DKD", "DL-DKD++"):
        found = {}
        starts, video, output = (
            (("A_", "B_"), "frame", "mapping_linear")
            if family == "DL-DKD"
            else (("", "exp_"), "visual", "out_mapping_linear")
        )
        for start in starts:
            found |= encoder("query", words, start) | encoder(video, 128, start)
            found |= attention(f"{start}query_encoder") | attention(f"{start}{video}_encoder")
            found |= {f"{start}modular_vector_mapping.weight": (1, hidden)} | linear(f"{start}{output}", hidden, hidden)
    else:
        found = encoder("clip", 128) | projection("query_input_proj", dq)
        found |= attention("clip_encoder.attn0") | attention("clip_encoder.attn1")
        found |= norm("clip_encoder.clip2video.layernorm", hidden) | linear(
            "clip_encoder.clip2video.fc_out1", hidden, hidden
        )
        found |= linear("clip_encoder.fc_gauss", 8, hidden)
    return found


def random_state(shapes: Shapes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def _schedule() -> Any:
    schedule = OPTIMIZATION.WarmupLinearSchedule()
    schedule.warmup, schedule.t_total, schedule.warned_for_t_total_at_progress = 0.01, 5700, -1
    return schedule
