"""Train a method on a library, and examine what it has learnt."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import torch

from midreel.analysis import collapse
from midreel.errors import BadSetting
from midreel.evaluation import tables
from midreel.evaluation.evaluate import Report, evaluate
from midreel.experiments.library import Library
from midreel.methods import METHODS
from midreel.methods.base import Method
from midreel.training.data import FeatureSet, hold_out
from midreel.training.fit import RECIPE, Monitor, fit
from midreel.training.models import load_model
from midreel.training.recipe import Recipe
from midreel.types import QueryBatch, VideoBatch

VIDEOS_AT_ONCE, QUERIES_AT_ONCE = 64, 512

# What people compare, of all that is measured.
COLUMNS = (
    *("R@1", "R@5", "R@10", "R@100", "SumR"),
    *("found R1@0.5", "found R1@0.7", "found mIoU"),
    *("best clip R1@0.5", "best clip R1@0.7", "best clip mIoU"),
    *("text Diff. Norm", "video Diff. Norm", "Spearman"),
)
DIGITS = {"text Diff. Norm": 3, "video Diff. Norm": 3}
FORMATS = ("markdown", "latex", "csv")


def new_method(recipe: Recipe) -> Method:
    """The recipe's method as its seed draws it."""
    torch.manual_seed(recipe.seed)
    method: Method = METHODS[recipe.config.method](recipe.config)
    return method


def train(
    library: Library,
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    monitor: Monitor | None = None,
) -> Path:
    """Trains on the split `train`, chooses the epoch where the recipe says; returns the folder of the chosen model."""
    _expect_widths(recipe, library)
    method = _on_device(new_method(recipe), device)
    if recipe.selection == "holdout":
        training, choosing = hold_out(library.split("train"), recipe.holdout, recipe.seed)
    else:
        training, choosing = library.split("train"), library.split("val")
    trained_on, chosen_on = (FeatureSet.prepare(method, split, library.store) for split in (training, choosing))
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
        data_card=library.card(),
        monitor=monitor,
    )


def train_or_resume(
    library: Library, recipe: Recipe, folder: Path, *, device: str = "cpu", monitor: Monitor | None = None
) -> Path:
    """Begins the run, or goes on with the one that is there; one that has finished is done at once."""
    resume = (folder / RECIPE).exists()
    return train(library, recipe, folder, resume=resume, device=device, monitor=monitor)


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
    _on_device(method, device)
    report = evaluate(
        method,
        *_batches(data, device),
        data.video_of_query,
        moments=[query.moments for query in data.queries],
        durations=data.durations,
        keep_scores=keep_scores,
    )
    return Examination(report=report, collapse=collapse.measure(method, *_batches(data, device), data.video_of_query))


def load(model: str, library: Library, like: Recipe | None = None) -> Method:
    """The method in a run's folder or a model's own, which must have been trained on such features; or untrained.

    Zero-shot search has as many frames and clips as the method of the recipe `like`, so that moments compare.
    """
    sizes = {} if like is None else {"num_frames": like.config.num_frames, "num_clips": like.config.num_clips}
    return load_model(
        model,
        library.store.fingerprint,
        where=library.store.path,
        again=f"move the store away and run: midreel extract {library.folder}",
        sizes=sizes,
    )


def _expect_widths(recipe: Recipe, library: Library) -> None:
    """Before a run is begun in which nothing would fit."""
    fingerprint = library.store.fingerprint
    found = {"video_width": fingerprint.width, "text_width": fingerprint.word_width}
    wrong = {name: width for name, width in found.items() if getattr(recipe.config, name, width) != width}
    if wrong:
        raise BadSetting(
            f"the recipe has {', '.join(f'{name} {getattr(recipe.config, name)}' for name in wrong)}, but "
            f"{library.store.path} holds features of {', '.join(f'{name} {width}' for name, width in wrong.items())}; "
            f"add {' '.join(f'--set {name}={width}' for name, width in wrong.items())}, or choose another recipe"
        )


def _expect_lengths(recipe: Recipe, features: FeatureSet) -> None:
    longest = max(zip(features.texts, features.queries, strict=True), key=lambda pair: len(pair[0].words))
    most = getattr(recipe.config, "max_words", math.inf)
    if len(longest[0].words) > most:
        raise BadSetting(
            f"the query {longest[1].id!r} has {len(longest[0].words)} words with its first and last, but max_words is "
            f"{most}; add --set max_words={len(longest[0].words)} or more (a CLIP has at most 77)"
        )


def _on_device(method: Method, device: str) -> Method:
    try:
        return method.to(device)
    except (RuntimeError, AssertionError) as error:
        raise BadSetting(f"the device {device!r} cannot be used ({error}); choose cpu, or one that is here") from error


def table(rows: tables.Rows, form: str = "markdown") -> str:
    """For people what they compare, where there are such figures: a library need not say any moments. CSV has all."""
    if form == "csv":
        return tables.to_csv(rows)
    shown = [name for name in COLUMNS if any(name in figures for figures in rows.values())]
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
