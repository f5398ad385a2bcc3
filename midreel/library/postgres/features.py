"""The features of a library in PostgreSQL. They are written in the transaction that commits their video."""

import os
from collections.abc import Collection, Container, Iterable, Mapping

import numpy as np

from midreel.errors import BadStore
from midreel.features.backbones.base import Fingerprint
from midreel.features.stores.hdf5_log import UNKNOWN, Array, Entry, checksum, digest_of
from midreel.features.stores.store import FeatureStore
from midreel.index.postgres.database import Connection, Database


class PostgresFeatures(FeatureStore):
    """The features of a library. See `FeatureStore` for its methods.

    An added video is kept in memory until `write` is called for it.

    Args:
        database: Runs the transactions.
        fingerprint: The fingerprint of the features.
        place: The library, for messages.
    """

    def __init__(self, database: Database, fingerprint: Fingerprint, place: str) -> None:
        super().__init__(f"the features of {place.rpartition('/')[2]}")
        self._rows = _Rows(database, fingerprint, str(self.path))

    def _open_file(self, *, writable: bool) -> "_Rows":
        return self._rows

    def write(self, connection: Connection, video_id: str) -> None:
        """Write the features of an added video in the caller's transaction. They stay in memory until `forget`."""
        self._rows.write(connection, video_id)

    def forget(self, video_id: str) -> None:
        """Free the memory of a video whose transaction is committed."""
        self._rows.new.pop(video_id, None)

    def remove_videos(self, video_ids: Collection[str]) -> None:
        """Remove the features of some videos."""
        statement, ids = "DELETE FROM features WHERE video_id = ANY(%s)", list(video_ids)
        self._rows.database.run(lambda connection: connection.execute(statement, (ids,)))

    def keep_videos(self, video_ids: Container[str]) -> None:
        """Remove the features of all other videos, except of videos that another process has added meanwhile."""
        unlisted = "NOT EXISTS (SELECT FROM videos WHERE id = video_id)"
        statement = f"DELETE FROM features WHERE video_id = ANY(%s) AND {unlisted}".encode()
        ids = [video_id for video_id in self.video_ids() if video_id not in video_ids]
        self._rows.database.run(lambda connection: connection.execute(statement, (ids,)))


class _Rows:
    """The table of features as a `FeatureLog`."""

    writable = True

    def __init__(self, database: Database, fingerprint: Fingerprint, name: str) -> None:
        self.database, self.process, self.header = database, os.getpid(), fingerprint.to_json()
        self.new: dict[str, tuple[Entry, int]] = {}
        self._name, self._dtype = name, np.dtype(fingerprint.dtype).newbyteorder("<")
        self._width, self._origins = fingerprint.width, dict[str, int]()

    def ids(self, table: str) -> list[str]:
        """Return the ids of all videos, in the order in which they were added."""
        if table != "videos":
            return []
        statement = "SELECT video_id, origin FROM features ORDER BY number"
        rows = self.database.run(lambda connection: connection.execute(statement).fetchall())
        self._origins = {video_id: int.from_bytes(origin) for video_id, origin in rows}
        return list(self._origins)

    def has(self, table: str, key: str) -> bool:
        """Return whether there is an entry."""
        return key in self.new or self._one(table, "true", key) is not None

    def origin(self, table: str, key: str) -> int:
        """Return the origin of an entry that `ids` has returned, or else of one that is stored."""
        if key not in self._origins:
            row = self._one(table, "origin", key)
            return UNKNOWN if row is None else int.from_bytes(row[0])  # type: ignore[arg-type]
        return self._origins[key]

    def digest(self, table: str, keys: Iterable[str]) -> str:
        """Return a hash of the stored entries with these ids, from their checksums. Missing entries are ignored."""
        statement = "SELECT video_id, checksum FROM features WHERE video_id = ANY(%s)"
        ids = list(keys) if table == "videos" else []
        return digest_of(dict(self.database.run(lambda connection: connection.execute(statement, (ids,)).fetchall())))

    def read(self, table: str, key: str) -> dict[str, Array] | None:
        """Return an entry; None if there is none. Raise BadStore if its checksum is wrong."""
        if key in self.new:
            return dict(self.new[key][0])
        row = self._one(table, "duration, times, frames, checksum", key)
        if row is None:
            return None
        duration, times, frames, expected = row
        try:
            entry = {
                "frames": np.frombuffer(bytes(frames), self._dtype).reshape(-1, self._width),  # type: ignore[call-overload]
                "times": np.frombuffer(bytes(times), "<f8"),  # type: ignore[call-overload]
                "duration": np.asarray(duration, "<f8"),
            }
        except ValueError:
            entry = {}
        if checksum(key, entry) != expected:
            raise BadStore(
                f"{self._name}: {key!r} is damaged, its checksum is wrong. Decode it again: midreel index --retry"
            )
        return entry

    def append(self, table: str, entries: Mapping[str, Entry], origins: Mapping[str, int] | None = None) -> None:
        """Keep entries in memory until `write`.

        Args:
            table: The name of the table: videos.
            entries: The entries by id.
            origins: Their origins.
        """
        assert table == "videos", table
        self.new |= {key: (entry, (origins or {}).get(key, UNKNOWN)) for key, entry in entries.items()}

    def write(self, connection: Connection, key: str) -> None:
        """Write an entry in the caller's transaction, if it is new."""
        if key not in self.new:
            return
        entry, origin = self.new[key]
        arrays = [np.ascontiguousarray(entry[name]).tobytes() for name in ("times", "frames")]
        columns = ("origin", "duration", "times", "frames", "checksum")
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        connection.execute(
            f"INSERT INTO features (video_id, {', '.join(columns)}) VALUES (%s, %s, %s, %b, %b, %s) "
            f"ON CONFLICT (video_id) DO UPDATE SET {changes}".encode(),
            (key, origin.to_bytes(8), float(entry["duration"]), *arrays, checksum(key, entry)),
        )

    def close(self) -> None:
        """Forget entries that were not committed."""
        self.new.clear()

    def _one(self, table: str, columns: str, key: str) -> tuple[object, ...] | None:
        if table != "videos":
            return None
        statement = f"SELECT {columns} FROM features WHERE video_id = %s".encode()
        return self.database.run(lambda connection: connection.execute(statement, (key,), binary=True).fetchone())
