"""Errors as problem bodies (RFC 9457): every answer that is not what was asked for says why and what to do."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from midreel.errors import (
    BadIndex,
    BadLibrary,
    BadStore,
    LibraryBusy,
    MidreelError,
    MissingLibrary,
    MissingTokens,
    UnreadableVideo,
    Unwritable,
)
from midreel.server.schemas import FieldProblem, Problem

MEDIA_TYPE = "application/problem+json"
_LONGEST = 300  # characters of a message about a field: it may repeat what was sent
_log = logging.getLogger("midreel.server")

# What would otherwise be said in regular expressions.
_WORDS = {
    "string_pattern_mismatch": "has a character that is not allowed here, such as a control character, or nothing that "
    "can be read",
}

# What midreel's own errors mean to a client, and how they are told: their own words may name paths of this computer.
# The first that fits; anything else is the server's fault.
_DAMAGED = "the library is damaged or cannot be read; the server's log says what to repair"
_MEANING: tuple[tuple[type[MidreelError], int, str], ...] = (
    (MissingTokens, 404, "the library no longer holds this video; GET /v1/videos lists what it holds"),
    (LibraryBusy, 409, "another process is writing the library; try again when it is done"),
    (Unwritable, 507, "the library cannot be written: its disk is full, or its folder may only be read; make room"),
    (UnreadableVideo, 422, "the video cannot be decoded; index its folder again"),
    # Searching works again as soon as the library does, without a restart: so it is 503, and not the server's fault.
    (MissingLibrary, 503, "the library is missing; mount its disk, or restore it"),
    (BadLibrary, 503, _DAMAGED),
    (BadIndex, 503, _DAMAGED),
    (BadStore, 503, _DAMAGED),
)
_RETRY_AFTER = {409: "5", 503: "5"}  # seconds


class ProblemError(Exception):
    """Raised wherever a request cannot be served."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str = "",
        headers: Mapping[str, str] | None = None,
        errors: list[FieldProblem] | None = None,
    ) -> None:
        super().__init__(detail)
        title = HTTPStatus(status).phrase
        self.headers = dict(headers or {})
        self.problem = Problem(
            type=f"urn:midreel:problem:{kind or title.lower().replace(' ', '-')}",
            title=title,
            status=status,
            detail=detail,
            errors=errors or [],
        )

    @property
    def response(self) -> Response:
        return JSONResponse(
            self.problem.model_dump(exclude_defaults=True),
            status_code=self.problem.status,
            headers=self.headers,
            media_type=MEDIA_TYPE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """So that code below the framework can answer with it."""
        await self.response(scope, receive, send)


def busy(what: str, seconds: int = 1) -> ProblemError:
    return ProblemError(
        503,
        f"too many {what} are waiting; try again in {seconds} s",
        kind="busy",
        headers={"Retry-After": str(seconds)},
    )


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the schema: which problems an operation may answer with. Some may come from any."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({*statuses, 401, 403, 408, 413, 422, 429, 500, 503})
    }


def install(app: FastAPI) -> None:
    """Makes the application answer with problem bodies, whatever goes wrong."""

    @app.exception_handler(ProblemError)
    async def _(request: Request, error: ProblemError) -> Response:
        return error.response

    @app.exception_handler(MidreelError)
    async def _(request: Request, error: MidreelError) -> Response:
        return of_error(error).response

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        detail = {
            400: "the request cannot be read, expected JSON in UTF-8; mend its body",
            404: f"there is nothing at {request.url.path[:_LONGEST]!r}; see /openapi.json for what there is",
            405: f"{request.method[:20]} cannot be done here; see /openapi.json for what can",
        }.get(error.status_code, str(error.detail)[:_LONGEST])
        return ProblemError(error.status_code, detail, headers=error.headers).response

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> Response:
        errors = [
            FieldProblem(
                where=".".join(map(str, each["loc"]))[:_LONGEST],
                message=_WORDS.get(each["type"], each["msg"])[:_LONGEST],
            )
            for each in error.errors()[:20]
        ]
        detail = "; ".join(f"{each.where}: {each.message}" for each in errors[:3])
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if any(each.where == "body" for each in errors) and not kind.endswith("json"):  # as curl sends it
            detail = (
                f"the body came as {kind or 'no content type'}, expected application/json; "
                f"send it with -H 'Content-Type: application/json'"
            )[:_LONGEST]
        return ProblemError(422, detail, kind="invalid-request", errors=errors).response


def of_error(error: MidreelError) -> ProblemError:
    """What a client is told of an error; the log has the rest."""
    status, words = status_and_words(error)
    if status == 503:
        _log.error("%s", error)
    elif status == 500:
        _log.error("a request failed", exc_info=error)
    headers = {"Retry-After": _RETRY_AFTER[status]} if status in _RETRY_AFTER else {}
    return ProblemError(status, words, kind="" if status == 500 else _kind(error), headers=headers)


def status_and_words(error: Exception) -> tuple[int, str]:
    """The status of an error, and what a client is told: an error's own words may hold paths."""
    for kind, status, words in _MEANING:
        if isinstance(error, kind):
            return status, words
    return 500, f"the library cannot be used ({type(error).__name__}); see the server's log"


def _kind(error: MidreelError) -> str:
    """UnreadableVideo -> unreadable-video"""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in type(error).__name__).lstrip("-")
