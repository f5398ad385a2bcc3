"""The command line: each command is one function that parses, calls and prints.

Results go to stdout, as JSON with --json. Progress, warnings and errors go to stderr. Commands import heavy packages
inside their functions, so that --help stays fast.
"""

import io
import os
import sys
import threading
from typing import Annotated

import typer

from midreel import __version__
from midreel.cli import crashes, diagnose, experiments, feedback, hub, library, mcp, merge, models, research
from midreel.cli.commands import FAILED, INTERRUPTED, Commands, epilog, example_section
from midreel.errors import MidreelError

_OF_TRAINING = ("matplotlib", "onnx", "onnxscript", "scipy", "torch", "transformers")  # the extra `train`
PANELS = {
    "Get started": ("demo", "doctor"),
    "Search your videos": (
        "index",
        "search",
        "export",
        "serve",
        "mcp",
        "info",
        "diagnose",
        "reindex",
        "models",
        "library",
    ),
    "Learn from users": ("feedback", "adapt"),
    "Prepare a dataset": ("playhouse", "data", "extract", "join"),
    "Train and evaluate": ("train", "evaluate", "methods", "backbones", "export-model", "import-checkpoint", "push"),
    "Run experiments": ("reproduce", "compare"),
}

app = Commands(
    panels=PANELS,
    help="Find the video, and the moment in it, from a description of any part of it.",
    epilog=epilog(
        example_section(
            (
                "midreel index ~/Videos --backbone openai/clip-vit-base-patch32",
                "midreel search midreel-library a dog jumps into a pool",
            )
        ),
        f"Set {crashes.TRACEBACK}=1 to see the traceback of an error.",
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(research.app)
app.add_typer(experiments.app)
app.add_typer(library.app)
app.add_typer(diagnose.app)
app.add_typer(feedback.app)
app.add_typer(mcp.app)
app.add_typer(hub.app)
app.add_typer(models.app, name="models")
app.add_typer(merge.app, name="library")


def main() -> None:
    """Run the command line, and print errors as one line each instead of a traceback."""
    # The threads of torch spin while they wait, which takes the cores from other processes: training beside another
    # program becomes many times slower. Not spinning at all costs a third of the speed on an idle machine. A short
    # spin avoids both. OpenMP reads the variable when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print "?" for a character that the terminal cannot encode
    threading.excepthook = lambda given: print(f"midreel: {crashes.report(given.exc_value)}", file=sys.stderr)
    try:
        app(prog_name="midreel")
    except (MidreelError, OSError) as error:
        # The message of an OSError, such as a full disk or a missing permission, needs no explanation.
        crashes.show_traceback(error)
        _fail(str(error), FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _OF_TRAINING:
            _fail(crashes.report(error), FAILED)
        crashes.show_traceback(error)
        _fail(f"{package} is not installed, expected for this command. Run: pip install 'midreel[train]'", FAILED)
    except (SystemExit, KeyboardInterrupt) as ended:
        if getattr(ended, "code", INTERRUPTED) == INTERRUPTED:  # Typer turns Ctrl-C into this code and prints nothing
            _fail("interrupted. Finished work is kept.", INTERRUPTED)
        raise
    except BaseException as error:  # panics of Rust libraries do not derive from Exception
        _fail(crashes.report(error), FAILED)


def _fail(message: str, code: int) -> None:
    print(f"midreel: {message}", file=sys.stderr)
    sys.exit(code)


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"midreel {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Accept the options that precede a command."""
