"""The API. A route is one function: look up, ask, answer."""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool

from midreel.errors import MidreelError, MissingTokens
from midreel.library.filters import Filter
from midreel.library.hits import Hit
from midreel.library.searcher import Searcher
from midreel.ops.moments import ScoredMoment
from midreel.server import metrics, schemas, streaming, thumbnails
from midreel.server.jobs import Job, JobDesk
from midreel.server.listing import Item, Shelf
from midreel.server.metrics import Metrics
from midreel.server.problems import ProblemError, responses
from midreel.server.queues import Pool, SearchDesk
from midreel.server.readiness import Readiness
from midreel.server.security import Token, cookie_name
from midreel.server.writes import WriteQueue, open_to_write

_LOOK = 0.25  # seconds from look to look at a job somebody watches
_YEAR = 365 * 24 * 3600
_FOR_AN_HOUR = "private, max-age=3600"  # a page of results is looked at more than once


class Found(NamedTuple):
    hit: Hit
    item: Item


def searching(searcher: Searcher, shelf: Shelf) -> Callable[[list[str], int, Filter], list[list[Found]]]:
    """Search and shelf in one go, in the thread that searches: from thread to thread takes longer than looking up."""

    def search(queries: list[str], top: int, where: Filter) -> list[list[Found]]:
        found = searcher.search_all(queries, top=top, where=where)
        items = shelf.find_all(hit.video_id for hits in found for hit in hits)
        return [[Found(hit, items[hit.video_id]) for hit in hits if hit.video_id in items] for hits in found]

    return search


@dataclass(kw_only=True)
class Services:
    """What the routes need: everything behind them."""

    searcher: Searcher
    shelf: Shelf
    searches: SearchDesk[list[Found]]
    readiness: Readiness
    drawings: Pool
    writes: WriteQueue
    jobs: JobDesk
    metrics: Metrics
    token: Token | None
    pictures: thumbnails.Cache = field(default_factory=thumbnails.Cache)

    async def probe(self) -> None:
        """Search, to find out whether that works."""
        await self.searches.search("a first search", top=1, where=Filter())

    def remove(self, video_id: str, until: float) -> None:
        """Remove a video from the library. Wait until a time for another process that writes."""
        with open_to_write(self.searcher.folder, until=until, stop=lambda: self.writes.is_ended) as writer:
            if writer.catalogue.video(video_id) is None:
                raise MissingTokens(f"{writer.folder} holds no video {video_id!r}, which was removed meanwhile")
            writer.remove(video_id)

    def end(self) -> None:
        """Begin no further write. A job ends with the videos that it is at."""
        self.writes.end()
        self.jobs.end()

    def close(self) -> None:
        """End, and wait for what is in flight. Once more does no harm."""
        self.end()
        self.writes.close()
        self.searches.close()
        self.drawings.close()
        self.shelf.close()


api = APIRouter(prefix="/v1")
health = APIRouter()

Id = Annotated[schemas.Id, Path()]
Offset = Annotated[int, Query(ge=0, le=10_000_000)]
Limit = Annotated[int, Query(ge=1, le=schemas.MOST_A_PAGE)]


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


# ---------------------------------------------------------------- search


@api.post("/search", responses=responses(400, 404), summary="Find the moments that a sentence describes")
async def find(request: Request, asked: schemas.SearchRequest) -> schemas.SearchResponse:
    start, services = time.perf_counter(), _services(request)
    where = Filter()
    if asked.videos is not None or asked.folder is not None:
        where = await run_in_threadpool(services.shelf.filter, asked.videos, asked.folder)
    found = await services.searches.search(" ".join(asked.query.split()), top=asked.top, where=where)
    kept = [each for each in found if asked.threshold is None or each.hit.score >= asked.threshold]
    return schemas.SearchResponse(
        query=asked.query,
        hits=[_hit(rank, *each) for rank, each in enumerate(kept, 1)],
        below_threshold=len(found) - len(kept),
        milliseconds=round((time.perf_counter() - start) * 1000, 2),
    )


