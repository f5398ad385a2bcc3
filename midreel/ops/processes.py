"""Training on several processes: each encodes a part of every batch, and all of them compute the loss of the whole.

Every process has the same weights, the same batch and the same stream of random numbers. `Processes.encode` divides the
rows of a batch: each process encodes its part, and receives the vectors of the other parts. So each process computes
the loss over the whole batch, with all negatives and all relations, as a single process would.

The gradient. Each process minimises 1/N of the loss, and gradients are summed over all N processes. Two kinds of
weights then get the gradient of one process: those of an encoder, of which each process has seen a part of the rows,
and those of a loss, which each process has computed as a whole. The gradient of gathered vectors is the sum over the
processes too. So it does not matter whether a process computes a function of them once or for its rows only.

Random numbers. The draws of a loss, such as its negatives, must be equal in all processes. The draws of an encoder, its
dropout, must be different. So an encoder draws from a stream of its process, and the common stream is then restored.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from midreel.errors import BadSetting, MidreelError, Unreachable

Rows = TypeVar("Rows")
Encoded = TypeVar("Encoded")
Value = TypeVar("Value")

# A process that has ended is noticed at once. This is the limit for one that is alive and does not answer, so it must
# be longer than a validation by the first process, which the others wait for.
PATIENCE = timedelta(minutes=30)


@dataclass
class Processes:
    """One of the processes of a training.

    Attributes:
        rank: the number of this process. Process 0 writes all files.
        count: the number of processes.
        device: the torch device of this process.
    """

    rank: int
    count: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        self._stream = torch.Generator()

    @property
    def is_first(self) -> bool:
        """Whether this process validates, and writes checkpoints and logs."""
        return self.rank == 0

    def expect_divisible(self, batch_size: int) -> None:
        """Raise BadSetting unless each process can encode an equal part of a batch."""
        if batch_size % self.count:
            near = max(batch_size // self.count, 1) * self.count
            raise BadSetting(
                f"batch_size is {batch_size}, expected a multiple of the {self.count} processes. "
                f"Try --set batch_size={near}"
            )

    # ------------------------------------------------------------ one step

    def seed(self, seed: int) -> None:
        """Restart the random numbers that encoders draw from in this process."""
        self._stream.manual_seed(seed * self.count + self.rank)

    def encode(self, function: Callable[[Rows], Encoded], rows: Rows) -> Encoded:
        """Return `function(rows)`, of which each process computes a part.

        Args:
            function: encodes rows, each by itself. All tensors of its result have one row for each row.
            rows: tensors, or a dataclass, tuple or mapping of tensors, with one row for each item. It is the same in
                all processes.
        """
        total = len(next(_tensors(rows)))
        # All parts have the same number of rows, as `all_gather` expects: the last ones repeat the last row.
        size = -(-total // self.count)
        own = torch.arange(self.rank * size, (self.rank + 1) * size).clamp_max(total - 1)
        part = _mapped(lambda tensor: tensor[own.to(tensor.device)], rows)
        with self._own_random_numbers():
            encoded = function(part)
        return _mapped(lambda tensor: _Gather.apply(tensor, self)[:total], encoded)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        device = torch.device(self.device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(torch.randint(2**62, (), generator=self._stream)))
            yield

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradient of each parameter by its sum over all processes."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])  # one message instead of hundreds
        self._sum(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    # ------------------------------------------------------------ agreement

    def copy_weights(self, module: nn.Module) -> None:
        """Copy the weights of the first process to all others, so that rounding errors never add up."""
        with _expect_answers():
            for weight in module.state_dict().values():
                dist.broadcast(weight, 0)

    def of_first(self, value: Value) -> Value:
        """Return the value that the first process passes. It must be possible to pickle it."""
        values: list[Any] = [value]
        with _expect_answers():
            dist.broadcast_object_list(values, 0, device=torch.device(self.device))
        return values[0]

    # ------------------------------------------------------------ messages

    def _gather(self, part: Tensor) -> Tensor:
        # As bytes, because backends do not transfer every type.
        sent = part.detach().contiguous().flatten().view(torch.uint8)
        received = sent.new_empty(self.count * len(sent))
        with _expect_answers():
            dist.all_gather_into_tensor(received, sent)
        return received.view(part.dtype).view(self.count * len(part), *part.shape[1:])

    def _sum(self, tensor: Tensor) -> None:
        with _expect_answers():
            dist.all_reduce(tensor)


def by_first(processes: Processes | None, function: Callable[[], Value]) -> Value:
    """Return the result of a function that only the first process calls. Without processes, call it.

    All processes raise an error of midreel that the function raises.

    Args:
        processes: the processes, or None.
        function: returns a value that can be pickled.
    """
    if processes is None:
        return function()
    result: Any = None
    error: MidreelError | None = None
    if processes.is_first:
        try:
            result = function()
        except MidreelError as raised:
            error = raised
    result, error = processes.of_first((result, error))
    if error is not None:
        raise error
    return result


class _Gather(torch.autograd.Function):
    """The rows of all processes. The gradient of a row is the sum over the processes."""

    @staticmethod
    def forward(ctx: FunctionCtx, part: Tensor, processes: Processes) -> Tensor:
        ctx.processes, ctx.num_rows = processes, len(part)  # type: ignore[attr-defined]
        return processes._gather(part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        ctx.processes._sum(total)
        return total[ctx.processes.rank * ctx.num_rows :][: ctx.num_rows], None


@contextmanager
def _expect_answers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # the class of all errors of torch.distributed
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Unreachable(
            f"another process of this training has ended or does not answer ({reason}). See its own error, and "
            f"continue with --resume."
        ) from error


# ---------------------------------------------------------------- trees of tensors


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in a tensor, dataclass, tuple or mapping."""
    if isinstance(tree, Tensor):
        yield tree
    elif tree is not None:
        for part in _children(tree).values():
            yield from _tensors(part)


