"""The place of a library: a folder, or the URL of a database. Commands start fast, because numpy is not imported."""

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from midreel.errors import BadSetting

Place = str | Path
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PASSWORD = re.compile(r"(://[^/@\s'\"]*?):[^/@\s'\"]*@")


def is_url(place: object) -> bool:
    """Return whether a place is a URL. A `Path` never is, because it has no `//`."""
    return isinstance(place, str) and _URL.match(place) is not None


def checked(place: str) -> str:
    """Return a place from a command line. Raise BadSetting if it is a URL that holds a password.

    Other users of the machine can read the command line, and shells store it.
    """
    if not is_url(place):
        return place
    try:
        parts = urlsplit(place)
        has_password = parts.password is not None or any("password" in key for key in parse_qs(parts.query))
    except ValueError:
        has_password = True  # it may hold one anywhere, so no message may quote it
    if has_password:
        raise BadSetting(
            "the URL of the library holds a password or cannot be read. Put the password into PGPASSWORD or ~/.pgpass, "
            "and leave it out of the URL."
        )
    return place


def without_passwords(text: str) -> str:
    """Return a text without the passwords of its URLs.

    >>> without_passwords("midreel search postgresql://me:secret@db/films")
    'midreel search postgresql://me:***@db/films'
    """
    return _PASSWORD.sub(r"\1:***@", text)
