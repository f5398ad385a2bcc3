"""The routes of the API, one function each. Their docstrings are the descriptions in the OpenAPI document."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool

from midreel.errors import MidreelError, MissingTokens
from midreel.library.filters import Filter
from midreel.library.hits import Hit, is_confident
from midreel.library.query import Query as SearchQuery
from midreel.library.query import parse, with_image
from midreel.library.searcher import Searcher
from midreel.server import answers, metrics, proxies, schemas, streaming, thumbnails
from midreel.server.jobs import Job, JobQueue
from midreel.server.listing import Item, LibraryListing
from midreel.server.metrics import Metrics
from midreel.server.problems import ProblemError, responses
from midreel.server.queues import Pool, SearchQueue
from midreel.server.readiness import Readiness
from midreel.server.security import Token, cookie_name
from midreel.server.writes import WriteQueue, open_to_write

_POLL = 0.25  # seconds between checks of a job that a client follows
_YEAR = 365 * 24 * 3600
_CACHE_ONE_HOUR = "private, max-age=3600"


class Found(NamedTuple):
    """A hit and the video it is in."""

    hit: Hit
    item: Item


def search_with_items(
    searcher: Searcher, listing: LibraryListing
) -> Callable[[list[str | SearchQuery], int, Filter], list[list[Found]]]:
    """Return a function that searches and looks up the videos found.

    Both happen in the search thread, because a change of threads takes longer than the lookup.
    """

    def search(queries: list[str | SearchQuery], top: int, where: Filter) -> list[list[Found]]:
        found = searcher.search_all(queries, top=top, where=where)
        items = listing.find_all(hit.video_id for hits in found for hit in hits)
        return [[Found(hit, items[hit.video_id]) for hit in hits if hit.video_id in items] for hits in found]

    return search


@dataclass(kw_only=True)
class Services:
    """Everything that the routes use."""

    searcher: Searcher
    listing: LibraryListing
    searches: SearchQueue[list[Found]]
    readiness: Readiness
    thumbnail_pool: Pool
    writes: WriteQueue
    jobs: JobQueue
    metrics: Metrics
    token: Token | None
    proxy_pool: Pool
    thumbnail_cache: thumbnails.Cache = field(default_factory=thumbnails.Cache)
    written: answers.Written = field(default_factory=answers.Written)
    proxy_cache: proxies.Proxies = field(default_factory=proxies.Proxies)

    async def probe(self) -> None:
        """Run a search, to load the model and to learn whether searches work."""
        await self.searches.search("a first search", top=1, where=Filter())

    def remove(self, video_id: str, deadline: float) -> None:
        """Remove a video from the library. Wait for another process that writes, until the deadline."""
        with open_to_write(self.searcher.storage.place, deadline=deadline, stop=lambda: self.writes.is_ended) as writer:
            if writer.catalogue.video(video_id) is None:
                raise MissingTokens(f"{writer.storage} has no video {video_id!r}. It was removed by another request.")
            writer.remove(video_id)

    def end(self) -> None:
        """Start no further write. A running job ends after the videos in progress."""
        self.writes.end()
        self.jobs.end()

    def close(self) -> None:
        """Start no further write, and wait for running work. A second call does nothing."""
        self.end()
        self.writes.close()
        self.searches.close()
        self.thumbnail_pool.close()
        self.proxy_pool.close()
        self.proxy_cache.close()
        self.listing.close()


api = APIRouter(prefix="/v1")
health = APIRouter(tags=["monitoring"])

VideoId = Annotated[schemas.Id, Path(description="Id of a video.")]
JobId = Annotated[schemas.Id, Path(description="Id of a job.")]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="Number of entries to skip.")]
Limit = Annotated[int, Query(ge=1, le=schemas.MAX_PAGE_SIZE, description="Maximum number of entries to return.")]
IfNoneMatch = Annotated[str | None, Header(description="Return 304 if this entity tag is current.")]


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


# ---------------------------------------------------------------- search


@api.post(
    "/search",
    tags=["search"],
    response_model=schemas.SearchResponse,
    responses=responses(400, 404),
    summary="Search for moments",
)
async def find(request: Request, body: schemas.SearchRequest) -> Response:
    """Return the videos that match the query, best first, each with its best moment."""
    start, services = time.perf_counter(), _services(request)
    where = Filter()
    if body.videos is not None or body.folder is not None:
        where = await run_in_threadpool(services.listing.filter, body.videos, body.folder)
    asked = parse(" ".join(body.query.split()))
    if body.like is not None:
        item = await run_in_threadpool(services.listing.item, body.like.video)
        if body.like.time > item.duration:
            raise ProblemError(
                422,
                f"like.time is {body.like.time:g} s, expected at most {item.duration:g} s, the duration of the video.",
                kind="invalid-request",
            )
        asked = with_image(asked, item.files[0].path, body.like.time)
    found = await services.searches.search(asked, top=body.top, where=where)
    answer = {
        "query": body.query,
        "hits": answers.hits(found, services.written),
        "confident": is_confident([each.hit for each in found], body.threshold),
        "threshold": body.threshold,
        "milliseconds": round((time.perf_counter() - start) * 1000, 2),
    }
    return answers.JsonResponse(answer)


@api.get("/videos/{video_id}/curve", tags=["search"], responses=responses(404), summary="Get the score over time")
async def curve(
    request: Request,
    video_id: VideoId,
    query: Annotated[schemas.QueryText, Query()],
) -> schemas.CurveResponse:
    """Return the score of a query over time in one video, and the moments that match."""
    services = _services(request)
    where = await run_in_threadpool(services.listing.filter, [video_id], None)
    found = await services.searches.search(parse(" ".join(query.split())), top=1, where=where)
    if not found:
        raise ProblemError(404, f"Video {video_id!r} was removed from the library.", kind="no-video")
    hit, item = found[0]
    (drawn,) = answers.curves([hit])
    return schemas.CurveResponse(
        video=schemas.Video(**answers.video(item)),
        query=query,
        score=hit.score,
        moments=[schemas.Moment(**answers.moment(each)) for each in hit.moments],
        curve=schemas.Curve(**{name: points.tolist() for name, points in drawn.items()}),
    )


# ---------------------------------------------------------------- videos


@api.get("/videos", tags=["videos"], responses=responses(404), summary="List videos")
def videos(
    request: Request,
    text: Annotated[
        str | None, Query(max_length=200, description="Text in the name of the file or folder, in any case.")
    ] = None,
    folder: Annotated[schemas.Name | None, Query(description="List only this folder and its subfolders.")] = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> schemas.VideoPage:
    """Return one page of the videos, sorted by folder and file name."""
    items = _services(request).listing.listed(text=text, folder=folder)
    page = [schemas.Video(**answers.video(item)) for item in items[offset : offset + limit]]
    return schemas.VideoPage(videos=page, total=len(items), offset=offset, limit=limit)


@api.get("/videos/{video_id}", tags=["videos"], responses=responses(404), summary="Get a video")
def video(request: Request, video_id: VideoId) -> schemas.Video:
    """Return a video, with its tags."""
    listing = _services(request).listing
    item = listing.item(video_id)
    return schemas.Video(**answers.video(item, tags=listing.tags(item)))


@api.delete(
    "/videos/{video_id}",
    tags=["videos"],
    status_code=204,
    responses=responses(404, 409, 507),
    summary="Remove a video from the library",
)
async def forget(request: Request, video_id: VideoId) -> None:
    """Remove a video from the library. Its files stay on disk; an index job that finds them adds it again."""
    services = _services(request)
    await run_in_threadpool(services.listing.item, video_id)
    await services.writes.remove(lambda deadline: services.remove(video_id, deadline))


_FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "content": {"video/*": {}, "application/octet-stream": {}}},
    206: {"description": "The requested range.", "content": {"video/*": {}, "application/octet-stream": {}}},
    304: {"description": "Not Modified"},
}


@api.head("/videos/{video_id}/stream", include_in_schema=False)
@api.get(
    "/videos/{video_id}/stream",
    tags=["videos"],
    response_class=Response,
    responses=_FILE | responses(404, 410, 416),
    summary="Get the file of a video",
)
def stream(
    request: Request,
    video_id: VideoId,
    range_header: Annotated[str | None, Header(alias="Range", description="Bytes to return.")] = None,
    if_range: Annotated[
        str | None, Header(description="Return the whole file unless it has this entity tag or date.")
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the file, or a part of it if the request has a `Range` header."""
    listing = _services(request).listing
    item = listing.item(video_id)
    return streaming.file_response(
        item,
        listing.open(item),
        method=request.method,
        range_header=range_header,
        if_range=if_range,
        if_none_match=if_none_match,
    )


