"""Train a method on a dataset, and examine what it has learnt."""

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import torch

from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.errors import BadSetting
from midreel.evaluation import collapse, tables
from midreel.evaluation.evaluate import Report, evaluate
from midreel.evaluation.metrics import RECALLS_AT
from midreel.experiments import paper_results
from midreel.methods import METHODS
from midreel.methods.base import Method
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.loading import load_model
from midreel.ops.devices import on_device
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet, hold_out
from midreel.training.fit import RECIPE, Monitor, expect_same, fit, is_finished
from midreel.types import Split

VIDEOS_AT_ONCE, QUERIES_AT_ONCE = 64, 512

# What people compare, of all that is measured.
COLUMNS = (
    *("R@1", "R@5", "R@10", "R@100", "SumR"),
    *("found R1@0.5", "found R1@0.7", "found mIoU"),
    *("best * R1@0.5", "best * R1@0.7", "best * mIoU"),  # of the first branch that has them
    *("text Diff. Norm", "video Diff. Norm", "Spearman"),
)
DIGITS = {"text Diff. Norm": 3, "video Diff. Norm": 3}
FORMATS = ("text", "markdown", "latex", "csv")


def new_method(recipe: Recipe) -> Method:
    """The recipe's method as its seed draws it."""
    torch.manual_seed(recipe.seed)
    method: Method = METHODS[recipe.config.method](recipe.config)
    return method


def train(
    dataset: Dataset,
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    monitor: Monitor | None = None,
    asked: str = "the recipe",
) -> Path:
    """Trains on the split `train`, chooses the epoch on `choosing_split` or, if the recipe says so, on a part of train;
    returns the folder of the chosen model.

    To resume a run that has finished does nothing. `asked` is how the recipe was asked for, to be named if the features
    do not fit it.
    """
    if resume and is_finished(folder, recipe):
        expect_same(folder, recipe, dataset.card())
        return folder / "best"
    _expect_widths(recipe, dataset, asked)
    method = on_device(new_method(recipe), device)
    trained_on, chosen_on = (
        FeatureSet.prepare(method, split, dataset.store) for split in _training_and_choosing(dataset, recipe)
    )
    for features in (trained_on, chosen_on):
        _expect_lengths(recipe, features)
    return fit(
        method,
        trained_on,
        _validation(chosen_on, device),
        recipe,
        folder,
        resume=resume,
        device=device,
        data_card=dataset.card(),
        monitor=monitor,
    )


def _training_and_choosing(dataset: Dataset, recipe: Recipe) -> tuple[Split, Split]:
    if recipe.selection == "holdout":
        return hold_out(dataset.split("train"), recipe.holdout, recipe.seed)
    return dataset.split("train"), dataset.split(choosing_split(dataset))


def choosing_split(dataset: Dataset) -> str:
    """Where the epoch is chosen: on val; on a benchmark that has none, such as Charades-STA, on test."""
    wanted = ("val", "test") if _in_paper(dataset) else ("val",)
    found = [name for name in wanted if name in dataset.splits]
    if not found:
        raise BadSetting(
            f"{dataset.folder} has the splits {', '.join(dataset.splits)}, expected val, to choose the epoch on; give "
            f"some videos that split, or hold out some of train: --set selection=holdout"
        )
    return found[0]


def reporting_split(dataset: Dataset) -> str:
    """Where figures are reported: on test, or val where there is no test; on a benchmark on the one split that the
    paper knows beside train, which is also where the epoch is chosen.
    """
    if _in_paper(dataset):
        return choosing_split(dataset)
    return "test" if "test" in dataset.splits else "val"


def _in_paper(dataset: Dataset) -> bool:
    return dataset.name in paper_results.PRINTED


def train_or_resume(
    dataset: Dataset, recipe: Recipe, folder: Path, *, device: str = "cpu", monitor: Monitor | None = None
) -> Path:
    """Begins the run, or goes on with the one that is there."""
    resume = (folder / RECIPE).exists()
    return train(dataset, recipe, folder, resume=resume, device=device, monitor=monitor)


