"""Measure the speed of training at the paper's sizes for QVHighlights.

    make bench-train

All times are medians. The candidates of a ratio take turns, so that load on the machine affects all of them.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measuring import (
    Row,
    at_least,
    at_most,
    in_turns,
    machine,
    publish,
    reported,
    resident_megabytes,
    table,
)
from midreel.losses.relational import angle_preservation
from midreel.methods.base import clip_inputs
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.msc import MSC, MSCConfig
from midreel.ops import neighbours, segments
from midreel.training.memory import keep_freed_memory
from midreel.training.streaming import prepared
from tests import twins

NUM_VIDEOS = 128
NUM_QUERIES = 427
NUM_FRAMES = 150  # two-second steps of a QVHighlights video, before resampling
MERGED_VIDEOS = 1000
MERGED_WIDTHS = (2816, 768, 512)  # SlowFast and CLIP-B on QVHighlights; CLIP-L on the other benchmarks; CLIP-B
LOOPED_VIDEOS = 20
PREPARED_VIDEOS = 200
PREPARED_WIDTHS = (2816, 768, 512, 128)  # the widths above; the tiny CLIP of the playhouse

CONFIG = MSCConfig()
BASE = replace(CONFIG, tcpl=False, cbva=False, adaptive=False)
REMARKS = (
    "*Loop* is Algorithm 1 for one video and one pair at a time (tests/twins.py), timed on",
    f"{LOOPED_VIDEOS} videos and extrapolated. *A call per video* is midreel's function without batching. *By numpy*",
    "is midreel without its C extension.",
    "",
    "Merging reads the features once and multiplies each frame with its seven successors (`midreel/ops/neighbours.c`),",
    "which takes most of its time. The time of the loop is mostly overhead that hardly depends on the width, so the",
    "ratio falls with the width. At width 2816 (1.4 GB for 1,000 videos) reading alone limits the ratio to about 100.",
    "",
    "Four measures reduce the time outside the matrix products: freed memory is kept instead of returned to the system",
    "(`midreel/training/memory.py`), attention weights stay in cache and are computed again in the backward pass",
    "(`midreel/nn/windowed_attention.py`), dropout draws four numbers at a time (`midreel/nn/dropout.py`), and the",
    "summaries of the mixture need no key and value projections (`midreel/nn/attention.py`).",
)
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}


# ---------------------------------------------------------------- candidates


def synthetic_batch(method: MSC) -> Batch:
    """Return a batch of videos with a few scenes each, and of queries with 6 to 32 tokens as in QVHighlights."""
    generator = torch.Generator().manual_seed(0)
    scenes = torch.randn(NUM_VIDEOS, 6, CONFIG.video_width, generator=generator).repeat_interleave(25, 1)
    frames = scenes + 0.7 * torch.randn(NUM_VIDEOS, NUM_FRAMES, CONFIG.video_width, generator=generator)
    lengths = torch.randn(NUM_QUERIES, 1, generator=generator).mul(4).add(13).round().clamp(6, 32)
    words = torch.randn(NUM_QUERIES, int(lengths.max()), CONFIG.text_width, generator=generator)
    extra = torch.randint(NUM_VIDEOS, (NUM_QUERIES - NUM_VIDEOS,), generator=generator)
    return Batch(
        videos=method.prepare_videos(frames),
        queries=QueryBatch(words=words, mask=torch.arange(words.shape[1]) < lengths),
        video_of_query=torch.cat([torch.arange(NUM_VIDEOS), extra]).sort().values,
    )


def training_step(method: MSC, batch: Batch) -> Callable[[], None]:
    """Return a training step: forward pass, losses, backward pass, and an update by torch's AdamW."""
    optimiser = torch.optim.AdamW(method.parameters(), lr=1e-6)

    def step() -> None:
        torch.stack(list(method.losses(batch).values())).sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def own_terms(method: MSC, batch: Batch) -> Callable[[], None]:
    """Return the forward and backward pass of the losses that only the full step has, on encoded tokens."""
    with torch.no_grad():
        tokens, queries = method.encode_videos(batch.videos), method.encode_queries(batch.queries)

    def step() -> None:
        leaves = {name: replace(part, vectors=part.vectors.detach().requires_grad_()) for name, part in tokens.items()}
        vectors = {name: vector.detach().requires_grad_() for name, vector in queries.items()}
        torch.stack(list(method.own_losses(vectors, leaves, batch).values())).sum().backward()

    return step


