"""An index in one directory: eight-bit vectors in memory-mapped files, and a SQLite book of what lies where.

    manifest.sqlite    which videos there are, where their rows lie, checksums          (manifest.py)
    000001.coarse      a few vectors per window, which every search scans               (planes.py)
    000001.tokens0     the tokens of the first branch, which candidates are scored by; and so on
    000001.trained     a compressed copy of the coarse vectors, for large libraries     (trained.py)

A search goes from cheap to dear: the coarse vectors of all windows name some hundreds of candidates, the tokens of the
scanned branch name the best of those, and all branches rank them. `exact=True` scores every token of every window.

Rows are written and synced before the book says that they count, and are never changed afterwards; so a kill at any
moment leaves either the video or what was there before, and readers go on while a writer writes.
"""

import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from midreel.errors import BadIndex, BadSetting
from midreel.files import lock, make_folder
from midreel.index import kernels, planes, quantise, trained
from midreel.index.base import Match, absent, checked_queries, checked_tokens, checked_weights
from midreel.index.cascade import Cascade, Found
from midreel.index.manifest import NAME, REBUILD, Manifest, Row, State
from midreel.index.planes import BadRow, Plane, Volume
from midreel.index.quantise import Array
from midreel.index.roster import GONE, Roster
from midreel.index.trained import Trained
from midreel.types import Encoded, Tokens, Vectors

COARSE = 12  # vectors of a window that every search reads
_ATTEMPTS = 5  # at reading a book whose volume is just being replaced


