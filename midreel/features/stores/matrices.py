"""Features that others have published: a matrix for each id, whatever the file. What is read is checked."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32

from midreel.errors import BadFeatures, MissingFeatures

Array = npt.NDArray[Any]

DOWNLOAD_AGAIN = "download it again, or copy it again from where it is whole"

_SAMPLES = 64  # of what a digest reads


class Matrices(ABC):
    """Matrices of one width by id, at one place on disk that is only ever read.

    It is opened when it is first used, in each process anew, so it can be handed to the workers of a DataLoader;
    `close` lets go of it until the next use.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @abstractmethod
    def ids(self) -> list[str]:
        """In the order of the file."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @property
    @abstractmethod
    def width(self) -> int: ...

    @property
    @abstractmethod
    def dtype(self) -> str:
        """In which the numbers lie on disk."""

    @abstractmethod
    def digest(self) -> str:
        """A hash of the ids, and of the shapes and bytes of a few matrices: it tells contents apart without reading
        gigabytes.
        """

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _stored(self, key: str) -> Array:
        """The matrix of an id that there is."""

    def read(self, *spellings: str) -> Float32[np.ndarray, "T C"]:
        """The matrix of the first of these ids that there is."""
        key = next((spelling for spelling in spellings if spelling in self), None)
        if key is None:
            tried = " nor ".join(map(repr, spellings))
            raise MissingFeatures(
                f"{self.path} has no {tried} among its {len(self.ids())}; use the features of this split, or take it "
                f"out of the annotations"
            )
        return self._checked(key, self._stored(key))

    def _checked(self, key: str, stored: Array) -> Float32[np.ndarray, "T C"]:
        if stored.dtype.kind != "f" or stored.ndim != 2 or stored.shape[1] != self.width or not len(stored):
            raise BadFeatures(
                f"{self.path}: {key!r} has shape {stored.shape} of {stored.dtype}, expected rows of {self.width} "
                f"floats, as the first one has; {DOWNLOAD_AGAIN}"
            )
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused
            values = np.array(stored, np.float32)
        finite = np.isfinite(values)
        if not finite.all():
            raise BadFeatures(
                f"{self.path}: {key!r} holds {int((~finite).sum())} values that are NaN or infinite, expected finite "
                f"ones; {DOWNLOAD_AGAIN}, or take it out of the annotations"
            )
        return values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)


def spread(count: int) -> list[int]:
    """A few numbers below `count`, the first and the last among them."""
    return sorted(set(np.linspace(0, count - 1, min(count, _SAMPLES)).round().astype(int).tolist()))