class ProductRecorder(TorchDispatchMode):
    """A dispatch mode that counts matrix products by the shapes and strides of their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[tuple[Any, ...]] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function.overloadpacket.__name__ in PRODUCTS:
            left, right = [a for a in args if isinstance(a, Tensor)][-2:]
            self.products[tuple(left.shape), left.stride(), tuple(right.shape), right.stride()] += 1
        return function(*args, **(kwargs or {}))


def products_alone(step: Callable[[], None]) -> Callable[[], None]:
    """Return a function that computes only the matrix products of a step, into outputs that are allocated before."""
    with ProductRecorder() as recorder:
        step()
    plan = []
    for (left_shape, left_stride, right_shape, right_stride), count in recorder.products.items():
        left = torch.empty_strided(left_shape, left_stride).normal_()
        right = torch.empty_strided(right_shape, right_stride).normal_()
        multiply = torch.mm if left.ndim == 2 else torch.bmm
        plan.append((multiply, left, right, multiply(left, right), count))

    def run() -> None:
        for multiply, left, right, out, count in plan:
            for _ in range(count):
                multiply(left, right, out=out)

    return run


def textbook_angle(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the angle term as it is usually written, with Q × Q × D differences."""

    def cosines(points: Tensor) -> Tensor:
        arms = torch.nn.functional.normalize(points[:, None] - points[None], dim=2)
        return arms @ arms.mT

    with torch.no_grad():
        target = cosines(teacher)
    return torch.nn.functional.smooth_l1_loss(cosines(student), target)


class MergeTimes(NamedTuple):
    """The seconds of merging many videos. The first two are extrapolated from a few videos."""

    loop: float  # Algorithm 1 in plain loops
    single: float  # a call per video
    by_numpy: float  # one call, without the C extension
    batched: float  # one call


