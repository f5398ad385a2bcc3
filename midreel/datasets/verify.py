"""Is this the benchmark that it seems to be, and do its features fit? Counts beside the known ones, and what is off."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from midreel.datasets import own, playhouse
from midreel.datasets.annotations import Annotations
from midreel.datasets.variants import Variant, nearest
from midreel.errors import MidreelError
from midreel.features.stores import origins
from midreel.features.stores.hdf5_log import same_origin
from midreel.types import Query, Split, TextFeatures, VideoFeatures

NUM_EXAMPLES = 3
ROUNDING = 1.0  # seconds: people write whole ones, and the last frame lasts a while
PART_ROUNDING = 2.0  # seconds: QVHighlights, whose videos are in parts, counts in clips of two


# ---------------------------------------------------------------- counts


@dataclass(frozen=True, kw_only=True)
class SplitSurvey:
    """What a split holds, and the known variant that it is or comes nearest to.

    `located` is how many queries have a moment, `moments` how many they have together. `words` is the mean of a query,
    `seconds` that of a video, over the `timed` videos whose duration is known.
    """

    videos: int
    queries: int
    located: int
    moments: int
    words: float
    timed: int
    seconds: float | None
    variant: Variant | None

    @property
    def exact(self) -> bool:
        return self.variant is not None and self.variant.matches(self.videos, self.queries)

    @property
    def compared(self) -> str:
        """With the variant: 'is TVR, val (2,179 videos, 10,895 queries)', or how it differs from that."""
        if self.variant is None:
            return "has no counterpart"
        if self.exact:
            return f"is {self.variant}"
        counts = (("videos", self.videos, self.variant.videos), ("queries", self.queries, self.variant.queries))
        differences = [
            f"{abs(found - known):,} {things} {'more' if found > known else 'fewer'}"
            for things, found, known in counts
            if known is not None and found != known
        ]
        return f"is no known variant: {' and '.join(differences)} than {self.variant}, the nearest"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A dataset in figures. `remarks` are worth knowing, `problems` are off."""

    name: str
    layout: str
    folder: str
    splits: Mapping[str, SplitSurvey]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        splits = {
            name: asdict(split) | {"exact": split.exact, "compared": split.compared}
            for name, split in self.splits.items()
        }
        return asdict(self) | {"splits": splits}

    def to_text(self) -> str:
        header = ("split", "videos", "queries", "with moments", "moments", "words/query", "seconds/video")
        rows = [header, *(_row(name, split) for name, split in self.splits.items())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{self.name} in {self.folder}, from {_SOURCES[self.layout]}"]
        for row in rows:
            name, *numbers = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join([row[0].ljust(len(name)), *numbers]))
        lines += [f"{name} {split.compared}" for name, split in self.splits.items() if split.exact]
        lines += [f"remark: {remark}" for remark in self.remarks]
        lines += [f"off: {problem}" for problem in self.problems]
        return "\n".join(lines)


_SOURCES = {
    "original": "its original annotations",
    "release": "the captions of a release",
    "own": "annotations of your own",
}


