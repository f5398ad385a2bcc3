"""Checkpoints of the authors' code as midreel's model folders: MSC and GMMFormer v2.

The file is read without running anything in it (`torch_files`). Its tensors are renamed, each exactly once; their
shapes give the sizes of the model, the settings stored beside them the rest, and what neither tells is assumed and said
so. The folder keeps where the model came from in provenance.json and README.md.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

from midreel.errors import BadModel, BadSetting, UnknownName
from midreel.features.backbones.base import hash_of_files
from midreel.io import torch_files
from midreel.io.files import write_durably
from midreel.io.folders import expect_new, replacing
from midreel.io.safe_pickle import Inert, StoredArray, StoredTensor
from midreel.methods import METHODS
from midreel.methods.base import Method
from midreel.methods.card import front_matter

PROVENANCE = "provenance.json"
RECALLS = ("R@1", "R@5", "R@10", "R@100", "SumR")
PARALLEL = re.compile(r"^(module\.)+")  # what training on several GPUs puts before every name
NUM_WINDOWS = 8
MAX_FRAMES = 1024
MAX_NUMBER = 1e300  # as Python's integers know no end, and floating-point numbers do


# ---------------------------------------------------------------- names there, names here


def _position(there: str, here: str) -> dict[str, str]:
    return {
        f"{there}.position_embeddings.weight": f"{here}.position.table.weight",
        **_both(f"{there}.LayerNorm", f"{here}.position.norm"),
    }


def _projection(there: str, here: str) -> dict[str, str]:
    return _both(f"{there}.LayerNorm", f"{here}.project.norm") | _both(f"{there}.net.1", f"{here}.project.linear")


def _attention(there: str, here: str) -> dict[str, str]:
    parts = {f"self.{name}": name for name in ("query", "key", "value")}
    parts |= {"output.layer1": "expand", "output.layer2": "contract", "norm1": "norm1", "norm2": "norm2"}
    return _joined(_both(f"{there}.{old}", f"{here}.{new}") for old, new in parts.items())


def _mixture(there: str, here: str) -> dict[str, str]:
    return {
        **_joined(_attention(f"{there}.attn{k}", f"{here}.blocks.{k}") for k in range(NUM_WINDOWS)),
        **_attention(f"{there}.ca", f"{here}.summary"),
        **_both(f"{there}.layer1", f"{here}.mix_hidden"),
        **_both(f"{there}.layer2", f"{here}.mix_output"),
    }


def _both(there: str, here: str) -> dict[str, str]:
    return {f"{there}.{part}": f"{here}.{part}" for part in ("weight", "bias")}


def _joined(tables: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {there: here for table in tables for there, here in table.items()}


GMMFORMER_V2_NAMES = {
    "weight_token": "weight_token",
    **_joined(_position(f"{name}_pos_embed", name) for name in ("query", "clip", "frame")),
    **_joined(_projection(f"{name}_input_proj", name) for name in ("query", "clip", "frame")),
    **_attention("query_encoder", "query.block"),
    "modular_vector_mapping.weight": "query.pool.score.weight",
    **_mixture("clip_encoder", "clip.mixture"),
    **_mixture("frame_encoder_1", "frame.mixture"),
}
MSC_NAMES = GMMFORMER_V2_NAMES | _both("vproj_clip", "alignment_projection")

# A setting of ours: which axis of which tensor it is, …
SIZES = {
    "video_width": ("clip_input_proj.net.1.weight", 1),
    "text_width": ("query_input_proj.net.1.weight", 1),
    "max_words": ("query_pos_embed.position_embeddings.weight", 0),
    "num_frames": ("frame_encoder_1.layer2.weight", 0),
    "num_clips": ("clip_encoder.layer2.weight", 0),
    "width": ("clip_input_proj.net.1.weight", 0),
}
# … or where the stored settings have it: under a name, or at a place of the list of that name.
Place = tuple[str] | tuple[str, int]
NETWORK: dict[str, Place] = {
    "num_heads": ("n_heads",),
    "temperature": ("sft_factor",),
    "input_dropout": ("input_drop",),
    "dropout": ("drop",),
    "clip_nce_weight": ("loss_factor", 0),
    "frame_nce_weight": ("loss_factor", 1),
    "margin": ("margin",),
    "hard_from_epoch": ("hard_negative_start_epoch",),
    "hard_pool": ("hard_pool_size",),
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A method whose checkpoints can be imported."""

    method: str
    title: str
    names: Mapping[str, str]
    places: Mapping[str, Place]
    fixed: Mapping[str, Any]


