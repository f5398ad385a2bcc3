"""A client of `midreel serve`, in Python: the same words as the API, the same types as the server.

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
P = TypeVar("P", schemas.VideoPage, schemas.QuarantinePage)


class ServerProblem(MidreelError):
    """What the server said against a request; `problem` has it in parts."""

    def __init__(self, problem: schemas.Problem) -> None:
        super().__init__(f"{problem.title} ({problem.status}): {problem.detail}")
        self.problem = problem


class Unreachable(MidreelError):
    """The server did not answer, or not to the end."""


class Client:
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
    ) -> schemas.SearchResponse:
        body = {"query": query, "top": top, "threshold": threshold, "videos": videos, "folder": folder}
        return self._ask(schemas.SearchResponse, "POST", "/v1/search", json=_given(body))

    def curve(self, video_id: str, query: str) -> schemas.CurveResponse:
        return self._ask(schemas.CurveResponse, "GET", f"/v1/videos/{video_id}/curve", params={"query": query})

    # ------------------------------------------------------------ what is there

    def library(self) -> schemas.LibraryInfo:
        return self._ask(schemas.LibraryInfo, "GET", "/v1/library")

    def videos(self, *, text: str | None = None, folder: str | None = None) -> Iterator[schemas.Video]:
        """All of them, page after page."""
        for page in self._pages(schemas.VideoPage, "/v1/videos", _given({"text": text, "folder": folder})):
            yield from page.videos

    def video(self, video_id: str) -> schemas.Video:
        return self._ask(schemas.Video, "GET", f"/v1/videos/{video_id}")

    def quarantine(self) -> Iterator[schemas.Quarantined]:
        """All files that could not be read, page after page."""
        for page in self._pages(schemas.QuarantinePage, "/v1/quarantine", {}):
            yield from page.files

    def thumbnail(self, video_id: str, time: float | int = 0.0, *, width: int = 320) -> bytes:
        """A JPEG."""
        words = {"t": time, "width": width}
        return self._send(
            "GET", f"/v1/videos/{video_id}/thumbnail", params=words, headers={"Accept": "image/jpeg"}
        ).content

    def download(self, video_id: str, path: Path) -> None:
        """The whole file. What was at `path` stays until all of it has come."""
        with self._streamed(f"/v1/videos/{video_id}/stream") as answer:
            write_durably(path, answer.iter_bytes())

    # ------------------------------------------------------------ change

    def index(self, path: str) -> schemas.Job:
        """Begins to index a root, or what is in it; see `follow`."""
        return self._ask(schemas.Job, "POST", "/v1/index", json={"path": path})

    def follow(self, job: schemas.Job) -> Iterator[schemas.Job]:
        """The job as it goes on, until it is over."""
        with self._streamed(f"/v1/jobs/{job.id}/events", timeout=None) as answer:
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    yield schemas.Job.model_validate_json(line.removeprefix("data:"))

    def jobs(self) -> list[schemas.Job]:
        return self._ask(schemas.JobList, "GET", "/v1/jobs").jobs

    def cancel(self, job: schemas.Job) -> schemas.Job:
        return self._ask(schemas.Job, "DELETE", f"/v1/jobs/{job.id}")

    def remove(self, video_id: str) -> None:
        self._send("DELETE", f"/v1/videos/{video_id}")

    # ------------------------------------------------------------ how

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, kind: type[S], method: str, address: str, **options: Any) -> S:
        return kind.model_validate_json(self._send(method, address, **options).content)

    def _send(self, method: str, address: str, **options: Any) -> httpx2.Response:
        with self._reaching():
            answer = self._http.request(method, address, **options)
        _expect_success(answer)
        return answer

    def _pages(self, kind: type[P], address: str, words: dict[str, Any]) -> Iterator[P]:
        offset, total = 0, 1
        while offset < total:
            page = self._ask(kind, "GET", address, params=words | {"offset": offset, "limit": schemas.MOST_A_PAGE})
            yield page
            offset, total = offset + schemas.MOST_A_PAGE, page.total

    @contextmanager
    def _streamed(self, address: str, **options: Any) -> Iterator[httpx2.Response]:
        with self._reaching(), self._http.stream("GET", address, **options) as answer:
            if answer.is_error:
                answer.read()
            _expect_success(answer)
            yield answer

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            raise Unreachable(
                f"{self._http.base_url} did not answer ({str(error) or type(error).__name__}), expected midreel serve "
                f"there; check the address, and that it runs"
            ) from error


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _expect_success(answer: httpx2.Response) -> None:
    if not answer.is_error:
        return
    try:
        problem = schemas.Problem.model_validate_json(answer.content)
    except ValidationError:
        problem = schemas.Problem(
            type="about:blank", title=answer.reason_phrase, status=answer.status_code, detail=answer.text[:200]
        )
    raise ServerProblem(problem)
