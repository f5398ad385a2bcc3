"""The report of a demo: a Markdown file with tables and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from midreel.datasets.dataset import Dataset
from midreel.datasets.own import find_file
from midreel.evaluation import collapse, plots, tables
from midreel.evaluation.moments import curves, found_moment
from midreel.experiments import runs
from midreel.io.files import write_durably
from midreel.library.filters import outward
from midreel.media import decode
from midreel.methods.base import Method, evaluating
from midreel.training.data import FeatureSet
from midreel.types import Moment, Query

REPORT = "report.md"
MAIN_COLUMNS = ("R@1", "R@5", "SumR", "text Diff. Norm")  # of the summary
NUM_STILLS = 6  # frames shown of a found moment
TITLE_HEIGHT, STILL_GAP = 24, 3  # pixels above the frames, and between them


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """How many searches of a library had a confident match.

    Attributes:
        present: Of the sentences about its videos.
        num_present: Their number.
        absent: Of the sentences about something else.
        num_absent: Their number.
    """

    present: int
    num_present: int
    absent: int
    num_absent: int

    @property
    def text(self) -> str:
        """One line, for people."""
        return (
            f"Confidence: the library has a confident match for {self.present:,} of {self.num_present:,} sentences "
            f"about its videos, and for {self.absent} of {self.num_absent} sentences about something else."
        )


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A method in the comparison.

    Attributes:
        label: The name of its row in tables.
        method: The method.
        data: The split that it was evaluated on.
        examination: The results.
        history: The records of its epochs. Empty for an untrained method.
    """

    label: str
    method: Method
    data: FeatureSet
    examination: runs.Examination
    history: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A video found, with the moment in it."""

    video_id: str
    score: float
    moment: Moment


@dataclass(frozen=True, kw_only=True)
class Search:
    """An annotated query and the videos found for it."""

    query: Query
    hits: Sequence[Hit]

    def to_dict(self) -> dict[str, Any]:
        """Return the search as JSON values."""
        return {"query": asdict(self.query), "hits": [asdict(hit) for hit in self.hits]}

    @property
    def text(self) -> str:
        """The search, for people: one line per hit, with the right one marked."""
        lines = [f"“{self.query.text}”"]
        for rank, hit in enumerate(self.hits, 1):
            meant = f"  ✓ annotated: {_clock(*self.query.moments)}" if hit.video_id == self.query.video_id else ""
            lines.append(f"  {rank}. {hit.video_id}  {_clock(hit.moment)}  score {hit.score:.3f}{meant}")
        if all(hit.video_id != self.query.video_id for hit in self.hits):
            lines.append(f"  ✗ expected {self.query.video_id}, {_clock(*self.query.moments)}")
        return "\n".join(lines)

    @property
    def is_right(self) -> bool:
        """Whether the first hit is the annotated video."""
        return self.hits[0].video_id == self.query.video_id

    @property
    def verdict(self) -> str:
        """One line that says whether the first hit is right."""
        first, annotated = self.hits[0], _clock(*self.query.moments)
        shown = f"{first.video_id}, {_clock(first.moment)}"
        if self.is_right:
            return f"The first hit is the right video: {shown} (annotated: {annotated})"
        return f"The first hit is another video: {shown} (annotated: {self.query.video_id}, {annotated})"


def table(contenders: Sequence[Contender], form: str = "markdown") -> str:
    """Return the results of the contenders as a table, in a format of `runs.FORMATS`."""
    return runs.table(_rows(contenders), form)


def summary(contenders: Sequence[Contender]) -> str:
    """Return the main results of the contenders as a table for a terminal of 80 columns."""
    rows = _rows(contenders)
    shown = [column for column in MAIN_COLUMNS if any(column in row for row in rows.values())]
    return tables.to_text(rows, shown, digits=runs.DIGITS)


def _rows(contenders: Sequence[Contender]) -> dict[str, dict[str, float]]:
    return {contender.label: contender.examination.figures() for contender in contenders}


def write_report(
    folder: Path,
    dataset: Dataset,
    contenders: Sequence[Contender],
    searches: Sequence[Search],
    confidence: Confidence,
    seconds: Mapping[str, float | None],
) -> Path:
    """Write report.md and its pictures, and return the path of report.md.

    Args:
        folder: The folder of the demo.
        dataset: The dataset of all contenders.
        contenders: The methods to compare. The searches are those of the last one.
        searches: The searches to show.
        confidence: How many searches of the library had a confident match.
        seconds: The duration of each step, or None for a skipped step.
    """
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    _draw_learning(contenders, pictures / "learning.png")
    _draw_similarities(contenders, pictures / "similarities.png")
    _draw_relevance(contenders[-1], searches[0].query, pictures / "relevance.png")
    for number, search in enumerate(searches, 1):
        _draw_moment(dataset.folder, search.hits[0], search.verdict, pictures / f"search-{number}.png")
    path = folder / REPORT
    write_durably(
        path, _report(dataset, contenders, searches, confidence, seconds)
    )  # last, because it refers to the pictures
    return path


def is_current(
    report: Path, contenders: Sequence[Contender], searches: Sequence[Search], confidence: Confidence
) -> bool:
    """Return whether the report exists and has these results and searches.

    Args:
        report: The file of the report.
        contenders: The models in its table.
        searches: The searches in it.
        confidence: The confident matches in it.
    """
    text = report.read_text(encoding="utf-8") if report.is_file() else ""
    return all(part in text for part in (table(contenders), confidence.text, *(search.text for search in searches)))


# ---------------------------------------------------------------- text


def _report(
    dataset: Dataset,
    contenders: Sequence[Contender],
    searches: Sequence[Search],
    confidence: Confidence,
    seconds: Mapping[str, float | None],
) -> str:
    counts = ", ".join(f"{len(s.video_ids):,} {name}" for name, s in dataset.splits.items())
    every = 1 / (dataset.store.fingerprint.frame_rate or 1)
    found = "\n".join(_found(number, search) for number, search in enumerate(searches, 1))
    num_right = sum(search.is_right for search in searches)
    shown = contenders[-1]
    num_frames, place = shown.method.num_frames, shown.data.video_ids.index(searches[0].query.video_id)
    duration = shown.data.durations[place].item()
    return f"""# midreel, the demo

