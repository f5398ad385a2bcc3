"""Slow twins of the released models of MSC and GMMFormer v2, without any code of midreel.

Parameters have the names of released checkpoints. The code processes one video, one query and one attention head at a
time, in evaluation mode. It follows the papers and the released code, including its order of operations and its ties.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (None, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0)


# ---------------------------------------------------------------- inputs


def average(frames: Tensor, length: int) -> Tensor:
    """AVG: `length` windows of any number of frames."""
    total = len(frames)
    share = torch.arange(length + 1, dtype=torch.float32) / length
    bounds = [min(int(torch.round(s * total)), total - 1) for s in share]
    rows = []
    for low, high in pairwise(bounds):
        rows.append(torch.mean(frames[low:high], dim=0) if low < high else frames[low])
    return torch.stack(rows)


def capped(frames: Tensor, most: int) -> Tensor:
    """CAP: the frames themselves, or `most` windows."""
    total = len(frames)
    if total <= most:
        return frames
    bounds = [min(round(k / most * total), total - 1) for k in range(most + 1)]
    rows = []
    for low, high in pairwise(bounds):
        rows.append(torch.mean(frames[low:high], dim=0) if low < high else frames[low])
    return torch.stack(rows)


def unit(rows: Tensor) -> Tensor:
    return torch.from_numpy(rows.numpy() / (np.linalg.norm(rows.numpy(), axis=-1, keepdims=True) + 1e-5))


def merged_in_order(frames: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """128 rows to 32 clips: the clips, their numbers of rows, and the clip of each row."""
    tokens, sizes, members = list(frames), [1.0] * len(frames), [[i] for i in range(len(frames))]
    for target in (80, 52, 32):
        rows = torch.stack(tokens)
        products = (rows[0::2] * rows[1::2]).sum(dim=1)
        ranked = torch.argsort(products, descending=True)  # not stable, as in the release
        chosen = set(ranked[: len(tokens) - target].tolist())
        new_tokens, new_sizes, new_members = [], [], []
        for pair in range(len(products)):
            i, j = 2 * pair, 2 * pair + 1
            if pair in chosen:
                size = sizes[i] + sizes[j]
                new_tokens.append((tokens[i] * sizes[i] + tokens[j] * sizes[j]) / size)
                new_sizes.append(size)
                new_members.append(members[i] + members[j])
            else:
                new_tokens += [tokens[i], tokens[j]]
                new_sizes += [sizes[i], sizes[j]]
                new_members += [members[i], members[j]]
        tokens, sizes, members = new_tokens, new_sizes, new_members
    clip_of_row = [0] * len(frames)
    for clip, rows_of_clip in enumerate(members):
        for row in rows_of_clip:
            clip_of_row[row] = clip
    return torch.stack(tokens), torch.tensor(sizes), clip_of_row


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
        self.net = nn.Sequential(nn.Dropout(0.3), nn.Linear(input_width, width))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.relu(self.net(self.LayerNorm(rows)))


class Heads(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, asking: Tensor, answering: Tensor, window: Tensor | None, bias: Tensor | None) -> Tensor:
        query, key, value = self.query(asking), self.key(answering), self.value(answering)
        size = query.shape[1] // self.num_heads
        outputs = []
        for head in range(self.num_heads):
            part = slice(head * size, (head + 1) * size)
            logits = query[:, part] @ key[:, part].T / math.sqrt(size)
            if window is not None:
                logits = logits * window
            if bias is not None:
                logits = logits + bias
            outputs.append(torch.softmax(logits, dim=-1) @ value[:, part])
        return torch.cat(outputs, dim=1)


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer2(torch.relu(self.layer1(rows)))


class Attention(nn.Module):
    def __init__(self, width: int, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.self = Heads(width, num_heads)
        self.output = FeedForward(width, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(
        self, asking: Tensor, answering: Tensor, window: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        middle = self.norm1(asking + self.self(asking, answering, window, bias))
        return self.norm2(middle + self.output(middle))


def gaussian(length: int, width: float | None) -> Tensor | None:
    if width is None:
        return None
    sigma = max(width, 0.01) / 9
    window = torch.empty(length, length)
    for i in range(length):
        row = torch.exp(-((torch.linspace(0, 1, length) - i / length) ** 2) / (2 * sigma**2))
        window[i] = row / row.max()
    return window


class Mixture(nn.Module):
    def __init__(self, width: int, length: int, num_heads: int, temperature: float) -> None:
        super().__init__()
        for k in range(len(WIDTHS)):
            setattr(self, f"attn{k}", Attention(width, 4 * width, num_heads))
        self.ca = Attention(width, width, num_heads)
        self.layer1, self.layer2 = nn.Linear(width, width), nn.Linear(width, length)
        self.length, self.temperature = length, temperature

    def forward(self, rows: Tensor, token: Tensor, mask: Tensor | None, sizes: Tensor | None) -> Tensor:
        hidden = None if mask is None else (1 - mask) * -10000.0
        bias = hidden if sizes is None else torch.log(sizes)
        views, logits = [], []
        for k, width in enumerate(WIDTHS):
            view = getattr(self, f"attn{k}")(rows, rows, gaussian(self.length, width), bias)
            summary = self.ca(token.view(1, -1), view, None, hidden)
            views.append(view)
            logits.append(self.layer2(torch.relu(self.layer1(summary)))[0])
        weights = torch.softmax(torch.stack(logits, dim=1) / self.temperature, dim=1)
        mixed = torch.zeros_like(rows)
        for step in range(len(rows)):
            for k, view in enumerate(views):
                mixed[step] = mixed[step] + weights[step, k] * view[step]
        return mixed


# ---------------------------------------------------------------- the models


@dataclass
class Video:
    """A prepared video: the inputs of the branches and, for MSC, the clip sizes and the clip of each row."""

    clips: Tensor
    frames: Tensor
    mask: Tensor
    sizes: Tensor | None = None
    clip_of_row: list[int] = field(default_factory=list)


class Released(nn.Module):
    """`config` has the names of the released configuration files."""

    def __init__(self, config: dict[str, Any], video_width: int, text_width: int, *, msc: bool) -> None:
        super().__init__()
        self.config, self.is_msc = config, msc
        width, heads = config["hidden_size"], config["n_heads"]
        self.query_pos_embed = Positions(config["max_desc_l"], width)
        self.clip_pos_embed = Positions(config["max_ctx_l"], width)
        self.frame_pos_embed = Positions(config["max_ctx_l"], width)
        self.query_input_proj = Projection(text_width, width)
        self.query_encoder = Attention(width, 4 * width, heads)
        self.clip_input_proj = Projection(video_width, width)
        self.clip_encoder = Mixture(width, 32, heads, config["sft_factor"])
        self.frame_input_proj = Projection(video_width, width)
        self.frame_encoder_1 = Mixture(width, 128, heads, config["sft_factor"])
        self.modular_vector_mapping = nn.Linear(width, 1, bias=False)
        self.weight_token = nn.Parameter(torch.randn(1, 1, width))
        if msc:
            self.vproj_clip = nn.Linear(width, width)

    def prepare(self, features: Tensor) -> Video:
        if self.is_msc:
            rows = average(features, 128)
            clips, sizes, clip_of_row = merged_in_order(rows)
            return Video(unit(clips), unit(rows), torch.ones(128), sizes, clip_of_row)
        rows = unit(capped(features, 128))
        frames, mask = torch.zeros(128, features.shape[1]), torch.zeros(128)
        frames[: len(rows)], mask[: len(rows)] = rows, 1
        return Video(unit(average(features, 32)), frames, mask)

    def encode_video(self, video: Video) -> tuple[Tensor, Tensor]:
        """Clips (32, D) and frames (128, D)."""
        clips = self.clip_pos_embed(self.clip_input_proj(video.clips))
        clips = self.clip_encoder(clips, self.weight_token, None, video.sizes)
        frames = self.frame_pos_embed(self.frame_input_proj(video.frames))
        frames = self.frame_encoder_1(frames, self.weight_token, video.mask, None)
        return clips, torch.stack(
            [f if m == 1 else torch.zeros_like(f) for f, m in zip(frames, video.mask, strict=True)]
        )

    def words(self, query: Tensor) -> Tensor:
        return unit(query)[: self.config["max_desc_l"]]

    def encode_query(self, query: Tensor, length: int | None = None) -> Tensor:
        """The vector of one query from its words, padded to `length` as in a batch of longer ones."""
        words = self.words(query)
        mask = torch.ones(len(words))
        if length is not None:
            mask = torch.cat([mask, torch.zeros(length - len(words))])
            words = torch.cat([words, torch.zeros(length - len(words), words.shape[1])])
        rows = self.query_pos_embed(self.query_input_proj(words))
        rows = self.query_encoder(rows, rows, None, (1 - mask) * -10000.0)
        logits = self.modular_vector_mapping(rows)[:, 0] * mask + (1 - mask) * -1e10
        return torch.softmax(logits, dim=0) @ rows

    # ------------------------------------------------------------ scores and losses

    def branch_scores(self, query: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The largest cosine and the largest product, which may belong to different tokens."""
        cosines = torch.stack([F.normalize(query, dim=0) @ F.normalize(token, dim=0) for token in tokens])
        return cosines.max(), torch.stack([query @ token for token in tokens]).max()

    def score(self, query: Tensor, clips: Tensor, frames: Tensor) -> Tensor:
        clip, frame = self.branch_scores(query, clips)[0], self.branch_scores(query, frames)[0]
        return self.config["clip_scale_w"] * clip + self.config["frame_scale_w"] * frame

    def losses(self, videos: list[Video], queries: list[Tensor], video_of_query: list[int]) -> dict[str, Tensor]:
        """Every term with its weight, with the hardest negatives (a pool of one)."""
        config = self.config
        tokens = [self.encode_video(video) for video in videos]
        encoded = [self.encode_query(query) for query in queries]
        terms = {}
        for branch, name in enumerate(("clip", "frame")):
            pairs = [[self.branch_scores(query, token[branch]) for token in tokens] for query in encoded]
            cosines = torch.stack([torch.stack([cosine for cosine, _ in row]) for row in pairs])
            products = torch.stack([torch.stack([product for _, product in row]) for row in pairs])
            terms[f"{name}_nce"] = config["loss_factor"][branch] * nce(products, video_of_query)
            terms[f"{name}_triplet"] = hardest_triplet(cosines, video_of_query, config["margin"])
        if self.is_msc:
            teacher = torch.stack([self.words(query)[-1] for query in queries])
            distance, angle = relations(torch.stack(encoded), teacher)
            terms["tcpl_distance"] = config["rkd_d_coef"] * distance
            terms["tcpl_angle"] = config["rkd_a_coef"] * angle
            aligned = [self.alignment(v, clips, frames) for v, (clips, frames) in zip(videos, tokens, strict=True)]
            terms["cbva"] = config["vl_coef"] * sum(aligned) / len(videos)
        else:
            terms["query_diversity"] = config["loss_factor"][2] * diversity(
                encoded, video_of_query, *config["neg_factor"]
            )
            terms["matching"] = config["loss_factor"][3] * matching(encoded, [c for c, _ in tokens], video_of_query)
        return terms

    def num_contexts(self, video: Video) -> int:
        """The number of clips in CBVA."""
        normed = F.normalize(video.clips, dim=-1)
        linked = (normed @ normed.T > self.config["sim_thr"]).tolist()
        for via in range(32):
            for i in range(32):
                for j in range(32):
                    linked[i][j] = linked[i][j] or (linked[i][via] and linked[via][j])
        ratio = sum(linked[i][j] for i in range(32) for j in range(32) if i != j) / (32 * 31)
        for least, number in ((0.8, 5), (0.6, 8), (0.4, 12), (0.2, 20)):
            if ratio >= least:
                return number
        return 32

    def contexts(self, video: Video, encoded: list[Tensor]) -> tuple[list[Tensor], list[int]]:
        """The clips merged to the number of contexts by their frozen features, and the context of each row."""
        frozen, sizes, clip_of_row = list(video.clips), video.sizes.tolist(), video.clip_of_row
        wanted = self.num_contexts(video)
        for target in (20, 12, 8, 5):
            if len(encoded) == wanted:
                break
            encoded, frozen, sizes, clip_of_row = merge_pairs(encoded, frozen, sizes, clip_of_row, target)
        return encoded, clip_of_row

    def alignment(self, video: Video, clips: Tensor, frames: Tensor) -> Tensor:
        """CBVA of one video with one clip for each context."""
        frames = self.vproj_clip(frames)
        encoded, clip_of_row = self.contexts(video, list(self.vproj_clip(clips)))
        similarity = torch.stack([torch.stack([f @ c for c in encoded]) for f in frames])
        total = torch.zeros(())
        for rows, of_row in (
            (similarity, [[clip_of_row[r] == c for c in range(len(encoded))] for r in range(128)]),
            (similarity.T, [[clip_of_row[r] == c for r in range(128)] for c in range(len(encoded))]),
        ):
            costs = []
            for row, own in zip(rows, of_row, strict=True):
                exp = torch.exp(row - row.max().detach())
                positive = [e for e, o in zip(exp, own, strict=True) if o]
                negative = [e for e, o in zip(exp, own, strict=True) if not o]
                p, n = sum(positive) / len(positive), sum(negative) / len(negative)
                costs.append(-torch.log(p / (p + n)))
            total = total + torch.stack(costs).mean()
        return total