class EmbeddedIndex:
    """Made by `create` or `open`. One process writes at a time; any number read, and see what it has committed.

    A writer reads the book when it opens it, a reader when it is first asked something.
    """

    _roster: Roster
    _planes: list[Plane]

    def __init__(self, folder: Path, *, read_only: bool, kernel: str | None) -> None:
        self.folder, self.read_only = folder, read_only
        self._kernel = kernels.choose(kernel)
        self._mutex = threading.RLock()
        self._copy: tuple[tuple[int, int, int] | None, Trained | None] = (None, None)
        self._version: tuple[int, int] | None = None  # of the book, when it was last read
        self._checked = set[int]()  # slots of videos whose rows were read and are whole
        self._damaged: dict[str, str] = {}
        self._rows_of_damaged: dict[str, tuple[int, int]] = {}
        # Also when it is forgotten instead of closed.
        self._unlock = weakref.finalize(self, os.close, _lock(folder)) if not read_only else None
        self._volume: Volume | None = None
        self._training: threading.Thread | None = None
        self._tried = 0  # windows when the compressed copy was last made
        try:
            self._manifest = Manifest(folder / NAME, read_only=read_only)
            try:
                if not read_only:
                    self._volume = self._open_volume()
                    self._load()
            except BaseException:
                self._manifest.close()
                raise
        except BaseException:
            if self._unlock:
                self._unlock()
            raise

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        branch_weights: Mapping[str, float],
        width: int,
        coarse: int = COARSE,
        kernel: str | None = None,
    ) -> "EmbeddedIndex":
        """A new, empty index for tokens of this width."""
        folder, weights = Path(folder), checked_weights(branch_weights)
        for name, value in (("width", width), ("coarse", coarse)):
            if value < 1:
                raise BadSetting(f"{name} is {value}, expected at least 1")
        if (folder / NAME).exists():
            raise BadIndex(f"{folder} holds an index already; open it, or choose another folder")
        try:
            make_folder(folder)
            handle = _lock(folder)
            try:
                state = State(branch_weights=weights, width=width, coarse=coarse, ends=(0,) * (1 + len(weights)))
                Manifest.create(folder / NAME, state)
            finally:
                os.close(handle)
        except OSError as error:
            raise BadIndex(f"no index can be made in {folder} ({error.strerror}); choose another place") from error
        return cls.open(folder, kernel=kernel)

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False, kernel: str | None = None) -> "EmbeddedIndex":
        """An index that exists. `kernel` is one of kernels.KERNELS; by default the fastest that is installed."""
        return cls(Path(folder), read_only=read_only, kernel=kernel)

    # ------------------------------------------------------------ what it holds

    @property
    def branch_weights(self) -> Mapping[str, float]:
        return dict(self._manifest.state.branch_weights)

    @property
    def width(self) -> int:
        return self._manifest.state.width

    def __len__(self) -> int:
        return len(self._current())

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._current().slot_of_id

    def video_ids(self) -> list[str]:
        return list(self._current().slot_of_id)

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        with self._mutex:
            roster = self._current()
            slot = roster.slot_of_id.get(video_id)
            if slot is None or self._sift([slot]):
                raise absent(video_id, len(roster))
            extents, places = roster.extents(slot), roster.places(slot)
            return {
                branch: _tokens(
                    self._planes[1 + number].rows[start:end],
                    roster.token_rows(number)[1][places.start : places.stop],
                )
                for number, (branch, (start, end, _)) in enumerate(zip(self.branch_weights, extents[1:], strict=True))
            }

    def problems(self) -> list[str]:
        """What is wrong with the index as far as it is known; nothing, if all is well."""
        with self._mutex:
            self._current()
            return [*self._losses, *(f"video {name!r} {reason}" for name, reason in self._damaged.items())]

    @property
    def damaged(self) -> Mapping[str, str]:
        """The videos that are stored but no longer whole, and why: they are not found, not contained, and are whole
        again when they are added again. It grows as damage is met; `verify` reads everything."""
        with self._mutex:
            self._current()
            return dict(self._damaged)

    def verify(self) -> list[str]:
        """Reads every row of every video, and returns the problems."""
        with self._mutex:
            roster = self._current()
            self._checked.clear()
            self._sift(roster.slot_of_id.values())
            for plane in self._planes:
                plane.let_go()
            return self.problems()

    # ------------------------------------------------------------ changing it

    def add(self, video_id: str, tokens: Encoded) -> None:
        self.add_all([(video_id, tokens)])

    def add_all(self, videos: Iterable[tuple[str, Encoded]]) -> None:
        """Adds several videos in one commit, which saves waiting for the disk: all of them or, after a kill, none."""
        with self._mutex:
            self._writable()
            self._put(self._rows_made_of(videos))
            self._train_if_due()

    def remove(self, video_id: str) -> None:
        with self._mutex:
            self._writable()
            dropped = self._rows_of([video_id])
            if not dropped:
                raise absent(video_id, len(self))
            self._manifest.change(drop=dropped)
            if video_id in self._roster.slot_of_id:
                self._roster.drop(video_id)
            self._forget([video_id])

    @property
    def waste(self) -> float:
        """The share of the windows that are of videos that have left."""
        with self._mutex:
            roster, state = self._current(), self._manifest.state
            total = state.ends[0] // state.coarse
            return 1 - np.count_nonzero(roster.slots >= 0) / total if total else 0.0

    def compact(self) -> None:
        """Copies what is whole into new files and lets go of the old ones. Needs the room of both meanwhile."""
        with self._mutex:
            self._writable()
            self.verify()
            state = self._manifest.state
            paths = planes.plane_paths(self.folder, state.volume + 1, len(state.branch_weights))
            for path in paths:
                path.unlink(missing_ok=True)
            volume = None
            try:
                volume = Volume(paths, self._dtypes())
                ends, rows = [0] * len(paths), list[Row]()
                for row in chain.from_iterable(self._manifest.rows()):
                    slot = self._roster.slot_of_id.get(row.video_id) if row.is_whole() else None
                    if slot is None:
                        continue
                    extents = zip(self._planes, self._roster.extents(slot), strict=True)
                    parts = [plane.rows[start:end] for plane, (start, end, _) in extents]
                    volume.write(ends, parts)
                    rows.append(row._replace(starts=np.array(ends, "<i8").tobytes()).signed())
                    ends = [end + len(part) for end, part in zip(ends, parts, strict=True)]
                volume.sync()
                self._manifest.replace_all(rows, volume=state.volume + 1, ends=ends)
            finally:
                # The book says which of them counts now; the other one goes.
                with self._manifest.snapshot() as now:
                    old, new = (self._volume, volume) if now.volume != state.volume else (volume, self._volume)
                if old is not None:
                    old.close()
                self._volume = new
                self._load()
                self._remove_leftovers()
            self._tried = 0
            self._train_if_due()

    def train(self) -> float | None:
        """Makes the compressed copy that searches of large libraries read (trained.py); otherwise it is made by itself,
        in the background, once the library is large. Returns the recall that it showed, or None if there is none."""
        with self._mutex:
            self._writable()
            self._current()
            state, plane, scales = self._manifest.state, self._planes[0], self._roster.scales.copy()
            places = np.flatnonzero(self._roster.slots >= 0)
        if not (trained.installed() and trained.fits(state.width, scales.size) and len(places)):
            return None
        copy = Trained.build(plane.rows["vector"][: scales.size], scales)
        try:
            queries = trained.hard_queries(lambda place: self._drawn(place, state.volume), places)
            expected = [self._places(query, None, state.volume) for query in queries]
            for let_through in trained.LADDER if queries else ():
                copy.let_through = let_through
                found = [self._places(query, copy, state.volume) for query in queries]
                pairs = zip(found, expected, strict=True)
                recall = sum(len(ours & theirs) for ours, theirs in pairs) / sum(map(len, expected))
                if recall >= trained.RECALL:
                    with self._in_volume(state.volume):
                        copy.save(self._trained_path())
                        self._manifest.change()  # tells readers
                        self._map_planes()
                    return recall
        except _CompactedError:
            pass  # its rows are elsewhere now
        return None

    @contextmanager
    def _in_volume(self, volume: int) -> Iterator[None]:
        """The index to itself for a moment, for searches and changes come in between; one of them may be compaction."""
        with self._mutex:
            if self._manifest.state.volume != volume:
                raise _CompactedError
            self._current()
            yield

    def _drawn(self, place: int, volume: int) -> dict[str, Array] | None:
        """The tokens of a window, unless it is damaged or gone by now."""
        with self._in_volume(volume):
            slot = int(self._roster.slots[place]) if place < self._roster.num_places else GONE
            return None if slot == GONE or self._sift([slot]) else self._cascade.restored(place)

    def _places(self, query: Mapping[str, Array], copy: Trained | None, volume: int) -> set[int]:
        """Which windows are found with the help of a copy."""
        with self._in_volume(volume):
            return {place for place, _ in self._best(query, 10, copy=copy)}

    def _train_if_due(self) -> None:
        places, copy = self._roster.num_places, self._served_copy()
        due = places >= trained.FROM and (copy is None or places > trained.GROWTH * copy.places)
        if due and trained.installed() and (self._training is None or not self._training.is_alive()):
            if places < self._tried * trained.GROWTH:
                return  # it was tried, and the library is much the same
            self._tried = places
            self._training = threading.Thread(target=self._try_to_train, name="midreel-index-training", daemon=True)
            self._training.start()

    def _try_to_train(self) -> None:
        # Without the copy the scan serves, so a full disk is no reason to stop; the next addition will say it.
        with suppress(OSError, BadIndex):
            self.train()

    def _trained_path(self) -> Path:
        return self.folder / f"{self._manifest.state.volume:06}.{trained.SUFFIX}"

    def close(self) -> None:
        """Waits for training that is under way."""
        if self._training is not None:
            self._training.join()
        with self._mutex:
            if self._volume is not None:
                self._volume.close()
            self._manifest.close()
            if self._unlock:
                self._unlock()

    def __enter__(self) -> "EmbeddedIndex":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EmbeddedIndex({str(self.folder)!r}, {len(self)} videos)"

    # ------------------------------------------------------------ searching it

    def search(
        self, queries: Vectors, *, top: int = 10, among: Collection[str] | None = None, exact: bool = False
    ) -> list[list[Match]]:
        with self._mutex:
            self._current()
            number = checked_queries(queries, self.branch_weights, self.width, top)
            units = {branch: _units(queries[branch]) for branch in self.branch_weights}
            copy = self._served_copy() if among is None and not exact else None
            answers = []
            for query in range(number):
                asked = {branch: vectors[query] for branch, vectors in units.items()}
                found = self._best(asked, top, among, exact, copy)
                if copy is not None and len(found) < min(top, len(self._roster)):
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
                slot = self._roster.slot_of_row(self._planes.index(error.plane) - 1, error.number)
                self._checked.discard(slot)
                if not self._sift([slot]):
                    raise
                continue
            if not self._sift([int(self._roster.slots[place]) for place, _ in found]):
                return found

    def _match(self, place: int, scores: Mapping[str, float]) -> Match:
        return Match(
            video_id=self._roster.ids[self._roster.slots[place]],
            score=sum(weight * scores[branch] for branch, weight in self._manifest.state.branch_weights.items()),
            window=int(self._roster.window_numbers[place]),
            branch_scores=scores,
        )

    # ------------------------------------------------------------ keeping what is in memory current

    def _current(self) -> Roster:
        """The roster, after taking up what another process has committed."""
        with self._mutex:
            if self._version is None:
                self._load()
            elif self.read_only and self._manifest.version() != self._version:
                self._take_up()
            self._map_what_grew()
            return self._roster

    def _take_up(self) -> None:
        """Reads what is new in the book, or all of it if that is not all that has changed."""
        old, version = self._manifest.state, self._manifest.version()
        with self._manifest.snapshot() as state:
            rows = list(chain.from_iterable(self._manifest.rows(after=self._roster.last_number)))
        added = sum(row.checksum for row in rows)
        only_new = (state.volume, state.videos, state.sum) == (old.volume, old.videos + len(rows), old.sum + added)
        if not only_new or not all(row.is_whole() for row in rows):
            self._load()
            return
        self._roster.extend(rows)
        self._map_planes()
        self._version = version
        if any(len(plane) < end for plane, end in zip(self._planes, state.ends, strict=True)):
            self._load()

    def _load(self) -> None:
        for _ in range(_ATTEMPTS):
            version = self._manifest.version()
            with self._manifest.snapshot():
                self._read_book()
            self._map_planes()
            if self._manifest.version() == version:  # else the files may have been replaced meanwhile
                break
        self._version = version
        cut_off = self._roster.cut_off([len(plane) for plane in self._planes])
        self._set_aside(dict.fromkeys(cut_off, f"is cut off, for a file of {self.folder} is shorter than it was"))
        if cut_off:
            self._roster.trim()

    def _read_book(self) -> None:
        path, state = self._manifest.path, self._manifest.state
        roster, losses = Roster(len(state.branch_weights), state.coarse), []
        number = lost = total = 0
        for rows in self._manifest.rows():
            whole = [row for row in rows if row.is_whole()]
            roster.extend(whole)
            number, lost = number + len(rows), lost + len(rows) - len(whole)
            total += sum(row.checksum for row in rows)
        if lost:
            losses.append(f"{path}: {lost} of {number} rows do not match their checksums; {REBUILD}")
        if (state.videos, state.sum) != (number, total):
            losses.append(f"{path} holds {number} videos, expected {state.videos}, or other ones; {REBUILD}")
        self._roster, self._losses = roster, losses
        for known in (self._checked, self._damaged, self._rows_of_damaged):
            known.clear()

    def _map_what_grew(self) -> None:
        if self._mapped != (self._manifest.state.volume, self._manifest.state.ends):
            self._map_planes()

    def _map_planes(self) -> None:
        state = self._manifest.state
        paths = planes.plane_paths(self.folder, state.volume, len(state.branch_weights))
        self._planes = [Plane(path, dtype) for path, dtype in zip(paths, self._dtypes(), strict=True)]
        self._mapped = state.volume, state.ends
        self._cascades: dict[Trained | None, Cascade] = {}

    @property
    def _cascade(self) -> Cascade:
        """The one that serves."""
        self._current()
        return self._cascade_with(self._served_copy())

    def _cascade_with(self, copy: Trained | None) -> Cascade:
        if copy not in self._cascades:
            state = self._manifest.state
            self._cascades[copy] = Cascade(
                self._roster,
                self._planes,
                weights=state.branch_weights,
                scanned=state.scanned or next(iter(state.branch_weights)),
                kernel=self._kernel,
                trained=copy,
            )
        return self._cascades[copy]

    def _served_copy(self) -> Trained | None:
        """The compressed copy, read when its file is another than before."""
        try:
            stat = self._trained_path().stat()
        except OSError:
            return None
        seen = (self._manifest.state.volume, stat.st_mtime_ns, stat.st_size)
        if self._copy[0] != seen:
            self._copy = seen, Trained.load(self._trained_path())
        copy = self._copy[1]
        return copy if copy is not None and copy.places <= self._roster.num_places else None

    # ------------------------------------------------------------ damage

    def _sift(self, slots: Iterable[int]) -> bool:
        """Whether some of the videos are not what was written; these are set aside. The others are not read again."""
        reasons = {}
        for slot in slots:
            if slot in self._checked:
                continue
            if (plane := self._damaged_plane(slot, self._planes)) is not None:
                reasons[slot] = f"is damaged: {plane.path} does not match its checksum"
            else:
                self._checked.add(slot)
        self._set_aside(reasons)
        return bool(reasons)

    def _damaged_plane(self, slot: int, among: Collection[Plane]) -> Plane | None:
        for plane, (start, end, checksum) in zip(self._planes, self._roster.extents(slot), strict=True):
            if plane in among and (end > len(plane) or plane.checksum(start, end) != checksum):
                return plane
        return None

    def _set_aside(self, reasons: Mapping[int, str]) -> None:
        """Takes out videos that are not whole; a writer brings back those of which only coarse rows are lost."""
        if not reasons:
            return
        if self._volume is not None:
            with suppress(BadIndex):  # a disk that is full: they can be brought back another time
                self._put(self._rows_made_again(reasons))
        for slot, reason in reasons.items():
            video_id = self._roster.ids[slot]
            if self._roster.slot_of_id.get(video_id) == slot:
                self._damaged[video_id] = f"{reason}; add it again"
                self._rows_of_damaged[video_id] = self._roster.row(slot)
                self._roster.drop(video_id)
        self._map_what_grew()

    # ------------------------------------------------------------ writing

    def _writable(self) -> Volume:
        if self._volume is None:
            raise BadIndex(f"{self.folder} is open for reading only; open it again without read_only=True")
        return self._volume

    def _open_volume(self) -> Volume:
        self._remove_leftovers()
        state = self._manifest.state
        return Volume(planes.plane_paths(self.folder, state.volume, len(state.branch_weights)), self._dtypes())

    def _remove_leftovers(self) -> None:
        """What a compaction leaves behind: the old volume, or, if it failed or was killed, a new one that does not
        count."""
        for path in self.folder.iterdir():
            if planes.volume_of(path) not in (None, self._manifest.state.volume):
                with suppress(OSError):  # tried again at the next opening
                    path.unlink()

    def _dtypes(self) -> list["np.dtype[np.void]"]:
        state = self._manifest.state
        return [planes.coarse_rows(state.width), *[planes.token_rows(state.width)] * len(state.branch_weights)]

    def _put(self, videos: Iterable["_Stored"]) -> None:
        """Adds videos, in the place of those of the same name, in one commit."""
        volume, manifest = self._writable(), self._manifest
        ends, rows, scanned = list(manifest.state.ends), dict[str, Row](), manifest.state.scanned
        for number, video in enumerate(videos, manifest.state.next_number):
            sums, scanned = volume.write(ends, video.parts), video.scanned
            rows.pop(video.video_id, None)
            rows[video.video_id] = Row(
                number=number,
                name=video.video_id.encode("utf-8", "surrogatepass"),
                starts=np.array(ends, "<i8").tobytes(),
                counts=video.counts.astype("<u4").tobytes(),
                checksums=np.array(sums, "<u4").tobytes(),
                scales=video.scales.astype("<f4").tobytes(),
                checksum=0,
            ).signed()
            ends = [end + len(part) for end, part in zip(ends, video.parts, strict=True)]
        if not rows:
            return
        volume.sync()
        manifest.change(drop=self._rows_of(rows), add=list(rows.values()), ends=ends, scanned=scanned)
        self._forget(rows)
        self._roster.extend(list(rows.values()))

    def _rows_made_of(self, videos: Iterable[tuple[str, Encoded]]) -> Iterator["_Stored"]:
        scanned = self._manifest.state.scanned
        for video_id, tokens in videos:
            checked_tokens(video_id, tokens, self.branch_weights, self.width)
            scanned = scanned or _fewest_tokens(tokens, self.branch_weights)
            parts, counts = [], []
            for branch in self.branch_weights:
                mask = tokens[branch].mask.cpu().numpy()
                vectors = _units(tokens[branch].vectors)[mask]
                rows = np.zeros(len(vectors), self._dtypes()[1])
                rows["vector"], rows["bits"], rows["scale"] = quantise.in_nine_bits(vectors)
                rows["span"] = tokens[branch].spans.cpu().numpy()[mask]
                parts.append(rows)
                counts.append(mask.sum(1))
                if branch == scanned:
                    coarse, scales = self._coarse_rows(vectors, counts[-1])
            yield _Stored(video_id, scanned, [coarse, *parts], np.stack(counts, 1), scales)

    def _rows_made_again(self, slots: Iterable[int]) -> Iterator["_Stored"]:
        """Of the videos whose tokens are whole: these, and coarse rows that are made of them."""
        scanned = self._manifest.state.scanned
        assert scanned is not None
        branch = list(self.branch_weights).index(scanned)
        for slot in slots:
            if self._damaged_plane(slot, self._planes[1:]) is not None:
                continue
            extents, places = self._roster.extents(slot)[1:], self._roster.places(slot)
            parts = [plane.rows[start:end] for plane, (start, end, _) in zip(self._planes[1:], extents, strict=True)]
            counts = [self._roster.token_rows(number)[1][places.start : places.stop] for number in range(len(parts))]
            tokens = parts[branch]
            vectors = quantise.restored(tokens["vector"], tokens["bits"], tokens["scale"])
            coarse, scales = self._coarse_rows(vectors, counts[branch])
            yield _Stored(self._roster.ids[slot], scanned, [coarse, *parts], np.stack(counts, 1), scales)

    def _coarse_rows(self, vectors: Array, counts: Array) -> tuple[Array, Array]:
        """What stands for windows of so many tokens each in plane 0, and its scales."""
        windows = np.split(vectors, np.cumsum(counts)[:-1])
        pooled = np.concatenate([quantise.pooled(window, self._manifest.state.coarse) for window in windows])
        rows = np.zeros(len(pooled), self._dtypes()[0])
        rows["vector"], scales = quantise.quantised(pooled)
        return rows, scales

    def _rows_of(self, video_ids: Iterable[str]) -> dict[int, int]:
        """Which rows of the book the videos have, whole or damaged, as checksums by number."""
        slots = self._roster.slot_of_id
        whole = [self._roster.row(slots[video_id]) for video_id in video_ids if video_id in slots]
        return dict(whole + [self._rows_of_damaged[video_id] for video_id in video_ids if video_id in self._damaged])

    def _forget(self, video_ids: Iterable[str]) -> None:
        for video_id in video_ids:
            self._damaged.pop(video_id, None)
            self._rows_of_damaged.pop(video_id, None)


