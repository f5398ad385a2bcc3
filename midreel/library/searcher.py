"""From a sentence, an image or a moment to the moments that are like it."""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from midreel.errors import (
    BadAnnotation,
    BadLibrary,
    BadSetting,
    FingerprintMismatch,
    MidreelError,
    MissingTokens,
    UnreadableVideo,
    expect_text,
)
from midreel.features.backbones.base import Backbone, Fingerprint, load_backbone
from midreel.index.base import Array, Match
from midreel.index.embedded import EmbeddedIndex
from midreel.index.embedded.quantise import unit
from midreel.io.files import open_regular
from midreel.library import scan, tokens
from midreel.library.catalogue import Catalogue, Video
from midreel.library.filters import Filter, read_seconds, span
from midreel.library.layout import Generation, Layout
from midreel.library.windows import Window
from midreel.methods.base import Method, join_texts
from midreel.ops.moments import Curve, ScoredMoment, find_moments, fused, joined
from midreel.types import Tokens

T = TypeVar("T")

if TYPE_CHECKING:
    from midreel.library.indexing import IndexReport


@dataclass(frozen=True, kw_only=True)
class Line:
    """How well the query fits over time: values at seconds of the video."""

    times: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A video that was found: where it lies, how well it fits, and where in it."""

    video_id: str
    path: Path  # of a copy that the filter lets through, and that is there now
    paths: tuple[Path, ...]  # all places where it lies, first those that the filter lets through
    duration: float
    score: float
    branch_scores: Mapping[str, float]
    moments: tuple[ScoredMoment, ...]  # best first
    curve: Line

    def to_dict(self) -> dict[str, Any]:
        return {
            "video_id": self.video_id,
            "path": str(self.path),
            "paths": [str(path) for path in self.paths],
            "duration": self.duration,
            "score": self.score,
            "branch_scores": dict(self.branch_scores),
            "moments": [vars(moment) for moment in self.moments],
            "curve": {"times": list(self.curve.times), "values": list(self.curve.values)},
        }


class Searcher:
    """A library to be searched. What is slow to load is loaded by the first search.

    >>> import tempfile
    >>> from midreel.datasets import playhouse
    >>> folder = Path(tempfile.mkdtemp())
    >>> videos = playhouse.write_dataset(folder / "videos", seed=0, num_test=2)["test"]

    A new library, and what is in a folder:

    >>> searcher = Searcher.create(folder / "library")
    >>> report = searcher.add(folder / "videos")
    >>> len(report.new), len(searcher)
    (2, 2)

    What is like a sentence:

    >>> hits = searcher.search(videos.queries[0].text, top=1)
    >>> hits[0].path.name
    'playhouse-test-00000.mp4'
    >>> 0 <= hits[0].moments[0].start < hits[0].moments[0].end <= hits[0].duration
    True

    And a video that is to be forgotten:

    >>> searcher.remove(hits[0].video_id)
    >>> len(searcher)
    1
    >>> searcher.close()

    One process writes to a library at a time, any number search it, and see what is committed.
    """

    def __init__(self, folder: Path, *, device: str = "cpu", backbone: Backbone | None = None) -> None:
        self.layout, self._device, self._given = Layout(scan.absolute(folder)), device, backbone
        self._settings = self.layout.settings()
        self._catalogue = Catalogue(self.layout.folder)
        self._times_replaced = 0  # of the library, when its parts were loaded
        self._misfits = set[str]()  # videos of which catalogue and index say different things

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "cpu", backbone: Backbone | None = None) -> "Searcher":
        """The library in `folder`. A `backbone` that is loaded already saves loading it."""
        return cls(Path(folder), device=device, backbone=backbone)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        model: str | None = None,
        backbone: str | None = None,
        rate: float | None = None,
        device: str = "cpu",
    ) -> "Searcher":
        """A new, empty library. Without a model's folder it is searched zero-shot; without a backbone, it is the one
        that the model was trained on, or tiny-clip, which knows the playhouse and nothing else."""
        from midreel.library.indexing import Indexer, Wanted

        folder = scan.absolute(Path(folder))
        if Layout(folder).exists():
            raise BadLibrary(f"{folder} is a library already, expected a new folder; open it: Searcher.open")
        with Indexer.open(folder, Wanted(model=model, backbone=backbone, rate=rate), device=device) as indexer:
            loaded = indexer.backbone
        return cls(folder, device=device, backbone=loaded)

    # ------------------------------------------------------------ what it holds

    @property
    def folder(self) -> Path:
        return self.layout.folder

    def __len__(self) -> int:
        return len(self._catalogue)

    def __contains__(self, video_id: object) -> bool:
        return isinstance(video_id, str) and self._catalogue.video(video_id) is not None

    def num_matching(self, where: Filter | Iterable[str]) -> int:
        """How many videos a filter lets through."""
        return len(self._catalogue.matching(_filter(where)))

    def unsearchable(self) -> list[Path]:
        """Files of the library that no search finds, for their tokens are damaged: as far as searches have come across
        that. `midreel index --retry` looks through all of them, and makes them again."""
        lost = self._served(lambda: self._catalogue.video_ids() - (set(self.index.video_ids()) - self._misfits))
        return [path for video_id in sorted(lost) for path in self._catalogue.paths(video_id)[:1]]

    @cached_property
    def generation(self) -> Generation:
        return self.layout.serving(self._settings)

    @cached_property
    def index(self) -> EmbeddedIndex:
        return tokens.open_index(self.generation, read_only=True)

    @cached_property
    def method(self) -> Method:
        return tokens.load(self.generation, self._device)

    @cached_property
    def backbone(self) -> Backbone:
        found = self._given or load_backbone(self._settings.backbone, self._device)
        made = Fingerprint.from_json(json.dumps(self._settings.fingerprint))
        differences = made.difference(found.fingerprint)
        if differences:
            raise FingerprintMismatch(
                f"{self.folder} was made with {self._settings.backbone}, which is no longer the same (then != now): "
                f"{'; '.join(differences)}; put the old one back, or index into a new library"
            )
        return found

    # ------------------------------------------------------------ search

    def search(
        self, query: str, *, top: int = 10, exact: bool = False, where: Filter | Iterable[str] = ()
    ) -> list[Hit]:
        """The videos that a sentence describes a part of, best first.

        `where` restricts the videos: a Filter, or words such as "folder=holidays", "after=2024", "shorter=10:00",
        "tag=beach". `exact` compares the sentence with every token of every video.
        """
        return self.search_all([query], top=top, exact=exact, where=where)[0]

    def search_all(
        self, queries: Sequence[str], *, top: int = 10, exact: bool = False, where: Filter | Iterable[str] = ()
    ) -> list[list[Hit]]:
        """What `search` finds for each of several sentences, in one go."""
        for query in queries:
            if not query.strip():
                raise BadSetting(f"the query is {query!r}, expected some words; describe what is to be seen")
        if not queries:
            return []
        return self._served(lambda: self._find(self._encode(queries), top, exact, where))

    def search_like(
        self,
        path: str | Path,
        at: float | None = None,
        *,
        top: int = 10,
        exact: bool = False,
        where: Filter | Iterable[str] = (),
    ) -> list[Hit]:
        """The videos that have a part like an image, or like what a video shows `at` a second.

        An image is taken for a video that does not move. A moment of a video that is in the library is what the method
        made of it, its surroundings included; that video itself is not among the hits.
        """
        image = scan.absolute(Path(path))
        return self._served(lambda: self._like(image, at, top, exact, where))

    def _like(self, path: Path, at: float | None, top: int, exact: bool, where: Filter | Iterable[str]) -> list[Hit]:
        own = self._catalogue.video_at(path) if at is not None else None
        if at is not None and own is not None:
            found = self._find(self._moment(own, at), top + 1, exact, where)[0]
            return [hit for hit in found if hit.video_id != own.id][:top]
        return self._find(self._still(path, at), top, exact, where)[0]

    def encode(self, queries: Sequence[str]) -> dict[str, Array]:
        """Each sentence as the index compares it with tokens."""
        return self._served(lambda: self._encode(queries))

    def _encode(self, queries: Sequence[str]) -> dict[str, Array]:
        for query in queries:
            expect_text("the query", query)
        batch = join_texts(self.backbone.encode_texts(list(queries)))
        longest = getattr(self.method.config, "max_words", batch.words.shape[1])
        if batch.words.shape[1] > longest:
            batch = batch.first(longest)
        with torch.no_grad():
            encoded = self.method.encode_queries(batch.to(self._device))
        return {branch: part.float().cpu().numpy() for branch, part in encoded.items()}

    def refresh(self) -> None:
        """Turns to another generation, if one has taken over, or to another library, if one is in this place now.

        Whatever else has changed is seen anyway. Raises MissingLibrary if no library is there.
        """
        self._catalogue.version()  # one that is read where nothing may be written is looked at only then
        settings, times_replaced = self.layout.settings(), self._catalogue.times_replaced
        if settings.fingerprint != self._settings.fingerprint:
            self._let_go("backbone")
        if settings.serving != self._settings.serving or times_replaced != self._times_replaced:
            self._let_go("generation", "index", "method")
        self._settings, self._times_replaced = settings, times_replaced

    def _served(self, ask: Callable[[], T]) -> T:
        """What is found in the generation that serves; again if another has taken over, for then the files of the one
        that was asked may have gone meanwhile."""
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
        return self.layout.settings().serving != self._settings.serving

    # ------------------------------------------------------------ change

    def add(self, path: str | Path, *, tags: Sequence[str] = ()) -> "IndexReport":
        """Indexes a video, or what is new, changed or gone in a folder of videos."""
        from midreel.library.indexing import Indexer

        scan.expect_any([Path(path)])
        self.refresh()  # the indexer would create a library that is missing
        with Indexer.open(self.folder, device=self._device, backbone=self.backbone) as indexer:
            return indexer.run([Path(path)], tags=tags)

    def remove(self, video_id: str) -> None:
        """Forgets a video, wherever it lies; its files stay, and when they are indexed again it is back."""
        from midreel.library.indexing import Indexer

        self.refresh()
        if video_id not in self:
            raise MissingTokens(f"{self.folder} holds no video {video_id!r}, expected the id of a hit; search for it")
        with Indexer.open(self.folder, device=self._device) as indexer:
            indexer.remove(video_id)

    def close(self) -> None:
        self._let_go("index", "generation", "method", "backbone")
        self._catalogue.close()

    def __enter__(self) -> "Searcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _let_go(self, *names: str) -> None:
        if "index" in names and "index" in vars(self):
            self.index.close()
        for name in names:
            vars(self).pop(name, None)

    # ------------------------------------------------------------ how

    def _find(
        self, queries: Mapping[str, Array], top: int, exact: bool, where: Filter | Iterable[str]
    ) -> list[list[Hit]]:
        wanted = _filter(where)
        among = self._catalogue.matching(wanted) if wanted else None
        number = len(next(iter(queries.values())))
        if top < 1:
            raise BadSetting(f"top is {top}, expected at least 1")
        if among is not None and not among:
            return [[] for _ in range(number)]
        matches = self.index.search(queries, top=top, among=among, exact=exact)
        found = []
        for row in range(number):
            query = {branch: part[row : row + 1] for branch, part in queries.items()}
            hits = self._hits(query, matches[row], wanted)
            if len(hits) < len(matches[row]):
                # Some have just left, or are not all there yet: those after them move up.
                known = self._catalogue.matching(wanted)
                hits = self._hits(query, self.index.search(query, top=top, among=known, exact=exact)[0], wanted)
            found.append(hits)
        return found

    def _hits(self, query: Mapping[str, Array], matches: Sequence[Match], wanted: Filter) -> list[Hit]:
        """What is known of the videos, and where the query fits; without those that the catalogue does not list."""
        found: list[_Found] = []
        for match in matches:
            video, paths = self._catalogue.video(match.video_id), self._catalogue.paths(match.video_id, wanted)
            if video is None or not paths:
                continue
            try:
                kept, parts = self._tokens(video)
            except MissingTokens:
                continue
            windows = [each.seconds(video.duration) for each in parts]
            found.append(_Found(match=match, video=video, paths=tuple(paths), kept=kept, windows=windows))
        if not found:
            return []
        lines = relevance(query, [(each.kept, each.windows) for each in found], self.generation.card.curve_weights)
        moments = find_moments(_padded(lines)).listed()
        return [
            Hit(
                video_id=each.video.id,
                path=_to_show(each.paths),
                paths=each.paths,
                duration=each.video.duration,
                score=each.match.score,
                branch_scores=dict(each.match.branch_scores),
                moments=tuple(parts),
                curve=_line(line),
            )
            for each, line, parts in zip(found, lines, moments, strict=True)
        ]

    def _tokens(self, video: Video) -> tuple[dict[str, Tokens], list[Window]]:
        """A video's tokens and the windows that they are of. The catalogue, which says how many, has no checksums."""
        kept, windowing = self.index.tokens(video.id), self.generation.card.windows
        number = windowing.number(video.num_frames)
        if any(len(part.vectors) != number for part in kept.values()):
            self._misfits.add(video.id)
            raise MissingTokens(
                f"video {video.id!r} has {video.num_frames} frames, which is not what was indexed. Repair it: midreel "
                f"index --library {self.folder} --retry"
            )
        self._misfits.discard(video.id)
        return kept, windowing.windows(video.num_frames)

    def _moment(self, video: Video, at: float) -> dict[str, Array]:
        """The tokens that stand for a second of a video, of the window in whose middle it is."""
        if not 0 <= at <= video.duration:
            raise BadSetting(f"the video lasts {video.duration:.1f} s, so it has no second {at:g}; choose one of them")
        kept, windows = self._tokens(video)
        frame = at / video.duration * video.num_frames
        number = min(range(len(windows)), key=lambda k: abs((windows[k].first + windows[k].last) / 2 - frame))
        share = (frame - windows[number].first) / (windows[number].last - windows[number].first)
        return {branch: _token_at(part, number, share) for branch, part in kept.items()}

    def _still(self, path: Path, at: float | None) -> dict[str, Array]:
        """What the method makes of a video that shows one image."""
        image = _image(path) if at is None else _frame(path, at)
        features = self.backbone.encode_images([image] * self.backbone.window)
        with torch.no_grad():
            batch = self.method.prepare_videos(features[:1][None].float())
            encoded = self.method.encode_videos(batch.to(self._device))
        return {
            branch: unit(part.vectors[part.mask].float().cpu().numpy()).mean(0)[None]
            for branch, part in encoded.items()
        }


