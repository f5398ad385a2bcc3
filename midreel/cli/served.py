"""Search by asking a server of the library on this machine, which has the model in memory."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midreel.cli.results import num_moments, table
from midreel.errors import BadLibrary, BadSetting
from midreel.library import serving
from midreel.library.place import Place, is_url
from midreel.library.query import parse


def answer(
    library: Place, query: str, *, top: int, threshold: float, server: str | None, limits: Mapping[str, Any]
) -> str | None:
    """Return the table of hits that a server finds, or None if no server runs or it finds nothing.

    Args:
        library: The folder of the library. A library in a database has no server of its own machine.
        query: The sentence, which may have operators.
        top: The number of hits, at most.
        threshold: The least probability of a confident match.
        server: The URL of the server. None: the one that has left its note in the library, if it answers.
        limits: The other options of the search, by name, which a server does not take.

    Raises:
        BadSetting: A server is named, and `limits` are given.
        NoServer: A server is named, and cannot answer.
    """
    parsed = parse(query)
    if server is not None:
        serving.expect_simple(**limits)
    if is_url(library):
        if server is not None:
            raise BadSetting("--server is given with a library in a database, expected a folder. Leave it out.")
        return None
    folder = Path(library)
    address = server or serving.noted(folder)
    if address is None:
        return None
    try:
        hits = serving.ask(folder, address, query, top=top, token=os.environ.get("MIDREEL_TOKEN") or None)
    except (serving.NoServer, BadLibrary):
        if server is not None:
            raise
        return None
    if not hits and server is None:
        return None  # a search in this process says why there are none
    return table(query, hits, threshold=threshold, moments=num_moments(parsed))
