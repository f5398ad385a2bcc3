"""New tokens from features that were kept."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from midreel.errors import BadFeatures, BadStore, MissingFeatures
from midreel.library import tokens
from midreel.library.layout import Generation
from midreel.library.report import Progress, ReindexReport, Step
from midreel.library.session import Writer
from midreel.methods.base import Method
from midreel.ops.devices import on_device


def reindex(library: Writer, model: str | None = None, progress: Progress | None = None) -> ReindexReport:
    """Makes the tokens of another model, or the same tokens again, from the features; nothing is decoded.

    The old ones serve until all of the new ones are there. Interrupted, it goes on where it was.
    """
    start = time.perf_counter()
    ids, kept = library.catalogue.video_ids(), set(library.store.video_ids())
    if ids - kept:
        raise MissingFeatures(
            f"{library.layout.features} lacks {len(ids - kept):,} of {len(ids):,} videos, expected all of them; run "
            f"first: midreel index --library {library.folder}"
        )
    name = model or library.generation.card.model
    if model is None:
        method = library.method
    else:
        method = on_device(library.load(model, library.fingerprint), library.device).eval()
    generation = library.begin(method, name, library.settings.id)
    try:
        failed = _fill(library, method, generation, ids, progress)
        if ids and len(failed) == len(ids):
            raise BadStore(
                f"{library.layout.features}: of {len(ids):,} videos none could be encoded, expected some; the old "
                f"index serves on. Run first, to decode them again: midreel index --library {library.folder} --retry. "
                f"One says: {next(iter(failed.values()))}"
            )
    except Exception:
        # Not on a kill or Ctrl-C: then the next reindex goes on from here. After an error, free the disk space it took.
        library.layout.drop(generation)
        raise
    library.layout.sync_features()
    library.settings = replace(library.settings, serving=generation.name)
    library.layout.write(library.settings)
    if "index" in vars(library):
        library.index.close()
    for name_of_old in ("generation", "index", "method"):
        vars(library).pop(name_of_old, None)
    library.layout.drop_generations(but=generation.name)
    return ReindexReport(
        generation=generation.name,
        model=generation.card.model,
        num_videos=len(ids) - len(failed),
        failed=failed,
        seconds=time.perf_counter() - start,
    )


def _fill(
    library: Writer, method: Method, generation: Generation, ids: set[str], progress: Progress | None
) -> dict[str, str]:
    """Adds the videos that its index lacks, and removes all others; returns those whose features are damaged."""
    failed = {}
    tokens.ensure_index(generation)
    with closing(tokens.open_index(generation, read_only=False)) as index:
        index.verify()  # what an interrupted run has left may be damaged; it leaves the index and is added again
        for stray in set(index.video_ids()) - ids:
            index.remove(stray)
        for video_id in sorted(ids):
            seconds = 0.0
            try:
                if video_id not in index:
                    seconds = library.add_tokens(video_id, index, method, generation).duration
            except (BadStore, BadFeatures) as error:
                failed[video_id] = str(error)
            if progress is not None:
                path = next(iter(library.catalogue.paths(video_id)), Path(video_id))
                progress(Step(path=path, kind="new", seconds=seconds, total=len(ids)))
    return failed
