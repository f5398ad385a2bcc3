"""The folder of a library: its files, its generations, and the lock of its writer.

    LIBRARY/
      library.json          format, library id, backbone and its fingerprint, rate, serving generation
      catalogue.sqlite      files, videos, tags, and the places to index
      features.h5           the backbone's features of the videos
      feedback.sqlite       what users say about hits; absent before the first feedback
      generations/NUMBER/   one model and its index: generation.json, model/, index/, confidence.json
                            model/ also has adaptation.npz if the library was adapted to feedback
      writer.lock           locked by the process that writes
      server.json           the address of a server, while it runs

A generation contains a copy of its model, because queries must be encoded by the model that encoded the videos.
`generation.json` is written after the model and before the index, so a generation with a valid card has its model.
`library.json` names the generation that is searched. Replacing it is the atomic step of a reindex.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from midreel.errors import BadLibrary, Locked, MissingLibrary
from midreel.index.base import checked_similarities
from midreel.io.files import hold, sync, write_durably, write_errors
from midreel.library.windows import Windowing
from midreel.ops.edges import EdgeCalibration
from midreel.types import Similarity

FORMAT = 1
SETTINGS, FEATURES, GENERATIONS, LOCK = "library.json", "features.h5", "generations", "writer.lock"
CARD, MODEL, INDEX = "generation.json", "model", "index"
_CURVE_WEIGHTS = {"clip": 1.0, "frame": 3.0}  # of every card that is older than the field `curve_weights`
_OPTIONAL = ("similarities", "edges", "adaptation")  # values of a card that older versions do not know
_DROPPED = ".dropped"  # the suffix of a generation's name while it is being deleted
_SYSTEM_FILES = ("lost+found", "Thumbs.db", "desktop.ini")  # operating systems create them in any folder


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The content of library.json.

    Attributes:
        backbone: The name of the backbone, as `load_backbone` takes it.
        rate: Frames per second.
        fingerprint: The fingerprint of the features.
        serving: The name of the generation that is searched.
        format: The version of the file format.
        id: A unique id of the library; empty in libraries that are older than ids.

    Raises:
        ValueError: A field has the wrong type or range. The file may be damaged, or edited by hand.
    """

    backbone: str
    rate: float
    fingerprint: dict[str, Any]
    serving: str
    format: int = FORMAT
    id: str = ""

    def __post_init__(self) -> None:
        fits = isinstance(self.backbone, str) and isinstance(self.fingerprint, dict)
        fits = fits and isinstance(self.rate, int | float) and 0 < self.rate < 1e6
        if not (fits and isinstance(self.serving, str) and self.serving.isdecimal()):
            raise ValueError(f"backbone {self.backbone!r:.99}, rate {self.rate!r:.99}, serving {self.serving!r:.99}")


@dataclass(frozen=True, kw_only=True)
class Card:
    """The content of generation.json: the model of a generation, and how it encodes videos.

    Attributes:
        model: The name or folder that the model was loaded from.
        digest: The SHA-256 of the model's files.
        width: The width of a token.
        branch_weights: The weight of each branch in the score.
        curve_weights: The weight of each branch in the curve over time.
        windows: How long videos are split.
        library: The id of the library that the generation belongs to.
        similarities: How each branch scores that does not score by its best cosine. Absent in the file if empty.
        edges: How wide the ranges of starts and ends are, if measured for this model. Absent in the file if None.
        adaptation: The SHA-256 of what was learned from feedback. Absent in the file if nothing was.

    Raises:
        ValueError: A field has the wrong type or range. The file may be damaged, or edited by hand.
    """

    model: str
    digest: str
    width: int
    branch_weights: dict[str, float]
    curve_weights: dict[str, float]
    windows: Windowing
    library: str = ""
    similarities: dict[str, Similarity] = field(default_factory=dict)
    edges: EdgeCalibration | None = None
    adaptation: str = ""

    def __post_init__(self) -> None:
        weights = (self.branch_weights, self.curve_weights)
        fits = all(isinstance(text, str) for text in (self.model, self.digest, self.library, self.adaptation))
        fits = fits and isinstance(self.width, int) and self.width > 0
        if not (fits and all(map(_are_weights, weights)) and set(self.branch_weights) == set(self.curve_weights)):
            raise ValueError(f"width {self.width!r:.99}, weights {weights!r:.99}")
        checked_similarities(self.similarities, self.branch_weights)  # raises BadSetting, a ValueError

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Card":
        """Return the card in the values of a generation.json, which older versions may have written."""
        if "curve_weights" not in values:
            values["curve_weights"] = {branch: _CURVE_WEIGHTS[branch] for branch in values["branch_weights"]}
        similarities = {branch: Similarity(**form) for branch, form in values.get("similarities", {}).items()}
        edges = EdgeCalibration.from_dict(values["edges"]) if "edges" in values else None
        windows = Windowing.from_dict(values["windows"])
        return cls(**values | {"windows": windows, "similarities": similarities, "edges": edges})

    def to_dict(self) -> dict[str, Any]:
        """Return the values of generation.json. Without optional values, older versions can read them."""
        values = asdict(self) | {"edges": self.edges and self.edges.to_dict()}
        return {name: part for name, part in values.items() if part or name not in _OPTIONAL}


