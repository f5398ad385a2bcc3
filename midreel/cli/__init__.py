"""The command line. A command is one function: parse, call, print.

Results go to stdout (as JSON with --json), progress and errors to stderr. Everything heavy is imported inside the
commands, so that --help answers at once.
"""

import io
import os
import sys
import threading
from typing import Annotated

import typer

from midreel import __version__
from midreel.cli import crashes, library, research
from midreel.cli.commands import FAILED, INTERRUPTED, Commands
from midreel.errors import MidreelError

app = Commands(
    help="Find the video, and the moment in it, from a description of any part of it.",
    epilog=f"Set {crashes.TRACEBACK}=1 to see the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(research.app)
app.add_typer(library.app)


def main() -> None:
    """Runs the command; a mistake of the user is told in a sentence, not in a traceback."""
    # Threads of torch that wait by spinning take the cores from others that work: where something else runs, training
    # takes many times as long. Not to spin at all costs a third of the speed where nothing does. Read by torch.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no ± shows a question mark
    threading.excepthook = lambda given: print(f"midreel: {crashes.tell(given.exc_value)}", file=sys.stderr)
    try:
        app(prog_name="midreel")
    except (MidreelError, OSError) as error:
        # An OSError is a full disk, or a folder that may not be written: nothing that midreel could say better.
        crashes.show_traceback(error)
        _fail(str(error), FAILED)
    except (SystemExit, KeyboardInterrupt) as ended:
        if getattr(ended, "code", INTERRUPTED) == INTERRUPTED:  # Typer ends so, without a word
            _fail("interrupted; what was finished is kept", INTERRUPTED)
        raise
    except BaseException as error:  # also the panics of libraries in Rust, which are no Exception
        _fail(crashes.tell(error), FAILED)


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
    pass
