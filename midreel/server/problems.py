"""Error responses as problem details (RFC 9457). Each one says what is wrong and how to fix it."""

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
    BadQuery,
    BadStore,
    Locked,
    MidreelError,
    MissingFeedback,
    MissingLibrary,
    MissingTokens,
    Unreachable,
    UnreadableVideo,
    Unwritable,
)
from midreel.server.schemas import FieldProblem, Problem

MEDIA_TYPE = "application/problem+json"
_MAX_LENGTH = 300  # characters of a text that may quote the request
_log = logging.getLogger("midreel.server")

# Replaces pydantic's message, which quotes the regular expression.
_MESSAGES = {
    "string_pattern_mismatch": "Value contains a control character or no visible character",
}

# The status and the text of midreel's exceptions. Their own messages may contain paths, which clients must not see.
# The first class that matches applies. All other exceptions are errors of the server: 500.
_DAMAGED = "The library is damaged or unreadable. See the server log for the repair."
_RESPONSES: tuple[tuple[type[MidreelError], int, str], ...] = (
    (MissingTokens, 404, "The video was removed from the library. GET /v1/videos lists all videos."),
    (MissingFeedback, 404, "There is no such feedback. GET /v1/feedback lists all feedback."),
    (Locked, 409, "Another process is writing to the library. Try again later."),
    (Unwritable, 507, "The library cannot be written: its disk is full or its folder is read-only. Free some space."),
    (UnreadableVideo, 422, "The video cannot be decoded. Index its folder again."),
    # The server recovers without a restart once the library is back, so these are 503 and not 500.
    (MissingLibrary, 503, "The library is missing. Mount its disk or restore it."),
    (Unreachable, 503, "The database of the library does not answer. Start it, or try again later."),
    (BadLibrary, 503, _DAMAGED),
    (BadIndex, 503, _DAMAGED),
    (BadStore, 503, _DAMAGED),
)
_RETRY_AFTER = {409: "5", 503: "5"}  # seconds


class ProblemError(Exception):
    """An error response: `problem` is its body, `headers` are added to it.

    Args:
        status: The HTTP status code.
        detail: What is wrong, and how to fix it.
        kind: The last part of the problem's URN. Default: the name of the status code.
        headers: Headers of the response.
        errors: The invalid fields of the request.
    """

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
        """The response to send."""
        return JSONResponse(
            self.problem.model_dump(exclude_defaults=True),
            status_code=self.problem.status,
            headers=self.headers,
            media_type=MEDIA_TYPE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. This makes the exception an ASGI application, for use in middleware."""
        await self.response(scope, receive, send)


def busy(what: str, seconds: int = 1) -> ProblemError:
    """Return the error for a full queue of `what`, such as searches. The client may retry after `seconds`."""
    return ProblemError(
        503,
        f"Too many {what} at once. Try again in {seconds} s.",
        kind="busy",
        headers={"Retry-After": str(seconds)},
    )


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of error responses: `statuses`, and those that any operation may have."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({*statuses, 401, 403, 408, 413, 422, 429, 500, 503})
    }


def install(app: FastAPI) -> None:
    """Make the application answer all errors with problem details."""

    @app.exception_handler(ProblemError)
    async def _(request: Request, error: ProblemError) -> Response:
        return error.response

    @app.exception_handler(MidreelError)
    async def _(request: Request, error: MidreelError) -> Response:
        return problem_of(error).response

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        detail = {
            400: "The request body cannot be parsed, expected JSON in UTF-8.",
            404: f"No such path: {request.url.path[:_MAX_LENGTH]!r}. See /openapi.json for all paths.",
            405: f"{request.method[:20]} is not allowed here. See /openapi.json for the methods of each path.",
        }.get(error.status_code, str(error.detail)[:_MAX_LENGTH])
        return ProblemError(error.status_code, detail, headers=error.headers).response

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> Response:
        errors = [
            FieldProblem(
                where=".".join(map(str, each["loc"]))[:_MAX_LENGTH],
                message=_MESSAGES.get(each["type"], each["msg"])[:_MAX_LENGTH],
            )
            for each in error.errors()[:20]
        ]
        detail = "; ".join(f"{each.where}: {each.message}" for each in errors[:3])
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if any(each.where == "body" for each in errors) and not kind.endswith("json"):  # curl's default is a form
            detail = (
                f"The content type is {kind or 'missing'}, expected application/json. "
                f"With curl, add -H 'Content-Type: application/json'."
            )[:_MAX_LENGTH]
        return ProblemError(422, detail, kind="invalid-request", errors=errors).response


def problem_of(error: MidreelError) -> ProblemError:
    """Return the response for an error. Log what the response does not say."""
    status, detail = status_and_detail(error)
    if status == 503:
        _log.error("%s", error)
    elif status == 500:
        _log.error("a request failed", exc_info=error)
    headers = {"Retry-After": _RETRY_AFTER[status]} if status in _RETRY_AFTER else {}
    return ProblemError(status, detail, kind="" if status == 500 else _kind(error), headers=headers)


def status_and_detail(error: Exception) -> tuple[int, str]:
    """Return the HTTP status of an error and a text for clients, which contains no paths."""
    if isinstance(error, BadQuery):  # its message quotes the request only
        return 422, str(error)
    for kind, status, detail in _RESPONSES:
        if isinstance(error, kind):
            return status, detail
    return 500, f"The library cannot be used ({type(error).__name__}). See the server log."


def _kind(error: MidreelError) -> str:
    """UnreadableVideo -> unreadable-video"""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in type(error).__name__).lstrip("-")
