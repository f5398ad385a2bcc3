"""Import checkpoints of the authors' code: MSC and GMMFormer v2.

`torch_files` reads the file without running any code in it. Each tensor gets exactly one new name. The shapes of the
tensors give the sizes of the model, and the settings in the file give the rest. Settings that the file lacks have the
method's defaults and are listed as "assumed". The model folder records its origin in provenance.json and README.md.
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
from midreel.methods.model_card import front_matter

PROVENANCE = "provenance.json"
RECALLS = ("R@1", "R@5", "R@10", "R@100", "SumR")
PARALLEL = re.compile(r"^(module\.)+")  # the prefix of every name after training on several GPUs
NUM_WINDOWS = 8
MAX_FRAMES = 1024
MAX_NUMBER = 1e300  # larger integers exist in Python, but not as floating-point numbers


# ---------------------------------------------------------------- names in the file (there) and in midreel (here)


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

# The settings that are the length of a tensor's axis: the tensor and the axis.
SIZES = {
    "video_width": ("clip_input_proj.net.1.weight", 1),
    "text_width": ("query_input_proj.net.1.weight", 1),
    "max_words": ("query_pos_embed.position_embeddings.weight", 0),
    "num_frames": ("frame_encoder_1.layer2.weight", 0),
    "num_clips": ("clip_encoder.layer2.weight", 0),
    "width": ("clip_input_proj.net.1.weight", 0),
}
# The settings that are stored in the file: a name, or a name and a position in the list of that name.
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
    """A method whose checkpoints can be imported.

    Attributes:
        method: the name of the method in midreel.
        title: the name of the method in messages.
        names: the name of each weight in the file, and in midreel.
        places: where the file stores each setting.
        fixed: settings that all checkpoints of the family have.
    """

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
    fixed={"variant": "released"},  # it has the projection of CBVA, which only training uses
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
# A tensor that identifies each family. The first match decides, because MSC has a weight_token too.
FAMILY_OF_TENSOR = {"vproj_clip.weight": MSC, "weight_token": GMMFORMER_V2}
OTHERS = {
    "modular_vector_mapping_2.weight": "GMMFormer (the first version)",
    "mapping_linear.0.weight": "MS-SL or BGM-Net",
    "A_query_pos_embed.position_embeddings.weight": "DL-DKD",
    "exp_query_pos_embed.position_embeddings.weight": "DL-DKD++",
}


# ---------------------------------------------------------------- files


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The contents of a file, under the names in the file.

    Attributes:
        tensors: the weights by name, not read yet.
        config: the settings of the training.
        epoch: the epoch of the checkpoint.
        recalls: the metrics that the file claims.
        dropped: the parts of the file that are not imported.
    """

    tensors: Mapping[str, StoredTensor]
    config: Mapping[str, Any]
    epoch: int | None
    recalls: Mapping[str, float]
    dropped: tuple[str, ...]


def read(path: Path) -> Checkpoint:
    """Read a best.ckpt of the authors' code, or a bare state dict, and remove the prefix of parallel training.

    Raises:
        BadModel: the file cannot be read, or has no state dict.
    """
    contents = torch_files.load(path)
    value = contents.value
    kind = value.kind if isinstance(value, Inert) else type(value).__name__
    if kind not in ("dict", "collections.OrderedDict"):
        raise BadModel(f"{path} contains a {kind}, expected a dictionary of tensors. Save model.state_dict().")
    inner = next((value[key] for key in ("state_dict", "model") if isinstance(value.get(key), dict)), None)
    outer = {} if inner is None else value
    named: dict[str, StoredTensor] = value if inner is None else inner
    others = [name for name, each in named.items() if not isinstance(name, str) or not isinstance(each, StoredTensor)]
    if not named or others:
        raise BadModel(
            f"the state dict in {path} has {_listed(others) or 'no entries'}, expected names and tensors only. Save "
            f"model.state_dict()."
        )
    tensors = {PARALLEL.sub("", name): tensor for name, tensor in named.items()}
    if len(tensors) < len(named):
        raise BadModel(
            f"{path} has weights with and without the prefix module., expected each once. Remove one of them."
        )
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
    """Return the claimed metrics by name, or none if the values have another form."""
    values = values.read().tolist() if isinstance(values, StoredArray) else values
    numbers = [_number(value) for value in values] if isinstance(values, list | tuple) else []
    if len(numbers) != len(RECALLS):
        return {}
    return {name: number for name, number in zip(RECALLS, numbers, strict=True) if number is not None}


