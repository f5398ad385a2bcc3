"""An index in one directory: eight-bit vectors in memory-mapped files, and a SQLite book of what lies where.

    manifest.sqlite    which videos there are, where their rows lie, checksums          (manifest.py)
    000001.coarse      a few vectors per window, which every search scans               (vectors.py)
    000001.tokens0     the tokens of the first branch, which candidates are scored by; and so on
    000001.trained     a compressed copy of the coarse vectors, for large libraries     (ann.py)

storage.py keeps them. A search (cascade.py) goes from cheap to dear: the coarse vectors of all windows name some
hundreds of candidates, the tokens of the scanned branch name the best of those, and all branches rank them.
`exact=True` scores every token of every window.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from midreel.errors import BadIndex, BadSetting
from midreel.index.base import Match, absent, checked_queries, checked_weights
from midreel.index.embedded import ann, kernels, quantise, rows
from midreel.index.embedded.ann import Trained
from midreel.index.embedded.cascade import Cascade, Found
from midreel.index.embedded.manifest import State
from midreel.index.embedded.quantise import Array
from midreel.index.embedded.roster import GONE, Roster
from midreel.index.embedded.storage import Storage
from midreel.index.embedded.vectors import BadRow
from midreel.types import Encoded, Tokens, Vectors

COARSE = 12  # vectors of a window that every search reads


class EmbeddedIndex:
    """Made by `create` or `open`. One process writes at a time; any number read, and see what it has committed."""

    def __init__(self, folder: Path, *, read_only: bool, kernel: str | None) -> None:
        self.folder, self.read_only = folder, read_only
        self._kernel = kernels.choose(kernel)
        self._mutex = threading.RLock()
        self._storage = Storage(folder, read_only=read_only)
        self._copy: tuple[tuple[int, int, int] | None, Trained | None] = (None, None)
        self._training: threading.Thread | None = None
        self._tried = 0  # windows when the compressed copy was last made

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        branch_weights: Mapping[str, float],
        width: int,
        coarse: int = COARSE,
        owner: str = "",
        kernel: str | None = None,
    ) -> "EmbeddedIndex":
        """A new, empty index for tokens of this width. `owner` names what it belongs to, for whoever opens it."""
        weights = checked_weights(branch_weights)
        for name, value in (("width", width), ("coarse", coarse)):
            if value < 1:
                raise BadSetting(f"{name} is {value}, expected at least 1")
        ends = (0,) * (1 + len(weights))
        Storage.create(Path(folder), State(branch_weights=weights, width=width, coarse=coarse, ends=ends, owner=owner))
        return cls.open(folder, kernel=kernel)

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False, kernel: str | None = None) -> "EmbeddedIndex":
        """An index that exists. `kernel` is one of kernels.KERNELS; by default the fastest that is installed."""
        return cls(Path(folder), read_only=read_only, kernel=kernel)

    def close(self) -> None:
        """Waits for training that is under way."""
        if self._training is not None:
            self._training.join()
        with self._mutex:
            self._storage.close()

    def __enter__(self) -> "EmbeddedIndex":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ what it holds

    @property
    def branch_weights(self) -> Mapping[str, float]:
        return dict(self._storage.state.branch_weights)

    @property
    def width(self) -> int:
        return self._storage.state.width

    @property
    def owner(self) -> str:
        """What `create` was told that it belongs to; empty in older indexes."""
        return self._storage.state.owner

    def __len__(self) -> int:
        return len(self._current())

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._current().slot_of_id

    def __repr__(self) -> str:
        return f"EmbeddedIndex({str(self.folder)!r}, {len(self)} videos)"

    def video_ids(self) -> list[str]:
        return list(self._current().slot_of_id)

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        with self._mutex:
            roster = self._current()
            slot = roster.slot_of_id.get(video_id)
            if slot is None or self._storage.sift([slot]):
                raise absent(video_id, len(roster))
            parts = rows.parts_of(self._storage.planes[1:], roster.extents(slot)[1:])
            counts = roster.counts(slot).T
            return dict(zip(self.branch_weights, map(rows.tokens_of, parts, counts), strict=True))

    def problems(self) -> list[str]:
        """What is wrong with the index as far as it is known; nothing, if all is well."""
        with self._mutex:
            self._current()
            return self._storage.damage.problems()

    @property
    def damaged(self) -> Mapping[str, str]:
        """The videos that are stored but no longer whole, and why: they are not found, not contained, and are whole
        again when they are added again. It grows as damage is met; `verify` reads everything."""
        with self._mutex:
            self._current()
            return dict(self._storage.damage.reasons)

    def verify(self) -> list[str]:
        """Reads every row of every video, and returns the problems."""
        with self._mutex:
            self._storage.sift_all()
            return self.problems()

    @property
    def waste(self) -> float:
        """The share of the windows that are of videos that have left."""
        with self._mutex:
            roster, state = self._current(), self._storage.state
            total = state.ends[0] // state.coarse
            return 1 - np.count_nonzero(roster.slots >= 0) / total if total else 0.0

    def _current(self) -> Roster:
        with self._mutex:
            return self._storage.current()

    # ------------------------------------------------------------ changing it

    def add(self, video_id: str, tokens: Encoded) -> None:
        self.add_all([(video_id, tokens)])

    def add_all(self, videos: Iterable[tuple[str, Encoded]]) -> None:
        """Adds several videos in one commit, which saves waiting for the disk: all of them or, after a kill, none."""
        with self._mutex:
            self._storage.put(rows.stored(videos, self._storage.state))
            self._train_if_due()

    def remove(self, video_id: str) -> None:
        with self._mutex:
            self._storage.remove(video_id)

    def compact(self) -> None:
        """Copies what is whole into new files and lets go of the old ones. Needs the room of both meanwhile."""
        with self._mutex:
            self._storage.compact()
            self._tried = 0
            self._train_if_due()

    # ------------------------------------------------------------ searching it

    def search(
        self, queries: Vectors, *, top: int = 10, among: Collection[str] | None = None, exact: bool = False
    ) -> list[list[Match]]:
        with self._mutex:
            roster = self._current()
            checked = checked_queries(queries, self.branch_weights, self.width, top)
            units = {branch: quantise.unit(vectors) for branch, vectors in checked.items()}
            copy = self._served_copy() if among is None and not exact else None
            answers = []
            for query in range(len(next(iter(units.values())))):
                asked = {branch: vectors[query] for branch, vectors in units.items()}
                found = self._best(asked, top, among, exact, copy)
                if copy is not None and len(found) < min(top, len(roster)):
                    # Windows of few videos, or of removed ones, were all that the copy had to offer.
                    found = self._best(asked, top)
                answers.append([self._match(place, scores) for place, scores in found])
            return answers

    def _best(
        self,
        query: Mapping[str, Array],
        top: int,
        among: Collection[str] | None = None,
        exact: bool = False,
        copy: Trained | None = None,
    ) -> list[Found]:
        """What it returns has been checked; a video that turns out to be damaged leaves, and the rest is asked."""
        while True:
            try:
                found = self._cascade_with(copy).best(query, top, among, exact)
            except BadRow as error:
                if not self._storage.sift_bad_row(error):
                    raise
                continue
            slots = self._storage.roster.slots
            if not self._storage.sift([int(slots[place]) for place, _ in found]):
                return found

    def _match(self, place: int, scores: Mapping[str, float]) -> Match:
        roster = self._storage.roster
        return Match(
            video_id=roster.ids[roster.slots[place]],
            score=sum(weight * scores[branch] for branch, weight in self._storage.state.branch_weights.items()),
            branch_scores=scores,
        )

    @property
    def _cascade(self) -> Cascade:
        """The one that serves."""
        self._current()
        return self._cascade_with(self._served_copy())

    def _cascade_with(self, copy: Trained | None) -> Cascade:
        state = self._storage.state
        return Cascade(
            self._storage.roster,
            self._storage.planes,
            weights=state.branch_weights,
            scanned=state.scanned or next(iter(state.branch_weights)),
            kernel=self._kernel,
            trained=copy,
        )

    # ------------------------------------------------------------ the compressed copy

    def train(self) -> float | None:
        """Makes the compressed copy that searches of large libraries read (ann.py); otherwise it is made by itself,
        in the background, once the library is large. Returns the recall that it showed, or None if there is none."""
        with self._mutex:
            self._storage.writable()
            roster, state, plane = self._current(), self._storage.state, self._storage.planes[0]
            scales, places = roster.scales.copy(), np.flatnonzero(roster.slots >= 0)
        if not (ann.installed() and ann.fits(state.width, scales.size) and len(places)):
            return None
        copy = Trained.build(plane.rows["vector"][: scales.size], scales)
        try:
            queries = ann.hard_queries(lambda place: self._drawn(place, state.volume), places)
            recall = ann.proven_recall(copy, queries, lambda query, by: self._places(query, by, state.volume))
            if recall is not None:
                with self._in_volume(state.volume):
                    copy.save(self._trained_path())
                    self._storage.manifest.change()  # tells readers
        except _CompactedError:
            return None  # its rows are elsewhere now
        return recall

    @contextmanager
    def _in_volume(self, volume: int) -> Iterator[None]:
        """The index to itself for a moment, for searches and changes come in between; one of them may be compaction."""
        with self._mutex:
            if self._storage.state.volume != volume:
                raise _CompactedError
            self._current()
            yield

    def _drawn(self, place: int, volume: int) -> dict[str, Array] | None:
        """The tokens of a window, unless it is damaged or gone by now."""
        with self._in_volume(volume):
            roster = self._storage.roster
            slot = int(roster.slots[place]) if place < roster.num_places else GONE
            return None if slot == GONE or self._storage.sift([slot]) else self._cascade.restored(place)

    def _places(self, query: Mapping[str, Array], copy: Trained | None, volume: int) -> set[int]:
        """Which windows are found with the help of a copy."""
        with self._in_volume(volume):
            return {place for place, _ in self._best(query, 10, copy=copy)}

    def _train_if_due(self) -> None:
        places, copy = self._storage.roster.num_places, self._served_copy()
        due = places >= ann.FROM and (copy is None or places > ann.GROWTH * copy.places)
        if due and ann.installed() and (self._training is None or not self._training.is_alive()):
            if places < self._tried * ann.GROWTH:
                return  # it was tried, and the library is much the same
            self._tried = places
            self._training = threading.Thread(target=self._try_to_train, name="midreel-index-training", daemon=True)
            self._training.start()

    def _try_to_train(self) -> None:
        # Without the copy the scan serves, so a full disk is no reason to stop; the next addition will say it.
        with suppress(OSError, BadIndex):
            self.train()

    def _served_copy(self) -> Trained | None:
        """The compressed copy, read when its file is another than before."""
        try:
            stat = self._trained_path().stat()
        except OSError:
            return None
        seen = (self._storage.state.volume, stat.st_mtime_ns, stat.st_size)
        if self._copy[0] != seen:
            self._copy = seen, Trained.load(self._trained_path())
        copy = self._copy[1]
        return copy if copy is not None and copy.places <= self._storage.roster.num_places else None

    def _trained_path(self) -> Path:
        return self.folder / f"{self._storage.state.volume:06}.{ann.SUFFIX}"


class _CompactedError(Exception):
    """The volume that somebody worked on is no longer the one that counts."""
