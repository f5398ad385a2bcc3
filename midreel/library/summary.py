"""What a library holds, in words. Reads no vectors, and needs neither torch nor the backbone."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midreel.library.catalogue import Catalogue
from midreel.library.layout import Layout
from midreel.library.scan import shown


@dataclass(frozen=True, kw_only=True)
class Summary:
    folder: Path
    backbone: str
    rate: float
    model: str
    generation: str
    num_videos: int
    num_files: int
    seconds: float
    places: list[Path]
    tags: dict[str, int]
    quarantine: dict[Path, str]
    damaged: dict[Path, str]
    sizes: dict[str, int]  # bytes, by what they are for
    writable: bool

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {
            "folder": str(self.folder),
            "places": [str(place) for place in self.places],
            "quarantine": {str(path): reason for path, reason in self.quarantine.items()},
            "damaged": {str(path): damage for path, damage in self.damaged.items()},
        }

    @property
    def text(self) -> str:
        sizes = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in self.sizes.items())
        lines = [
            f"{shown(self.folder)}: {self.num_videos:,} videos in {self.num_files:,} files, "
            f"{self.seconds / 3600:,.2f} hours",
            f"backbone: {self.backbone}, {self.rate:g} frames a second",
            f"model: {self.model} (generation {self.generation})",
            f"on disk: {sizes}",
            *(f"place: {shown(place)}" for place in self.places),
            *(f"tag: {tag}, {count:,} videos" for tag, count in self.tags.items()),
            *(f"damaged {shown(path)}: {damage}" for path, damage in self.damaged.items()),
            *(f"quarantined {shown(path)}: {reason}" for path, reason in self.quarantine.items()),
        ]
        return "\n".join(lines if self.writable else [*lines, "it may not be written, only searched"])


def summarise(folder: Path) -> Summary:
    layout = Layout(folder)
    settings = layout.settings()
    generation = layout.serving(settings)
    with closing(Catalogue(folder)) as catalogue:
        quarantine = catalogue.quarantine()
        return Summary(
            folder=folder,
            backbone=settings.backbone,
            rate=settings.rate,
            model=generation.card.model,
            generation=generation.name,
            num_videos=len(catalogue),
            num_files=len(catalogue.files()) - len(quarantine),
            seconds=catalogue.seconds(),
            places=catalogue.places(),
            tags=catalogue.tags(),
            quarantine=quarantine,
            damaged=catalogue.damaged(),
            sizes=layout.size(),
            writable=os.access(folder, os.W_OK),
        )