@api.head("/videos/{video_id}/proxy", include_in_schema=False)
@api.get(
    "/videos/{video_id}/proxy",
    tags=["videos"],
    response_class=Response,
    responses=_FILE | responses(404, 410, 416),
    summary="Get a part of a video that browsers can play",
)
async def proxy(
    request: Request,
    video_id: VideoId,
    start: Annotated[schemas.Seconds, Query(description="Start of the part, rounded down to a whole second.")] = 0.0,
    end: Annotated[schemas.Seconds, Query(description="End of the part. It is at most 60 s long.")] = 60.0,
    range_header: Annotated[str | None, Header(alias="Range", description="Bytes to return.")] = None,
    if_range: Annotated[
        str | None, Header(description="Return the whole file unless it has this entity tag or date.")
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return a part of a video as a small MP4 of H.264 and AAC. The header `Midreel-Start` has its start in seconds.

    It is made when it is first asked for, and kept for a while. Use it for files that the browser cannot play itself.
    """
    services = _services(request)
    item = await run_in_threadpool(services.listing.item, video_id)
    key = proxies.Key.of(item, start, end)
    opened = await run_in_threadpool(services.proxy_cache.get, key)
    if opened is None:
        await services.proxy_pool.run(key, lambda: services.proxy_cache.make(services.listing, item, key))
        opened = await run_in_threadpool(services.proxy_cache.get, key)
    if opened is None:
        raise ProblemError(503, "The proxy was removed before it was read. Try again.")
    response = streaming.file_response(
        replace(item, file=f"{item.title}.mp4"),
        opened,
        method=request.method,
        range_header=range_header,
        if_range=if_range,
        if_none_match=if_none_match,
    )
    response.headers["Midreel-Start"] = f"{key.start:g}"
    return response


_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The picture.", "content": {form: {} for form in thumbnails.FORMATS}},
    304: {"description": "Not Modified"},
}


@api.get(
    "/videos/{video_id}/thumbnail",
    tags=["videos"],
    response_class=Response,
    responses=_PICTURE | responses(404, 410),
    summary="Get a thumbnail",
)
async def thumbnail(
    request: Request,
    video_id: VideoId,
    t: Annotated[schemas.Seconds, Query(description="Time in seconds. After the end, it is the last frame.")] = 0.0,
    width: Annotated[int, Query(ge=16, le=960, description="Maximum width in pixels.")] = 320,
    accept: Annotated[str | None, Header(description="Media types that the client accepts.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the frame at a time, as WebP if the request accepts it, otherwise as JPEG."""
    services = _services(request)
    item = await run_in_threadpool(services.listing.item, video_id)
    key = thumbnails.Key.of(item, t, width, accept)
    headers = {"ETag": key.etag, "Cache-Control": _CACHE_ONE_HOUR, "Vary": "Accept"}
    if if_none_match is not None and key.etag in if_none_match:
        return Response(status_code=304, headers=headers)
    picture = services.thumbnail_cache.get(key)
    services.metrics.thumbnails.labels("miss" if picture is None else "hit").inc()
    if picture is None:
        picture = await services.thumbnail_pool.run(key, lambda: _draw(services.listing, item, key))
        services.thumbnail_cache.put(key, picture)
    return Response(picture, media_type=key.media_type, headers=headers)


def _draw(listing: LibraryListing, item: Item, key: thumbnails.Key) -> bytes:
    with listing.opened(item) as opened:
        return thumbnails.draw(opened.path, key, opened.file)


# ---------------------------------------------------------------- the library


async def _unsearchable(request: Request) -> list[FilePath] | None:
    """Return the files of damaged index entries, or None if unknown.

    This runs in the search thread, because it may open another generation of the index.
    """
    services = _services(request)
    if not services.readiness.is_ready:  # the page must not wait for the model
        return None
    try:
        return await services.searches.run_between(services.searcher.unsearchable)
    except (MidreelError, OSError):  # the index as a whole is unreadable, which every search reports
        return None


@api.get("/library", tags=["library"], responses=responses(), summary="Get the library")
def library(
    request: Request, unsearchable: Annotated[list[FilePath] | None, Depends(_unsearchable)]
) -> schemas.LibraryInfo:
    """Return the size, the folders and the model of the library, and example queries."""
    services = _services(request)
    contents, storage = services.listing.contents(), services.searcher.storage
    settings = storage.settings()
    # Read from disk, because the loaded card belongs to the search thread.
    card = storage.serving(settings).card
    numbers: dict[str, int] = {}
    for item in contents.items.values():
        numbers[item.folder] = numbers.get(item.folder, 0) + 1
    return schemas.LibraryInfo(
        videos=len(contents.items),
        seconds=sum(item.duration for item in contents.items.values()),
        quarantined=len(contents.quarantine),
        unsearchable=None if unsearchable is None else len(unsearchable),
        unsearchable_files=[services.listing.name(path) for path in (unsearchable or [])[: schemas.MAX_PAGE_SIZE]],
        folders=[schemas.Folder(name=name, videos=count) for name, count in sorted(numbers.items())],
        roots=list(contents.roots),
        writable=storage.is_writable(),
        model=os.path.basename(card.model),  # noqa: PTH119
        backbone=settings.backbone.rpartition("/")[2],
        examples=services.listing.examples(),
    )


@api.get("/quarantine", tags=["library"], responses=responses(), summary="List unreadable files")
def quarantine(request: Request, offset: Offset = 0, limit: Limit = 50) -> schemas.QuarantinePage:
    """Return one page of the files that could not be read, with the reasons."""
    files = list(_services(request).listing.contents().quarantine.items())
    page = [schemas.Quarantined(file=file, reason=reason) for file, reason in files[offset : offset + limit]]
    return schemas.QuarantinePage(files=page, total=len(files), offset=offset, limit=limit)


# ---------------------------------------------------------------- jobs


@api.post(
    "/index",
    tags=["jobs"],
    status_code=202,
    responses=responses(400, 404, 409, 507),
    summary="Index a video or folder",
)
async def index(request: Request, response: Response, body: schemas.IndexRequest) -> schemas.Job:
    """Start a job that adds new videos, updates changed ones and removes missing ones. Unchanged files are skipped."""
    services = _services(request)
    path = await run_in_threadpool(services.listing.path_named, body.path)
    job = services.jobs.start(path, body.path).to_schema()
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job


@api.get("/jobs", tags=["jobs"], responses=responses(), summary="List jobs")
def jobs(request: Request) -> schemas.JobList:
    """Return the latest jobs, newest first."""
    return schemas.JobList(jobs=[job.to_schema() for job in _services(request).jobs.jobs()])


@api.get("/jobs/{job_id}", tags=["jobs"], name="job", responses=responses(404), summary="Get a job")
def one_job(request: Request, job_id: JobId) -> schemas.Job:
    """Return a job and its progress."""
    return _services(request).jobs.job(job_id).to_schema()


@api.delete("/jobs/{job_id}", tags=["jobs"], status_code=202, responses=responses(404), summary="Cancel a job")
def cancel(request: Request, job_id: JobId) -> schemas.Job:
    """Cancel a job. It finishes the videos in progress, and indexed videos stay in the library."""
    queue = _services(request).jobs
    job = queue.job(job_id)
    queue.cancel(job)
    return job.to_schema()


async def _followed_job(request: Request, job_id: JobId) -> Job:
    """Look up the job before the stream of events starts, while a 404 is still possible."""
    return _services(request).jobs.job(job_id)


@api.get(
    "/jobs/{job_id}/events",
    tags=["jobs"],
    response_class=EventSourceResponse,
    responses=responses(404),
    summary="Follow a job",
)
async def events(job: Annotated[Job, Depends(_followed_job)]) -> AsyncIterator[schemas.Job]:
    """Send the job as a server-sent event each time it makes progress, until it has ended."""
    sent = None
    while True:
        now = job.to_schema()
        if sent is None or (now.state, now.done) != (sent.state, sent.done):
            sent = now
            yield now
        if now.state.is_over:
            return
        await asyncio.sleep(_POLL)


# ---------------------------------------------------------------- sessions, health and metrics


@api.post("/session", tags=["sessions"], status_code=204, responses=responses(400), summary="Sign in a browser")
async def session(request: Request, response: Response, body: schemas.SessionRequest) -> None:
    """Set a cookie that browsers send in place of the token."""
    token = _services(request).token
    if token is None:
        return
    token.expect_right(request.scope, body.token)
    name, secure = cookie_name(request.headers.get("host", "")), request.url.scheme == "https"
    response.set_cookie(name, token.cookie, max_age=_YEAR, httponly=True, samesite="strict", secure=secure)


@health.get("/healthz", summary="Check that the server runs")
async def healthz(request: Request) -> schemas.Health:
    """Return 200 as long as the server runs."""
    return schemas.Health(status="ok", library=_services(request).searcher.library_id)


@health.get("/readyz", responses=responses(), summary="Check that searches work")
async def readyz(request: Request) -> schemas.Health:
    """Return 200 if the library can be searched, otherwise 503 with the reason."""
    services = _services(request)
    await services.readiness.expect(services.probe)
    return schemas.Health(status="ready", library=services.searcher.library_id)


_METRICS: dict[int | str, dict[str, Any]] = {200: {"description": "The metrics.", "content": {"text/plain": {}}}}


@health.get(
    "/metrics",
    response_class=Response,
    responses=_METRICS | responses(),
    summary="Get metrics",
)
def figures(request: Request) -> Response:
    """Return the metrics of the server in the text format of Prometheus."""
    services = _services(request)
    try:
        num_videos = float(len(services.listing))
    except MidreelError:  # monitoring must work when the library does not
        num_videos = math.nan
    services.metrics.videos.set(num_videos)
    services.metrics.jobs.set(services.jobs.num_unfinished())
    return Response(services.metrics.text(), media_type=metrics.MEDIA_TYPE)