def _filter(where: Filter | Iterable[str]) -> Filter:
    return where if isinstance(where, Filter) else Filter.parse(where)


def _to_show(paths: Sequence[Path]) -> Path:
    """The first that is there. Of one there is no choice, and its disk need not be asked."""
    there = (path for path in paths if os.path.exists(path))  # noqa: PTH110  pathlib raises where nobody may look
    return next(there, paths[0]) if len(paths) > 1 else paths[0]


# Formats that Pillow reads by itself: for EPS it would start Ghostscript.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")


def _image(path: Path) -> Any:
    """As it is shown: a camera that is held upright says so, and turns nothing."""
    from PIL import Image, ImageOps

    try:
        with BufferedReader(open_regular(path)) as file, warnings.catch_warnings():
            # Pillow warns of more than 89 million pixels before it decodes them. That is too many.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=IMAGE_FORMATS) as image:
                return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except FileNotFoundError as error:
        raise UnreadableVideo(f"{path} does not exist, expected an image, or VIDEO@TIME; check the path") from error
    except Exception as error:  # of a damaged image, Pillow's decoders raise anything
        raise UnreadableVideo(
            f"{path} is no image that can be read ({str(error) or type(error).__name__}), expected one, or VIDEO@TIME, "
            f"such as film.mp4@1:30"
        ) from error


