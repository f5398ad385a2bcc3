"""Commit a video to a library, so that a crash at any time loses nothing.

A library in a database commits a video in one transaction. The rest of this text is about a library in a folder.

A video is in three stores: the feature store, the index (its tokens) and the catalogue (its row and its
files). Each write to a store is atomic, but a crash can come between any two writes. Every state in between is safe:

- Adding writes features, tokens, row, in this order. Removing deletes the row, then the tokens. The lines of the
  subtitles are written and removed with the row, in one transaction.
- A search returns a video only if it has tokens, a row and a file. So it never returns half a video.
- The next run compares the stores, and completes or removes each video that lacks a part:

    no tokens             encode the features
    no features           decode the file again; until then, searches still return the video
    no row                encode the features and add the row; if no file has this content, remove the tokens
    a row without files   remove row and tokens
    newer features        encode them, if the row still names damage that the features no longer have

- Features outlive their video, so a video that returns is not decoded again. Only `forget` deletes them. Damaged
  features are deleted just before the file is decoded again.
- Progress callbacks only report. No write depends on them.

A power cut can also lose the newest features, because they are synced once, at the end of a run. That is the case "no
features" above.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from midreel.errors import BadFeatures, BadStore
from midreel.features.extract import Outcome
from midreel.library import spoken
from midreel.library.records import Video
from midreel.library.report import Changes, Clock
from midreel.library.scan import FoundFile
from midreel.library.writer import Writer


@dataclass(kw_only=True)
class Committer:
    """Commits videos whose features are stored."""

    library: Writer
    tags: Sequence[str]
    complete: set[str]  # the videos that all stores contain
    changes: Changes
    clock: Clock

    def commit(self, outcome: Outcome, file: FoundFile) -> str:
        """Add tokens and row of a video, in this order. Return why its features are damaged, or "" if it is committed.

        A decoded video is committed even if it is complete: its file may have been damaged when it was decoded before.
        """
        library, is_decoded = self.library, outcome.kind == "done"
        # The feature store only knows whether a part of the video is unreadable. The catalogue knows which part.
        known = "" if is_decoded else library.catalogue.damage_of(outcome.id)
        damage = (known or str(outcome.damage)) if outcome.damage else ""
        is_current = outcome.id in self.complete and not is_decoded and damage == known
        if outcome.kind not in ("done", "skipped") or is_current:
            self.place(outcome, file)
            return ""
        try:
            with self.clock.of("tokens"):
                features = library.store.video(outcome.id)
            video = Video(
                id=outcome.id,
                duration=features.duration,
                num_frames=len(features.frames),
                date=file.modified / 1e9,
            )
            with self.clock.of("catalogue"):
                said = spoken.spoken_in([file.path]) if library.catalogue.KEEPS_SUBTITLES else None
            library.add(video, features, file, tags=self.tags, damage=damage, spoken=said, clock=self.clock)
        except (BadStore, BadFeatures) as error:
            return str(error)
        self.complete.add(outcome.id)
        self.changes.read(file, outcome.id, seconds=features.duration, decoded=is_decoded, damage=damage)
        return ""

    def place(self, outcome: Outcome, file: FoundFile, *, is_copy: bool = False) -> None:
        """Record a file whose video is complete or unreadable.

        Args:
            outcome: The result of reading the video.
            file: The file.
            is_copy: Whether another file of this run has the same content.
        """
        if outcome.kind in ("done", "skipped"):
            self.library.catalogue.place(file, outcome.id, self.tags)
            self.changes.read(file, outcome.id, is_copy=is_copy)
        elif outcome.lasting:
            self.library.catalogue.add_unreadable(file, outcome.reason)
            self.changes.quarantined(file, outcome.reason)
        else:
            self.changes.failed(file, outcome.reason)
