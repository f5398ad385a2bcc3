"""What a method makes of kept features: the tokens of a video's windows, in an index."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as as_bytes

from midreel.errors import BadIndex, BadLibrary, BadModel, MidreelError
from midreel.index.embedded import EmbeddedIndex
from midreel.io.files import write_durably
from midreel.library.layout import CARD, Card, Generation
from midreel.library.windows import Windowing
from midreel.methods import load_method
from midreel.methods.base import Method
from midreel.ops.devices import on_device
from midreel.types import Tokens, VideoFeatures

_AT_ONCE = 16  # windows, so that a film needs little more memory than a clip


def encode(method: Method, features: VideoFeatures, windowing: Windowing) -> dict[str, Tokens]:
    """The tokens of each window of one video, as the method makes them of a video."""
    windows = windowing.windows(len(features.frames))
    device = next((parameter.device for parameter in method.parameters()), torch.device("cpu"))
    parts = []
    with torch.no_grad():
        for start in range(0, len(windows), _AT_ONCE):
            cut = [features.frames[window.first : window.last] for window in windows[start : start + _AT_ONCE]]
            batch = method.prepare_videos(torch.stack(cut).float())
            parts.append(method.encode_videos(batch.to(str(device))))
    return {branch: _join([part[branch] for part in parts]) for branch in parts[0]}


def _join(parts: list[Tokens]) -> Tokens:
    return Tokens(
        vectors=np.concatenate([part.vectors.float().cpu().numpy() for part in parts]),
        mask=np.concatenate([part.mask.cpu().numpy() for part in parts]),
        spans=np.concatenate([part.spans.float().cpu().numpy() for part in parts]),
    )


def save(method: Method, folder: Path) -> None:
    """Writes what `load_method` reads back."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _files(method).items():
        write_durably(folder / name, content)


def load(generation: Generation, device: str) -> Method:
    """The model of a generation. Raises BadLibrary if its files are not those that were saved."""
    folder, card = generation.model, generation.card
    try:
        files = {name: (folder / name).read_bytes() for name in _NAMES}
        if _digest(files) != card.digest and card.digest.startswith(_SHA256):  # older libraries have other digests
            raise BadModel(f"its files do not have the digest that {CARD} names")
        method = load_method(folder)
    except (OSError, ValueError, AttributeError, MidreelError) as error:
        raise BadLibrary(
            f"the model in {folder} is damaged or of another library ({error}). Restore it: midreel index --retry "
            f"--library LIBRARY; or choose another: midreel reindex LIBRARY --model MODEL"
        ) from error
    return on_device(method, device).eval()


def has_model(generation: Generation) -> bool:
    """Whether the files of its model are there, as far as a stat tells."""
    return all((generation.model / name).is_file() for name in _NAMES)


def card_of(method: Method, model: str, library: str = "") -> Card:
    return Card(
        model=model,
        digest=digest(method),
        width=method.config.width,
        branch_weights=method.branch_weights,
        curve_weights=method.curve_weights,
        windows=Windowing.of(method.num_frames),
        library=library,
    )


def digest(method: Method) -> str:
    """Tells a model from any other, wherever it was loaded from: the SHA-256 of its files."""
    return _digest(_files(method))


_NAMES = ("config.json", "model.safetensors")
_SHA256 = "sha256:"


def _files(method: Method) -> dict[str, bytes]:
    """The files of a model. The same model gives the same bytes."""
    config = json.dumps(asdict(method.config), indent=2, sort_keys=True).encode()
    weights = {name: weight.contiguous().cpu() for name, weight in method.state_dict().items()}
    # As bytes: a file that safetensors writes itself can be read by its owner only.
    return dict(zip(_NAMES, (config, as_bytes(weights)), strict=True))


def _digest(files: Mapping[str, bytes]) -> str:
    found = hashlib.sha256()
    for name in _NAMES:
        found.update(f"{name} {len(files[name])} ".encode())
        found.update(files[name])
    return f"{_SHA256}{found.hexdigest()}"


def ensure_index(generation: Generation) -> None:
    """An empty one, unless there is one that can be opened."""
    try:
        open_index(generation, read_only=False).close()
    except BadIndex:
        shutil.rmtree(generation.index, ignore_errors=True)
        card = generation.card
        EmbeddedIndex.create(
            generation.index, branch_weights=card.branch_weights, width=card.width, owner=generation.owner
        ).close()


def open_index(generation: Generation, *, read_only: bool) -> EmbeddedIndex:
    """The index of a generation. Raises BadIndex if it was copied from another library or generation."""
    index = EmbeddedIndex.open(generation.index, read_only=read_only)
    if index.owner and generation.owner and index.owner != generation.owner:
        index.close()
        raise BadIndex(
            f"{generation.index} belongs to {index.owner}, expected {generation.owner}. Copy the whole library again, "
            f"or rebuild the index from the features: midreel reindex LIBRARY"
        )
    return index


def num_videos(generation: Generation) -> int:
    """That it holds tokens of; none, if it cannot be opened."""
    try:
        with open_index(generation, read_only=True) as index:
            return len(index)
    except BadIndex:
        return 0
