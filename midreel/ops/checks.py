"""Checks of the tensors that a caller passes in: axes, types, indices."""

from typing import Any, Protocol, runtime_checkable

from midreel.errors import BadBatch

VECTOR_AXES = ("C", "D", "E")


@runtime_checkable
class HasShape(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


def expect_axes(**named: tuple[HasShape, str]) -> None:
    """Raises BadBatch unless every tensor has the axes it claims; a letter means one length in all of them.

    Whatever ends in the axis of a vector (C, D or E) must hold floating-point numbers, or it is a BadBatch.

    >>> expect_axes(frames=(tensor, "B T C"), clip_of_frame=(labels, "B T"))  # doctest: +SKIP
    """
    first_use: dict[str, tuple[str, int]] = {}
    for name, (tensor, axes) in named.items():
        if not hasattr(tensor, "requires_grad"):  # without importing torch: every tensor has it, no array does
            raise BadBatch(
                f"{name} is a {type(tensor).__name__}, expected a torch tensor; wrap it: torch.as_tensor({name})"
            )
        shape, letters = tuple(tensor.shape), axes.split()
        if len(shape) != len(letters):
            remedy = f"add the {letters[0]} axis: {name}[None]" if len(shape) == len(letters) - 1 else "reshape it"
            raise BadBatch(f"{name} has shape {shape}, expected the {len(letters)} axes {axes!r}; {remedy}")
        for letter, length in zip(letters, shape, strict=True):
            other, expected = first_use.setdefault(letter, (name, length))
            if length != expected:
                raise BadBatch(
                    f"{name} has shape {shape}, whose axis {letter} (of {axes!r}) is {length}, "
                    f"but {other} has {letter} = {expected}; pass tensors of the same batch"
                )
        if letters[-1] in VECTOR_AXES:
            expect_numbers(name, tensor)


def expect_numbers(name: str, values: Any) -> None:
    """Raises BadBatch unless a tensor holds floating-point numbers."""
    if not values.is_floating_point():
        raise BadBatch(f"{name} holds {values.dtype}, expected floating-point numbers; convert it: {name}.float()")


def expect_mask(name: str, mask: Any, of: str) -> None:
    """Raises BadBatch unless a tensor holds True and False."""
    if str(mask.dtype) != "torch.bool":
        raise BadBatch(f"{name} holds {mask.dtype}, expected True for real {of}; convert it: {name}.bool()")


def expect_labels(name: str, labels: Any, of: str) -> None:
    """Raises BadBatch unless a tensor holds integers of the kind that torch indexes by."""
    if str(labels.dtype) != "torch.int64":
        raise BadBatch(f"{name} holds {labels.dtype}, expected integers that index {of}; convert it: {name}.long()")


def expect_indices(name: str, indices: Any, limit: int, of: str) -> None:
    """Raises BadBatch unless `indices` is an integer tensor whose values are among 0 to `limit` - 1."""
    expect_labels(name, indices, of)
    if not indices.numel():
        raise BadBatch(f"{name} is empty, expected at least one index of {of}; drop the empty batch")
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= limit:
        raise BadBatch(f"{name} goes from {low} to {high}, expected 0 to {limit - 1}: it indexes {of}; fix the map")