def _number(value: Any) -> float | None:
    """Return a stored value as a number, or None if it is not a finite one."""
    if isinstance(value, StoredTensor) and math.prod(value.shape) == 1:
        value = value.read().item()
    if not isinstance(value, int | float) or abs(value) > MAX_NUMBER or math.isnan(value):
        return None
    return float(value)


# ---------------------------------------------------------------- models


@dataclass(frozen=True, kw_only=True)
class Imported:
    """An imported model: its folder and its origin, the contents of provenance.json."""

    folder: Path
    provenance: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"model": str(self.folder), **self.provenance}

    @property
    def text(self) -> str:
        """The report in lines for people."""
        known = self.provenance
        claims = "  ".join(f"{name} {value:.1f}" for name, value in known["recalls"].items())
        lines = [
            f"{known['title']} of {known['source']['file']}"
            + ("" if known["epoch"] is None else f", epoch {known['epoch']}"),
            f"claimed: {claims or 'nothing'}",
            f"weights: {known['num_weights']:,} in {known['num_tensors']} tensors",
            *(f"{name}: {_settings(known['settings'][name])}" for name in known["settings"] if known["settings"][name]),
            f"dropped: {_listed(known['dropped']) or 'nothing'}",
            *(f"note: {remark}" for remark in known["remarks"]),
            f"model: {self.folder}",
        ]
        return "\n".join(lines)


def import_checkpoint(path: Path, folder: Path, changes: Mapping[str, Any] | None = None) -> Imported:
    """Create a model folder from a checkpoint of MSC or GMMFormer v2.

    `midreel.load_method(folder)` returns the model. It encodes and scores like the authors' code.

    Args:
        path: the checkpoint.
        folder: the new folder.
        changes: settings by name that replace those of the file.

    Raises:
        BadModel: the file cannot be read, or is not a checkpoint of these methods.
        UnknownName: a name in `changes` is not a setting.
        Unwritable: the folder exists and is not empty.
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
    """Return the family of a checkpoint, from the names of its tensors."""
    for name, title in OTHERS.items():
        if name in checkpoint.tensors:
            raise BadModel(
                f"{path} is a model of {title}, expected MSC or GMMFormer v2. midreel does not implement {title}."
            )
    for name, family in FAMILY_OF_TENSOR.items():
        if name in checkpoint.tensors:
            return family
    raise BadModel(
        f"{path} has the weights {_listed(checkpoint.tensors)}, expected those of MSC or GMMFormer v2. Models of "
        f"midreel are folders and need no import."
    )


def _expect_names(path: Path, family: Family, checkpoint: Checkpoint) -> None:
    """Raise BadModel unless the names of the tensors are exactly those of the family."""
    unknown = [name for name in checkpoint.tensors if name not in family.names]
    missing = [name for name in family.names if name not in checkpoint.tensors]
    if unknown or missing:
        raise BadModel(
            f"{path} has {len(unknown)} unknown tensors ({_listed(unknown) or 'none'}) and lacks {len(missing)} "
            f"({_listed(missing) or 'none'}), expected the {len(family.names)} of {family.title}. Variants of the "
            f"method cannot be imported."
        )


def _settings_of(
    path: Path, family: Family, checkpoint: Checkpoint, changes: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the settings by origin. Settings without an entry are switches, which keep the method's defaults."""
    kinds = {each.name: each for each in fields(METHODS[family.method].Config) if each.name != "method"}
    for name in changes:
        if name not in kinds:
            raise UnknownName.among("setting", name, kinds)
    sizes = {name: checkpoint.tensors[tensor].shape[axis : axis + 1] for name, (tensor, axis) in SIZES.items()}
    if not all(sizes.values()):
        raise BadModel(
            f"{path} has tensors with fewer axes than {family.title}'s. Variants of the method cannot be imported."
        )
    by_shape = {name: size[0] for name, size in sizes.items()}
    if by_shape["num_frames"] > MAX_FRAMES:  # the windows of the network take memory by the square
        raise BadModel(
            f"{path} is for videos of {by_shape['num_frames']} frames, expected at most {MAX_FRAMES}. The published "
            f"models have 128."
        )
    by_config = {}
    for name, place in family.places.items():
        value = _stored(path, checkpoint.config, place)
        if value is not None:
            by_config[name] = _as(path, kinds[name].type, value, place[0])
    by_config |= _frame_weight(path, checkpoint.config)
    known = by_config | dict(changes)
    return {
        "from shapes": {name: value for name, value in by_shape.items() if name not in changes},
        "from config": {name: value for name, value in by_config.items() if name not in changes},
        "of the family": {name: value for name, value in family.fixed.items() if name not in changes},
        "set by hand": dict(changes),
        "assumed": {name: kinds[name].default for name in (*family.places, "frame_weight") if name not in known},
    }


