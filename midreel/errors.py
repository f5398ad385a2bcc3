"""What midreel raises. Every message states the value, the expectation and the remedy.

MidreelError
├── UnknownName    a method, dataset or option that does not exist
├── BadSetting     a setting outside what the method can do
├── BadShape       a tensor whose axes do not fit
├── BadBatch       a batch whose parts contradict each other, or hold what they should not
├── BadAnnotation  an annotation that contradicts itself or its videos
├── BadModelFolder a saved model that cannot be read back
├── BadCheckpoint  a released checkpoint that cannot be read or imported
├── BadExport      an exported model that does not compute what the model does
├── MissingPackage a library that an extra would have installed
├── BadExtension   a method or recipe of another package that cannot be used
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
│   ├── MissingLibrary a library that is not there, or no longer
│   └── LibraryBusy    one that another process is writing
├── BadScores      scores that no ranking can be made of
├── BadReport      a saved report that cannot be read back
├── RunExists      a folder of runs that is in use, or is another run's
├── Unwritable     a disk that is full, or a folder that may not be written
└── TrainingDiverged a loss that is no longer a number
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

VECTOR_AXES = ("C", "D", "E")
NEAR = 0.7  # as difflib measures: one letter of three is too much of a change, one of four is a slip


class MidreelError(Exception):
    """The root of everything midreel raises on purpose."""


class UnknownName(MidreelError, ValueError):
    @classmethod
    def among(cls, kind: str, name: object, known: Iterable[str], *, listed: str = "") -> "UnknownName":
        """Asks for the nearest of the known names, if one is near, and lists all, or says where they are `listed`."""
        names = list(known)
        spellings = {each.lower(): each for each in names}
        near = [spellings[each] for each in get_close_matches(str(name).lower(), spellings, n=1, cutoff=NEAR)]
        all_of_them = f"all {len(names)} are listed in {listed}" if listed else f"choose one of: {', '.join(names)}"
        if near:
            return cls(f"no {kind} {name!r}; did you mean {near[0]!r}? {all_of_them[0].upper()}{all_of_them[1:]}")
        return cls(f"no {kind} {name!r}; {all_of_them}")


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


class BadExport(MidreelError, ValueError):
    pass


class MissingPackage(MidreelError, ValueError):
    pass


class BadExtension(MidreelError, ValueError):
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


class MissingLibrary(BadLibrary):
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


def expect_text(name: str, text: str) -> None:
    """Raise BadSetting unless a text can be UTF-8. Bytes of a command line that are not become lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadSetting(f"{name} is {text!r}, expected UTF-8. Check the encoding of your terminal.") from error


@runtime_checkable
class HasShape(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


def expect_axes(**named: tuple[HasShape, str]) -> None:
    """Raises BadShape unless every tensor has the axes it claims; a letter means one length in all of them.

    Whatever ends in the axis of a vector (C, D or E) must hold floating-point numbers, or it is a BadBatch.

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
