"""Import checkpoints of the authors' codes. `released_families` lists the methods and their tables of names.

`torch_files` reads the file without running any code in it. Each tensor gets exactly one new name. The shapes of the
tensors give the sizes of the model, and the settings in the file give the rest. Some codes write an opt.json beside the
file, with settings that the file lacks. Settings without a source have the method's defaults and are listed as
"assumed". The model folder records its origin in provenance.json and README.md.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
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
from midreel.methods.released_families import FAMILIES, TITLES, Family, Place

PROVENANCE = "provenance.json"
OPTIONS = "opt.json"
MAX_OPTIONS_BYTES = 1 << 20
RECALLS = ("R@1", "R@5", "R@10", "R@100", "SumR")
PARALLEL = re.compile(r"^(module\.)+")  # the prefix of every name after training on several GPUs
MAX_FRAMES = 1024
NEVER = (1 << 31) - 1  # the epoch for a stored -1 that switches a part of the training off
MAX_NUMBER = 1e300  # larger integers exist in Python, but not as floating-point numbers


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
    """Read a checkpoint of the authors' code, or a bare state dict, and remove the prefix of parallel training.

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
    prefixed = [name for name in named if PARALLEL.match(name)]
    if len(prefixed) not in (0, len(named)) or len(tensors) < len(named):
        raise BadModel(
            f"{path} has the prefix module. on {len(prefixed)} of {len(named)} names, such as {_listed(prefixed[:1])}, "
            f"expected all or none, and each name once. Save model.state_dict() again."
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
    """Create a model folder from a checkpoint of one of the `released_families`.

    `midreel.load_method(folder)` returns the model. It encodes and scores like the authors' code.

    Args:
        path: the checkpoint.
        folder: the new folder.
        changes: settings by name that replace those of the file. The setting `method` names the expected method. It
            tells MS-SL from BGM-Net if the file does not.

    Raises:
        BadModel: the file cannot be read, or is not a checkpoint of these methods, or not of the expected one.
        UnknownName: a name in `changes` is not a setting, or the method cannot be imported.
        Unwritable: the folder exists and is not empty.
    """
    expect_new(folder)
    changes = dict(changes or {})
    asked = changes.pop("method", None)
    methods = list(dict.fromkeys(family.method for family in FAMILIES))
    if asked is not None and asked not in methods:
        raise UnknownName.among("method to import", asked, methods)
    checkpoint = read(path)
    alike = _alike(path, checkpoint)
    options = _options(path) if alike[0].has_options else {}
    family, doubt = _family(path, alike, asked, {**checkpoint.config, **options})
    _expect_names(path, family, checkpoint)
    settings, remarks = _settings_of(path, family, checkpoint, options, changes)
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
        "options": {str(key): _plain(value) for key, value in options.items()},
        "dropped": list(checkpoint.dropped),
        "remarks": doubt + remarks,
    }
    with replacing(folder) as new:
        method.save_pretrained(new)
        write_durably(new / PROVENANCE, json.dumps(provenance, indent=2) + "\n")
        write_durably(new / "README.md", _card(family.method, provenance))
    return Imported(folder=folder, provenance=provenance)


# ---------------------------------------------------------------- families


def _alike(path: Path, checkpoint: Checkpoint) -> list[Family]:
    """Return the families whose names have most in common with those of the file. MS-SL and BGM-Net have the same."""
    found = set(checkpoint.tensors)
    shares = [len(found & set(family.names)) / len(found | set(family.names)) for family in FAMILIES]
    alike = [family for family, share in zip(FAMILIES, shares, strict=True) if share == max(shares)]
    if 2 * len(found & set(alike[0].names)) < len(found):
        raise BadModel(
            f"{path} has the weights {_listed(checkpoint.tensors)}, expected those of {TITLES}. Models of midreel are "
            f"folders and need no import."
        )
    return alike


def _family(
    path: Path, alike: Sequence[Family], asked: str | None, stored: Mapping[str, Any]
) -> tuple[Family, list[str]]:
    """Return the family of a checkpoint, and a remark if the file does not determine it.

    Args:
        path: the file.
        alike: the families with the names of the file.
        asked: the expected method, if any.
        stored: the settings of the file and of its opt.json.
    """
    if asked is not None:
        for family in alike:
            if family.method == asked:
                return family, []
        raise BadModel(
            f"{path} is a checkpoint of {' or '.join(family.title for family in alike)}, expected {asked} because of "
            f"method={asked}. Leave the method out, or pass another file."
        )
    marked = [family for family in alike if any(mark in stored for mark in family.marks)]
    if marked or len(alike) == 1 or stored:
        return (marked or alike)[0], []
    first, *others = alike
    return first, [
        f"the file has no settings that tell {first.title} from {others[0].title}: {first.title} is assumed. For the "
        f"other, pass --set method={others[0].method}"
    ]


def _options(path: Path) -> dict[str, Any]:
    """Return the settings of the opt.json beside a checkpoint, or none if there is no such file.

    Raises:
        BadModel: the file cannot be read, or is not a JSON object.
    """
    beside = path.parent / OPTIONS
    try:
        with beside.open("rb") as file:
            content = file.read(MAX_OPTIONS_BYTES + 1)
        options = json.loads(content) if len(content) <= MAX_OPTIONS_BYTES else None
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadModel(f"{beside} cannot be read ({error.strerror}). Fix it, or move it away.") from error
    except (ValueError, RecursionError) as error:
        raise BadModel(
            f"{beside} is not JSON ({error}), expected the options of the training. Move it away."
        ) from error
    if not isinstance(options, dict):
        raise BadModel(f"{beside} is not a JSON object of at most {MAX_OPTIONS_BYTES:,} bytes. Move it away.")
    return options


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