def _frame(path: Path, at: float) -> Any:
    from midreel.media.decode import frames_at

    return frames_at(path, [at])[0][1]


def _token_at(part: Tokens, window: int, share: float) -> Array:
    """The token of a window whose span is around, or nearest to, a share of it."""
    starts, ends = part.spans[window].T
    far = np.where(part.mask[window], np.abs((starts + ends) / 2 - share), np.inf)
    inside = (starts <= share) & (share <= ends) & part.mask[window]
    return part.vectors[window, np.where(inside, far, far + 2).argmin()][None]


# ---------------------------------------------------------------- where in the video


Windows = list[tuple[float, float]]  # of one video: start and end in seconds


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A match, and what it takes to make a hit of it."""

    match: Match
    video: Video
    paths: tuple[Path, ...]
    kept: Mapping[str, Tokens]
    windows: Windows


def relevance(
    query: Mapping[str, Array], videos: Sequence[tuple[Mapping[str, Tokens], Windows]], weights: Mapping[str, float]
) -> list[Curve]:
    """How well a query fits each part of each video, over all of the video's windows: a row each, spans in seconds.

    `weights` are the branches' in a curve. All windows of all videos go through the fusion together, which is a few
    operations however many there are.
    """
    branches = {branch: _padded([_fit(query[branch], kept[branch]) for kept, _ in videos]) for branch in videos[0][0]}
    curve = fused(branches, weights)
    bounds = [0, *accumulate(len(windows) for _, windows in videos)]
    return [
        joined(Curve(scores=curve.scores[start:end], spans=curve.spans[start:end]), *np.array(windows, np.float32).T)
        for (start, end), (_, windows) in zip(pairwise(bounds), videos, strict=True)
    ]


def _fit(query: Array, tokens: Tokens) -> Curve:
    """Of each window, by one branch; what an index keeps are unit vectors."""
    scores = tokens.vectors @ unit(query)[0]
    return Curve(scores=np.where(tokens.mask, scores, -np.inf), spans=tokens.spans)


def _padded(curves: Sequence[Curve]) -> Curve:
    """One below the other, as wide as the widest."""
    width = max(curve.scores.shape[1] for curve in curves)
    missing = [(0, width - curve.scores.shape[1]) for curve in curves]
    return Curve(
        scores=np.concatenate(
            [np.pad(c.scores, ((0, 0), gap), constant_values=-np.inf) for c, gap in zip(curves, missing, strict=True)]
        ),
        spans=np.concatenate([np.pad(c.spans, ((0, 0), gap, (0, 0))) for c, gap in zip(curves, missing, strict=True)]),
    )


def _line(curve: Curve) -> Line:
    return Line(times=tuple(curve.spans[0].mean(-1).tolist()), values=tuple(curve.scores[0].tolist()))


# ---------------------------------------------------------------- for people


def video_at(text: str) -> tuple[Path, float | None]:
    """`film.mp4@1:30` is a second of a video; anything that is a file is an image.

    >>> video_at("film.mp4@1:30")
    (PosixPath('film.mp4'), 90.0)
    """
    name, sign, time = text.rpartition("@")
    if not sign or Path(text).expanduser().is_file():
        return Path(text), None
    return Path(name), read_seconds(time)


def read_queries(path: Path) -> list[str]:
    """A sentence on each line."""
    try:
        found = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadAnnotation(f"{path} cannot be read ({error}), expected a query on each line, in UTF-8") from error
    if not found:
        raise BadAnnotation(f"{path} is empty, expected a query on each line; write some")
    return found


def to_text(query: str, hits: Sequence[Hit], *, width: int = 24) -> str:
    """A table: rank, score, when, a small curve of the whole video, which file."""
    if not hits:
        return f"“{query}”\n  nothing found"
    values = [value for hit in hits for value in hit.curve.values]
    low, high = min(values, default=0.0), max(values, default=1.0)
    whens = [_when(hit) for hit in hits]
    widest = max(map(len, whens))
    rows = (
        f"{rank:>3}  {hit.score:.3f}  {when:<{widest}}  {drawn(hit.curve, hit.duration, low, high, width)}  "
        f"{scan.shown(hit.path)}"
        for rank, (hit, when) in enumerate(zip(hits, whens, strict=True), 1)
    )
    return "\n".join([f"“{query}”", *rows])


def _when(hit: Hit) -> str:
    return ", ".join(span(moment.start, moment.end) for moment in hit.moments[:1])


_BLOCKS = "▁▂▃▄▅▆▇█"


def drawn(curve: Line, duration: float, low: float, high: float, width: int) -> str:
    """The best of each of so many equal parts, as blocks.

    >>> drawn(Line(times=(0.5, 1.5, 2.5), values=(0.1, 0.9, 0.5)), 3.0, 0.1, 0.9, 3)
    '▁█▅'
    """
    best = [low] * width
    for time, value in zip(curve.times, curve.values, strict=True):
        part = min(int(time / duration * width), width - 1)
        best[part] = max(best[part], value)
    scale = (len(_BLOCKS) - 1) / (high - low or 1.0)
    return "".join(_BLOCKS[round((value - low) * scale)] for value in best)
