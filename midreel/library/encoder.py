"""The model of a library: it encodes videos and queries into numpy arrays.

This is the only module of `library` that imports torch, and only when it loads a model.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from midreel.errors import BadLibrary, BadModel, MidreelError
from midreel.features.backbones.base import Fingerprint
from midreel.io.files import write_durably
from midreel.library import adaptation
from midreel.library.adaptation import Adaptation, AdaptedEncoder
from midreel.library.layout import CARD, Card, Generation
from midreel.library.scan import absolute
from midreel.library.windows import Windowing
from midreel.ops.edges import EdgeCalibration
from midreel.types import Similarity, TextFeatures, Tokens

DEFAULT_MODEL = "zero-shot"
_FILES = ("config.json", "model.safetensors")
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
    from midreel.methods.loading import UNTRAINED

    return model in UNTRAINED


def trained_on(model: str) -> Fingerprint | None:
    """Return the fingerprint of the features that a model was trained on; None if it is untrained or has none."""
    from midreel.methods.loading import UNTRAINED, model_folder
    from midreel.methods.loading import trained_on as read_fingerprint

    return None if model in UNTRAINED else read_fingerprint(model_folder(model, f"or {' or '.join(UNTRAINED)}"))


def measured_edges(model: str) -> EdgeCalibration | None:
    """Return how wide the ranges of starts and ends are for a model; None if it was not measured."""
    from midreel.methods.loading import UNTRAINED, edge_calibration, model_folder

    return None if model in UNTRAINED else edge_calibration(model_folder(model))


def open_model(model: str, fingerprint: Fingerprint, device: str, *, library: Path) -> Encoder:
    """Return the encoder of a model.

    Args:
        model: The name of an untrained model, or the folder of a trained one.
        fingerprint: The fingerprint of the library's features.
        device: The torch device.
        library: The folder of the library, for error messages.

    Raises:
        FingerprintMismatch: The model was trained on other features.
        BadModel: The folder contains no model.
    """
    from midreel.methods import encoder

    again = f"index into a new library: midreel index VIDEOS --library NEW --model {model}"
    return encoder.open_model(model, fingerprint, device, where=library, again=again)


def open_generation(generation: Generation, device: str, *, adapted: bool = True) -> Encoder:
    """Return the encoder of a generation.

    Args:
        generation: The generation.
        device: The torch device.
        adapted: Whether to apply what was learned from feedback.

    Raises:
        BadLibrary: The files of the model are missing or changed.
    """
    from midreel.methods import encoder, load_method

    folder, card = generation.model, generation.card
    try:
        found = _digest({name: (folder / name).read_bytes() for name in _FILES})
        if found != card.digest and card.digest.startswith(_SHA256):  # older libraries have other digests
            raise BadModel(f"its files do not match the digest in {CARD}")
        method = load_method(folder)
    except (OSError, ValueError, AttributeError, MidreelError) as error:
        raise BadLibrary(
            f"the model in {folder} is damaged or belongs to another library ({error}). Restore it: midreel index "
            f"--retry --library LIBRARY; or choose another: midreel reindex LIBRARY --model MODEL"
        ) from error
    base = encoder.MethodEncoder(method, device)
    return AdaptedEncoder(base, _open_adaptation(generation)) if adapted and card.adaptation else base


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
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in encoder.files().items():
        write_durably(folder / name, content)


def is_saved(generation: Generation) -> bool:
    """Return whether the files of a generation's model exist, without reading them."""
    names = (*_FILES, adaptation.NAME) if generation.card.adaptation else _FILES
    return all((generation.model / name).is_file() for name in names)


def digest(encoder: Encoder) -> str:
    """Return the SHA-256 of the files of a model. It depends neither on its folder nor on an adaptation."""
    return _digest(encoder.files())


def _digest(files: Mapping[str, bytes]) -> str:
    found = hashlib.sha256()
    for name in _FILES:
        found.update(f"{name} {len(files[name])} ".encode())
        found.update(files[name])
    return f"{_SHA256}{found.hexdigest()}"


def _sha256(content: bytes) -> str:
    return f"{_SHA256}{hashlib.sha256(content).hexdigest()}"
