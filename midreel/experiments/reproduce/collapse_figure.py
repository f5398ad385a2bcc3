"""Figure 1: the queries and segments of two videos, before and after, projected into the plane."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from midreel.errors import BadSetting
from midreel.evaluation import plots
from midreel.evaluation.tables import Cell
from midreel.experiments import ablation, runs
from midreel.experiments.reproduce.result import Result
from midreel.experiments.reproduce.rows import about, run_rows
from midreel.experiments.reproduce.specs import Context, Experiment, Row
from midreel.methods.base import Method, evaluating
from midreel.methods.msc import last_words
from midreel.training.data import FeatureSet

ROWS = tuple(Row(key=key, label=ablation.LABELS[key], settings=ablation.ROWS[key]) for key in ("base", "msc"))
PICTURE = "collapse.png"
ENOUGH = 3  # queries of a video, if there are such videos
COLUMNS = ("queries of one video", "most similar queries of two videos", "segments of one video", "segments across")
GROUPS = ("A", "B")  # the two videos


def project(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N 2"]:
    """Return the two principal components of unit vectors. The signs do not depend on the library.

    >>> project(np.array([[1.0, 0.0], [-1.0, 0.0]])).round(6).tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    centred = unit - unit.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=True)
    found = centred @ axes[:2].T
    if found.shape[1] < 2:
        found = np.concatenate((found, np.zeros((len(found), 1))), 1)
    heaviest = found[np.abs(found).argmax(0), np.arange(2)]
    return found * np.where(heaviest < 0, -1.0, 1.0) + 0.0


def choose_pair(
    sentences: Float[np.ndarray, "Q D"], video_of_query: Int[np.ndarray, " Q"], enough: int = ENOUGH
) -> tuple[int, int]:
    """Return the two most similar queries of different videos, as in the paper's "holding a dog".

    The choice looks at the backbone alone, not at what a method makes of it.

    Args:
        sentences: The vectors of the backbone.
        video_of_query: The video of each query.
        enough: The number of queries that both videos should have. Fewer are accepted if no two videos have as many.

    Raises:
        BadSetting: All queries describe one video.
    """
    unit = sentences / np.linalg.norm(sentences, axis=1, keepdims=True).clip(1e-12)
    counts = np.bincount(video_of_query)[video_of_query]
    while enough > 1 and len(np.unique(video_of_query[counts >= enough])) < 2:
        enough -= 1
    cosines = unit @ unit.T
    cosines[video_of_query[:, None] == video_of_query] = -np.inf
    cosines[counts < enough] = cosines[:, counts < enough] = -np.inf
    if not np.isfinite(cosines).any():
        raise BadSetting("the split has 1 video, expected two or more to compare. Use another dataset.")
    first, second = np.unravel_index(cosines.argmax(), cosines.shape)
    return int(first), int(second)


def make(experiment: Experiment, context: Context) -> Result:
    """Train the base model and MSC with one seed, and draw two videos in the space of each."""
    context = replace(context, seeds=1)
    rows = experiment.rows_for(context.dataset.name, context.rows)
    found = run_rows(context, rows)
    panels: dict[str, plots.Cloud] = {}
    table: dict[str, dict[str, Cell]] = {}
    shown: list[str] = []
    for row in rows:
        if row.key not in found.outcomes:
            continue
        method = runs.load(str(found.trainings[row.key][0].folder), context.dataset)
        data = FeatureSet.of(method, context.dataset, context.split)
        pair = choose_pair(_backbone(data), data.video_of_query.numpy())
        videos = [int(data.video_of_query[query]) for query in pair]
        shown = [f"{name}: {data.video_ids[video]}" for name, video in zip(GROUPS, videos, strict=True)]
        shown += [f"“{data.queries[query].text}”" for query in pair]
        texts, segments, table[row.label] = _draw(method, data, pair, videos)
        panels[f"queries, {row.label}"], panels[f"segments, {row.label}"] = texts, segments
    ordered = {title: panels[title] for kind in ("queries", "segments") for title in panels if title.startswith(kind)}
    folder = context.out / experiment.folder
    plots.clouds(ordered, folder / PICTURE)
    return Result(
        name=experiment.name,
        title=experiment.title,
        dataset=about(context),
        rows=table,
        columns=COLUMNS,
        digits=dict.fromkeys(COLUMNS, 3),
        notes=[
            "Mean cosines of the two videos. The videos are those with the two most similar queries, by the backbone.",
            f"Videos {'; '.join(shown[:2])}. Most similar queries: {' and '.join(shown[2:])}.",
        ],
        failures=found.failures,
        pictures={
            PICTURE: "Queries and segments of two videos, projected to two principal components: the base model "
            "on the left, MSC on the right."
        },
        runs={
            row.label: [str(each.folder.relative_to(context.out)) for each in found.trainings[row.key]] for row in rows
        },
    )


def _backbone(data: FeatureSet) -> Float[np.ndarray, "Q D"]:
    batch = data.query_batch(torch.arange(len(data.queries)))
    return last_words(batch.words, batch.mask).numpy()


def _draw(
    method: Method, data: FeatureSet, pair: tuple[int, int], videos: list[int]
) -> tuple[plots.Cloud, plots.Cloud, dict[str, Cell]]:
    """Return the queries and the segments of two videos as points, and their mean cosines."""
    numbers = [index for video in videos for index in (data.video_of_query == video).nonzero().flatten().tolist()]
    with evaluating(method):
        vectors = method.encode_queries(data.query_batch(torch.tensor(numbers)))[method.segment_branch]
        tokens = method.encode_videos(data.video_batch(torch.tensor(videos)))[method.segment_branch]
    of_query = data.video_of_query[numbers].numpy()
    of_token = np.repeat(videos, tokens.mask.shape[1])[tokens.mask.flatten().numpy()]
    segments = tokens.vectors[tokens.mask]
    link = tuple(numbers.index(query) for query in pair)
    similar = F.cosine_similarity(vectors[link[0]], vectors[link[1]], dim=0)
    within, _ = _cosines(vectors, of_query)
    inside, across = _cosines(segments, of_token)
    name_of = dict(zip(videos, GROUPS, strict=True))
    texts = plots.Cloud(
        points=project(vectors.double().numpy()),
        group_of_point=[f"video {name_of[video]}" for video in of_query.tolist()],
        links=[(link[0], link[1])],
    )
    parts = plots.Cloud(
        points=project(segments.double().numpy()),
        group_of_point=[f"video {name_of[video]}" for video in of_token.tolist()],
    )
    return texts, parts, dict(zip(COLUMNS, (within, float(similar), inside, across), strict=True))


def _cosines(vectors: torch.Tensor, group: Int[np.ndarray, " N"]) -> tuple[float, float]:
    """Return the mean cosine of different vectors of one group, and of vectors of two groups."""
    unit = F.normalize(vectors.double(), dim=-1).numpy()
    cosines, same = unit @ unit.T, group[:, None] == group
    pairs = same & ~np.eye(len(unit), dtype=bool)
    return tuple(float(cosines[chosen].mean()) if chosen.any() else float("nan") for chosen in (pairs, ~same))  # type: ignore[return-value]
