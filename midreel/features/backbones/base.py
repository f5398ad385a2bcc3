"""What a backbone is: frozen encoders of images and texts into one space, and the fingerprint that tells two apart."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadFeatures, BadModel, FingerprintMismatch, UnknownName
from midreel.types import TextFeatures

Image = UInt8[np.ndarray, "_ _ 3"]

LOCAL = "local-dir:"
SHIPPED = {"tiny-clip": Path(__file__).parents[2] / "assets" / "tiny-clip"}
# Modules whose `load` makes a backbone: of a folder, by the model_type in its config.json, or of a file, by its prefix.
BACKBONES = {"clip": "midreel.features.backbones.clip", "siglip": "midreel.features.backbones.siglip"}
FILES = {"slowfast": "midreel.features.backbones.slowfast"}

_SMALL_FILES = ["*.json", "*.txt"]
_WEIGHTS = ["model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin"]


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """All that decides a feature's value. Features are comparable only if their fingerprints are.

    None means that there is no such thing, such as the words of a backbone that reads none, or that nobody knows it.
    The frame rate and the dtype on disk are chosen at extraction; a backbone's own fingerprint leaves them open (None),
    and what is open is not compared. Where the weights were loaded from is kept for people but not compared either: a
    copy of a folder, or the folder of a hub id, is the same backbone.
    """

    backbone: str
    weights: str
    width: int  # of a frame
    word_width: int | None = None
    sentence_width: int | None = None  # where it is not a frame's: of joined features only some channels are CLIP's
    joint: bool = True  # whether sentences and frames meet in one space; not RoBERTa's sentences and I3D's frames
    vocabulary: str | None = None
    context_length: int | None = None
    image_size: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    resample: str | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    frame_rate: float | None = None
    dtype: str | None = None
    source: str = field(default="", compare=False)

    @property
    def joint_width(self) -> int:
        """Of the space in which sentences and images meet."""
        if not self.joint:
            raise FingerprintMismatch(
                f"{self.backbone}: sentences and frames are of different backbones, expected those of one CLIP, which "
                f"can be compared; use such features, or train a method on these"
            )
        return self.sentence_width or self.width

    def difference(self, other: "Fingerprint") -> list[str]:
        """Every field that differs, by name, with this value and the other's."""
        pairs = (
            (entry.name, getattr(self, entry.name), getattr(other, entry.name))
            for entry in fields(self)
            if entry.compare
        )
        return [
            f"{name} {_shown(mine)} != {_shown(theirs)}"
            for name, mine, theirs in pairs
            if mine != theirs and not (name in _LEFT_OPEN and None in (mine, theirs))
        ]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Fingerprint":
        try:
            values: dict[str, Any] = json.loads(text)
            for name, value in values.items():
                values[name] = tuple(value) if isinstance(value, list) else value
            return cls(**values)
        except (TypeError, ValueError, AttributeError) as error:
            raise BadFeatures(
                f"a fingerprint cannot be read ({error}), expected the fields "
                f"{', '.join(entry.name for entry in fields(cls))}; was it made by another midreel? Extract again"
            ) from error


_LEFT_OPEN = ("frame_rate", "dtype")


def source_for_others(source: str) -> str:
    """Where weights were loaded from, if that is of use to others: not a place on somebody's disk, as `local-dir:PATH`
    and `slowfast:FILE` are, alone or among those that were joined.
    """
    return "" if ":" in source else source


def _shown(value: object) -> str:
    """Twelve digits of a hash tell it from any other."""
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else repr(value)


@runtime_checkable
class Backbone(Protocol):
    """Frozen encoders of images and texts into one space, or of short runs of images alone.

    A vector is made in two steps so that a decoding thread can do the first: what waits to be encoded is then a small
    crop rather than a full video frame. Arrays are numpy's; vectors are float32.
    """

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def window(self) -> int:
        """How many images make one vector: 1, or as many as a clip has, spread evenly up to the next vector's first."""

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """The pixels of the image that the encoder sees: resized and cropped, not yet normalised."""

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N *window 3 H W"]) -> Float[np.ndarray, "N E"]:
        """A vector for each prepared image, or, where the window is longer, for each stack of them."""

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        """A vector for each image of any size, or for each run of as many as the window holds, in one batch."""

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Each text's words as the text encoder leaves them, [EOS] last, and the whole in the joint space."""