def merging(frames: Tensor, rounds: int) -> MergeTimes:
    """Time the ways to merge the frames of videos."""
    many = frames.repeat(-(-MERGED_VIDEOS // len(frames)), 1, 1)[:MERGED_VIDEOS].contiguous()
    lengths = segments.levels(CONFIG.num_frames, CONFIG.merge_rate, CONFIG.num_clips)
    few = many[:LOOPED_VIDEOS]

    def by_numpy() -> None:
        with patch.object(neighbours, "compiled", return_value=None):
            segments.order_preserving(many)

    loop, single, *whole = in_turns(
        [
            lambda: [twins.order_preserving(video, lengths) for video in few],
            lambda: [segments.order_preserving(video[None]) for video in few],
            by_numpy,
            lambda: segments.order_preserving(many),
        ],
        2 * rounds,
    )
    times = MERGED_VIDEOS / LOOPED_VIDEOS
    return MergeTimes(loop * times, single * times, *whole)


def preparing(width: int, rounds: int) -> tuple[float, float]:
    """Seconds to prepare videos of different lengths: a call of `prepare_videos` for each, and in batches."""
    method = MSC(replace(CONFIG, video_width=width, vcpl_teacher="all"))
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 400, (PREPARED_VIDEOS,), generator=generator).tolist()
    videos = [torch.randn(length, width, generator=generator) for length in lengths]

    def alone() -> VideoBatch:
        return VideoBatch.join((method.prepare_videos(video[None]) for video in videos), len(videos))

    def batched() -> VideoBatch:
        return VideoBatch.join(prepared(method, videos), len(videos))

    single, together = in_turns([alone, batched], 2 * rounds)
    return single, together


def angle_step(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
    """Return the forward and backward pass of an angle term."""
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(NUM_QUERIES, CONFIG.width, generator=generator).requires_grad_()
    teacher = torch.randn(NUM_QUERIES, CONFIG.text_width, generator=generator)

    def step() -> None:
        student.grad = None
        loss(student, teacher).backward()

    return step


# ---------------------------------------------------------------- measurements


def reset_peak() -> None:
    """Reset the peak memory of this process to its present memory."""
    Path("/proc/self/clear_refs").write_text("5")


PEAKS: dict[str, Callable[[], Callable[[], None]]] = {
    "textbook angle": lambda: angle_step(textbook_angle),
    "angle": lambda: angle_step(angle_preservation),
    "base": lambda: training_step(MSC(BASE), synthetic_batch(MSC(BASE))),
    "full": lambda: training_step(MSC(CONFIG), synthetic_batch(MSC(CONFIG))),
}


def peak_of(name: str) -> float:
    """Return the peak megabytes that a step adds to a fresh process."""
    command = [sys.executable, "-m", "benchmarks.training_speed", "--peak", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(name: str) -> None:
    """Run a step in this process, and print the peak megabytes that it adds."""
    step = PEAKS[name]()
    before = resident_megabytes("VmRSS")
    reset_peak()
    step()
    print(resident_megabytes("VmHWM") - before)


def measure(rounds: int) -> list[Row]:
    """Measure everything, and return the rows."""
    keep_freed_memory()
    full, base = MSC(CONFIG), MSC(BASE)
    batch = synthetic_batch(full)
    steps = [training_step(full, batch), training_step(base, batch)]
    full_time, base_time, product_time = in_turns([*steps, products_alone(steps[0])], rounds)
    full_peak, base_peak = peak_of("full"), peak_of("base")

    textbook_time, angle_time = in_turns([angle_step(textbook_angle), angle_step(angle_preservation)], 2 * rounds)
    textbook_peak, angle_peak = peak_of("textbook angle"), peak_of("angle")

    clips, sizes = clip_inputs(batch.videos, CONFIG.num_clips)
    adaptive_time, own_time = in_turns([lambda: full.merge_clips(clips, sizes), own_terms(full, batch)], 10)

    prepare_times = {width: preparing(width, rounds) for width in PREPARED_WIDTHS}
    merge_times = {width: merging(batch.videos.frames[..., -width:], rounds) for width in MERGED_WIDTHS}

    return [
        at_most("full MSC step / step of the base losses alone", 1.10, full_time, base_time),
        reported("TCPL and adaptive CBVA alone, forward and backward / step of the base losses", own_time, base_time),
        at_most("full MSC step / its matrix products alone", 2.0, full_time, product_time),
        at_least("angle term, textbook / ours, forward and backward", 5, textbook_time, angle_time),
        at_least("angle term, textbook / ours, peak extra memory", 8, textbook_peak, angle_peak, "MB"),
        *(
            at_least(
                f"merging {MERGED_VIDEOS:,} videos 128 → 32 at width {width}, loop / batched", 50, t.loop, t.batched
            )
            for width, t in merge_times.items()
        ),
        *(
            reported(f"merging at width {width}, a call per video / batched", t.single, t.batched)
            for width, t in merge_times.items()
        ),
        *(
            reported(f"merging at width {width}, by numpy / batched", t.by_numpy, t.batched)
            for width, t in merge_times.items()
        ),
        *(
            reported(f"preparing {PREPARED_VIDEOS} videos at width {width}, a call per video / batched", *times)
            for width, times in prepare_times.items()
        ),
        at_most("adaptive merging of a batch / full MSC step", 0.02, adaptive_time, full_time),
        Row(what="peak extra memory of a full MSC step", measured=f"{full_peak:,.0f} MB"),
        Row(what="peak extra memory of a base step", measured=f"{base_peak:,.0f} MB"),
    ]


# ---------------------------------------------------------------- report


def report(rows: Sequence[Row]) -> str:
    """Return the report as Markdown."""
    lines = [
        "# Training speed",
        "",
        "Measured by `make bench-train`. Ratios are medians over rounds of one run in which the candidates take turns.",
        "The seconds in brackets depend on the machine and its load.",
        "",
        f"Sizes: {NUM_VIDEOS} videos, {NUM_QUERIES} queries of 6 to 32 words, {CONFIG.num_frames} frames, features of",
        f"width {CONFIG.video_width} (video) and {CONFIG.text_width} (text), model width {CONFIG.width}. A step is",
        "forward pass, losses, backward pass and the AdamW update. The matrix products are recorded from a step and",
        "run again alone. Peak memory is what a step adds to a fresh process.",
        "",
        machine(),
        "",
    ]
    return "\n".join([*lines, *table(rows), "", *REMARKS, ""])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of timed rounds [5]")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    parser.add_argument("--peak", choices=PEAKS, help="print the peak extra memory of one candidate, in megabytes")
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(arguments.peak)
        return
    text = report(measure(arguments.rounds))
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
