"""The model of a library: it encodes videos and queries into numpy arrays.

A model without training needs numpy only, and a trained one onnxruntime, if its ONNX form is beside it. This is the
only module of `library` that imports torch, and only when it loads a model that has no such form.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from midreel.errors import BadLibrary, BadModel, BadPackage, BadSetting, MidreelError
from midreel.features.backbones.base import Engine, Fingerprint, expect_torch
from midreel.io.files import write_durably, write_errors
from midreel.library import adaptation
from midreel.library.adaptation import Adaptation, AdaptedEncoder
from midreel.library.layout import CARD, Card, Generation
from midreel.library.place import Place
from midreel.library.scan import absolute
from midreel.library.windows import Windowing
from midreel.methods import model_files, onnx_encoder
from midreel.methods.model_files import FACTS, FORM, MODEL_FILES, QUERY_ENCODER, UNTRAINED, model_digest, model_folder
from midreel.methods.untrained import ENCODERS as UNTRAINED_METHODS
from midreel.methods.untrained import untrained
from midreel.ops.edges import EdgeCalibration
from midreel.types import Similarity, TextFeatures, Tokens

DEFAULT_MODEL = "zero-shot"
_SHA256 = "sha256:"
_BATCH = 16  # windows per batch, so that a film needs little more memory than a clip


@runtime_checkable
class Encoder(Protocol):
    """The interface of a model.

    Attributes:
        width: The width of a token.
        num_frames: The number of frames that a video is resampled to.
        branch_weights: The weight of each branch in the score.
        curve_weights: The weight of each branch in the curve over time.
        similarities: How each branch scores that does not score by its best cosine.
    """

    width: int
    num_frames: int
    branch_weights: dict[str, float]
    curve_weights: dict[str, float]
    similarities: dict[str, Similarity]

    def encode_videos(self, frames: Float[np.ndarray, "B T C"]) -> dict[str, Tokens]:
        """Return the tokens of each branch, for videos with the same number of frames."""

    def encode_queries(self, texts: Sequence[TextFeatures]) -> dict[str, Float[np.ndarray, "Q D"]]:
        """Return the vectors of each branch, a row for each query."""

    def files(self) -> dict[str, bytes]:
        """Return the files of the model by name. The same model gives the same bytes."""


def encode_windows(encoder: Encoder, frames: Float[np.ndarray, "T C"], windowing: Windowing) -> dict[str, Tokens]:
    """Return the tokens of one video: a row for each of its windows.

    Args:
        encoder: The model.
        frames: The features of the frames.
        windowing: How to divide a long video into windows.
    """
    windows = windowing.windows(len(frames))
    parts = [
        encoder.encode_videos(np.stack([frames[window.first : window.last] for window in some]))
        for some in (windows[start : start + _BATCH] for start in range(0, len(windows), _BATCH))
    ]
    return {branch: _joined([part[branch] for part in parts]) for branch in parts[0]}


def _joined(parts: Sequence[Tokens]) -> Tokens:
    return Tokens(
        vectors=np.concatenate([part.vectors for part in parts]),
        mask=np.concatenate([part.mask for part in parts]),
        spans=np.concatenate([part.spans for part in parts]),
    )


# ---------------------------------------------------------------- loading


def is_named(model: str) -> bool:
    """Return whether a model is the name of an untrained one, such as zero-shot, and not a folder."""
    return model in UNTRAINED


def trained_on(model: str) -> Fingerprint | None:
    """Return the fingerprint of the features that a model was trained on; None if it is untrained or has none."""
    if model in UNTRAINED:
        return None
    return model_files.trained_on(model_folder(model, f"or {' or '.join(UNTRAINED)}"))


def measured_edges(model: str) -> EdgeCalibration | None:
    """Return how wide the ranges of starts and ends are for a model; None if it was not measured."""
    return None if model in UNTRAINED else model_files.edge_calibration(model_folder(model))


def open_model(
    model: str, fingerprint: Fingerprint, device: str, *, library: Place, engine: Engine = "auto"
) -> Encoder:
    """Return the encoder of a model.

    Args:
        model: The name of an untrained model, or the folder of a trained one.
        fingerprint: The fingerprint of the library's features.
        device: The torch device.
        library: The library, for error messages.
        engine: What computes the model. See `load_backbone`.

    Raises:
        FingerprintMismatch: The model was trained on other features.
        BadModel: The folder contains no model.
        BadPackage: The model needs torch, which is not installed.
    """
    again = f"index into a new library: midreel index VIDEOS --library NEW --model {model}"
    is_free = device == "cpu" and engine != "torch"
    if model in UNTRAINED and is_free:
        return untrained({"width": fingerprint.joint_width, **UNTRAINED[model]})
    if model not in UNTRAINED and is_free:
        folder = model_folder(model, f"or one of {', '.join(UNTRAINED)}")
        if onnx_encoder.fits(folder):
            found = onnx_encoder.OnnxEncoder(folder)
            model_files.expect_features(folder, found.feature_widths, fingerprint, where=library, again=again)
            return found
    missing = f"{model} has no ONNX form (midreel export-model {model} NEW --onnx makes one)"
    expect_torch(engine, "the engine is torch" if engine == "torch" else missing)
    from midreel.methods import encoder

    return encoder.open_model(model, fingerprint, device, where=library, again=again)


def open_generation(generation: Generation, device: str, engine: Engine = "auto", *, adapted: bool = True) -> Encoder:
    """Return the encoder of a generation.

    Args:
        generation: The generation.
        device: The torch device.
        engine: What computes the model. See `load_backbone`.
        adapted: Whether to apply what was learned from feedback.

    Raises:
        BadLibrary: The files of the model are missing or changed.
        BadPackage: The model needs torch, which is not installed.
    """
    base = _open_model(generation, device, engine)
    return AdaptedEncoder(base, _open_adaptation(generation)) if adapted and generation.card.adaptation else base


def _open_model(generation: Generation, device: str, engine: Engine) -> Encoder:
    folder, card = generation.model, generation.card
    try:
        files = {name: (folder / name).read_bytes() for name in MODEL_FILES}
        found = model_digest(files)
        if found != card.digest and card.digest.startswith(_SHA256):  # older libraries have other digests
            raise BadModel(f"its files do not match the digest in {CARD}")
        made = _without_torch(folder, files) if device == "cpu" and engine != "torch" else None
        if made is not None:
            return made
        missing = f"the model in {folder} has no ONNX form (midreel models export LIBRARY makes it)"
        expect_torch(engine, "the engine is torch" if engine == "torch" else missing)
        from midreel.methods import encoder
        from midreel.methods.known import load_method

        method = load_method(folder)
    except (BadPackage, BadSetting):
        raise
    except (OSError, ValueError, AttributeError, MidreelError) as error:
        raise BadLibrary(
            f"the model in {folder} is damaged or belongs to another library ({error}). Restore it: midreel index "
            f"--retry --library LIBRARY; or choose another: midreel reindex LIBRARY --model MODEL"
        ) from error
    return encoder.MethodEncoder(method, device)


def _open_adaptation(generation: Generation) -> Adaptation:
    path = generation.model / adaptation.NAME
    try:
        content = path.read_bytes()
        if _sha256(content) != generation.card.adaptation:
            raise BadLibrary(f"it does not match the digest in {CARD}")
        return Adaptation.from_bytes(content)
    except (OSError, BadLibrary) as error:
        raise BadLibrary(
            f"{path} is damaged or missing ({error}). Learn it again: midreel adapt LIBRARY; or search without it: "
            f"midreel adapt LIBRARY --undo"
        ) from error


def _without_torch(folder: Path, files: Mapping[str, bytes]) -> Encoder | None:
    """Return the encoder of a model that needs no torch, or None if it is a network without an intact ONNX form.

    Args:
        folder: The folder of the model in a generation.
        files: The files of the model.
    """
    settings = json.loads(files["config.json"])
    if settings.get("method") in UNTRAINED_METHODS:
        return untrained(settings)
    if not all((folder / name).is_file() for name in FORM):
        return None
    try:
        found = onnx_encoder.OnnxEncoder(folder)
        found.graph(QUERY_ENCODER)
    except BadModel:
        return None
    return found if found.facts.get("model") == model_digest(files) else None


# ---------------------------------------------------------------- the ONNX form


def is_untrained(generation: Generation) -> bool:
    """Return whether the model of a generation has no network."""
    settings = json.loads((generation.model / "config.json").read_text(encoding="utf-8"))
    return settings.get("method") in UNTRAINED_METHODS


def needs_torch(generation: Generation) -> bool:
    """Return whether the model of a generation is a network without an ONNX form. Raise BadLibrary if it is damaged."""
    try:
        open_generation(generation, "cpu", "onnx")
    except (BadSetting, BadPackage):
        return True
    return False


def make_form(generation: Generation) -> dict[str, float]:
    """Write the ONNX form of a generation's model, and return the largest difference of each graph from torch.

    Searches of other processes see either the whole form or none: encoders.json is removed first and written last.

    Raises:
        BadLibrary: The model is damaged.
        BadModel: A graph differs too much from torch.
        BadPackage: torch or the packages of ONNX are not installed.
        Unwritable: The disk is full, or the folder is read-only.
    """
    expect_torch("torch", "torch makes the ONNX form of a model")
    open_generation(generation, "cpu", "torch")  # raises if the files are damaged
    from midreel.methods import onnx
    from midreel.methods.known import load_method

    with write_errors(generation.folder), TemporaryDirectory(dir=generation.folder, prefix="form-") as made:
        differences = onnx.write_encoders(load_method(generation.model), Path(made))
        (generation.model / FACTS).unlink(missing_ok=True)
        for name in FORM:  # encoders.json is the last
            write_durably(generation.model / name, (Path(made) / name).read_bytes())
    return differences


# ---------------------------------------------------------------- files


def card_of(encoder: Encoder, model: str, library_id: str = "", edges: EdgeCalibration | None = None) -> Card:
    """Return the card of a new generation.

    Args:
        encoder: The model.
        model: The name or folder that the model was loaded from.
        library_id: The id of the library.
        edges: How wide the ranges of starts and ends are, if it was measured for this model.
    """
    return Card(
        model=model if is_named(model) else str(absolute(Path(model))),
        digest=digest(encoder),
        width=encoder.width,
        branch_weights=encoder.branch_weights,
        curve_weights=encoder.curve_weights,
        windows=Windowing.of(encoder.num_frames),
        similarities=encoder.similarities,
        library=library_id,
        edges=edges,
        adaptation=_sha256(content) if (content := encoder.files().get(adaptation.NAME)) else "",
    )


def save(encoder: Encoder, folder: Path) -> None:
    """Write the files of a model into a folder, durably."""
    write_files(folder, encoder.files())


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a model into a folder, durably."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_durably(folder / name, content)


def is_saved(generation: Generation) -> bool:
    """Return whether the files of a generation's model exist, without reading them."""
    names = (*MODEL_FILES, adaptation.NAME) if generation.card.adaptation else MODEL_FILES
    return all((generation.model / name).is_file() for name in names)


def digest(encoder: Encoder) -> str:
    """Return the SHA-256 of the files of a model. It depends neither on its folder nor on an adaptation."""
    return model_digest(encoder.files())


def _sha256(content: bytes) -> str:
    return f"{_SHA256}{hashlib.sha256(content).hexdigest()}"
