"""A Griffe extension that shows doctests and trees in docstrings as code.

Markdown takes `>>>` for a quotation, and joins the lines of a tree.
"""

import re
from typing import Any

from griffe import Extension, Object

_DOCTEST = re.compile(r"^( *)>>> ", re.MULTILINE)
_TREE = re.compile(r"^()[├└]", re.MULTILINE)


class CodeBlocks(Extension):
    """Put fences around the code in every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object. Griffe calls this when it has loaded the object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Return a docstring with a fence around each doctest and each tree."""
    paragraphs = []
    is_open = False  # a fence of the docstring's own
    for paragraph in docstring.split("\n\n"):
        paragraphs.append(paragraph if is_open or "```" in paragraph else _fenced_paragraph(paragraph))
        is_open ^= paragraph.count("```") % 2 == 1
    return "\n\n".join(paragraphs)


def _fenced_paragraph(paragraph: str) -> str:
    if doctest := _DOCTEST.search(paragraph):
        indent, begin = doctest[1], doctest.start()
        text = paragraph[:begin] + ("\n" if begin else "")
        return f"{text}{indent}```pycon\n{paragraph[begin:]}\n{indent}```"
    return f"```text\n{paragraph}\n```" if _TREE.search(paragraph) else paragraph
