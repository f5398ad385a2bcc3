"""Slow twins of the released models of MS-SL and BGM-Net, without any code of midreel.

Parameters have the names of released checkpoints. The code processes one video, one query, one attention head and one
pair at a time, in evaluation mode.
"""

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import scipy.interpolate
import torch
from torch import Tensor, nn

# ---------------------------------------------------------------- inputs


def average(frames: Tensor, length: int) -> Tensor:
    """AVG: `length` windows of any number of frames."""
    total = len(frames)
    share = torch.arange(length + 1, dtype=torch.float32) / length
    bounds = [min(int(torch.round(s * total)), total - 1) for s in share]
    return torch.stack([frames[a:b].mean(0) if a < b else frames[a] for a, b in pairwise(bounds)])


def capped(frames: Tensor, most: int) -> Tensor:
    """CAP: the frames themselves, or `most` windows."""
    total = len(frames)
    if total <= most:
        return frames
    bounds = [min(round(k / most * total), total - 1) for k in range(most + 1)]
    return torch.stack([frames[a:b].mean(0) if a < b else frames[a] for a, b in pairwise(bounds)])


def interpolated(frames: Tensor, length: int) -> Tensor:
    """INTERP: three points of scipy's linear interpolation in each of `length` windows."""
    total, rows = len(frames), frames.double().numpy()
    if total == 1:
        return frames.expand(length, -1)
    gap = length / total
    places = [gap / 2 + i * gap for i in range(total)]
    line = scipy.interpolate.interp1d(places, rows, axis=0)
    result = []
    for k in range(length):
        low = max(places[0] + 1e-4, 1 / length * k * length)
        high = min(places[-1] - 1e-4, 1 / length * (k + 1) * length)
        if high < places[0] or low > places[-1]:
            result.append(np.zeros(rows.shape[1]))
        else:
            result.append(np.mean([line(low), line(low + (high - low) / 2), line(high)], axis=0))
    return torch.from_numpy(np.stack(result)).to(frames.dtype)


def unit(rows: Tensor) -> Tensor:
    return rows / (rows.square().sum(-1, keepdim=True).sqrt() + 1e-5)


# ---------------------------------------------------------------- layers