def merge_pairs(
    encoded: list[Tensor], frozen: list[Tensor], sizes: list[float], clip_of_row: list[int], target: int
) -> tuple[list[Tensor], list[Tensor], list[float], list[int]]:
    """Greedy pairs of even and odd tokens, each in at most one. A pair takes the position of its even token."""
    normed = F.normalize(torch.stack(frozen)[None], dim=-1)
    # The batch axis makes equal clips tie, or not, in the same way as in midreel.
    cosines = (normed[:, 0::2] @ normed[:, 1::2].mT)[0]
    candidates = [(cosines[a, b].item(), 2 * a, 2 * b + 1) for a in range(len(cosines)) for b in range(len(cosines[0]))]
    candidates.sort(key=lambda candidate: candidate[0], reverse=True)
    partner: dict[int, int] = {}
    for _, a, b in candidates:
        if len(partner) == len(encoded) - target:
            break
        if a not in partner and b not in partner.values():
            partner[a] = b
    new: tuple[list[Tensor], list[Tensor], list[float]] = ([], [], [])
    new_of_old = {}
    for i in range(len(encoded)):
        if i in partner.values():
            continue
        new_of_old[i] = len(new[0])
        e, f, s = encoded[i], frozen[i], sizes[i]
        if i in partner:
            j = partner[i]
            new_of_old[j] = len(new[0])
            e, f = ((x[i] * sizes[i] + x[j] * sizes[j]) / (sizes[i] + sizes[j]) for x in (encoded, frozen))
            s = sizes[i] + sizes[j]
        for values, value in zip(new, (e, f, s), strict=True):
            values.append(value)
    return *new, [new_of_old[clip] for clip in clip_of_row]


