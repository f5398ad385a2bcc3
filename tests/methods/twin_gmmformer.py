"""A slow twin of the released GMMFormer (the first version), without any code of midreel.

Parameters have the names of released checkpoints. The code processes one video, one query, one attention head and one
row at a time, in evaluation mode. A batch only determines the length to which its videos are padded.
"""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (None, 0.5, 1.0, 5.0)


# ---------------------------------------------------------------- inputs


def windows(frames: Tensor, length: int) -> Tensor:
    """Means over `length` windows, as both AVG and CAP compute them for a power of two."""
    total = len(frames)
    bounds = [min(round(k / length * total), total - 1) for k in range(length + 1)]
    return torch.stack([frames[a:b].mean(0) if a < b else frames[a] for a, b in pairwise(bounds)])


def unit(rows: Tensor) -> Tensor:
    return torch.stack([row / (row.square().sum().sqrt() + 1e-5) for row in rows])


# ---------------------------------------------------------------- layers


class Positions(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(length, width)
        self.LayerNorm = nn.LayerNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.LayerNorm(rows + self.position_embeddings.weight[: len(rows)])


class Projection(nn.Module):
    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.LayerNorm = nn.LayerNorm(input_width)
        self.net = nn.Sequential(nn.Dropout(0.2), nn.Linear(input_width, width))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(self.net(self.LayerNorm(rows)))


class Heads(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))


class Output(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, width), nn.LayerNorm(width)


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int, gaussian: float | None = None) -> None:
        super().__init__()
        self.self, self.output, self.gaussian = Heads(width, num_heads), Output(width), gaussian

    def forward(self, rows: Tensor, mask: list[bool]) -> Tensor:
        heads: Any = self.self
        query, key, value = heads.query(rows), heads.key(rows), heads.value(rows)
        size = rows.shape[1] // heads.num_heads
        attended = torch.zeros_like(rows)
        for head in range(heads.num_heads):
            part = slice(head * size, (head + 1) * size)
            for i in range(len(rows)):
                logits = (key[:, part] * query[i, part]).sum(1) / math.sqrt(size)
                if self.gaussian is not None:
                    logits = logits * bell(i, len(rows), self.gaussian).to(logits)
                logits = logits + torch.tensor([0.0 if real else -10000.0 for real in mask]).to(logits)
                attended[i, part] = (logits.softmax(0)[:, None] * value[:, part]).sum(0)
        return self.output.LayerNorm(rows + self.output.dense(attended))


def bell(i: int, length: int, width: float) -> Tensor:
    """The row i of a Gaussian window."""
    sigma = max(width, 0.01) / 9
    row = torch.exp(-((torch.linspace(0, 1, length) - i / length) ** 2) / (2 * sigma**2))
    return row / row.max()


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        for k, gaussian in enumerate(WIDTHS):
            setattr(self, f"attn{k}", Attention(width, num_heads, gaussian))

    def forward(self, rows: Tensor, mask: list[bool]) -> Tensor:
        return sum((getattr(self, f"attn{k}")(rows, mask) for k in range(4)), torch.zeros_like(rows)) / 4


# ---------------------------------------------------------------- the model


