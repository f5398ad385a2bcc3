"""Doctests and trees of docstrings become code blocks; everything else stays."""

import pytest

from tools.docs_docstrings import fenced


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Return 2.", "Return 2."),
        (">>> 1 + 1\n2", "```pycon\n>>> 1 + 1\n2\n```"),
        ("Return 2:\n>>> 1 + 1\n2\n\nMore.", "Return 2:\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."),
        ("Examples:\n    >>> 1\n    1", "Examples:\n\n    ```pycon\n    >>> 1\n    1\n    ```"),
        ("```pycon\n>>> 1\n1\n\n>>> 2\n2\n```", "```pycon\n>>> 1\n1\n\n>>> 2\n2\n```"),
        ("Base\n├── One\n└── Two", "```text\nBase\n├── One\n└── Two\n```"),
    ],
)
def test_fences(docstring: str, expected: str) -> None:
    assert fenced(docstring) == expected
