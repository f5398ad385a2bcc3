"""The protocol of a backbone, its fingerprint, and `load_backbone`."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadFeatures, BadModel, BadPackage, BadSetting, FingerprintMismatch, UnknownName
from midreel.types import TextFeatures

Image = UInt8[np.ndarray, "_ _ 3"]

LOCAL = "local-dir:"
OFFLINE = "offline"
SHIPPED = {"tiny-clip": Path(__file__).parents[2] / "assets" / "tiny-clip"}
# The modules whose `load` function loads a backbone: from a folder, by the model_type in its config.json, or from a
# file, by the prefix of the spec.
BACKBONES = {
    "clip": "midreel.features.backbones.clip",
    "metaclip_2": "midreel.features.backbones.metaclip_2",
    "siglip": "midreel.features.backbones.siglip",
    "videoprism": "midreel.features.backbones.videoprism",
}
FILES = {"slowfast": "midreel.features.backbones.slowfast"}

_SMALL_FILES = ["*.json", "*.txt"]
_WEIGHTS = ["model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin"]


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The backbone and the settings that determine features. Compare features only if their fingerprints are equal.

    None means unknown or not applicable.

    Attributes:
        backbone: The architecture.
        weights: A SHA-256 of the weights.
        width: The width of the vector of a frame.
        word_width: The width of the vector of a word. None if the backbone does not encode texts.
        sentence_width: The width of the vector of a sentence, if it differs from `width`. In joined features, only the
            last channels of a frame are from CLIP.
        joint: Whether sentences and frames share a space. Sentences of RoBERTa and frames of I3D do not.
        vocabulary: A SHA-256 of the tokens.
        context_length: The largest number of tokens of a text.
        image_size: The size to which images are resized: the short side, or height and width.
        crop: The height and width of the center crop.
        resample: The resampling filter of Pillow.
        scale: The factor applied to pixel values.
        mean: The mean of each channel, which is subtracted.
        std: The standard deviation of each channel, by which pixel values are divided.
        frame_rate: The vectors a second. None in the fingerprint of a backbone: extraction sets it.
        dtype: The dtype in the store. None in the fingerprint of a backbone: extraction sets it.
        source: Where the weights were loaded from. It is not compared: a copy is the same backbone.
    """

    backbone: str
    weights: str
    width: int
    word_width: int | None = None
    sentence_width: int | None = None
    joint: bool = True
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
        """The width of the joint space of sentences and frames. Raises FingerprintMismatch if there is none."""
        if not self.joint:
            raise FingerprintMismatch(
                f"{self.backbone}: sentences and frames are from different backbones and cannot be compared. Use "
                f"features of one CLIP, or train a method on these."
            )
        return self.sentence_width or self.width

    def difference(self, other: "Fingerprint") -> list[str]:
        """Return each field that differs, with both values. An unknown frame rate or dtype fits any other."""
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
        """Return the fingerprint as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Fingerprint":
        """Return the fingerprint in a JSON text. Raise BadFeatures if it is not one."""
        try:
            values: dict[str, Any] = json.loads(text)
            for name, value in values.items():
                values[name] = tuple(value) if isinstance(value, list) else value
            return cls(**values)
        except (TypeError, ValueError, AttributeError) as error:
            raise BadFeatures(
                f"a fingerprint cannot be read ({error}), expected the fields "
                f"{', '.join(entry.name for entry in fields(cls))}. Extract the features with this version of midreel."
            ) from error


_LEFT_OPEN = ("frame_rate", "dtype")


def source_for_others(source: str) -> str:
    """Return the source of weights if it can be published: a hub id. A path on this computer becomes empty."""
    return "" if ":" in source else source


def _shown(value: object) -> str:
    """Return a value for a message. Of a hash, twelve digits are enough."""
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else repr(value)


@runtime_checkable
class Backbone(Protocol):
    """Frozen encoders of images and texts into one space, or an encoder of clips only.

    All arrays are numpy's, and vectors are float32. Images are encoded in two steps, `prepare` and `encode_pixels`, so
    that decoding threads can do the first. Small crops then wait for the encoder instead of full frames.
    """

    @property
    def fingerprint(self) -> Fingerprint:
        """The weights and the settings of the backbone, without a frame rate and a dtype."""

    @property
    def window(self) -> int:
        """The number of images per vector: 1, or the number of frames of a clip."""

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Resize and crop an image of any size. The pixels are not normalised yet."""

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N *window 3 H W"]) -> Float[np.ndarray, "N E"]:
        """Return a vector for each prepared image or, if `window` is above 1, for each stack of prepared images."""

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        """Prepare and encode images in one batch: a vector for each `window` images."""

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Return the features of texts: the vectors of the words up to [EOS], and the sentence in the joint space."""


Engine = Literal["auto", "onnx", "onnx-int8", "torch"]
"""What computes a backbone or a model. See `load_backbone`."""


def load_backbone(spec: str, device: str = "cpu", engine: Engine = "auto", *, like: str = "") -> Backbone:
    """Load a backbone.

    Args:
        spec: One of
            `offline`, an image classifier and a sentence encoder, with `pip install 'midreel[offline]'`;
            `tiny-clip`, which is part of midreel and is trained on generated videos only;
            `local-dir:PATH`, a folder in the Hugging Face format with a CLIP or a SigLIP;
            `OWNER/NAME`, a hub id such as `openai/clip-vit-large-patch14`, which is downloaded unless it is cached;
            `slowfast:FILE`, the published weights of a SlowFast.
        device: The device of torch.
        engine: "onnx" computes with onnxruntime on the CPU, "torch" with torch. "onnx-int8" is "onnx" with weights of
            eight bits: faster and less precise. "auto" is "onnx" where it can compute the model and the device is the
            CPU, and else "torch". Both compute the same vectors from the same files.
        like: The field `backbone` of the fingerprint of stored features. It says whether images were computed with
            weights of eight bits. Default: as `engine` says.

    Raises:
        BadModel: If the files are damaged, incomplete or do not fit together.
        BadPackage: If the engine is not installed.
        BadSetting: If the device or the engine cannot be used.
        UnknownName: If there is no such file, folder, hub id or kind of model.

    Examples:
        >>> from midreel.features import load_backbone
        >>> backbone = load_backbone("tiny-clip")
        >>> (text,) = backbone.encode_texts(["a red ball"])
        >>> text.sentence.shape == (backbone.fingerprint.joint_width,)
        True
    """
    if spec == OFFLINE:
        if engine == "torch" or device != "cpu":
            raise BadSetting(f"{OFFLINE} computes with onnxruntime on the CPU, not with torch. Leave out the engine.")
        from midreel.features.backbones import offline

        return offline.load()
    kind, _, path = spec.partition(":")
    if kind in FILES:
        file = Path(path).expanduser()
        if not file.is_file():
            raise UnknownName(
                f"no file {str(file)!r} (from {spec!r}), expected the weights of a {kind}. Copy it there."
            )
        expect_torch(engine, f"{kind} needs torch")
        return _load(FILES[kind], file, device, spec)
    folder = SHIPPED.get(spec) or (_local_folder(spec) if spec.startswith(LOCAL) else hub_folder(spec))
    model_type = read_json(folder / "config.json").get("model_type")
    if model_type not in BACKBONES:
        raise UnknownName.among(f"backbone for the model_type in {folder / 'config.json'}:", model_type, BACKBONES)
    obstacle = _obstacle(folder, device)
    if engine == "torch" or (engine == "auto" and obstacle):
        expect_torch("torch", obstacle or "the engine is torch")
        return _load(BACKBONES[model_type], folder, device, spec)
    if obstacle:
        raise BadSetting(f"the engine is {engine}, but {obstacle}. Use --engine torch.")
    from midreel.features.backbones.onnx import INT8_IMAGES, Onnx

    int8 = engine == "onnx-int8"
    return Onnx(folder, source=spec, int8_texts=int8, int8_images=like.endswith(INT8_IMAGES) if like else int8)


def _obstacle(folder: Path, device: str) -> str:
    """Return why onnxruntime cannot compute the model in a folder, or "" if it can."""
    if device != "cpu":
        return f"the device is {device}"
    from midreel.features.backbones import onnx

    return onnx.problem(folder)


def expect_torch(engine: str, reason: str) -> None:
    """Raise BadSetting if an engine other than torch is asked for, and BadPackage if torch is not installed.

    Args:
        engine: The engine that the user asks for.
        reason: Why torch is needed, for the message.
    """
    if engine not in ("auto", "torch"):
        raise BadSetting(f"the engine is {engine}, but {reason}. Use --engine torch.")
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise BadPackage(f"{reason}, and {missing[0]} is not installed. Run: pip install 'midreel[train]'")


def _load(module: str, path: Path, device: str, spec: str) -> Backbone:
    backbone: Backbone = import_module(module).load(path, device=device, source=spec)
    return backbone


def read_json(path: Path) -> dict[str, Any]:
    """Return the settings in a JSON file of a backbone. Raise BadModel if there are none."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadModel(
            f"{path} does not exist, expected a folder in the Hugging Face format. Download the whole folder."
        ) from error
    except ValueError as error:
        raise BadModel(f"{path} is not JSON ({error}). Download it again.") from error
    if not isinstance(settings, dict):
        raise BadModel(f"{path} contains a {type(settings).__name__}, expected an object. Download it again.")
    return settings