# ---------------------------------------------------------------- settings


def _settings_of(
    path: Path, family: Family, checkpoint: Checkpoint, options: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the settings by origin, and remarks. Settings without an entry are switches, which keep their defaults.

    Args:
        path: the file.
        family: its family.
        checkpoint: its contents.
        options: the settings of the opt.json beside it.
        changes: settings by name that replace those of the files.
    """
    kinds = {each.name: each for each in fields(METHODS[family.method].Config) if each.name != "method"}
    for name in changes:
        if name not in kinds:
            raise UnknownName.among("setting", name, kinds)
    by_shape = _sizes_of(path, family, checkpoint)
    _expect_options_of(path, family, options, by_shape)
    by_config, of_config = _stored_settings(path, family, checkpoint.config, kinds)
    by_options, of_options = _stored_settings(path.parent / OPTIONS, family, options, kinds)
    weighs = ("frame_weight",) if family.fusion else ()
    sources = {
        "from shapes": by_shape,
        "from config": by_config,
        f"from {OPTIONS}": {name: value for name, value in by_options.items() if name not in by_config},
        "of the family": {name: value for name, value in family.fixed.items() if name not in by_config | by_options},
    }
    known = by_shape | by_config | by_options | dict(changes)
    settings = {
        source: {name: part[name] for name in kinds if name in part and name not in changes}
        for source, part in sources.items()
    }
    settings["set by hand"] = dict(changes)
    settings["assumed"] = {
        name: kinds[name].default for name in kinds if name in (*family.places, *weighs) and name not in known
    }
    remarks = [] if "frame_weight" in changes else of_config if "frame_weight" in by_config else of_options
    return settings, remarks + _unknown_schedules(family, {**options, **checkpoint.config})


def _expect_options_of(path: Path, family: Family, options: Mapping[str, Any], by_shape: Mapping[str, int]) -> None:
    """Raise BadModel if the opt.json beside a checkpoint contradicts the shapes of its tensors.

    Args:
        path: the checkpoint.
        family: its family.
        options: the settings of the opt.json.
        by_shape: the sizes of its tensors.
    """
    for option, name in family.option_sizes.items():
        if options.get(option) is not None and options[option] != by_shape[name]:
            raise BadModel(
                f"{path.parent / OPTIONS} has the setting {option} = {_plain(options[option])!r}, expected "
                f"{by_shape[name]} as in {path.name}: it belongs to another training. Replace it by the one of this "
                f"checkpoint, or move it away."
            )


def _unknown_schedules(family: Family, stored: Mapping[str, Any]) -> list[str]:
    """Return a remark for each stored setting with a value that midreel cannot train with."""
    return [
        f"{name} is {_plain(stored[name])!r}: in further training, a weight of the losses changes from epoch to epoch "
        f"in another way than in the authors' code"
        for name, values in family.known.items()
        if name in stored and stored[name] not in values
    ]


def _sizes_of(path: Path, family: Family, checkpoint: Checkpoint) -> dict[str, int]:
    """Return the settings that are the length of an axis of a tensor."""
    sizes = {name: checkpoint.tensors[tensor].shape[axis : axis + 1] for name, (tensor, axis) in family.sizes.items()}
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
    return by_shape


def _stored_settings(
    path: Path, family: Family, stored: Mapping[str, Any], kinds: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that a file stores, by their names in midreel, and remarks.

    Args:
        path: the file.
        family: the family of the checkpoint.
        stored: the settings of the file.
        kinds: the fields of the method's config.
    """
    found = {}
    for name, place in family.places.items():
        value = _stored(path, stored, place)
        if value is not None:
            found[name] = _as(path, kinds[name].type, value, place[0])
            if name.endswith("_from_epoch") and found[name] < 0:
                # The codes with options give -1 a meaning: never. The others compare the epoch with it.
                found[name] = NEVER if family.has_options else 0
    for name, by_value in family.choices.items():
        found |= next((dict(also) for value, also in by_value.items() if name in stored and stored[name] == value), {})
    weights = [_stored(path, stored, (name,)) for name in family.fusion or ()]
    if family.fusion is None or None in weights:
        return found, []
    clip, frame = (_as(path, float, value, name) for value, name in zip(weights, family.fusion, strict=True))
    if clip < 0 or frame < 0 or clip + frame == 0:
        raise BadModel(
            f"{path} has the settings {family.fusion[0]} = {clip} and {family.fusion[1]} = {frame}, expected 0 or more "
            f"and not both 0. Download it again."
        )
    # A common factor changes the scores, but not the ranking.
    found["frame_weight"] = frame / (clip + frame)
    if math.isclose(clip + frame, 1.0, rel_tol=1e-6):
        return found, []
    return found, [
        f"{family.fusion[0]} {clip:g} and {family.fusion[1]} {frame:g} sum to {clip + frame:g}, not to 1: midreel's "
        f"scores are those of the authors' code divided by the sum, with the same ranking"
    ]


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


# ---------------------------------------------------------------- weights


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
