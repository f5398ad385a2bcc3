"""Train a method on a dataset, and evaluate it."""

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.errors import BadSetting, MissingFeatures
from midreel.evaluation import collapse, metrics, tables
from midreel.evaluation.diagnosis import FeatureStatistics
from midreel.evaluation.evaluate import Report, evaluate
from midreel.evaluation.metrics import RECALLS_AT
from midreel.experiments import paper_results
from midreel.experiments.edges import calibrate_model
from midreel.features.kinds import KINDS, find_kind
from midreel.io.files import write_durably, write_errors
from midreel.methods import METHODS
from midreel.methods.base import Method
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.loading import load_model
from midreel.methods.model_files import STATISTICS
from midreel.nn.residual import Share
from midreel.ops.devices import on_device
from midreel.ops.processes import Processes, by_first
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet, hold_out
from midreel.training.fit import RECIPE, Monitor, expect_same, fit, is_finished
from midreel.types import Split

# 100 videos as in the releases: the frame vectors of GMMFormer depend on the longest video of a batch.
VIDEOS_AT_ONCE, QUERIES_AT_ONCE = 100, 512

# The shares of a residual to choose from. 0 is zero-shot, which wins only if all others are worse.
SHARES = (0.25, 0.5, 0.75, 1.0, 0.0)

# The columns of tables for people, as patterns of `fnmatch`. CSV has all columns.
COLUMNS = (
    *("R@1", "R@5", "R@10", "R@100", "SumR"),
    *("multi R@1", "multi R@5", "multi R@10", "multi R@100", "multi SumR"),  # with dense labels
    *("found R1@0.5", "found R1@0.7", "found mIoU"),
    *("found mAP@0.3", "found mAP@0.5", "found mAP@0.7"),  # if queries have several moments
    *("best * R1@0.5", "best * R1@0.7", "best * mIoU"),  # the first branch that matches
    *("text Diff. Norm", "video Diff. Norm", "Spearman"),
)
DIGITS = {"text Diff. Norm": 3, "video Diff. Norm": 3}
FORMATS = ("text", "markdown", "latex", "csv")


def new_method(recipe: Recipe) -> Method:
    """Return the method of a recipe, with weights drawn from its seed."""
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
    report_to: str | None = None,
    stream: bool | None = None,
    processes: Processes | None = None,
) -> Path:
    """Train on the split `train`, and return the folder of the best model.

    The best epoch is chosen on `choosing_split` or, with `recipe.selection = "holdout"`, on a part of `train`. If the
    moments of these videos are annotated, the precision of starts and ends is measured on them too (`edges.json`). A
    finished run stays unchanged.

    Args:
        dataset: The dataset, with features.
        recipe: The settings.
        folder: The run folder.
        resume: Continue the run in `folder`.
        device: The torch device.
        monitor: Receives progress.
        asked: The name of the recipe in error messages.
        report_to: One of `training.reporters.REPORTERS`. Default: tensorboard if it is installed.
        stream: Read features from the store when a batch needs them. Default: if they do not fit in memory.
        processes: The processes that train together. Only the first one writes. Default: this process alone.

    Raises:
        BadSetting: The recipe does not fit the features or the splits, or the device cannot be used.
        MissingFeatures: The method has a teacher, and the features do not contain one.
        BadRun: See `training.fit.fit`, which also raises BadModel, TrainingDiverged and Unwritable.
    """
    writes = processes is None or processes.is_first

    def finished() -> bool:
        if not resume or not is_finished(folder, recipe):
            return False
        expect_same(folder, recipe, dataset.card())
        return True

    if by_first(processes, finished):
        return folder / "best"
    _expect_widths(recipe, dataset, asked)
    method = on_device(new_method(recipe), device)
    training, choosing = _training_and_choosing(dataset, recipe)
    trained_on = FeatureSet.prepare(method, training, dataset.store, stream=stream)
    chosen_on = FeatureSet.prepare(method, choosing, dataset.store, stream=stream) if writes else trained_on
    for features in (trained_on, chosen_on):
        _expect_lengths(recipe, features)
    best = fit(
        method,
        trained_on,
        at_best_share(validation(chosen_on, device)),
        recipe,
        folder,
        resume=resume,
        device=device,
        data_card=dataset.card(),
        monitor=monitor,
        report_to=report_to,
        processes=processes,
    )
    if not writes:
        return best
    calibrate_model(best, chosen_on, dataset.store.fingerprint.frame_rate, device=device)
    save_statistics(best, dataset, training.video_ids)
    return best


