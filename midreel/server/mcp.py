"""An MCP server: it lets an assistant search a library, look at moments and, if allowed, cut clips.

All work runs in one thread, because a searcher belongs to the thread that opened it. Expected errors become tool errors
with the message and the remedy of midreel. Over HTTP, the access rules are those of `midreel serve`.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypeVar

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from midreel import __version__
from midreel.errors import MidreelError, MissingTokens
from midreel.library.export import FoundMoment, clip_name
from midreel.library.filters import Filter
from midreel.library.hits import Hit, is_confident
from midreel.library.place import Place
from midreel.library.records import Records, Video
from midreel.library.searcher import Searcher
from midreel.library.summary import summarise
from midreel.media import cut
from midreel.server import thumbnails
from midreel.server.runner import TimeoutProtocol, expect_token, listen
from midreel.server.security import (
    BODY_TIMEOUT,
    MAX_BODY,
    AccessMiddleware,
    BodyLimitMiddleware,
    HeadersMiddleware,
    Token,
)

PATH = "/mcp"
MAX_HITS, MAX_LISTED, MAX_WIDTH = 50, 200, 1280
INSTRUCTIONS = (
    "Search a library of videos by what happens in them. A hit is a video with the moments, in seconds, that match. "
    "If `confident` is false, probably no video matches. Look at a moment with moment_thumbnail before you rely on it."
)
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

T = TypeVar("T")
Conditions = Annotated[
    list[str], Field(description="Conditions such as folder=trip, tag=beach, after=2024, before=7d, longer=1:00.")
]


class FoundSpan(BaseModel):
    """A moment of a hit, in seconds."""

    start: float
    end: float
    score: float


class FoundVideo(BaseModel):
    """A hit: the video, its best moments, and the probability that it matches."""

    video_id: str
    path: str
    duration: float
    score: float
    confidence: float | None
    moments: list[FoundSpan]


class SearchResult(BaseModel):
    """The hits of a search, best first. `confident` is None if the library has no calibration."""

    hits: list[FoundVideo]
    confident: bool | None
    unsearchable: list[str]


class ListedVideo(BaseModel):
    """A video of the library."""

    video_id: str
    paths: list[str]
    duration: float
    tags: list[str]


class VideoList(BaseModel):
    """A part of the library's videos, and their total number."""

    videos: list[ListedVideo]
    total: int


class Clip(BaseModel):
    """A clip that was written. It may start before the moment, at a key frame."""

    file: str
    start: float
    end: float


