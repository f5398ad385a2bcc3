"""Videos that are stored but no longer what was written: how they are noticed, set aside and made again.

A video's rows are read against their checksums before it is first returned. One that is not whole is set aside, with
the reason, until it is added again. Coarse rows are made of tokens: if only these are lost, they can be made again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from midreel.index.embedded.manifest import State
from midreel.index.embedded.roster import Roster
from midreel.index.embedded.rows import Stored, parts_of, stored_again
from midreel.index.embedded.vectors import Plane


class Damage:
    """What has been found out since the book was last read."""

    def __init__(self, losses: Sequence[str]) -> None:
        self._losses = list(losses)  # of the book itself
        self._whole = set[int]()  # slots of videos whose rows were read
        self.reasons: dict[str, str] = {}  # by video that was set aside
        self._rows: dict[str, tuple[int, int]] = {}  # that these have in the book: number and checksum

    def problems(self) -> list[str]:
        return [*self._losses, *(f"video {name!r} {reason}" for name, reason in self.reasons.items())]

    def find(self, slots: Iterable[int], roster: Roster, planes: Sequence[Plane], *, again: bool) -> dict[int, str]:
        """Why some of the videos are not what was written; those that were whole before are read if `again`."""
        reasons = {}
        for slot in slots:
            if slot in self._whole and not again:
                continue
            if (plane := damaged_plane(planes, roster.extents(slot))) is not None:
                reasons[slot] = f"is damaged: {plane.path} does not match its checksum"
            else:
                self._whole.add(slot)
        return reasons

    def set_aside(self, reasons: Mapping[int, str], roster: Roster) -> None:
        """Takes videos out of the roster, unless they lie elsewhere by now."""
        for slot, reason in reasons.items():
            video_id = roster.ids[slot]
            if roster.slot_of_id.get(video_id) == slot:
                self.reasons[video_id] = f"{reason}; add it again"
                self._rows[video_id] = roster.row(slot)
                roster.drop(video_id)

    def rows_of(self, video_ids: Iterable[str]) -> dict[int, int]:
        """The rows of the book that videos set aside still have, as checksums by number."""
        return dict(self._rows[video_id] for video_id in video_ids if video_id in self._rows)

    def forget(self, video_ids: Iterable[str]) -> None:
        for video_id in video_ids:
            self.reasons.pop(video_id, None)
            self._rows.pop(video_id, None)


def damaged_plane(planes: Sequence[Plane], extents: Sequence[tuple[int, int, int]]) -> Plane | None:
    """The first in which a video's rows are not those that were written."""
    for plane, (start, end, checksum) in zip(planes, extents, strict=True):
        if end > len(plane) or plane.checksum(start, end) != checksum:
            return plane
    return None


def mended(slots: Iterable[int], roster: Roster, planes: Sequence[Plane], state: State) -> Iterator[Stored]:
    """The videos whose tokens are whole, as they are stored anew."""
    for slot in slots:
        extents = roster.extents(slot)[1:]
        if damaged_plane(planes[1:], extents) is None:
            yield stored_again(roster.ids[slot], parts_of(planes[1:], extents), roster.counts(slot), state)