def save_statistics(model: Path, dataset: Dataset, video_ids: Sequence[str]) -> None:
    """Save with a model the statistics of the features that it was trained on. Keep an existing file.

    Args:
        model: The folder of the model.
        dataset: The dataset, with features.
        video_ids: The videos of the training.
    """
    if (model / STATISTICS).exists():
        return
    found = FeatureStatistics.of(np.asarray(dataset.store.video(video_id).frames) for video_id in video_ids)
    if found is not None:
        with write_errors(model):
            write_durably(model / STATISTICS, found.to_json())


def _training_and_choosing(dataset: Dataset, recipe: Recipe) -> tuple[Split, Split]:
    if recipe.selection == "holdout":
        return hold_out(dataset.split("train"), recipe.holdout, recipe.seed)
    return dataset.split("train"), dataset.split(choosing_split(dataset))


def recipe_for(
    dataset: Dataset,
    method: str,
    name: str,
    changes: Mapping[str, Any] | None = None,
    features: str | None = None,
) -> Recipe:
    """Return the recipe of a method, with the settings that follow from the features of a dataset.

    A method with a teacher takes the student's settings from features that are joined with CLIP's. A method that takes
    sentences or words takes words if the features have no joint space, because their sentence vectors mean little.

    Args:
        dataset: The dataset, with features.
        method: The name of the method.
        name: The name of one of its recipes.
        changes: New values for settings. They win over those that follow from the features.
        features: The kind of features. Default: the kind that has these widths.

    Raises:
        UnknownName: The method, recipe or setting does not exist.
        BadSetting: A value is out of range, or contradicts the features.
    """
    fingerprint = dataset.store.fingerprint
    kind = features if features in KINDS else find_kind(name, fingerprint.width, fingerprint.word_width)
    settings = {field.name for field in fields(METHODS[method].Config)}
    if kind is None and "teacher_width" in settings and fingerprint.joint:
        kind = find_kind(name, fingerprint.width - fingerprint.joint_width, fingerprint.word_width)
    implied = {"query": "words"} if "query" in settings and not fingerprint.joint else {}
    return recipes.build(method, name, implied | dict(changes or {}), kind)


def choosing_split(dataset: Dataset) -> str:
    """Return the split on which the epoch is chosen: val, or test for a benchmark without val.

    Raises:
        BadSetting: The dataset has no such split.
    """
    wanted = ("val", "test") if _in_paper(dataset) else ("val",)
    found = [name for name in wanted if name in dataset.splits]
    if not found:
        raise BadSetting(
            f"{dataset.folder} has the splits {', '.join(dataset.splits)}, expected val to choose the epoch on. "
            f"Add it, or hold out a part of train: --set selection=holdout"
        )
    return found[0]


def reporting_split(dataset: Dataset) -> str:
    """Return the split to evaluate on: test, or val if there is no test.

    A benchmark of the paper is evaluated on the split that the paper reports, which is also its `choosing_split`.
    """
    if _in_paper(dataset):
        return choosing_split(dataset)
    return "test" if "test" in dataset.splits else "val"


def _in_paper(dataset: Dataset) -> bool:
    return dataset.name in paper_results.PRINTED


def train_or_resume(
    dataset: Dataset, recipe: Recipe, folder: Path, *, device: str = "cpu", monitor: Monitor | None = None
) -> Path:
    """Start a run, or resume the one in `folder`. See `train` for the errors.

    Args:
        dataset: The dataset, with features.
        recipe: The settings.
        folder: The run folder.
        device: The torch device.
        monitor: Receives progress.
    """
    resume = (folder / RECIPE).exists()
    return train(dataset, recipe, folder, resume=resume, device=device, monitor=monitor)


def validation(data: FeatureSet, device: str = "cpu") -> Callable[[Method], Mapping[str, float]]:
    """Return a function that returns the recalls of a method on a split."""

    def validate(method: Method) -> Mapping[str, float]:
        return evaluate(method, *_batches(data, device), data.video_of_query, branches=False).recalls

    return validate


def at_best_share(validate: Callable[[Method], Mapping[str, float]]) -> Callable[[Method], Mapping[str, float]]:
    """Return a function that first sets the share of a method's residual to the one with the highest SumR.

    Methods without a `nn.residual.Share` are validated as they are. Of equal shares the first in `SHARES` wins.

    Args:
        validate: Returns the metrics of a method.
    """

    def validate_shares(method: Method) -> Mapping[str, float]:
        parts = [module for module in method.modules() if isinstance(module, Share)]
        if not parts:
            return validate(method)

        def use(share: float) -> None:
            for part in parts:
                part.value.fill_(share)

        found = {}
        for share in SHARES:
            use(share)
            found[share] = validate(method)
        best = max(found, key=lambda share: found[share]["SumR"])
        use(best)
        return found[best]

    return validate_shares


