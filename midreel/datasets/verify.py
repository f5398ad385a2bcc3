"""Verify a dataset: compare its counts with the known variants of the benchmark, and check its features."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from midreel.datasets import own, playhouse
from midreel.datasets.annotations import Annotations
from midreel.datasets.dataset import changed_sentences, find_features
from midreel.datasets.variants import Variant, nearest
from midreel.errors import BadSetting, BadStore, MidreelError, MissingFeatures, UnknownName
from midreel.features.stores.base import Features
from midreel.features.stores.published import PublishedFeatures
from midreel.types import Split, TextFeatures, VideoFeatures

NUM_EXAMPLES = 3
# Tolerances in seconds. People round times to whole seconds, and the last frame lasts a while after its timestamp.
MOMENT_TOLERANCE = 1.0
PART_TOLERANCE = 2.0  # the segments of QVHighlights are measured in clips of two seconds

_LAYOUTS = {
    "original": "its original annotations",
    "release": "the captions of a release",
    "own": "annotations of your own",
}


# ---------------------------------------------------------------- the whole dataset


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `midreel data verify`.

    Attributes:
        survey: Counts of videos and queries.
        features: The check of the features; None if they are missing or cannot be opened.
        misfits: Published files that differ from their publication.
        remark: Why `features` is None.
        ok: Whether there are no problems. Missing features are not a problem.
    """

    survey: "Survey"
    features: "FeatureCheck | None"
    misfits: tuple[str, ...] = ()
    remark: str = ""
    ok: bool

    def to_text(self) -> str:
        """Return the result for people, in several lines."""
        features = self.remark if self.features is None else self.features.to_text()
        return "\n".join([self.survey.to_text(), features, *(f"problem: {misfit}" for misfit in self.misfits)])

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return self.survey.to_dict() | {
            "features": None if self.features is None else self.features.to_dict(),
            "features_remark": self.remark,
            "features_misfits": list(self.misfits),
            "ok": self.ok,
        }


def verify_dataset(annotations: Annotations, features: str | None = None) -> Verification:
    """Verify a dataset and read all its features.

    Args:
        annotations: The annotations of the dataset.
        features: The features to check, if a release has several kinds.

    Raises:
        UnknownName: No published features have the name `features`. The message lists the names.
    """
    try:
        store = find_features(annotations, features)
    except MissingFeatures as error:
        counts = survey(annotations)
        return Verification(survey=counts, features=None, remark=f"no features: {error}", ok=not counts.problems)
    except (BadSetting, BadStore) as error:
        if features is not None and isinstance(error, UnknownName):
            raise  # the caller's spelling error, not a problem of the dataset
        return Verification(survey=survey(annotations), features=None, remark=f"features: {error}", ok=False)
    check = check_features(annotations, store)
    # Without a frame rate the durations of the features are guesses.
    if store.fingerprint.frame_rate is not None:
        annotations = replace(annotations, durations={**check.durations, **annotations.durations})
    counts = survey(annotations)
    misfits = store.misfits() if isinstance(store, PublishedFeatures) else []
    ok = check.ok and not misfits and not counts.problems
    return Verification(survey=counts, features=check, misfits=tuple(misfits), ok=ok)


# ---------------------------------------------------------------- counts


@dataclass(frozen=True, kw_only=True)
class SplitSurvey:
    """The counts of a split.

    Attributes:
        videos: The number of videos.
        queries: The number of queries.
        located: The number of queries with at least one moment.
        moments: The number of moments of all queries.
        words: The mean number of words in a query.
        timed: The number of videos with a known duration.
        seconds: The mean duration of these videos; None if there are none.
        variant: The known variant of the benchmark with the nearest counts; None for other datasets.
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
        """Whether the counts match the variant exactly."""
        return self.variant is not None and self.variant.matches(self.videos, self.queries)

    @property
    def compared(self) -> str:
        """The comparison with the variant, such as 'is TVR, val (2,179 videos, 10,895 queries)'."""
        if self.variant is None:
            return "cannot be compared: no published counts"
        if self.exact:
            return f"is {self.variant}"
        counts = (("videos", self.videos, self.variant.videos), ("queries", self.queries, self.variant.queries))
        differences = [
            f"{abs(found - known):,} {'more' if found > known else 'fewer'} {kind}"
            for kind, found, known in counts
            if known is not None and found != known
        ]
        return f"matches no known variant. It has {' and '.join(differences)} than the nearest, {self.variant}"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The counts of a dataset. `problems` should be fixed; `remarks` are for information."""

    name: str
    layout: str
    folder: str
    splits: Mapping[str, SplitSurvey]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        splits = {
            name: asdict(split) | {"exact": split.exact, "compared": split.compared}
            for name, split in self.splits.items()
        }
        return asdict(self) | {"splits": splits}

    def to_text(self) -> str:
        """Return the counts for people, as a table with remarks below it."""
        header = ("split", "videos", "queries", "with moments", "moments", "words/query", "seconds/video")
        rows = [header, *(_row(name, split) for name, split in self.splits.items())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{self.name} in {self.folder}, from {_LAYOUTS[self.layout]}"]
        for row in rows:
            name, *numbers = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join([row[0].ljust(len(name)), *numbers]))
        lines += [f"{name} {split.compared}" for name, split in self.splits.items() if split.exact]
        lines += [f"note: {remark}" for remark in self.remarks]
        lines += [f"problem: {problem}" for problem in self.problems]
        return "\n".join(lines)


