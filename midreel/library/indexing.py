"""A library that is brought up to date: with its files, or with another model."""

from collections.abc import Callable, Sequence
from pathlib import Path

from midreel.errors import expect_text
from midreel.features.extract import WORKERS
from midreel.library import reindex as reindexing
from midreel.library import scan
from midreel.library.diff import Look, look
from midreel.library.pipeline import Run
from midreel.library.report import IndexReport as IndexReport
from midreel.library.report import Progress as Progress
from midreel.library.report import ReindexReport
from midreel.library.report import Step as Step
from midreel.library.session import Wanted as Wanted
from midreel.library.session import Writer


class Indexer(Writer):
    """What `midreel index` and `midreel reindex` do to a library."""

    def run(
        self,
        places: Sequence[Path] = (),
        *,
        tags: Sequence[str] = (),
        retry: bool = False,
        forget: bool = False,
        workers: int | None = None,
        settle: Callable[[Look], Look] | None = None,
        follow: Callable[[Path], bool] = lambda _: True,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> IndexReport:
        """Brings the library up to date with the files in `places`, or in all places it ever was given.

        `retry` what could not be read, files, features and tokens; `forget` what was found in places and folders of
        which nothing is there any more, and the features of all that has left; `settle` what is still being written.
        Places that are missing, and links that are not to `follow`, are told of as away. When it is to `stop`, no video
        is begun any more, and those begun are finished.
        """
        for tag in tags:
            expect_text("the tag", tag)
        found = look(self.catalogue, self.folder, places, forget=forget, follow=follow)
        absent = scan.missing(found.places)
        self.catalogue.remember_places(place for place in found.places if place not in absent)
        if forget:
            self.catalogue.forget_places(absent)
        found = settle(found) if settle else found
        return Run(self, found, tags, retry, forget, workers or WORKERS, progress, stop).run()

    def reindex(self, model: str | None = None, progress: Progress | None = None) -> ReindexReport:
        """Makes the tokens of another model, or the same tokens again, from the features; nothing is decoded."""
        return reindexing.reindex(self, model, progress)
