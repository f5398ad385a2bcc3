"""A slow twin of the released models of DL-DKD (ICCV) and DL-DKD++, without any code of midreel.

Parameters have the names of released checkpoints. The code processes one video, one query, one attention head and one
pair at a time, in evaluation mode. Triplets take the hardest negative, which is a release with a pool of one.
"""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Prefixes of the names in both releases, and the names that differ.
PREFIXES = {
    "iccv": {"inheritance": "B_", "exploration": "A_"},
    "plus_plus": {"inheritance": "", "exploration": "exp_"},
}
PREFIXES["hard_labels"] = PREFIXES["plus_plus"]
NAMES = {
    "iccv": {"video": "frame", "output": "mapping_linear"},
    "plus_plus": {"video": "visual", "output": "out_mapping_linear"},
}
NAMES["hard_labels"] = NAMES["plus_plus"]

# From the names of midreel to those of a release, inside a branch.
PARTS = {
    "project.norm": "{}_input_proj.LayerNorm",
    "project.linear": "{}_input_proj.net.1",
    "position.table": "{}_pos_embed.position_embeddings",
    "position.norm": "{}_pos_embed.LayerNorm",
    "block.query": "{}_encoder.self.query",
    "block.key": "{}_encoder.self.key",
    "block.value": "{}_encoder.self.value",
    "block.output": "{}_encoder.output.dense",
    "block.norm": "{}_encoder.output.LayerNorm",
    "pool.score": "modular_vector_mapping",
}


def released_name(name: str, objective: str) -> str:
    """The name in a released checkpoint of a weight of midreel."""
    module, _, kind = name.rpartition(".")
    where, _, part = module.partition(".")
    branch, _, role = where.partition("_")
    names = NAMES[objective]
    if role == "output":
        return f"{PREFIXES[objective][branch]}{names['output']}.{kind}"
    stream = "query" if role == "query" else names["video"]
    return f"{PREFIXES[objective][branch]}{PARTS[part].format(stream)}.{kind}"


# ---------------------------------------------------------------- layers


