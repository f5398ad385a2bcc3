"""Figure 3: retrieval examples. For some queries, the first videos of each method, with the frames of the found token.

A token is right if it overlaps the annotated moment of the query in its video. It is partly right if it is elsewhere in
this video, or shows a moment that another query describes in almost the same words. Otherwise it is wrong.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw, ImageFont

from midreel.datasets import own, playhouse
from midreel.evaluation.moments import best_token_moment, curves
from midreel.experiments import runs
from midreel.experiments.reproduce.result import Result
from midreel.experiments.reproduce.rows import about, run_rows
from midreel.experiments.reproduce.specs import Context, Experiment, Row
from midreel.media import decode
from midreel.methods.base import Method, evaluating
from midreel.recipes import published
from midreel.training.data import FeatureSet
from midreel.types import Query

ROWS = tuple(Row(key=name, label=published.LABELS[name], method=name) for name in ("gmmformer", "gmmformer_v2", "msc"))
NUM_QUERIES, NUM_HITS, NUM_STILLS = 3, 3, 3
SIMILAR = 0.995  # the share of all pairs of queries that are less similar than “almost the same words”
MARKS = {"right": "✓", "partial": "△", "wrong": "✗"}
COLOURS = {"right": "#00734f", "partial": "#8a5a00", "wrong": "#b00020"}
EXAMPLES = "examples.json"
STILL, GAP, HEAD = (128, 96), 4, 40  # pixels


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A video that a method found.

    Attributes:
        video_id: The video.
        rank: Its rank, from 1.
        start: The start of the found token, in seconds.
        end: Its end.
        verdict: "right", "partial" or "wrong".
    """

    video_id: str
    rank: int
    start: float
    end: float
    verdict: str


def verdict_of(hit_video: str, span: tuple[float, float], query: Query, similar: Sequence[Query]) -> str:
    """Return whether a token shows what a query describes.

    Args:
        hit_video: The video of the token.
        span: The start and the end of the token, in seconds.
        query: The query.
        similar: Queries in almost the same words, of any video.
    """

    def shows(described: Query) -> bool:
        return described.video_id == hit_video and any(
            moment.start < span[1] and span[0] < moment.end for moment in described.moments
        )

    if shows(query):
        return "right"
    return "partial" if hit_video == query.video_id or any(map(shows, similar)) else "wrong"


def similar_queries(sentences: Float[np.ndarray, "Q D"], share: float = SIMILAR) -> Bool[np.ndarray, "Q Q"]:
    """Return which queries are almost the same: those whose cosine is among the highest of all pairs.

    Args:
        sentences: The vectors of the backbone.
        share: The share of the pairs that are less similar.
    """
    unit = sentences / np.linalg.norm(sentences, axis=1, keepdims=True).clip(1e-12)
    cosines = unit @ unit.T
    above = cosines[np.triu_indices(len(unit), 1)]
    if not len(above):
        return np.zeros(cosines.shape, bool)
    found = cosines >= np.quantile(above, share)
    np.fill_diagonal(found, False)
    return found


def make(experiment: Experiment, context: Context) -> Result:
    """Train the methods with one seed, and show what they find for queries that are chosen by position."""
    context = replace(context, seeds=1)
    rows = experiment.rows_for(context.dataset.name, context.rows)
    found = run_rows(context, rows)
    examples: list[dict[str, Any]] = []
    for row in rows:
        if row.key not in found.outcomes:
            continue
        method = runs.load(str(found.trainings[row.key][0].folder), context.dataset)
        data = FeatureSet.of(method, context.dataset, context.split)
        for place, number in enumerate(_some(data)):
            query = data.queries[number]
            if place == len(examples):
                examples.append({"query_id": query.id, "query": query.text, "video": query.video_id, "hits": {}})
            examples[place]["hits"][row.label] = _hits(method, data, number)
    folder = context.out / experiment.folder
    pictures = {}
    for place, example in enumerate(examples, 1):
        name = f"example-{place}.png"
        _sheet(example, context.dataset.folder).save(folder / name)
        pictures[name] = _described(example)
    plain = [
        each | {"hits": {row: [vars(hit) for hit in hits] for row, hits in each["hits"].items()}} for each in examples
    ]
    return Result(
        name=experiment.name,
        title=experiment.title,
        dataset=about(context),
        notes=[
            f"The queries were chosen by the position of their videos, whatever the methods find. {MARKS['right']} the "
            f"token overlaps the described moment; {MARKS['partial']} it is elsewhere in the right video, or shows "
            f"almost the same elsewhere; {MARKS['wrong']} neither."
        ],
        failures=found.failures,
        pictures=pictures,
        files={EXAMPLES: json.dumps(plain, indent=2, ensure_ascii=False) + "\n"},
        runs={
            row.label: [str(each.folder.relative_to(context.out)) for each in found.trainings[row.key]] for row in rows
        },
    )