def weight_files(folder: Path) -> list[Path]:
    """Return the files with the weights in a folder: single before sharded, safetensors before pickles.

    transformers prefers them in the same order.
    """
    found = (sorted(folder.glob(pattern)) for pattern in _WEIGHTS)
    return next((files for files in found if files), [])


def hash_of_files(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or of the digests of several files, in hexadecimal digits."""
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
            f"no folder {str(folder)!r} (from {spec!r}), expected config.json, model.safetensors, tokenizer.json and "
            f"preprocessor_config.json there. Check the path."
        )
    return folder


def hub_folder(spec: str, *, download: bool = True) -> Path:
    """Return the folder of a backbone of the hub, from the cache or else by a download. Raise UnknownName if neither.

    Args:
        spec: The hub id.
        download: Whether to download what is not cached.
    """
    from huggingface_hub import snapshot_download

    if Path(spec).is_dir():
        raise UnknownName(f"{spec!r} is a folder, expected a hub id. Write {LOCAL}{spec}.")
    if "/" not in spec or ":" in spec:  # not a hub id: do not try to download it
        known = [OFFLINE, *SHIPPED, f"{LOCAL}PATH", *(f"{kind}:FILE" for kind in FILES), "OWNER/NAME of the hub"]
        raise UnknownName.among("backbone", spec, known)
    reason = "it has no weights"
    for cached in (True, False) if download else (True,):
        for weights in _WEIGHTS:
            try:
                wanted = [*_SMALL_FILES, weights]
                folder = Path(snapshot_download(spec, allow_patterns=wanted, local_files_only=cached))
            except Exception as error:
                # The hub client raises its own errors, errors of its HTTP library and errors of the system.
                reason = _innermost(error)
                break
            if weight_files(folder):
                return folder
    raise UnknownName(_no_hub(spec, reason))


def _innermost(error: BaseException) -> str:
    """Return the first line of the error that caused all others: the hub client wraps it in paragraphs of advice."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return (str(error).splitlines() or [type(error).__name__])[0]


def _no_hub(spec: str, reason: str) -> str:
    from huggingface_hub import constants

    offline = " Unset HF_HUB_OFFLINE to download it." if constants.HF_HUB_OFFLINE else ""
    return (
        f"the backbone {spec!r} is not on this disk and cannot be downloaded ({reason}).{offline} Without a network, "
        f"run `hf download {spec} --local-dir DIR` elsewhere, copy DIR here and pass {LOCAL}DIR."
    )
