"""Damaged videos of an index: detect them by checksum, exclude them, and rebuild lost coarse rows.

The checksums of a video are verified before it is first returned. A damaged video is excluded, with the reason, until
it is added again. Coarse rows are made from tokens, so they can be rebuilt if the tokens are intact.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from midreel.index.embedded.manifest import State
from midreel.index.embedded.roster import Roster
from midreel.index.embedded.rows import VideoRows, read_parts, with_new_coarse_rows
from midreel.index.embedded.vectors import VectorFile


class Damage:
    """The damage found since the manifest was last read.

    Attributes:
        reasons: The damaged videos that were excluded, each with the reason.
    """

    def __init__(self, manifest_problems: Sequence[str]) -> None:
        self._manifest_problems = list(manifest_problems)
        self._intact = set[int]()  # slots of videos whose checksums were verified
        self.reasons: dict[str, str] = {}
        self._rows: dict[str, tuple[int, int]] = {}  # number and checksum of their rows in the manifest

    def problems(self) -> list[str]:
        """Return all problems as text."""
        return [*self._manifest_problems, *(f"video {name!r} {reason}" for name, reason in self.reasons.items())]

    def find(self, slots: Iterable[int], roster: Roster, files: Sequence[VectorFile], *, again: bool) -> dict[int, str]:
        """Return the slots of damaged videos, each with the reason.

        Args:
            slots: The videos to check.
            roster: The videos of the index.
            files: The vector files.
            again: Whether to check videos that were intact before.
        """
        reasons = {}
        for slot in slots:
            if slot in self._intact and not again:
                continue
            if (file := damaged_file(files, roster.extents(slot))) is not None:
                reasons[slot] = f"is damaged: {file.path} does not match its checksum"
            else:
                self._intact.add(slot)
        return reasons

    def exclude(self, reasons: Mapping[int, str], roster: Roster) -> None:
        """Remove damaged videos from the roster, unless they were replaced since."""
        for slot, reason in reasons.items():
            video_id = roster.ids[slot]
            if roster.slot_of_id.get(video_id) == slot:
                self.reasons[video_id] = f"{reason}. Add it again."
                self._rows[video_id] = roster.row(slot)
                roster.drop(video_id)

    def rows_of(self, video_ids: Iterable[str]) -> dict[int, int]:
        """Return the manifest rows of videos that were excluded, as checksums by number."""
        return dict(self._rows[video_id] for video_id in video_ids if video_id in self._rows)

    def forget(self, video_ids: Iterable[str]) -> None:
        """Forget videos that were removed or added again."""
        for video_id in video_ids:
            self.reasons.pop(video_id, None)
            self._rows.pop(video_id, None)


def damaged_file(files: Sequence[VectorFile], extents: Sequence[tuple[int, int, int]]) -> VectorFile | None:
    """Return the first file in which a video's rows do not match their checksum, or None."""
    for file, (start, end, checksum) in zip(files, extents, strict=True):
        if end > len(file) or file.checksum(start, end) != checksum:
            return file
    return None


def repaired(slots: Iterable[int], roster: Roster, files: Sequence[VectorFile], state: State) -> Iterator[VideoRows]:
    """Yield new rows for the videos whose tokens are intact. Others are skipped.

    Args:
        slots: The videos to repair.
        roster: The videos of the index.
        files: The vector files: the coarse file, then one token file per branch.
        state: The state of the index.
    """
    for slot in slots:
        extents = roster.extents(slot)[1:]
        if damaged_file(files[1:], extents) is None:
            parts = read_parts(files[1:], extents)
            yield with_new_coarse_rows(roster.ids[slot], parts, roster.counts(slot), state)
