"""Docstrings describe the parameters, and the documentation shows doctests and trees in them as code."""

from collections.abc import Iterator

import griffe
import pytest

from tests import ROOT
from tools.docs_docstrings import fenced

NUM_PARAMETERS = 3
"""Functions with fewer parameters may describe them in a sentence."""


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


def test_public_functions_describe_their_parameters() -> None:
    package = griffe.load("midreel", search_paths=[ROOT])
    assert isinstance(package, griffe.Module)
    wrong = []
    for function in public_functions(package):
        names, described = parameter_names(function), described_parameters(function)
        if described != names and (described or len(names) >= NUM_PARAMETERS):
            wrong.append(f"{function.path}({', '.join(names)}) describes {described or 'none'}")
    assert not wrong, "\n".join(["Add or correct an Args: section:", *wrong])


def public_functions(owner: griffe.Module | griffe.Class) -> Iterator[griffe.Function]:
    """Yield the functions whose parameters a docstring has to describe."""
    for name, member in owner.members.items():
        if member.is_alias or (name.startswith("_") and name != "__init__"):
            continue
        if isinstance(member, griffe.Module | griffe.Class):
            yield from public_functions(member)
        elif (
            isinstance(member, griffe.Function)
            and not is_route_or_command(member)
            and not is_described_elsewhere(member)
        ):
            yield member


def is_route_or_command(function: griffe.Function) -> bool:
    """Return whether the annotations describe the parameters, in `--help` or in the OpenAPI document."""
    callables = {decorator.callable_path.rpartition(".")[2] for decorator in function.decorators}
    return bool(callables & {"command", "callback", "get", "head", "post", "delete"})


def is_described_elsewhere(function: griffe.Function) -> bool:
    """Return whether the attributes of a dataclass, or a method that this one overrides, describe the parameters."""
    owner = function.parent
    if not isinstance(owner, griffe.Class):
        return False
    if function.name == "__init__":
        return "dataclass" in owner.labels
    overridden = [base.members[function.name] for base in owner.mro() if function.name in base.members]
    return not described_parameters(function) and any(
        isinstance(method, griffe.Function) and parameter_names(method) == parameter_names(function)
        for method in overridden
    )


def parameter_names(function: griffe.Function) -> list[str]:
    return [parameter.name for parameter in function.parameters if parameter.name not in ("self", "cls")]


def described_parameters(function: griffe.Function) -> list[str]:
    docstrings = [function.docstring]
    if function.name == "__init__" and function.parent is not None:
        docstrings.append(function.parent.docstring)
    sections = [section for text in docstrings if text for section in text.parse("google", warnings=False)]
    return [
        parameter.name.lstrip("*")
        for section in sections
        if isinstance(section, griffe.DocstringSectionParameters)
        for parameter in section.value
    ]
