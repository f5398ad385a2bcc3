"""The directory of a library: what is where, who may write, which generation serves.

    LIBRARY/
      library.json          the format, the backbone and its fingerprint, the rate, the generation that serves
      catalogue.sqlite      files and videos
      features.h5           what the backbone made of the videos, by video
      generations/NUMBER/   what one method made of the features: generation.json, model/, index/
      writer.lock           held by the one who writes

The method's own files are kept with what it encoded: a query must be encoded by the very same.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from midreel.errors import BadLibrary, LibraryBusy, MissingLibrary, Unwritable
from midreel.io.files import locked, sync, write_durably
from midreel.library.windows import Windowing

FORMAT = 1
SETTINGS, FEATURES, GENERATIONS, LOCK = "library.json", "features.h5", "generations", "writer.lock"
CARD, MODEL, INDEX = "generation.json", "model", "index"
_CURVE_WEIGHTS = {"clip": 1.0, "frame": 3.0}  # of all methods, when cards did not name them yet
_DROPPED = ".dropped"  # what the name of a generation ends in while it is deleted
_OF_SYSTEMS = ("lost+found", "Thumbs.db", "desktop.ini")  # which put these into folders of their own accord


@dataclass(frozen=True, kw_only=True)
class Settings:
    """library.json: what all of the library was made with."""

    backbone: str  # as `load_backbone` takes it
    rate: float  # frames per second
    fingerprint: dict[str, Any]
    serving: str  # the generation that is searched
    format: int = FORMAT
    id: str = ""  # tells this library from any other; empty in libraries that are older than ids

    def __post_init__(self) -> None:
        """Raise ValueError unless all is of its kind: the file may be damaged, or edited by hand."""
        fits = isinstance(self.backbone, str) and isinstance(self.fingerprint, dict)
        fits = fits and isinstance(self.rate, int | float) and 0 < self.rate < 1e6
        if not (fits and isinstance(self.serving, str) and self.serving.isdecimal()):
            raise ValueError(f"backbone {self.backbone!r:.99}, rate {self.rate!r:.99}, serving {self.serving!r:.99}")


@dataclass(frozen=True, kw_only=True)
class Card:
    """generation.json: which model, told from any other by the digest of its files, and how it was given the videos."""

    model: str  # what it was called when it was given
    digest: str
    width: int
    branch_weights: dict[str, float]  # of the score
    curve_weights: dict[str, float]  # of curves over time
    windows: Windowing
    library: str = ""  # the id of the library that it belongs to

    def __post_init__(self) -> None:
        """Raise ValueError unless every field is of its kind: the file may be damaged, or edited by hand."""
        weights = (self.branch_weights, self.curve_weights)
        fits = all(isinstance(text, str) for text in (self.model, self.digest, self.library))
        fits = fits and isinstance(self.width, int) and self.width > 0
        if not (fits and all(map(_are_weights, weights)) and set(self.branch_weights) == set(self.curve_weights)):
            raise ValueError(f"width {self.width!r:.99}, weights {weights!r:.99}")


def _are_weights(weights: object) -> bool:
    """Whether they are numbers by branch that a weighted mean can be made of."""
    if not (isinstance(weights, dict) and all(isinstance(weight, int | float) for weight in weights.values())):
        return False
    return all(0 <= weight < inf for weight in weights.values()) and any(weights.values())


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The folder of one method's tokens."""

    folder: Path
    card: Card

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def index(self) -> Path:
        return self.folder / INDEX

    @property
    def owner(self) -> str:
        """What its index says that it belongs to; empty in libraries that are older than ids."""
        return f"{self.card.library}/{self.name}" if self.card.library else ""