def _are_weights(weights: object) -> bool:
    """Return whether a value maps branches to weights that are finite, not negative and not all 0."""
    if not (isinstance(weights, dict) and all(isinstance(weight, int | float) for weight in weights.values())):
        return False
    return all(0 <= weight < inf for weight in weights.values()) and any(weights.values())


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The folder of one model and the index that it made."""

    folder: Path
    card: Card

    @property
    def name(self) -> str:
        """The name of the folder, a number."""
        return self.folder.name

    @property
    def model(self) -> Path:
        """The folder of the model."""
        return self.folder / MODEL

    @property
    def index(self) -> Path:
        """The folder of the index."""
        return self.folder / INDEX

    @property
    def owner(self) -> str:
        """The owner that the index names: library and generation. Empty in libraries that are older than ids."""
        return f"{self.card.library}/{self.name}" if self.card.library else ""


class Layout:
    """The files of the library in a folder. Nothing is read or created before a method needs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cached: tuple[tuple[int, int, int], Settings] | None = None  # the state of library.json, and its content

    @property
    def features(self) -> Path:
        """The file of the feature store."""
        return self.folder / FEATURES

    def exists(self) -> bool:
        """Return whether the folder contains a library."""
        try:
            return (self.folder / SETTINGS).is_file()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # the user may have passed a query as the library
                return False
            raise

    def expect_own(self) -> None:
        """Raise BadLibrary if a new library would mix with other files in the folder.

        An empty folder, or an interrupted creation, is fine. Other files are not: a dataset, for example, also has a
        features.h5, and the library would take it for its own.
        """
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set[str]()
        if any(name.startswith((GENERATIONS, "catalogue.sqlite")) for name in names):  # an interrupted creation
            return
        others = sorted(name for name in names - {LOCK, *_SYSTEM_FILES} if not name.startswith("."))
        if others:
            raise BadLibrary(
                f"{self.folder} contains {others[0]}, expected a new folder. Choose another: "
                f"--library {self.folder}-library"
            )

    def settings(self) -> Settings:
        """Return the content of library.json. The file is parsed again only if it has changed.

        Raises:
            MissingLibrary: There is no library in the folder.
            BadLibrary: The file is damaged, or of another format.
        """
        path = self.folder / SETTINGS
        try:
            status = path.stat()
            # Every writer replaces the file, so a new version has another inode.
            state = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._cached is not None and self._cached[0] == state:
                return self._cached[1]
            values = json.loads(path.read_text(encoding="utf-8"))
            found = values["format"]
            if found == FORMAT:
                self._cached = state, Settings(**values)
                return self._cached[1]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingLibrary(f"{self.folder} {self._problem()}. {self._remedy()}") from error
        except OSError as error:
            raise BadLibrary(
                f"{path} cannot be read ({error.strerror}). Check its disk and its permissions."
            ) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadLibrary(
                f"{path} is damaged ({type(error).__name__}: {error}). Restore it from a backup; or move it away and "
                f"run midreel index, which writes it again."
            ) from error
        raise BadLibrary(
            f"{self.folder} has format {found!r}, expected {FORMAT}. Use the midreel version that made it, or index "
            f"into a new folder."
        )

    def _problem(self) -> str:
        """Return why the folder is not a library."""
        if self.folder.is_dir():
            return "is not a library"
        return f"{'is not a folder' if self.folder.exists() else 'does not exist'}, expected a library"

    def _remedy(self) -> str:
        """Return what to do about a folder that is not a library."""
        from midreel.datasets import is_dataset  # only here, because datasets take time to import

        if is_dataset(self.folder):
            return (
                f"It is a dataset, for midreel train. To search its videos, run: midreel index {self.folder} "
                f"--library {self.folder}-library"
            )
        near = [*sorted(self.folder.glob(f"*/{SETTINGS}")), *sorted(self.folder.parent.glob(f"*/{SETTINGS}"))]
        if near:
            return f"Did you mean {near[0].parent}?"
        # An interrupted midreel index may leave only its lock.
        if self.folder.is_dir() and any(path.name != LOCK for path in self.folder.iterdir()):
            return f"Index its videos: midreel index {self.folder} --library {self.folder}-library"
        if self.folder.exists() and not self.folder.is_dir():
            return "Pass the folder that midreel index wrote."
        return f"Create it: midreel index VIDEOS --library {self.folder}"

    def write(self, settings: Settings) -> None:
        """Replace library.json, atomically and durably."""
        with write_errors(self.folder):
            write_durably(self.folder / SETTINGS, f"{json.dumps(asdict(settings), indent=2)}\n".encode())

    def sync_features(self) -> None:
        """Wait until the features are on disk. HDF5 does not wait."""
        with write_errors(self.folder):
            sync(self.features)

    # ------------------------------------------------------------ generations

    def generation(self, name: str) -> Generation:
        """Return a generation. Raise BadLibrary if its card is missing or damaged."""
        folder = self.folder / GENERATIONS / name
        try:
            values = json.loads((folder / CARD).read_text(encoding="utf-8"))
            card = Card.from_dict(values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            # The message of the error may contain the whole file.
            raise BadLibrary(
                f"{folder / CARD} is damaged or missing ({type(error).__name__}). Rebuild the index: midreel reindex "
                f"{self.folder} --model MODEL"
            ) from error
        return Generation(folder=folder, card=card)

    def serving(self, settings: Settings | None = None) -> Generation:
        """Return the generation that is searched. Raise BadLibrary if it was copied from another library."""
        settings = settings or self.settings()
        found = self.generation(settings.serving)
        if settings.id and found.card.library and settings.id != found.card.library:
            raise BadLibrary(
                f"{found.folder} belongs to library {found.card.library}, expected {settings.id}. Copy the whole "
                f"library again; or rebuild the index: midreel reindex {self.folder} --model {found.card.model}"
            )
        return found

    def generations(self) -> list[Generation]:
        """Return the generations with a valid card, in the order in which they were begun."""
        found = []
        for folder in self._numbered():
            try:
                found.append(self.generation(folder.name))
            except BadLibrary:
                continue
        return found

    def begin_generation(self, card: Card, model: Path) -> Generation:
        """Create a generation that has no index yet.

        Args:
            card: The card of the generation.
            model: A folder with the files of the model. It is moved into the generation.
        """
        number = max((int(folder.name) for folder in self._numbered()), default=0) + 1
        folder = self.folder / GENERATIONS / str(number)
        with write_errors(self.folder):
            folder.mkdir(parents=True)
            model.replace(folder / MODEL)
            write_durably(folder / CARD, f"{json.dumps(card.to_dict(), indent=2)}\n".encode())
            sync(folder.parent)
        return Generation(folder=folder, card=card)

    def drop_generations(self, *, but: str) -> None:
        """Delete all generations except one."""
        for folder in self._numbered():
            if folder.name != but:
                self._drop(folder)

    def drop(self, generation: Generation) -> None:
        """Delete a generation."""
        self._drop(generation.folder)

    def _drop(self, folder: Path) -> None:
        # Rename the folder before deleting it: after a crash, a half deleted generation must not look like a whole one.
        # Deleting may fail, for example on a network disk. The next writer removes the rest.
        dropped = folder.with_name(f"{folder.name}{_DROPPED}")
        shutil.rmtree(dropped, ignore_errors=True)
        with suppress(OSError):
            folder.rename(dropped)
            sync(folder.parent)
            shutil.rmtree(dropped, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Delete the temporary files of killed writers. Only the process that has the lock may call this."""
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

    # ------------------------------------------------------------ lock and size

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the library for writing until the block ends, and create its folder. Searches continue.

        Raises:
            Locked: Another process writes the library.
            Unwritable: The folder cannot be created or written.
        """
        with ExitStack() as lock:
            with write_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    handle = lock.enter_context(hold(self.folder / LOCK, os.O_RDWR | os.O_CREAT))
                except Locked as error:
                    owner = (self.folder / LOCK).read_text(encoding="ascii", errors="replace")
                    raise Locked(
                        f"{self.folder} is locked by process {owner or 'unknown'}. Wait for it, or stop it. "
                        f"Searching still works."
                    ) from error
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield

    def size(self) -> dict[str, int]:
        """Return the bytes on disk of features, catalogue and generations."""
        parts = {"features": self.features, "catalogue": self.folder / "catalogue.sqlite"}
        sizes = {name: path.stat().st_size if path.is_file() else 0 for name, path in parts.items()}
        return sizes | {"index": _size(self.folder / GENERATIONS)}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
