"""Merge feature stores: copy the features of several parts into one store."""

from collections.abc import Iterable
from pathlib import Path

from midreel.errors import BadFeatures, BadStore
from midreel.features.extract import ExtractionReport as Report
from midreel.features.extract import Journal, Outcome, Progress
from midreel.features.stores.hdf5_log import same_origin
from midreel.features.stores.store import FeatureStore

_BATCH = 256  # texts that are copied at once


def merge_stores(parts: Iterable[Path], out: Path, progress: Progress | None = None) -> tuple[Report, Report]:
    """Copy the videos and texts of some stores into another, and return a report on each kind.

    What `out` has already is skipped, so a merge that was interrupted is continued by the same call.

    Args:
        parts: Stores with one fingerprint.
        out: The store to add to. It is created if it does not exist.
        progress: Is called with each outcome.

    Raises:
        BadStore: A store is missing or damaged, or `out` cannot be written.
        FingerprintMismatch: The stores have different fingerprints.
    """
    videos, texts = Journal(progress), Journal(progress)
    merged: FeatureStore | None = None
    for path in parts:
        with FeatureStore.open(path) as part:
            if merged is None:
                merged = FeatureStore.resume(out, part.fingerprint)
            merged.expect(part.fingerprint)
            for video_id in part.video_ids():
                videos.note(copy_video(video_id, part, merged))
            new = [text_id for text_id in part.text_ids() if not _has_text(merged, part, text_id)]
            for start in range(0, len(new), _BATCH):
                ids = new[start : start + _BATCH]
                merged.add_texts(
                    {each: part.text(each) for each in ids}, {each: part.text_origin(each) for each in ids}
                )
            added = set(new)
            for text_id in part.text_ids():
                texts.note(Outcome(id=text_id, of="text", kind="done" if text_id in added else "skipped"))
    if merged is not None:
        merged.close()
    return videos.report, texts.report


def copy_video(video_id: str, part: FeatureStore, merged: FeatureStore) -> Outcome:
    """Copy the features of a video, unless they are there already.

    Args:
        video_id: The video.
        part: The store that has it.
        merged: The store to add it to.
    """
    origin = part.video_origin(video_id)
    if merged.has_video(video_id) and same_origin(merged.video_origin(video_id), origin):
        return Outcome(id=video_id, kind="skipped")
    try:
        features = part.video(video_id)
    except (BadFeatures, BadStore) as error:
        return Outcome(id=video_id, kind="failed", reason=str(error))
    merged.add_video(video_id, features, origin)
    return Outcome(id=video_id, kind="done", num_frames=len(features.frames))


def _has_text(merged: FeatureStore, part: FeatureStore, text_id: str) -> bool:
    return merged.has_text(text_id) and same_origin(merged.text_origin(text_id), part.text_origin(text_id))
