"""The requests that a server gets, recorded by a small HTTP server; their form in gRPC; URLs, keys and errors."""

import json
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.conversions.conversion import RestToGrpc
from qdrant_client.http.exceptions import UnexpectedResponse

from midreel.errors import BadIndex, BadSetting, Unreachable, Unwritable
from midreel.index.qdrant import QdrantIndex
from midreel.index.qdrant.server import Server, check_url, translated
from midreel.index.rerank import QueryVector
from midreel.types import Similarity
from tests.index.library import WEIGHTS, video

RECORDED = Path(__file__).with_name("requests.json")
SECRET = "k3y-of-the-cluster"
DONE = {"result": {"operation_id": 1, "status": "completed"}, "status": "ok", "time": 0.0}
ANSWERS: dict[str, Any] = {
    "GET /aliases": {"result": {"aliases": []}},
    "PUT /collections": {"result": True},
    "POST /collections/aliases": {"result": True},
    "POST points": {"result": []},
    "POST count": {"result": {"count": 3}},
    "POST scroll": {"result": {"points": [], "next_page_offset": None}},
    "POST query": {"result": {"points": []}},
}


@pytest.fixture
def recorder() -> Iterator[tuple[str, list[Any]]]:
    """The URL of an HTTP server that answers like an empty Qdrant, and the requests that it gets."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            seen.append({"request": f"{self.command} {self.path}", "body": body, "key": self.headers.get("api-key")})
            place = self.path.partition("?")[0].removeprefix("/collections")
            last = place.rpartition("/")[2]
            for key in (f"{self.command} {self.path.partition('?')[0]}", f"{self.command} {last}"):
                if key in ANSWERS:
                    break
            else:
                key = "PUT /collections"
            found = DONE if last in ("index", "delete") or (self.command, last) == ("PUT", "points") else ANSWERS[key]
            text = json.dumps(found | {"status": "ok", "time": 0.0}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

        def log_message(self, *values: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


def test_the_requests_are_the_recorded_ones(recorder: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails after a change that is meant: delete requests.json, run the test again, and read the difference."""
    url, seen = recorder
    client = QdrantClient(url=url, api_key=None, check_compatibility=False)
    weights = {"clip": 0.25, "scene": 0.5}
    index = QdrantIndex.create(
        client,
        name="films",
        branch_weights=weights,
        width=2,
        similarities={"scene": Similarity(kind="dot")},
        shards=6,
        replicas=3,
    )
    part = video(0, width=2, clips=2, frames=2)
    index.add("a", {"clip": part["clip"], "scene": part["frame"]})
    index.search({"clip": np.array([[3.0, 4.0]]), "scene": np.array([[0.0, 2.0]])}, top=1, among=["b", "a"])
    index.search({"clip": np.array([[3.0, 4.0]]), "scene": np.array([[0.0, 2.0]])}, top=1, exact=True)
    client.close()
    found = json.loads(json.dumps([_without_chance(each) for each in seen]))
    if not RECORDED.exists():
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(RECORDED.read_text())