def survey(annotations: Annotations) -> Survey:
    """Count each split, compare it with the known variants, and look for contradictions."""
    splits = {name: _survey_split(annotations, name, split) for name, split in annotations.splits.items()}
    remarks, problems = list(annotations.remarks), []
    problems += [f"{name} {split.compared}" for name, split in splits.items() if split.variant and not split.exact]
    for (name, split), (other_name, other) in combinations(annotations.splits.items(), 2):
        shared = _in_both(split.video_ids, other.video_ids)
        # val and test may share videos. A video that is also in train makes every evaluation meaningless.
        target = problems if "train" in (name, other_name) else remarks
        target += _with_example(f"videos in both {name} and {other_name}", shared)
        # Features are stored by query id, so one of the two sentences would get the features of the other.
        text_of_id, other_text_of_id = ({query.id: query.text for query in each.queries} for each in (split, other))
        clashes = [
            each for each in _in_both(text_of_id, other_text_of_id) if text_of_id[each] != other_text_of_id[each]
        ]
        problems += _with_example(f"ids of different queries in {name} and {other_name}", clashes)
    # You can fix your own annotations, but not a benchmark.
    target = problems if annotations.layout == "own" else remarks
    target += _with_example("moments that end after their video", _late_moments(annotations))
    if annotations.layout == "own":
        file_of_video = _find_files(annotations)
        problems += _with_example("videos without a file", _missing_files(annotations.folder, file_of_video))
        problems += _with_example("files with several names", _shared_files(file_of_video))
        remarks += _with_example("files that no line describes", _unused_files(annotations.folder, file_of_video))
    return Survey(
        name=annotations.name,
        layout=annotations.layout,
        folder=str(annotations.folder),
        splits=splits,
        remarks=tuple(remarks),
        problems=tuple(problems),
    )


def _with_example(what: str, found: Sequence[str]) -> list[str]:
    """Return a line with the number of items found and the first of them; no line if there are none."""
    return [f"{what}: {len(found):,}, such as {found[0]}"] if found else []


def _survey_split(annotations: Annotations, name: str, split: Split) -> SplitSurvey:
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


def _late_moments(annotations: Annotations) -> list[str]:
    """Return the moments that end after their video, among the videos with a known duration."""
    return [
        f"query {query.id!r}: {moment.start:g} to {moment.end:g} s in {query.video_id}, which lasts {seconds:.1f} s"
        for split in annotations.splits.values()
        for query in split.queries
        for seconds in [annotations.durations.get(query.video_id)]
        for moment in query.moments
        if seconds is not None and moment.end > seconds + MOMENT_TOLERANCE
    ]


def _find_files(annotations: Annotations) -> dict[str, Path | None]:
    """Return the resolved file of each video."""
    video_ids = dict.fromkeys(video_id for split in annotations.splits.values() for video_id in split.video_ids)
    paths = {video_id: own.find_file(annotations.folder, video_id) for video_id in video_ids}
    return {video_id: None if path is None else path.resolve() for video_id, path in paths.items()}


def _missing_files(folder: Path, file_of_video: Mapping[str, Path | None]) -> list[str]:
    return [each for each, path in file_of_video.items() if path is None and not playhouse.can_draw(folder, each)]


