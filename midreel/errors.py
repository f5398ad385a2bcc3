"""What midreel raises. Every message states the value, the expectation and the remedy.

MidreelError
├── UnknownName    a method, dataset or option that does not exist
├── BadSetting     a setting outside what the method can do
├── BadShape       a tensor whose axes do not fit
├── BadBatch       a batch whose parts contradict each other
├── BadAnnotation  an annotation that contradicts itself or its videos
├── BadModelFolder a saved model that cannot be read back
├── BadCheckpoint  a released checkpoint that cannot be read or imported
├── UnreadableVideo a file that does not yield frames
│   └── MissingVideo   one that is not there, or cannot be read from its disk: it may be another day
├── UnknownBackbone a backbone that cannot be found
├── BadFeatures    features that are empty, not finite or of the wrong width
├── MissingFeatures features that nobody has extracted
├── FingerprintMismatch features of another backbone, or made in another way
├── BadStore       a feature store that is cut short, locked or not writable
├── BadIndex       an index that is damaged, locked, of another version or not writable
│   └── MissingTokens  a video that an index does not hold, or no longer whole
├── BadLibrary     a directory that is no library, or one that is damaged or of another version
│   └── LibraryBusy    one that another process is writing
├── BadScores      scores that no ranking can be made of
├── BadReport      a saved report that cannot be read back
├── RunExists      a folder of runs that is in use, or is another run's
├── Unwritable     a disk that is full, or a folder that may not be written
└── TrainingDiverged a loss that is no longer a number
"""

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable


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


class BadCheckpoint(MidreelError, ValueError):
    pass


class UnreadableVideo(MidreelError, ValueError):
    pass


class MissingVideo(UnreadableVideo):
    pass


class UnknownBackbone(UnknownName):
    pass


class BadFeatures(MidreelError, ValueError):
    pass


class MissingFeatures(MidreelError, ValueError):
    pass


class FingerprintMismatch(MidreelError, ValueError):
    pass


class BadStore(MidreelError, ValueError):
    pass


class BadIndex(MidreelError, ValueError):
    pass


class MissingTokens(BadIndex):
    pass


class BadLibrary(MidreelError, ValueError):
    pass


class LibraryBusy(BadLibrary):
    pass


class BadScores(MidreelError, ValueError):
    pass


class BadReport(MidreelError, ValueError):
    pass


class RunExists(MidreelError, ValueError):
    pass


class Unwritable(MidreelError, ValueError):
    pass


class TrainingDiverged(MidreelError, ValueError):
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
        if not hasattr(tensor, "requires_grad"):  # without importing torch: every tensor has it, no array does
            raise BadShape(
                f"{name} is a {type(tensor).__name__}, expected a torch tensor; wrap it: torch.as_tensor({name})"
            )
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


def expect_indices(name: str, indices: Any, limit: int, of: str) -> None:
    """Raises BadBatch unless `indices` is an integer tensor whose values are among 0 to `limit` - 1."""
    if indices.is_floating_point() or indices.is_complex():
        raise BadBatch(f"{name} holds {indices.dtype} numbers, expected integers that index {of}; convert it: .long()")
    if not indices.numel():
        raise BadBatch(f"{name} is empty, expected at least one index of {of}; drop the empty batch")
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= limit:
        raise BadBatch(f"{name} goes from {low} to {high}, expected 0 to {limit - 1}: it indexes {of}; fix the map")
