"""The demo: generate a dataset, train methods on it, evaluate them, and search the videos."""

import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midreel import recipes
from midreel.datasets import playhouse
from midreel.datasets.dataset import Dataset, extract
from midreel.datasets.sources import Source
from midreel.errors import BadFeatures
from midreel.evaluation.moments import predict_moment, predictors
from midreel.experiments import ablation, runs
from midreel.experiments.progress import Audience
from midreel.experiments.report import (
    REPORT,
    Confidence,
    Contender,
    Hit,
    Search,
    is_current,
    summary,
    write_report,
)
from midreel.features.backbones.base import Backbone, load_backbone
from midreel.library import encoder, indexer
from midreel.library.hits import is_confident
from midreel.library.layout import Layout
from midreel.library.query import Part
from midreel.library.reindex import reindex
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted, Writer
from midreel.methods.base import Method, evaluating, join_texts
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import LOG, is_finished, read_lines
from midreel.types import Moment, Query

BACKBONE = "tiny-clip"
TRAINED = ("clip_residual", "base", "msc")  # rows of the ablation; the report shows searches with the last one
NUM_SEARCHES, NUM_HITS = 3, 3
# Sentences about what no playhouse shows.
ELSEWHERE = (
    "a chef slices onions",
    "a surgeon operates on a patient",
    "two people shake hands in an office",
    "a crowd cheers at a concert",
    "a barber cuts hair",
    "a student writes an exam",
    "a waiter pours wine",
    "firefighters climb a ladder",
    "a bride throws her bouquet",
    "someone types on a keyboard",
)
DATASET, LIBRARY = "dataset", "library"  # subfolders of a demo


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the generated dataset.

    By measurement, the defaults are large enough for the methods to beat zero-shot search, and train in minutes.
    """

    num_train: int = 1000
    num_val: int = 150
    num_test: int = 200
    rate: float = 1.0  # frames per second


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The result of a demo."""

    report: Path
    contenders: Sequence[Contender]
    searches: Sequence[Search]
    seconds: Mapping[str, float | None]  # by step; None for a step that an earlier demo finished
    library: Path  # ready for `midreel search`

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "report": str(self.report),
            "library": str(self.library),
            "seconds": dict(self.seconds),
            "rows": {contender.label: contender.examination.figures() for contender in self.contenders},
            "searches": [search.to_dict() for search in self.searches],
        }

    @property
    def text(self) -> str:
        """The result, for people."""
        found = "\n\n".join(search.text for search in self.searches)
        query = shlex.quote(next((search.query.text for search in self.searches), "a ball"))
        return (
            f"{summary(self.contenders)}\n{found}\n\nAll metrics, and pictures: {self.report}\n"
            f"Search these videos: {_command()} search {shlex.quote(str(self.library))} {query}\n"
            f"In a browser: {_command()} serve {shlex.quote(str(self.library))}"
        )


def _command() -> str:
    """Return the command to type: `midreel`, or its path if it is not on PATH."""
    typed = Path(sys.argv[0])
    return str(typed) if typed.name == "midreel" and shutil.which("midreel") is None else "midreel"


def run(
    folder: Path,
    *,
    seed: int = 0,
    size: Size | None = None,
    changes: Mapping[str, Any] | None = None,
    audience: Audience | None = None,
) -> Demo:
    """Run the demo in `folder`. Steps that an earlier demo finished there are skipped.

    Args:
        folder: The folder of the demo.
        seed: The seed of the generated videos.
        size: The size of the dataset.
        changes: Changes to the recipe.
        audience: Receives progress.

    Raises:
        BadSetting: `folder` has a demo of another seed or size.
        BadFeatures: Some features could not be extracted.
    """
    size, audience = size or Size(), audience or Audience()
    root, steps = folder / DATASET, _Steps(audience)
    sizes = f"{size.num_test} videos to search and {size.num_train + size.num_val:,} to train on"
    with steps.step("making the videos", f"generating {sizes}") as step:
        step.did_something = _make_dataset(root, seed, size, audience)
    with steps.step("extracting features", f"extracting features with {BACKBONE}") as step:
        dataset, backbone, step.did_something = _extract(root, size, audience)
    recipe_of = {row: _recipe(row, changes or {}) for row in TRAINED}
    for row, recipe in recipe_of.items():
        with steps.step(f"training {row}", f"training {ablation.LABELS[row]}") as step:
            step.did_something = not is_finished(folder / row, recipe)
            monitor = audience.training(row, recipe) if step.did_something else None
            runs.train_or_resume(dataset, recipe, folder / row, monitor=monitor)
    with steps.step("indexing", "indexing the videos for search") as step:
        step.did_something = _index(root, folder, backbone)
    changed = any(seconds is not None for seconds in steps.seconds.values())
    with steps.step("examining and searching", "evaluating the models"):
        contenders = [_examine(dataset, name, folder, recipe_of["msc"]) for name in (*ablation.UNTRAINED, *TRAINED)]
        searches = [
            Search(query=query, hits=search(query.text, contenders[-1].method, contenders[-1].data, backbone))
            for query in _some_queries(contenders[-1].data)
        ]
        # All are shown. The right ones come first, because readers try the first query.
        searches.sort(key=lambda search: not search.is_right)
        confidence = _confidence(folder / LIBRARY, [query.text for query in contenders[-1].data.queries])
    report = folder / REPORT
    if changed or not is_current(report, contenders, searches, confidence):
        write_report(folder, dataset, contenders, searches, confidence, steps.seconds)
    else:
        audience.say(f"nothing to do: {report} is unchanged")
    return Demo(
        report=report,
        contenders=contenders,
        searches=searches,
        seconds=steps.seconds,
        library=folder / LIBRARY,
    )


