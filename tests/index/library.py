"""Small random videos for the tests of indexes."""

import os
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from qdrant_client import QdrantClient
from torch import Tensor

from midreel.index import EmbeddedIndex, Match
from midreel.types import Similarities, Similarity, Tokens

WIDTH = 24
WEIGHTS = {"clip": 0.4, "frame": 0.6}
ATTENTION = Similarity(kind="attention", guide="clip", keys="key")
DOT = Similarity(kind="dot")
# Every similarity, alone and together, and with the roles of the branches exchanged.
FORMS: dict[str, tuple[dict[str, float], Similarities]] = {
    "attention": ({"clip": 0.7, "frame": 0.3, "key": 0.0}, {"frame": ATTENTION}),
    "dot": ({"scene": 1.0}, {"scene": DOT}),
    "all": ({"clip": 0.3, "frame": 0.3, "key": 0.0, "scene": 0.1}, {"frame": ATTENTION, "scene": DOT}),
    "attention without weight": (
        {"scene": 0.2, "key": 0.0, "clip": 0.5, "frame": 0.0},
        {"scene": DOT, "frame": ATTENTION},
    ),
    "dot guide": ({"clip": 0.5, "frame": 0.5, "key": 0.0}, {"frame": ATTENTION, "clip": DOT}),
    "guide without weight": ({"clip": 0.0, "frame": 1.0, "key": 0.0}, {"frame": ATTENTION}),
}
FILES = ["manifest.sqlite", "000001.coarse", "000001.tokens0", "000001.tokens1"]


def qdrant_client(folder: Path | None = None) -> QdrantClient:
    """Return a client of the server that MIDREEL_QDRANT_URL names, or of the local mode.

    Args:
        folder: A folder for the local mode. Default: memory.
    """
    if url := os.environ.get("MIDREEL_QDRANT_URL"):
        return QdrantClient(url=url, prefer_grpc=True, api_key=os.environ.get("QDRANT_API_KEY"))
    return QdrantClient(path=str(folder)) if folder else QdrantClient(":memory:")


def video(seed: int, *, windows: int = 1, clips: int = 6, frames: int = 18, width: int = WIDTH) -> dict[str, Tokens]:
    """Return the tokens of a random video. Some are masked if it has more than two."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(windows, frames, width, generator=generator)
    vectors = {"frame": steps.cumsum(1)}
    edges = torch.linspace(0, frames, clips + 1).long()
    means = [vectors["frame"][:, start : max(end, start + 1)].mean(1) for start, end in pairwise(edges.tolist())]
    vectors["clip"] = torch.stack(means, 1)
    return {branch: tokens(vectors[branch], generator) for branch in WEIGHTS}


def video_of(branches: Collection[str], seed: int, *, windows: int = 1) -> dict[str, Tokens]:
    """Return the tokens of a random video whose lengths differ: clips, frames with keys, and scenes."""
    made, generator = video(seed, windows=windows), torch.Generator().manual_seed(seed)
    frames = made["frame"]
    lengths = 4 * torch.rand(windows, frames.vectors.shape[1], 1, generator=generator)
    turned = frames.vectors @ torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(9)) / WIDTH
    made["key"] = Tokens(vectors=turned, mask=frames.mask, spans=frames.spans)
    made["scene"] = tokens(F.normalize(frames.vectors, dim=-1) * lengths, generator)
    return {branch: made[branch] for branch in branches}


def tokens(vectors: Tensor, generator: torch.Generator | None = None) -> Tokens:
    """Return vectors as tokens, with a random mask if a generator is given."""
    mask = torch.ones(vectors.shape[:2], dtype=torch.bool)
    if generator is not None and vectors.shape[1] > 2:
        mask = torch.rand(mask.shape, generator=generator) > 0.2
        mask[:, 0] = True
    edges = torch.linspace(0, 1, vectors.shape[1] + 1)
    spans = torch.stack((edges[:-1], edges[1:]), 1).expand(len(vectors), -1, -1)
    return Tokens(vectors=vectors, mask=mask, spans=spans)


def queries(seed: int, number: int = 3, width: int = WIDTH) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {branch: F.normalize(torch.randn(number, width, generator=generator), dim=-1) for branch in WEIGHTS}


def queries_of(branches: Collection[str], seed: int, number: int = 3) -> dict[str, Tensor]:
    """Return random queries of different lengths. Branches of keys have none."""
    generator = torch.Generator().manual_seed(seed)
    lengths = 0.5 + 2 * torch.rand(number, 1, generator=generator)
    return {branch: lengths * torch.randn(number, WIDTH, generator=generator) for branch in branches if branch != "key"}


def found(folder: Path) -> list[list[Match]]:
    """Return the results of a search in an index."""
    with EmbeddedIndex.open(folder, read_only=True) as index:
        return index.search(queries(0), top=12)
