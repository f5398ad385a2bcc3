"""A Python client for `midreel serve`.

>>> from midreel.server.client import Client
>>> with Client("http://127.0.0.1:8765") as client:  # doctest: +SKIP
...     for hit in client.search("a dog jumps into the pool").hits:
...         print(hit.video.title, hit.start, hit.end)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from midreel.errors import MidreelError
from midreel.io.files import write_durably
from midreel.server import schemas

S = TypeVar("S", bound=BaseModel)
P = TypeVar("P", schemas.VideoPage, schemas.QuarantinePage, schemas.FeedbackPage)


class ServerProblem(MidreelError):
    """The server answered with an error. `problem` is the body of the response."""

    def __init__(self, problem: schemas.Problem) -> None:
        super().__init__(f"{problem.title} ({problem.status}): {problem.detail}")
        self.problem = problem


class Unreachable(MidreelError):
    """The server did not answer, or the connection broke."""


class Client:
    """A connection to a server. Use it as a context manager, or call `close`.

    Every method that sends a request raises ServerProblem if the server answers with an error, and Unreachable if it
    does not answer.

    Args:
        address: The URL that `midreel serve` prints, without the token.
        token: The token of the server, if it has one.
        timeout: The maximum time without data from the server, in seconds.
    """

    def __init__(
        self, address: str = "http://127.0.0.1:8765", *, token: str | None = None, timeout: float = 30
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx2.Client(base_url=address, headers=headers, timeout=timeout)

    # ------------------------------------------------------------ search

    def search(
        self,
        query: str,
        *,
        top: int = 10,
        threshold: float | int | None = None,
        videos: Sequence[str] | None = None,
        folder: str | None = None,
        like: tuple[str, float | int] | None = None,
    ) -> schemas.SearchResponse:
        """Return the videos and moments that match a description, best first.

        Args:
            query: A sentence that describes any part of a video, or sentences with operators.
            top: The maximum number of hits.
            threshold: The least probability of a confident match. Default: that of the server, 0.5.
            videos: Search only the videos with these ids.
            folder: Search only this folder and its subfolders.
            like: Search for moments like this one: the id of a video, and a time in seconds.
        """
        body = {"query": query, "top": top, "threshold": threshold, "videos": videos, "folder": folder}
        body["like"] = {"video": like[0], "time": like[1]} if like else None
        return self._request_as(schemas.SearchResponse, "POST", "/v1/search", json=_without_none(body))

    def curve(self, video_id: str, query: str) -> schemas.CurveResponse:
        """Return the score of a query over time in one video."""
        return self._request_as(schemas.CurveResponse, "GET", f"/v1/videos/{video_id}/curve", params={"query": query})

    # ------------------------------------------------------------ feedback

    def add_feedback(
        self,
        query: str,
        video_id: str,
        *,
        match: bool = True,
        start: float | int | None = None,
        end: float | int | None = None,
    ) -> schemas.FeedbackItem:
        """Say whether a moment of a video is what a query describes. Return the feedback with its id.

        Args:
            query: A plain sentence.
            video_id: The id of the video.
            match: True for "this is it", False for "not this".
            start: The start of the moment in seconds. Default: the start of the video.
            end: The end of the moment in seconds. Default: the end of the video.
        """
        body = _without_none({"query": query, "video": video_id, "match": match, "start": start, "end": end})
        return self._request_as(schemas.FeedbackItem, "POST", "/v1/feedback", json=body)

    def feedback(self, *, query: str | None = None, video_id: str | None = None) -> Iterator[schemas.FeedbackItem]:
        """Yield the feedback, oldest first.

        Args:
            query: Yield only feedback on this sentence.
            video_id: Yield only feedback on this video.
        """
        wanted = _without_none({"query": query, "video": video_id})
        for page in self._pages(schemas.FeedbackPage, "/v1/feedback", wanted):
            yield from page.feedback

    def remove_feedback(self, feedback_id: int) -> None:
        """Delete a piece of feedback."""
        self._request("DELETE", f"/v1/feedback/{feedback_id}")

    # ------------------------------------------------------------ the library and its videos

    def library(self) -> schemas.LibraryInfo:
        """Return the size, folders and model of the library."""
        return self._request_as(schemas.LibraryInfo, "GET", "/v1/library")

    def videos(self, *, text: str | None = None, folder: str | None = None) -> Iterator[schemas.Video]:
        """Yield all videos.

        Args:
            text: Yield only videos whose file or folder name contains this text.
            folder: Yield only videos in this folder and its subfolders.
        """
        for page in self._pages(schemas.VideoPage, "/v1/videos", _without_none({"text": text, "folder": folder})):
            yield from page.videos

    def video(self, video_id: str) -> schemas.Video:
        """Return one video, with its tags."""
        return self._request_as(schemas.Video, "GET", f"/v1/videos/{video_id}")

    def quarantine(self) -> Iterator[schemas.Quarantined]:
        """Yield all unreadable files, with the reasons."""
        for page in self._pages(schemas.QuarantinePage, "/v1/quarantine", {}):
            yield from page.files

    def thumbnail(self, video_id: str, time: float | int = 0.0, *, width: int = 320) -> bytes:
        """Return a frame of a video as a JPEG.

        Args:
            video_id: The id of the video.
            time: The time of the frame in seconds.
            width: The maximum width in pixels.
        """
        params = {"t": time, "width": width}
        return self._request(
            "GET", f"/v1/videos/{video_id}/thumbnail", params=params, headers={"Accept": "image/jpeg"}
        ).content

    def download(self, video_id: str, path: Path) -> None:
        """Save the file of a video. An existing file is replaced only after the download is complete."""
        with self._stream(f"/v1/videos/{video_id}/stream") as response:
            write_durably(path, response.iter_bytes())

    # ------------------------------------------------------------ changes

    def index(self, path: str) -> schemas.Job:
        """Start a job that indexes a root, or a video or folder in it, and return the job. See `follow`."""
        return self._request_as(schemas.Job, "POST", "/v1/index", json={"path": path})

    def follow(self, job: schemas.Job) -> Iterator[schemas.Job]:
        """Yield the job each time it makes progress, until it has ended."""
        with self._stream(f"/v1/jobs/{job.id}/events", timeout=None) as response:
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield schemas.Job.model_validate_json(line.removeprefix("data:"))

    def jobs(self) -> list[schemas.Job]:
        """Return the latest jobs, newest first."""
        return self._request_as(schemas.JobList, "GET", "/v1/jobs").jobs

    def cancel(self, job: schemas.Job) -> schemas.Job:
        """Cancel a job and return it. It finishes the videos in progress."""
        return self._request_as(schemas.Job, "DELETE", f"/v1/jobs/{job.id}")

    def remove(self, video_id: str) -> None:
        """Remove a video from the library. Its files stay on disk."""
        self._request("DELETE", f"/v1/videos/{video_id}")

    # ------------------------------------------------------------ the connection

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request_as(self, kind: type[S], method: str, path: str, **options: Any) -> S:
        return kind.model_validate_json(self._request(method, path, **options).content)

    def _request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        with self._translate_errors():
            response = self._http.request(method, path, **options)
        _raise_for_status(response)
        return response

    def _pages(self, kind: type[P], path: str, params: dict[str, Any]) -> Iterator[P]:
        offset, total = 0, 1
        while offset < total:
            page = self._request_as(
                kind, "GET", path, params=params | {"offset": offset, "limit": schemas.MAX_PAGE_SIZE}
            )
            yield page
            offset, total = offset + schemas.MAX_PAGE_SIZE, page.total

    @contextmanager
    def _stream(self, path: str, **options: Any) -> Iterator[httpx2.Response]:
        with self._translate_errors(), self._http.stream("GET", path, **options) as response:
            if response.is_error:
                response.read()
            _raise_for_status(response)
            yield response

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            raise Unreachable(
                f"{self._http.base_url} does not answer ({str(error) or type(error).__name__}), expected midreel "
                f"serve. Check the address, and that the server is running."
            ) from error


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _raise_for_status(response: httpx2.Response) -> None:
    if not response.is_error:
        return
    try:
        problem = schemas.Problem.model_validate_json(response.content)
    except ValidationError:  # a proxy answers in its own format
        problem = schemas.Problem(
            type="about:blank", title=response.reason_phrase, status=response.status_code, detail=response.text[:200]
        )
    raise ServerProblem(problem)
