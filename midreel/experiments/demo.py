"""The demo: a dataset made of nothing, methods trained on it, their figures, and a search in real files."""

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
from midreel.experiments.report import REPORT, Contender, Hit, Search, table, tells, write_report
from midreel.features.backbones.base import Backbone, load_backbone
from midreel.library import indexer
from midreel.library.layout import Layout
from midreel.library.reindex import reindex
from midreel.library.session import Wanted, Writer
from midreel.methods.base import Method, evaluating, join_texts
from midreel.methods.loading import UNTRAINED
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import LOG, is_finished, read_lines
from midreel.types import Moment, Query

BACKBONE = "tiny-clip"
TRAINED = ("base", "msc")  # rows of the ablation
NUM_SEARCHES, NUM_HITS = 3, 3
DATASET, LIBRARY = "dataset", "library"  # folders of a demo


@dataclass(frozen=True, kw_only=True)
class Size:
    """Enough, by measurement, for the methods to pass zero-shot search, and little enough for a short break."""

    num_train: int = 1000
    num_val: int = 150
    num_test: int = 200
    rate: float = 1.0  # frames per second


@dataclass(frozen=True, kw_only=True)
class Demo:
    report: Path
    contenders: Sequence[Contender]
    searches: Sequence[Search]
    seconds: Mapping[str, float | None]  # by step; None for what an earlier demo did
    library: Path  # to be searched

    def to_dict(self) -> dict[str, Any]:
        return {
            "report": str(self.report),
            "library": str(self.library),
            "seconds": dict(self.seconds),
            "rows": {contender.label: contender.examination.figures() for contender in self.contenders},
            "searches": [search.to_dict() for search in self.searches],
        }

    @property
    def text(self) -> str:
        found = "\n\n".join(search.text for search in self.searches)
        query = shlex.quote(next((search.query.text for search in self.searches), "a ball"))
        return (
            f"{table(self.contenders, 'text')}\n{found}\n\nThe whole story, with pictures: {self.report}\n"
            f"Search the videos yourself: {_command()} search {shlex.quote(str(self.library))} {query}\n"
            f"or in a browser: {_command()} serve {shlex.quote(str(self.library))}"
        )


def _command() -> str:
    """What to type: `midreel`, or the path of it where an environment that is not active holds it."""
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
    """Everything into `folder`; what an earlier demo finished there is not done again, and if that was all, nothing is
    written. `changes` are to the recipe.
    """
    size, audience = size or Size(), audience or Audience()
    root, seconds = folder / DATASET, _Stopwatch()
    with seconds.of("making the videos") as step:
        audience.say(f"making {size.num_test} videos to search, and {size.num_train + size.num_val:,} to learn from")
        step.did_something = _make_dataset(root, seed, size, audience)
        if not step.did_something:
            audience.say("they were made before")
    with seconds.of("extracting features") as step:
        audience.say(f"extracting features with {BACKBONE}")
        dataset, backbone, step.did_something = _extract(root, size, audience)
        if not step.did_something:
            audience.say("they were extracted before")
    recipe_of = {row: recipes.build("msc", "playhouse", dict(changes or {}) | ablation.ROWS[row]) for row in TRAINED}
    for row, recipe in recipe_of.items():
        with seconds.of(f"training {row}") as step:
            step.did_something = not is_finished(folder / row, recipe)
            label = ablation.LABELS[row]
            audience.say(f"training {label}" if step.did_something else f"{label} was trained before")
            monitor = audience.training(row, recipe) if step.did_something else None
            runs.train_or_resume(dataset, recipe, folder / row, monitor=monitor)
    with seconds.of("indexing") as step:
        audience.say("indexing the videos, for midreel search")
        step.did_something = _index(root, folder, backbone)
        if not step.did_something:
            audience.say("they were indexed before")
    worked = any(taken is not None for taken in seconds.taken.values())
    with seconds.of("examining and searching"):
        audience.say("examining what was learnt")
        contenders = [_examine(dataset, name, folder, recipe_of["msc"]) for name in (*UNTRAINED, *TRAINED)]
        searches = [
            Search(query=query, hits=search(query.text, contenders[-1].method, contenders[-1].data, backbone))
            for query in _some_queries(contenders[-1].data)
        ]
    report = folder / REPORT
    if worked or not tells(report, contenders, searches):
        write_report(folder, dataset, contenders, searches, seconds.taken)
    else:
        audience.say(f"nothing was left to do; {report} is as it was")
    return Demo(
        report=report,
        contenders=contenders,
        searches=searches,
        seconds=seconds.taken,
        library=folder / LIBRARY,
    )


