"""The application: the API under /v1, the page at /, and what keeps both safe."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles

from midreel import __version__
from midreel.library.searcher import Searcher
from midreel.server import jobs, problems, routes
from midreel.server.listing import Shelf
from midreel.server.metrics import Counted, Metrics
from midreel.server.queues import MOST_WAITING, Pool, SearchDesk
from midreel.server.readiness import Readiness
from midreel.server.schemas import Problem
from midreel.server.security import BODY_PATIENCE, MOST_BODY, BoundedBody, Guard, SafeAnswers, Token
from midreel.server.writes import WRITE_PATIENCE, WriteQueue

PAGE = Path(__file__).parent / "page"

_ABOUT = """
Find the video, and the moment in it, from a description of any part of it.

Errors are problem bodies (RFC 9457). Times are seconds. Videos are named by ids that stand for their content.
"""


def create_app(
    searcher: Searcher,
    *,
    token: str | None = None,
    hosts: Collection[str] = (),
    roots: Sequence[Path] = (),
    device: str = "cpu",
    most_searches: int = MOST_WAITING,
    most_thumbnails: int = MOST_WAITING,
    most_body: int = MOST_BODY,
    body_patience: float = BODY_PATIENCE,
    write_patience: float = WRITE_PATIENCE,
) -> FastAPI:
    """Serves a library. The searcher stays the caller's, to be closed after the application has ended.

    Without a `token` only requests to this computer's own names, and to `hosts`, are answered. `roots` are folders that
    may be indexed beside those that videos of the library come from.
    """
    metrics, shelf, readiness = Metrics(), Shelf(searcher.folder, roots), Readiness()
    writes = WriteQueue(patience=write_patience)
    secret = Token(token) if token is not None else None
    services = routes.Services(
        searcher=searcher,
        shelf=shelf,
        searches=SearchDesk(readiness.watched(routes.searching(searcher, shelf)), metrics, most=most_searches),
        readiness=readiness,
        drawings=Pool("thumbnails", threads=2, most=most_thumbnails),
        writes=writes,
        jobs=jobs.JobDesk(jobs.indexing(searcher, shelf, writes, device), shelf, writes),
        metrics=metrics,
        token=secret,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Makes the routes, too, which FastAPI would do at the first request, with warnings silenced for all threads.
        app.openapi()
        loading = asyncio.create_task(services.probe())  # loads what the first search would wait for
        loading.add_done_callback(lambda done: done.cancelled() or done.exception())  # which is noted
        yield
        loading.cancel()
        await asyncio.to_thread(services.close)

    app = FastAPI(
        title="midreel",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        docs_url=None,  # both load scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.services = services
    problems.install(app)
    app.include_router(routes.api)
    app.include_router(routes.health)
    _add_page(app)
    _describe(app)
    app.add_middleware(BoundedBody, most=most_body, patience=body_patience)
    app.add_middleware(Guard, token=secret, hosts=hosts)
    app.add_middleware(SafeAnswers)
    app.add_middleware(Counted, metrics=metrics)
    return app


def _add_page(app: FastAPI) -> None:
    def page() -> Response:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    for address in ("/", "/library"):
        app.add_api_route(address, page, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/favicon.ico", lambda: FileResponse(PAGE / "icon.svg"), methods=["GET"], include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")


def _describe(app: FastAPI) -> None:
    """The schema, with the problem body that operations refer to, and the token."""
    made = app.openapi

    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            schema = made()
            parts = schema.setdefault("components", {})
            problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            parts.setdefault("schemas", {}).update(problem.pop("$defs", {}) | {"Problem": problem})
            for unused in ("HTTPValidationError", "ValidationError"):
                parts["schemas"].pop(unused, None)
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{}, {"token": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the API, without opening a library."""
    app = FastAPI(title="midreel", version=__version__, description=_ABOUT)
    app.router.generate_unique_id_function = lambda route: route.name
    app.include_router(routes.api)
    app.include_router(routes.health)
    _describe(app)
    return app.openapi()