@api.get("/videos/{video_id}/curve", responses=responses(404), summary="How well a sentence fits over time")
async def curve(
    request: Request,
    video_id: Id,
    query: Annotated[schemas.QueryText, Query()],
) -> schemas.CurveResponse:
    services = _services(request)
    where = await run_in_threadpool(services.shelf.filter, [video_id], None)
    found = await services.searches.search(" ".join(query.split()), top=1, where=where)
    if not found:
        raise ProblemError(404, f"the library no longer holds the video {video_id!r}", kind="no-video")
    hit, item = found[0]
    return schemas.CurveResponse(
        video=_video(item),
        query=query,
        score=hit.score,
        moments=[_moment(each) for each in hit.moments],
        curve=_curve(hit),
    )


# ---------------------------------------------------------------- videos


@api.get("/videos", responses=responses(404), summary="List the videos")
def videos(
    request: Request,
    text: Annotated[str | None, Query(max_length=200, description="That the file's name or folder holds.")] = None,
    folder: Annotated[schemas.Name | None, Query()] = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> schemas.VideoPage:
    items = _services(request).shelf.listed(text=text, folder=folder)
    page = [_video(item) for item in items[offset : offset + limit]]
    return schemas.VideoPage(videos=page, total=len(items), offset=offset, limit=limit)


@api.get("/videos/{video_id}", responses=responses(404), summary="One video")
def video(request: Request, video_id: Id) -> schemas.Video:
    shelf = _services(request).shelf
    item = shelf.item(video_id)
    return _video(item, tags=shelf.tags(item))


@api.delete(
    "/videos/{video_id}",
    status_code=204,
    responses=responses(404, 409, 507),
    summary="Forget a video; its files stay",
)
async def forget(request: Request, video_id: Id) -> None:
    services = _services(request)
    await run_in_threadpool(services.shelf.item, video_id)
    await services.writes.remove(lambda until: services.remove(video_id, until))


_FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "content": {"video/*": {}, "application/octet-stream": {}}},
    206: {"description": "The part that was asked for.", "content": {"video/*": {}, "application/octet-stream": {}}},
    304: {"description": "It is what you have."},
}


@api.head("/videos/{video_id}/stream", include_in_schema=False)
@api.get(
    "/videos/{video_id}/stream",
    response_class=Response,
    responses=_FILE | responses(404, 410, 416),
    summary="The file, or a part of it (HTTP Range)",
)
def stream(
    request: Request,
    video_id: Id,
    range_header: Annotated[str | None, Header(alias="Range")] = None,
    if_range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    shelf = _services(request).shelf
    item = shelf.item(video_id)
    return streaming.file_response(
        item,
        shelf.open(item),
        method=request.method,
        range_header=range_header,
        if_range=if_range,
        if_none_match=if_none_match,
    )


_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The picture.", "content": {form: {} for form in thumbnails.FORMATS}},
    304: {"description": "It is what you have."},
}


