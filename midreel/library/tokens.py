"""What a method makes of kept features: the tokens of a video's windows, in an index."""

import hashlib
import json
import shutil
import zlib
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save as as_bytes

from midreel.errors import BadIndex, BadLibrary, BadModelFolder, BadSetting, UnknownName
from midreel.files import write_durably
from midreel.index.embedded import EmbeddedIndex
from midreel.library.layout import Card, Generation
from midreel.library.windows import Windowing
from midreel.methods import load_method
from midreel.methods.base import Method
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
        vectors=torch.cat([part.vectors.cpu() for part in parts]),
        mask=torch.cat([part.mask.cpu() for part in parts]),
        spans=torch.cat([part.spans.cpu() for part in parts]),
    )


def save(method: Method, folder: Path) -> None:
    """What `load_method` reads back, and checksums of it: the same method gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.contiguous().cpu() for name, weight in method.state_dict().items()}
    files = {
        "config.json": json.dumps(asdict(method.config), indent=2, sort_keys=True).encode(),
        "model.safetensors": as_bytes(weights),  # a file that safetensors writes can be read by nobody else
    }
    for name, content in files.items():
        write_durably(folder / name, content)
    write_durably(folder / _SUMS, json.dumps({name: zlib.crc32(content) for name, content in files.items()}))


def load(generation: Generation, device: str) -> Method:
    """The method of a generation, as it was saved: a weight that has changed would still be a weight."""
    folder = generation.model
    try:
        if (folder / _SUMS).exists():
            for name, checksum in json.loads((folder / _SUMS).read_bytes()).items():
                if zlib.crc32((folder / name).read_bytes()) != checksum:
                    raise BadModelFolder(f"{folder / name} does not match its checksum")
        method = load_method(folder)
    except (OSError, ValueError, AttributeError, BadModelFolder, UnknownName) as error:
        raise BadLibrary(
            f"the model in {folder} is damaged ({error}), expected what midreel index copied there; copy the library "
            f"again from where it is whole, or make its tokens anew: midreel reindex LIBRARY --model "
            f"{generation.card.model}"
        ) from error
    return on_device(method, device)


def card_of(method: Method, model: str) -> Card:
    return Card(
        model=model,
        digest=digest(method),
        width=method.config.width,
        branch_weights=dict(method.branch_weights),
        windows=Windowing.of(method.num_frames),
    )


def digest(method: Method) -> str:
    """Tells a method from any other, wherever it was loaded from."""
    found = hashlib.sha256(json.dumps(asdict(method.config), sort_keys=True).encode())
    for name, weight in sorted(method.state_dict().items()):
        found.update(f"{name} {tuple(weight.shape)}".encode())
        found.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def ensure_index(generation: Generation) -> None:
    """An empty one, unless there is one that can be opened."""
    try:
        open_index(generation, read_only=False).close()
    except BadIndex:
        shutil.rmtree(generation.index, ignore_errors=True)
        card = generation.card
        EmbeddedIndex.create(generation.index, branch_weights=card.branch_weights, width=card.width).close()


def open_index(generation: Generation, *, read_only: bool) -> EmbeddedIndex:
    return EmbeddedIndex.open(generation.index, read_only=read_only)


def num_videos(generation: Generation) -> int:
    """That it holds tokens of; none, if it cannot be opened."""
    try:
        with open_index(generation, read_only=True) as index:
            return len(index)
    except BadIndex:
        return 0


def on_device(method: Method, device: str) -> Method:
    try:
        return method.to(device).eval()
    except (RuntimeError, AssertionError) as error:
        raise BadSetting(f"the device {device!r} cannot be used ({error}); choose cpu, or one that is here") from error


_SUMS = "checksums.json"
