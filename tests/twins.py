"""Slow twins: the formulas of the paper in plain loops, one video, one pair and one number at a time.

Tests compare the functions of midreel with them. They return torch scalars, so autograd gives their gradients too.
"""

import math
from itertools import pairwise, permutations, product

import torch
from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


def huber(gap: Tensor) -> Tensor:
    return gap.square() / 2 if gap.detach().abs() < 1 else gap.abs() - 0.5


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()


def log_sum_exp(values: list[Tensor]) -> Tensor:
    return torch.stack(values).exp().sum().log()


# ---------------------------------------------------------------- segments


def resample(frames: Tensor, length: int) -> Tensor:
    total = len(frames)
    bounds = [min(round(k * total / length), total - 1) for k in range(length + 1)]
    rows = []
    for low, high in pairwise(bounds):
        rows.append(frames[low:high].mean(0) if low < high else frames[low])
    return torch.stack(rows)


def cap(frames: Tensor, length: int) -> list[Tensor]:
    """The frames themselves, or `length` windows of a longer video."""
    total = len(frames)
    if total <= length:
        return list(frames)
    bounds = [min(round(k / length * total), total - 1) for k in range(length + 1)]
    return [frames[low:high].mean(0) if low < high else frames[low] for low, high in pairwise(bounds)]


def levels(length: int, rate: float, minimum: int) -> list[int]:
    lengths = [length]
    while lengths[-1] > minimum:
        new = max(2 * math.floor((lengths[-1] - (lengths[-1] / 2) * rate + 1) / 2), minimum)
        if new == lengths[-1]:
            break
        lengths.append(new)
    return lengths


def order_preserving(frames: Tensor, lengths: list[int], similarity: str = "cosine") -> list[int]:
    """Algorithm 1 for one video: a shrinking list of tokens."""
    tokens = [(frame, 1, [i]) for i, frame in enumerate(frames)]
    for length in lengths[1:]:
        score = {}
        for i in range(0, len(tokens) - 1, 2):
            a, b = tokens[i][0], tokens[i + 1][0]
            score[i] = float(cosine(a, b) if similarity == "cosine" else (a * b).sum())
        chosen = sorted(score, key=lambda i: -score[i])[: len(tokens) - length]
        merged, i = [], 0
        while i < len(tokens):
            if i in chosen:
                (a, size_a, members_a), (b, size_b, members_b) = tokens[i], tokens[i + 1]
                merged.append(((size_a * a + size_b * b) / (size_a + size_b), size_a + size_b, members_a + members_b))
                i += 2
            else:
                merged.append(tokens[i])
                i += 1
        tokens = merged
    segment_of_frame = [0] * len(frames)
    for segment, (_, _, members) in enumerate(tokens):
        for frame in members:
            segment_of_frame[frame] = segment
    return segment_of_frame


def connectivity(tokens: Tensor, threshold: float, transitive: bool = False) -> float:
    total = len(tokens)
    linked = {(i, j) for i, j in permutations(range(total), 2) if float(cosine(tokens[i], tokens[j])) > threshold}
    if transitive:  # Warshall
        for via, i, j in product(range(total), repeat=3):
            if i != j and (i, via) in linked and (via, j) in linked:
                linked.add((i, j))
    return len(linked) / max(total * (total - 1), 1)


def numbered(groups: list[object]) -> list[int]:
    names: dict[object, int] = {}
    return [names.setdefault(group, len(names)) for group in groups]


def bipartite(tokens: Tensor, keep: int, exclusive: bool = False) -> list[int]:
    """One ToMe step for one video. `exclusive` merges greedy pairs, which take the position of their even token."""
    total = len(tokens)
    proposals = [(float(cosine(tokens[a], tokens[b])), a, b) for a in range(0, total, 2) for b in range(1, total, 2)]
    proposals.sort(key=lambda proposal: -proposal[0])
    group = list(range(total))
    proposed, joined = set(), set()
    merges = 0
    for _, a, b in proposals:
        if merges == total - keep:
            break
        if a in proposed or (exclusive and b in joined):
            continue
        if exclusive:
            group[b] = a
        else:
            group[a] = b
        proposed.add(a)
        joined.add(b)
        merges += 1
    if exclusive:
        leaders = [i for i in range(total) if group[i] == i]
        return [leaders.index(leader) for leader in group]
    return numbered(list(group))


