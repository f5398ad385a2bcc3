"""Small random videos for the tests of indexes."""

from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from midreel.index import EmbeddedIndex, Match
from midreel.types import Tokens

WIDTH = 24
WEIGHTS = {"clip": 0.4, "frame": 0.6}
FILES = ["manifest.sqlite", "000001.coarse", "000001.tokens0", "000001.tokens1"]


def video(seed: int, *, windows: int = 1, clips: int = 6, frames: int = 18, width: int = WIDTH) -> dict[str, Tokens]:
    """Return the tokens of a random video. Some are masked if it has more than two."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(windows, frames, width, generator=generator)
    vectors = {"frame": steps.cumsum(1)}
    edges = torch.linspace(0, frames, clips + 1).long()
    means = [vectors["frame"][:, start : max(end, start + 1)].mean(1) for start, end in pairwise(edges.tolist())]
    vectors["clip"] = torch.stack(means, 1)
    return {branch: tokens(vectors[branch], generator) for branch in WEIGHTS}


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


def found(folder: Path) -> list[list[Match]]:
    """Return the results of a search in an index."""
    with EmbeddedIndex.open(folder, read_only=True) as index:
        return index.search(queries(0), top=12)
