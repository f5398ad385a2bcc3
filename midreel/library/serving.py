"""A server of a library on this machine: the note that it leaves in the folder, and how a search asks it.

A server has model and index in memory, so that it answers in milliseconds. `midreel serve` writes server.json while it
runs. `midreel search` reads it, checks that the server runs, that its address is of this machine and that it serves
this library, and asks it. Otherwise it searches by itself.

Nothing here imports numpy: that would take longer than the answer.
"""

import http.client
import ipaddress
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from midreel.errors import BadSetting, MidreelError
from midreel.io.files import write_durably
from midreel.library.catalogue import Catalogue

NOTE = "server.json"
_SETTINGS = "library.json"
_CONNECT_TIMEOUT, _ANSWER_TIMEOUT = 0.5, 30.0  # seconds


@dataclass(frozen=True, kw_only=True)
class ServedMoment:
    """A moment, in seconds, or a line of subtitles with its text."""

    start: float
    end: float
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class ServedCurve:
    """How well the query fits over time."""

    times: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ServedHit:
    """A hit of a server: what `midreel search` shows of it."""

    path: Path
    duration: float
    score: float
    confidence: float | None
    moments: tuple[ServedMoment, ...]
    curve: ServedCurve
    said: tuple[ServedMoment, ...] = ()


class NoServer(MidreelError):
    """There is no server that can answer for this library."""


# ---------------------------------------------------------------- the note


@contextmanager
def announced(library: Path, address: str) -> Iterator[None]:
    """Leave a note that a server runs, until the block ends. A library that cannot be written gets none.

    Args:
        library: The folder of the library.
        address: The URL of the server on this machine, without a token.
    """
    note = json.dumps({"address": address, "process": os.getpid()})
    with suppress(OSError, MidreelError):
        write_durably(library / NOTE, f"{note}\n".encode())
    try:
        yield
    finally:
        with suppress(OSError):
            if (library / NOTE).read_text(encoding="utf-8").strip() == note:  # another server may have replaced it
                (library / NOTE).unlink()


def noted(library: Path) -> str | None:
    """Return the address in the note of a library, or None if there is none or its process has ended."""
    try:
        note = json.loads((library / NOTE).read_text(encoding="utf-8"))
        address, process = str(note["address"]), int(note["process"])
        os.kill(process, 0)
    except PermissionError:  # the process of another user
        return address
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return address


# ---------------------------------------------------------------- asking


def ask(library: Path, address: str, query: str, *, top: int, token: str | None = None) -> list[ServedHit]:
    """Return the hits of a server.

    Args:
        library: The folder of the library. The files of the videos are looked up in its catalogue.
        address: The URL of the server.
        query: The sentence, which may have operators.
        top: The number of hits, at most.
        token: The token of the server, if it needs one.

    Raises:
        NoServer: The server does not answer, is not of this machine, or serves another library.
    """
    try:
        with closing(_connect(address)) as connection:
            found = _request(connection, "GET", "/healthz")
            own = json.loads((library / _SETTINGS).read_text(encoding="utf-8")).get("id")
            if not own or found.get("library") != own:
                raise NoServer(f"{address} serves another library than {library}, expected this one. Check the port.")
            body = {"query": query, "top": top}
            answer = _request(connection, "POST", "/v1/search", body, token)
        with closing(Catalogue(library)) as catalogue:
            return [_hit(hit, catalogue) for hit in answer["hits"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError) as error:
        raise NoServer(
            f"{address} does not answer as a server of midreel ({type(error).__name__}: {error}). Start it: midreel "
            f"serve {library}"
        ) from error


def _connect(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    host = parts.hostname or ""
    is_local = host == "localhost"
    with suppress(ValueError):
        is_local = is_local or ipaddress.ip_address(host).is_loopback
    if parts.scheme != "http" or not is_local:
        raise NoServer(f"the server is {address}, expected an address of this machine such as http://127.0.0.1:8765/.")
    connection = http.client.HTTPConnection(host, parts.port or 80, timeout=_CONNECT_TIMEOUT)
    connection.connect()
    connection.sock.settimeout(_ANSWER_TIMEOUT)
    return connection


def _request(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, token: str | None = None
) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise NoServer(f"the server answers {response.status}, expected 200: {content[:200].decode(errors='replace')}")
    answer: dict[str, Any] = json.loads(content)
    return answer


def _hit(hit: Any, catalogue: Catalogue) -> ServedHit:
    moments = [hit, *hit["alternatives"]]
    return ServedHit(
        path=catalogue.paths(hit["video"]["id"])[0],
        duration=hit["video"]["duration"],
        score=hit["score"],
        confidence=hit["confidence"],
        moments=tuple(ServedMoment(start=each["start"], end=each["end"]) for each in moments),
        curve=ServedCurve(times=tuple(hit["curve"]["times"]), values=tuple(hit["curve"]["values"])),
        said=tuple(
            ServedMoment(start=line["start"], end=line["end"], text=line["text"]) for line in hit.get("said", ())
        ),
    )


def expect_simple(**options: Any) -> None:
    """Raise BadSetting if a search has options that a server does not take."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise BadSetting(
            f"--server is given with {', '.join(given)}, expected a sentence and --top only. Leave it out."
        )