The dataset is generated: untrimmed videos ({counts}). A CLIP that was trained on single frames encodes
one frame every {every:g} s. Each sentence describes a part of one video. The task is to find that video among the
{len(shown.data)} videos of the split `test`, and the part in it.

![Three videos of the dataset](dataset/contact-sheet.png)

## Results on the test split, in percent except Diff. Norm

{table(contenders)}
- R@K: the share of queries whose video is among the first K. SumR: the sum of these shares.
- Found: the overlap of the moment that a search shows with the annotated one, within the right video. Best clip: the
  overlap of the single best clip.
- Diff. Norm: how much more similar the vectors of one video are than vectors in general. 0: not at all. 1: they have
  collapsed into one. It is a ratio, and says little if both similarities are near 0, as for the method's video tokens.
- Spearman: the rank correlation of the similarities of sentences with those of CLIP.

Row (a) is trained on pairs of query and video alone, row (e) with the whole method of the paper. Its clips (OP-ToMe)
end where the picture changes.

## Learning

![Loss and SumR by epoch](pictures/learning.png)

The loss jumps at the epoch in which hard negatives begin.

## Similarity of sentences, within and across videos

The further the two histograms are apart, the more the sentences of one video have collapsed.

![Cosines within and across videos](pictures/similarities.png)

## One sentence over the time of its video

“{searches[0].query.text}”

![How well each frame and clip fits](pictures/relevance.png)

The method reduces every video to {num_frames} frames. This one lasts {duration:.0f} s, so the points of the line are
{duration / num_frames:.1f} s apart.

## Searches

The queries were chosen by the position of their videos in the split, whatever the search finds. The first hit is right
in {num_right} of {len(searches)} searches. R@1 above is the share for all {len(shown.data.queries):,} queries.

