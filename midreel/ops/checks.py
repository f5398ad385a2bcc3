"""Checks of tensor arguments: axes, types and index ranges. Each check raises BadBatch with the remedy."""

from typing import Any, Protocol, runtime_checkable

from midreel.errors import BadBatch

VECTOR_AXES = ("C", "D", "E")


@runtime_checkable
class HasShape(Protocol):
    """An object with a shape: a tensor or an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        ...


def expect_axes(**named: tuple[HasShape, str]) -> None:
    """Raise BadBatch unless every tensor has the given axes.

    A letter stands for the same length in all tensors of one call. A tensor whose last axis is C, D or E
    contains vectors, so its values must be floating-point numbers.

    Args:
        named: for each argument name, the tensor and its axes, separated by spaces.

    >>> import torch
    >>> expect_axes(frames=(torch.zeros(2, 8, 4), "B T C"), clips=(torch.zeros(2, 8), "B T"))
    >>> expect_axes(frames=(torch.zeros(2, 8, 4), "B T C"), clips=(torch.zeros(2, 9), "B T"))
    Traceback (most recent call last):
    midreel.errors.BadBatch: clips has shape (2, 9), axes 'B T', but frames has T = 8. Pass tensors of one batch.
    """
    first_use: dict[str, tuple[str, int]] = {}
    for name, (tensor, axes) in named.items():
        # Every tensor has this attribute and no array does. The test needs no import of torch.
        if not hasattr(tensor, "requires_grad"):
            raise BadBatch(
                f"{name} is a {type(tensor).__name__}, expected a torch tensor. Convert it: torch.as_tensor({name})"
            )
        shape, letters = tuple(tensor.shape), axes.split()
        if len(shape) != len(letters):
            remedy = f"Add the {letters[0]} axis: {name}[None]" if len(shape) == len(letters) - 1 else "Reshape it."
            raise BadBatch(f"{name} has shape {shape}, expected the {len(letters)} axes {axes!r}. {remedy}")
        for letter, length in zip(letters, shape, strict=True):
            other, expected = first_use.setdefault(letter, (name, length))
            if length != expected:
                raise BadBatch(
                    f"{name} has shape {shape}, axes {axes!r}, but {other} has {letter} = {expected}. "
                    f"Pass tensors of one batch."
                )
        if letters[-1] in VECTOR_AXES:
            expect_numbers(name, tensor)


def expect_numbers(name: str, values: Any) -> None:
    """Raise BadBatch unless a tensor contains floating-point numbers."""
    if not values.is_floating_point():
        raise BadBatch(f"{name} has type {values.dtype}, expected floating-point numbers. Convert it: {name}.float()")


def expect_mask(name: str, mask: Any, of: str) -> None:
    """Raise BadBatch unless a tensor is boolean.

    Args:
        name: the name of the tensor, for the message.
        mask: the tensor.
        of: the things that the mask selects, in the plural, such as "tokens".
    """
    if str(mask.dtype) != "torch.bool":
        raise BadBatch(f"{name} has type {mask.dtype}, expected bool, True for real {of}. Convert it: {name}.bool()")


def expect_labels(name: str, labels: Any, of: str) -> None:
    """Raise BadBatch unless a tensor contains 64-bit integers, which torch indexes by.

    Args:
        name: the name of the tensor, for the message.
        labels: the tensor.
        of: the things that the integers index, such as "the videos of the batch".
    """
    if str(labels.dtype) != "torch.int64":
        raise BadBatch(f"{name} has type {labels.dtype}, expected int64, an index of {of}. Convert it: {name}.long()")


def expect_indices(name: str, indices: Any, limit: int, of: str) -> None:
    """Raise BadBatch unless a tensor is not empty and contains only integers from 0 to `limit` - 1.

    Args:
        name: the argument name, for the message.
        indices: the tensor.
        limit: the number of indexed things.
        of: what the indexed things are, for the message.
    """
    expect_labels(name, indices, of)
    if not indices.numel():
        raise BadBatch(f"{name} is empty, expected at least one index of {of}. Drop the empty batch.")
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= limit:
        raise BadBatch(f"{name} ranges from {low} to {high}, expected 0 to {limit - 1}, an index of {of}. Renumber it.")
