"""Files in parts (RFC 9110, section 14): what a player asks for when somebody jumps to a moment."""

import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.utils import formatdate
from mimetypes import guess_type
from typing import Any
from urllib.parse import quote

import anyio.to_thread
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from midreel.server.listing import Item, Opened
from midreel.server.problems import ProblemError

CHUNK = 256 * 1024
_RANGE = re.compile(r"bytes=(?:([0-9]+)-([0-9]*)|-([0-9]+))", re.IGNORECASE)
LONGEST_RANGE = 100  # letters of a header that is heeded


@dataclass(frozen=True, kw_only=True)
class Part:
    """Bytes from `first` to `last`, which is one of them."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


class Unsatisfiable(Exception):
    pass


def requested_part(header: str | None, size: int) -> Part | None:
    """What of `size` bytes is asked for; None is everything, and so is what is no range, or more than one.

    >>> requested_part("bytes=0-99", 1000), requested_part("bytes=-10", 1000)
    (Part(first=0, last=99), Part(first=990, last=999))
    """
    match = _RANGE.fullmatch(header.strip()) if header and len(header) <= LONGEST_RANGE else None
    if match is None:
        return None
    first, last, suffix = (int(group) if group else None for group in match.groups())
    if suffix is not None:
        first, last = max(0, size - suffix), size - 1
        if not suffix:
            raise Unsatisfiable
    assert first is not None
    if last is not None and last < first and suffix is None:
        return None  # nonsense is to be ignored, not refused
    if first >= size:
        raise Unsatisfiable
    return Part(first=first, last=min(size - 1, size - 1 if last is None else last))


def in_calendar(seconds: float) -> float:
    """A time of a file, or the nearest that has a date: disks know of years after 9999.

    >>> in_calendar(3e11), in_calendar(-1e12)
    (253402300799.0, -62135596800.0)
    """
    return min(max(seconds, -62135596800.0), 253402300799.0)


def media_type(item: Item) -> str:
    """Nothing that a browser would run, whatever a file is called."""
    guessed = guess_type(item.file)[0] or ""
    return guessed if guessed.startswith("video/") else "application/octet-stream"


def file_response(
    item: Item,
    opened: Opened,
    *,
    method: str,
    range_header: str | None,
    if_range: str | None,
    if_none_match: str | None,
) -> Response:
    """The file or the part that is asked for. `opened` is closed when it has been sent, or nobody wants it any more."""
    tag = f'"{item.id}-{opened.modified:x}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": tag,
        "Last-Modified": formatdate(in_calendar(opened.modified / 1e9), usegmt=True),
        "Cache-Control": "private, no-cache",  # kept, and asked whether it is still so: ids are of samples of a file
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(item.file, safe='')}",
    }
    try:
        if if_none_match is not None and (tag in if_none_match or if_none_match.strip() == "*"):
            os.close(opened.handle)
            return Response(status_code=304, headers=headers)
        wanted = range_header if if_range is None or if_range.strip() in (tag, headers["Last-Modified"]) else None
        part = requested_part(wanted, opened.size)
    except Unsatisfiable:
        os.close(opened.handle)
        raise ProblemError(
            416,
            f"the range {range_header!r} has none of the file's {opened.size} bytes; ask for some of them",
            kind="range-not-satisfiable",
            headers={"Content-Range": f"bytes */{opened.size}"},
        ) from None
    status = 200
    if part is None:
        part = Part(first=0, last=opened.size - 1)
    else:
        status = 206
        headers["Content-Range"] = f"bytes {part.first}-{part.last}/{opened.size}"
    headers["Content-Length"] = str(len(part))
    if method == "HEAD":
        os.close(opened.handle)
        return Response(status_code=status, headers=headers, media_type=media_type(item))
    return _FileParts(opened, part, status_code=status, headers=headers, media_type=media_type(item))


class _FileParts(StreamingResponse):
    def __init__(self, opened: Opened, part: Part, **options: Any) -> None:
        super().__init__(_chunks(opened.handle, part), **options)
        self._handle = opened.handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._handle)


async def _chunks(handle: int, part: Part) -> AsyncIterator[bytes]:
    """A slow client holds one chunk: the next is read when the last is gone."""
    position = part.first
    while position <= part.last:
        size = min(CHUNK, part.last + 1 - position)
        chunk = await anyio.to_thread.run_sync(os.pread, handle, size, position)
        if not chunk:
            return  # cut short meanwhile; the length that was promised tells the client
        position += len(chunk)
        yield chunk
