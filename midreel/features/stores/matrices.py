"""The base class of the readers of published features: one matrix per id, checked when it is read."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32

from midreel.errors import BadFeatures, MissingFeatures

Array = npt.NDArray[Any]

DOWNLOAD_AGAIN = "Download it again."

_SAMPLES = 64  # items that a digest reads


class Matrices(ABC):
    """Matrices of one width by id, in a file or folder that is only read.

    The file is opened at the first use, separately in each process, so the object can be passed to the workers of a
    DataLoader. After `close`, the next use opens it again.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @abstractmethod
    def ids(self) -> list[str]:
        """Return the ids, in the order of the file."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns of each matrix."""

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The dtype of the numbers on disk."""

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of the ids, and of samples of the content. This does not read the whole file."""

    @abstractmethod
    def close(self) -> None:
        """Close the file. The next use opens it again."""

    @abstractmethod
    def _stored(self, key: str) -> Array:
        """Return the matrix of an existing id, as it is stored."""

    def read(self, *spellings: str) -> Float32[np.ndarray, "T C"]:
        """Return the matrix of the first of these ids that exists.

        Raises:
            BadFeatures: If the matrix is empty, not finite or of another width.
            BadStore: If the file cannot be read.
            MissingFeatures: If none of the ids exists.
        """
        key = next((spelling for spelling in spellings if spelling in self), None)
        if key is None:
            tried = " or ".join(map(repr, spellings))
            raise MissingFeatures(
                f"{self.path} does not contain {tried} (it has {len(self.ids()):,} ids). Use the features of this "
                f"split, or remove the id from the annotations."
            )
        return self._checked(key, self._stored(key))

    def _checked(self, key: str, stored: Array) -> Float32[np.ndarray, "T C"]:
        if stored.dtype.kind != "f" or stored.ndim != 2 or stored.shape[1] != self.width or not len(stored):
            raise BadFeatures(
                f"{self.path}: {key!r} has shape {stored.shape} and dtype {stored.dtype}, expected rows of "
                f"{self.width} floats like the first id. {DOWNLOAD_AGAIN}"
            )
        with np.errstate(over="ignore"):  # values that are too large for float32 become infinite: see below
            values = np.array(stored, np.float32)
        finite = np.isfinite(values)
        if not finite.all():
            raise BadFeatures(
                f"{self.path}: {int((~finite).sum())} values of {key!r} are NaN or infinite, expected finite ones. "
                f"Download the file again, or remove the id from the annotations."
            )
        return values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)


def spread(count: int) -> list[int]:
    """Return at most 64 evenly spaced numbers below `count`, including the first and the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, _SAMPLES)).round().astype(int).tolist()))
