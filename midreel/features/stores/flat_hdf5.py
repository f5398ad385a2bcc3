"""A flat HDF5 file, the format of the newer releases: a dataset for each id, no groups."""

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

_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError)  # in so many ways h5py says that a file is damaged


class FlatHDF5(Matrices):
    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._handle: Any = None
        self._process = 0

    def ids(self) -> list[str]:
        return list(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    @property
    def width(self) -> int:
        return self._first[0]

    @property
    def dtype(self) -> str:
        return self._first[1]

    def digest(self) -> str:
        keys = sorted(self._keys)
        digest = hashlib.sha256("\n".join(keys).encode("utf-8", "surrogateescape"))
        for number in spread(len(keys)):
            stored = self._stored(keys[number])
            digest.update(f"{stored.shape} {stored.dtype.str}".encode())
            digest.update(np.ascontiguousarray(stored).tobytes())
        return digest.hexdigest()

    def close(self) -> None:
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
                f"{self.path} holds a group under {key!r}, expected a flat file, a dataset for each id; "
                f"{DOWNLOAD_AGAIN}"
            )
        return np.asarray(stored)

    @cached_property
    def _keys(self) -> dict[str, None]:
        """Kept apart from the handle: to list a hundred thousand takes HDF5 half a second."""
        with self._reading() as file:
            keys = dict.fromkeys(file)
        if not keys:
            raise BadStore(f"{self.path} is empty, expected a dataset for each id; {DOWNLOAD_AGAIN}")
        return keys

    @cached_property
    def _first(self) -> tuple[int, str]:
        """The width and the type of all, by the first."""
        key = next(iter(self._keys))
        stored = self._stored(key)
        if stored.ndim != 2 or not stored.size:
            raise BadStore(
                f"{self.path}: {key!r} has shape {stored.shape}, expected rows of one width; {DOWNLOAD_AGAIN}"
            )
        return stored.shape[1], stored.dtype.name

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """The open file, and one error for all that can be wrong with it."""
        try:
            if self._process != os.getpid():
                # HDF5 would share the handle of a forked process with its parent: let go of it before opening.
                if self._handle is not None:
                    self._handle.close()
                self._handle, self._process = None, os.getpid()
            if self._handle is None:
                self._handle = h5py.File(self.path, "r", locking=False)
            yield self._handle
        except FileNotFoundError as error:
            raise BadStore(f"{self.path} does not exist, expected a file of features; download it") from error
        except _UNREADABLE as error:
            raise BadStore(
                f"{self.path} cannot be read, it may be cut short or no HDF5 file ({error}); {DOWNLOAD_AGAIN}"
            ) from error
