"""The reconstruction of ARL in plain loops, from a dictionary of weights. No midreel.

There is no released code to compare with, so this twin follows the same specification by other means: one video and
one query at a time, and the uncertainty from the whole map of similarities.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.methods import twin_layers as layers
from tests.methods.twin_layers import Weights


@dataclass
class Model:
    """One of the two models, with what it sees in a training set."""

    weights: Weights
    name: str
    heads: int
    num_frames: int
    max_words: int

    def query(self, words: Tensor) -> Tensor:
        return layers.query(words[: self.max_words], layers.part(self.weights, f"{self.name}_query"), self.heads)

    def frames(self, video: Tensor) -> Tensor:
        rows = layers.unit(layers.capped(video, self.num_frames))
        encoded = layers.sequence(rows, layers.part(self.weights, f"{self.name}_frame"), self.heads)
        return layers.linear(encoded, layers.part(self.weights, f"{self.name}_output"))

    def see(self, videos: list[Tensor], queries: list[Tensor]) -> None:
        self.encoded = [self.frames(video) for video in videos]
        self.asked = [self.query(words) for words in queries]
        # M: the similarity of each query to each frame of each video.
        self.map = [[[layers.cosine(q, frame) for frame in video] for video in self.encoded] for q in self.asked]
        num_frames = sum(len(video) for video in self.encoded)
        self.of_query = [sum(sum(of_video) for of_video in of_query) / num_frames for of_query in self.map]
        self.of_frame = [
            [sum(self.map[i][j][k] for i in range(len(self.asked))) / len(self.asked) for k in range(len(video))]
            for j, video in enumerate(self.encoded)
        ]

    def similarity(self, i: int, j: int) -> Tensor:
        return max(self.map[i][j], key=Tensor.item)

    def product(self, i: int, j: int) -> Tensor:
        return max((self.asked[i] @ frame for frame in self.encoded[j]), key=Tensor.item)

    def best(self, i: int, j: int) -> int:
        values = [each.item() for each in self.map[i][j]]
        return values.index(max(values))

    def uncertainty(self, i: int, j: int, k: int) -> float:
        return (self.of_query[i] + self.of_frame[j][k]).item() / 2


def quantile(values: list[float], share: float) -> float:
    values, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


Pairs = dict[tuple[int, int], float]


def ambiguous(
    similar: Pairs, uncertain: Pairs, positive: set[tuple[int, int]], p_u: float, p_s: float, most: int
) -> set[tuple[int, int]]:
    """The ambiguous pairs among all pairs of `similar` that are not positive."""
    free = [pair for pair in similar if pair not in positive]
    least_u = quantile(list(uncertain.values()), p_u)
    least_s = quantile([similar[pair] for pair in free], p_s)
    found = [pair for pair in free if uncertain[pair] > least_u and similar[pair] > least_s]
    kept: set[tuple[int, int]] = set()
    for row in {i for i, _ in found}:
        own = sorted((pair for pair in found if pair[0] == row), key=lambda pair: similar[pair], reverse=True)
        kept |= set(own[:most])
    return kept


def contrastive(scores: dict[int, Tensor], positive: set[int], between: set[int], weight: float) -> Tensor:
    """One row: log of the sum of all, minus that of the positives and, weighted, the ambiguous ones."""
    everything = sum(score.exp() for score in scores.values())
    known = sum(scores[j].exp() for j in positive) + sum(weight * scores[j].exp() for j in between)
    return torch.as_tensor(everything).log() - torch.as_tensor(known).log()


def triplet(
    scores: dict[int, Tensor], positive: set[int], between: set[int], negative: set[int], margins: tuple[float, ...]
) -> Tensor:
    """One row with the hardest negative and, if there is one, the only ambiguous column."""
    own = torch.stack([scores[j] for j in positive]).mean()
    loss = torch.zeros_like(own)
    wrong = max((scores[j] for j in negative), key=Tensor.item, default=None)
    middle = scores[min(between)] if between else None
    if wrong is not None:
        loss = loss + (margins[0] + wrong - own).clamp_min(0)
    if wrong is not None and middle is not None:
        loss = loss + (margins[1] + wrong - middle).clamp_min(0)
    if middle is not None:
        loss = loss + (margins[2] + middle - own).clamp_min(0)
    return loss


def losses(model: Model, detector: Model, video_of_query: list[int], settings: dict[str, float]) -> dict[str, Tensor]:
    """The terms of one model, with one ambiguous pair for each query at most, and the hardest negatives."""
    num_queries, num_videos = len(model.asked), len(model.encoded)
    every = [(i, j) for i in range(num_queries) for j in range(num_videos)]
    positive = {(i, j) for i, j in every if video_of_query[i] == j}
    p_u, weight = settings["p_u"], settings["weight"]
    margins = (settings["m1"], settings["m2"], settings["m3"])
    found = ambiguous(
        {(i, j): detector.similarity(i, j).item() for i, j in every},
        {(i, j): detector.uncertainty(i, j, detector.best(i, j)) for i, j in every},
        positive,
        p_u,
        settings["p_s"],
        1,
    )
    rows: dict[str, list[Tensor]] = {"q_nce": [], "v_nce": [], "q_trip": [], "v_trip": [], "f_nce": [], "f_trip": []}
    for i in range(num_queries):
        own, between = {video_of_query[i]}, {j for row, j in found if row == i}
        rest = set(range(num_videos)) - own - between
        products = {j: model.product(i, j) for j in range(num_videos)}
        cosines = {j: model.similarity(i, j) for j in range(num_videos)}
        rows["q_nce"].append(contrastive(products, own, between, weight))
        rows["q_trip"].append(triplet(cosines, own, between, rest, margins))
    for j in range(num_videos):
        own, between = {i for i in range(num_queries) if video_of_query[i] == j}, {i for i, col in found if col == j}
        if own:
            rest = set(range(num_queries)) - own - between
            rows["v_nce"].append(
                contrastive({i: model.product(i, j) for i in range(num_queries)}, own, between, weight)
            )
            cosines = {i: model.similarity(i, j) for i in range(num_queries)}
            rows["v_trip"].append(triplet(cosines, own, between, rest, margins))
    frames = [(i, k) for i in range(num_queries) for k in range(len(model.encoded[video_of_query[i]]))]
    in_frames = ambiguous(
        {(i, k): detector.map[i][video_of_query[i]][k].item() for i, k in frames},
        {(i, k): detector.uncertainty(i, video_of_query[i], k) for i, k in frames},
        {(i, detector.best(i, video_of_query[i])) for i in range(num_queries)},
        p_u,
        settings["p_f"],
        1,
    )
    for i in range(num_queries):
        best = model.best(i, video_of_query[i])
        between = {k for row, k in in_frames if row == i and k != best}
        rest = {k for row, k in frames if row == i and abs(k - best) > 1} - between
        cosines = {k: model.map[i][video_of_query[i]][k] for k in {best} | between | rest}
        rows["f_nce"].append(contrastive(cosines, {best}, between, weight))
        rows["f_trip"].append(triplet(cosines, {best}, between, rest, margins))
    mean = {name: torch.stack(each).mean() for name, each in rows.items()}
    return {
        "contrastive": settings["nce"] * (mean["q_nce"] + mean["v_nce"]),
        "triplet": mean["q_trip"] + mean["v_trip"],
        "frame_contrastive": settings["frame"] * mean["f_nce"],
        "frame_triplet": settings["frame"] * mean["f_trip"],
    }