def _recipe(row: str, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a row, with the changes that its method knows."""
    method = row if row in ablation.BEYOND else "msc"
    return recipes.build(method, "playhouse", recipes.known_settings(method, changes) | ablation.ROWS.get(row, {}))


def search(text: str, method: Method, data: FeatureSet, backbone: Backbone, top: int = NUM_HITS) -> list[Hit]:
    """Return the videos that fit a sentence best, with a moment in each.

    Args:
        text: The sentence.
        method: The model.
        data: The videos to search.
        backbone: The backbone that made their features.
        top: The number of hits, at most.
    """
    with evaluating(method):
        query = method.encode_queries(join_texts(backbone.encode_texts([text])))
        videos = method.encode_videos(next(data.video_batches(len(data))))
        scores = method.score(query, videos)[0]
        best = scores.topk(min(top, len(data))).indices
        repeated = {branch: vector.expand(len(best), -1) for branch, vector in query.items()}
        moments = predict_moment(
            repeated, videos, best, data.durations, predictors(method)["found"], method.similarities
        )
    return [
        Hit(video_id=data.video_ids[video], score=scores[video].item(), moment=Moment(start=start, end=end))
        for video, (start, end) in zip(best.tolist(), moments.tolist(), strict=True)
    ]


def _make_dataset(root: Path, seed: int, size: Size, audience: Audience) -> bool:
    """Write the dataset. Return whether something was missing.

    Only test videos are written as files. The others are drawn when their features are extracted.
    """
    before = _state(root)
    playhouse.write_dataset(
        root,
        seed=seed,
        num_train=size.num_train,
        num_val=size.num_val,
        num_test=size.num_test,
        files=("test",),
        progress=audience.files(size.num_test),
    )
    sheet = root / "contact-sheet.png"
    if not sheet.exists():
        playhouse.contact_sheet(playhouse.make_split(seed, "test", 3), sheet)
    return _state(root) != before


def _state(folder: Path) -> dict[str, int]:
    """Return the modification time of each file in a folder."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*")}


def _extract(root: Path, size: Size, audience: Audience) -> tuple[Dataset, Backbone, bool]:
    """Extract missing features. Return the dataset, the backbone, and whether some were missing."""
    # torch, as in every published demo: rounding may lead training to another model.
    backbone, source = load_backbone(BACKBONE, engine="torch"), Source.find(root)
    progress = audience.features(len(source.video_ids))
    videos, texts = extract(source, backbone, rate=size.rate, progress=progress)
    failed = videos.failed | texts.failed
    if failed:
        name, reason = next(iter(failed.items()))
        raise BadFeatures(
            f"{root} has {len(failed)} videos or sentences without features, such as {name}: {reason}. "
            f"Delete the folder and run the demo again."
        )
    return Dataset.open(root), backbone, bool(videos.done or texts.done)


def _index(root: Path, folder: Path, backbone: Backbone) -> bool:
    """Index the video files with the trained model. Return whether something changed.

    This is what `midreel index` does: it uses neither the dataset's annotations nor its features.
    """
    model, place = str(folder / "msc"), folder / LIBRARY
    wanted = Wanted() if Layout(place).exists() else Wanted(model=model)
    with Writer.open(place, wanted, backbone=backbone) as writer:
        outdated = not writer.serves(model)
        if outdated:
            reindex(writer, model)
        is_new = bool(indexer.index(writer, [root]).new)
        if encoder.needs_torch(writer.generation):
            encoder.make_form(writer.generation)
        return is_new or outdated


def _examine(dataset: Dataset, name: str, folder: Path, recipe: Recipe) -> Contender:
    method = runs.load(name if name in ablation.UNTRAINED else str(folder / name), dataset, recipe)
    data = FeatureSet.of(method, dataset, "test")
    log = folder / name / LOG
    return Contender(
        label=ablation.LABELS[name],
        method=method,
        data=data,
        examination=runs.examine(method, data),
        history=list(read_lines(log)) if log.exists() else [],
    )


def _confidence(library: Path, sentences: Sequence[str]) -> Confidence:
    """Search the library for sentences about its videos and about something else, and count the confident matches."""
    with Searcher.open(library) as searcher:

        def count(texts: Sequence[str]) -> int:
            return sum(
                is_confident(hits) is True for hits in searcher.search_all([Part(text) for text in texts], top=1)
            )

        return Confidence(
            present=count(sentences), num_present=len(sentences), absent=count(ELSEWHERE), num_absent=len(ELSEWHERE)
        )


def _some_queries(data: FeatureSet) -> list[Query]:
    """Return the first query of some videos, spread evenly over the split. The choice ignores the results."""
    first = {query.video_id: query for query in reversed(data.queries)}
    step = max(1, len(data) // NUM_SEARCHES)
    return [first[video_id] for video_id in data.video_ids[::step][:NUM_SEARCHES]]


@dataclass
class _Step:
    did_something: bool = True


class _Steps:
    """The steps of a demo, announced to an audience. `seconds` has their durations, None for a skipped step."""

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self.seconds: dict[str, float | None] = {}

    @contextmanager
    def step(self, name: str, message: str) -> Iterator[_Step]:
        self.audience.say(message)
        start, step = time.perf_counter(), _Step()
        yield step
        self.seconds[name] = time.perf_counter() - start if step.did_something else None
        if not step.did_something:
            self.audience.say("skipped: an earlier demo finished this step")
