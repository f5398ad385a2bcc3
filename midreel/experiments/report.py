"""The report of a demo: what was done, what came out, in figures and pictures, as a Markdown file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from midreel.datasets.dataset import Dataset
from midreel.datasets.own import find_file
from midreel.evaluation import collapse, plots
from midreel.evaluation.moments import curves, found_moment
from midreel.experiments import runs
from midreel.io.files import write_durably
from midreel.library.filters import outward
from midreel.media import decode
from midreel.methods.base import Method, evaluating
from midreel.training.data import FeatureSet
from midreel.types import Moment, Query

REPORT = "report.md"
NUM_STILLS = 6  # of a found moment
TITLE_HEIGHT, STILL_GAP = 24, 3  # pixels above them, and between them


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A method, what it was examined on, what came out, and the epochs of its training, if it had any."""

    label: str
    method: Method
    data: FeatureSet
    examination: runs.Examination
    history: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Hit:
    video_id: str
    score: float
    moment: Moment


@dataclass(frozen=True, kw_only=True)
class Search:
    """A sentence, what was found, and (in `query`) what was meant."""

    query: Query
    hits: Sequence[Hit]

    def to_dict(self) -> dict[str, Any]:
        return {"query": asdict(self.query), "hits": [asdict(hit) for hit in self.hits]}

    @property
    def text(self) -> str:
        lines = [f"“{self.query.text}”"]
        for rank, hit in enumerate(self.hits, 1):
            meant = f"  ✓ it happens at {_clock(*self.query.moments)}" if hit.video_id == self.query.video_id else ""
            lines.append(f"  {rank}. {hit.video_id}  {_clock(hit.moment)}  score {hit.score:.3f}{meant}")
        if all(hit.video_id != self.query.video_id for hit in self.hits):
            lines.append(f"  ✗ meant was {self.query.video_id} at {_clock(*self.query.moments)}")
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """On the first answer."""
        first, meant = self.hits[0], _clock(*self.query.moments)
        if first.video_id == self.query.video_id:
            return (
                f"The first answer is the right video: {first.video_id}, {_clock(first.moment)}; it happens at {meant}"
            )
        return f"The first answer is WRONG: {first.video_id}, {_clock(first.moment)}; meant was {self.query.video_id}"


def table(contenders: Sequence[Contender], form: str = "markdown") -> str:
    return runs.table({contender.label: contender.examination.figures() for contender in contenders}, form)


def write_report(
    folder: Path,
    dataset: Dataset,
    contenders: Sequence[Contender],
    searches: Sequence[Search],
    seconds: Mapping[str, float | None],
) -> Path:
    """report.md and its pictures. The last contender is the one whose searches are shown.

    `seconds` is what each step took; None, if an earlier run had done it.
    """
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    _draw_learning(contenders, pictures / "learning.png")
    _draw_similarities(contenders, pictures / "similarities.png")
    _draw_relevance(contenders[-1], searches[0].query, pictures / "relevance.png")
    for number, search in enumerate(searches, 1):
        _draw_moment(dataset.folder, search.hits[0], search.verdict, pictures / f"search-{number}.png")
    path = folder / REPORT
    write_durably(path, _report(dataset, contenders, searches, seconds))  # last, so that it has its pictures
    return path


def tells(report: Path, contenders: Sequence[Contender], searches: Sequence[Search]) -> bool:
    """Whether the report is there, and is one of these figures and searches."""
    text = report.read_text(encoding="utf-8") if report.is_file() else ""
    return table(contenders) in text and all(search.text in text for search in searches)


# ---------------------------------------------------------------- words


def _report(
    dataset: Dataset, contenders: Sequence[Contender], searches: Sequence[Search], seconds: Mapping[str, float | None]
) -> str:
    counts = ", ".join(f"{len(s.video_ids):,} {name}" for name, s in dataset.splits.items())
    every = 1 / (dataset.store.fingerprint.frame_rate or 1)
    found = "\n".join(_found(number, search) for number, search in enumerate(searches, 1))
    shown = contenders[-1]
    num_frames, place = shown.method.num_frames, shown.data.video_ids.index(searches[0].query.video_id)
    duration = shown.data.durations[place].item()
    return f"""# midreel, the demo

A generated dataset of untrimmed videos ({counts}), of which a CLIP that was trained on single frames sees one frame
every {every:g} s. Each sentence describes a part of one video; the task is to find that video among the
{len(shown.data)} of the split `test`, and the part.

![Three videos of the dataset](dataset/contact-sheet.png)

## Figures on the test split, in percent but for Diff. Norm

{table(contenders)}
R@K: the right video is among the first K. SumR: their sum. Found: how far the part that a search shows overlaps with
the annotated moment, within the right video; best clip: how far the plainest guess does. Diff. Norm: how much more
alike the vectors of one video are than all others (0: not at all; 1: they have collapsed into one); a quotient, which
says little where both are near 0, as the method's video tokens are. Spearman: how much of CLIP's order among the
sentences is left. (a) is trained on pairs alone, (e) by the paper's whole method, whose clips (OP-ToMe) end where the
picture changes.

## Learning

![Loss and SumR by epoch](pictures/learning.png)

Where the loss jumps, hard negatives begin.

## Sentences of one video, sentences of different videos

The further the two lie apart, the more the sentences of one video have collapsed.

![Cosines within and across videos](pictures/similarities.png)

## One sentence along its video

“{searches[0].query.text}”

![How well each frame and clip fits](pictures/relevance.png)

The method sees every video, however long, as {num_frames} frames. This one lasts {duration:.0f} s, so the points of the
line are {duration / num_frames:.1f} s apart.

## Searches

{found}
Taken: {_times(seconds)}.
"""


def _times(seconds: Mapping[str, float | None]) -> str:
    now = ", ".join(f"{step} {taken:.0f} s" for step, taken in seconds.items() if taken is not None)
    before = ", ".join(step for step, taken in seconds.items() if taken is None)
    return f"{now}; done by an earlier run: {before}" if before else now


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
    for contender in untrained[:1] + trained:  # all that are untrained have CLIP's own queries
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
        drawn = curves(vectors, tokens, video_of_query)
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
    """Some frames of what was found, from the file itself, under a title."""
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
