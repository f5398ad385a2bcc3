"""Generate libraries of random vectors, in pieces, so that 100,000 videos need not fit into memory.

A video has four events, each near one of 500 topics. Its frames are a random walk around their event, and a clip is the
mean of four frames plus noise. A query is a frame plus noise. The noise of an easy query is as long as the frame, which
leads to a cosine of 0.71 with the frame. The noise of a hard query is three times as long (0.32), which is typical for
texts and videos.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from midreel.index import EmbeddedIndex
from midreel.index.embedded.rows import VideoRows
from midreel.types import Tokens

WIDTH = 384
NUM_FRAMES, NUM_CLIPS = 128, 32
NUM_TOPICS, NUM_EVENTS = 500, 4
PERSISTENCE = 0.9  # of the random walk: the correlation of a frame with the next
PIECE = 500  # videos
FILM = 10  # windows of a film
WEIGHTS = {"clip": 0.4, "frame": 0.6}
NOISE = {"easy": 1.0, "hard": 3.0}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive videos of a library, from number `first` on."""

    first: int
    clip: Float[Tensor, "B S D"]
    frame: Float[Tensor, "B T D"]

    def __len__(self) -> int:
        return len(self.frame)

    def videos(self) -> Iterator[tuple[str, dict[str, Tokens]]]:
        """Yield the name and the tokens of each video."""
        for number in range(len(self)):
            part = {"clip": self.clip[number][None], "frame": self.frame[number][None]}
            yield name(self.first + number), {branch: tokens_of(vectors) for branch, vectors in part.items()}


def name(number: int) -> str:
    """Return the name of a video."""
    return f"video-{number:06}"


def pieces(num_videos: int) -> Iterator[Piece]:
    """Yield a library of `num_videos` videos, piece by piece."""
    for first in range(0, num_videos, PIECE):
        yield piece(first, min(PIECE, num_videos - first))


def piece(first: int, number: int) -> Piece:
    """Return `number` videos from number `first` on."""
    topics = _unit(_noise(NUM_TOPICS, WIDTH, generator=_generator(0)))
    generator = _generator(1 + first)
    topic_of_event = torch.randint(NUM_TOPICS, (number, NUM_EVENTS), generator=generator)
    events = _unit(topics[topic_of_event] + _noise(number, NUM_EVENTS, WIDTH, generator=generator))
    walk = _noise(number, NUM_FRAMES, WIDTH, generator=generator)
    for frame in range(1, NUM_FRAMES):
        walk[:, frame].mul_((1 - PERSISTENCE**2) ** 0.5).add_(walk[:, frame - 1], alpha=PERSISTENCE)
    frames = _unit(walk.add_(events.repeat_interleave(NUM_FRAMES // NUM_EVENTS, 1)))
    means = frames.unflatten(1, (NUM_CLIPS, -1)).mean(2)
    clips = _unit(means + 0.3 * _noise(number, NUM_CLIPS, WIDTH, generator=generator))
    return Piece(first=first, clip=clips, frame=frames)


def shuffled(copy: int) -> Int[np.ndarray, " D/8"]:
    """Return the order of the blocks of eight dimensions in a copy of a library. Copy 0 has the original order."""
    blocks = WIDTH // 8
    return np.arange(blocks) if copy == 0 else np.random.default_rng(copy).permutation(blocks)


def films(source: EmbeddedIndex, copies: int) -> Iterator[VideoRows]:
    """Yield films of FILM windows: the clips of the videos of an index, then those of copies with shuffled dimensions.

    A shuffle keeps all cosines within a copy, and makes them random between copies. It takes seconds where generating
    and quantising as many vectors takes hours. The videos must have one window each.
    """
    source.video_ids()  # reads the manifest
    roster, files, state = source._storage.roster, source._storage.files[:2], source._storage.state
    counts = np.concatenate([roster.counts(slot)[:, :1] for slot in roster.slot_of_id.values()])
    ends = [np.arange(len(counts) + 1) * state.coarse, np.concatenate(([0], np.cumsum(counts[:, 0])))]
    for number in range(copies * (len(counts) // FILM)):
        copy, place = divmod(number, len(counts) // FILM)
        first, last = place * FILM, (place + 1) * FILM
        parts = []
        for file, end in zip(files, ends, strict=True):
            rows = file.rows[end[first] : end[last]].copy()
            blocks = rows["vector"].reshape(len(rows), -1, 8)[:, shuffled(copy)]
            rows["vector"] = blocks.reshape(len(rows), -1)
            if "bits" in (rows.dtype.names or ()):
                rows["bits"] = rows["bits"][:, shuffled(copy)]
            parts.append(rows)
        yield VideoRows(name(number), "clip", parts, counts[first:last], roster.scales[first:last].ravel())


def unshuffled(queries: Float[Tensor, "Q D"], copy: int) -> Float[Tensor, "Q D"]:
    """Return queries whose products with the original vectors are those of `queries` with the vectors of a copy."""
    blocks = np.argsort(shuffled(copy))
    return queries[:, (blocks[:, None] * 8 + np.arange(8)).ravel()]


def queries(kind: str, number: int, num_videos: int) -> Float[Tensor, "Q D"]:
    """Return queries for random frames of the first videos. Both branches use the same vectors.

    Args:
        kind: "easy" or "hard".
        number: The number of queries.
        num_videos: The size of the library.
    """
    generator = _generator(2**40 + list(NOISE).index(kind))
    videos = piece(0, min(PIECE, num_videos)).frame
    chosen = torch.randint(len(videos), (number,), generator=generator)
    frames = torch.randint(NUM_FRAMES, (number,), generator=generator)
    return _unit(videos[chosen, frames] + NOISE[kind] * _noise(number, WIDTH, generator=generator))


def tokens_of(vectors: Float[Tensor, "B S D"]) -> Tokens:
    """Return tokens with equal spans and without padding."""
    edges = torch.linspace(0, 1, vectors.shape[1] + 1)
    spans = torch.stack((edges[:-1], edges[1:]), 1).expand(len(vectors), -1, -1)
    return Tokens(vectors=vectors, mask=torch.ones(vectors.shape[:2], dtype=torch.bool), spans=spans)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _noise(*shape: int, generator: torch.Generator) -> Tensor:
    """Return random vectors of a length of about one."""
    return torch.randn(*shape, generator=generator).mul_(shape[-1] ** -0.5)


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)