def _mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return the tree with the results of a function in place of its tensors. It is called once for each tensor."""
    results: dict[int, Tensor] = {}  # branches may share a tensor

    def result(part: Any) -> Any:
        if part is None:
            return None
        if isinstance(part, Tensor):
            if id(part) not in results:
                results[id(part)] = function(part)
            return results[id(part)]
        children = {name: result(child) for name, child in _children(part).items()}
        if is_dataclass(part):
            return replace(part, **children)  # type: ignore[type-var]
        if hasattr(part, "_fields"):  # a NamedTuple
            return type(part)(**children)
        return children if isinstance(part, Mapping) else tuple(children.values())

    return result(tree)


def _children(tree: Any) -> dict[str, Any]:
    if is_dataclass(tree):
        return {field.name: getattr(tree, field.name) for field in fields(tree)}
    if isinstance(tree, Mapping):
        return dict(tree)
    return dict(zip(getattr(tree, "_fields", map(str, range(len(tree)))), tree, strict=True))


# ---------------------------------------------------------------- start


@contextmanager
def joined(device: str = "cpu", patience: timedelta = PATIENCE) -> Iterator[Processes | None]:
    """Join the processes that `torchrun` started, during a block. Without torchrun, or with one process, yield None.

    On GPUs, each process of a machine takes the GPU of its number.

    Args:
        device: "cpu", which uses the backend gloo, or "cuda", which uses nccl.
        patience: how long a process may take to answer.

    Raises:
        BadSetting: `device` names one GPU for all processes.
        Unreachable: the processes do not find each other.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield None
        return
    if ":" in device:
        raise BadSetting(f"device is {device!r}, expected cpu or cuda for {count} processes. Each takes a GPU itself.")
    own = device if device == "cpu" else f"{device}:{os.environ['LOCAL_RANK']}"
    with _expect_answers():
        if device == "cuda":
            torch.cuda.set_device(own)
        dist.init_process_group("gloo" if device == "cpu" else "nccl", timeout=patience)
    try:
        yield Processes(rank=dist.get_rank(), count=count, device=own)
    finally:
        dist.destroy_process_group()