class Positions(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(length, width)
        self.LayerNorm = nn.LayerNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.LayerNorm(rows + self.position_embeddings(torch.arange(len(rows))))


class Projection(nn.Module):
    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.LayerNorm = nn.LayerNorm(input_width)
        self.net = nn.Sequential(nn.Dropout(0.1), nn.Linear(input_width, width))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(self.net(self.LayerNorm(rows)))


class Heads(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        query, key, value = self.query(rows), self.key(rows), self.value(rows)
        size = rows.shape[1] // self.num_heads
        outputs = []
        for head in range(self.num_heads):
            part = slice(head * size, (head + 1) * size)
            logits = query[:, part] @ key[:, part].T / math.sqrt(size)
            outputs.append(torch.softmax(logits, dim=-1) @ value[:, part])
        return torch.cat(outputs, dim=1)


class Output(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.LayerNorm = nn.LayerNorm(width)


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.self = Heads(width, num_heads)
        self.output = Output(width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.output.LayerNorm(rows + self.output.dense(self.self(rows)))


# ---------------------------------------------------------------- the model


class KeyClipTwin(nn.Module):
    """The network of MS-SL and BGM-Net.

    Args:
        video_width: the width of the frames.
        text_width: the width of the words.
        width: the model width.
        num_heads: the number of attention heads.
        max_words: the number of positions of a query.
        num_frames: the number of positions of a video.
        num_clips: map_size.
    """

    def __init__(
        self,
        video_width: int,
        text_width: int,
        width: int = 384,
        num_heads: int = 4,
        max_words: int = 30,
        num_frames: int = 128,
        num_clips: int = 32,
    ) -> None:
        super().__init__()
        self.max_words, self.num_frames, self.num_clips = max_words, num_frames, num_clips
        self.query_pos_embed = Positions(max_words, width)
        self.clip_pos_embed = Positions(num_frames, width)
        self.frame_pos_embed = Positions(num_frames, width)
        self.query_input_proj = Projection(text_width, width)
        self.clip_input_proj = Projection(video_width, width)
        self.frame_input_proj = Projection(video_width, width)
        self.query_encoder = Attention(width, num_heads)
        self.clip_encoder = Attention(width, num_heads)
        self.frame_encoder = Attention(width, num_heads)
        self.modular_vector_mapping = nn.Linear(width, 1, bias=False)
        self.mapping_linear = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(2)])

    def randomize(self, seed: int = 0, scale: float = 0.3) -> "KeyClipTwin":
        """Draw large weights, also for biases and norms, so that every weight matters."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.parameters():
                weight.add_(scale * torch.randn(weight.shape, generator=generator).to(weight.dtype))
        return self

    def encode_query(self, words: Tensor) -> Tensor:
        """The vector of one query, from all its words."""
        rows = unit(words)[: self.max_words]
        rows = self.query_encoder(self.query_pos_embed(self.query_input_proj(rows)))
        return torch.softmax(self.modular_vector_mapping(rows), dim=0)[:, 0] @ rows

    def encode_clips(self, clips: Tensor) -> Tensor:
        """The proposals of one video, from its clip features before scaling."""
        rows = self.clip_encoder(self.clip_pos_embed(self.clip_input_proj(unit(clips))))
        proposals = []
        for window in range(1, len(rows) + 1):
            for start in range(len(rows) - window + 1):
                proposals.append(rows[start : start + window].mean(0))
        return torch.stack(proposals)

    def encode_frames(self, frames: Tensor) -> Tensor:
        """The frames of one video, without padding."""
        return self.frame_encoder(self.frame_pos_embed(self.frame_input_proj(unit(capped(frames, self.num_frames)))))

    def attended(self, key_clip: Tensor, frames: Tensor) -> Tensor:
        """The vector r of one key clip and the encoded frames of one video."""
        keys, values = self.mapping_linear[0](frames), self.mapping_linear[1](frames)
        return torch.softmax(keys @ key_clip, dim=0) @ values

    def score(self, query: Tensor, proposals: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """The clip score and the frame score of one query and one video."""
        cosines = torch.stack([cosine(query, proposal) for proposal in proposals])
        best = int(cosines.argmax())
        return cosines[best], cosine(query, self.attended(proposals[best], frames))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / (a.square().sum().sqrt() * b.square().sum().sqrt())


# ---------------------------------------------------------------- losses


def loss_terms(
    model: KeyClipTwin,
    queries: list[Tensor],
    proposals: list[Tensor],
    frames: list[Tensor],
    video_of_query: list[int],
    *,
    margin: float,
    matched: bool = False,
    align: bool = False,
) -> dict[str, Tensor]:
    """The weighted terms of one batch. Each hard negative is the best wrong one, as with a pool of one.

    Args:
        model: the network, for its attention.
        queries: the vector of each query.
        proposals: the proposals of each video.
        frames: the encoded frames of each video, without padding.
        video_of_query: the video of each query.
        margin: the margin of the triplet loss.
        matched: match the queries of a video with different proposals (BGM-Net).
        align: add the alignment of BGM-Net.
    """
    num, num_videos = len(queries), len(proposals)
    cosines = [[torch.stack([cosine(q, p) for p in own]) for own in proposals] for q in queries]
    products = [[torch.stack([q @ p for p in own]) for own in proposals] for q in queries]
    by_cosine = [[int(each.argmax()) for each in row] for row in cosines]
    by_product = [[int(each.argmax()) for each in row] for row in products]
    if matched:
        for video in range(num_videos):
            own = [i for i in range(num) if video_of_query[i] == video]
            # A query of a best matching has one of its best n proposals, for n queries: one of them is free.
            few = [cosines[i][video].topk(min(len(own), len(proposals[video]))).indices.tolist() for i in own]
            ways = [way for way in product(*few) if len(set(way)) == len(way)]
            worth = [sum(cosines[i][video][p].item() for i, p in zip(own, way, strict=True)) for way in ways]
            best = ways[worth.index(max(worth))]
            for i, proposal in zip(own, best, strict=True):
                by_cosine[i][video] = by_product[i][video] = proposal
    clip_cosine = [[cosines[i][j][by_cosine[i][j]] for j in range(num_videos)] for i in range(num)]
    clip_product = [[products[i][j][by_product[i][j]] for j in range(num_videos)] for i in range(num)]
    keys = [proposals[video_of_query[i]][by_cosine[i][video_of_query[i]]] for i in range(num)]
    means = [model.attended(keys[i], frames[video_of_query[i]]) for i in range(num)]
    frame_cosine = [[cosine(queries[i], means[j]) for j in range(num)] for i in range(num)]
    frame_product = [[queries[i] @ means[j] for j in range(num)] for i in range(num)]
    terms: dict[str, Any] = {
        "clip_nce": 0.02 * nce(clip_product, video_of_query),
        "clip_triplet": triplet(clip_cosine, video_of_query, margin),
        "frame_nce": 0.04 * frame_nce(frame_product),
        "frame_triplet": frame_triplet(frame_cosine, margin),
    }
    if align:
        gaps = [
            (cosine(queries[i], queries[j]) - cosine(keys[i], keys[j])).abs() for i in range(num) for j in range(num)
        ]
        terms["alignment"] = torch.stack(gaps).mean()
    return terms


def total(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum()


def nce(scores: list[list[Tensor]], video_of_query: list[int]) -> Tensor:
    num, num_videos = len(scores), len(scores[0])
    of_query = [total([s.exp() for s in scores[i]]).log() - scores[i][video_of_query[i]] for i in range(num)]
    of_video = []
    for j in range(num_videos):
        column = [scores[i][j].exp() for i in range(num)]
        of_video.append(total(column).log() - total([column[i] for i in range(num) if video_of_query[i] == j]).log())
    return total(of_query) / num + total(of_video) / num_videos


def triplet(scores: list[list[Tensor]], video_of_query: list[int], margin: float) -> Tensor:
    num, num_videos = len(scores), len(scores[0])
    of_query, of_video = [], []
    for i, video in enumerate(video_of_query):
        worst = max((scores[i][j] for j in range(num_videos) if j != video), key=Tensor.item)
        of_query.append(torch.relu(margin + worst - scores[i][video]))
    for j in range(num_videos):
        own = [scores[i][j] for i in range(num) if video_of_query[i] == j]
        worst = max((scores[i][j] for i in range(num) if video_of_query[i] != j), key=Tensor.item)
        of_video.append(torch.relu(margin + worst - total(own) / len(own)))
    return total(of_query) / num + total(of_video) / num_videos


def frame_nce(scores: list[list[Tensor]]) -> Tensor:
    num = len(scores)
    terms = []
    for i in range(num):
        row, column = (total([s.exp() for s in part]) for part in (scores[i], [scores[j][i] for j in range(num)]))
        terms.append((row + column).log() - scores[i][i])
    return total(terms) / num


def frame_triplet(scores: list[list[Tensor]], margin: float) -> Tensor:
    num = len(scores)
    terms = []
    for i in range(num):
        worst_column = max((scores[i][j] for j in range(num) if j != i), key=Tensor.item)
        worst_row = max((scores[j][i] for j in range(num) if j != i), key=Tensor.item)
        terms += [torch.relu(margin + worst - scores[i][i]) for worst in (worst_column, worst_row)]
    return total(terms) / num
