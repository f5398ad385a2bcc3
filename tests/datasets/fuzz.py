"""Anything that a file may hold, and what a reader may do with it: read it, or say in a sentence why not."""

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from midreel.datasets.annotations import Annotations, starts
from midreel.errors import MidreelError

NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 10**400, 1e308, 1.5, 60, 90])
WINDOWS = st.lists(st.lists(NUMBERS, min_size=2, max_size=2), max_size=3)
ANY = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
CONTENT = st.binary() | st.text().map(str.encode)


def rows(**fields: SearchStrategy[Any]) -> SearchStrategy[str]:
    """Lines of JSON objects whose fields are mostly what they should be, sometimes anything, sometimes missing."""
    optional = {name: values | ANY for name, values in fields.items()}
    row = st.fixed_dictionaries(fields) | st.fixed_dictionaries({}, optional=optional) | ANY
    return st.lists(row, max_size=4).map(lambda values: "\n".join(map(json.dumps, values)))


def expect_read_or_refused(collect: Callable[[Path], Annotations], folder: Path) -> None:
    with contextlib.suppress(MidreelError):
        expect_whole(collect(folder))


def expect_whole(annotations: Annotations) -> None:
    """What holds for every dataset, wherever it comes from."""
    assert annotations.splits
    for split in annotations.splits.values():
        assert split.queries
        assert len(set(split.video_ids)) == len(split.video_ids)
        assert len({query.id for query in split.queries}) == len(split.queries)
        for query in split.queries:
            assert query.text == query.text.strip()
            assert all(words.encode() for words in (query.id, query.text, query.video_id))
            limit = annotations.durations.get(query.video_id, math.inf)
            assert all(0 <= moment.start <= moment.end <= limit for moment in query.moments)
            assert all(math.isfinite(moment.end) for moment in query.moments)
    assert all(0 < seconds < math.inf for seconds in annotations.durations.values())
    for video_id, parts in annotations.parts.items():
        assert starts(parts)[-1] + parts[-1].duration == annotations.durations[video_id]
    assert all(remark.encode() for remark in annotations.remarks)