MSC = Family(
    method="msc",
    title="MSC",
    names=MSC_NAMES,
    places={
        **NETWORK,
        "similarity_threshold": ("sim_thr",),
        "cbva_weight": ("vl_coef",),
        "tcpl_distance_weight": ("rkd_d_coef",),
        "tcpl_angle_weight": ("rkd_a_coef",),
    },
    fixed={"variant": "released"},  # with its projection for CBVA, which serves training only
)
GMMFORMER_V2 = Family(
    method="gmmformer_v2",
    title="GMMFormer v2",
    names=GMMFORMER_V2_NAMES,
    places={
        **NETWORK,
        "diversity_weight": ("loss_factor", 2),
        "matching_weight": ("loss_factor", 3),
        "diversity_shift": ("neg_factor", 0),
        "diversity_scale": ("neg_factor", 1),
        "diversity_focus": ("neg_factor", 2),
    },
    fixed={},
)
# A tensor that only this family has. The first that is found decides.
FAMILY_OF_TENSOR = {"vproj_clip.weight": MSC, "weight_token": GMMFORMER_V2}
OTHERS = {
    "modular_vector_mapping_2.weight": "GMMFormer (the first version)",
    "mapping_linear.0.weight": "MS-SL or BGM-Net",
    "A_query_pos_embed.position_embeddings.weight": "DL-DKD",
    "exp_query_pos_embed.position_embeddings.weight": "DL-DKD++",
}


# ---------------------------------------------------------------- the file


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a file holds, under the names it has there. `dropped` is what nothing is made of."""

    tensors: Mapping[str, StoredTensor]
    config: Mapping[str, Any]
    epoch: int | None
    recalls: Mapping[str, float]
    dropped: tuple[str, ...]


def read(path: Path) -> Checkpoint:
    """Reads best.ckpt of GMMFormer's descendants, or a bare state dict. The prefix of parallel training goes."""
    contents = torch_files.load(path)
    value = contents.value
    kind = value.kind if isinstance(value, Inert) else type(value).__name__
    if kind not in ("dict", "collections.OrderedDict"):
        raise BadModel(
            f"{path} holds a {kind}, expected a dictionary with state_dict, or of tensors; save model.state_dict()"
        )
    inner = next((value[key] for key in ("state_dict", "model") if isinstance(value.get(key), dict)), None)
    outer = {} if inner is None else value
    named: dict[str, StoredTensor] = value if inner is None else inner
    strays = [name for name, each in named.items() if not isinstance(name, str) or not isinstance(each, StoredTensor)]
    if not named or strays:
        raise BadModel(f"{path} has no state dict: {_listed(strays) or 'it is empty'}, expected names and tensors only")
    tensors = {PARALLEL.sub("", name): tensor for name, tensor in named.items()}
    if len(tensors) < len(named):
        raise BadModel(f"{path} has weights twice, with and without the prefix module., expected them once")
    config: dict[Any, Any] = next(
        (outer[key] for key in ("config", "model_cfg") if isinstance(outer.get(key), dict)), {}
    )
    epoch = outer.get("epoch")
    used = {"state_dict", "model", "config", "model_cfg", "epoch", "model_val"}
    return Checkpoint(
        tensors=tensors,
        config=config,
        epoch=epoch if type(epoch) is int and 0 <= epoch < 1 << 31 else None,
        recalls=_recalls(outer.get("model_val")),
        dropped=(*(str(key) for key in outer if key not in used), *contents.strangers),
    )