def search(text: str, method: Method, data: FeatureSet, backbone: Backbone, top: int = NUM_HITS) -> list[Hit]:
    """The videos that a sentence fits best, and where in each."""
    with evaluating(method):
        query = method.encode_queries(join_texts(backbone.encode_texts([text])))
        videos = method.encode_videos(next(data.video_batches(len(data))))
        scores = method.score(query, videos)[0]
        best = scores.topk(min(top, len(data))).indices
        repeated = {branch: vector.expand(len(best), -1) for branch, vector in query.items()}
        moments = predict_moment(repeated, videos, best, data.durations, predictors(method)["found"])
    return [
        Hit(video_id=data.video_ids[video], score=scores[video].item(), moment=Moment(start=start, end=end))
        for video, (start, end) in zip(best.tolist(), moments.tolist(), strict=True)
    ]


def _make_dataset(root: Path, seed: int, size: Size, audience: Audience) -> bool:
    """Files for what is searched; what is only learnt from is drawn when its features are extracted. Says whether
    something was missing.
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
    """When each file in a folder was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*")}


def _extract(root: Path, size: Size, audience: Audience) -> tuple[Dataset, Backbone, bool]:
    """The features, what made them, and whether some were missing."""
    backbone, source = load_backbone(BACKBONE), Source.find(root)
    progress = audience.features(len(source.video_ids))
    videos, texts = extract(source, backbone, rate=size.rate, progress=progress)
    failed = videos.failed | texts.failed
    if failed:
        name, reason = next(iter(failed.items()))
        raise BadFeatures(f"{len(failed)} features of {root} failed, such as {name}: {reason}; delete it, begin again")
    return Dataset.open(root), backbone, bool(videos.done or texts.done)


def _index(root: Path, folder: Path, backbone: Backbone) -> bool:
    """The files, as somebody would who has nothing but a folder of videos and a trained model. Says whether there was
    something to do.
    """
    model, place = str(folder / "msc"), folder / LIBRARY
    wanted = Wanted() if Layout(place).exists() else Wanted(model=model)
    with Writer.open(place, wanted, backbone=backbone) as writer:
        outdated = not writer.serves(model)
        if outdated:
            reindex(writer, model)
        return bool(indexer.index(writer, [root]).new) or outdated


def _examine(dataset: Dataset, name: str, folder: Path, recipe: Recipe) -> Contender:
    method = runs.load(name if name in UNTRAINED else str(folder / name), dataset, recipe)
    data = FeatureSet.of(method, dataset, "test")
    log = folder / name / LOG
    return Contender(
        label=ablation.LABELS[name],
        method=method,
        data=data,
        examination=runs.examine(method, data),
        history=list(read_lines(log)) if log.exists() else [],
    )


def _some_queries(data: FeatureSet) -> list[Query]:
    """The first query of some videos, spread over the split: chosen before anybody knows what they find."""
    first = {query.video_id: query for query in reversed(data.queries)}
    step = max(1, len(data) // NUM_SEARCHES)
    return [first[video_id] for video_id in data.video_ids[::step][:NUM_SEARCHES]]


@dataclass
class _Step:
    did_something: bool = True


class _Stopwatch:
    """How long each step took; None for one that found nothing to do."""

    def __init__(self) -> None:
        self.taken: dict[str, float | None] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[_Step]:
        start, step = time.perf_counter(), _Step()
        yield step
        self.taken[name] = time.perf_counter() - start if step.did_something else None