def nce(scores: Tensor, video_of_query: list[int]) -> Tensor:
    num_queries, num_videos = scores.shape
    of_query = [torch.logsumexp(scores[i], 0) - scores[i, video_of_query[i]] for i in range(num_queries)]
    of_video = []
    for j in range(num_videos):
        own = torch.stack([scores[i, j] for i in range(num_queries) if video_of_query[i] == j])
        of_video.append(torch.logsumexp(scores[:, j], 0) - torch.logsumexp(own, 0))
    return torch.stack(of_query).mean() + torch.stack(of_video).mean()


def hardest_triplet(scores: Tensor, video_of_query: list[int], margin: float) -> Tensor:
    num_queries, num_videos = scores.shape
    of_query, of_video = [], []
    for i in range(num_queries):
        wrong = max([j for j in range(num_videos) if j != video_of_query[i]], key=lambda j: scores[i, j].item())
        of_query.append(torch.clamp(margin + scores[i, wrong] - scores[i, video_of_query[i]], min=0))
    for j in range(num_videos):
        wrong = max([i for i in range(num_queries) if video_of_query[i] != j], key=lambda i: scores[i, j].item())
        own = torch.stack([scores[i, j] for i in range(num_queries) if video_of_query[i] == j]).mean()
        of_video.append(torch.clamp(margin + scores[wrong, j] - own, min=0))
    return torch.stack(of_query).mean() + torch.stack(of_video).mean()


