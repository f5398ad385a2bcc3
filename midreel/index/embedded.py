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
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from midreel.errors import BadIndex, BadSetting
from midreel.files import lock
from midreel.index import kernels, planes, quantise, trained
from midreel.index.base import Match, absent, checked_queries, checked_tokens, checked_weights
from midreel.index.cascade import Cascade
from midreel.index.manifest import NAME, REBUILD, Manifest, Row, State
from midreel.index.planes import Plane, Volume
from midreel.index.quantise import Array
from midreel.index.roster import Roster
from midreel.index.trained import Trained
from midreel.types import Encoded, Tokens, Vectors

COARSE = 12  # vectors of a window that every search reads
_ATTEMPTS = 5  # at reading a book whose volume is just being replaced


class EmbeddedIndex:
    """Made by `create` or `open`. One process writes at a time; any number read, and see what it has committed.

    `damaged` names the videos that are stored but no longer whole: they are not found, not contained, and are whole
    again when they are added again. It grows as damage is met; `verify` reads everything.
    """

    _roster: Roster

    def __init__(self, folder: Path, *, read_only: bool, kernel: str | None) -> None:
        self.folder, self.read_only = folder, read_only
        self._kernel = kernels.choose(kernel)
        self._mutex = threading.RLock()
        self._copy: tuple[tuple[int, int, int] | None, Trained | None] = (None, None)
        self.damaged: dict[str, str] = {}
        # Also when it is forgotten instead of closed.
        self._unlock = weakref.finalize(self, os.close, _lock(folder)) if not read_only else None
        self._volume: Volume | None = None
        self._training: threading.Thread | None = None
        self._tried = 0  # windows when the compressed copy was last made
        try:
            self._manifest = Manifest(folder / NAME, read_only=read_only)
            try:
                self._load()
                self._volume = None if read_only else self._open_volume()
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
            folder.mkdir(parents=True, exist_ok=True)
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
            if slot is None or not self._is_whole(slot):
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
            return [*self._losses, *(f"video {name!r} {reason}" for name, reason in self.damaged.items())]

    def verify(self) -> list[str]:
        """Reads every row of every video, and returns the problems."""
        with self._mutex:
            roster = self._current()
            for slot in list(roster.slot_of_id.values()):
                self._is_whole(slot)
            for plane in self._planes:
                plane.let_go()
            return self.problems()

    # ------------------------------------------------------------ changing it

    def add(self, video_id: str, tokens: Encoded) -> None:
        self.add_all([(video_id, tokens)])

    def add_all(self, videos: Iterable[tuple[str, Encoded]]) -> None:
        """Adds several videos in one commit, which saves waiting for the disk: all of them or, after a kill, none."""
        with self._mutex:
            volume, manifest = self._writable(), self._manifest
            ends, rows, scanned = list(manifest.state.ends), dict[str, Row](), manifest.state.scanned
            for number, (video_id, tokens) in enumerate(videos, manifest.state.next_number):
                checked_tokens(video_id, tokens, self.branch_weights, self.width)
                if scanned is None:
                    scanned = _fewest_tokens(tokens, self.branch_weights)
                parts, counts, scales = self._parts(tokens, scanned)
                sums = volume.write(ends, parts)
                rows.pop(video_id, None)
                rows[video_id] = Row(
                    number=number,
                    name=video_id.encode("utf-8", "surrogatepass"),
                    starts=np.array(ends, "<i8").tobytes(),
                    counts=counts.astype("<u4").tobytes(),
                    checksums=np.array(sums, "<u4").tobytes(),
                    scales=scales.astype("<f4").tobytes(),
                    checksum=0,
                ).signed()
                ends = [end + len(part) for end, part in zip(ends, parts, strict=True)]
            if not rows:
                return
            volume.sync()
            dropped = self._rows_of(rows)
            manifest.change(drop=dropped, add=list(rows.values()), ends=ends, scanned=scanned)
            self._forget(rows)
            self._roster.extend(list(rows.values()))
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
            volume = Volume(paths, self._dtypes())
            try:
                ends, rows = [0] * len(paths), list[Row]()
                for row in self._manifest.rows():
                    slot = self._roster.slot_of_id.get(row.video_id) if row.is_whole() else None
                    if slot is None:
                        continue
                    extents = self._roster.extents(slot)
                    parts = [
                        plane.rows[start:end] for plane, (start, end, _) in zip(self._planes, extents, strict=True)
                    ]
                    volume.write(ends, parts)
                    rows.append(row._replace(starts=np.array(ends, "<i8").tobytes()).signed())
                    ends = [end + len(part) for end, part in zip(ends, parts, strict=True)]
                volume.sync()
                self._manifest.replace_all(rows, volume=state.volume + 1, ends=ends)
            except BaseException:
                volume.close()
                raise
            assert self._volume is not None
            self._volume.close()
            self._volume = volume
            self._remove_leftovers()
            self._load()

    def train(self) -> float | None:
        """Makes the compressed copy that searches of large libraries read (trained.py); otherwise it is made by itself,
        in the background, once the library is large. Returns the recall that it showed, or None if there is none."""
        with self._mutex:
            self._writable()
            self._current()
            state, plane, scales = self._manifest.state, self._planes[0], self._roster.scales.copy()
            places = np.flatnonzero(self._roster.slots >= 0)
        if not (trained.installed() and trained.fits(state.width) and len(places)):
            return None
        copy = Trained.build(plane.rows["vector"][: scales.size], scales)
        queries = trained.hard_queries(self._cascade.restored, places)
        with self._mutex:
            expected = [self._found(query, None) for query in queries]
        for let_through in trained.LADDER:
            copy.let_through = let_through
            found = []
            for query in queries:
                with self._mutex:  # searches and additions come in between
                    if self._manifest.state.volume != state.volume:
                        return None  # compacted meanwhile: its rows are elsewhere
                    found.append(self._found(query, copy))
            pairs = zip(found, expected, strict=True)
            recall = sum(len(ours & theirs) for ours, theirs in pairs) / sum(map(len, expected))
            if recall >= trained.RECALL:
                with self._mutex:
                    copy.save(self._trained_path())
                    self._manifest.change()  # tells readers
                    self._map_planes()
                return recall
        return None

    def _found(self, query: Mapping[str, Array], copy: Trained | None) -> set[int]:
        self._current()
        view = Cascade(
            self._roster,
            self._planes,
            weights=self._cascade.weights,
            scanned=self._cascade.scanned,
            kernel=self._kernel,
            trained=copy,
        )
        return {place for place, _ in view.best(query, 10)}

    def _train_if_due(self) -> None:
        places, copy = self._roster.num_places, self._cascade.trained
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
            return [
                self._best({branch: vectors[query] for branch, vectors in units.items()}, top, among, exact)
                for query in range(number)
            ]

    def _best(self, query: Mapping[str, Array], top: int, among: Collection[str] | None, exact: bool) -> list[Match]:
        """What it returns has been checked; a video that turns out to be damaged leaves, and the rest is asked."""
        while True:
            found = self._cascade.best(query, top, among, exact)
            damaged = [slot for place, _ in found if not self._is_whole(slot := int(self._roster.slots[place]))]
            if not damaged:
                return [self._match(place, scores) for place, scores in found]

    def _match(self, place: int, scores: Mapping[str, float]) -> Match:
        return Match(
            video_id=self._roster.ids[self._roster.slots[place]],
            score=sum(weight * scores[branch] for branch, weight in self._cascade.weights.items()),
            window=int(self._roster.window_numbers[place]),
            branch_scores=scores,
        )

    # ------------------------------------------------------------ keeping what is in memory current

    def _current(self) -> Roster:
        """The roster, after taking up what another process has committed."""
        with self._mutex:
            if self.read_only and self._manifest.version() != self._version:
                self._take_up()
            if self._mapped != (self._manifest.state.volume, self._manifest.state.ends):
                self._map_planes()
            return self._roster

    def _take_up(self) -> None:
        """Reads what is new in the book, or all of it if that is not all that has changed."""
        old, last = self._manifest.state, max((number for number, _ in self._roster.rows), default=0)
        self._version = self._manifest.version()
        with self._manifest.snapshot() as state:
            rows = self._manifest.rows(after=last)
        added = sum(row.checksum for row in rows)
        only_new = (state.volume, state.videos, state.sum) == (old.volume, old.videos + len(rows), old.sum + added)
        if not only_new or not all(row.is_whole() for row in rows):
            self._load()
            return
        self._roster.extend(rows)
        self._map_planes()

    def _load(self) -> None:
        for _ in range(_ATTEMPTS):
            self._version = self._manifest.version()
            with self._manifest.snapshot() as state:
                rows = self._manifest.rows()
            self._roster = Roster(len(state.branch_weights), state.coarse)
            self._map_planes()
            if self._manifest.version() == self._version:  # else the files may have been replaced meanwhile
                break
        whole = [row for row in rows if row.is_whole()]
        self._roster.extend(whole)
        self._checked = set[int]()
        self.damaged.clear()
        self._rows_of_damaged: dict[str, tuple[int, int]] = {}
        self._losses = _losses(self._manifest.path, state, rows, len(whole))
        for video_id in self._roster.cut_off([len(plane) for plane in self._planes]):
            self._set_aside(video_id, f"is cut off, for a file of {self.folder} is shorter than it was")

    def _map_planes(self) -> None:
        state = self._manifest.state
        paths = planes.plane_paths(self.folder, state.volume, len(state.branch_weights))
        self._planes = [Plane(path, dtype) for path, dtype in zip(paths, self._dtypes(), strict=True)]
        self._mapped = state.volume, state.ends
        self._cascade = Cascade(
            self._roster,
            self._planes,
            weights=state.branch_weights,
            scanned=state.scanned or next(iter(state.branch_weights)),
            kernel=self._kernel,
            trained=self._load_trained(),
        )

    def _load_trained(self) -> Trained | None:
        """The compressed copy, read when its file is another than before."""
        try:
            stat = self._trained_path().stat()
        except OSError:
            return None
        seen = (self._manifest.state.volume, stat.st_mtime_ns, stat.st_size)
        if self._copy[0] != seen:
            self._copy = seen, Trained.load(self._trained_path())
        return self._copy[1]

    def _is_whole(self, slot: int) -> bool:
        """Whether a video's rows are what was written. They are read once; they do not change."""
        if slot in self._checked:
            return True
        for plane, (start, end, checksum) in zip(self._planes, self._roster.extents(slot), strict=True):
            if end > len(plane) or plane.checksum(start, end) != checksum:
                self._set_aside(self._roster.ids[slot], f"is damaged: {plane.path} does not match its checksum")
                return False
        self._checked.add(slot)
        return True

    def _set_aside(self, video_id: str, reason: str) -> None:
        self.damaged[video_id] = f"{reason}; add it again"
        self._rows_of_damaged[video_id] = self._roster.rows[self._roster.slot_of_id[video_id]]
        self._roster.drop(video_id)

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
        """What a compaction leaves behind: the old volume, or, if it was killed, a new one that does not count."""
        for path in self.folder.iterdir():
            if planes.volume_of(path) not in (None, self._manifest.state.volume):
                path.unlink()

    def _dtypes(self) -> list["np.dtype[np.void]"]:
        state = self._manifest.state
        return [planes.coarse_rows(state.width), *[planes.token_rows(state.width)] * len(state.branch_weights)]

    def _parts(self, tokens: Encoded, scanned: str) -> tuple[list[Array], Array, Array]:
        """A video as rows of each plane, how many each window has in each branch, and the scales of the coarse rows."""
        coarse_type, token_type = self._dtypes()[:2]
        parts, counts = [], []
        for branch in self.branch_weights:
            mask = tokens[branch].mask.cpu().numpy()
            vectors = _units(tokens[branch].vectors)[mask]
            rows = np.zeros(len(vectors), token_type)
            rows["vector"], rows["bits"], rows["scale"] = quantise.in_nine_bits(vectors)
            rows["span"] = tokens[branch].spans.cpu().numpy()[mask]
            parts.append(rows)
            counts.append(mask.sum(1))
            if branch == scanned:
                windows = np.split(vectors, np.cumsum(mask.sum(1))[:-1])
                pooled = np.concatenate([quantise.pooled(window, self._manifest.state.coarse) for window in windows])
        coarse = np.zeros(len(pooled), coarse_type)
        coarse["vector"], scales = quantise.quantised(pooled)
        return [coarse, *parts], np.stack(counts, 1), scales

    def _rows_of(self, video_ids: Iterable[str]) -> dict[int, int]:
        """Which rows of the book the videos have, whole or damaged, as checksums by number."""
        slots = self._roster.slot_of_id
        whole = [self._roster.rows[slots[video_id]] for video_id in video_ids if video_id in slots]
        return dict(whole + [self._rows_of_damaged[video_id] for video_id in video_ids if video_id in self.damaged])

    def _forget(self, video_ids: Iterable[str]) -> None:
        for video_id in video_ids:
            self.damaged.pop(video_id, None)
            self._rows_of_damaged.pop(video_id, None)


def _lock(folder: Path) -> int:
    """Keeps other writers out for as long as the returned file is open."""
    try:
        return lock(folder)
    except BlockingIOError as error:
        raise BadIndex(f"{folder} is being written by another; wait for it, or open it with read_only=True") from error
    except OSError as error:
        raise BadIndex(f"{folder} cannot be opened ({error.strerror}); create an index there first") from error


def _losses(path: Path, state: State, rows: list[Row], whole: int) -> list[str]:
    problems = []
    if whole < len(rows):
        problems.append(f"{path}: {len(rows) - whole} of {len(rows)} rows do not match their checksums; {REBUILD}")
    if (state.videos, state.sum) != (len(rows), sum(row.checksum for row in rows)):
        problems.append(f"{path} holds {len(rows)} videos, expected {state.videos}, or other ones; {REBUILD}")
    return problems


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
