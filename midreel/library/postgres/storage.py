"""The storage of a library in a PostgreSQL database. `tables` describes its tables.

A video is committed in one transaction: features, tokens, row, files, and the end of the claim on its file. So it is
there as a whole or not at all, and there is nothing to repair after a crash.

Any number of processes index at the same time (`work`). A reindex goes on beside them: its last transaction waits for
the commits in progress, adds nothing itself, and switches only if the new generation has all videos. A commit that
comes later finds that its generation no longer serves, and encodes its video again with the new model.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from midreel.errors import BadLibrary, MissingLibrary
from midreel.features.backbones.base import Fingerprint
from midreel.index.postgres import PostgresIndex, schema
from midreel.index.postgres.database import Connection, Joined, Pool, check_url, shown
from midreel.index.postgres.index import NAME
from midreel.library import confidence
from midreel.library.confidence import Calibration
from midreel.library.encoder import write_files
from midreel.library.layout import MODEL, Card, Generation, Settings
from midreel.library.postgres import tables
from midreel.library.postgres.catalogue import PostgresCatalogue
from midreel.library.postgres.features import PostgresFeatures
from midreel.library.postgres.feedback import PostgresFeedback
from midreel.library.postgres.work import Work
from midreel.library.scan import FoundFile

if TYPE_CHECKING:
    from midreel.library.report import Clock
    from midreel.library.storage import Commit, Parts

READ_PATIENCE, WRITE_PATIENCE = 3.0, 20.0  # seconds to wait for a server that does not answer


@dataclass(frozen=True, kw_only=True)
class StoredGeneration(Generation):
    """A generation in a database. The files of its model are copied into a temporary folder when they are needed."""

    fetch: Callable[[Path], None]

    @property
    def model(self) -> Path:
        """The folder of the model."""
        folder = self.folder / MODEL
        if not folder.exists():
            new = Path(tempfile.mkdtemp(dir=self.folder.parent))
            self.fetch(new)
            self.folder.mkdir(exist_ok=True)
            new.replace(folder)
        return folder


class PostgresStorage:
    """A library in a PostgreSQL database. See `Storage` for its methods. All are thread-safe.

    Args:
        url: postgresql://USER@HOST/DATABASE#NAME, without a password. NAME is the schema; default: midreel.
        write: Whether to write. A writer waits longer for a server that restarts.

    Attributes:
        place: The URL.
        folder: None, because the library has no folder.
    """

    folder = None

    def __init__(self, url: str, *, write: bool = False) -> None:
        check_url(url)
        self.place = url
        address, _, name = url.partition("#")
        self._schema = schema.checked_name(name or NAME)
        self._patience = WRITE_PATIENCE if write else READ_PATIENCE
        self._address, self._name = address, shown(address) + (f"#{name}" if name else "")
        self._generations: dict[str, StoredGeneration] = {}
        self._calibration: tuple[str, str | None, Calibration | None] | None = None

    def __str__(self) -> str:
        return self._name

    @cached_property
    def _pool(self) -> Pool:
        return Pool(self._address, patience=self._patience, schema=self._schema)

    @cached_property
    def _temporary(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="midreel-"))

    @cached_property
    def _work(self) -> Work:
        return Work(self._pool, self._name)

    def close(self) -> None:
        """Close all connections, and delete the temporary files."""
        if "_pool" in vars(self):
            self._pool.close()
        if "_temporary" in vars(self):
            shutil.rmtree(self._temporary, ignore_errors=True)

    # ------------------------------------------------------------ settings

    def exists(self) -> bool:
        """Return whether there is a library."""
        try:
            self.settings()
        except MissingLibrary:
            return False
        return True

    def expect_own(self) -> None:
        """Do nothing: a library has a schema of its own, whose name is plain."""

    def settings(self) -> Settings:
        """Return the settings. Raise MissingLibrary if there is no library, or its creation was interrupted."""
        serving = f"(SELECT number FROM {self._schema}.generations WHERE state = 'serving')"

        def work(connection: Connection) -> Settings:
            values, number = tables.read(connection, self._schema, self._name, f"settings, {serving}")
            if values is None:
                raise tables.missing(self._name)
            return Settings(**values, serving=str(number))

        return self._pool.run(work)

    def write(self, settings: Settings) -> None:
        """Make a generation serve, and store the settings, unless another process has created the library meanwhile."""
        values = asdict(settings)
        values.pop("serving")  # the table of generations knows it

        def work(connection: Connection) -> None:
            statement = "UPDATE library SET settings = %s, changes = changes + 1 WHERE settings IS NULL"
            if connection.execute(statement, (json.dumps(values),)).rowcount:
                schema.serve(connection, schema.generation(connection, self._schema, int(settings.serving)))

        self._pool.run(work)

    def recovered(self) -> tuple[Fingerprint, Generation] | None:
        """Return None: the settings cannot be lost alone."""
        return None

    def locked(self) -> AbstractContextManager[None]:
        """Return a context that does nothing, because any number of processes may write."""
        return nullcontext()

    def locked_for_reindex(self) -> AbstractContextManager[None]:
        """Let no other process reindex until the block ends."""
        return self._work.alone()

    def remove_leftovers(self) -> None:
        """Do nothing: transactions leave nothing behind."""

    def is_writable(self) -> bool:
        """Return whether this user may write the tables, and the server is not a replica."""
        statement = "SELECT has_table_privilege('videos', 'INSERT') AND NOT pg_is_in_recovery()"
        row = self._pool.run(lambda connection: connection.execute(statement).fetchone())
        return bool(row and row[0])

    def size(self) -> dict[str, int]:
        """Return the bytes on disk of features, catalogue and index."""
        kind = """CASE WHEN relname = 'features' THEN 'features'
            WHEN relname ~ '^(videos|tokens|graph)_[0-9]' OR relname = 'models' THEN 'index' ELSE 'catalogue' END"""
        statement = f"""SELECT {kind}, sum(pg_total_relation_size(pg_class.oid))::bigint
            FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE relkind = 'r' AND nspname = %s GROUP BY 1"""
        rows = self._pool.run(lambda connection: connection.execute(statement.encode(), (self._schema,)).fetchall())
        return dict.fromkeys(("features", "catalogue", "index"), 0) | dict(rows)

    # ------------------------------------------------------------ generations

    def serving(self, settings: Settings | None = None) -> Generation:
        """Return the generation that is searched."""
        name = (settings or self.settings()).serving
        if name not in self._generations:
            found = {generation.name: generation for generation in self._stored()}
            if name not in found:
                raise BadLibrary(f"generation {name} of {self._name} was dropped. Open the library again.")
            self._generations = found
        return self._generations[name]

    def generations(self) -> list[Generation]:
        """Return the generations, in the order in which they were begun."""
        return list(self._stored())

    def _stored(self) -> list[StoredGeneration]:
        def work(connection: Connection) -> list[tuple[int, Any]]:
            if not tables.exists(connection, self._schema):
                return []
            return connection.execute("SELECT generation, card FROM cards ORDER BY generation").fetchall()

        return [self._generation(number, Card.from_dict(card)) for number, card in self._pool.run(work)]

    def _generation(self, number: int, card: Card) -> StoredGeneration:
        def fetch(folder: Path) -> None:
            statement = "SELECT name, content FROM models WHERE generation = %s"
            rows = self._pool.run(lambda connection: connection.execute(statement, (number,), binary=True).fetchall())
            write_files(folder, dict(rows))

        return StoredGeneration(folder=self._temporary / str(number), card=card, fetch=fetch)

    def begin(self, card: Card, files: Mapping[str, bytes]) -> Generation:
        """Create a generation with an empty index.

        Args:
            card: The card of the generation.
            files: The files of its model.
        """

        def work(connection: Connection) -> int:
            made = schema.create_generation(
                connection,
                self._schema,
                width=card.width,
                branch_weights=card.branch_weights,
                similarities=card.similarities,
                fingerprint=card.digest,
                state="building",
            )
            values = (made.number, json.dumps(card.to_dict()))
            connection.execute("INSERT INTO cards (generation, card) VALUES (%s, %s)", values)
            _put_files(connection, made.number, files)
            return made.number

        return self._generation(self._pool.run(work, repeatable=False), card)

    def save_model(self, generation: Generation) -> None:
        """Store the files in the folder of a generation's model."""
        files = {path.name: path.read_bytes() for path in generation.model.iterdir() if path.is_file()}
        self._pool.run(lambda connection: _put_files(connection, int(generation.name), files))

    def switch(self, settings: Settings, generation: Generation, ids: Collection[str]) -> set[str]:
        """Make a generation the one that is searched, if it was made from all videos of the library.

        Args:
            settings: The settings of the library, which name the generation.
            generation: The generation.
            ids: The videos that it was made from.
        """

        def work(connection: Connection) -> set[str]:
            # Wait for the commits in progress, and let no other begin before the switch.
            connection.execute("SELECT FROM generations WHERE state = 'serving' FOR UPDATE")
            listed = {row[0] for row in connection.execute("SELECT id FROM videos")}
            if added := listed - set(ids):
                return added
            new = schema.generation(connection, self._schema, int(generation.name))
            index = PostgresIndex(Joined(connection), new)
            for video_id in set(index.video_ids()) - listed:  # removed by another process meanwhile
                index.remove(video_id)
            schema.serve(connection, new)
            connection.execute("UPDATE library SET changes = changes + 1")
            return set()

        return self._pool.run(work)

    def drop(self, generation: Generation) -> None:
        """Delete a generation, unless it serves."""
        self._drop([int(generation.name)])

    def drop_generations(self, *, but: str) -> None:
        """Delete all generations except one, unless a process reindexes now."""

        def work(connection: Connection) -> list[int]:
            if not self._is_alone and Work.is_reindexed(connection):
                return []
            return [number for number in schema.states(connection, self._schema) if str(number) != but]

        self._drop(self._pool.run(work))

    @property
    def _is_alone(self) -> bool:
        """Whether this process reindexes."""
        return "_work" in vars(self) and self._work.is_alone

    def _drop(self, numbers: Sequence[int]) -> None:
        def work(connection: Connection) -> None:
            states = schema.states(connection, self._schema)
            for number in numbers:
                if states.get(number, "serving") != "serving":  # another process may have dropped it
                    schema.drop(connection, schema.generation(connection, self._schema, number))

        if numbers:
            self._pool.run(work)

    # ------------------------------------------------------------ parts

    def open_catalogue(self, *, write: bool = False) -> PostgresCatalogue:
        """Open the catalogue. To write, create the tables that are missing."""
        if write:
            self._pool.run(lambda connection: tables.create(connection, self._schema, self._name))
        return PostgresCatalogue(self._pool, self._schema, self._name)

    def open_features(self, fingerprint: Fingerprint | None = None) -> PostgresFeatures:
        """Open the features. With a fingerprint, check it."""
        if fingerprint is not None and not self.exists():
            return PostgresFeatures(self._pool, fingerprint, self._name)
        stored = Fingerprint.from_json(json.dumps(self.settings().fingerprint))
        store = PostgresFeatures(self._pool, stored, self._name)
        if fingerprint is not None:
            store.expect(fingerprint)
        return store

    def sync_features(self) -> None:
        """Do nothing: a commit is durable."""

    def create_index(self, generation: Generation) -> None:
        """Do nothing: `begin` has created the index."""

    def is_indexed(self, generation: Generation) -> bool:
        """Return True: `begin` has created the index."""
        return True

    def open_index(self, generation: Generation, *, read_only: bool) -> PostgresIndex:
        """Open the index of a generation. Raise BadIndex if it was dropped."""
        found = self._pool.run(lambda connection: schema.generation(connection, self._schema, int(generation.name)))
        schema.check_fingerprint(found, generation.card.digest)
        return _SharedIndex(self._pool, found)

    def calibration(self, generation: Generation) -> Calibration | None:
        """Return the calibration of a generation; None if there is none yet."""
        statement, number = "SELECT calibration FROM cards WHERE generation = %s", int(generation.name)
        row = self._pool.run(lambda connection: connection.execute(statement, (number,)).fetchone())
        text = row[0] if row else None
        known = self._calibration
        if known is None or known[:2] != (generation.name, text):
            found = None if text is None else confidence.from_text(generation, text)
            known = self._calibration = generation.name, text, found
        return known[2]

    def write_calibration(self, generation: Generation, calibration: Calibration) -> None:
        """Write the calibration of a generation."""
        values = (confidence.to_text(calibration), int(generation.name))
        statement = "UPDATE cards SET calibration = %s WHERE generation = %s"
        self._pool.run(lambda connection: connection.execute(statement, values))

    def feedback(self) -> PostgresFeedback:
        """Return the feedback of users."""
        return PostgresFeedback(self._pool, self._name)

    # ------------------------------------------------------------ videos

    def add(self, library: "Parts", commit: "Commit", clock: "Clock") -> None:
        """Add features, tokens and records of a video in one transaction.

        Args:
            library: The open parts of the library.
            commit: The video.
            clock: Measures the transaction, as index.

        Raises:
            Outdated: Another process has switched to another generation.
        """
        features, video_id = cast(PostgresFeatures, library.store), commit.video.id

        def work(connection: Connection) -> None:
            index = self._serving_index(connection, library.generation)
            features.write(connection, video_id)
            index.add(video_id, commit.tokens)
            records = PostgresCatalogue(Joined(connection), self._schema, self._name)
            records.add(commit.video, commit.files, commit.tags, commit.damage, commit.spoken)

        with clock.of("index"):
            self._pool.run(work)
        features.forget(video_id)

    def remove(self, library: "Parts", video_id: str) -> None:
        """Remove tokens and records of a video in one transaction."""

        def work(connection: Connection) -> None:
            # The video is removed from the generation that serves now, also if `library` has not noticed a switch.
            index = PostgresIndex(Joined(connection), schema.generation(connection, self._schema))
            schema.hold(connection, index.generation)
            if video_id in index:
                index.remove(video_id)
            PostgresCatalogue(Joined(connection), self._schema, self._name).forget_videos([video_id])

        self._pool.run(work)

    def _serving_index(self, connection: Connection, generation: Generation) -> PostgresIndex:
        """Return the index of a generation that serves until the transaction ends. Raise Outdated if it does not."""
        from midreel.library.storage import Outdated

        statement = "SELECT state FROM generations WHERE number = %s FOR KEY SHARE"
        if connection.execute(statement, (int(generation.name),)).fetchone() != ("serving",):
            raise Outdated
        found = schema.generation(connection, self._schema, int(generation.name))
        return PostgresIndex(Joined(connection), found)

    def plan(self, files: Sequence[FoundFile]) -> None:
        """Plan to read files. Other processes may read some of them."""
        self._work.plan(files)

    def claimed(self, files: Sequence[FoundFile]) -> AbstractContextManager[Iterator[FoundFile]]:
        """Return the planned files that no other process reads now. They are claimed until the block ends."""
        return self._work.claimed(files)

    def claimed_by_others(self, files: Iterable[FoundFile]) -> list[FoundFile]:
        """Return the files that other processes still have to read."""
        return self._work.unfinished(files)


class _SharedIndex(PostgresIndex):
    """An index whose connections belong to the storage."""

    def close(self) -> None:
        """Do nothing."""


def _put_files(connection: Connection, number: int, files: Mapping[str, bytes]) -> None:
    statement = """INSERT INTO models VALUES (%s, %s, %b)
        ON CONFLICT (generation, name) DO UPDATE SET content = excluded.content"""
    connection.cursor().executemany(statement, [(number, name, content) for name, content in files.items()])
