"""Diagnose a library, or the run of a training: collapse, near-duplicates, hubs and drift. Annotations are not needed.

A library is measured by its own index, features and background sentences, a run by the features and sentences of a
dataset. Both give the same `Subject`, so the measures are written once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from midreel.datasets.dataset import Dataset
from midreel.errors import BadSetting, MidreelError
from midreel.evaluation import collapse
from midreel.evaluation.collapse import Similarity, SimilaritySums
from midreel.evaluation.diagnosis import (
    Drift,
    FeatureStatistics,
    Hubness,
    drift,
    near_duplicates,
    sketch,
)
from midreel.index.base import Array, Index
from midreel.index.exact import ExactIndex
from midreel.library import confidence
from midreel.library.encoder import encode_windows, is_named
from midreel.library.place import Place
from midreel.library.scan import shown
from midreel.library.searcher import Searcher
from midreel.library.windows import Windowing
from midreel.methods.encoder import MethodEncoder
from midreel.methods.loading import load_model
from midreel.methods.model_files import STATISTICS, model_folder
from midreel.types import TextFeatures

MOST_VIDEOS = 5000  # whose tokens and features are read
TOP = 10  # hits of each sentence that count for hubs
LISTED = 10  # videos and pairs in the text and on the page
_BATCH = 64  # sentences encoded together
DRIFTED = 0.5, 3.0  # the distance, and its multiple of the distance by chance, from which on drift is reported


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured.

    Attributes:
        name: The library or the run.
        model: The model.
        kind: Whether the videos are a "library" or a "dataset".
        videos: The names of the videos to show, by id.
        durations: Their lengths in seconds, by id.
        frames: Returns the features of a video.
        index: The tokens of the videos.
        sentences: Where the sentences come from.
        queries: The vectors of each branch, a row for each sentence.
        backbone_sentences: The vectors of the sentences in the backbone, if it has a joint space.
        video_of_sentence: The number of the video that each sentence describes, or None if it is not known.
        training: Statistics of the features that the model was trained on, or None.
        no_training: Why `training` is None.
    """

    name: str
    model: str
    kind: str
    videos: Mapping[str, str]
    durations: Mapping[str, float]
    frames: Callable[[str], Array]
    index: Index
    sentences: str
    queries: Mapping[str, Array]
    backbone_sentences: Array
    video_of_sentence: Sequence[int] | None
    training: FeatureStatistics | None
    no_training: str