class GMMFormerTwin(nn.Module):
    """`config` has the names of the released configuration files."""

    def __init__(self, config: dict[str, Any], video_width: int, text_width: int) -> None:
        super().__init__()
        self.config = config
        width, heads = config["hidden_size"], config["n_heads"]
        self.query_pos_embed = Positions(config["max_desc_l"], width)
        self.clip_pos_embed = Positions(config["max_ctx_l"], width)
        self.frame_pos_embed = Positions(config["max_ctx_l"], width)
        self.query_input_proj = Projection(text_width, width)
        self.query_encoder = Attention(width, heads)
        self.clip_input_proj = Projection(video_width, width)
        self.clip_encoder, self.clip_encoder_2 = Block(width, heads), Block(width, heads)
        self.frame_input_proj = Projection(video_width, width)
        self.frame_encoder_1, self.frame_encoder_2 = Block(width, heads), Block(width, heads)
        self.modular_vector_mapping = nn.Linear(width, 1, bias=False)
        self.modular_vector_mapping_2 = nn.Linear(width, 1, bias=False)

    def pooled(self, mapping: nn.Linear, rows: Tensor, mask: list[bool]) -> Tensor:
        real = torch.tensor(mask).to(rows)
        logits = mapping(rows)[:, 0] * real + (1 - real) * -1e10
        return logits.softmax(0) @ rows

    def clips(self, features: Tensor) -> Tensor:
        """The clip tokens of a video, (32, D)."""
        rows = unit(windows(features, self.config["map_size"]))
        rows = self.clip_pos_embed(self.clip_input_proj(rows))
        mask = [True] * len(rows)
        return self.clip_encoder_2(self.clip_encoder(rows, mask), mask)

    def capped(self, features: Tensor) -> Tensor:
        most = self.config["max_ctx_l"]
        return unit(features if len(features) <= most else windows(features, most))

    def frames(self, features: Tensor, length: int) -> Tensor:
        """The vector of a video in a batch whose longest video has `length` frames, after the cap."""
        rows = self.capped(features)
        mask = [True] * len(rows) + [False] * (length - len(rows))
        rows = torch.cat([rows, rows.new_zeros(length - len(rows), rows.shape[1])])
        rows = self.frame_pos_embed(self.frame_input_proj(rows))
        rows = self.frame_encoder_2(self.frame_encoder_1(rows, mask), mask)
        return self.pooled(self.modular_vector_mapping_2, rows, mask)

    def encode_batch(self, videos: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The clips and the vector of each video of a batch."""
        longest = max(min(len(video), self.config["max_ctx_l"]) for video in videos)
        return [(self.clips(video), self.frames(video, longest)) for video in videos]

    def encode_query(self, words: Tensor) -> Tensor:
        rows = unit(words)[: self.config["max_desc_l"]]
        mask = [True] * len(rows)
        rows = self.query_encoder(self.query_pos_embed(self.query_input_proj(rows)), mask)
        return self.pooled(self.modular_vector_mapping, rows, mask)

    def score(self, query: Tensor, clips: Tensor, vector: Tensor) -> Tensor:
        clip = max(F.cosine_similarity(query, token, dim=0) for token in clips)
        frame = F.cosine_similarity(query, vector, dim=0)
        return self.config["clip_scale_w"] * clip + self.config["frame_scale_w"] * frame

    def losses(self, videos: list[Tensor], queries: list[Tensor], video_of_query: list[int]) -> dict[str, Tensor]:
        """Every term with its weight, with the hardest negatives (a pool of one)."""
        config = self.config
        encoded = [self.encode_query(query) for query in queries]
        tokens = [(clips, vector[None]) for clips, vector in self.encode_batch(videos)]
        terms = {}
        for branch, name in enumerate(("clip", "frame")):
            products = torch.stack(
                [torch.stack([max(query @ t for t in video[branch]) for video in tokens]) for query in encoded]
            )
            cosines = torch.stack(
                [
                    torch.stack([max(F.cosine_similarity(query, t, dim=0) for t in video[branch]) for video in tokens])
                    for query in encoded
                ]
            )
            terms[f"{name}_nce"] = config["loss_factor"][branch] * nce(products, video_of_query)
            terms[f"{name}_triplet"] = hardest_triplet(cosines, video_of_query, config["margin"])
        shift, scale = config["neg_factor"]
        terms["query_diversity"] = config["loss_factor"][2] * diversity(encoded, video_of_query, shift, scale)
        return terms


# ---------------------------------------------------------------- losses


def nce(scores: Tensor, video_of_query: list[int]) -> Tensor:
    num_queries, num_videos = scores.shape
    by_query = [scores[i].logsumexp(0) - scores[i, video_of_query[i]] for i in range(num_queries)]
    by_video = []
    for j in range(num_videos):
        own = torch.stack([scores[i, j] for i in range(num_queries) if video_of_query[i] == j])
        by_video.append(scores[:, j].logsumexp(0) - own.logsumexp(0))
    return torch.stack(by_query).mean() + torch.stack(by_video).mean()


def hardest_triplet(scores: Tensor, video_of_query: list[int], margin: float) -> Tensor:
    num_queries, num_videos = scores.shape
    by_query, by_video = [], []
    for i, own in enumerate(video_of_query):
        wrong = max(scores[i, j] for j in range(num_videos) if j != own)
        by_query.append(torch.relu(margin + wrong - scores[i, own]))
    for j in range(num_videos):
        wrong = max(scores[i, j] for i in range(num_queries) if video_of_query[i] != j)
        right = torch.stack([scores[i, j] for i in range(num_queries) if video_of_query[i] == j]).mean()
        by_video.append(torch.relu(margin + wrong - right))
    return torch.stack(by_query).mean() + torch.stack(by_video).mean()


def diversity(queries: list[Tensor], video_of_query: list[int], shift: float, scale: float) -> Tensor:
    """One logarithm for each query, of one plus a sum over the other queries of its video."""
    total = torch.zeros_like(queries[0][0])
    for j, query in enumerate(queries):
        inside = torch.ones_like(total)
        for i, other in enumerate(queries):
            if i != j and video_of_query[i] == video_of_query[j]:
                inside = inside + torch.exp(scale * (F.cosine_similarity(query, other, dim=0) + shift))
        total = total + torch.log(inside)
    return total / len(queries)
