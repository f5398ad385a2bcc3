"""What midreel raises. Every message states the value, the expectation and the remedy.

MidreelError
├── UnknownName    a method, dataset or option that does not exist
├── BadSetting     a setting outside what the method can do
├── BadShape       a tensor whose axes do not fit
├── BadBatch       a batch whose parts contradict each other
├── BadAnnotation  an annotation that contradicts itself or its videos
└── BadModelFolder a saved model that cannot be read back
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable


class MidreelError(Exception):
    """The root of everything midreel raises on purpose."""


class UnknownName(MidreelError, ValueError):
    @classmethod
    def among(cls, kind: str, name: object, known: Iterable[str]) -> "UnknownName":
        return cls(f"no {kind} {name!r}; choose one of: {', '.join(known)}")


class BadSetting(MidreelError, ValueError):
    pass


class BadShape(MidreelError, ValueError):
    pass


class BadBatch(MidreelError, ValueError):
    pass


class BadAnnotation(MidreelError, ValueError):
    pass


class BadModelFolder(MidreelError, ValueError):
    pass


@runtime_checkable
class HasShape(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


def expect_axes(**named: tuple[HasShape, str]) -> None:
    """Raises BadShape unless every tensor has the axes it claims; a letter means one length in all of them.

    >>> expect_axes(frames=(tensor, "B T C"), clip_of_frame=(labels, "B T"))  # doctest: +SKIP
    """
    first_use: dict[str, tuple[str, int]] = {}
    for name, (tensor, axes) in named.items():
        shape, letters = tuple(tensor.shape), axes.split()
        if len(shape) != len(letters):
            remedy = f"add the {letters[0]} axis: {name}[None]" if len(shape) == len(letters) - 1 else "reshape it"
            raise BadShape(f"{name} has shape {shape}, expected the {len(letters)} axes {axes!r}; {remedy}")
        for letter, length in zip(letters, shape, strict=True):
            other, expected = first_use.setdefault(letter, (name, length))
            if length != expected:
                raise BadShape(
                    f"{name} has shape {shape}, whose axis {letter} (of {axes!r}) is {length}, "
                    f"but {other} has {letter} = {expected}; pass tensors of the same batch"
                )
