"""The lines that QVHighlights introduced and the moment retrieval projects share: one JSON object for each query.

{"qid": 1, "query": "a cat jumps", "vid": "some video", "duration": 30.5, "relevant_windows": [[4, 8], [20, 22.5]]}
"""

from collections.abc import Iterator
from pathlib import Path

from midreel.datasets import parsing
from midreel.datasets.assembly import Entry


def entries(path: Path) -> Iterator[Entry]:
    """The queries of a file. A duration may be missing, and so may the windows, which test files keep to themselves."""
    for where, values in parsing.json_lines(path):
        duration = values.get("duration")
        windows = values.get("relevant_windows")
        yield Entry(
            where=where,
            id=parsing.label(values, "qid", where),
            text=parsing.words(values, "query", where),
            video_id=parsing.label(values, "vid", where),
            duration=None if duration is None else parsing.number(duration, "duration", where),
            windows=() if windows is None else parsing.windows(windows, "relevant_windows", where),
        )
