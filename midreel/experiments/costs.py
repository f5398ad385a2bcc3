"""The cost of a method: floating point operations, memory, and the time of searches and training steps."""

import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from midreel.methods.base import Method, evaluating
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.optim import BertAdam, parameter_groups

MEGABYTE = 1e6


def num_flops(run: Callable[[], object]) -> int:
    """Return the floating point operations of a call, as torch counts them: those of matrix products."""
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the largest number of bytes that tensors on the CPU take during a call, beyond those before it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler prints lines to stderr otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    # The trace has an event for each allocation. The events in Python belong to operations, without an order.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    return max(accumulate((size for _, size in changes), initial=0))


def num_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def weights_of(method: Method) -> list[torch.Tensor]:
    """Return the parameters and buffers of a method."""
    return [*method.parameters(), *method.buffers()]


def in_turns(candidates: Sequence[Callable[[], object]], rounds: int, warm_up: int = 1) -> list[list[float]]:
    """Time candidates that take turns, so that load on the machine affects all of them.

    Args:
        candidates: The functions to call.
        rounds: The number of timed calls of each candidate.
        warm_up: The number of calls before.

    Returns:
        The seconds of each round, by candidate.
    """
    times: list[list[float]] = [[] for _ in candidates]
    for turn in range(warm_up + rounds):
        for run, seen in zip(candidates, times, strict=True):
            start = time.perf_counter()
            run()
            if turn >= warm_up:
                seen.append(time.perf_counter() - start)
    return times


def ratios(above: Callable[[], object], below: Callable[[], object], rounds: int) -> list[float]:
    """Return the ratio of two times in each round, in ascending order. The two take turns.

    Args:
        above: The function whose time is divided.
        below: The function to compare it with.
        rounds: The number of rounds.
    """
    times = in_turns([above, below], rounds)
    return sorted(over / under for over, under in zip(*times, strict=True))


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and half the range of the middle half."""
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return median, (high - low) / 2


def training_step(method: Method, data: FeatureSet, recipe: Recipe, device: str = "cpu") -> Callable[[], None]:
    """Return a training step of a copy of the method, on the first videos.

    Args:
        method: The method.
        data: The training set, prepared for the method.
        recipe: The size of a batch and the optimiser.
        device: The torch device.
    """
    method = copy.deepcopy(method).to(device)
    with evaluating(method):
        method.start_epoch(0, (batch.to(device) for batch in data.batches(recipe.batch_size)))
    batch = data.batch(torch.arange(min(recipe.batch_size, len(data)))).to(device)
    optimiser = BertAdam(
        parameter_groups(method, recipe.weight_decay), lr=1e-6, total_steps=1 << 20, warmup=recipe.warmup
    )
    method.train()

    def step() -> None:
        torch.stack(list(method.losses(batch, epoch=recipe.epochs - 1).values())).sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def searches(method: Method, data: FeatureSet, *, num_videos: int | None = None, num: int = 20) -> Callable[[], None]:
    """Return a function that encodes a few queries, and scores stored tokens of videos for each.

    Args:
        method: The method.
        data: The videos and queries.
        num_videos: The number of videos. Default: all.
        num: The number of queries, at most.
    """
    method.eval()
    some = torch.arange(num_videos or len(data)) % len(data)
    with torch.inference_mode():
        videos = method.encode_videos(data.video_batch(some))
    queries = [data.query_batch(torch.tensor([index])) for index in range(min(num, len(data.queries)))]

    def run() -> None:
        with torch.inference_mode():
            for query in queries:
                method.score(method.encode_queries(query), videos)

    return run