def _recalls(values: Any) -> dict[str, float]:
    values = values.read().tolist() if isinstance(values, StoredArray) else values
    numbers = [_number(value) for value in values] if isinstance(values, list | tuple) else []
    if len(numbers) != len(RECALLS):
        return {}
    return {name: number for name, number in zip(RECALLS, numbers, strict=True) if number is not None}


def _number(value: Any) -> float | None:
    if isinstance(value, StoredTensor) and math.prod(value.shape) == 1:
        value = value.read().item()
    if not isinstance(value, int | float) or abs(value) > MAX_NUMBER or math.isnan(value):
        return None
    return float(value)


# ---------------------------------------------------------------- the model


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A model folder that was made of a checkpoint, and what is known of its origin."""

    folder: Path
    provenance: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"model": str(self.folder), **self.provenance}

    @property
    def text(self) -> str:
        known = self.provenance
        claims = "  ".join(f"{name} {value:.1f}" for name, value in known["recalls"].items())
        lines = [
            f"{known['title']} of {known['source']['file']}"
            + ("" if known["epoch"] is None else f", epoch {known['epoch']}"),
            f"claimed: {claims or 'nothing'}",
            f"weights: {known['num_weights']:,} in {known['num_tensors']} tensors",
            *(f"{name}: {_settings(known['settings'][name])}" for name in known["settings"] if known["settings"][name]),
            f"dropped: {_listed(known['dropped']) or 'nothing'}",
            *(f"remark: {remark}" for remark in known["remarks"]),
            f"model: {self.folder}",
        ]
        return "\n".join(lines)


def import_checkpoint(path: Path, folder: Path, changes: Mapping[str, Any] | None = None) -> Imported:
    """Makes a model folder of a checkpoint of MSC or GMMFormer v2; `changes` are settings that the file does not tell.

    `midreel.load_method(folder)` then gives the model, which encodes and scores as the authors' code does.
    """
    expect_new(folder)
    checkpoint = read(path)
    family = _family(path, checkpoint)
    _expect_names(path, family, checkpoint)
    settings = _settings_of(path, family, checkpoint, changes or {})
    method = _filled(path, family, checkpoint, settings)
    provenance = {
        "title": family.title,
        "source": {"file": path.name, "bytes": path.stat().st_size, "sha256": hash_of_files([path])},
        "epoch": checkpoint.epoch,
        "recalls": dict(checkpoint.recalls),
        "num_tensors": len(checkpoint.tensors),
        "num_weights": sum(parameter.numel() for parameter in method.parameters()),
        "settings": settings,
        "config": {str(key): _plain(value) for key, value in checkpoint.config.items()},
        "dropped": list(checkpoint.dropped),
        "remarks": _remarks(checkpoint.config) if "frame_weight" in settings["from config"] else [],
    }
    with replacing(folder) as new:
        method.save_pretrained(new)
        write_durably(new / PROVENANCE, json.dumps(provenance, indent=2) + "\n")
        write_durably(new / "README.md", _card(family.method, provenance))
    return Imported(folder=folder, provenance=provenance)


def _family(path: Path, checkpoint: Checkpoint) -> Family:
    for name, title in OTHERS.items():
        if name in checkpoint.tensors:
            raise BadModel(
                f"{path} is a model of {title}, which midreel does not have; expected one of MSC or GMMFormer v2"
            )
    for name, family in FAMILY_OF_TENSOR.items():
        if name in checkpoint.tensors:
            return family
    raise BadModel(
        f"{path} holds the weights {_listed(checkpoint.tensors)}, expected those of MSC or GMMFormer v2; "
        f"midreel's own models are folders and need no import"
    )


def _expect_names(path: Path, family: Family, checkpoint: Checkpoint) -> None:
    """Every tensor there has one place here, and every weight here one source there."""
    unknown = [name for name in checkpoint.tensors if name not in family.names]
    missing = [name for name in family.names if name not in checkpoint.tensors]
    if unknown or missing:
        raise BadModel(
            f"{path} looks like {family.title}, but {len(unknown)} of its tensors are not {family.title}'s "
            f"({_listed(unknown) or 'none'}) and {len(missing)} are missing ({_listed(missing) or 'none'}); "
            f"expected exactly {len(family.names)}: is it a variant of the method?"
        )


def _settings_of(
    path: Path, family: Family, checkpoint: Checkpoint, changes: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Settings of the method by where they come from. The rest are switches, which stand as the method has them."""
    kinds = {each.name: each for each in fields(METHODS[family.method].Config) if each.name != "method"}
    for name in changes:
        if name not in kinds:
            raise UnknownName.among("setting", name, kinds)
    sizes = {name: checkpoint.tensors[tensor].shape[axis : axis + 1] for name, (tensor, axis) in SIZES.items()}
    if not all(sizes.values()):
        raise BadModel(f"{path} has tensors of other axes than {family.title}'s; is it a variant of the method?")
    by_shape = {name: size[0] for name, size in sizes.items()}
    if by_shape["num_frames"] > MAX_FRAMES:  # the network has windows of its square
        raise BadModel(f"{path} is for {by_shape['num_frames']} frames, expected 128, and {MAX_FRAMES} at most")
    by_config = {}
    for name, place in family.places.items():
        value = _stored(path, checkpoint.config, place)
        if value is not None:
            by_config[name] = _as(path, kinds[name].type, value, place[0])
    by_config |= _frame_weight(path, checkpoint.config)
    told = by_config | dict(changes)
    return {
        "from shapes": {name: value for name, value in by_shape.items() if name not in changes},
        "from config": {name: value for name, value in by_config.items() if name not in changes},
        "of the family": {name: value for name, value in family.fixed.items() if name not in changes},
        "set by hand": dict(changes),
        "assumed": {name: kinds[name].default for name in (*family.places, "frame_weight") if name not in told},
    }


