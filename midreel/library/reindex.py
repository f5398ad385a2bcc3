"""Encode stored features with another model. Nothing is decoded."""

import time
from contextlib import closing
from pathlib import Path

from midreel.errors import BadFeatures, BadStore, MissingFeatures
from midreel.library.diff import FileState
from midreel.library.encoder import Encoder, encode_windows
from midreel.library.layout import Generation
from midreel.library.report import Progress, ReindexReport, Step
from midreel.library.session import Writer
from midreel.library.tokens import create_index, open_index


def reindex(library: Writer, model: str | None = None, progress: Progress | None = None) -> ReindexReport:
    """Encode all videos of a library again, from their features.

    The old generation is searched until the new one is complete. A later call continues an interrupted one.

    Args:
        library: The library, open for writing.
        model: The folder of a model, or the name of an untrained one. Default: the model of the library.
        progress: Is called after each video.

    Raises:
        MissingFeatures: The feature store lacks some videos.
        BadStore: The features of all videos are damaged.
        FingerprintMismatch: The model was trained on other features.
        Unwritable: The disk is full. The old generation is kept.
    """
    start = time.perf_counter()
    ids, stored = library.catalogue.video_ids(), set(library.store.video_ids())
    if ids - stored:
        raise MissingFeatures(
            f"{library.layout.features} lacks {len(ids - stored):,} of {len(ids):,} videos, expected all. Run first: "
            f"midreel index --library {library.folder}"
        )
    encoder = library.encoder if model is None else library.open_model(model)
    generation = library.begin(encoder, model or library.generation.card.model, library.settings.id)
    try:
        failed = _fill(library, encoder, generation, ids, progress)
        if ids and len(failed) == len(ids):
            raise BadStore(
                f"{library.layout.features}: the features of all {len(ids):,} videos are damaged; the old index is "
                f"kept. Decode them again: midreel index --library {library.folder} --retry. The first error: "
                f"{next(iter(failed.values()))}"
            )
    except Exception:
        # Not on a kill or Ctrl-C: then the next reindex continues from here. After an error, free the disk space.
        library.layout.drop(generation)
        raise
    library.layout.sync_features()
    library.switch_to(generation)
    return ReindexReport(
        generation=generation.name,
        model=generation.card.model,
        num_videos=len(ids) - len(failed),
        failed=failed,
        seconds=time.perf_counter() - start,
    )


def _fill(
    library: Writer, encoder: Encoder, generation: Generation, ids: set[str], progress: Progress | None
) -> dict[str, str]:
    """Add the videos that the index lacks and remove all others. Return the videos whose features are damaged."""
    failed = {}
    create_index(generation)
    with closing(open_index(generation, read_only=False)) as index:
        index.verify()  # removes what an interrupted run may have damaged; it is added again
        for stray in set(index.video_ids()) - ids:
            index.remove(stray)
        for video_id in sorted(ids):
            seconds = 0.0
            try:
                if video_id not in index:
                    features = library.store.video(video_id)
                    index.add(video_id, encode_windows(encoder, features.frames, generation.card.windows))
                    seconds = features.duration
            except (BadStore, BadFeatures) as error:
                failed[video_id] = str(error)
            if progress is not None:
                path = next(iter(library.catalogue.paths(video_id)), Path(video_id))
                progress(Step(path=path, state=FileState.NEW, seconds=seconds, total=len(ids)))
    return failed
