"""What users see of an error that midreel did not expect: one line, and a file with the details to report."""

import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path

from midreel import __version__

TRACEBACK = "MIDREEL_TRACEBACK"  # an environment variable
_NAME = "last-error.txt"
_LONGEST = 200  # characters of an error's own message


def tell(error: BaseException | None) -> str:
    """Write the details of an error to a file and return a line that says where."""
    if error is None:
        return "unexpected error"
    show_traceback(error)
    summary = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
    path = _write(_details(error))
    if path is None:
        return f"unexpected error: {summary}. Run it again with {TRACEBACK}=1, and report what it prints."
    return f"unexpected error: {summary}. Please report it with the file {path}"


def show_traceback(error: BaseException) -> None:
    """Print the traceback if the user has asked to see it."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)


def _details(error: BaseException) -> str:
    lines = [
        f"midreel {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {sys.argv!r}",
        "".join(traceback.format_exception(error)),
    ]
    return "\n".join(lines)


def _write(text: str) -> Path | None:
    """In the folder where programs keep their state or, if that cannot be written, among temporary files."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        base = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.local/state"
        path = Path(base).expanduser() / "midreel" / _NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        pass
    try:
        with tempfile.NamedTemporaryFile(prefix="midreel-error-", suffix=".txt", delete=False) as file:
            file.write(data)
        return Path(file.name)
    except OSError:
        return None
