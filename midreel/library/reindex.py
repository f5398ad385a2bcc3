"""Encode the stored features again, with the same or another model. No video is decoded."""

import time
from contextlib import closing, suppress
from pathlib import Path

from midreel.errors import BadFeatures, BadStore, MissingFeatures, Unreachable
from midreel.io.hub import model_path
from midreel.library import encoder as encoders
from midreel.library.adaptation import Adaptation, AdaptedEncoder
from midreel.library.diff import FileState
from midreel.library.encoder import Encoder, encode_windows
from midreel.library.layout import Generation
from midreel.library.report import Progress, ReindexReport, Step
from midreel.library.writer import Writer
from midreel.ops.edges import EdgeCalibration


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
    if model is None:  # its folder may be missing by now, so nothing is read from there
        current = library.generation.card
        return _rebuild(library, library.encoder, current.model, current.edges, progress)
    model = model_path(model)
    return _rebuild(library, library.open_model(model), model, encoders.measured_edges(model), progress)


def adopt(library: Writer, adaptation: Adaptation | None, progress: Progress | None = None) -> ReindexReport:
    """Switch a library to its own model with another adaptation, or without one.

    A new generation is built, as `reindex` does. The old one is searched until the new one is complete.

    Args:
        library: The library, open for writing.
        adaptation: What was learned from feedback. None: search with the model as it was before.
        progress: Is called after each video.

    Raises:
        MissingFeatures: The feature store lacks some videos.
        BadStore: The features of all videos are damaged.
        Unwritable: The disk is full. The old generation is kept.
    """
    current = library.generation.card
    base = encoders.open_generation(library.generation, library.device, adapted=False)
    encoder = base if adaptation is None else AdaptedEncoder(base, adaptation)
    return _rebuild(library, encoder, current.model, current.edges, progress)


def _rebuild(
    library: Writer, encoder: Encoder, model: str, edges: EdgeCalibration | None, progress: Progress | None
) -> ReindexReport:
    """Build a generation with a model, and switch to it."""
    start = time.perf_counter()
    ids, stored = library.catalogue.video_ids(), set(library.store.video_ids())
    if ids - stored:
        raise MissingFeatures(
            f"{library.store.path} lacks {len(ids - stored):,} of {len(ids):,} videos, expected all. Run first: "
            f"midreel index --library {library.storage}"
        )
    with library.storage.locked_for_reindex():
        generation = library.begin(encoder, model, library.settings.id, edges)
        failed = _built(library, encoder, generation, ids, progress)
    return ReindexReport(
        generation=generation.name,
        model=generation.card.model,
        num_videos=len(ids) - len(failed),
        failed={str(next(iter(library.catalogue.paths(name)), name)): reason for name, reason in failed.items()},
        library=str(library.storage),
        seconds=time.perf_counter() - start,
    )


def _built(
    library: Writer, encoder: Encoder, generation: Generation, ids: set[str], progress: Progress | None
) -> dict[str, str]:
    """Fill a generation, and switch to it. Return the videos whose features are damaged.

    Args:
        library: The library.
        encoder: The model of the generation.
        generation: The generation.
        ids: The videos of the library. Videos that other processes add meanwhile are added to it.
        progress: Is called after each video.
    """
    try:
        while True:
            failed = _fill(library, encoder, generation, ids, progress)
            if ids and len(failed) == len(ids):
                raise BadStore(
                    f"the features of all {len(ids):,} videos are damaged: {next(iter(failed.values()))}. Decode the "
                    f"videos again: midreel index --library {library.storage} --retry"
                )
            library.storage.sync_features()
            if not (added := library.switch_to(generation, ids)):
                return failed
            ids |= added
    except Exception:
        # After an error, free the disk space. After Ctrl-C, which is no Exception, the next reindex continues.
        with suppress(Unreachable):
            library.storage.drop(generation)
        raise


def _fill(
    library: Writer, encoder: Encoder, generation: Generation, ids: set[str], progress: Progress | None
) -> dict[str, str]:
    """Add the videos that the index lacks and remove all others. Return the videos whose features are damaged."""
    failed = {}
    library.storage.create_index(generation)
    with closing(library.storage.open_index(generation, read_only=False)) as index:
        index.verify()  # an interrupted run may have damaged tokens; they are removed here and added below
        indexed = set(index.video_ids())
        for stray in indexed - ids:
            index.remove(stray)
        for video_id in sorted(ids):
            seconds = 0.0
            try:
                if video_id not in indexed:
                    features = library.store.video(video_id)
                    index.add(video_id, encode_windows(encoder, features.frames, generation.card.windows))
                    seconds = features.duration
            except (BadStore, BadFeatures) as error:
                failed[video_id] = str(error)
            if progress is not None:
                path = next(iter(library.catalogue.paths(video_id)), Path(video_id))
                progress(
                    Step(
                        path=path,
                        state=FileState.FAILED if video_id in failed else FileState.NEW,
                        seconds=seconds,
                        total=len(ids),
                    )
                )
        library.calibrate(generation, index, lambda: encoder)
    return failed