def _stored(path: Path, config: Mapping[str, Any], place: Place) -> Any:
    """Return the value at a place of the settings in the file, or None."""
    value = config.get(place[0])
    if value is None or len(place) == 1:
        return value
    value = value.read().tolist() if isinstance(value, StoredArray) else value
    if not isinstance(value, list | tuple):
        raise _bad_setting(path, place[0], value, "a list of numbers")
    return value[place[1]] if place[1] < len(value) else None


def _as(path: Path, kind: Any, value: Any, name: str) -> Any:
    """Return a stored value as an int or a float. Raise BadModel if it is not one."""
    number = _number(value)
    if number is None or isinstance(value, bool) or (kind is int and number != int(number)):
        raise _bad_setting(path, name, value, "a whole number" if kind is int else "a number")
    return kind(number)


def _bad_setting(path: Path, name: str, value: Any, expected: str) -> BadModel:
    return BadModel(f"{path} has the setting {name} = {_plain(value)!r}, expected {expected}. Download it again.")


def _frame_weight(path: Path, config: Mapping[str, Any]) -> dict[str, float]:
    """Return the weight of the frame branch as a share of the sum. A common factor does not change the ranking."""
    found = {name: config[name] for name in ("clip_scale_w", "frame_scale_w") if config.get(name) is not None}
    if len(found) < 2:
        return {}
    clip, frame = (_as(path, float, value, name) for name, value in found.items())
    if clip < 0 or frame < 0 or clip + frame == 0:
        raise BadModel(
            f"{path} has the settings clip_scale_w = {clip} and frame_scale_w = {frame}, expected 0 or more and not "
            f"both 0. Download it again."
        )
    return {"frame_weight": frame / (clip + frame)}


def _remarks(config: Mapping[str, Any]) -> list[str]:
    """Return a remark if the weights of the branches do not sum to 1, which changes the scores."""
    clip, frame = (float(_number(config[name]) or 0.0) for name in ("clip_scale_w", "frame_scale_w"))
    if math.isclose(clip + frame, 1.0, rel_tol=1e-6):
        return []
    return [
        f"clip_scale_w {clip:g} and frame_scale_w {frame:g} sum to {clip + frame:g}, not to 1: midreel's scores are "
        f"those of the authors' code divided by the sum, with the same ranking"
    ]


