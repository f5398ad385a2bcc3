"""A slow twin of TF-PRVR in plain loops, without any code of midreel. It computes K y for one query and one video.

The bands of the wavelets are an argument, because they have a twin of their own.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

Vector = list[float]
Bands = Callable[[Vector, int], list[Vector]]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(a: Vector) -> Vector:
    length = math.sqrt(dot(a, a))
    return [x / length for x in a] if length > 0 else a


def signal(frames: list[Vector], released: bool) -> Vector:
    steps = [[y - x for x, y in zip(a, b, strict=True)] for a, b in pairwise([unit(frame) for frame in frames])]
    lengths = [math.sqrt(dot(step, step)) for step in steps]
    values = []
    for t in range(len(steps) - 1):
        if released and lengths[t] <= 1e-8 and lengths[t + 1] <= 1e-8:
            values.append(0.0)
        else:
            values.append(1 - dot(steps[t], steps[t + 1]) / ((lengths[t] + 1e-8) * (lengths[t + 1] + 1e-8)))
    return values


def cuts(frames: list[Vector], bands: Bands, released: bool) -> list[list[int]]:
    values = signal(frames, released) if len(frames) > 2 else []
    num = len(values)
    num_levels = 0
    if num:
        num_levels = max(int(math.log2(num / 7)) if num >= 7 else 0, 0) if released else int(math.log2(num))
    found = []
    for band in bands(values, num_levels) if num_levels else []:
        response = [abs(value) for value in band]
        mean = sum(response) / num
        deviation = math.sqrt(sum((value - mean) ** 2 for value in response) / num)
        found.append(
            [
                i + (2 if released else 1)
                for i in range(1, num - 1)
                if response[i - 1] < response[i] > response[i + 1]
                and response[i] > mean + deviation
                and response[i] > 1e-12
            ]
        )
    return found or [[]]


def scores_over_time(
    frames: list[Vector], query: Vector, bands: Bands, *, spread: float = 0.7, released: bool = True
) -> Vector:
    """Return C(τ) for each frame τ: the mean over the levels of the spread relevance of the segment that contains τ."""
    query, total = unit(query), len(frames)
    if not released and total < 4:
        return [dot(unit(frame), query) for frame in frames]
    nodes = []  # level, start, end, vector
    for level, inner in enumerate(cuts(frames, bands, released)):
        for start, end in pairwise([0, *inner, total]):
            rows = [unit(frame) if released else frame for frame in frames[start:end]]
            mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
            nodes.append((level, start, end, unit(mean)))
    num_levels = nodes[-1][0] + 1
    size = len(nodes)
    links = np.zeros((size, size))
    for i, (level, start, end, vector) in enumerate(nodes):
        lengths = [e - s for other, s, e, _ in nodes if other == level]
        for j, (other_level, other_start, other_end, other) in enumerate(nodes):
            alike = max(0.0, dot(vector, other))
            if i == j:
                links[i, j] = 1
            elif level == other_level:
                distance = abs((start + end) / 2 - (other_start + other_end) / 2)
                links[i, j] = alike + math.exp(-distance / (sum(lengths) / len(lengths)))
            elif abs(level - other_level) == 1:
                shared = len(set(range(start, end)) & set(range(other_start, other_end)))
                union = len(set(range(start, end)) | set(range(other_start, other_end)))
                links[i, j] = shared / union * alike * (1 if released else 0.5)
    degrees = links.sum(1)
    normal = np.array([[links[i, j] / math.sqrt(degrees[i] * degrees[j]) for j in range(size)] for i in range(size)])
    relevance = np.array([dot(vector, query) for *_, vector in nodes])
    # r = (1 - β) Σ_k β^k W^k y, term by term. The norm of W is 1.
    result, term = np.zeros(size), (1 - spread) * relevance
    for _ in range(400):
        result, term = result + term, spread * (normal @ term)
    return [
        sum(result[i] for i, (_, start, end, _) in enumerate(nodes) if start <= frame < end) / num_levels
        for frame in range(total)
    ]