class Positions(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(length, width)
        self.LayerNorm = nn.LayerNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([self.LayerNorm(row + self.position_embeddings.weight[i]) for i, row in enumerate(rows)])


class Projection(nn.Module):
    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.LayerNorm = nn.LayerNorm(input_width)
        self.net = nn.Sequential(nn.Dropout(0.1), nn.Linear(input_width, width))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([torch.relu(self.net[1](self.LayerNorm(row))) for row in rows])


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        own, output = nn.Module(), nn.Module()
        for name in ("query", "key", "value"):
            own.add_module(name, nn.Linear(width, width))
        output.add_module("dense", nn.Linear(width, width))
        output.add_module("LayerNorm", nn.LayerNorm(width))
        self.add_module("self", own)
        self.add_module("output", output)
        self.num_heads = num_heads

    def forward(self, rows: Tensor) -> Tensor:
        own: Any = getattr(self, "self")  # noqa: B009
        output: Any = self.output
        query, key, value = own.query(rows), own.key(rows), own.value(rows)
        size = rows.shape[1] // self.num_heads
        heads = []
        for head in range(self.num_heads):
            part = slice(head * size, (head + 1) * size)
            weights = torch.softmax(query[:, part] @ key[:, part].T / math.sqrt(size), dim=1)
            heads.append(weights @ value[:, part])
        return output.LayerNorm(rows + output.dense(torch.cat(heads, dim=1)))


# ---------------------------------------------------------------- the model


class Released(nn.Module):
    """A release. `objective` is iccv, plus_plus, or hard_labels: DL-DKD++ with label_style "hard"."""

    def __init__(
        self, objective: str, video_width: int, text_width: int, width: int, num_heads: int, words: int, frames: int
    ) -> None:
        super().__init__()
        self.objective, self.words, self.frames = objective, words, frames
        video, output = NAMES[objective]["video"], NAMES[objective]["output"]
        for prefix in PREFIXES[objective].values():
            for stream, length, input_width in (("query", words, text_width), (video, frames, video_width)):
                self.add_module(f"{prefix}{stream}_pos_embed", Positions(length, width))
                self.add_module(f"{prefix}{stream}_input_proj", Projection(input_width, width))
                self.add_module(f"{prefix}{stream}_encoder", Attention(width, num_heads))
            self.add_module(f"{prefix}modular_vector_mapping", nn.Linear(width, 1, bias=False))
            self.add_module(f"{prefix}{output}", nn.Linear(width, width))

    def part(self, branch: str, name: str) -> Any:
        return getattr(self, PREFIXES[self.objective][branch] + name)

    def query(self, branch: str, words: Tensor) -> Tensor:
        rows = unit(words)[: self.words]
        projecting = "inheritance" if self.objective == "iccv" else branch
        rows = self.part(projecting, "query_input_proj")(rows)
        rows = self.part(branch, "query_encoder")(self.part(branch, "query_pos_embed")(rows))
        weights = torch.softmax(self.part(branch, "modular_vector_mapping")(rows)[:, 0], dim=0)
        return torch.stack([weight * row for weight, row in zip(weights, rows, strict=True)]).sum(0)

    def video(self, branch: str, features: Tensor) -> Tensor:
        names = NAMES[self.objective]
        rows = self.part(branch, f"{names['video']}_input_proj")(unit(capped(features, self.frames)))
        rows = self.part(branch, f"{names['video']}_pos_embed")(rows)
        return self.part(branch, names["output"])(self.part(branch, f"{names['video']}_encoder")(rows))

    def scores(self, queries: list[Tensor], videos: list[Tensor]) -> Tensor:
        """0.7 inheritance + 0.3 exploration, by the best cosine."""
        total = torch.zeros(len(queries), len(videos), dtype=videos[0].dtype)
        for branch, weight in (("inheritance", 0.7), ("exploration", 0.3)):
            tokens = [self.video(branch, each) for each in videos]
            for i, words in enumerate(queries):
                vector = self.query(branch, words)
                for j, rows in enumerate(tokens):
                    total[i, j] += weight * max(cosine(vector, row) for row in rows)
        return total

    def losses(
        self,
        videos: list[Tensor],
        teachers: list[Tensor],
        captions: list[list[tuple[Tensor, Tensor]]],
        epoch: int,
        margin: float,
    ) -> dict[str, Tensor]:
        """The terms for videos, their frames in CLIP's space, and their captions: words, and a sentence of CLIP."""
        order = sorted(range(len(videos)), key=lambda number: -len(captions[number]))  # Python's sort is stable
        videos, teachers = (
            [videos[number] for number in order],
            [capped(teachers[number], self.frames) for number in order],
        )
        flat = [(words, sentence, j) for j, number in enumerate(order) for words, sentence in captions[number]]
        label = [j for _, _, j in flat]
        terms = {}
        for branch in ("inheritance", "exploration"):
            tokens = [self.video(branch, each) for each in videos]
            vectors = [self.query(branch, words) for words, _, _ in flat]
            best = matrix(vectors, tokens, dot)
            if self.objective != "plus_plus":
                nce = hard_nce(best, label)
            else:
                sentences = [sentence for _, sentence, _ in flat]
                softening = best if branch == "exploration" else matrix(sentences, teachers, dot)
                fall = 800 / (800 + math.exp(epoch / 8))
                nce = soft_nce(best, softening, label, max(0.8 * fall, 0.0), max(0.8 * fall, 0.5))
            terms[f"{branch}_nce"] = 0.04 * nce
            terms[f"{branch}_triplet"] = triplet(matrix(vectors, tokens, cosine), label, margin)
            if branch == "inheritance":
                total = torch.zeros((), dtype=best.dtype)
                for vector, (_, sentence, j) in zip(vectors, flat, strict=True):
                    wanted = torch.softmax(torch.stack([cosine(sentence, row) for row in teachers[j]]) / 0.2, dim=0)
                    found = torch.softmax(torch.stack([cosine(vector, row) for row in tokens[j]]) / 0.2, dim=0)
                    total = total + sum(p * (p / q).log() for p, q in zip(wanted, found, strict=True))
                terms["distillation"] = 0.1 * 0.95**epoch * total
        return terms


def unit(rows: Tensor) -> Tensor:
    return torch.stack([row / (row.square().sum().sqrt() + 1e-5) for row in rows])


def capped(frames: Tensor, most: int) -> Tensor:
    total = len(frames)
    if total <= most:
        return frames
    bounds = [min(round(k / most * total), total - 1) for k in range(most + 1)]
    return torch.stack([frames[low:high].mean(0) if low < high else frames[low] for low, high in pairwise(bounds)])


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.normalize(a, dim=0).dot(F.normalize(b, dim=0))


def matrix(vectors: list[Tensor], tokens: list[Tensor], compare: Any) -> Tensor:
    """The best token of each video for each query."""
    return torch.stack(
        [
            torch.stack([torch.stack([compare(vector, row) for row in rows]).max() for rows in tokens])
            for vector in vectors
        ]
    )


# ---------------------------------------------------------------- losses


def lse(values: Any) -> Tensor:
    return torch.logsumexp(torch.stack(list(values)), dim=0)


def hard_nce(scores: Tensor, label: list[int]) -> Tensor:
    num_queries, num_videos = scores.shape
    of_query = [lse(scores[i]) - scores[i, label[i]] for i in range(num_queries)]
    of_video = []
    for j in range(num_videos):
        own = [scores[i, j] for i in range(num_queries) if label[i] == j]
        of_video.append(lse(scores[:, j]) - lse(own))
    return torch.stack(of_query).mean() + torch.stack(of_video).mean()


def soft_nce(scores: Tensor, softening: Tensor, label: list[int], a: float, b: float) -> Tensor:
    """Queries and videos must be in the order of the release."""
    num_queries, num_videos = scores.shape
    hard_queries, hard_videos = math.floor(a * num_queries), math.floor(a * num_videos)
    parts: dict[str, list[Tensor]] = {name: [] for name in ("hard query", "soft query", "hard video", "soft video")}
    for i in range(num_queries):
        total = torch.zeros((), dtype=scores.dtype)
        for j in range(num_videos):
            weight = torch.tensor(float(label[i] == j), dtype=scores.dtype)
            if i >= hard_queries:
                weight = (1 - b) * softening[i].softmax(0)[j] + b * weight
            total = total + weight * (lse(scores[i]) - scores[i, j])
        parts["hard query" if i < hard_queries else "soft query"].append(total)
    for j in range(num_videos):
        weighted = []
        for i in range(num_queries):
            weight = torch.tensor(float(label[i] == j), dtype=scores.dtype)
            if j >= hard_videos:
                weight = (1 - b) * softening[:, j].softmax(0)[i] + b * weight
            weighted.append((weight + 1e-12).log() + scores[i, j])
        parts["hard video" if j < hard_videos else "soft video"].append(lse(scores[:, j]) - lse(weighted))
    total = torch.zeros((), dtype=scores.dtype)
    for kind, share in (("hard", a), ("soft", 1 - a)):
        queries, videos = parts[f"{kind} query"], parts[f"{kind} video"]
        if queries and videos:
            total = total + share * (sum(queries) / len(queries) + sum(videos) / len(videos))
    return total


def triplet(scores: Tensor, label: list[int], margin: float) -> Tensor:
    num_queries, num_videos = scores.shape
    of_query, of_video = [], []
    for i in range(num_queries):
        wrong = max(scores[i, j] for j in range(num_videos) if j != label[i])
        of_query.append((margin + wrong - scores[i, label[i]]).clamp(min=0))
    for j in range(num_videos):
        wrong = max(scores[i, j] for i in range(num_queries) if label[i] != j)
        own = torch.stack([scores[i, j] for i in range(num_queries) if label[i] == j]).mean()
        of_video.append((margin + wrong - own).clamp(min=0))
    return torch.stack(of_query).mean() + torch.stack(of_video).mean()