def survey(annotations: Annotations) -> Survey:
    """Counts each split, compares it with what is known of the benchmark, and looks for what should not be."""
    splits = {name: _surveyed(annotations, name, split) for name, split in annotations.splits.items()}
    remarks, problems = list(annotations.remarks), []
    problems += [f"{name} {each.compared}" for name, each in splits.items() if each.variant and not each.exact]
    for (one, first), (other, second) in combinations(annotations.splits.items(), 2):
        shared = _common(first.video_ids, second.video_ids)
        if shared:
            told = remarks if "train" not in (one, other) else problems
            told.append(f"videos that are in {one} and in {other}: {len(shared):,}, such as {shared[0]}")
        queries = [{query.id: query.text for query in split.queries} for split in (first, second)]
        clashes = [each for each in _common(*queries) if queries[0][each] != queries[1][each]]
        if clashes:  # features are kept by id, so one of the two sentences would have those of the other
            problems.append(f"ids of one query in {one}, another in {other}: {len(clashes):,}, such as {clashes[0]}")
    late = _too_late(annotations)
    if late:
        # Of a benchmark it is as it is; one's own can be mended.
        told = problems if annotations.layout == "own" else remarks
        told.append(f"moments that end after their video: {len(late):,}, such as {late[0]}")
    if annotations.layout == "own":
        missing, idle, twice = _files(annotations)
        problems += [f"videos without a file: {len(missing):,}, such as {missing[0]}"] if missing else []
        problems += [f"files that several videos name: {len(twice):,}, such as {twice[0]}"] if twice else []
        remarks += [f"files that no line describes: {len(idle):,}, such as {idle[0]}"] if idle else []
    return Survey(
        name=annotations.name,
        layout=annotations.layout,
        folder=str(annotations.folder),
        splits=splits,
        remarks=tuple(remarks),
        problems=tuple(problems),
    )


def _surveyed(annotations: Annotations, name: str, split: Split) -> SplitSurvey:
    seconds = [annotations.durations[each] for each in split.video_ids if each in annotations.durations]
    return SplitSurvey(
        videos=len(split.video_ids),
        queries=len(split.queries),
        located=sum(bool(query.moments) for query in split.queries),
        moments=sum(len(query.moments) for query in split.queries),
        words=_mean([len(query.text.split()) for query in split.queries]) or 0.0,
        timed=len(seconds),
        seconds=_mean(seconds),
        variant=nearest(annotations.name, name, len(split.video_ids), len(split.queries)),
    )


def _row(name: str, split: SplitSurvey) -> tuple[str, ...]:
    counts = (split.videos, split.queries, split.located, split.moments)
    seconds = "unknown" if split.seconds is None else f"{split.seconds:,.1f}"
    return name, *(f"{count:,}" for count in counts), f"{split.words:.1f}", seconds


def _too_late(annotations: Annotations) -> list[str]:
    """Which moments end after their video, where it is known how long that lasts."""
    return [
        f"query {query.id!r}: {moment.start:g} to {moment.end:g} s in {query.video_id}, which lasts {seconds:.1f} s"
        for split in annotations.splits.values()
        for query in split.queries
        for seconds in [annotations.durations.get(query.video_id)]
        for moment in query.moments
        if seconds is not None and moment.end > seconds + ROUNDING
    ]


def _files(annotations: Annotations) -> tuple[list[str], list[str], list[str]]:
    """Videos of a person's own folder that have no file; files that are no video of it; files that are several."""
    folder = annotations.folder
    videos = dict.fromkeys(video_id for split in annotations.splits.values() for video_id in split.video_ids)
    file_of = {video_id: own.find_file(folder, video_id) for video_id in videos}
    missing = [each for each, path in file_of.items() if path is None and not playhouse.can_draw(folder, each)]
    names: dict[Path, list[str]] = {}
    for video_id, path in file_of.items():
        if path is not None:
            names.setdefault(path.resolve(), []).append(video_id)
    idle = [str(path.relative_to(folder)) for path in own.video_files(folder) if path.resolve() not in names]
    return missing, idle, [" and ".join(each) for each in names.values() if len(each) > 1]


def _common(one: Iterable[str], other: Iterable[str]) -> list[str]:
    """What is in both, in the order of the first."""
    known = set(other)
    return [each for each in one if each in known]


def _mean(values: list[int] | list[float]) -> float | None:
    return sum(values) / len(values) if values else None


# ---------------------------------------------------------------- features


