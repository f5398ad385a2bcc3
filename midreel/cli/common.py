"""What the commands share: how options are called, how results are printed, what exit codes mean."""

import json
import math
from typing import Annotated, Any

import typer

# What a script can tell apart; 2 is a command line that cannot be understood.
FAILED, PARTIAL, INTERRUPTED = 1, 3, 130

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
