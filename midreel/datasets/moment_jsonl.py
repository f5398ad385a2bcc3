"""The JSON Lines format that QVHighlights introduced and moment retrieval projects share: one object per query.

{"qid": 1, "query": "a cat jumps", "vid": "some video", "duration": 30.5, "relevant_windows": [[4, 8], [20, 22.5]]}
"""

from collections.abc import Iterator
from pathlib import Path

from midreel.datasets import parsing
from midreel.datasets.assembly import Entry


def read_entries(path: Path) -> Iterator[Entry]:
    """Yield the queries of a file. `duration` and `relevant_windows` are optional: test files have no windows."""
    for where, values in parsing.read_json_lines(path):
        duration = values.get("duration")
        windows = values.get("relevant_windows")
        yield Entry(
            where=where,
            id=parsing.get_id(values, "qid", where),
            text=parsing.get_text(values, "query", where),
            video_id=parsing.get_id(values, "vid", where),
            duration=None if duration is None else parsing.parse_seconds(duration, "duration", where),
            windows=() if windows is None else parsing.parse_windows(windows, "relevant_windows", where),
        )