@runtime_checkable
class Features(Protocol):
    """Where features lie: a store, or the files of a release, which may spell ids in another way."""

    def video_ids(self) -> Iterable[str]: ...

    def text_ids(self) -> Iterable[str]: ...

    def has_video(self, video_id: str) -> bool: ...

    def has_text(self, text_id: str) -> bool: ...

    def video(self, video_id: str) -> VideoFeatures: ...

    def text(self, text_id: str) -> TextFeatures: ...

    def text_origin(self, text_id: str) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Finding:
    """How many, and some of them."""

    count: int
    examples: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, kw_only=True)
class KindCheck:
    """The features of one kind, videos or queries, of which `wanted` are asked for.

    `orphans` are features that nobody asks for: a file may serve more than these splits, so they are told and not off.
    `widths` counts features by the widths of their vectors; `odd` are those that differ from the most common.
    """

    wanted: int
    widths: Mapping[str, int]
    missing: Finding
    orphans: Finding
    unreadable: Finding
    empty: Finding
    not_finite: Finding
    odd: Finding

    @property
    def ok(self) -> bool:
        return not (self.missing or self.unreadable or self.empty or self.not_finite or self.odd)


@dataclass(frozen=True, kw_only=True)
class FeatureCheck:
    """What a dataset asks for, and what its features hold.

    `stranded` are queries whose video has no features, `changed` those whose features are of another sentence;
    `stretched` are parts of videos whose features are longer or shorter than the annotations say.
    """

    videos: KindCheck
    queries: KindCheck
    stranded: Finding
    changed: Finding
    stretched: Finding
    durations: Mapping[str, float] = field(default_factory=dict, repr=False)  # of the videos that could be read

    @property
    def ok(self) -> bool:
        return self.videos.ok and self.queries.ok and not (self.stranded or self.changed or self.stretched)

    def to_dict(self) -> dict[str, Any]:
        kinds = ("videos", "queries", "stranded", "changed", "stretched")
        return {name: asdict(getattr(self, name)) for name in kinds} | {"ok": self.ok}

    def to_text(self) -> str:
        lines = [*_told("videos", self.videos), *_told("queries", self.queries)]
        for what, finding in (
            ("queries whose video has no features", self.stranded),
            ("queries that have changed since their features were made, to be extracted again", self.changed),
            ("parts of videos whose features are longer or shorter than annotated", self.stretched),
        ):
            lines += [f"off: {what}: {_some(finding)}"] if finding else []
        return "\n".join(lines)


def check_features(annotations: Annotations, features: Features) -> FeatureCheck:
    """Whether all that the splits name has features, of one width and without flaws. Reads them one at a time; parts of
    videos twice, joined and as they are.
    """
    splits = annotations.splits.values()
    videos = dict.fromkeys(video_id for split in splits for video_id in split.video_ids)
    queries = {query.id: query for split in splits for query in split.queries}
    durations: dict[str, float] = {}

    def see_video(video_id: str) -> _Seen:
        found = features.video(video_id)
        if found.duration > 0:
            durations[video_id] = found.duration
        return _seen_video(found)

    return FeatureCheck(
        videos=_checked(videos, features.video_ids(), features.has_video, see_video),
        queries=_checked(queries, features.text_ids(), features.has_text, lambda each: _seen_text(features.text(each))),
        stranded=_found(query.id for query in queries.values() if not features.has_video(query.video_id)),
        changed=_found(query.id for query in changed_sentences(queries.values(), features)),
        stretched=_found(_stretched(annotations, features)),
        durations=durations,
    )


def _stretched(annotations: Annotations, features: Features) -> Iterator[str]:
    for part in (part for parts in annotations.parts.values() for part in parts):
        try:
            seconds = features.video(part.id).duration if features.has_video(part.id) else part.duration
        except MidreelError:
            continue  # the video that it is a part of is told
        if abs(seconds - part.duration) > PART_ROUNDING:
            yield f"{part.id} ({seconds:.1f} s, annotated {part.duration:g} s)"