def load_backbone(spec: str, device: str = "cpu") -> Backbone:
    """The backbone that `spec` names: `tiny-clip`, which comes with midreel and knows the playhouse alone;
    `local-dir:PATH`, a folder in the Hugging Face format; a hub id, such as `openai/clip-vit-large-patch14`; or
    `slowfast:FILE`, the published weights of a SlowFast.

    A hub id is taken from the hub's cache where it is complete there, and downloaded otherwise.
    """
    kind, _, path = spec.partition(":")
    if kind in FILES:
        file = Path(path).expanduser()
        if not file.is_file():
            raise UnknownName(f"no file {str(file)!r} (from {spec!r}), expected the weights of a {kind}; copy them")
        return _load(FILES[kind], file, device, spec)
    folder = SHIPPED.get(spec) or (_local_folder(spec) if spec.startswith(LOCAL) else _hub_folder(spec))
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type not in BACKBONES:
        raise UnknownName.among(f"backbone of the model_type in {folder / 'config.json'}:", model_type, BACKBONES)
    return _load(BACKBONES[model_type], folder, device, spec)


def _load(module: str, path: Path, device: str, spec: str) -> Backbone:
    backbone: Backbone = import_module(module).load(path, device=device, source=spec)
    return backbone


def read_json(path: Path) -> dict[str, Any]:
    """The settings in one file of a backbone's folder."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadModel(
            f"{path} does not exist, expected a folder in the Hugging Face format; download it as a whole"
        ) from error
    except ValueError as error:
        raise BadModel(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(settings, dict):
        raise BadModel(f"{path} holds a {type(settings).__name__}, expected an object; download it again")
    return settings


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: whole before sharded, safetensors before pickles, as transformers prefers."""
    found = (sorted(folder.glob(pattern)) for pattern in _WEIGHTS)
    return next((files for files in found if files), [])


def hash_of_files(files: Sequence[Path]) -> str:
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256"))
    if len(digests) == 1:
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def _local_folder(spec: str) -> Path:
    folder = Path(spec.removeprefix(LOCAL)).expanduser()
    if not folder.is_dir():
        raise UnknownName(
            f"no folder {str(folder)!r} (from {spec!r}); expected one in the Hugging Face format: config.json, "
            f"model.safetensors, tokenizer.json, preprocessor_config.json"
        )
    return folder


def _hub_folder(spec: str) -> Path:
    from huggingface_hub import snapshot_download

    if Path(spec).is_dir():
        raise UnknownName(f"{spec!r} is a folder, expected a hub id; write {LOCAL}{spec}")
    if "/" not in spec or ":" in spec:  # no hub id, so what follows would be about a network for nothing
        known = [*SHIPPED, f"{LOCAL}PATH", *(f"{kind}:FILE" for kind in FILES), "OWNER/NAME of the hub"]
        raise UnknownName.among("backbone", spec, known)
    reason = "its files hold no weights"
    for cached in (True, False):
        for weights in _WEIGHTS:
            try:
                wanted = [*_SMALL_FILES, weights]
                folder = Path(snapshot_download(spec, allow_patterns=wanted, local_files_only=cached))
            except Exception as error:
                # The hub client raises errors of its own, of its HTTP library, of the system: all mean the same here.
                reason = f"{type(error).__name__}: {error}"
                break
            if weight_files(folder):
                return folder
    raise UnknownName(_no_hub(spec, reason))


def _no_hub(spec: str, reason: str) -> str:
    from huggingface_hub import constants

    offline = "; HF_HUB_OFFLINE is set: unset it to download" if constants.HF_HUB_OFFLINE else ""
    return (
        f"the backbone {spec!r} is not in the hub's cache and cannot be downloaded{offline}. Without a network, run "
        f"`hf download {spec} --local-dir DIR` where there is one, copy DIR here and pass {LOCAL}DIR. "
        f"The hub's reason: {reason}"
    )
