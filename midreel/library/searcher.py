"""Search a library by a sentence, an image, or a moment of a video."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from midreel.errors import BadLibrary, BadSetting, FingerprintMismatch, MidreelError, MissingTokens, expect_text
from midreel.features.backbones.base import Backbone, Engine, Fingerprint, load_backbone
from midreel.index.base import Array, Match, scored_branches
from midreel.index.embedded.quantise import unit
from midreel.library import combined, pictures, scan, spoken
from midreel.library import encoder as encoders
from midreel.library.confidence import Calibration
from midreel.library.encoder import Encoder
from midreel.library.feedback import Feedback
from midreel.library.filters import Filter
from midreel.library.hits import Hit, SearchedVideo, locate
from midreel.library.layout import Generation
from midreel.library.place import Place
from midreel.library.query import Part, Query, Said, Seen, leaves, parse
from midreel.library.recent import RecentQueries
from midreel.library.records import Video
from midreel.library.storage import at
from midreel.library.windows import Window
from midreel.ops.edges import PLAYHOUSE
from midreel.types import Tokens, with_norms

T = TypeVar("T")
_MATCHES_AT_ONCE = 256  # matches whose tokens are in memory together
_IMAGE_SHARE = 0.6  # of the vector of an image with words; measured: docs/results/queries.md

if TYPE_CHECKING:
    from midreel.library.report import IndexReport
    from midreel.library.storage import LibraryIndex


class Searcher:
    """A library that can be searched. Model, backbone and index are loaded by the first search.

    Use `Searcher.open` or `Searcher.create`.

    Args:
        place: The folder of a library, or the URL of its database.
        device: The torch device for backbone and model.
        backbone: A backbone that is loaded already. Default: load the one of the library.
        engine: What computes backbone and model. See `load_backbone`.

    Attributes:
        subtitles: The weight of what is said in a search for a plain sentence, from 0 (the picture alone) to 1. It
            counts only in libraries with subtitles.

    >>> import tempfile
    >>> from midreel.datasets import playhouse
    >>> folder = Path(tempfile.mkdtemp())
    >>> videos = playhouse.write_dataset(folder / "videos", seed=0, num_test=2)["test"]

    Create a library and add a folder of videos:

    >>> searcher = Searcher.create(folder / "library")
    >>> report = searcher.add(folder / "videos")
    >>> len(report.new), len(searcher)
    (2, 2)

    Search by a sentence:

    >>> hits = searcher.search(videos.queries[0].text, top=1)
    >>> hits[0].path.name
    'playhouse-test-00000.mp4'
    >>> 0 <= hits[0].moments[0].start < hits[0].moments[0].end <= hits[0].duration
    True

    Remove a video:

    >>> searcher.remove(hits[0].video_id)
    >>> len(searcher)
    1
    >>> searcher.close()

    One process at a time writes a library in a folder. Any number of processes search it, and see what is committed.
    A library in a database, such as postgresql://me@db.example/films, is written and searched by any number of
    processes on any machines.
    """

    def __init__(
        self, place: Place, *, device: str = "cpu", backbone: Backbone | None = None, engine: Engine = "auto"
    ) -> None:
        self.storage, self._device, self._given = at(place), device, backbone
        self._engine: Engine = engine
        try:
            self._settings = self.storage.settings()
            self._catalogue = self.storage.open_catalogue()
        except BaseException:
            self.storage.close()
            raise
        self._times_replaced = 0  # the catalogue's count when the parts of the library were loaded
        self._misfits = set[str]()  # videos whose row does not fit their tokens
        self.subtitles = spoken.WEIGHT

    @classmethod
    def open(
        cls, place: Place, *, device: str = "cpu", backbone: Backbone | None = None, engine: Engine = "auto"
    ) -> "Searcher":
        """Open a library.

        Args:
            place: The folder that `midreel index` or `create` made, or the URL of a database: see docs/cluster.md.
            device: The torch device for backbone and model.
            backbone: A backbone that is loaded already.
            engine: What computes backbone and model. See `load_backbone`.

        Raises:
            MissingLibrary: There is no library.
            BadLibrary: The library is damaged, or of another version.
            Unreachable: The database does not answer.
        """
        return cls(place, device=device, backbone=backbone, engine=engine)

    @classmethod
    def create(
        cls,
        place: Place,
        *,
        model: str | None = None,
        backbone: str | None = None,
        rate: float | None = None,
        device: str = "cpu",
    ) -> "Searcher":
        """Create an empty library.

        Args:
            place: A new folder, or the URL of a database.
            model: The folder of a model. Default: zero-shot.
            backbone: The name of a backbone. Default: the one that the model was trained with, or else a CLIP of the
                hub or `offline` (`midreel.features.backbones.choice`).
            rate: Frames per second. Default: what the model was trained with, or else 2.
            device: The torch device for backbone and model.

        Raises:
            BadLibrary: The folder is a library already, or holds other files.
            BadSetting: The backbone reads no texts, or the model does not say which backbone it needs.
        """
        from midreel.library.writer import Wanted, Writer

        with closing(at(place)) as storage:
            if storage.exists():
                raise BadLibrary(f"{storage} is a library already, expected a new place. Open it: Searcher.open")
        with Writer.open(place, Wanted(model=model, backbone=backbone, rate=rate), device=device) as writer:
            loaded = writer.backbone
        return cls(place, device=device, backbone=loaded)

    # ------------------------------------------------------------ contents and parts

    @property
    def folder(self) -> Path:
        """The folder of the library. Raise BadSetting if the library is in a database."""
        if self.storage.folder is None:
            raise BadSetting(f"{self.storage} has no folder. Use Searcher.storage.place.")
        return self.storage.folder

    @property
    def library_id(self) -> str:
        """The id of the library that was opened; empty in libraries that are older than ids."""
        return self._settings.id

    def __len__(self) -> int:
        """Return the number of videos."""
        return len(self._catalogue)

    def __contains__(self, video_id: object) -> bool:
        """Return whether the library contains a video."""
        return isinstance(video_id, str) and self._catalogue.video(video_id) is not None

    def num_matching(self, where: Filter | Iterable[str]) -> int:
        """Return the number of videos that a filter allows."""
        return len(self._catalogue.matching(_filter(where)))

    def unsearchable(self) -> list[Path]:
        """Return the files that searches skipped, because their tokens are damaged.

        Only damage that a search has met is known. `midreel index --retry` checks and repairs all videos.
        """
        lost = self._served(lambda: self._catalogue.video_ids() - (set(self.index.video_ids()) - self._misfits))
        return [path for video_id in sorted(lost) for path in self._catalogue.paths(video_id)[:1]]

    @cached_property
    def generation(self) -> Generation:
        """The generation that is searched."""
        return self.storage.serving(self._settings)

    @cached_property
    def index(self) -> "LibraryIndex":
        """The index of the generation."""
        return self.storage.open_index(self.generation, read_only=True)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the generation; None if there is none yet."""
        return self.storage.calibration(self.generation)

    @cached_property
    def encoder(self) -> Encoder:
        """The model of the generation. Raise BadLibrary if its files are damaged."""
        return encoders.open_generation(self.generation, self._device, self._engine)

    @cached_property
    def backbone(self) -> Backbone:
        """The backbone. Raise FingerprintMismatch if it is not the one that made the features."""
        stored = Fingerprint.from_json(json.dumps(self._settings.fingerprint))
        found = self._given or load_backbone(self._settings.backbone, self._device, self._engine, like=stored.backbone)
        differences = stored.difference(found.fingerprint)
        if differences:
            raise FingerprintMismatch(
                f"{self.storage} was made with {self._settings.backbone}, which has changed (stored != now): "
                f"{'; '.join(differences)}. Restore the old backbone, or index into a new library."
            )
        return found

    # ------------------------------------------------------------ search

    def search(
        self, query: str | Query, *, top: int = 10, exact: bool = False, where: Filter | Iterable[str] = ()
    ) -> list[Hit]:
        """Return the videos that a sentence describes a part of, best first.

        Args:
            query: A sentence, sentences with the operators AND, OR, NOT and THEN, or a value of `library.query`.
            top: The number of hits, at most.
            exact: Compare the sentence with all tokens, not only with candidates that the index selects.
            where: A filter, or conditions such as "folder=holidays", "after=2024", "shorter=10:00", "tag=beach".

        Raises:
            BadQuery: The query is empty, or its operators are misplaced.
            BadSetting: `top` is less than 1, or a condition is invalid.
            MissingLibrary: The library no longer exists.
            BadLibrary: The library is damaged.
        """
        return self.search_all([query], top=top, exact=exact, where=where)[0]

    def search_all(
        self, queries: Sequence[str | Query], *, top: int = 10, exact: bool = False, where: Filter | Iterable[str] = ()
    ) -> list[list[Hit]]:
        """Return the hits of several queries, as `search` does. Plain sentences are searched in one batch.

        Args:
            queries: The queries.
            top: The number of hits of each query, at most.
            exact: As for `search`.
            where: As for `search`.
        """
        parsed = [parse(query) if isinstance(query, str) else query for query in queries]
        if top < 1:
            raise BadSetting(f"top is {top}, expected at least 1.")
        if not parsed:
            return []
        return self._served(lambda: self._answers(parsed, top, exact, where))

    def _answers(
        self, queries: Sequence[Query], top: int, exact: bool, where: Filter | Iterable[str]
    ) -> list[list[Hit]]:
        plain = [query.text for query in queries if isinstance(query, Part) and query.like is None]
        is_heard = bool(plain) and self.subtitles > 0 and self._catalogue.has_spoken()
        depth = max(top, spoken.DEPTH) if is_heard else top
        found = iter(self._find(self._encode(plain), depth, exact, where, self.calibration) if plain else [])
        answers = []
        for query in queries:
            if isinstance(query, Said):
                answers.append(self._said(query, top, exact, _filter(where)))
            elif isinstance(query, Part) and query.like is None:
                hits = next(found)
                answers.append(self._heard(query.text, hits, top, exact, _filter(where)) if is_heard else hits)
            else:
                answers.append(self._combine(query, top, exact, _filter(where)))
        return answers

    def _heard(self, text: str, seen: list[Hit], top: int, exact: bool, wanted: Filter) -> list[Hit]:
        """Return the hits of a plain sentence in the picture, fused with those in what is said."""
        among = self._catalogue.matching(wanted) if wanted else None
        heard = spoken.search(self._catalogue, [text], phrase=False, among=among)

        def find(video_ids: list[str]) -> list[Hit]:
            only = replace(wanted, videos=tuple(video_ids))
            return self._find(self._encode([text]), len(video_ids), exact, only, self.calibration)[0]

        return spoken.fused(seen, heard, find, top=top, weight=float(self.subtitles))

    def _said(self, query: Said, top: int, exact: bool, wanted: Filter) -> list[Hit]:
        """Return the videos in which words are said, in the order of what is seen too, if the query has that."""
        among = self._catalogue.matching(wanted) if wanted else None
        heard = spoken.search(self._catalogue, query.words, phrase=True, among=among)
        if not heard:
            return []
        lines = {each.video_id: each for each in heard}
        if query.seen is not None:
            only = replace(wanted, videos=tuple(lines))
            hits = self._answers_seen(query.seen, len(lines), exact, only)
            found = spoken.fused(hits, heard, lambda _: [], top=top, weight=float(self.subtitles or spoken.WEIGHT))
            return [spoken.as_said(hit, lines[hit.video_id]) for hit in found]
        rows = self._catalogue.with_paths([each.video_id for each in heard[:top]], wanted)
        return [
            spoken.unseen(each.video_id, rows[each.video_id][1], rows[each.video_id][0].duration, each, rank)
            for rank, each in enumerate(heard[:top], start=1)
            if each.video_id in rows
        ]

    def _answers_seen(self, query: Seen, top: int, exact: bool, wanted: Filter) -> list[Hit]:
        if isinstance(query, Part) and query.like is None:
            return self._find(self._encode([query.text]), top, exact, wanted, self.calibration)[0]
        return self._combine(query, top, exact, wanted)

    def _combine(self, query: Seen, top: int, exact: bool, wanted: Filter) -> list[Hit]:
        """Return the hits of a query with operators or an image."""
        parts = list(dict.fromkeys(leaves(query)))
        texts = dict.fromkeys(part.text for part in parts if part.text)
        encoded = self._encode_anew(list(texts)) if texts else {}
        rows = {text: {branch: of[row : row + 1] for branch, of in encoded.items()} for row, text in enumerate(texts)}
        vectors: dict[Part, Mapping[str, Array]] = {}
        own = set[str]()
        for part in parts:
            image = None
            if part.like is not None:
                image, video_id = self._pictured(scan.absolute(part.like), part.at)
                own |= {video_id} - {""}
            vectors[part] = _blended(rows.get(part.text), image)
        if isinstance(query, Part):
            found = self._find(vectors[query], top + len(own), exact, wanted)[0]
            return [hit for hit in found if hit.video_id not in own][:top]
        among = self._catalogue.matching(wanted) if wanted else None
        return combined.find(
            self.index,
            query,
            vectors,
            lambda video_ids: self._searched(video_ids, wanted),
            weights=self.generation.card.curve_weights,
            top=top,
            among=among,
            exact=exact,
            but=own,
        )

    def search_like(
        self,
        path: str | Path,
        at: float | None = None,
        *,
        top: int = 10,
        exact: bool = False,
        where: Filter | Iterable[str] = (),
    ) -> list[Hit]:
        """Return the videos that have a part like an image, or like a frame of a video.

        An image is encoded as a video that does not move. If the video is in the library, its own tokens are the query,
        and the video itself is not among the hits.

        Args:
            path: An image, or a video.
            at: The time in the video, in seconds; None for an image.
            top: The number of hits, at most.
            exact: As for `search`.
            where: As for `search`.

        Raises:
            UnreadableVideo: The image or video cannot be decoded.
            BadSetting: The video ends before this time.
        """
        image = scan.absolute(Path(path))
        return self._served(lambda: self._like(image, at, top, exact, where))

    def _like(self, path: Path, at: float | None, top: int, exact: bool, where: Filter | Iterable[str]) -> list[Hit]:
        if top < 1:
            raise BadSetting(f"top is {top}, expected at least 1.")
        vectors, own = self._pictured(path, at)
        found = self._find(vectors, top + bool(own), exact, where)[0]
        return [hit for hit in found if hit.video_id != own][:top]

    def _pictured(self, path: Path, at: float | None) -> tuple[dict[str, Array], str]:
        """Return the vectors of an image or a moment, and the id of its video, or "" if that is not in the library."""
        own = self._catalogue.video_at(path) if at is not None else None
        if at is not None and own is not None:
            return self._moment(own, at), own.id
        return self._still(path, at), ""

    def encode(self, queries: Sequence[str]) -> dict[str, Array]:
        """Return the vectors of each branch, a row for each sentence. The index compares them with tokens."""
        return self._served(lambda: self._encode(queries))

    def _encode(self, queries: Sequence[str]) -> dict[str, Array]:
        return self._recent.encode(queries)

    def _encode_anew(self, queries: list[str]) -> dict[str, Array]:
        for query in queries:
            expect_text("the query", query)
        return self.encoder.encode_queries(self.backbone.encode_texts(queries))

    @cached_property
    def _recent(self) -> RecentQueries:
        """The vectors of recent queries, of the loaded backbone and model."""
        return RecentQueries(self._encode_anew)

    def refresh(self) -> None:
        """Follow a reindex, or a library that was replaced. Searches do this; other changes are seen without it.

        Raises:
            MissingLibrary: The library no longer exists.
        """
        self._catalogue.version()  # where the catalogue is read from a copy in memory, this takes a new copy
        settings, times_replaced = self.storage.settings(), self._catalogue.times_replaced
        if settings.fingerprint != self._settings.fingerprint:
            self._unload("backbone")
        if settings.serving != self._settings.serving or times_replaced != self._times_replaced:
            self._unload("generation", "index", "encoder")
        self._settings, self._times_replaced = settings, times_replaced

    def _served(self, ask: Callable[[], T]) -> T:
        """Return the answer of the generation that is searched.

        Meanwhile, a reindex may switch to another generation and delete the files of this one. Then ask again.
        """
        while True:
            self.refresh()
            try:
                found = ask()
            except (MidreelError, OSError):
                if not self._has_switched():
                    raise
            else:
                if not self._has_switched():
                    return found

    def _has_switched(self) -> bool:
        return self.storage.settings().serving != self._settings.serving

    # ------------------------------------------------------------ change

    def add(self, path: str | Path, *, tags: Sequence[str] = ()) -> "IndexReport":
        """Index a video, or the new, changed and removed videos of a folder.

        Raises:
            MissingVideo: The path does not exist.
            Locked: Another process writes the library.
        """
        from midreel.library import indexer
        from midreel.library.writer import Writer

        scan.expect_any([Path(path)])
        self.refresh()  # the writer would create a missing library
        with Writer.open(self.storage.place, device=self._device, backbone=self.backbone) as writer:
            return indexer.index(writer, [Path(path)], tags=tags)

    def remove(self, video_id: str) -> None:
        """Remove a video from the library. Its files stay; if they are indexed again, the video returns.

        Raises:
            MissingTokens: The library does not contain the video.
            Locked: Another process writes the library.
        """
        from midreel.library.writer import Writer

        self.refresh()
        if video_id not in self:
            raise MissingTokens(f"the id is {video_id!r}, expected the video_id of a video in {self.storage}.")
        with Writer.open(self.storage.place, device=self._device) as writer:
            writer.remove(video_id)

    # ------------------------------------------------------------ feedback

    def add_feedback(
        self,
        query: str,
        video_id: str,
        *,
        match: bool = True,
        start: float | int | None = None,
        end: float | int | None = None,
    ) -> Feedback:
        """Say whether a moment of a video is what a query describes. `midreel adapt` learns from it.

        Feedback stays in the library. It replaces earlier feedback on the same query and an overlapping moment.

        Args:
            query: A plain sentence.
            video_id: The video.
            match: True for "this is it", False for "not this".
            start: The start of the moment in seconds. Default: the start of the video.
            end: The end of the moment in seconds. Default: the end of the video.

        Raises:
            BadQuery: The query is empty, or has operators.
            BadSetting: The moment is not inside the video.
            MissingTokens: The library does not contain the video.
            Unwritable: The disk is full, or the library is read-only.
        """
        self.refresh()
        video = self._catalogue.video(video_id)
        if video is None:
            raise MissingTokens(f"the id is {video_id!r}, expected the video_id of a video in {self.storage}.")
        return self.storage.feedback().add(video, query, match=match, start=start, end=end)

    def feedback(self, *, query: str | None = None, video_id: str | None = None) -> list[Feedback]:
        """Return the feedback, oldest first. Feedback on removed videos is included.

        Args:
            query: Return only feedback on this sentence.
            video_id: Return only feedback on this video.
        """
        return self.storage.feedback().all(query=query, video_id=video_id)

    def remove_feedback(self, number: int) -> None:
        """Delete the feedback with this id. Raise MissingFeedback if there is none."""
        self.storage.feedback().remove(number)

    def clear_feedback(self) -> int:
        """Delete all feedback, and return how many pieces there were."""
        return self.storage.feedback().clear()

    def close(self) -> None:
        """Close the files of the library."""
        self._unload("index", "generation", "encoder", "backbone")
        self._catalogue.close()
        self.storage.close()

    def __enter__(self) -> "Searcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _unload(self, *names: str) -> None:
        if "index" in names and "index" in vars(self):
            self.index.close()
        for name in (*names, "_recent"):
            vars(self).pop(name, None)

    # ------------------------------------------------------------ steps of a search

    def _find(
        self,
        queries: Mapping[str, Array],
        top: int,
        exact: bool,
        where: Filter | Iterable[str],
        calibration: Calibration | None = None,
    ) -> list[list[Hit]]:
        if top < 1:
            raise BadSetting(f"top is {top}, expected at least 1.")
        wanted = _filter(where)
        among = self._catalogue.matching(wanted) if wanted else None
        number = len(next(iter(queries.values())))
        if among is not None and not among:
            return [[] for _ in range(number)]
        matches = self.index.search(queries, top=top, among=among, exact=exact)
        hits: list[list[Hit]] = []
        for start in range(0, number, at_once := max(1, _MATCHES_AT_ONCE // top)):
            some = {branch: vectors[start : start + at_once] for branch, vectors in queries.items()}
            hits += self._hits(some, matches[start : start + at_once], wanted, calibration)
        # A run may be adding or removing videos: these have tokens but no row. If they left gaps, search the others.
        short = [row for row in range(number) if len(hits[row]) < len(matches[row])]
        if short:
            some = {branch: vectors[short] for branch, vectors in queries.items()}
            listed = self._catalogue.matching(wanted)
            found_again = self.index.search(some, top=top, among=listed, exact=exact)
            again = self._hits(some, found_again, wanted, calibration)
            for row, found in zip(short, again, strict=True):
                hits[row] = found
        return hits

    def _hits(
        self,
        queries: Mapping[str, Array],
        matches: Sequence[Sequence[Match]],
        wanted: Filter,
        calibration: Calibration | None,
    ) -> list[list[Hit]]:
        """Return the hits of each query: its matches that the catalogue lists, with the moments in them."""
        ids = dict.fromkeys(match.video_id for found in matches for match in found)
        videos = self._searched(ids, wanted)
        pairs = [(row, match) for row, found in enumerate(matches) for match in found if match.video_id in videos]
        located = locate(
            queries,
            [row for row, _ in pairs],
            [videos[match.video_id] for _, match in pairs],
            self.generation.card.curve_weights,
            edges=self.generation.card.edges or PLAYHOUSE,
            frame_gap=1 / self._settings.rate,
        )
        scores = [match.score for _, match in pairs]
        confidences = [None] * len(pairs) if calibration is None else calibration.confidences(scores)
        hits: list[list[Hit]] = [[] for _ in matches]
        for (row, match), (curve, moments), confident in zip(pairs, located, confidences, strict=True):
            found = videos[match.video_id]
            hits[row].append(
                Hit(
                    **vars(match),
                    path=found.path,
                    paths=found.paths,
                    duration=found.video.duration,
                    moments=moments,
                    curve=curve,
                    confidence=confident,
                )
            )
        return hits

    def _searched(self, video_ids: Iterable[str], wanted: Filter) -> dict[str, SearchedVideo]:
        """Return videos with their tokens. Leave out those without a row in the catalogue, or with damaged tokens."""
        listed = self._catalogue.with_paths(video_ids, wanted)
        kept, for_curves = self.index.tokens_of(listed), self._for_curves()
        found = {}
        for video_id, parts in kept.items():
            video, paths = listed[video_id]
            with suppress(MissingTokens):
                windows = tuple(window.seconds(video.duration) for window in self._windows(video, parts))
                found[video_id] = SearchedVideo(video=video, paths=paths, tokens=for_curves(parts), windows=windows)
        return found

    def _for_curves(self) -> Callable[[Mapping[str, Tokens]], dict[str, Tokens]]:
        """Return a function that returns tokens as curves need them: unit vectors, but for a branch of dot products.

        Keys have no curve.
        """
        similarities = self.index.similarities
        is_dot = {branch for branch, form in similarities.items() if form.kind == "dot"}
        to_scale = with_norms(similarities) - is_dot
        scored = scored_branches(self.index.branch_weights, similarities)
        return lambda kept: {
            branch: replace(kept[branch], vectors=unit(kept[branch].vectors)) if branch in to_scale else kept[branch]
            for branch in scored
        }

    def _windows(self, video: Video, kept: Mapping[str, Tokens]) -> list[Window]:
        """Return the windows of a video. Raise MissingTokens if its tokens do not fit them.

        The windows follow from the number of frames in the catalogue, which has no checksums and may be damaged.
        """
        windowing = self.generation.card.windows
        number = windowing.number(video.num_frames)
        if any(len(part.vectors) != number for part in kept.values()):
            self._misfits.add(video.id)
            raise MissingTokens(
                f"video {video.id!r} has {video.num_frames} frames in the catalogue, but its tokens differ. "
                f"Repair it: midreel index --library {self.storage} --retry"
            )
        self._misfits.discard(video.id)
        return windowing.windows(video.num_frames)

    def _moment(self, video: Video, at: float) -> dict[str, Array]:
        """Return the tokens at a time of a video, from the window whose middle is nearest."""
        if not 0 <= at <= video.duration:
            raise BadSetting(f"the time is {at:g} s, expected 0 to {video.duration:.1f} s, the length of the video.")
        kept = self.index.tokens(video.id)
        windows = self._windows(video, kept)
        frame = at / video.duration * video.num_frames
        number = min(range(len(windows)), key=lambda k: abs((windows[k].first + windows[k].last) / 2 - frame))
        share = (frame - windows[number].first) / (windows[number].last - windows[number].first)
        return {branch: unit(_token_at(part, number, share)) for branch, part in kept.items()}

    def _still(self, path: Path, at: float | None) -> dict[str, Array]:
        """Return the mean token of a video that shows one image."""
        image = pictures.read_image(path) if at is None else pictures.read_frame(path, at)
        features = self.backbone.encode_images([image] * self.backbone.window)
        encoded = self.encoder.encode_videos(features[:1][None])
        return {branch: unit(part.vectors[part.mask]).mean(0)[None] for branch, part in encoded.items()}


def _blended(words: Mapping[str, Array] | None, image: Mapping[str, Array] | None) -> Mapping[str, Array]:
    """Return the vectors of words, of an image, or a weighted sum of both that is as long as the vectors of the words.

    The score of the sum is the weighted sum of the scores at the same token.
    """
    if words is None or image is None:
        return words or image or {}
    return {
        branch: np.linalg.norm(words[branch], axis=-1, keepdims=True)
        * unit((1 - _IMAGE_SHARE) * unit(words[branch]) + _IMAGE_SHARE * unit(image[branch]))
        for branch in words
    }


def _filter(where: Filter | Iterable[str]) -> Filter:
    return where if isinstance(where, Filter) else Filter.parse(where)


def _token_at(part: Tokens, window: int, share: float) -> Array:
    """Return the token at a position in a window, from 0 to 1, or the nearest token.

    Of several tokens that cover the position, the one whose middle is nearest counts. Distances are at most 1, so
    adding 2 puts the other tokens last.
    """
    starts, ends = part.spans[window].T
    far = np.where(part.mask[window], np.abs((starts + ends) / 2 - share), np.inf)
    inside = (starts <= share) & (share <= ends) & part.mask[window]
    return part.vectors[window, np.where(inside, far, far + 2).argmin()][None]