@api.get(
    "/videos/{video_id}/thumbnail",
    response_class=Response,
    responses=_PICTURE | responses(404, 410),
    summary="A picture of a moment, as WebP where that is accepted, otherwise JPEG",
)
async def thumbnail(
    request: Request,
    video_id: Id,
    t: Annotated[schemas.Seconds, Query(description="Seconds; beyond the end is the last frame.")] = 0.0,
    width: Annotated[int, Query(ge=16, le=960)] = 320,
    accept: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    services = _services(request)
    item = await run_in_threadpool(services.shelf.item, video_id)
    wanted = thumbnails.Wanted.of(item, t, width, accept)
    headers = {"ETag": wanted.tag, "Cache-Control": _FOR_AN_HOUR, "Vary": "Accept"}
    if if_none_match is not None and wanted.tag in if_none_match:
        return Response(status_code=304, headers=headers)
    picture = services.pictures.get(wanted)
    services.metrics.thumbnails.labels("miss" if picture is None else "hit").inc()
    if picture is None:
        picture = await services.drawings.run(wanted, lambda: _drawn(services.shelf, item, wanted))
        services.pictures.put(wanted, picture)
    return Response(picture, media_type=wanted.media_type, headers=headers)


def _drawn(shelf: Shelf, item: Item, wanted: thumbnails.Wanted) -> bytes:
    with shelf.opened(item) as opened:
        return thumbnails.draw(opened.path, wanted)


# ---------------------------------------------------------------- the library


async def _unsearchable(request: Request) -> list[FilePath] | None:
    """Asked in the thread that searches, for it may turn to another generation. None, where that is not known."""
    services = _services(request)
    if not services.readiness.is_ready:  # the page need not wait for the model
        return None
    try:
        return await services.searches.between(services.searcher.unsearchable)
    except (MidreelError, OSError):  # of an index that cannot be read at all, as every search tells
        return None


@api.get("/library", responses=responses(), summary="What the library holds")
def library(
    request: Request, unsearchable: Annotated[list[FilePath] | None, Depends(_unsearchable)]
) -> schemas.LibraryInfo:
    services = _services(request)
    contents, layout = services.shelf.contents(), services.searcher.layout
    settings = layout.settings()
    # Read from disk: what the searcher has loaded belongs to the thread that searches.
    card = layout.serving(settings).card
    numbers: dict[str, int] = {}
    for item in contents.items.values():
        numbers[item.folder] = numbers.get(item.folder, 0) + 1
    return schemas.LibraryInfo(
        videos=len(contents.items),
        seconds=sum(item.duration for item in contents.items.values()),
        quarantined=len(contents.quarantine),
        unsearchable=None if unsearchable is None else len(unsearchable),
        unsearchable_files=[services.shelf.name(path) for path in (unsearchable or [])[: schemas.MOST_A_PAGE]],
        folders=[schemas.Folder(name=name, videos=count) for name, count in sorted(numbers.items())],
        roots=list(contents.roots),
        writable=os.access(services.searcher.folder, os.W_OK),
        model=os.path.basename(card.model),  # noqa: PTH119
        backbone=settings.backbone.rpartition("/")[2],
        examples=services.shelf.examples(),
    )


@api.get("/quarantine", responses=responses(), summary="Files that could not be read, and why")
def quarantine(request: Request, offset: Offset = 0, limit: Limit = 50) -> schemas.QuarantinePage:
    files = list(_services(request).shelf.contents().quarantine.items())
    page = [schemas.Quarantined(file=file, reason=reason) for file, reason in files[offset : offset + limit]]
    return schemas.QuarantinePage(files=page, total=len(files), offset=offset, limit=limit)


# ---------------------------------------------------------------- jobs


@api.post(
    "/index",
    status_code=202,
    responses=responses(400, 404, 409, 507),
    summary="Index a video or a folder: a job",
)
async def index(request: Request, response: Response, asked: schemas.IndexRequest) -> schemas.Job:
    services = _services(request)
    path = await run_in_threadpool(services.shelf.path_named, asked.path)
    job = services.jobs.begin(path, asked.path).shown()
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job


@api.get("/jobs", responses=responses(), summary="The latest jobs, latest first")
def jobs(request: Request) -> schemas.JobList:
    return schemas.JobList(jobs=[job.shown() for job in _services(request).jobs.jobs()])


@api.get("/jobs/{job_id}", name="job", responses=responses(404), summary="One job")
def one_job(request: Request, job_id: Id) -> schemas.Job:
    return _services(request).jobs.job(job_id).shown()


@api.delete("/jobs/{job_id}", status_code=202, responses=responses(404), summary="Cancel a job; what is done stays")
def cancel(request: Request, job_id: Id) -> schemas.Job:
    desk = _services(request).jobs
    desk.cancel(desk.job(job_id))
    return desk.job(job_id).shown()


async def _watched(request: Request, job_id: Id) -> Job:
    """Looked up before the stream of events begins, when it is not too late to say no."""
    return _services(request).jobs.job(job_id)


@api.get(
    "/jobs/{job_id}/events",
    response_class=EventSourceResponse,
    responses=responses(404),
    summary="A job's progress, as server-sent events: the job, whenever it has changed, until it is over",
)
async def events(job: Annotated[Job, Depends(_watched)]) -> AsyncIterator[schemas.Job]:
    told = None
    while True:
        now = job.shown()
        if told is None or (now.state, now.done) != (told.state, told.done):
            told = now
            yield now
        if now.state.is_over:
            return
        await asyncio.sleep(_LOOK)


# ---------------------------------------------------------------- who, and how it goes


@api.post("/session", status_code=204, responses=responses(400), summary="A cookie for the token, for browsers")
async def session(request: Request, response: Response, asked: schemas.SessionRequest) -> None:
    token = _services(request).token
    if token is None:
        return
    token.expect_right(request.scope, asked.token)
    name, secure = cookie_name(request.headers.get("host", "")), request.url.scheme == "https"
    response.set_cookie(name, token.cookie, max_age=_YEAR, httponly=True, samesite="strict", secure=secure)


@health.get("/healthz", summary="Whether the server runs")
async def healthz() -> schemas.Health:
    return schemas.Health(status="ok")


@health.get("/readyz", responses=responses(), summary="Whether it can search")
async def readyz(request: Request) -> schemas.Health:
    services = _services(request)
    await services.readiness.expect(services.probe)
    return schemas.Health(status="ready")


_FIGURES: dict[int | str, dict[str, Any]] = {200: {"description": "Figures.", "content": {"text/plain": {}}}}


@health.get(
    "/metrics",
    response_class=Response,
    responses=_FIGURES | responses(),
    summary="Figures for Prometheus",
)
def figures(request: Request) -> Response:
    services = _services(request)
    try:
        num_videos = float(len(services.shelf))
    except MidreelError:  # a monitor is needed most when something is wrong
        num_videos = math.nan
    services.metrics.videos.set(num_videos)
    services.metrics.jobs.set(services.jobs.unfinished())
    return Response(services.metrics.text(), media_type=metrics.MEDIA_TYPE)


# ---------------------------------------------------------------- as it goes over the wire


def _video(item: Item, tags: list[str] | None = None) -> schemas.Video:
    return schemas.Video(
        id=item.id,
        title=item.title,
        folder=item.folder,
        file=item.file,
        duration=item.duration,
        size=item.size,
        date=datetime.fromtimestamp(streaming.in_calendar(item.date), UTC),
        copies=len(item.files),
        tags=tags or [],
        thumbnail=_thumbnail(item, item.duration / 2),
        stream=_stream(item),
    )


def _hit(rank: int, hit: Hit, item: Item) -> schemas.Hit:
    whole = ScoredMoment(start=0.0, end=item.duration, score=hit.score, peak=item.duration / 2)
    best, *others = hit.moments or (whole,)
    return schemas.Hit(
        rank=rank,
        video=_video(item),
        score=hit.score,
        branch_scores=dict(hit.branch_scores),
        start=best.start,
        end=best.end,
        peak=best.peak,
        alternatives=[_moment(each) for each in others],
        curve=_curve(hit),
        thumbnail=_thumbnail(item, best.peak),
        stream=f"{_stream(item)}#t={best.start:.2f},{best.end:.2f}",
    )


def _moment(moment: ScoredMoment) -> schemas.Moment:
    return schemas.Moment(start=moment.start, end=moment.end, peak=moment.peak, score=moment.score)


def _curve(hit: Hit) -> schemas.Curve:
    """To three digits more than can be seen."""
    kept = thinned(hit.curve.values, schemas.MOST_POINTS)
    return schemas.Curve(
        times=[round(hit.curve.times[k], 3) for k in kept], values=[round(hit.curve.values[k], 4) for k in kept]
    )


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Which of many values to show: the highest of each of `most` parts, for peaks are what is looked for.

    >>> thinned([0.1, 0.9, 0.2, 0.3, 0.8, 0.7], 3)
    [1, 3, 4]
    """
    if len(values) <= most:
        return list(range(len(values)))
    bounds = [len(values) * k // most for k in range(most + 1)]
    return [max(range(start, end), key=values.__getitem__) for start, end in pairwise(bounds)]


def _thumbnail(item: Item, time: float) -> str:
    return f"/v1/videos/{item.id}/thumbnail?t={time:.1f}"


def _stream(item: Item) -> str:
    return f"/v1/videos/{item.id}/stream"