def _validation(data: FeatureSet, device: str) -> Callable[[Method], Mapping[str, float]]:
    def validate(method: Method) -> Mapping[str, float]:
        return evaluate(method, *_batches(data, device), data.video_of_query, branches=False).recalls

    return validate


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What a method finds, and how far its spaces have collapsed."""

    report: Report
    collapse: collapse.Collapse

    def figures(self) -> dict[str, float]:
        return self.report.figures() | self.collapse.figures()


def examine(method: Method, data: FeatureSet, *, device: str = "cpu", keep_scores: bool = False) -> Examination:
    on_device(method, device)
    report = evaluate(
        method,
        *_batches(data, device),
        data.video_of_query,
        moments=[query.moments for query in data.queries],
        durations=data.durations,
        keep_scores=keep_scores,
    )
    return Examination(report=report, collapse=collapse.measure(method, *_batches(data, device), data.video_of_query))


def remarks(report: Report) -> list[str]:
    """What the figures cannot tell."""
    certain = [f"R@{k}" for k in RECALLS_AT if k >= report.num_videos]
    if not certain:
        return []
    few = "1 video" if report.num_videos == 1 else f"{report.num_videos} videos"
    return [f"with {few}, {', '.join(certain)} {'are' if certain[1:] else 'is'} 100 whatever the model does"]


def remarks_on_choosing(dataset: Dataset, recipe: Recipe) -> list[str]:
    """What there is to say about where the epoch of a run was chosen."""
    remarks = []
    if recipe.selection != "holdout" and choosing_split(dataset) != "val":
        remarks.append(
            "there is no split val, so the epoch was chosen on test, as the paper's code chooses it on what it "
            "reports; --set selection=holdout leaves test alone"
        )
    _, choosing = _training_and_choosing(dataset, recipe)
    if len({query.video_id for query in choosing.queries}) == 1:
        remarks.append(
            "the epoch was chosen on 1 video, where every recall is 100 whatever the model does, so the first one was "
            "taken; give val more videos, or hold out some of train: --set selection=holdout --set holdout=0.3"
        )
    return remarks


def remarks_on_reporting(dataset: Dataset) -> list[str]:
    """What there is to say about a split that nobody asked for."""
    split, flatters = reporting_split(dataset), "flatters a model whose epoch it chose"
    if _in_paper(dataset):
        return [f"{split} was taken, which the paper reports; it {flatters}"]
    return [] if split == "test" else [f"there is no split test, so val was taken, which {flatters}"]


def load(model: str, dataset: Dataset, like: Recipe | None = None) -> Method:
    """The method in a run's folder or a model's own, which must have been trained on such features; or untrained.

    Zero-shot search has as many frames and clips as the method of the recipe `like`, so that moments compare.
    """
    sizes = {} if like is None else {"num_frames": like.config.num_frames, "num_clips": like.config.num_clips}
    return load_model(
        model,
        dataset.store.fingerprint,
        where=dataset.store.path,
        again=f"move the store away and run: midreel extract {dataset.folder}",
        sizes=sizes,
    )


def _expect_widths(recipe: Recipe, dataset: Dataset, asked: str) -> None:
    """Before a run is begun in which nothing would fit."""
    fingerprint = dataset.store.fingerprint
    found = {"video_width": fingerprint.width, "text_width": fingerprint.word_width}
    wrong = {name: width for name, width in found.items() if getattr(recipe.config, name, width) != width}
    if wrong:
        there = "annotations of your own" if dataset.annotations.layout == "own" else dataset.name
        here = ", ".join(f"{name} {width}" for name, width in wrong.items())
        options = " ".join(f"--set {name}={width}" for name, width in wrong.items())
        method = recipe.config.method
        fitting = [name for name in recipes.of_method(method) if _fits(recipes.build(method, name), found)]
        raise BadSetting(
            f"{asked} is for features of {', '.join(f'{name} {getattr(recipe.config, name)}' for name in wrong)}, but "
            f"{dataset.folder} holds {there} with features of {here} ({fingerprint.source or fingerprint.backbone}, in "
            f"{dataset.store.path}); add {options}, or choose a recipe for such features: "
            f"{', '.join(fitting) or 'none is known'}"
        )


def _fits(recipe: Recipe, widths: Mapping[str, int | None]) -> bool:
    return all(getattr(recipe.config, name) == width for name, width in widths.items())


def _expect_lengths(recipe: Recipe, features: FeatureSet) -> None:
    longest = max(zip(features.texts, features.queries, strict=True), key=lambda pair: len(pair[0].words))
    most = getattr(recipe.config, "max_words", math.inf)
    if len(longest[0].words) > most:
        raise BadSetting(
            f"the query {longest[1].id!r} has {len(longest[0].words)} words with its first and last, but max_words is "
            f"{most}; add --set max_words={len(longest[0].words)} or more (a CLIP has at most 77)"
        )


def table(rows: tables.Rows, form: str = "markdown") -> str:
    """For people what they compare, where there are such figures: a dataset need not say any moments. CSV has all."""
    if form == "csv":
        return tables.to_csv(rows)
    known = list(dict.fromkeys(name for figures in rows.values() for name in figures))
    shown = [found[0] for pattern in COLUMNS if (found := fnmatch.filter(known, pattern))]
    return tables.FORMATS[form](rows, shown, digits=DIGITS)


def write_trec(path: Path, examination: Examination, data: FeatureSet) -> None:
    """A run file, and beside it the relevant video of each query. White space in ids, which ends a field there, is
    written as in web addresses: %20.
    """
    if examination.report.scores is None:
        raise BadSetting("the scores were not kept, expected them for a run file; examine with keep_scores=True")
    query_ids = [_one_word(query.id) for query in data.queries]
    video_ids = [_one_word(video_id) for video_id in data.video_ids]
    path.parent.mkdir(parents=True, exist_ok=True)
    tables.write_trec_run(path, examination.report.scores, query_ids, video_ids)
    tables.write_trec_qrels(path.with_name(f"{path.name}.qrels"), data.video_of_query, query_ids, video_ids)


def _one_word(name: str) -> str:
    return "".join(quote(letter) if letter.isspace() or letter == "%" else letter for letter in name)


def _batches(data: FeatureSet, device: str) -> tuple[Iterator[VideoBatch], Iterator[QueryBatch]]:
    return (
        (batch.to(device) for batch in data.video_batches(VIDEOS_AT_ONCE)),
        (batch.to(device) for batch in data.query_batches(QUERIES_AT_ONCE)),
    )
