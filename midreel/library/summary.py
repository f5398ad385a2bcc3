"""A summary of a library: its settings, sizes and unreadable files. It loads neither the backbone nor the model."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midreel.library.place import Place
from midreel.library.scan import shown
from midreel.library.storage import Storage, at


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The settings, contents and sizes of a library.

    Attributes:
        folder: The folder or the database of the library.
        backbone: The name of the backbone.
        rate: Frames per second.
        model: The name or folder of the model.
        generation: The name of the generation that is searched.
        adapted: Whether it has learned from feedback.
        num_videos: The number of videos.
        num_files: The number of files of these videos. Copies count.
        seconds: The total length of the videos.
        places: The files and folders indexed so far.
        tags: The number of videos that have each tag.
        quarantine: Unreadable files, with the reason.
        damaged: Indexed files that have an unreadable part, with a description of it.
        sizes: Bytes on disk of features, catalogue and index.
        writable: Whether this user may write the library.
    """

    folder: str
    backbone: str
    rate: float
    model: str
    generation: str
    adapted: bool
    num_videos: int
    num_files: int
    seconds: float
    places: list[Path]
    tags: dict[str, int]
    quarantine: dict[Path, str]
    damaged: dict[Path, str]
    sizes: dict[str, int]
    writable: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return vars(self) | {
            "places": [str(place) for place in self.places],
            "quarantine": {str(path): reason for path, reason in self.quarantine.items()},
            "damaged": {str(path): damage for path, damage in self.damaged.items()},
        }

    @property
    def text(self) -> str:
        """The summary as text."""
        sizes = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in self.sizes.items())
        lines = [
            f"{shown(self.folder)}: {self.num_videos:,} videos in {self.num_files:,} files, "
            f"{self.seconds / 3600:,.2f} hours",
            f"backbone: {self.backbone}, {self.rate:g} frames per second",
            f"model: {self.model} (generation {self.generation}{', adapted to feedback' * self.adapted})",
            f"on disk: {sizes}",
            *(f"indexed: {shown(place)}" for place in self.places),
            *(f"tag: {tag}, {count:,} videos" for tag, count in self.tags.items()),
            *(f"partly readable {shown(path)}: {damage}" for path, damage in self.damaged.items()),
            *(f"quarantined {shown(path)}: {reason}" for path, reason in self.quarantine.items()),
        ]
        return "\n".join(lines if self.writable else [*lines, "read-only: you can search it, but not update it"])


def summarise(place: Place) -> Summary:
    """Return a summary of the library in a place.

    Raises:
        MissingLibrary: There is no library.
        BadLibrary: The library is damaged, or of another format.
    """
    with closing(at(place)) as storage:
        return _summarised(storage, str(storage) if storage.folder is None else str(place))


def _summarised(storage: Storage, name: str) -> Summary:
    settings = storage.settings()
    generation = storage.serving(settings)
    with closing(storage.open_catalogue()) as catalogue:
        quarantine = catalogue.quarantine()
        return Summary(
            folder=name,
            backbone=settings.backbone,
            rate=settings.rate,
            model=generation.card.model,
            generation=generation.name,
            adapted=bool(generation.card.adaptation),
            num_videos=len(catalogue),
            num_files=len(catalogue.files()) - len(quarantine),
            seconds=catalogue.seconds(),
            places=catalogue.places(),
            tags=catalogue.tags(),
            quarantine=quarantine,
            damaged=catalogue.damaged(),
            sizes=storage.size(),
            writable=storage.is_writable(),
        )
