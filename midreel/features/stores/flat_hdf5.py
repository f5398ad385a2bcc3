"""Flat HDF5 files, the format of newer feature releases: one HDF5 array per id, no groups."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np

from midreel.errors import BadStore
from midreel.features.stores.matrices import DOWNLOAD_AGAIN, Array, Matrices, spread

_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError)  # the errors that h5py raises for a damaged file


class FlatHDF5(Matrices):
    """The matrices of a flat HDF5 file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._handle: Any = None
        self._process = 0

    def ids(self) -> list[str]:
        """Return the ids, in the order of the file."""
        return list(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    @property
    def width(self) -> int:
        """The number of columns of each matrix."""
        return self._first[0]

    @property
    def dtype(self) -> str:
        """The dtype of the numbers on disk."""
        return self._first[1]

    def digest(self) -> str:
        """Return a hash of the sorted ids, and of a few matrices."""
        keys = sorted(self._keys)
        digest = hashlib.sha256("\n".join(keys).encode("utf-8", "surrogateescape"))
        for number in spread(len(keys)):
            stored = self._stored(keys[number])
            digest.update(f"{stored.shape} {stored.dtype.str}".encode())
            digest.update(np.ascontiguousarray(stored).tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()
        for name in ("_keys", "_first"):
            self.__dict__.pop(name, None)

    def _stored(self, key: str) -> Array:
        with self._reading() as file:
            entry = file[key]
            stored = entry[()] if isinstance(entry, h5py.Dataset) else None
        if stored is None:
            raise BadStore(
                f"{self.path} has a group under {key!r}, expected one HDF5 array per id and no groups. {DOWNLOAD_AGAIN}"
            )
        return np.asarray(stored)

    @cached_property
    def _keys(self) -> dict[str, None]:
        """The ids, in order. They are cached because HDF5 needs half a second to list a hundred thousand."""
        with self._reading() as file:
            keys = dict.fromkeys(file)
        if not keys:
            raise BadStore(f"{self.path} is empty, expected one HDF5 array per id. {DOWNLOAD_AGAIN}")
        return keys

    @cached_property
    def _first(self) -> tuple[int, str]:
        """The width and the dtype of the first matrix, which all others must have."""
        key = next(iter(self._keys))
        stored = self._stored(key)
        if stored.ndim != 2 or not stored.size:
            raise BadStore(
                f"{self.path}: {key!r} has shape {stored.shape}, expected rows of one width. {DOWNLOAD_AGAIN}"
            )
        return stored.shape[1], stored.dtype.name

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """Yield the open file, and turn the errors of h5py into BadStore."""
        try:
            if self._process != os.getpid():
                # A forked process inherits the handle. Close it, because HDF5 would share it with the parent.
                if self._handle is not None:
                    self._handle.close()
                self._handle, self._process = None, os.getpid()
            if self._handle is None:
                self._handle = h5py.File(self.path, "r", locking=False)
            yield self._handle
        except FileNotFoundError as error:
            raise BadStore(f"{self.path} does not exist, expected a file of features. Download it.") from error
        except _UNREADABLE as error:
            raise BadStore(
                f"{self.path} cannot be read, it may be truncated or not HDF5 ({error}). {DOWNLOAD_AGAIN}"
            ) from error