{found}
{confidence.text}

Time: {_times(seconds)}.
"""


def _times(seconds: Mapping[str, float | None]) -> str:
    now = ", ".join(f"{step} {taken:.0f} s" for step, taken in seconds.items() if taken is not None)
    before = ", ".join(step for step, taken in seconds.items() if taken is None)
    return f"{now}; skipped: {before}" if before else now


def _found(number: int, search: Search) -> str:
    return f"""```
{search.text}
```

![{search.verdict}](pictures/search-{number}.png)
"""


def _clock(*moments: Moment) -> str:
    times = (outward(moment.start, moment.end, digits=1) for moment in moments)
    return " and ".join(f"{start:.1f} to {end:.1f} s" for start, end in times) or "an unknown time"


# ---------------------------------------------------------------- pictures


def _draw_learning(contenders: Sequence[Contender], path: Path) -> None:
    histories = {
        contender.label: [
            {"epoch": record["epoch"] + 1, "loss": sum(record["loss"].values()), **record["metrics"]}
            for record in contender.history
        ]
        for contender in contenders
        if contender.history
    }
    plots.learning_curves(histories, path)


def _draw_similarities(contenders: Sequence[Contender], path: Path) -> None:
    samples = {}
    trained = [contender for contender in contenders if contender.history]
    untrained = [contender for contender in contenders if not contender.history]
    for contender in untrained[:1] + trained:  # untrained methods share the query vectors of CLIP
        with evaluating(contender.method):
            parts = [
                contender.method.encode_queries(batch)[contender.method.segment_branch]
                for batch in contender.data.query_batches(512)
            ]
        samples[contender.label] = collapse.sample_cosines(torch.cat(parts), contender.data.video_of_query)
    plots.similarity_histograms(
        {label: sample.within for label, sample in samples.items()},
        {label: sample.across for label, sample in samples.items()},
        path,
    )


def _draw_relevance(contender: Contender, query: Query, path: Path) -> None:
    data = contender.data
    place, number = data.video_ids.index(query.video_id), data.queries.index(query)
    video_of_query = torch.zeros(1, dtype=torch.long)
    with evaluating(contender.method):
        vectors = contender.method.encode_queries(data.query_batch(torch.tensor([number])))
        tokens = contender.method.encode_videos(data.video_batch(torch.tensor([place])))
        drawn = curves(vectors, tokens, video_of_query, contender.method.similarities)
    duration = data.durations[place].item()
    segments = drawn[contender.method.segment_branch]
    finest = max(drawn.values(), key=lambda curve: curve.scores.shape[1])
    real = np.isfinite(segments.scores[0])
    ((start, end),) = (found_moment(drawn, contender.method.curve_weights) * duration).tolist()
    plots.relevance_curve(
        torch.from_numpy(finest.spans[0].mean(1) * duration),
        torch.from_numpy(finest.scores[0]),
        torch.from_numpy(segments.spans[0][real] * duration),
        torch.from_numpy(segments.scores[0][real]),
        query.moments,
        query.text,
        path,
        predicted=Moment(start=start, end=end),
    )


def _draw_moment(folder: Path, hit: Hit, title: str, path: Path) -> None:
    """Draw some frames of a found moment, under a title. Do nothing if the video has no file."""
    source = find_file(folder, hit.video_id)
    if source is None:
        return
    wanted = np.linspace(hit.moment.start, hit.moment.end, NUM_STILLS + 2)[1:-1]
    stills = [image for _, image in decode.frames_at(source, wanted.tolist())]
    gap = np.full((len(stills[0]), STILL_GAP, 3), 255, np.uint8)
    strip = Image.fromarray(np.concatenate([part for still in stills for part in (still, gap)][:-1], 1))
    sheet = Image.new("RGB", (strip.width, strip.height + TITLE_HEIGHT), "white")
    sheet.paste(strip, (0, TITLE_HEIGHT))
    ImageDraw.Draw(sheet).text((4, 3), title, fill="black", font=ImageFont.load_default(15))
    sheet.save(path)