def _filled(path: Path, family: Family, checkpoint: Checkpoint, settings: Mapping[str, Mapping[str, Any]]) -> Method:
    """Return the method with these settings and the weights of the checkpoint."""
    # These checks come first, because a damaged file may claim sizes that exceed the memory.
    for tensor in checkpoint.tensors.values():
        tensor.check()
    num_bytes = sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in checkpoint.tensors.values())
    if num_bytes > path.stat().st_size:
        raise BadModel(
            f"{path} has {path.stat().st_size:,} bytes, but its tensors claim {num_bytes:,}, expected no shared "
            f"numbers. The file may be malicious: do not use it."
        )
    make = METHODS[family.method]
    try:
        method = make(make.Config(**{name: value for part in settings.values() for name, value in part.items()}))
    except BadSetting as error:
        raise BadModel(f"{path} has an impossible setting for {family.title}: {error}") from error
    expected = {name: weight.shape for name, weight in method.state_dict().items()}
    shapes = {there: _shape(there, tensor) for there, tensor in checkpoint.tensors.items()}
    misfits = [
        f"{there} {checkpoint.tensors[there].shape}"
        for there, here in family.names.items()
        if shapes[there] != expected.get(here) or not checkpoint.tensors[there].dtype.is_floating_point
    ]
    if misfits:
        raise BadModel(
            f"{path} has {len(misfits)} tensors with other shapes than {family.title}'s ({_listed(misfits)}). Variants "
            f"of the method cannot be imported."
        )
    weights = {
        here: checkpoint.tensors[there].read().to(torch.float32).view(shapes[there])
        for there, here in family.names.items()
    }
    broken = [there for there, here in family.names.items() if not weights[here].isfinite().all()]
    if broken:
        raise BadModel(f"{path} has NaN or infinite weights in {_listed(broken)}. Its training diverged: use another.")
    method.load_state_dict(weights)
    return method.eval()


def _shape(name: str, tensor: StoredTensor) -> tuple[int, ...]:
    """Return the shape in midreel. The token that both branches share has two more axes of length one in the file."""
    return tensor.shape[2:] if name == "weight_token" and tensor.shape[:2] == (1, 1) else tensor.shape


# ---------------------------------------------------------------- reports


def _card(method: str, known: Mapping[str, Any]) -> str:
    """Return the README.md of the folder, which the hub shows as the model card."""
    claims = ", ".join(f"{name} {value:.1f}" for name, value in known["recalls"].items())
    origin = known["source"]
    return "\n".join(
        [
            front_matter(method),
            "",
            f"# {known['title']}, imported",
            "",
            f"Imported by `midreel import-checkpoint` from `{origin['file']}`, a checkpoint of the authors' code"
            + ("." if known["epoch"] is None else f", epoch {known['epoch']}.")
            + f" SHA-256: `{origin['sha256']}`.",
            "",
            f"It claims {claims}. midreel has not measured these results." if claims else "It claims no results.",
            "The file does not state the licence of the weights. Ask their authors.",
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
            f"Not imported: {_listed(known['dropped']) or 'nothing'}. `{PROVENANCE}` has all other contents.",
            "",
        ]
    )


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _listed(names: Any, most: int = 6) -> str:
    """Return the first names, separated by commas, and the number of the others. Names come from untrusted files."""
    names = [name if str(name).isprintable() else ascii(name) for name in map(str, names)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:100] for name in names[:most]) + more


def _plain(value: Any, depth: int = 2) -> Any:
    """Return a value of an untrusted file as JSON values, shortened to what a reader needs."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= MAX_NUMBER else str(value)[:100]
    if isinstance(value, str):
        on_a_disk = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
        return "(path)" if on_a_disk else value[:1000]  # others may get the model, and a local path is private
    if isinstance(value, dict) and depth:
        return {str(key)[:100]: _plain(each, depth - 1) for key, each in list(value.items())[:100]}
    if isinstance(value, list | tuple) and depth:
        return [_plain(each, depth - 1) for each in value[:100]]
    return f"({type(value).__name__})"
