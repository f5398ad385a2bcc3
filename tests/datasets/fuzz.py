"""Strategies for random file content, and checks that a reader either reads it or raises a MidreelError."""

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
    """Return lines of JSON objects. Most fields are valid, some have any value, some are missing."""
    optional = {name: values | ANY for name, values in fields.items()}
    row = st.fixed_dictionaries(fields) | st.fixed_dictionaries({}, optional=optional) | ANY
    return st.lists(row, max_size=4).map(lambda values: "\n".join(map(json.dumps, values)))


def expect_read_or_rejected(load: Callable[[Path], Annotations], folder: Path) -> None:
    """Check that `load` returns consistent annotations or raises a MidreelError."""
    with contextlib.suppress(MidreelError):
        expect_consistent(load(folder))


def expect_consistent(annotations: Annotations) -> None:
    """Check the invariants of all annotations."""
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