def relations(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Distances and angles, student against teacher, averaged over all n² and n³ entries."""

    def distances(points: Tensor) -> Tensor:
        gram = points @ points.T
        lengths = gram.diagonal()
        apart = torch.sqrt(torch.clamp(lengths + lengths[:, None] - 2 * gram, min=1e-12))
        apart = apart.masked_fill(torch.eye(len(points), dtype=torch.bool), 0)
        return apart / apart[apart > 0].mean()

    def angles(points: Tensor) -> Tensor:
        """At each vertex, the cosines between the arms to all others."""
        cosines = []
        for vertex in points:
            arms = F.normalize(points - vertex, dim=1)
            cosines.append(arms @ arms.T)
        return torch.stack(cosines)

    return (
        F.smooth_l1_loss(distances(student), distances(teacher)),
        F.smooth_l1_loss(angles(student), angles(teacher)),
    )


def diversity(queries: list[Tensor], video_of_query: list[int], shift: float, scale: float, power: float) -> Tensor:
    total = torch.zeros(())
    for i, j in permutations(range(len(queries)), 2):
        if video_of_query[i] == video_of_query[j]:
            c = F.normalize(queries[i], dim=0) @ F.normalize(queries[j], dim=0)
            total = total + (1 + c) ** power * torch.log(1 + torch.exp(scale * (c + shift)))
    return total / len(queries)


def matching(queries: list[Tensor], clips: list[Tensor], video_of_query: list[int]) -> Tensor:
    """The best assignment by brute force, for up to three queries of a video."""
    matched = []
    for video, tokens in enumerate(clips):
        own = [i for i, v in enumerate(video_of_query) if v == video]
        if len(own) > 1:
            cosines = [[(F.normalize(queries[i], dim=0) @ F.normalize(c, dim=0)) for c in tokens] for i in own]
            values = [[value.item() for value in row] for row in cosines]
            ways = permutations(range(len(tokens)), len(own))
            best = max(ways, key=lambda way: sum(values[q][c] for q, c in enumerate(way)))
            matched += [cosines[q][c] for q, c in enumerate(best)]
    return 1 - torch.stack(matched).mean()