def _stored(path: Path, config: Mapping[str, Any], place: Place) -> Any:
    value = config.get(place[0])
    if value is None or len(place) == 1:
        return value
    value = value.read().tolist() if isinstance(value, StoredArray) else value
    if not isinstance(value, list | tuple):
        raise BadModel(f"{path} has {place[0]} = {_plain(value)!r} among its settings, expected a list of numbers")
    return value[place[1]] if place[1] < len(value) else None


def _as(path: Path, kind: Any, value: Any, name: str) -> Any:
    number = _number(value)
    if number is None or isinstance(value, bool) or (kind is int and number != int(number)):
        expected = "a whole number" if kind is int else "a number"
        raise BadModel(f"{path} has {name} = {_plain(value)!r} among its settings, expected {expected}")
    return kind(number)


def _frame_weight(path: Path, config: Mapping[str, Any]) -> dict[str, float]:
    """The branches' weights, as shares of their sum: scaled alike, they rank alike."""
    found = {name: config[name] for name in ("clip_scale_w", "frame_scale_w") if config.get(name) is not None}
    if len(found) < 2:
        return {}
    clip, frame = (_as(path, float, value, name) for name, value in found.items())
    if clip < 0 or frame < 0 or clip + frame == 0:
        raise BadModel(
            f"{path} has clip_scale_w = {clip} and frame_scale_w = {frame} among its settings, expected shares"
        )
    return {"frame_weight": frame / (clip + frame)}


def _remarks(config: Mapping[str, Any]) -> list[str]:
    """On weights of the branches that are no shares, and what that makes of the scores."""
    clip, frame = (float(_number(config[name]) or 0.0) for name in ("clip_scale_w", "frame_scale_w"))
    if math.isclose(clip + frame, 1.0, rel_tol=1e-6):
        return []
    return [
        f"clip_scale_w {clip:g} and frame_scale_w {frame:g} sum to {clip + frame:g}, not to 1: scores here are those "
        f"of the authors' code divided by that, and rank alike"
    ]


