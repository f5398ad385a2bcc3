"""Where a library is stored: in a folder, or in a PostgreSQL database.

`Storage` is all that the rest of `library` and `server` needs. `at` returns the storage of a place.

    FolderStorage     SQLite, HDF5 and the embedded index; one process writes (`layout` describes the files)
    PostgresStorage   tables of a database; any number of processes on any machines write (`postgres.storage`)
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from os import W_OK, access
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from midreel.errors import BadSetting, Unwritable
from midreel.features.backbones.base import Fingerprint
from midreel.index.base import Index
from midreel.io.files import write_errors
from midreel.library import confidence, scan, tokens
from midreel.library.catalogue import NAME, Catalogue
from midreel.library.confidence import Calibration
from midreel.library.encoder import write_files
from midreel.library.layout import Card, Generation, Layout, Settings
from midreel.library.place import Place, is_url
from midreel.library.records import Records, Spoken, Video
from midreel.library.scan import FoundFile
from midreel.types import Encoded, Tokens

if TYPE_CHECKING:
    from midreel.features.stores.store import FeatureStore
    from midreel.index.embedded import EmbeddedIndex
    from midreel.library.feedback import FeedbackLog
    from midreel.library.report import Clock

_POSTGRES = ("postgresql:", "postgres:")


@runtime_checkable
class LibraryIndex(Index, Protocol):
    """An index that a library can use."""

    def tokens_of(self, video_ids: Collection[str]) -> dict[str, dict[str, Tokens]]:
        """Return what `tokens` returns for several videos. Those that the index does not contain are left out."""
        ...

    def verify(self) -> list[str]:
        """Read everything, remove damaged videos, and return the problems as text."""
        ...

    @property
    def damaged(self) -> Mapping[str, str]:
        """The damaged videos found so far, each with the reason."""
        ...

    @property
    def waste(self) -> float:
        """The part of the space that removed videos take, if `compact` can free it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A video to add to a library.

    Attributes:
        video: The video.
        tokens: Its tokens, of the model of the library.
        files: Its files.
        tags: Its tags.
        damage: Which part of it is unreadable; empty if none.
        spoken: What is said in it; None keeps what the catalogue has.
    """

    video: Video
    tokens: Encoded
    files: Sequence[FoundFile] = ()
    tags: Sequence[str] = ()
    damage: str = ""
    spoken: Spoken | None = None


@runtime_checkable
class Parts(Protocol):
    """The open parts of a library that is written."""

    @property
    def generation(self) -> Generation:
        """The generation that is searched."""
        ...

    @property
    def catalogue(self) -> Records:
        """The catalogue."""
        ...

    @property
    def index(self) -> LibraryIndex:
        """The index of the generation."""
        ...

    @property
    def store(self) -> "FeatureStore":
        """The features."""
        ...


class Outdated(Exception):
    """Another process has switched the library to another generation. `Writer.following` repeats the work."""


@runtime_checkable
class Storage(Protocol):
    """The storage of one library. Nothing is read or created before a method needs it.

    Every method of a storage in a database raises Unreachable if the server does not answer.
    """

    @property
    def place(self) -> Place:
        """The place of the library. `at` returns the same storage for it."""
        ...

    @property
    def folder(self) -> Path | None:
        """The folder of the library; None if it is in a database."""
        ...

    # ------------------------------------------------------------ settings

    def exists(self) -> bool:
        """Return whether there is a library."""
        ...

    def expect_own(self) -> None:
        """Raise BadLibrary if a new library would mix with something else in its place."""
        ...

    def settings(self) -> Settings:
        """Return the settings. Raise MissingLibrary if there is no library, BadLibrary if it is damaged."""
        ...

    def write(self, settings: Settings) -> None:
        """Write the settings, atomically and durably. From then on, there is a library."""
        ...

    def recovered(self) -> tuple[Fingerprint, Generation] | None:
        """Return what a library without settings was made with; None if it was never complete."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Let no other process write until the block ends, unless many may write. Raise Locked if one writes."""
        ...

    def locked_for_reindex(self) -> AbstractContextManager[None]:
        """Let no other process reindex until the block ends. Raise Locked if one does."""
        ...

    def remove_leftovers(self) -> None:
        """Delete what killed writers have left."""
        ...

    def is_writable(self) -> bool:
        """Return whether this user may write the library."""
        ...

    def size(self) -> dict[str, int]:
        """Return the bytes on disk of features, catalogue and index."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...

    # ------------------------------------------------------------ generations

    def serving(self, settings: Settings | None = None) -> Generation:
        """Return the generation that is searched."""
        ...

    def generations(self) -> list[Generation]:
        """Return the generations with a valid card, in the order in which they were begun."""
        ...

    def begin(self, card: Card, files: Mapping[str, bytes]) -> Generation:
        """Create a generation that has no index yet.

        Args:
            card: The card of the generation.
            files: The files of its model.
        """
        ...

    def save_model(self, generation: Generation) -> None:
        """Store the files in the folder of a generation's model, after they have changed."""
        ...

    def switch(self, settings: Settings, generation: Generation, ids: Collection[str]) -> set[str]:
        """Make a generation the one that is searched, if it was made from all videos of the library.

        Args:
            settings: The settings of the library, which name the generation.
            generation: The generation.
            ids: The videos that it was made from.

        Returns:
            The videos that other processes have added meanwhile. If there are any, nothing has changed.
        """
        ...

    def drop(self, generation: Generation) -> None:
        """Delete a generation."""
        ...

    def drop_generations(self, *, but: str) -> None:
        """Delete all generations except one, unless another process makes them now."""
        ...

    # ------------------------------------------------------------ parts

    def open_catalogue(self, *, write: bool = False) -> Records:
        """Open the catalogue. To write, create it if it is missing."""
        ...

    def open_features(self, fingerprint: Fingerprint | None = None) -> "FeatureStore":
        """Open the features. With a fingerprint, check it, and create the store if it is missing."""
        ...

    def sync_features(self) -> None:
        """Wait until the features are durable."""
        ...

    def create_index(self, generation: Generation) -> None:
        """Create an empty index, unless there is one that can be opened."""
        ...

    def is_indexed(self, generation: Generation) -> bool:
        """Return whether the index of a generation was created."""
        ...

    def open_index(self, generation: Generation, *, read_only: bool) -> LibraryIndex:
        """Open the index of a generation. Raise BadIndex if it belongs to another library or is damaged."""
        ...

    def calibration(self, generation: Generation) -> Calibration | None:
        """Return the calibration of a generation; None if there is none yet."""
        ...

    def write_calibration(self, generation: Generation, calibration: Calibration) -> None:
        """Write the calibration of a generation."""
        ...

    def feedback(self) -> "FeedbackLog":
        """Return the feedback of users."""
        ...

    # ------------------------------------------------------------ videos

    def add(self, library: Parts, commit: Commit, clock: "Clock") -> None:
        """Add a video whose features `library.store` has.

        Args:
            library: The open parts of the library.
            commit: The video.
            clock: Measures the steps.

        Raises:
            Outdated: Another process has switched to another generation.
        """
        ...

    def remove(self, library: Parts, video_id: str) -> None:
        """Remove a video, except its features."""
        ...

    def plan(self, files: Sequence[FoundFile]) -> None:
        """Plan to read files. Other processes may read some of them."""
        ...

    def claimed(self, files: Sequence[FoundFile]) -> AbstractContextManager[Iterator[FoundFile]]:
        """Return the planned files that no other process reads now. They are claimed until the block ends."""
        ...

    def claimed_by_others(self, files: Iterable[FoundFile]) -> list[FoundFile]:
        """Return the planned files that nobody has read yet."""
        ...


