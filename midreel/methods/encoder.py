"""A method on numpy arrays: how a library uses it to index and to search."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import save as as_bytes

from midreel.features.backbones.base import Fingerprint
from midreel.methods.base import Method, join_texts
from midreel.methods.loading import load_model
from midreel.methods.model_files import MODEL_FILES
from midreel.ops.devices import on_device
from midreel.types import Encoded, TextFeatures, Tokens


class MethodEncoder:
    """Encodes videos and queries with a method, on one device, without gradients.

    It implements `midreel.library.encoder.Encoder`.

    Args:
        method: The method. It is moved to the device and set to evaluation mode.
        device: The name of a torch device.
    """

    def __init__(self, method: Method, device: str = "cpu") -> None:
        self._method, self._device = on_device(method, device).eval(), device
        self.width = method.token_width
        self.num_frames = method.num_frames
        self.branch_weights, self.curve_weights = method.branch_weights, method.curve_weights
        self.similarities = method.similarities

    @torch.no_grad()
    def encode_videos(self, frames: Float[np.ndarray, "B T C"]) -> dict[str, Tokens]:
        """Return each branch's tokens of videos that have the same number of frames."""
        batch = self._method.prepare_videos(torch.from_numpy(np.asarray(frames, np.float32)))
        return _arrays(self._method.encode_videos(batch.to(self._device)))

    @torch.no_grad()
    def encode_queries(self, texts: Sequence[TextFeatures]) -> dict[str, Float[np.ndarray, "Q D"]]:
        """Return each branch's vectors of the queries. Words beyond the method's limit are ignored."""
        batch = join_texts(texts)
        limit = getattr(self._method.config, "max_words", batch.words.shape[1])
        if batch.words.shape[1] > limit:
            batch = batch.first(limit)
        encoded = self._method.encode_queries(batch.to(self._device))
        return {branch: vectors.float().cpu().numpy() for branch, vectors in encoded.items()}

    def files(self) -> dict[str, bytes]:
        """Return the files of the model by name. The same model gives the same bytes."""
        return files_of(self._method)


def files_of(method: Method) -> dict[str, bytes]:
    """Return the files of a method by name. The same method gives the same bytes."""
    config = json.dumps(asdict(method.config), indent=2, sort_keys=True).encode()
    weights = {name: weight.contiguous().cpu() for name, weight in method.state_dict().items()}
    return dict(zip(MODEL_FILES, (config, as_bytes(weights)), strict=True))


def open_model(model: str, fingerprint: Fingerprint, device: str, *, where: Path | str, again: str) -> MethodEncoder:
    """Return the encoder of a model. See `load_model` for the errors.

    Args:
        model: the folder of a run or of a model, or the name of an untrained model.
        fingerprint: the fingerprint of the features. The model must be trained on such features.
        device: the torch device.
        where: the place of the features, for messages.
        again: how to extract other features, for messages.
    """
    return MethodEncoder(load_model(model, fingerprint, where=where, again=again), device)


def _arrays(encoded: Encoded) -> dict[str, Tokens]:
    return {
        branch: Tokens(
            vectors=tokens.vectors.float().cpu().numpy(),
            mask=tokens.mask.cpu().numpy(),
            spans=tokens.spans.float().cpu().numpy(),
        )
        for branch, tokens in encoded.items()
    }