def _filled(path: Path, family: Family, checkpoint: Checkpoint, settings: Mapping[str, Mapping[str, Any]]) -> Method:
    """The method with these settings and the checkpoint's weights."""
    # Before anything of the sizes that they claim is made.
    for tensor in checkpoint.tensors.values():
        tensor.check()
    num_bytes = sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in checkpoint.tensors.values())
    if num_bytes > path.stat().st_size:
        raise BadModel(
            f"{path} has tensors of {num_bytes:,} bytes on {path.stat().st_size:,} of its own, expected that each has "
            f"its own numbers; the file is made to harm"
        )
    make = METHODS[family.method]
    try:
        method = make(make.Config(**{name: value for part in settings.values() for name, value in part.items()}))
    except BadSetting as error:
        raise BadModel(f"{path} has settings that {family.title} cannot have: {error}") from error
    expected = {name: weight.shape for name, weight in method.state_dict().items()}
    shapes = {there: _shape(there, tensor) for there, tensor in checkpoint.tensors.items()}
    misfits = [
        f"{there} {checkpoint.tensors[there].shape}"
        for there, here in family.names.items()
        if shapes[there] != expected.get(here) or not checkpoint.tensors[there].dtype.is_floating_point
    ]
    if misfits:
        raise BadModel(
            f"{path} has {len(misfits)} tensors of other shapes than {family.title}'s ({_listed(misfits)}); "
            f"is it a variant of the method?"
        )
    weights = {
        here: checkpoint.tensors[there].read().to(torch.float32).view(shapes[there])
        for there, here in family.names.items()
    }
    broken = [there for there, here in family.names.items() if not weights[here].isfinite().all()]
    if broken:
        raise BadModel(f"{path} has weights that are not numbers in {_listed(broken)}; its training has diverged")
    method.load_state_dict(weights)
    return method.eval()


def _shape(name: str, tensor: StoredTensor) -> tuple[int, ...]:
    """As here: the token that both branches share has two axes of length one there."""
    return tensor.shape[2:] if name == "weight_token" and tensor.shape[:2] == (1, 1) else tensor.shape


# ---------------------------------------------------------------- words


def _card(method: str, known: Mapping[str, Any]) -> str:
    """README.md of the folder, which the hub shows as the model's card."""
    claims = ", ".join(f"{name} {value:.1f}" for name, value in known["recalls"].items())
    origin = known["source"]
    return "\n".join(
        [
            front_matter(method),
            "",
            f"# {known['title']}, imported",
            "",
            f"Made by `midreel import-checkpoint` of `{origin['file']}`, a checkpoint of the authors' code"
            + ("." if known["epoch"] is None else f", epoch {known['epoch']}.")
            + f" SHA-256: `{origin['sha256']}`.",
            "",
            f"It claims {claims}, which midreel has not measured." if claims else "It claims no results.",
            "The terms of use of its weights are their authors'; the file does not state them.",
            "",
            "```python",
            "import midreel",
            "",
            'method = midreel.load_method("this folder")',
            "```",
            "",
            "| Settings | |",
            "|---|---|",
            *(f"| {name} | {_settings(part)} |" for name, part in known["settings"].items() if part),
            "",
            *(f"{remark[0].upper()}{remark[1:]}.\n" for remark in known["remarks"]),
            f"Not kept: {_listed(known['dropped']) or 'nothing'}. `{PROVENANCE}` has what else the file says.",
            "",
        ]
    )


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _listed(names: Any, most: int = 6) -> str:
    names = [name if str(name).isprintable() else ascii(name) for name in map(str, names)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:100] for name in names[:most]) + more


def _plain(value: Any, depth: int = 2) -> Any:
    """What JSON can say of a value that a stranger's file holds, and not more than a reader would want."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= MAX_NUMBER else str(value)[:100]
    if isinstance(value, str):
        on_a_disk = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
        return "(path)" if on_a_disk else value[:1000]  # the folder is for others, and the path is of no use to them
    if isinstance(value, dict) and depth:
        return {str(key)[:100]: _plain(each, depth - 1) for key, each in list(value.items())[:100]}
    if isinstance(value, list | tuple) and depth:
        return [_plain(each, depth - 1) for each in value[:100]]
    return f"({type(value).__name__})"