class Layout:
    """The files of the library in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parsed: tuple[tuple[int, int, int], Settings] | None = None  # and the state of the file then

    @property
    def features(self) -> Path:
        return self.folder / FEATURES

    def exists(self) -> bool:
        try:
            return (self.folder / SETTINGS).is_file()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # as a query is, where a library was expected
                return False
            raise

    def expect_own(self) -> None:
        """Raises unless the folder is new or holds what is left of a library, and nothing that is somebody else's.

        The features of a folder of annotated videos have the same name; a library would take them for its own.
        """
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set[str]()
        if any(name.startswith((GENERATIONS, "catalogue.sqlite")) for name in names):  # begun, if not finished
            return
        strangers = sorted(name for name in names - {LOCK, *_OF_SYSTEMS} if not name.startswith("."))
        if strangers:
            raise BadLibrary(
                f"{self.folder} holds {strangers[0]}, which is not of a library, expected a new folder; name another: "
                f"--library {self.folder}-library"
            )

    def settings(self) -> Settings:
        """Return library.json. The file is parsed again only if it has changed.

        Raises:
            MissingLibrary: There is no library in the folder.
            BadLibrary: The file is damaged, or of another version.
        """
        path = self.folder / SETTINGS
        try:
            status = path.stat()
            # Every writer replaces the file, so that a new version is another inode.
            state = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._parsed is not None and self._parsed[0] == state:
                return self._parsed[1]
            values = json.loads(path.read_text(encoding="utf-8"))
            found = values["format"]
            if found == FORMAT:
                self._parsed = state, Settings(**values)
                return self._parsed[1]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingLibrary(
                f"{self.folder} is no library, expected a folder that midreel index made; {self._remedy()}"
            ) from error
        except OSError as error:
            raise BadLibrary(
                f"{path} cannot be read ({error.strerror}), expected what midreel index writes; check the name and its "
                f"permissions"
            ) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadLibrary(
                f"{path} cannot be read ({type(error).__name__}: {error}), expected what midreel index writes; restore "
                f"it from a backup, or move it away and run midreel index: it is made again from the features"
            ) from error
        raise BadLibrary(
            f"{self.folder} is a library of format {found!r}, expected {FORMAT}; use the midreel that made it, or "
            f"index into a new folder"
        )

    def _remedy(self) -> str:
        """What to do about a folder that is no library."""
        from midreel.datasets import is_dataset  # for an error message only

        if is_dataset(self.folder):
            return (
                f"it is a dataset, which midreel train takes. To search its videos: midreel index {self.folder} "
                f"--library {self.folder}-library"
            )
        beside = sorted(path.parent for path in self.folder.parent.glob(f"*/{SETTINGS}"))
        if beside:
            return f"did you mean {beside[0]}?"
        if self.folder.is_dir() and any(self.folder.iterdir()):
            return f"make one of the videos in it: midreel index {self.folder} --library {self.folder}-library"
        return f"make one: midreel index VIDEOS --library {self.folder}"

    def write(self, settings: Settings) -> None:
        with _writing(self.folder):
            write_durably(self.folder / SETTINGS, f"{json.dumps(asdict(settings), indent=2)}\n".encode())

    def sync_features(self) -> None:
        """Waits until they are on the disk: HDF5 does not."""
        with _writing(self.folder):
            sync(self.features)

    # ------------------------------------------------------------ generations

    def generation(self, name: str) -> Generation:
        folder = self.folder / GENERATIONS / name
        try:
            values = json.loads((folder / CARD).read_text(encoding="utf-8"))
            if "curve_weights" not in values:
                values["curve_weights"] = {branch: _CURVE_WEIGHTS[branch] for branch in values["branch_weights"]}
            card = Card(**values | {"windows": Windowing.from_dict(values["windows"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            # Not the error itself: it may hold the whole file.
            raise BadLibrary(
                f"{folder / CARD} is damaged or missing ({type(error).__name__}). Rebuild the generation from the "
                f"features: midreel reindex {self.folder} --model MODEL"
            ) from error
        return Generation(folder=folder, card=card)

    def serving(self, settings: Settings | None = None) -> Generation:
        """The generation that is searched. Raises BadLibrary if it was copied from another library."""
        settings = settings or self.settings()
        found = self.generation(settings.serving)
        if settings.id and found.card.library and settings.id != found.card.library:
            raise BadLibrary(
                f"{found.folder} belongs to library {found.card.library}, expected {settings.id}. Copy the whole "
                f"library again, or rebuild the index: midreel reindex {self.folder} --model {found.card.model}"
            )
        return found

    def generations(self) -> list[Generation]:
        """Those whose card is whole, which is written after the model and before the index."""
        found = []
        for folder in self._numbered():
            try:
                found.append(self.generation(folder.name))
            except BadLibrary:
                continue
        return found

    def begin_generation(self, card: Card, model: Path) -> Generation:
        """A new generation, without tokens, of the method whose files are in the folder `model`, which is moved."""
        number = max((int(folder.name) for folder in self._numbered()), default=0) + 1
        folder = self.folder / GENERATIONS / str(number)
        with _writing(self.folder):
            folder.mkdir(parents=True)
            model.replace(folder / MODEL)
            write_durably(folder / CARD, f"{json.dumps(asdict(card), indent=2)}\n".encode())
            sync(folder.parent)
        return Generation(folder=folder, card=card)

    def drop_generations(self, *, but: str) -> None:
        for folder in self._numbered():
            if folder.name != but:
                self._drop(folder)

    def drop(self, generation: Generation) -> None:
        self._drop(generation.folder)

    def _drop(self, folder: Path) -> None:
        """Deletes a generation. It is renamed first: one that a kill leaves half deleted must not pass for a whole one.

        Deleting may fail, on a network disk for instance. The next writer removes what is left.
        """
        dropped = folder.with_name(f"{folder.name}{_DROPPED}")
        shutil.rmtree(dropped, ignore_errors=True)
        with suppress(OSError):
            folder.rename(dropped)
            sync(folder.parent)
            shutil.rmtree(dropped, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Deletes the temporary files of writers that were killed. Only the process that holds the lock may call it."""
        for path in [*self.folder.glob("*.new*"), *self.folder.glob("*.tmp"), *self._generations(f"*{_DROPPED}")]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()

    def _numbered(self) -> list[Path]:
        return sorted(
            (path for path in self._generations("*") if path.name.isdecimal()), key=lambda path: int(path.name)
        )

    def _generations(self, pattern: str) -> list[Path]:
        return list((self.folder / GENERATIONS).glob(pattern))

    # ------------------------------------------------------------ who writes

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other writers out until the block ends, however it ends. Readers go on."""
        with ExitStack() as until_the_end:
            with _writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    handle = until_the_end.enter_context(locked(self.folder / LOCK, os.O_RDWR | os.O_CREAT))
                except BlockingIOError as error:
                    owner = (self.folder / LOCK).read_text(encoding="ascii", errors="replace") or "another process"
                    raise LibraryBusy(
                        f"{self.folder} is being written by process {owner}; wait for it to end, or stop it. Searching "
                        f"goes on"
                    ) from error
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield

    def size(self) -> dict[str, int]:
        """Bytes on disk, by what they are for."""
        parts = {"features": self.features, "catalogue": self.folder / "catalogue.sqlite"}
        sizes = {name: path.stat().st_size if path.is_file() else 0 for name, path in parts.items()}
        return sizes | {"index": _size(self.folder / GENERATIONS)}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A folder that may not be written is one that can still be searched."""
    try:
        yield
    except OSError as error:
        raise Unwritable(
            f"{folder} cannot be written ({error.strerror or error}); it can be searched as it is. To index into it, "
            f"make room or change its permissions, or copy it to where you may write"
        ) from error