def _unused_files(folder: Path, file_of_video: Mapping[str, Path | None]) -> list[str]:
    used = set(file_of_video.values())
    return [str(path.relative_to(folder)) for path in own.video_files(folder) if path.resolve() not in used]


def _shared_files(file_of_video: Mapping[str, Path | None]) -> list[str]:
    """Return the names of each file that has several, for example because of a link."""
    videos_of_file: dict[Path, list[str]] = {}
    for video_id, path in file_of_video.items():
        if path is not None:
            videos_of_file.setdefault(path, []).append(video_id)
    return [" and ".join(video_ids) for video_ids in videos_of_file.values() if len(video_ids) > 1]


def _in_both(one: Iterable[str], other: Iterable[str]) -> list[str]:
    """Return the items of both, in the order of the first."""
    known = set(other)
    return [each for each in one if each in known]


def _mean(values: list[int] | list[float]) -> float | None:
    return sum(values) / len(values) if values else None


# ---------------------------------------------------------------- features


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The number of items with a certain flaw, and some of them. It is true if there are any."""

    count: int
    examples: tuple[str, ...]

    @classmethod
    def of(cls, items: Iterable[str]) -> "Finding":
        """Count the items, and keep the first few as examples."""
        items = list(items)
        return cls(count=len(items), examples=tuple(items[:NUM_EXAMPLES]))

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        return f"{self.count:,}" + (f", such as {', '.join(self.examples)}" if self.examples else "")


@dataclass(frozen=True, kw_only=True)
class KindCheck:
    """The check of the features of one kind: of videos, or of queries.

    Attributes:
        wanted: The number of videos or queries in the splits.
        widths: The number of features of each vector width.
        missing: Items without features.
        orphans: Features that no split uses. They are not a problem, because a file may serve other splits too.
        unreadable: Items whose features cannot be read.
        empty: Items with no vectors, or with a duration of 0.
        not_finite: Items with NaN or infinite numbers.
        odd: Items whose vectors have another width than most.
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
        """Whether all features are present and valid."""
        return not (self.missing or self.unreadable or self.empty or self.not_finite or self.odd)

    def to_lines(self, kind: str) -> Iterator[str]:
        """Yield the result for people. `kind` is videos or queries."""
        widths = " or ".join(self.widths) or "unknown"
        yield f"{kind}: {self.wanted - self.missing.count:,} of {self.wanted:,} have features, width {widths}"
        if self.orphans:
            yield f"note: features of {kind} that no split uses: {self.orphans}"
        for flaw, finding in (
            ("without features", self.missing),
            ("whose features cannot be read", self.unreadable),
            ("whose features are empty", self.empty),
            ("whose features are not finite", self.not_finite),
            ("whose features have another width than most", self.odd),
        ):
            if finding:
                yield f"problem: {kind} {flaw}: {finding}"


@dataclass(frozen=True, kw_only=True)
class FeatureCheck:
    """The check of all features of a dataset.

    Attributes:
        videos: The features of the videos.
        queries: The features of the queries.
        stranded: Queries whose video has no features.
        changed: Queries that were edited after their features were extracted.
        stretched: Parts of videos whose features are longer or shorter than annotated.
        durations: The seconds of each video that could be read, by its features.
    """

    videos: KindCheck
    queries: KindCheck
    stranded: Finding
    changed: Finding
    stretched: Finding
    durations: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether all features are present, valid and up to date."""
        return self.videos.ok and self.queries.ok and not (self.stranded or self.changed or self.stretched)

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON, without the durations."""
        names = ("videos", "queries", "stranded", "changed", "stretched")
        return {name: asdict(getattr(self, name)) for name in names} | {"ok": self.ok}

    def to_text(self) -> str:
        """Return the result for people, in several lines."""
        lines = [*self.videos.to_lines("videos"), *self.queries.to_lines("queries")]
        for flaw, finding in (
            ("queries whose video has no features", self.stranded),
            ("queries edited after their features were extracted", self.changed),
            ("parts of videos whose features are longer or shorter than annotated", self.stretched),
        ):
            lines += [f"problem: {flaw}: {finding}"] if finding else []
        return "\n".join(lines)