def adaptive(
    tokens: Tensor, sizes: list[int], threshold: float, lengths: list[int], released: bool = False
) -> list[int]:
    """Algorithm 3 for one video."""
    ratio = connectivity(tokens, threshold, transitive=released)
    steps = min(len(lengths) - 1, math.floor(ratio * len(lengths)))
    merged_of_token = list(range(len(tokens)))
    for keep in lengths[1 : steps + 1]:
        step = bipartite(tokens, keep, exclusive=released)
        rows, new_sizes = [], []
        for segment in range(keep):
            members = [i for i, s in enumerate(step) if s == segment]
            size = sum(sizes[i] for i in members)
            rows.append(torch.stack([sizes[i] * tokens[i] for i in members]).sum(0) / size)
            new_sizes.append(size)
        tokens, sizes = torch.stack(rows), new_sizes
        merged_of_token = [step[i] for i in merged_of_token]
    return merged_of_token


# ---------------------------------------------------------------- losses


def infonce(scores: Tensor, video_of_query: list[int]) -> Tensor:
    num_queries, num_videos = scores.shape
    of_query = [
        log_sum_exp([scores[i, j] for j in range(num_videos)]) - scores[i, video_of_query[i]]
        for i in range(num_queries)
    ]
    of_video = []
    for j in range(num_videos):
        own = [scores[i, j] for i in range(num_queries) if video_of_query[i] == j]
        if own:
            of_video.append(log_sum_exp([scores[i, j] for i in range(num_queries)]) - log_sum_exp(own))
    return mean(of_query) + mean(of_video)


def distance_preservation(student: Tensor, teacher: Tensor, include_diagonal: bool = False) -> Tensor:
    num, zero = len(student), torch.zeros((), dtype=student.dtype)

    def scaled(points: Tensor) -> dict[tuple[int, int], Tensor]:
        distance = {
            (i, j): (points[i] - points[j]).square().sum().sqrt() if bool((points[i] != points[j]).any()) else zero
            for i, j in permutations(range(num), 2)
        }
        mu = mean(list(distance.values()))
        return {pair: d / mu for pair, d in distance.items()}

    of_student, of_teacher = scaled(student), scaled(teacher)
    total = torch.stack([huber(of_student[pair] - of_teacher[pair]) for pair in of_student]).sum()
    return total / (num * num if include_diagonal else num * (num - 1))


def angle_preservation(student: Tensor, teacher: Tensor) -> Tensor:
    num = len(student)

    def direction(points: Tensor, i: int, j: int) -> Tensor:
        arm = points[i] - points[j]
        return arm / arm.square().sum().sqrt() if bool((arm != 0).any()) else arm.detach()

    total = torch.zeros((), dtype=student.dtype)
    for i, j, k in product(range(num), repeat=3):
        of_student = (direction(student, i, j) * direction(student, k, j)).sum()
        of_teacher = (direction(teacher, i, j) * direction(teacher, k, j)).sum()
        total = total + huber(of_student - of_teacher)
    return total / num**3


def cross_branch_alignment(frames: Tensor, clips: Tensor, clip_of_frame: Tensor) -> Tensor:
    videos = []
    for frame, clip, owner in zip(frames, clips, clip_of_frame.tolist(), strict=True):
        used = sorted(set(owner))
        to_clip = [
            log_sum_exp([cosine(f, clip[c]) for c in used]) - cosine(f, clip[o])
            for f, o in zip(frame, owner, strict=True)
        ]
        to_frame = []
        for c in used:
            own = [cosine(f, clip[c]) for f, o in zip(frame, owner, strict=True) if o == c]
            to_frame.append(log_sum_exp([cosine(f, clip[c]) for f in frame]) - log_sum_exp(own))
        videos.append(mean(to_clip) + mean(to_frame))
    return mean(videos)


