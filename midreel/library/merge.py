"""Merge libraries: copy the videos of several parts, such as shards, into one library.

The features and the subtitles of a video are copied, and its tokens are encoded from the features again. So the merged
library is the one that a single run over all files would make. If several parts have subtitles of a video, those of the
last part are copied. Video files are not read, and need not be on this machine.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from midreel.errors import BadFeatures, BadSetting, BadStore
from midreel.features import shards
from midreel.features.backbones.base import Backbone
from midreel.features.stores.merge import copy_video
from midreel.features.stores.store import FeatureStore
from midreel.library.catalogue import Catalogue, File
from midreel.library.layout import Layout
from midreel.library.scan import FoundFile
from midreel.library.writer import Wanted, Writer
from midreel.methods.model_files import UNTRAINED


@dataclass(kw_only=True)
class MergeReport:
    """The result of a merge.

    Attributes:
        added: The number of videos that were added.
        known: The number of videos that the library had already.
        failed: Videos whose features are damaged, with the reason. Run the part's command again with --retry.
        unfinished: Parts whose run did not finish, and shards that no part has, with the reason.
    """

    added: int = 0
    known: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)

    @property
    def is_partial(self) -> bool:
        """Whether the library lacks videos."""
        return bool(self.failed or self.unfinished)

    @property
    def text(self) -> str:
        """The report as lines of text."""
        lines = [f"videos: {self.added:,} added, {self.known:,} known, {len(self.failed):,} failed"]
        lines += [f"failed {video_id}: {reason}" for video_id, reason in self.failed.items()]
        lines += [f"incomplete {part}: {reason}" for part, reason in self.unfinished.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)


def merge(
    parts: Sequence[Path],
    out: Path,
    *,
    device: str = "cpu",
    backbone: Backbone | None = None,
    progress: Callable[[str], None] | None = None,
) -> MergeReport:
    """Copy the videos of some libraries into another, and return a report.

    A merge that was interrupted is continued by the same call. A part that is not finished is merged as far as it is.

    Args:
        parts: Libraries that were made with the same model, backbone and rate.
        out: The library to add to. It is created if it does not exist.
        device: The torch device for the model.
        backbone: A backbone that is loaded already. Default: load the one of the parts.
        progress: Is called with the id of each video.

    Raises:
        MissingLibrary: A part is not a library.
        FingerprintMismatch: A part has features of another backbone, or with another rate.
        BadSetting: A part has another model, is the library itself, or there are no parts.
    """
    layouts = [Layout(part) for part in parts]
    settings = [layout.settings() for layout in layouts]
    if not layouts:
        raise BadSetting("there are 0 parts, expected at least 1. Name the libraries to merge.")
    if out.exists() and any(out.samefile(part) for part in parts):
        raise BadSetting(f"{out} is also a part, expected another library. Choose another --library.")
    generations = [layout.serving(found) for layout, found in zip(layouts, settings, strict=True)]
    cards = [generation.card for generation in generations]
    report = MergeReport(unfinished=shards.unfinished(list(parts)))
    # The folder of a model may be on another machine. A generation has a copy of its model.
    is_here = cards[0].model in UNTRAINED or Path(cards[0].model).is_dir()
    model = cards[0].model if is_here else str(generations[0].model)
    wanted = Wanted(model=model, backbone=settings[0].backbone, rate=settings[0].rate)
    with Writer.open(out, wanted, device=device, backbone=backbone) as library:
        for part, card in zip(parts, cards, strict=True):
            if card.digest != library.generation.card.digest:
                raise BadSetting(
                    f"{part} has the model {card.model}, expected that of {out}, {library.generation.card.model}. "
                    f"Change it: midreel reindex {part} --model {library.generation.card.model}"
                )
        for layout in layouts:
            with (
                closing(Catalogue(layout.folder)) as catalogue,
                FeatureStore.open(layout.features) as store,
            ):
                library.store.expect(store.fingerprint)
                _merge_part(library, catalogue, store, report, progress or (lambda _: None))
        library.calibrate(library.generation, library.index, lambda: library.encoder)
    return report


def _merge_part(
    library: Writer, catalogue: Catalogue, store: FeatureStore, report: MergeReport, progress: Callable[[str], None]
) -> None:
    merged, known = library.catalogue, library.catalogue.video_ids() & set(library.index.video_ids())
    merged.remember_places(catalogue.places())
    for video in catalogue.videos():
        files = [_found(file) for file in catalogue.files_of(video.id)]
        try:
            outcome = copy_video(video.id, store, library.store)
            if outcome.kind == "failed":
                report.failed[video.id] = outcome.reason
                continue
            if video.id not in known:
                library.add_tokens(video.id)  # before the row: a crash leaves tokens that the next run removes
        except (BadStore, BadFeatures) as error:
            report.failed[video.id] = str(error)
            continue
        spoken = catalogue.spoken_in(video.id)
        merged.add(video, files, catalogue.tags_of(video.id), catalogue.damage_of(video.id), spoken)
        report.known += video.id in known
        report.added += video.id not in known
        progress(video.id)
    unreadable = catalogue.quarantine()
    for file in catalogue.files().values():
        if file.path in unreadable:
            merged.add_unreadable(_found(file), unreadable[file.path])


def _found(file: File) -> FoundFile:
    return FoundFile(path=file.path, size=file.size, modified=file.modified)