def recalls_for_choosing(
    method: Method, dataset: Dataset, recipe: Recipe, device: str = "cpu"
) -> tuple[Mapping[str, float], int]:
    """Return the recalls of a method on the videos that a recipe chooses the epoch on, and their number.

    Args:
        method: The method. It is moved to `device`.
        dataset: The dataset, with features.
        recipe: The recipe.
        device: The torch device.
    """
    _, choosing = _training_and_choosing(dataset, recipe)
    data = FeatureSet.prepare(method, choosing, dataset.store)
    return validation(data, device)(on_device(method, device)), len(data)


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The retrieval results of a method, and the collapse of its text and video spaces."""

    report: Report
    collapse: collapse.Collapse

    def figures(self) -> dict[str, float]:
        """Return all results as the row of a table."""
        return self.report.figures() | self.collapse.figures()


def examine(method: Method, data: FeatureSet, *, device: str = "cpu", keep_scores: bool = False) -> Examination:
    """Evaluate a method on a split, and measure its collapse.

    Args:
        method: The method. It is moved to `device`.
        data: The split, prepared for this method.
        device: The torch device.
        keep_scores: Keep the matrix of scores in the report, for `write_trec`.
    """
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


def multi_recalls(examination: Examination, is_right: Bool[np.ndarray, "Q B"]) -> dict[str, float]:
    """Return the recalls if several videos may be right for a query: 'multi R@1', …, 'multi SumR'.

    Args:
        examination: The result of `examine`, with scores.
        is_right: Whether a video is right for a query.

    Raises:
        BadSetting: The examination has no scores.
    """
    found = metrics.recalls(metrics.multi_ranks(_scores(examination), torch.from_numpy(is_right)))
    return {f"multi {name}": value for name, value in found.items()}


def _scores(examination: Examination) -> Float[Tensor, "Q B"]:
    if examination.report.scores is None:
        raise BadSetting("scores is None, expected the scores of all videos. Use examine(..., keep_scores=True).")
    return examination.report.scores


def remarks(report: Report) -> list[str]:
    """Return remarks on results that say nothing: recalls at as many videos as there are."""
    certain = [f"R@{k}" for k in RECALLS_AT if k >= report.num_videos]
    if not certain:
        return []
    few = "1 video" if report.num_videos == 1 else f"{report.num_videos} videos"
    return [f"with {few}, {', '.join(certain)} {'are' if certain[1:] else 'is'} always 100"]


def remarks_on_method(method: Method) -> list[str]:
    """Return a remark on a method that is a reconstruction from the text of its paper."""
    if not method.reconstruction:
        return []
    return [f"{method.paper.method} is a reconstruction: no code was released, and the paper's figures do not apply"]


def remarks_on_choosing(dataset: Dataset, recipe: Recipe) -> list[str]:
    """Return remarks on the split on which the epoch of a run was chosen."""
    remarks = []
    if recipe.selection != "holdout" and choosing_split(dataset) != "val":
        remarks.append(
            "the split val is missing, so the epoch was chosen on test, as in the paper's code. "
            "To leave test untouched, use --set selection=holdout"
        )
    _, choosing = _training_and_choosing(dataset, recipe)
    if len({query.video_id for query in choosing.queries}) == 1:
        remarks.append(
            "the epoch was chosen on 1 video, where every recall is 100, so the first epoch was kept. "
            "Add videos to val, or hold out more of train: --set selection=holdout --set holdout=0.3"
        )
    return remarks


def remarks_on_reporting(dataset: Dataset) -> list[str]:
    """Return remarks on the default split of an evaluation."""
    split, caveat = reporting_split(dataset), "Results are optimistic if the epoch was chosen on it"
    if _in_paper(dataset):
        return [f"evaluated on {split}, as in the paper. {caveat}"]
    return [] if split == "test" else [f"the split test is missing, so val was used. {caveat}"]


def load(model: str, dataset: Dataset, like: Recipe | None = None) -> Method:
    """Return a trained or untrained method for the features of a dataset.

    Args:
        model: A run folder, a model folder, or the name of an untrained method such as "zero-shot".
        dataset: The dataset to use the method on.
        like: A recipe. An untrained method gets its numbers of frames and clips, so that moments are comparable.

    Raises:
        BadModel: `model` is not a model, or is damaged.
        FingerprintMismatch: The model was trained on other features.
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
    """Raise BadSetting unless the features have the widths of the recipe, MissingFeatures without a joint space."""
    fingerprint, config = dataset.store.fingerprint, recipe.config
    if fingerprint.word_width is None:
        raise MissingFeatures(
            f"{dataset.store.path} ({fingerprint.source or fingerprint.backbone}) has no features of sentences, but "
            f"{config.method} learns from them. Join it with the store of a CLIP: midreel join {dataset.store.path} "
            f"CLIP.h5 --out JOINED.h5"
        )
    reads_sentences = getattr(config, "query", "words") == "sentence"
    text_width = (fingerprint.sentence_width or fingerprint.width) if reads_sentences else fingerprint.word_width
    found: dict[str, Any] = {"video_width": fingerprint.width, "text_width": text_width}
    for name in ("teacher_width", "joint_width"):
        if not hasattr(config, name):
            continue
        if not fingerprint.joint:
            raise MissingFeatures(
                f"{dataset.store.path} ({fingerprint.source or fingerprint.backbone}) has no joint space of frames and "
                f"sentences, but {config.method} learns from one. Join the features with CLIP's: midreel join "
                f"{dataset.store.path} CLIP.h5 --sentences CLIP.h5 --out JOINED.h5"
            )
        found[name] = fingerprint.joint_width
    wrong = {name: width for name, width in found.items() if not _fits(config, name, found)}
    if wrong:
        expected = ", ".join(f"{name} {getattr(config, name)}" for name in wrong)
        there = ", ".join(f"{name} {width}" for name, width in wrong.items())
        options = " ".join(f"--set {name}={width}" for name, width in wrong.items())
        student = fingerprint.width - found.get("teacher_width", fingerprint.width)
        if student > 0 and "video_width" in wrong:
            options += f", with video_width={student} if the student must not read the teacher's columns"
        others = {name: recipes.build(config.method, name).config for name in recipes.of_method(config.method)}
        fitting = [name for name, other in others.items() if all(_fits(other, each, found) for each in found)]
        raise BadSetting(
            f"{dataset.store.path} has {there} ({fingerprint.source or fingerprint.backbone}), but {asked} expects "
            f"{expected}. Add {options}" + (f", or use a recipe that fits: {', '.join(fitting)}" if fitting else "")
        )


