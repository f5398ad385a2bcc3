"""Several processes compute the loss and the gradient of one. The processes are real, and talk by gloo."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from midreel.errors import BadSetting
from midreel.methods import METHODS
from midreel.methods.base import Method
from midreel.methods.batches import Batch, QueryBatch
from midreel.ops import processes
from midreel.ops.processes import PATIENCE, Processes
from tests.methods.small import TRAINED, perturbed, small_config
from tests.training.worlds import WIDTH

EPOCH = 3  # hard negatives, matching and ambiguity have started


def run_together(tmp_path: Path, function: Callable[..., Any], count: int, *args: Any) -> list[Any]:
    """Return the result of a function of a `Processes` in each of several processes."""
    torch.multiprocessing.spawn(_entry, (count, tmp_path, function, args), nprocs=count)
    return [torch.load(tmp_path / f"result {rank}", weights_only=False) for rank in range(count)]


def _entry(rank: int, count: int, folder: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), count)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=60)
    )
    result = function(Processes(rank=rank, count=count), *args)
    torch.save(result, folder / f"result {rank}")
    torch.distributed.destroy_process_group()


# ---------------------------------------------------------------- loss and gradient of every method


class Outcome(NamedTuple):
    """The loss terms of a step and the gradients of the weights."""

    terms: dict[str, float]
    gradients: dict[str, torch.Tensor]


def batch_of(method: Method) -> Batch:
    """Five videos of different lengths with nine queries: neither number is a multiple of 2."""
    generator = torch.Generator().manual_seed(5)
    words, sentence = (torch.randn(*shape, generator=generator) for shape in ((9, 5, WIDTH), (9, WIDTH)))
    frames, lengths = torch.randn(5, 20, WIDTH, generator=generator), torch.tensor([3, 4, 7, 11, 5])
    lengths_of_queries = torch.tensor([2, 3, 4, 5, 5, 2, 3, 3, 4])
    batch = Batch(
        videos=method.prepare_videos(frames, lengths),
        queries=QueryBatch(words=words, mask=torch.arange(5) < lengths_of_queries[:, None], sentence=sentence),
        video_of_query=torch.tensor([0, 0, 1, 2, 2, 3, 3, 4, 4]),
    )
    return in_double(batch)


def in_double(batch: Batch) -> Batch:
    return processes._mapped(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, batch)


def step(together: Processes | None, name: str, settings: dict[str, Any]) -> Outcome:
    """Compute one step of a method without dropout, in double precision."""
    torch.manual_seed(1)
    method = perturbed(METHODS[name](small_config(name, **settings))).double()
    for part in method.modules():
        if hasattr(part, "rate"):
            part.rate = 0.0
    batch = batch_of(method)
    method.processes = together
    with torch.no_grad():
        method.start_epoch(EPOCH, iter([batch]))
    torch.manual_seed(2)
    terms = method.train().losses(batch, epoch=EPOCH)
    loss = torch.stack(list(terms.values())).sum()
    (loss / (1 if together is None else together.count)).backward()
    if together is not None:
        together.sum_gradients(method.parameters())
    gradients = {key: weight.grad for key, weight in method.named_parameters() if weight.grad is not None}
    return Outcome({key: term.item() for key, term in terms.items()}, gradients)


CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in TRAINED),
    ("msc", {"vcpl": "retrieved"}),
    ("msc", {"vcpl": "uniform", "vcpl_jitter": True}),
    ("dl_dkd", {"objective": "iccv"}),
]


def steps(together: Processes) -> list[Outcome]:
    return [step(together, name, settings) for name, settings in CASES]


@pytest.mark.slow
def test_several_processes_have_the_loss_and_gradient_of_one(tmp_path: Path) -> None:
    results = run_together(tmp_path, steps, 2)
    for number, (name, settings) in enumerate(CASES):
        expected = step(None, name, settings)
        assert expected.gradients
        for found in results:
            assert found[number].terms == pytest.approx(expected.terms, abs=1e-6), name
            assert found[number].gradients.keys() == expected.gradients.keys(), name
            for key, gradient in expected.gradients.items():
                torch.testing.assert_close(found[number].gradients[key], gradient, atol=1e-6, rtol=1e-6)
        assert any(gradient.abs().max() > 1e-3 for gradient in expected.gradients.values()), name


# ---------------------------------------------------------------- parts


class Pair(NamedTuple):
    """A result with a name for each part."""

    doubled: torch.Tensor
    mask: torch.Tensor


def gather(together: Processes) -> Any:
    return {total: gather_rows(together, total) for total in (1, 2, 5, 8)}


def gather_rows(together: Processes, total: int) -> Any:
    rows = torch.arange(total, dtype=torch.float32)[:, None]
    seen: list[int] = []

    def function(part: torch.Tensor) -> Any:
        seen.append(len(part))
        same = part * 2
        return {"a": Pair(same, part[:, 0] > 1), "b": (same.bfloat16(), same)}

    return together.encode(function, rows), seen


@pytest.mark.slow
def test_the_rows_come_back_whole_and_in_order(tmp_path: Path) -> None:
    for total, (found, seen) in (item for result in run_together(tmp_path, gather, 3) for item in result.items()):
        expected = torch.arange(total, dtype=torch.float32)[:, None] * 2
        assert seen == [-(-total // 3)]
        assert found["a"].doubled.equal(expected)
        assert found["a"].mask.equal(expected[:, 0] > 2)
        assert found["b"][0].equal(expected.bfloat16())
        assert found["b"][1] is found["a"].doubled


def draw(together: Processes) -> Any:
    torch.manual_seed(7)
    together.seed(7)
    layer = nn.Dropout(0.5)
    dropped = [together.encode(layer, torch.ones(4, 16)) for _ in range(2)]
    return dropped, torch.rand(3)


@pytest.mark.slow
def test_dropout_differs_between_parts_and_the_draws_of_losses_agree(tmp_path: Path) -> None:
    (dropped, after), (other, other_after) = run_together(tmp_path, draw, 2)
    torch.manual_seed(7)
    assert after.equal(other_after)
    assert after.equal(torch.rand(3))
    assert all(mine.equal(theirs) for mine, theirs in zip(dropped, other, strict=True))
    assert not dropped[0][:2].equal(dropped[0][2:])
    assert not dropped[0].equal(dropped[1])


# ---------------------------------------------------------------- settings and failures


def test_a_batch_size_that_cannot_be_divided() -> None:
    with pytest.raises(BadSetting, match="batch_size=126"):
        Processes(rank=0, count=3).expect_divisible(128)
    Processes(rank=0, count=4).expect_divisible(128)


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with processes.joined() as together:
        assert together is None


def test_one_gpu_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadSetting, match="cuda:1"), processes.joined("cuda:1"):
        pass


WAIT_FOR_EACH_OTHER = """
import os, sys
from midreel.errors import Unreachable
from midreel.ops.processes import joined

with joined() as together:
    print(together.of_first("ready"), flush=True)
    if not together.is_first:
        sys.stdin.read()
    try:
        together.encode(lambda rows: rows, __import__("torch").ones(2))
    except Unreachable:
        print("Unreachable", flush=True)
        os._exit(3)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.slow
def test_a_killed_process_ends_the_others() -> None:
    """Process 1 is killed while process 0 waits for it. Process 0 fails at once, long before its patience ends."""
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", WAIT_FOR_EACH_OTHER],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    assert first.stdout is not None
    assert second.stdout is not None
    assert first.stdout.readline() == second.stdout.readline() == "ready\n"
    second.kill()
    output, _ = first.communicate(timeout=PATIENCE.total_seconds() / 10)
    second.communicate()
    assert first.returncode == 3
    assert output == "Unreachable\n"