def released_alignment(frames: Tensor, clips: Tensor, clip_of_frame: Tensor) -> Tensor:
    def contrast(own: list[Tensor], other: list[Tensor]) -> Tensor:
        if not other:
            return torch.zeros((), dtype=frames.dtype)
        positive, negative = mean([s.exp() for s in own]), mean([s.exp() for s in other])
        return -(positive / (positive + negative)).log()

    videos = []
    for frame, clip, owner in zip(frames, clips, clip_of_frame.tolist(), strict=True):
        used = sorted(set(owner))
        still_frame, still_clip = frame.detach(), clip.detach()
        to_clip = [
            contrast([f @ still_clip[o]], [f @ still_clip[c] for c in used if c != o])
            for f, o in zip(frame, owner, strict=True)
        ]
        to_frame = [
            contrast(
                [f @ clip[c] for f, o in zip(still_frame, owner, strict=True) if o == c],
                [f @ clip[c] for f, o in zip(still_frame, owner, strict=True) if o != c],
            )
            for c in used
        ]
        videos.append(mean(to_clip) + mean(to_frame))
    return mean(videos)


def query_diversity(queries: Tensor, video_of_query: list[int], shift: float, scale: float, focus: float) -> Tensor:
    total = torch.zeros((), dtype=queries.dtype)
    for i, j in permutations(range(len(queries)), 2):
        if video_of_query[i] == video_of_query[j]:
            c = cosine(queries[i], queries[j])
            total = total + (1 + c) ** focus * torch.log(1 + torch.exp(scale * (c + shift)))
    return total / len(queries)


def optimal_matching(queries: Tensor, clips: Tensor, video_of_query: list[int]) -> Tensor:
    """Try all assignments of a video's queries to different clips, for a few of each."""
    matched = []
    for video in sorted(set(video_of_query)):
        own = [i for i, v in enumerate(video_of_query) if v == video]
        if len(own) < 2:
            continue
        cosines = [[cosine(queries[i], clip) for clip in clips[video]] for i in own]
        ways = permutations(range(clips.shape[1]), len(own))
        best = max(ways, key=lambda way: sum(cosines[q][c].item() for q, c in enumerate(way)))
        matched += [cosines[q][c] for q, c in enumerate(best)]
    return 1 - mean(matched) if matched else torch.zeros((), dtype=queries.dtype)


# ---------------------------------------------------------------- network


def gaussian_window(length: int, width: float) -> Tensor:
    sigma = max(width, 0.01) / 9
    rows = []
    for i in range(length):
        row = [math.exp(-((j / max(length - 1, 1) - i / length) ** 2) / (2 * sigma**2)) for j in range(length)]
        rows.append([value / max(row) for value in row])
    return torch.tensor(rows)


def attend(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, window: Tensor | None, key_bias: Tensor | None
) -> Tensor:
    """Multi-head attention of one sequence, [L, D] each."""
    length, width = query.shape
    head_width = width // num_heads
    rows = []
    for i in range(length):
        heads = []
        for h in range(num_heads):
            part = slice(h * head_width, (h + 1) * head_width)
            logits = []
            for j in range(len(key)):
                logit = (query[i, part] * key[j, part]).sum() / math.sqrt(head_width)
                if window is not None:
                    logit = logit * window[i, j]
                logits.append(logit if key_bias is None else logit + key_bias[j])
            weights = torch.stack(logits).exp()
            weights = weights / weights.sum()
            heads.append(sum(w * value[j, part] for j, w in enumerate(weights)))
        rows.append(torch.cat(heads))
    return torch.stack(rows)
