"""The embedded index: an index in one folder, searched in stages.

`storage` keeps the files and describes their format, `cascade` searches them, and `ann` makes the compressed copy that
speeds up large indexes.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from midreel.errors import BadIndex, BadSetting
from midreel.index.base import (
    Match,
    checked_queries,
    checked_similarities,
    checked_weights,
    missing_video,
    scannable,
    scored_branches,
)
from midreel.index.embedded import ann, kernels, quantise, rows
from midreel.index.embedded.ann import TrainedCopy
from midreel.index.embedded.cascade import Cascade, Found
from midreel.index.embedded.manifest import State
from midreel.index.embedded.quantise import Array
from midreel.index.embedded.roster import GONE, Roster
from midreel.index.embedded.storage import Storage
from midreel.index.embedded.vectors import BadRow
from midreel.types import COSINE, Encoded, Similarities, Tokens, Vectors

COARSE = 12  # coarse vectors per window


class EmbeddedIndex:
    """An index in one folder. Make it with `create` or `open`. See `Index` for the methods it shares with others.

    One process can write at a time. Any number can read, and see each commit at their next call. All methods are
    thread-safe. Errors of the files raise BadIndex.

    Args:
        folder: The folder of the index.
        read_only: Open it for reading only.
        kernel: One of `kernels.KERNELS`. None: the fastest one installed.

    Attributes:
        folder: The folder of the index.
        read_only: Whether it is open for reading only.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from midreel.types import Tokens
        >>> tokens = Tokens(
        ...     vectors=np.array([[[3.0, 4.0]]]), mask=np.ones((1, 1), bool), spans=np.array([[[0.0, 1.0]]])
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EmbeddedIndex.create(folder, branch_weights={"clip": 1.0}, width=2) as index:
        ...         index.add("a", {"clip": tokens})
        ...         [[match]] = index.search({"clip": np.array([[3.0, 4.0]])})
        >>> match.video_id, round(match.score, 2)
        ('a', 1.0)
    """

    def __init__(self, folder: Path, *, read_only: bool, kernel: str | None) -> None:
        self.folder, self.read_only = folder, read_only
        self._kernel = kernels.choose(kernel)
        self._mutex = threading.RLock()
        self._storage = Storage(folder, read_only=read_only)
        # The compressed copy, after the identity of its file: volume, modification time and size.
        self._copy: tuple[tuple[int, int, int] | None, TrainedCopy | None] = (None, None)
        self._training: threading.Thread | None = None
        self._num_trained = 0  # number of positions when training was last started

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        branch_weights: Mapping[str, float],
        width: int,
        coarse: int = COARSE,
        similarities: Similarities | None = None,
        owner: str = "",
        kernel: str | None = None,
    ) -> "EmbeddedIndex":
        """Create an empty index and open it.

        Args:
            folder: A folder that is not an index yet. It is created if it is missing.
            branch_weights: The weight of each branch in the score.
            width: The width of all vectors.
            coarse: The number of coarse vectors per window. More make searches slower and more accurate.
            similarities: How each branch scores that does not score by its best cosine. Default: there is none.
            owner: A name of what the index belongs to. `owner` returns it.
            kernel: One of `kernels.KERNELS`. Default: the fastest one installed.

        Raises:
            BadSetting: A number or weight is out of range, or a similarity names an unknown branch.
            BadIndex: The folder already is an index, or cannot be written.
        """
        weights = checked_weights(branch_weights)
        forms = checked_similarities(similarities, weights)
        for name, value in (("width", width), ("coarse", coarse)):
            if value < 1:
                raise BadSetting(f"{name} is {value}, expected at least 1.")
        ends = (0,) * (1 + len(weights))
        state = State(branch_weights=weights, width=width, coarse=coarse, ends=ends, owner=owner, similarities=forms)
        Storage.create(Path(folder), state)
        return cls.open(folder, kernel=kernel)

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False, kernel: str | None = None) -> "EmbeddedIndex":
        """Open an existing index.

        Args:
            folder: The folder of the index.
            read_only: Whether to open it for reading only.
            kernel: One of `kernels.KERNELS`. Default: the fastest one installed.

        Raises:
            BadIndex: The folder is not an index, is damaged, or has another writer.
            UnknownName: No kernel has this name.
        """
        return cls(Path(folder), read_only=read_only, kernel=kernel)

    def close(self) -> None:
        """Close the index. This waits for training in the background."""
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

    # ------------------------------------------------------------ contents

    @property
    def branch_weights(self) -> Mapping[str, float]:
        """The weight of each branch in the score."""
        return dict(self._storage.state.branch_weights)

    @property
    def similarities(self) -> Similarities:
        """How each branch scores that does not score by its best cosine."""
        return dict(self._storage.state.similarities)

    @property
    def width(self) -> int:
        """The width of all vectors."""
        return self._storage.state.width

    @property
    def owner(self) -> str:
        """The `owner` passed to `create`. Empty in older indexes."""
        return self._storage.state.owner

    def __len__(self) -> int:
        return len(self._current())

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._current().slot_of_id

    def __repr__(self) -> str:
        return f"EmbeddedIndex({str(self.folder)!r}, {len(self)} videos)"

    def video_ids(self) -> list[str]:
        """Return the ids of all videos, in the order in which they were added."""
        return list(self._current().slot_of_id)

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        """Return the stored tokens of a video: vectors of nine bits, padded to its longest window.

        Branches in `types.with_norms(similarities)` have vectors of full length, others have unit vectors.
        """
        found = self.tokens_of([video_id]).get(video_id)
        if found is None:
            raise missing_video(video_id, len(self))
        return found

    def tokens_of(self, video_ids: Collection[str]) -> dict[str, dict[str, Tokens]]:
        """Return what `tokens` returns for several videos. Those that the index does not contain are left out."""
        with self._mutex:
            while True:  # until all are intact
                roster = self._current()
                slots = {each: slot for each in video_ids if (slot := roster.slot_of_id.get(each)) is not None}
                if not self._storage.exclude_damaged(slots.values()):
                    break
            files, branches = self._storage.files[1:], list(self._storage.state.branch_weights)
            found = {}
            for video_id, slot in slots.items():
                parts = rows.read_parts(files, roster.extents(slot)[1:])
                counts = roster.counts(slot).T
                found[video_id] = dict(zip(branches, map(rows.tokens_of, parts, counts), strict=True))
            return found

    def problems(self) -> list[str]:
        """Return the problems found so far, as text. Empty if there are none."""
        with self._mutex:
            self._current()
            return self._storage.damage.problems()

    @property
    def damaged(self) -> Mapping[str, str]:
        """The damaged videos found so far, each with the reason. `verify` finds all.

        They are neither found nor contained. Adding them again repairs them.
        """
        with self._mutex:
            self._current()
            return dict(self._storage.damage.reasons)

    def verify(self) -> list[str]:
        """Verify the checksums of all videos, and return the problems."""
        with self._mutex:
            self._storage.verify()
            return self.problems()

    @property
    def waste(self) -> float:
        """The share of stored windows that belong to removed videos, from 0 to 1."""
        with self._mutex:
            roster, state = self._current(), self._storage.state
            total = state.ends[0] // state.coarse
            return 1 - np.count_nonzero(roster.slots >= 0) / total if total else 0.0

    def _current(self) -> Roster:
        """Return the roster, with the commits of other processes."""
        with self._mutex:
            return self._storage.refresh()

    # ------------------------------------------------------------ changes

    def add(self, video_id: str, tokens: Encoded) -> None:
        """Add a video, or replace it, in one commit."""
        self.add_all([(video_id, tokens)])

    def add_all(self, videos: Iterable[tuple[str, Encoded]]) -> None:
        """Add or replace several videos in one commit, which is faster. A crash leaves all of them or none."""
        with self._mutex:
            self._storage.put(rows.to_rows(videos, self._storage.state))
            self._train_if_due()

    def remove(self, video_id: str) -> None:
        """Remove a video, intact or damaged."""
        with self._mutex:
            self._storage.remove(video_id)

    def compact(self) -> None:
        """Free the space of removed videos: copy the others to new files, and delete the old files.

        Meanwhile, the disk must hold both.
        """
        with self._mutex:
            self._storage.compact()
            self._num_trained = 0
            self._train_if_due()

    # ------------------------------------------------------------ search

    def search(
        self, queries: Vectors, *, top: int = 10, among: Collection[str] | None = None, exact: bool = False
    ) -> list[list[Match]]:
        """Return the best videos for each query, best first. See `Index.search` for the errors.

        Args:
            queries: One vector per query and branch. Branches that only provide keys need none.
            top: The maximum number of results per query.
            among: The ids to search. Unknown ids are ignored. Default: all videos.
            exact: Whether to score every token, instead of selecting candidates first.
        """
        with self._mutex:
            roster = self._current()
            state = self._storage.state
            branches = scored_branches(state.branch_weights, state.similarities)
            checked = checked_queries(queries, branches, self.width, top)
            # A dot product needs the length of the query.
            scaled = {
                branch: vectors if state.similarities.get(branch, COSINE).kind == "dot" else quantise.unit(vectors)
                for branch, vectors in checked.items()
            }
            copy = self._served_copy() if among is None and not exact else None
            answers = []
            for query in range(len(next(iter(scaled.values())))):
                vectors = {branch: part[query] for branch, part in scaled.items()}
                found = self._best(vectors, top, among, exact, copy)
                if copy is not None and len(found) < min(top, len(roster)):
                    # The copy has found only windows of few videos, or of removed ones: scan instead.
                    found = self._best(vectors, top)
                answers.append([self._match(position, scores) for position, scores in found])
            return answers

    def _best(
        self,
        query: Mapping[str, Array],
        top: int,
        among: Collection[str] | None = None,
        exact: bool = False,
        copy: TrainedCopy | None = None,
    ) -> list[Found]:
        """Search, verify the results, and search again without the damaged ones until all are intact."""
        while True:
            try:
                found = self._cascade_with(copy).best(query, top, among, exact)
            except BadRow as error:
                if not self._storage.exclude_video_of(error):
                    raise  # the checksum matches, so searching again would find the same row
                continue
            slots = self._storage.roster.slots
            if not self._storage.exclude_damaged([int(slots[position]) for position, _ in found]):
                return found

    def _match(self, position: int, scores: Mapping[str, float]) -> Match:
        roster = self._storage.roster
        return Match(
            video_id=roster.ids[roster.slots[position]],
            score=sum(self._storage.state.branch_weights[branch] * score for branch, score in scores.items()),
            branch_scores=scores,
        )

    @property
    def _cascade(self) -> Cascade:
        """The search that serves queries without a filter."""
        self._current()
        return self._cascade_with(self._served_copy())

    def _cascade_with(self, copy: TrainedCopy | None) -> Cascade:
        state = self._storage.state
        return Cascade(
            self._storage.roster,
            self._storage.files,
            weights=state.branch_weights,
            scanned=state.scanned or scannable(state.branch_weights, state.similarities)[0],
            similarities=state.similarities,
            kernel=self._kernel,
            trained=copy,
        )

    # ------------------------------------------------------------ the compressed copy

    def train(self) -> float | None:
        """Make the compressed copy of the coarse vectors now. Large indexes make it automatically, in the background.

        The index can be searched and changed meanwhile. If it is compacted meanwhile, the copy is discarded.

        Returns:
            The recall of the copy compared with the scan. None if it is too low, or the copy cannot be made.
        """
        with self._mutex:
            self._storage.require_writer()
            roster, state, coarse_file = self._current(), self._storage.state, self._storage.files[0]
            scales, positions = roster.scales.copy(), np.flatnonzero(roster.slots >= 0)
        if not (ann.installed() and ann.fits(state.width, scales.size) and len(positions)):
            return None
        copy = TrainedCopy.build(coarse_file.rows["vector"][: scales.size], scales)
        try:
            queries = ann.hard_queries(lambda position: self._drawn(position, state.volume), positions)
            recall = ann.proven_recall(copy, queries, lambda query, by: self._positions(query, by, state.volume))
            if recall is not None:
                with self._in_volume(state.volume):
                    copy.save(self._trained_path())
                    self._storage.manifest.change()  # a commit makes readers look for the copy
        except _CompactedError:
            return None
        return recall

    @contextmanager
    def _in_volume(self, volume: int) -> Iterator[None]:
        """Lock the index for one step of training. Raise _CompactedError if a compaction came in between."""
        with self._mutex:
            if self._storage.state.volume != volume:
                raise _CompactedError
            self._current()
            yield

    def _drawn(self, position: int, volume: int) -> dict[str, Array] | None:
        """Return the token vectors of a window, or None if it is damaged or removed."""
        with self._in_volume(volume):
            roster = self._storage.roster
            slot = int(roster.slots[position]) if position < roster.num_positions else GONE
            if slot == GONE or self._storage.exclude_damaged([slot]):
                return None
            return self._cascade.restored(position)

    def _positions(self, query: Mapping[str, Array], copy: TrainedCopy | None, volume: int) -> set[int]:
        """Return the positions that a search finds, with a copy or without one."""
        with self._in_volume(volume):
            return {position for position, _ in self._best(query, 10, copy=copy)}

    def _train_if_due(self) -> None:
        """Start training in the background if the index is large and has no recent copy."""
        positions, copy = self._storage.roster.num_positions, self._served_copy()
        due = positions >= ann.FROM and (copy is None or positions > ann.GROWTH * copy.positions)
        if due and ann.installed() and (self._training is None or not self._training.is_alive()):
            if positions < self._num_trained * ann.GROWTH:
                return  # training has failed before, and the index has hardly grown since
            self._num_trained = positions
            self._training = threading.Thread(target=self._try_to_train, name="midreel-index-training", daemon=True)
            self._training.start()

    def _try_to_train(self) -> None:
        # Searches work without the copy, so errors can be ignored. The next addition reports a full disk.
        with suppress(OSError, BadIndex):
            self.train()

    def _served_copy(self) -> TrainedCopy | None:
        """Return the compressed copy, read again if its file has changed. None if there is none."""
        try:
            stat = self._trained_path().stat()
        except OSError:
            return None
        identity = (self._storage.state.volume, stat.st_mtime_ns, stat.st_size)
        if self._copy[0] != identity:
            self._copy = identity, TrainedCopy.load(self._trained_path())
        copy = self._copy[1]
        return copy if copy is not None and copy.positions <= self._storage.roster.num_positions else None

    def _trained_path(self) -> Path:
        return self.folder / f"{self._storage.state.volume:06}.{ann.SUFFIX}"


class _CompactedError(Exception):
    """A compaction has replaced the volume during training."""