def changed_sentences(queries: Iterable[Query], features: Features) -> list[Query]:
    """Those whose features were made of another sentence than they have now, as far as the features know."""
    return [
        query
        for query in queries
        if features.has_text(query.id) and not same_origin(features.text_origin(query.id), origins.of_text(query.text))
    ]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What matters about the features of one video or query."""

    empty: bool
    finite: bool
    width: str


def _seen_video(features: VideoFeatures) -> _Seen:
    return _Seen(
        empty=not (len(features.frames) and features.duration > 0),
        finite=bool(features.frames.isfinite().all() and features.times.isfinite().all()),
        width=f"{features.frames.shape[1]}",
    )


def _seen_text(features: TextFeatures) -> _Seen:
    return _Seen(
        empty=not len(features.words),
        finite=bool(features.words.isfinite().all() and features.sentence.isfinite().all()),
        width=f"{features.words.shape[1]}, sentence {features.sentence.shape[0]}",
    )


class _Tally:
    """Counts, and keeps the first few."""

    def __init__(self) -> None:
        self._count = 0
        self._examples: list[str] = []

    def add(self, example: str) -> None:
        self._count += 1
        self._examples += [example] if self._count <= NUM_EXAMPLES else []

    def found(self) -> Finding:
        return Finding(count=self._count, examples=tuple(self._examples))


def _found(examples: Iterable[str]) -> Finding:
    tally = _Tally()
    for example in examples:
        tally.add(example)
    return tally.found()


def _checked(
    wanted: Iterable[str], stored: Iterable[str], has: Callable[[str], bool], see: Callable[[str], _Seen]
) -> KindCheck:
    tallies = {name: _Tally() for name in ("missing", "unreadable", "empty", "not_finite")}
    of_width: dict[str, _Tally] = {}
    there, asked = dict.fromkeys(stored), dict.fromkeys(wanted)
    strays = [name for name in there if name not in asked]
    num_orphans = max(0, len(there) - sum(has(each) for each in asked))
    # Where files spell ids in another way, who is a stray cannot be told from who is not.
    orphans = Finding(count=num_orphans, examples=tuple(strays[:NUM_EXAMPLES]) if len(strays) == num_orphans else ())
    for each in asked:
        if not has(each):
            tallies["missing"].add(each)
            continue
        try:
            seen = see(each)
        except MidreelError as error:
            tallies["unreadable"].add(f"{each}: {error}")
            continue
        of_width.setdefault(seen.width, _Tally()).add(each)
        if seen.empty:
            tallies["empty"].add(each)
        if not seen.finite:
            tallies["not_finite"].add(each)
    widths = {width: tally.found() for width, tally in of_width.items()}
    common = max(widths, key=lambda width: widths[width].count, default=None)
    odd = [(width, found) for width, found in widths.items() if width != common]
    return KindCheck(
        wanted=len(asked),
        orphans=orphans,
        widths={width: found.count for width, found in widths.items()},
        odd=Finding(
            count=sum(found.count for _, found in odd),
            examples=tuple(f"{name} ({width})" for width, found in odd for name in found.examples)[:NUM_EXAMPLES],
        ),
        **{name: tally.found() for name, tally in tallies.items()},
    )


def _told(kind: str, check: KindCheck) -> Iterator[str]:
    widths = " or ".join(check.widths) or "unknown"
    yield f"{kind}: {check.wanted - check.missing.count:,} of {check.wanted:,} have features, width {widths}"
    if check.orphans:
        yield f"remark: features of {kind} that no split asks for: {_some(check.orphans)}"
    for what, finding in (
        ("without features", check.missing),
        ("whose features cannot be read", check.unreadable),
        ("whose features are empty", check.empty),
        ("whose features are not finite", check.not_finite),
        ("whose features have another width than most", check.odd),
    ):
        if finding:
            yield f"off: {kind} {what}: {_some(finding)}"


def _some(finding: Finding) -> str:
    return f"{finding.count:,}" + (f", such as {', '.join(finding.examples)}" if finding.examples else "")