def at(place: Place, *, write: bool = False) -> Storage:
    """Return the storage of a library: in a folder, or in the database that a URL names.

    Args:
        place: The folder or the URL.
        write: Whether to write. A writer waits longer for a database that restarts, because it has more to lose.

    Raises:
        BadSetting: The URL cannot be read, has another scheme, or holds a password.
        BadPackage: The package for the database is not installed.
    """
    if not is_url(place):
        return FolderStorage(scan.absolute(Path(place)))
    if str(place).startswith(_POSTGRES):
        from midreel.library.postgres import PostgresStorage

        return PostgresStorage(str(place), write=write)
    scheme = str(place).partition(":")[0]  # the rest may hold a password
    raise BadSetting(
        f"the library is a URL with the scheme {scheme}, expected postgresql://USER@HOST/DATABASE or a folder."
    )


def is_library(place: Place) -> bool:
    """Return whether there is a library."""
    with closing(at(place)) as storage:
        return storage.exists()


def expect_library(place: Place) -> None:
    """Raise MissingLibrary if there is no library."""
    with closing(at(place)) as storage:
        storage.settings()


class FolderStorage(Layout):
    """A library in a folder. `Layout` describes its files.

    Args:
        folder: The folder.
    """

    folder: Path

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._calibration: tuple[tuple[object, ...], Calibration | None] | None = None  # the state of its file, and it

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def place(self) -> Path:
        """The folder."""
        return self.folder

    def recovered(self) -> tuple[Fingerprint, Generation] | None:
        """Return the fingerprint of the features, and the generation to search; None if these are missing.

        If there are several generations, an interrupted reindex began the last one, or did not delete the first. The
        one with most videos is complete; of equal ones, the latest is.
        """
        from midreel.features.stores.store import FeatureStore  # only here, because h5py takes time to import

        generations = self.generations()
        if not generations or not self.features.exists():
            return None
        with FeatureStore.open(self.features) as store:
            stored = store.fingerprint
        return stored, max(reversed(generations), key=tokens.num_videos)

    def locked_for_reindex(self) -> AbstractContextManager[None]:
        """Return a context that does nothing, because a writer has locked the whole library."""
        return nullcontext()

    def is_writable(self) -> bool:
        """Return whether this user may write the folder."""
        return access(self.folder, W_OK)

    def close(self) -> None:
        """Do nothing: the parts are closed on their own."""

    # ------------------------------------------------------------ generations

    def begin(self, card: Card, files: Mapping[str, bytes]) -> Generation:
        """Create a generation that has no index yet. Raise Unwritable if the disk is full."""
        saved = self.folder / "model.new"
        try:
            with write_errors(self.folder):
                write_files(saved, files)
            return self.begin_generation(card, saved)
        except Unwritable:
            self.remove_leftovers()  # frees the space on a full disk
            raise

    def save_model(self, generation: Generation) -> None:
        """Do nothing: the folder of the model is where it is stored."""

    def switch(self, settings: Settings, generation: Generation, ids: Collection[str]) -> set[str]:
        """Make a generation the one that is searched. Return no videos, because no other process writes.

        Args:
            settings: The settings of the library, which name the generation.
            generation: The generation.
            ids: The videos that it was made from.
        """
        self.write(settings)
        return set()

    # ------------------------------------------------------------ parts

    def open_catalogue(self, *, write: bool = False) -> Catalogue:
        """Open the catalogue. To write, create it if it is missing."""
        if not write:
            return Catalogue(self.folder)
        return Catalogue(self.folder, mode="write" if (self.folder / NAME).exists() else "create")

    def open_features(self, fingerprint: Fingerprint | None = None) -> "FeatureStore":
        """Open the features. With a fingerprint, check it, and create the store if it is missing."""
        from midreel.features.stores.store import FeatureStore

        if fingerprint is None:
            return FeatureStore.open(self.features)
        return FeatureStore.resume(self.features, fingerprint)

    def create_index(self, generation: Generation) -> None:
        """Create an empty index, unless there is one that can be opened."""
        tokens.create_index(generation)

    def is_indexed(self, generation: Generation) -> bool:
        """Return whether the index of a generation was created."""
        return tokens.is_created(generation)

    def open_index(self, generation: Generation, *, read_only: bool) -> "EmbeddedIndex":
        """Open the index of a generation."""
        return tokens.open_index(generation, read_only=read_only)

    def calibration(self, generation: Generation) -> Calibration | None:
        """Return the calibration of a generation. The file is read again if it has changed."""
        try:
            status = (generation.folder / confidence.NAME).stat()
        except OSError:
            return None
        state = (generation.name, status.st_ino, status.st_mtime_ns, status.st_size)
        if self._calibration is None or self._calibration[0] != state:
            self._calibration = state, confidence.read(generation)
        return self._calibration[1]

    def write_calibration(self, generation: Generation, calibration: Calibration) -> None:
        """Write the calibration of a generation. Raise Unwritable if the disk is full."""
        confidence.write(generation, calibration)

    def feedback(self) -> "FeedbackLog":
        """Return the feedback of users."""
        from midreel.library.feedback import FeedbackLog

        return FeedbackLog(self.folder)

    # ------------------------------------------------------------ videos

    def add(self, library: Parts, commit: Commit, clock: "Clock") -> None:
        """Add tokens and row of a video, in this order: see `midreel.library.commit`.

        Args:
            library: The open parts of the library.
            commit: The video.
            clock: Measures the steps.
        """
        with clock.of("index"):
            library.index.add(commit.video.id, commit.tokens)
        with clock.of("catalogue"):
            library.catalogue.add(commit.video, commit.files, commit.tags, commit.damage, commit.spoken)

    def remove(self, library: Parts, video_id: str) -> None:
        """Remove row and tokens of a video, in this order."""
        # The row goes first, because a search returns only videos with a row. After a crash, no search returns the
        # tokens, and the next run removes them.
        library.catalogue.forget_videos([video_id])
        if video_id in library.index:
            library.index.remove(video_id)

    def plan(self, files: Sequence[FoundFile]) -> None:
        """Do nothing, because no other process writes."""

    def claimed(self, files: Sequence[FoundFile]) -> AbstractContextManager[Iterator[FoundFile]]:
        """Return all files, because no other process writes."""
        return nullcontext(iter(files))

    def claimed_by_others(self, files: Iterable[FoundFile]) -> list[FoundFile]:
        """Return no files, because no other process writes."""
        return []
