"""JSON values without NaN and infinity, which are not JSON."""

import math
from typing import Any


def without_nan(value: Any) -> Any:
    """Return JSON values with null instead of NaN and infinity. Tuples become lists.

    >>> without_nan({"a": (1.0, float("nan"))})
    {'a': [1.0, None]}
    """
    match value:
        case dict():
            return {key: without_nan(each) for key, each in value.items()}
        case list() | tuple():
            return [without_nan(each) for each in value]
        case float() if not math.isfinite(value):
            return None
    return value