class _CompactedError(Exception):
    """The volume that somebody worked on is no longer the one that counts."""


class _Stored(NamedTuple):
    """A video as it is stored."""

    video_id: str
    scanned: str  # the branch that its coarse rows are made of
    parts: list[Array]  # rows of each plane
    counts: Array  # [windows, branches]: how many rows each window has
    scales: Array  # of its coarse rows


def _lock(folder: Path) -> int:
    """Keeps other writers out for as long as the returned file is open."""
    try:
        return lock(folder)
    except BlockingIOError as error:
        raise BadIndex(f"{folder} is being written by another; wait for it, or open it with read_only=True") from error
    except OSError as error:
        raise BadIndex(f"{folder} cannot be opened ({error.strerror}); create an index there first") from error


def _fewest_tokens(tokens: Encoded, weights: Mapping[str, float]) -> str:
    """The branch that is cheapest to scan, of those that count."""
    return min((branch for branch in weights if weights[branch]), key=lambda branch: int(tokens[branch].mask.sum()))


def _units(vectors: Tensor) -> Array:
    return quantise.unit(vectors.detach().float().cpu().numpy())


def _tokens(rows: Array, counts: Array) -> Tokens:
    """Rows of a plane as tokens of windows, padded."""
    mask = np.arange(counts.max()) < counts[:, None]
    vectors = np.zeros((*mask.shape, rows["vector"].shape[1]), np.float32)
    spans = np.zeros((*mask.shape, 2), np.float32)
    vectors[mask] = quantise.restored(rows["vector"], rows["bits"], rows["scale"])
    spans[mask] = rows["span"]
    return Tokens(vectors=torch.from_numpy(vectors), mask=torch.from_numpy(mask), spans=torch.from_numpy(spans))
