"""Files and byte ranges of files (RFC 9110, section 14), which players request to seek."""

import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
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

CHUNK, REMOTE_CHUNK = 256 * 1024, 2 * 1024 * 1024  # a request to object storage takes longer
_RANGE = re.compile(r"bytes=(?:([0-9]+)-([0-9]*)|-([0-9]+))", re.IGNORECASE)
MAX_RANGE_LENGTH = 100  # characters; longer headers are ignored


@dataclass(frozen=True, kw_only=True)
class Part:
    """The bytes from `first` to `last`, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


class Unsatisfiable(Exception):
    """The range contains no byte of the file."""


def requested_part(header: str | None, size: int) -> Part | None:
    """Return the requested part of `size` bytes, or None for the whole file.

    Invalid ranges and several ranges are ignored, as the RFC allows: the result is None. Raise Unsatisfiable if the
    range contains no byte of the file.

    >>> requested_part("bytes=0-99", 1000), requested_part("bytes=-10", 1000)
    (Part(first=0, last=99), Part(first=990, last=999))
    """
    match = _RANGE.fullmatch(header.strip()) if header and len(header) <= MAX_RANGE_LENGTH else None
    if match is None:
        return None
    first, last, suffix = (int(group) if group else None for group in match.groups())
    if suffix is not None:
        first, last = max(0, size - suffix), size - 1
        if not suffix:
            raise Unsatisfiable
    assert first is not None
    if last is not None and last < first and suffix is None:
        return None  # the RFC calls this invalid, which is to be ignored and not refused
    if first >= size:
        raise Unsatisfiable
    return Part(first=first, last=min(size - 1, size - 1 if last is None else last))


def in_calendar(seconds: float) -> float:
    """Return the nearest time between the years 1 and 9999. File systems allow other years, datetime does not.

    >>> in_calendar(3e11), in_calendar(-1e12)
    (253402300799.0, -62135596800.0)
    """
    return min(max(seconds, -62135596800.0), 253402300799.0)


def media_type(item: Item) -> str:
    """Return the media type of a video file. Files with other names get a type that browsers do not execute."""
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
    """Return the response to a request for a file: all of it, a part, or 304.

    The response closes `opened` after it was sent, or when the client disconnects.

    Args:
        item: The video.
        opened: Its open file.
        method: GET or HEAD.
        range_header: The `Range` header.
        if_range: The `If-Range` header.
        if_none_match: The `If-None-Match` header.

    Raises:
        ProblemError: The range contains no byte of the file (416).
    """
    tag = f'"{item.id}-{opened.modified:x}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": tag,
        "Last-Modified": formatdate(in_calendar(opened.modified / 1e9), usegmt=True),
        # Browsers must revalidate: an id covers samples of a file, so a changed file may keep its id.
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(item.file, safe='')}",
    }
    with ExitStack() as cleanup:
        cleanup.callback(opened.close)
        if if_none_match is not None and (tag in if_none_match or if_none_match.strip() == "*"):
            return Response(status_code=304, headers=headers)
        # If-Range asks for the whole file if it has changed since the client got the other parts.
        is_current = if_range is None or if_range.strip() in (tag, headers["Last-Modified"])
        try:
            part = requested_part(range_header if is_current else None, opened.size)
        except Unsatisfiable:
            raise ProblemError(
                416,
                f"Range {range_header!r} is outside the file, which has {opened.size} bytes.",
                kind="range-not-satisfiable",
                headers={"Content-Range": f"bytes */{opened.size}"},
            ) from None
        status = 200 if part is None else 206
        if part is None:
            part = Part(first=0, last=opened.size - 1)
        else:
            headers["Content-Range"] = f"bytes {part.first}-{part.last}/{opened.size}"
        headers["Content-Length"] = str(len(part))
        if method == "HEAD":
            return Response(status_code=status, headers=headers, media_type=media_type(item))
        cleanup.pop_all()  # from here on, the response closes the file
        return _FileParts(opened, part, status_code=status, headers=headers, media_type=media_type(item))


class _FileParts(StreamingResponse):
    def __init__(self, opened: Opened, part: Part, **options: Any) -> None:
        super().__init__(_chunks(opened, part), **options)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened.close()


async def _chunks(opened: Opened, part: Part) -> AsyncIterator[bytes]:
    """Read the next chunk only after the last one was sent, so that a slow client occupies one chunk of memory."""
    position = part.first
    while position <= part.last:
        size = min(CHUNK if opened.remote is None else REMOTE_CHUNK, part.last + 1 - position)
        chunk = await anyio.to_thread.run_sync(opened.read, size, position)
        if not chunk:
            return  # the file was truncated; the client notices by Content-Length
        position += len(chunk)
        yield chunk