def _fits(config: Any, name: str, found: Mapping[str, int | None]) -> bool:
    """Return whether the features have the width `name` of the settings. Teacher columns may follow the student's."""
    width = found[name]
    expected = getattr(config, name, width)
    teacher = found.get("teacher_width") if name == "video_width" else None
    return width == expected or (teacher is not None and width is not None and width - teacher == expected)


def _expect_lengths(recipe: Recipe, features: FeatureSet) -> None:
    """Raise BadSetting unless all queries have at most `max_words` words."""
    longest = max(zip(features.texts, features.queries, strict=True), key=lambda pair: len(pair[0].words))
    most = getattr(recipe.config, "max_words", math.inf)
    if len(longest[0].words) > most:
        raise BadSetting(
            f"query {longest[1].id!r} has {len(longest[0].words)} words with [SOS] and [EOS], expected at most "
            f"{most}. Add --set max_words={len(longest[0].words)}"
        )


def table(rows: tables.Rows, form: str = "markdown") -> str:
    """Return results as a table in one of `FORMATS`.

    CSV has all columns. The other formats have those of `COLUMNS` that the rows have.
    """
    if form == "csv":
        return tables.to_csv(rows)
    known = list(dict.fromkeys(name for figures in rows.values() for name in figures))
    shown = [found[0] for pattern in COLUMNS if (found := fnmatch.filter(known, pattern))]
    return tables.FORMATS[form](rows, shown, digits=DIGITS)


def write_trec(path: Path, examination: Examination, data: FeatureSet) -> None:
    """Write a TREC run file, and its relevance file with the suffix ".qrels".

    White space separates fields in these files, so white space in ids is percent-encoded: %20.

    Args:
        path: The run file to write. Missing folders are created.
        examination: The result of `examine`, with scores.
        data: The queries and videos that were examined.

    Raises:
        BadSetting: The examination has no scores.
    """
    scores = _scores(examination)
    query_ids = [_without_spaces(query.id) for query in data.queries]
    video_ids = [_without_spaces(video_id) for video_id in data.video_ids]
    path.parent.mkdir(parents=True, exist_ok=True)
    tables.write_trec_run(path, scores, query_ids, video_ids)
    tables.write_trec_qrels(path.with_name(f"{path.name}.qrels"), data.video_of_query, query_ids, video_ids)


def _without_spaces(name: str) -> str:
    return "".join(quote(letter) if letter.isspace() or letter == "%" else letter for letter in name)


def _batches(data: FeatureSet, device: str) -> tuple[Iterator[VideoBatch], Iterator[QueryBatch]]:
    return (
        (batch.to(device) for batch in data.video_batches(VIDEOS_AT_ONCE)),
        (batch.to(device) for batch in data.query_batches(QUERIES_AT_ONCE)),
    )
