"""Shared parts of all commands: command classes, common options, exit codes, and the printing of results."""

import copy
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from midreel.io.json_values import without_nan
from midreel.library.place import checked

F = TypeVar("F", bound=Callable[..., Any])

# Exit codes. Typer itself exits with 2 if it cannot parse the command line.
FAILED, PARTIAL, INTERRUPTED = 1, 3, 130


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _with_plain_metavars(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. `midreel train FOLDER` fails with a hint, not only with a missing option."""
        values, extra, _ = self.make_parser(ctx).parse_args(args=list(args))
        dataset = next((parameter.name for parameter in self.params if "--dataset" in parameter.opts), None)
        if extra and dataset is not None and not {dataset, "help"} & set(values):
            ctx.fail(f"Got unexpected extra argument {extra[0]}. Did you mean --dataset {shlex.quote(extra[0])}?")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help without ranges."""
        _without_ranges(self.params)
        super().format_help(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line with `FOLDER` where Typer writes `{FOLDER}`."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class _Group(TyperGroup):
    panels: Mapping[str, Sequence[str]] = {}

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_plain_metavars(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in self.panels.values() for name in names] or super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        for title, names in self.panels.items():
            if command is not None and cmd_name in names:
                command.rich_help_panel = title
        return command


def _with_plain_metavars(parameters: list[Any]) -> list[Any]:
    """Hide Typer's type names from the help: `--json` and `FOLDER`, not `--json <bool>` and `folder <path>`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif isinstance(parameter, TyperArgument):
            parameter.metavar = parameter.metavar or str(parameter.name).upper()
            parameter.type = copy.copy(parameter.type)  # parameters share types
            vars(parameter.type)["get_metavar"] = lambda param, ctx: ""
    return parameters


def _without_ranges(parameters: list[Any]) -> None:
    """Hide ranges such as [x>=1], which take the room of the help text. The error for a bad value states the range."""
    for parameter in parameters:
        if hasattr(parameter.type, "_describe_range"):
            parameter.type = copy.copy(parameter.type)
            vars(parameter.type)["_describe_range"] = lambda: ""


class Commands(typer.Typer):
    """A Typer application whose help is plain: no type names, and commands grouped into panels.

    Args:
        panels: The names of all commands by the title of their panel, in the order of the help. Default: one panel.
        options: Arguments of `typer.Typer`.
    """

    def __init__(self, *, panels: Mapping[str, Sequence[str]] | None = None, **options: Any) -> None:
        group = type("_Panels", (_Group,), {"panels": panels or {}})
        super().__init__(cls=group, rich_markup_mode="rich", **options)

    def command(
        self, name: str | None = None, *, notes: str = "", examples: Sequence[str] = (), **options: Any
    ) -> Callable[[F], F]:
        """Register a command, as `typer.Typer.command` does.

        Args:
            name: The name of the command. Default: the name of the function.
            notes: A section of help below the options.
            examples: Command lines to show at the end of the help.
            options: Arguments of `typer.Typer.command`.
        """
        options = {"cls": _Command, "epilog": epilog(notes, example_section(examples)), **options}
        return super().command(name, **options)


def example_section(lines: Sequence[str]) -> str:
    """Return a section of help that lists command lines, or "" if there are none."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def epilog(*sections: str) -> str | None:
    """Return the text below the options: the sections that are not empty, or None if all are."""
    # Typer passes the text to inspect.cleandoc, which dedents all lines but the first. The first is therefore empty.
    return "\n" + "\n\n".join(filter(None, sections)) if any(sections) else None


SearchLibrary = Annotated[
    str,
    typer.Argument(
        metavar="LIBRARY", help="The folder or database that midreel index wrote.", callback=checked, show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="Compute on cpu, cuda, cuda:1, …")]
Engine = Annotated[
    Literal["auto", "onnx", "onnx-int8", "torch"],
    typer.Option(
        "--engine",
        metavar="NAME",
        help="Compute with onnx, onnx-int8 (less precise) or torch.",
        show_default="onnx if it can",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=1, help="Decode N videos in parallel.", show_default="number of cores, 2 to 8"
    ),
]


ShardName = Annotated[
    str | None,
    typer.Option("--shard", metavar="K/N", help="Only part K of N of the videos, divided by content."),
]


ClusterAddress = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="Decode and encode on a Ray cluster: auto, or ray://…"),
]


def print_result(as_json: bool, result: dict[str, Any], text: str) -> None:
    """Print a result to stdout, as JSON or as text. NaN and infinity become null in JSON.

    Args:
        as_json: Whether to print JSON.
        result: The result as JSON.
        text: The result as text.
    """
    print(json.dumps(without_nan(result), indent=2, allow_nan=False) if as_json else text.rstrip("\n"))
