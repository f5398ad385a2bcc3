"""Dense labels: all videos that a query describes, not only the annotated one, in JSON Lines.

{"query_id": "q1", "gt_video_ids": ["video 3", "video 8"]}
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from midreel.datasets import parsing
from midreel.errors import BadAnnotation
from midreel.types import Query


def read_labels(path: Path, queries: Sequence[Query], video_ids: Sequence[str]) -> Bool[np.ndarray, "Q B"]:
    """Return which videos are right for each query.

    The annotated video of a query is always right. Labels of other queries and videos are ignored, because a file may
    cover several splits.

    Args:
        path: The file.
        queries: The queries of a split.
        video_ids: The videos of the split.

    Raises:
        BadAnnotation: The file cannot be read, labels a query twice, or labels no query of the split.
    """
    row_of_query = {query.id: row for row, query in enumerate(queries)}
    column_of_video = {video_id: column for column, video_id in enumerate(video_ids)}
    is_right = np.zeros((len(queries), len(video_ids)), bool)
    for row, query in enumerate(queries):
        is_right[row, column_of_video[query.video_id]] = True
    seen: set[str] = set()
    for where, values in parsing.read_json_lines(path):
        query_id = parsing.get_id(values, "query_id", where)
        videos = values.get("gt_video_ids")
        if not isinstance(videos, list) or not all(isinstance(each, str | int) for each in videos):
            raise BadAnnotation(f"{where}: gt_video_ids is {str(videos)[:80]}, expected a list of ids. Fix the line.")
        if query_id in seen:
            raise BadAnnotation(f"{where} labels {query_id!r} again, expected one line per query. Join the lines.")
        seen.add(query_id)
        if query_id in row_of_query:
            columns = [column_of_video[str(each)] for each in videos if str(each) in column_of_video]
            is_right[row_of_query[query_id], columns] = True
    if not seen & row_of_query.keys():
        raise BadAnnotation(
            f"{path} labels {len(seen)} queries, but none of this split, such as {next(iter(row_of_query), '')!r}. "
            f"Choose the split of the labels: --split NAME"
        )
    return is_right
