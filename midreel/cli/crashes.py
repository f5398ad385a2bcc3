"""Report unexpected errors: one line for the user, and a file with the traceback."""

import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path

from midreel import __version__
from midreel.library.place import without_passwords

TRACEBACK = "MIDREEL_TRACEBACK"  # the environment variable that asks for tracebacks
_NAME = "last-error.txt"
_MAX_LENGTH = 200  # characters of the exception's message


def report(error: BaseException | None) -> str:
    """Write the details of an error to a file, and return a line that names the error and the file."""
    if error is None:
        return "unexpected error"
    show_traceback(error)
    summary = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_LENGTH]
    path = _write(_details(error))
    if path is None:
        return f"unexpected error: {summary}. Run the command with {TRACEBACK}=1, and report what it prints."
    return f"unexpected error: {summary}. Please report it, with this file: {path}"


def show_traceback(error: BaseException) -> None:
    """Print the traceback if the user set MIDREEL_TRACEBACK."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)


def _details(error: BaseException) -> str:
    lines = [
        f"midreel {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {without_passwords(repr(sys.argv))}",
        "".join(traceback.format_exception(error)),
    ]
    return "\n".join(lines)


def _write(text: str) -> Path | None:
    """Write to the user's state folder or, if that fails, to a temporary file. Return None if both fail."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        base = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.local/state"
        path = Path(base).expanduser() / "midreel" / _NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path
    except (OSError, RuntimeError):  # expanduser raises RuntimeError if the user has no home
        pass
    try:
        with tempfile.NamedTemporaryFile(prefix="midreel-error-", suffix=".txt", delete=False) as file:
            file.write(data)
        return Path(file.name)
    except OSError:
        return None
