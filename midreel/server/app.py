"""The ASGI application: the API under /v1, the page at /, and the middleware that protects them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles

from midreel import __version__
from midreel.io.locations import PathMap
from midreel.library.searcher import Searcher
from midreel.server import feedback, jobs, problems, routes
from midreel.server.listing import LibraryListing
from midreel.server.metrics import Metrics, MetricsMiddleware
from midreel.server.queues import MAX_WAITING, Pool, SearchQueue
from midreel.server.readiness import Readiness
from midreel.server.schemas import Problem
from midreel.server.security import (
    BODY_TIMEOUT,
    MAX_BODY,
    AccessMiddleware,
    BodyLimitMiddleware,
    HeadersMiddleware,
    Token,
)
from midreel.server.writes import WRITE_TIMEOUT, WriteQueue

PAGE = Path(__file__).parent / "page"
MAX_WAITING_PROXIES = 16  # each takes seconds to make

_DESCRIPTION = """\
Find the video, and the moment in it, from a description of any part of it.

* Times are in seconds.
* The id of a video identifies its content, so copies of a file share one id.
* Files and folders have names such as `Videos/holidays/beach.mp4`, which start with a root of the library.
* Errors are problem details (RFC 9457, `application/problem+json`).
* A server that was started with a token requires it as `Authorization: Bearer TOKEN`.
"""

_TAGS = [
    {"name": "search", "description": "Find moments from a description."},
    {"name": "feedback", "description": "Say which hits are right. `midreel adapt` learns from it."},
    {"name": "videos", "description": "List, play and remove videos."},
    {"name": "library", "description": "The library as a whole."},
    {"name": "jobs", "description": "Index videos in the background."},
    {"name": "sessions", "description": "Sign in a browser."},
    {"name": "monitoring", "description": "Health, readiness and metrics."},
]


def create_app(
    searcher: Searcher,
    *,
    token: str | None = None,
    hosts: Collection[str] = (),
    roots: Sequence[Path] = (),
    locations: PathMap = PathMap(),  # noqa: B008
    device: str = "cpu",
    max_searches: int = MAX_WAITING,
    max_thumbnails: int = MAX_WAITING,
    max_body: int = MAX_BODY,
    body_timeout: float = BODY_TIMEOUT,
    write_timeout: float = WRITE_TIMEOUT,
) -> FastAPI:
    """Return an application that serves a library.

    Args:
        searcher: The open library. The caller closes it after the application has shut down.
        token: The token that clients must send. Without one, the application answers only requests to localhost and
            to `hosts`.
        hosts: More host names to answer to without a token.
        roots: Folders that clients may index, in addition to the folders that the library was made from.
        locations: Where the files of the library are on this machine.
        device: The torch device for indexing.
        max_searches: The maximum number of waiting searches.
        max_thumbnails: The maximum number of waiting thumbnails.
        max_body: The maximum size of a request body, in bytes.
        body_timeout: The time in which a request body must arrive, in seconds.
        write_timeout: The time that a write waits for other writes, in seconds.

    Raises:
        BadSetting: The token is too short or has characters that a header cannot contain.
    """
    metrics, listing, readiness = Metrics(), LibraryListing(searcher.storage, roots, locations), Readiness()
    writes = WriteQueue(timeout=write_timeout)
    secret = Token(token) if token is not None else None
    search = readiness.watched(routes.search_with_items(searcher, listing))
    services = routes.Services(
        searcher=searcher,
        listing=listing,
        searches=SearchQueue(search, metrics, max_waiting=max_searches),
        readiness=readiness,
        thumbnail_pool=Pool("thumbnails", threads=2, max_waiting=max_thumbnails),
        proxy_pool=Pool("proxies", threads=1, max_waiting=MAX_WAITING_PROXIES),
        writes=writes,
        jobs=jobs.JobQueue(jobs.index_function(searcher, listing, writes, device), listing, writes),
        metrics=metrics,
        token=secret,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # FastAPI builds the routes lazily and suppresses warnings meanwhile, in all threads. Do it before any request.
        app.openapi()
        # A first search loads the model, so that the first client need not wait for it. Readiness records a failure.
        loading = asyncio.create_task(services.probe())
        loading.add_done_callback(lambda done: done.cancelled() or done.exception())
        yield
        loading.cancel()
        await asyncio.to_thread(services.close)

    app = _App(lifespan=lifespan)
    app.state.services = services
    # The last middleware added is the outermost: it sees a request first and its response last.
    app.add_middleware(BodyLimitMiddleware, max_size=max_body, timeout=body_timeout)
    app.add_middleware(AccessMiddleware, token=secret, hosts=hosts)
    app.add_middleware(HeadersMiddleware)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    return app


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the API, without opening a library.

    >>> document = openapi_document()
    >>> document["openapi"], document["info"]["title"]
    ('3.1.0', 'midreel')
    >>> document["paths"]["/v1/search"]["post"]["summary"]
    'Search for moments'
    """
    return _App().openapi()


class _App(FastAPI):
    """The routes, the error handlers and the page, without a library."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            title="midreel",
            version=__version__,
            summary="Search videos by description.",
            description=_DESCRIPTION,
            openapi_tags=_TAGS,
            docs_url=None,  # both load scripts from other sites, which the content security policy forbids
            redoc_url=None,
            generate_unique_id_function=lambda route: route.name,
            **options,
        )
        problems.install(self)
        self.include_router(routes.api)
        self.include_router(feedback.router, prefix="/v1")
        self.include_router(routes.health)
        self._add_page()

    def _add_page(self) -> None:
        def page() -> Response:
            return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

        for path in ("/", "/library"):
            self.add_api_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)
        icon = PAGE / "icon.svg"
        self.add_api_route("/favicon.ico", lambda: FileResponse(icon), methods=["GET"], include_in_schema=False)
        self.mount("/page", StaticFiles(directory=PAGE), name="page")

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, with the problem details and the token that FastAPI does not know of."""
        if self.openapi_schema is None:
            document = super().openapi()
            components = document.setdefault("components", {})
            problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            components.setdefault("schemas", {}).update(problem.pop("$defs", {}) | {"Problem": problem})
            for unused in ("HTTPValidationError", "ValidationError"):
                components["schemas"].pop(unused, None)
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{}, {"token": []}]
            self.openapi_schema = document
        return self.openapi_schema