class Worker:
    """The library, in one thread.

    Args:
        library: The folder of the library, or the URL of its database.
        device: The torch device.
        clips: The folder that clips may be written to; None if nothing may be written.
    """

    def __init__(self, library: Place, *, device: str = "cpu", clips: Path | None = None) -> None:
        self._place, self._clips = library, clips
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="midreel-mcp")

        def opened() -> tuple[Searcher, Records]:
            searcher = Searcher.open(library, device=device)
            return searcher, searcher.storage.open_catalogue()

        self._searcher, self._catalogue = self._thread.submit(opened).result()

    async def run(self, work: Callable[[], T], kind: type[ToolError | ResourceError] = ToolError) -> T:
        """Do work in the thread of the library. Errors of midreel become errors of MCP."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except MidreelError as error:
            raise kind(str(error)) from error

    def close(self) -> None:
        """Close the library after the work in progress."""
        for part in (self._catalogue, self._searcher):
            self._thread.submit(part.close).result()
        self._thread.shutdown()

    def search(self, query: str, top: int, filters: list[str]) -> SearchResult:
        """Search the library.

        Args:
            query: The query.
            top: The most hits.
            filters: Conditions such as "tag=beach".
        """
        hits = self._searcher.search(query, top=top, where=Filter.parse(filters))
        return SearchResult(
            hits=[_found(hit) for hit in hits],
            confident=is_confident(hits),
            unsearchable=[_text(path) for path in self._searcher.unsearchable()],
        )

    def listed(self, offset: int, limit: int, filters: list[str]) -> VideoList:
        """List videos, in the order of their ids.

        Args:
            offset: The number of videos to skip.
            limit: The most videos.
            filters: Conditions such as "tag=beach".
        """
        ids = sorted(self._catalogue.matching(Filter.parse(filters)))
        return VideoList(videos=[self.described(video_id) for video_id in ids[offset : offset + limit]], total=len(ids))

    def described(self, video_id: str) -> ListedVideo:
        """Describe one video."""
        video = self._video(video_id)
        return ListedVideo(
            video_id=video.id,
            paths=[_text(path) for path in self._catalogue.paths(video.id)],
            duration=video.duration,
            tags=self._catalogue.tags_of(video.id),
        )

    def summary(self) -> dict[str, Any]:
        """Describe the library."""
        values = summarise(self._place).to_dict()
        return {name: values[name] for name in ("num_videos", "num_files", "seconds", "model", "backbone", "tags")}

    def thumbnail(self, video_id: str, time: float, width: int) -> Image:
        """Decode the frame at a time.

        Args:
            video_id: The video.
            time: The time in seconds. Times after the end mean the end.
            width: The maximum width in pixels.
        """
        video = self._video(video_id)
        key = thumbnails.Key(
            video_id=video.id, version="", time=min(time, video.duration), width=width, media_type="image/jpeg"
        )
        return Image(data=thumbnails.draw(self._path(video), key), format="jpeg")

    def clip(self, video_id: str, start: float, end: float, exact: bool) -> Clip:
        """Write a clip under a new name, so that no file is overwritten.

        Args:
            video_id: The video.
            start: The start in seconds.
            end: The end in seconds.
            exact: Whether to re-encode, to cut at the exact frame.
        """
        assert self._clips is not None
        video = self._video(video_id)
        moment = FoundMoment(path=self._path(video), start=start, end=end, score=0.0, query="")
        self._clips.mkdir(parents=True, exist_ok=True)
        names = (self._clips / clip_name(number, moment, exact=exact) for number in count(1))
        target = next(path for path in names if not path.exists())
        begin = cut.write_clip(moment.path, target, start, min(end, video.duration), exact=exact)
        return Clip(file=_text(target), start=begin, end=min(end, video.duration))

    def _video(self, video_id: str) -> Video:
        video = self._catalogue.video(video_id)
        if video is None:
            raise MissingTokens(f"the id is {video_id[:80]!r}, expected the video_id of a hit or of list_videos.")
        return video

    def _path(self, video: Video) -> Path:
        paths = self._catalogue.paths(video.id)
        return next((path for path in paths if path.exists()), paths[0])


def _found(hit: Hit) -> FoundVideo:
    return FoundVideo(
        video_id=hit.video_id,
        path=_text(hit.path),
        duration=hit.duration,
        score=hit.score,
        confidence=hit.confidence,
        moments=[FoundSpan(start=each.start, end=each.end, score=each.score) for each in hit.moments],
    )


def _text(path: Path) -> str:
    """Return a path as text that JSON can contain: bytes that are not UTF-8 become replacement characters."""
    return bytes(path).decode("utf-8", "replace")


def create_server(worker: Worker, *, writable: bool = False) -> MCPServer[Any]:
    """Return the MCP server of a library.

    Args:
        worker: The library.
        writable: Whether to offer the tool export_clip.
    """
    server: MCPServer[Any] = MCPServer("midreel", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")

    @server.tool(annotations=_READS)
    async def search(
        query: Annotated[str, Field(description="What happens in the moment, with AND, OR, NOT, THEN if needed.")],
        top: Annotated[int, Field(ge=1, le=MAX_HITS, description="The most hits.")] = 10,
        filters: Conditions = [],  # noqa: B006  pydantic copies it
    ) -> SearchResult:
        """Find videos, and the moments in them, by a description of what happens."""
        return await worker.run(lambda: worker.search(query, top, filters))

    @server.tool(annotations=_READS)
    async def list_videos(
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 50,
        filters: Conditions = [],  # noqa: B006
    ) -> VideoList:
        """List the videos of the library, in pages."""
        return await worker.run(lambda: worker.listed(offset, limit, filters))

    @server.tool(annotations=_READS, structured_output=False)
    async def moment_thumbnail(
        video_id: str,
        time: Annotated[float, Field(ge=0, description="Seconds from the start of the video.")],
        width: Annotated[int, Field(ge=16, le=MAX_WIDTH, description="Pixels, at most.")] = 480,
    ) -> Image:
        """Show the frame of a video at a time."""
        return await worker.run(lambda: worker.thumbnail(video_id, time, width))

    if writable:

        @server.tool(annotations=_WRITES)
        async def export_clip(
            video_id: str,
            start: Annotated[float, Field(ge=0, description="Seconds.")],
            end: Annotated[float, Field(gt=0, description="Seconds.")],
            re_encode: Annotated[bool, Field(description="Cut at the exact frame, not at a key frame.")] = False,
        ) -> Clip:
            """Write a part of a video to a new file in the folder for clips."""
            return await worker.run(lambda: worker.clip(video_id, start, end, re_encode))

    @server.resource("midreel://library", name="library", mime_type="application/json")
    async def library() -> str:
        """The library: number of videos, hours, model, tags."""
        return json.dumps(await worker.run(worker.summary, ResourceError))

    @server.resource("midreel://videos/{video_id}", name="video", mime_type="application/json")
    async def video(video_id: str) -> str:
        """A video: its files, duration and tags."""
        return (await worker.run(lambda: worker.described(video_id), ResourceError)).model_dump_json()

    return server


def serve_stdio(library: Place, *, device: str = "cpu", clips: Path | None = None) -> None:
    """Serve one client over stdin and stdout, until it closes them.

    Args:
        library: The folder of the library, or the URL of its database.
        device: The torch device.
        clips: The folder that clips may be written to; None if nothing may be written.

    Raises:
        MissingLibrary: There is no library in the folder.
    """
    worker = Worker(library, device=device, clips=clips)
    try:
        create_server(worker, writable=clips is not None).run("stdio")
    finally:
        worker.close()


def serve_http(
    library: Place,
    *,
    host: str = "127.0.0.1",
    port: int = 8766,
    token: str | None = None,
    device: str = "cpu",
    clips: Path | None = None,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Serve clients over streamable HTTP, until the process is interrupted.

    Args:
        library: The folder of the library, or the URL of its database.
        host: The address to listen on. Any other than localhost requires a token.
        port: The port to listen on; 0 chooses a free one.
        token: The token that clients must send as `Authorization: Bearer TOKEN`.
        device: The torch device.
        clips: The folder that clips may be written to; None if nothing may be written.
        on_ready: Called with the URL once the server accepts connections.

    Raises:
        BadSetting: The host requires a token, the token is too short, or the port is in use.
        MissingLibrary: There is no library in the folder.
    """
    expect_token(host, token)
    secret = None if token is None else Token(token)
    worker = Worker(library, device=device, clips=clips)
    try:
        # AccessMiddleware checks the host and the origin, for every host that midreel may listen on.
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        server = create_server(worker, writable=clips is not None)
        inner = server.streamable_http_app(streamable_http_path=PATH, host=host, transport_security=unchecked)
        limited = BodyLimitMiddleware(inner, max_size=MAX_BODY, timeout=BODY_TIMEOUT)
        app = HeadersMiddleware(AccessMiddleware(limited, token=secret, hosts=[host]))
        with listen(host, port) as listener:
            shown = f"[{host}]" if ":" in host else host
            on_ready(f"http://{shown}:{listener.getsockname()[1]}{PATH}")
            config = uvicorn.Config(
                app,
                http=TimeoutProtocol,
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
            )
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        worker.close()