def check_features(annotations: Annotations, features: Features) -> FeatureCheck:
    """Read the features of all videos and queries, one at a time, and check them.

    A video in parts is read twice: joined, and part by part.
    """
    splits = annotations.splits.values()
    video_ids = dict.fromkeys(video_id for split in splits for video_id in split.video_ids)
    queries = {query.id: query for split in splits for query in split.queries}
    durations: dict[str, float] = {}

    def inspect_video(video_id: str) -> _Inspection:
        found = features.video(video_id)
        if found.duration > 0:
            durations[video_id] = found.duration
        return _inspect_video(found)

    def inspect_text(query_id: str) -> _Inspection:
        return _inspect_text(features.text(query_id))

    return FeatureCheck(
        videos=_check_kind(video_ids, features.video_ids(), features.has_video, inspect_video),
        queries=_check_kind(queries, features.text_ids(), features.has_text, inspect_text),
        stranded=Finding.of(query.id for query in queries.values() if not features.has_video(query.video_id)),
        changed=Finding.of(query.id for query in changed_sentences(queries.values(), features)),
        stretched=Finding.of(_stretched_parts(annotations, features)),
        durations=durations,
    )


@dataclass(frozen=True, kw_only=True)
class _Inspection:
    """The properties of the features of one video or query."""

    is_empty: bool
    is_finite: bool
    width: str


def _inspect_video(features: VideoFeatures) -> _Inspection:
    return _Inspection(
        is_empty=not (len(features.frames) and features.duration > 0),
        is_finite=bool(np.isfinite(features.frames).all() and np.isfinite(features.times).all()),
        width=f"{features.frames.shape[1]}",
    )


def _inspect_text(features: TextFeatures) -> _Inspection:
    return _Inspection(
        is_empty=not len(features.words),
        is_finite=bool(np.isfinite(features.words).all() and np.isfinite(features.sentence).all()),
        width=f"{features.words.shape[1]}, sentence {features.sentence.shape[0]}",
    )


def _check_kind(
    wanted: Iterable[str], stored: Iterable[str], has: Callable[[str], bool], inspect: Callable[[str], _Inspection]
) -> KindCheck:
    """Check the features of one kind.

    Args:
        wanted: The ids in the splits.
        stored: The ids in the store, as the store spells them.
        has: Returns whether the store has features of an id, in any spelling.
        inspect: Reads the features of an id.
    """
    wanted = list(wanted)
    missing: list[str] = []
    unreadable: list[str] = []
    empty: list[str] = []
    not_finite: list[str] = []
    ids_of_width: dict[str, list[str]] = {}
    for each in wanted:
        if not has(each):
            missing.append(each)
            continue
        try:
            found = inspect(each)
        except MidreelError as error:
            unreadable.append(f"{each}: {error}")
            continue
        ids_of_width.setdefault(found.width, []).append(each)
        if found.is_empty:
            empty.append(each)
        if not found.is_finite:
            not_finite.append(each)
    common_width = max(ids_of_width, key=lambda width: len(ids_of_width[width]), default=None)
    return KindCheck(
        wanted=len(wanted),
        widths={width: len(ids) for width, ids in ids_of_width.items()},
        missing=Finding.of(missing),
        orphans=_orphans(wanted, stored, num_found=len(wanted) - len(missing)),
        unreadable=Finding.of(unreadable),
        empty=Finding.of(empty),
        not_finite=Finding.of(not_finite),
        odd=Finding.of(
            f"{each} ({width})" for width, ids in ids_of_width.items() if width != common_width for each in ids
        ),
    )


def _orphans(wanted: Iterable[str], stored: Iterable[str], num_found: int) -> Finding:
    """Return the stored features that are not wanted. `num_found` is the number of wanted ids in the store."""
    stored, known = dict.fromkeys(stored), set(wanted)
    unknown = [each for each in stored if each not in known]
    count = max(0, len(stored) - num_found)
    # Where the store spells ids differently, the orphans can be counted but not named.
    return Finding(count=count, examples=tuple(unknown[:NUM_EXAMPLES]) if len(unknown) == count else ())


def _stretched_parts(annotations: Annotations, features: Features) -> Iterator[str]:
    for part in (part for parts in annotations.parts.values() for part in parts):
        try:
            seconds = features.video(part.id).duration if features.has_video(part.id) else part.duration
        except MidreelError:
            continue  # the check of the joined video reports this error
        if abs(seconds - part.duration) > PART_TOLERANCE:
            yield f"{part.id} ({seconds:.1f} s, annotated {part.duration:g} s)"
