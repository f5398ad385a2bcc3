"""What commands are made of: how they are put together, how results are printed, what exit codes mean."""

import json
import math
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

F = TypeVar("F", bound=Callable[..., Any])

# What a script can tell apart; 2 is a command line that cannot be understood.
FAILED, PARTIAL, INTERRUPTED = 1, 3, 130


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))


def _without_values(parameters: list[Any]) -> list[Any]:
    """Flags take none, and --help, which is one itself, is not to show `<bool>` for it."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Commands(typer.Typer):
    """Where commands are put together."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        return super().command(name, **{"cls": _Command, **options})


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda, cuda:1, …")]


def print_result(as_json: bool, result: dict[str, Any], text: str) -> None:
    print(json.dumps(_plain(result), indent=2, allow_nan=False) if as_json else text.rstrip("\n"))


def _plain(value: Any) -> Any:
    """What JSON cannot say, NaN, is null."""
    match value:
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float() if not math.isfinite(value):
            return None
    return value