def _some(data: FeatureSet) -> list[int]:
    """Return the first query of some videos, spread evenly over the split."""
    step = max(1, len(data) // NUM_QUERIES)
    of_query = data.video_of_query.tolist()
    return [of_query.index(video) for video in range(0, len(data), step)][:NUM_QUERIES]


def _hits(method: Method, data: FeatureSet, number: int) -> list[Hit]:
    """Return the first videos for a query, with the best token of each."""
    query = data.queries[number]
    backbone = torch.stack([torch.as_tensor(text.words[-1]) for text in data.texts]).double().numpy()
    similar = [data.queries[other] for other in np.flatnonzero(similar_queries(backbone)[number])]
    with evaluating(method):
        vectors = method.encode_queries(data.query_batch(torch.tensor([number])))
        scores = torch.cat(
            [method.score(vectors, method.encode_videos(batch)) for batch in data.video_batches(runs.VIDEOS_AT_ONCE)], 1
        )[0]
        best = scores.topk(min(NUM_HITS, len(data))).indices
        tokens = method.encode_videos(data.video_batch(best))
        repeated = {branch: vector.expand(len(best), -1) for branch, vector in vectors.items()}
        drawn = curves(repeated, tokens, torch.arange(len(best)), method.similarities)
    spans = best_token_moment(drawn, method.segment_branch)
    hits = []
    for rank, (video, share) in enumerate(zip(best.tolist(), spans.tolist(), strict=True), 1):
        start, end = (float(data.durations[video]) * part for part in share)
        video_id = data.video_ids[video]
        verdict = verdict_of(video_id, (start, end), query, similar)
        hits.append(Hit(video_id=video_id, rank=rank, start=start, end=end, verdict=verdict))
    return hits


def _described(example: dict[str, Any]) -> str:
    found = "; ".join(
        f"{row}: " + ", ".join(f"{hit.rank}. {hit.video_id} {MARKS[hit.verdict]} {hit.verdict}" for hit in hits)
        for row, hits in example["hits"].items()
    )
    return f"Query “{example['query']}”, described in {example['video']}. {found}."


# ---------------------------------------------------------------- pictures


def stills(folder: Path, video_id: str, times: Sequence[float]) -> list[Image.Image]:
    """Return the frames of a video at some times: of its file, or drawn if the dataset is generated.

    Args:
        folder: The folder of the dataset.
        video_id: The video.
        times: The times in seconds, in ascending order. The list is empty if there is neither a file nor a drawing.
    """
    path = own.find_file(folder, video_id)
    if path is not None:
        return [Image.fromarray(image) for _, image in decode.frames_at(path, list(times))]
    drawn = playhouse.draw_frames(folder, video_id, 4.0)
    if drawn is None:
        return []
    every = list(drawn[0])
    return [Image.fromarray(min(every, key=lambda each: abs(each[0] - time))[1]) for time in times]


def _sheet(example: dict[str, Any], folder: Path) -> Image.Image:
    """Draw the hits of all methods for one query: a line for each method."""
    width = NUM_HITS * (NUM_STILLS * (STILL[0] + GAP) + 3 * GAP)
    line = HEAD + STILL[1] + 3 * GAP
    sheet = Image.new("RGB", (width, HEAD + line * len(example["hits"])), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    draw.text((GAP, 10), f"“{example['query']}”  ({example['video']})", fill="black", font=ImageFont.load_default(17))
    for number, (row, hits) in enumerate(example["hits"].items()):
        top = HEAD + number * line
        for hit in hits:
            left = (hit.rank - 1) * (width // NUM_HITS) + GAP
            title = f"{row}: " if hit.rank == 1 else ""
            draw.text((left, top), f"{title}{hit.rank}. {hit.video_id}", fill="black", font=font)
            verdict = f"{hit.verdict}, {hit.start:.1f} to {hit.end:.1f} s"
            draw.text((left, top + 17), verdict, fill=COLOURS[hit.verdict], font=font)
            wanted = np.linspace(hit.start, hit.end, NUM_STILLS + 2)[1:-1]
            for place, still in enumerate(stills(folder, hit.video_id, wanted.tolist())):
                sheet.paste(still.resize(STILL), (left + place * (STILL[0] + GAP), top + HEAD))
            box = (left, top + HEAD, left + NUM_STILLS * (STILL[0] + GAP) - GAP, top + HEAD + STILL[1])
            draw.rectangle(box, outline=COLOURS[hit.verdict], width=3)
    return sheet
