"""A slow twin of the released AMDNet, without any code of midreel.

Parameters have the names of released checkpoints. The code processes one video, one query and one attention head at a
time, in evaluation mode.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

NUM_CLIPS = 32
NUM_SPANS = 4


class Positions(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(128, width)
        self.LayerNorm = nn.LayerNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.LayerNorm(rows + self.position_embeddings(torch.arange(len(rows))))


class Projection(nn.Module):
    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.LayerNorm = nn.LayerNorm(input_width)
        self.net = nn.Sequential(nn.Dropout(0.2), nn.Linear(input_width, width))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(self.net(self.LayerNorm(rows)))


class Heads(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, rows: Tensor, masks: Tensor | None) -> Tensor:
        query, key, value = self.query(rows), self.key(rows), self.value(rows)
        size = query.shape[1] // NUM_SPANS
        outputs = []
        for head in range(NUM_SPANS):
            part = slice(head * size, (head + 1) * size)
            logits = query[:, part] @ key[:, part].T / math.sqrt(size)
            if masks is not None:
                logits = logits * masks[head].expand(len(rows), -1)
            outputs.append(torch.softmax(logits, dim=-1) @ value[:, part])
        return torch.cat(outputs, dim=1)


class Output(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, width), nn.LayerNorm(width)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.self, self.output = Heads(width), Output(width)

    def forward(self, rows: Tensor, masks: Tensor | None = None) -> Tensor:
        return self.output.LayerNorm(rows + self.output.dense(self.self(rows, masks)))


class Whole(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layernorm, self.fc_out1 = nn.LayerNorm(width), nn.Linear(width, width)


class Encoded(NamedTuple):
    tokens: Tensor
    whole: Tensor
    masks: Tensor
    moments: Tensor


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn0, self.attn1 = Attention(width), Attention(width)
        self.clip2video, self.fc_gauss = Whole(width), nn.Linear(width, 2 * NUM_SPANS)

    def forward(self, rows: Tensor) -> Encoded:
        whole = self.clip2video.fc_out1(self.clip2video.layernorm(sum(rows) / len(rows)))
        numbers = torch.sigmoid(self.fc_gauss(whole)).tolist()
        masks = torch.stack([gaussian(numbers[2 * k], numbers[2 * k + 1]) for k in range(NUM_SPANS)]).to(rows)
        moments = torch.stack([sum(masks[k, j] * rows[j] for j in range(len(rows))) for k in range(NUM_SPANS)])
        first = self.attn0(rows)
        return Encoded((first + self.attn1(first, masks)) / 2, whole, masks, moments)


def gaussian(centre: float, width: float) -> Tensor:
    sigma = max(width, 0.01) / 9
    values = [math.exp(-((j / (NUM_CLIPS - 1) - centre) ** 2) / (2 * sigma**2)) for j in range(NUM_CLIPS)]
    return torch.tensor([value / max(values) for value in values], dtype=torch.float64)


class ReleasedAMDNet(nn.Module):
    """The model, for one video or one query at a time."""

    def __init__(self, video_width: int, text_width: int, width: int) -> None:
        super().__init__()
        self.clip_pos_embed = Positions(width)
        self.query_input_proj = Projection(text_width, width)
        self.clip_input_proj = Projection(video_width, width)
        self.clip_encoder = Encoder(width)

    def encode_video(self, frames: Tensor) -> Encoded:
        rows = average(frames)
        encoded: Encoded = self.clip_encoder(self.clip_pos_embed(self.clip_input_proj(rows)))
        return encoded

    def encode_query(self, sentence: Tensor) -> Tensor:
        vector: Tensor = self.query_input_proj(sentence)
        return vector


def average(frames: Tensor) -> Tensor:
    total = len(frames)
    bounds = [min(round(k / NUM_CLIPS * total), total - 1) for k in range(NUM_CLIPS + 1)]
    rows = []
    for low, high in pairwise(bounds):
        rows.append(frames[low:high].mean(0) if low < high else frames[low])
    return torch.stack(rows)


# ---------------------------------------------------------------- score and losses


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / (a.norm() * b.norm())


def score(query: Tensor, video: Encoded) -> Tensor:
    return torch.stack([cosine(query, token) for token in video.tokens]).max()


def infonce(queries: list[Tensor], videos: list[Encoded], video_of_query: list[int]) -> Tensor:
    table = torch.stack([torch.stack([(video.tokens @ query).max() for video in videos]) for query in queries])
    by_query = [table[i].exp().sum().log() - table[i, y] for i, y in enumerate(video_of_query)]
    by_video = []
    for j in range(len(videos)):
        own = [i for i, y in enumerate(video_of_query) if y == j]
        by_video.append(table[:, j].exp().sum().log() - table[own, j].exp().sum().log())
    return sum(by_query) / len(by_query) + sum(by_video) / len(by_video)


def diversity(videos: list[Encoded]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for video in videos:
        shares = [mask / sum(mask) for mask in video.masks]
        for i in range(NUM_SPANS):
            for j in range(NUM_SPANS):
                total = total + ((0.15 if i == j else 0.0) - sum(shares[i] * shares[j])) ** 2
    return total / len(videos)


def relevance(queries: list[Tensor], videos: list[Encoded], video_of_query: list[int]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for query, y in zip(queries, video_of_query, strict=True):
        best = max(float(cosine(query, moment)) for moment in videos[y].moments)
        total = total + max(0.0, 0.02 + float(cosine(query, videos[y].whole)) - best)
    return total / len(queries)


# ---------------------------------------------------------------- names

_PROJECTION = {"LayerNorm": "norm", "net.1": "linear"}
_POSITION = {"position_embeddings": "table", "LayerNorm": "norm"}
_ATTENTION = {
    **{f"self.{part}": part for part in ("query", "key", "value")},
    "output.dense": "output",
    "output.LayerNorm": "norm",
}
_RENAMED = {
    **{f"query_input_proj.{old}": f"query.{new}" for old, new in _PROJECTION.items()},
    **{f"clip_input_proj.{old}": f"clip.project.{new}" for old, new in _PROJECTION.items()},
    **{f"clip_pos_embed.{old}": f"clip.position.{new}" for old, new in _POSITION.items()},
    **{f"clip_encoder.attn{n}.{old}": f"clip.attention{n}.{new}" for n in (0, 1) for old, new in _ATTENTION.items()},
    "clip_encoder.clip2video.layernorm": "clip.video_norm",
    "clip_encoder.clip2video.fc_out1": "clip.video_output",
    "clip_encoder.fc_gauss": "clip.spans",
}


def renamed(released: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a checkpoint under the names of midreel."""
    parts = {name: name.rpartition(".") for name in released}
    return {f"{_RENAMED[module]}.{kind}": released[name] for name, (module, _, kind) in parts.items()}