def _without_chance(value: Any) -> Any:
    """Return a request without ids, times and the last digits of numbers."""
    if isinstance(value, dict):
        hidden = ("id", "version", "order", "ids")
        return {name: "…" if name in hidden else _without_chance(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_chance(part) for part in value]
    return round(value, 5) if isinstance(value, float) else value


def test_the_recorded_requests_avoid_the_traps() -> None:
    requests = json.loads(RECORDED.read_text())
    searches = [each["body"] for each in requests if each["request"].endswith("/points/query")]
    assert len(searches) == 2
    for body in searches:
        assert set(body["query"]["defaults"]) == {"$score[0]", "$score[1]"}
        stages = [*body["prefetch"], *(inner for stage in body["prefetch"] for inner in stage.get("prefetch") or [])]
        assert all(stage["filter"]["must"] == stages[0]["filter"]["must"] for stage in stages)
        assert len({stage["limit"] for stage in stages}) == 1
    created = next(each["body"] for each in requests if each["request"] == "PUT /collections/films_1")
    assert created["write_consistency_factor"] == 2  # of 3
    for params in created["vectors"].values():
        assert params["hnsw_config"]["m"] == 0
        assert params["multivector_config"]["comparator"] == "max_sim"
    writes = [each["request"] for each in requests if "/points" in each["request"] and each["request"][:3] == "PUT"]
    assert len(writes) == 2
    assert all("wait=true" in each for each in writes)
    assert all(each["key"] is None for each in requests)


def test_requests_have_a_form_in_grpc() -> None:
    """The conversion is the client's own; a server is needed to send them."""
    index = QdrantIndex.create(QdrantClient(":memory:"), branch_weights=WEIGHTS, width=24)
    index.add("a", video(0))
    query = {branch: QueryVector(np.eye(24, dtype=np.float32)[0], 1.0) for branch in WEIGHTS}
    request = index.request(query, limit=7, among=["a"])
    stages = [RestToGrpc.convert_prefetch_query(stage) for stage in request["prefetch"]]
    assert [stage.using for stage in stages] == ["clip", "frame"]
    assert stages[1].prefetch[0].using == "clip"
    assert all(stage.HasField("filter") and stage.limit == 7 for stage in stages)
    formula = RestToGrpc.convert_query(request["query"])
    assert [part.mult.mult[1].variable for part in formula.formula.expression.sum.sum] == ["$score[0]", "$score[1]"]
    points = [models.PointStruct(id=1, vector={"clip": np.zeros((160, 384)).tolist()}, payload={})]
    size = sum(RestToGrpc.convert_point_struct(point).ByteSize() for point in points)
    assert size == pytest.approx(160 * 384 * 4, rel=0.05)


# ---------------------------------------------------------------- URLs, keys and errors


@pytest.mark.parametrize(
    "url", ["qdrant:6333", "http://", "http://me:k3y@db:6333", "http://db:6333?api_key=k3y", "ftp://db", "http://[k3y"]
)
def test_urls_with_keys_or_mistakes_are_refused_and_never_quoted(url: str) -> None:
    with pytest.raises(BadSetting) as caught:
        QdrantIndex.open(url)
    assert "k3y" not in str(caught.value)


def test_the_key_comes_from_the_environment(recorder: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    check_url("https://db.example:6333")
    monkeypatch.setenv("QDRANT_API_KEY", SECRET)
    with pytest.warns(UserWarning, match="insecure"):
        server = Server(recorder[0])
    assert SECRET not in server.place
    server.close()


def test_a_missing_server_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(QdrantClient(url="http://127.0.0.1:9", check_compatibility=False), patience=0.1)
    monkeypatch.setenv("QDRANT_API_KEY", SECRET)
    with pytest.raises(Unreachable) as caught:
        server.call("get_aliases")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


class Failure(grpc.RpcError):
    """An error of gRPC with a status."""

    def __init__(self, status: grpc.StatusCode, text: str = "") -> None:
        super().__init__(text)
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status


def answer(status: int, text: str = "") -> UnexpectedResponse:
    return UnexpectedResponse(status_code=status, reason_phrase=text, content=text.encode(), headers={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer(503), Unreachable),
        (answer(403), Unreachable),
        (answer(404), BadIndex),
        (answer(400), BadIndex),
        (answer(500, "No space left on device"), Unwritable),
        (Failure(grpc.StatusCode.UNAVAILABLE), Unreachable),
        (Failure(grpc.StatusCode.UNAUTHENTICATED, f"bad key {SECRET}"), Unreachable),
        (Failure(grpc.StatusCode.NOT_FOUND), BadIndex),
        (Failure(grpc.StatusCode.INTERNAL, "disk is full"), Unwritable),
    ],
)
def test_errors_of_the_server(error: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", SECRET)
    found = translated(error, "http://db:6333")
    assert type(found) is kind
    assert SECRET not in str(found)


def test_requests_are_repeated_until_the_server_is_back() -> None:
    class Client(QdrantClient):
        tries = 0

        def get_aliases(self, **kwargs: Any) -> Any:
            self.tries += 1
            if self.tries < 3:
                raise answer(503)
            return "found"

    client = Client(":memory:")
    assert Server(client).call("get_aliases") == "found"
    assert client.tries == 3