@dataclass(frozen=True, kw_only=True)
class TextCollapse:
    """The collapse of the text side in one branch. `spearman` is the rank correlation with the backbone, -1 to 1."""

    similarity: Similarity
    spearman: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The measures of a library or a run.

    Attributes:
        name: The library or the run.
        model: The model.
        num_videos: The number of videos.
        num_measured: The number of videos that collapse, near-duplicates and drift were measured on.
        unreadable: Videos that could not be measured, with the reason.
        video: The similarity of the tokens of each branch, and of the backbone's frames ("backbone").
        text: The similarity of the sentences of each branch.
        sentences: Where the sentences come from.
        duplicates: Pairs of near-duplicates, with their similarity.
        hubness: How evenly the sentences find the videos. None without videos.
        videos: The names of the videos, in the order of `hubness.counts`.
        drift: The drift from the training videos, or None.
        no_drift: Why `drift` is None.
    """

    name: str
    model: str
    num_videos: int
    num_measured: int
    unreadable: Mapping[str, str]
    video: Mapping[str, Similarity]
    text: Mapping[str, TextCollapse]
    sentences: str
    duplicates: Sequence[tuple[str, str, float]]
    hubness: Hubness | None
    videos: Sequence[str] = field(repr=False)
    drift: Drift | None
    no_drift: str

    def listed(self, numbers: Sequence[int]) -> list[tuple[str, int]]:
        """Return the names and counts of videos."""
        assert self.hubness is not None
        return [(self.videos[number], int(self.hubness.counts[number])) for number in numbers]

    @property
    def has_drifted(self) -> bool:
        """Whether the videos clearly differ from those of the training."""
        return self.drift is not None and self.drift.distance > DRIFTED[0] and self.drift.ratio > DRIFTED[1]

    def to_dict(self) -> dict[str, Any]:
        """Return all measures as JSON values."""
        hubness = self.hubness
        return {
            "name": self.name,
            "model": self.model,
            "videos": self.num_videos,
            "measured": self.num_measured,
            "unreadable": dict(self.unreadable),
            "video": {branch: _similarity(of) for branch, of in self.video.items()},
            "text": {
                branch: _similarity(of.similarity) | {"spearman": of.spearman} for branch, of in self.text.items()
            },
            "sentences": self.sentences,
            "near_duplicates": [{"videos": [a, b], "similarity": cosine} for a, b, cosine in self.duplicates],
            "hubs": None
            if hubness is None
            else {
                "top": hubness.top,
                "sentences": hubness.num_sentences,
                "expected": hubness.expected,
                "skewness": hubness.skewness,
                "never": hubness.never,
                "never_by_chance": hubness.never_by_chance,
                "found_for_everything": [{"video": n, "count": c} for n, c in self.listed(hubness.hubs())],
                "never_found": [name for name, _ in self.listed(hubness.rare())],
            },
            "drift": None if self.drift is None else vars(self.drift) | {"ratio": self.drift.ratio},
            "no_drift": self.no_drift,
        }

    @property
    def text_report(self) -> str:
        """All measures as text of at most 80 columns, but for names."""
        lines = [f"{self.name}: {self.num_videos:,} videos, model {self.model}"]
        if self.num_measured < self.num_videos:
            lines.append(f"collapse, near-duplicates and drift: measured on {self.num_measured:,} videos")
        lines += ["", f"{'video side':<18}{'Intra Sim':>11}{'Total Sim':>11}{'Diff. Norm':>12}"]
        lines += [_row(branch, of) for branch, of in self.video.items()]
        lines += ["", f"{'text side':<18}{'Intra Sim':>11}{'Total Sim':>11}{'Diff. Norm':>12}{'Spearman':>10}"]
        lines += [f"{_row(branch, of.similarity)}{_number(of.spearman):>10}" for branch, of in self.text.items()]
        lines += [f"  ({self.sentences})", ""]
        lines += [f"near-duplicates: {_count(len(self.duplicates), 'pair')}"]
        lines += [f"  {cosine:.3f}  {a}  {b}" for a, b, cosine in self.duplicates[:LISTED]]
        lines += ["", *self._hub_lines(), "", self.drift_line]
        lines += [f"not measured {name}: {reason}" for name, reason in self.unreadable.items()]
        return "\n".join(lines)

    def _hub_lines(self) -> list[str]:
        if self.hubness is None:
            return ["hubs: there are no videos"]
        hubs, rare = self.hubness.hubs(), self.hubness.rare()
        lines = [
            f"hubs: {len(hubs):,} found at least 5 times as often as the mean "
            f"({self.hubness.expected:.1f} of {self.hubness.num_sentences} sentences)"
        ]
        lines += [f"  {count:>5}  {name}" for name, count in self.listed(hubs[:LISTED])]
        lines.append(
            f"never found: {self.hubness.never:.1%} of the videos (by chance {self.hubness.never_by_chance:.1%})"
        )
        return lines + [f"         {name}" for name, _ in self.listed(rare[:LISTED])]

    @property
    def drift_line(self) -> str:
        """The drift in one sentence."""
        if self.drift is None:
            return f"drift: not known. {self.no_drift}"
        state = "the videos differ from the training" if self.has_drifted else "no clear difference from the training"
        return (
            f"drift: {state}: distance {self.drift.distance:.2f} "
            f"(by chance {self.drift.by_chance:.2f}), spread {self.drift.spread:.2f}"
        )


def _similarity(of: Similarity) -> dict[str, float]:
    return {"intra": of.intra, "inter": of.inter, "total": of.total, "diff_norm": of.diff_norm}


def _row(name: str, of: Similarity) -> str:
    return f"  {name:<16}{_number(of.intra):>11}{_number(of.total):>11}{_number(of.diff_norm):>12}"


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


# ---------------------------------------------------------------- measures


def diagnose(subject: Subject, *, most: int = MOST_VIDEOS, threshold: float = 0.95, seed: int = 0) -> Diagnosis:
    """Measure a library or a run.

    Args:
        subject: The library or run, from `library_subject` or `run_subject`.
        most: The most videos whose tokens and features are read. More are sampled.
        threshold: The least similarity of near-duplicates.
        seed: The seed of the sample.
    """
    ids = sorted(subject.videos)
    chosen = ids
    if len(ids) > most:
        places = np.random.default_rng(seed).choice(len(ids), most, replace=False)
        chosen = [ids[place] for place in sorted(places)]
    sums: dict[str, SimilaritySums] = {}
    sketches, measured, means, unreadable = [], [], [], {}
    for video_id in chosen:
        try:
            tokens, frames = subject.index.tokens(video_id), subject.frames(video_id)
        except MidreelError as error:
            unreadable[subject.videos[video_id]] = str(error)
            continue
        for branch, part in tokens.items():
            # All windows of a video are one row, so that pairs across windows count as within the video.
            vectors = torch.from_numpy(np.ascontiguousarray(part.vectors[part.mask][None], np.float32))
            sums.setdefault(branch, SimilaritySums()).add(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))
        own = torch.from_numpy(np.ascontiguousarray(frames[None], np.float32))
        sums.setdefault("backbone", SimilaritySums()).add(own, torch.ones(own.shape[:2], dtype=torch.bool))
        sketches.append(sketch(np.asarray(frames, np.float32)))
        means.append(np.asarray(frames, np.float32).mean(0, keepdims=True))
        measured.append(video_id)
    pairs = near_duplicates(
        np.stack(sketches) if sketches else np.zeros((0, 1, 1), np.float32),
        [subject.durations[video_id] for video_id in measured],
        threshold=threshold,
    )
    found = FeatureStatistics.of(means)
    moved = None if subject.training is None or found is None else drift(subject.training, found)
    names = subject.videos
    return Diagnosis(
        name=subject.name,
        model=subject.model,
        num_videos=len(ids),
        num_measured=len(measured),
        unreadable=unreadable,
        video={branch: of.similarity() for branch, of in sums.items()},
        text=_text_side(subject),
        sentences=subject.sentences,
        duplicates=[(names[measured[a]], names[measured[b]], cosine) for a, b, cosine in pairs],
        hubness=_hubness(subject, ids),
        videos=[names[video_id] for video_id in ids],
        drift=moved,
        no_drift="" if moved else subject.no_training or "The training videos do not differ from each other.",
    )


def _text_side(subject: Subject) -> dict[str, TextCollapse]:
    """Return the collapse of the sentences. Without known videos, each sentence is on its own, and Intra is NaN."""
    teacher = torch.from_numpy(np.asarray(subject.backbone_sentences, np.float32))
    groups = (
        torch.arange(len(teacher)) if subject.video_of_sentence is None else torch.tensor(subject.video_of_sentence)
    )
    spaces = {branch: torch.from_numpy(np.asarray(rows, np.float32)) for branch, rows in subject.queries.items()}
    return {
        branch: TextCollapse(
            similarity=collapse.similarity(vectors, groups), spearman=collapse.spearman(vectors, teacher)
        )
        for branch, vectors in (spaces | {"backbone": teacher}).items()
    }


def _hubness(subject: Subject, ids: Sequence[str]) -> Hubness | None:
    # With few videos, ten hits would be all of them.
    top = max(1, min(TOP, len(ids) // 10))
    place = {video_id: number for number, video_id in enumerate(ids)}
    if not ids:
        return None
    counts = np.zeros(len(ids), np.int64)
    matches = subject.index.search(subject.queries, top=top)
    for found in matches:
        for match in found:
            if match.video_id in place:  # a video that is being removed has tokens but no row
                counts[place[match.video_id]] += 1
    return Hubness(counts=counts, num_sentences=len(matches), top=top)


# ---------------------------------------------------------------- subjects


@contextmanager
def library_subject(
    library: Place, sentences: Sequence[str] = (), *, model: str | None = None, device: str = "cpu"
) -> Iterator[Subject]:
    """Open a library for `diagnose`.

    Args:
        library: The folder of the library, or the URL of its database.
        sentences: Sentences to search. Default: the background sentences of midreel.
        model: The folder of the model with the statistics of its training. Default: where the library was indexed from.
        device: The torch device.

    Raises:
        MissingLibrary: There is no library.
        BadLibrary: It is damaged.
    """
    asked = list(sentences) or list(confidence.background_sentences())
    with Searcher.open(library, device=device) as searcher, searcher.storage.open_features() as store:
        with closing(searcher.storage.open_catalogue()) as catalogue:
            indexed = set(searcher.index.video_ids())
            rows = {video.id: video for video in catalogue.videos() if video.id in indexed}
            paths = {video_id: catalogue.paths(video_id) for video_id in rows}
        texts = [
            text
            for start in range(0, len(asked), _BATCH)
            for text in searcher.backbone.encode_texts(asked[start : start + _BATCH])
        ]
        used = searcher.generation.card.model
        training, reason = _training(model or used)
        yield Subject(
            name=shown(str(searcher.storage)),
            model=used,
            kind="library",
            videos={video_id: shown(paths[video_id][0]) if paths[video_id] else video_id for video_id in rows},
            durations={video_id: video.duration for video_id, video in rows.items()},
            frames=lambda video_id: store.video(video_id).frames,
            index=searcher.index,
            sentences=_origin(len(asked), bool(sentences)),
            queries=searcher.encoder.encode_queries(texts),
            backbone_sentences=np.stack([text.sentence for text in texts]),
            video_of_sentence=None,
            training=training,
            no_training=reason,
        )


@contextmanager
def run_subject(run: Path, dataset: Dataset, split: str, *, device: str = "cpu") -> Iterator[Subject]:
    """Prepare a run, or another model, and a split of a dataset for `diagnose`.

    Args:
        run: The folder of a run or of a model.
        dataset: The dataset, with features.
        split: The split whose videos and queries are measured.
        device: The torch device.

    Raises:
        BadModel: There is no model.
        BadSetting: The split has no queries.
        FingerprintMismatch: The model was trained on other features.
    """
    part, store = dataset.split(split), dataset.store
    if not part.queries:
        raise BadSetting(
            f"the split {split} of {dataset.folder} has no queries, expected some. Choose another: --split"
        )
    again = f"use the dataset of the run, or extract again: midreel extract {dataset.folder}"
    method = load_model(str(run), store.fingerprint, where=store.path, again=again)
    encoder = MethodEncoder(method, device)
    windowing, index = Windowing.of(encoder.num_frames), ExactIndex(encoder.branch_weights, encoder.similarities)
    durations = {}
    for video_id in part.video_ids:
        features = store.video(video_id)
        durations[video_id] = features.duration
        index.add(video_id, encode_windows(encoder, np.asarray(features.frames, np.float32), windowing))
    texts: list[TextFeatures] = [store.text(query.id) for query in part.queries]
    training, reason = _training(str(run))
    number = {video_id: place for place, video_id in enumerate(part.video_ids)}
    yield Subject(
        name=str(run),
        model=str(run),
        kind="dataset",
        videos={video_id: video_id for video_id in part.video_ids},
        durations=durations,
        frames=lambda video_id: np.asarray(store.video(video_id).frames),
        index=index,
        sentences=f"{_count(len(texts), 'sentence')} of {split} in {dataset.folder}",
        queries=encoder.encode_queries(texts),
        backbone_sentences=np.stack([np.asarray(text.sentence) for text in texts]),
        video_of_sentence=[number[query.video_id] for query in part.queries],
        training=training,
        no_training=reason,
    )


def _origin(number: int, given: bool) -> str:
    return _count(number, "sentence") + ("" if given else " about everyday things, which come with midreel")


def _training(model: str) -> tuple[FeatureStatistics | None, str]:
    """Return the statistics of a model's training, or None and the reason."""
    if is_named(model):
        return None, f"{model} is not trained."
    try:
        path = model_folder(model) / STATISTICS
    except MidreelError:
        return None, f"The model {model} is no longer there. Name a copy: --model"
    if not path.is_file():
        return None, f"{path.parent} has no {STATISTICS}. Models of midreel train have it."
    return FeatureStatistics.from_json(path.read_text(encoding="utf-8")), ""
