import errno
import http.client
import json
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from midreel.errors import BadSetting
from midreel.library import scan
from midreel.library.searcher import Searcher
from midreel.library.storage import at
from midreel.server import runner, security
from midreel.server.app import create_app
from midreel.server.listing import LibraryListing
from midreel.server.problems import ProblemError
from midreel.server.security import Token, cookie_name
from tests.server.conftest import HERE, Serving, World, wait_for
from tests.server.test_routes import problem

SECRET = "a-token-of-some-length"


# ---------------------------------------------------------------- hosts, origins and tokens


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8765", "localhost:1", "[::1]:8765", "LOCALHOST"])
def test_local_host_names_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/v1/library", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["example.org", "127.0.0.1.example.org", "localhost.example.org:80", "", "[", "10.0.0.1"]
)
def test_other_host_names_are_refused(client: TestClient, host: str) -> None:
    for address in ("/", "/v1/library", "/openapi.json"):
        answer = client.get(address, headers={"Host": host})
        assert (answer.status_code, problem(answer)["type"]) == (403, "urn:midreel:problem:unknown-host")


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://example.org"}, {"Origin": "null"}, {"Origin": "http://["}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_requests_from_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    for method, address in (("POST", "/v1/index"), ("POST", "/v1/search"), ("DELETE", f"/v1/videos/{'0' * 32}")):
        answer = client.request(method, address, headers=headers, json={"path": "Videos"})
        assert (answer.status_code, problem(answer)["type"]) == (403, "urn:midreel:problem:cross-site")
    own = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/v1/search", headers=own, json={"query": "a ball"}).status_code == 200


@pytest.fixture
def locked(world: World) -> Any:
    with world.searcher() as searcher, TestClient(create_app(searcher, token=SECRET), base_url=HERE) as client:
        yield client


def test_a_token_is_required(locked: TestClient) -> None:
    bad = [b"Bearer wrong", SECRET.encode(), b"Bearer \xff", b"Bearer", b"Basic " + SECRET.encode()]
    cookies = [SECRET.encode(), b"\xff", b'"\\377', b""]
    tried = [{b"Authorization": value} for value in bad] + [{b"Cookie": b"midreel-80=" + value} for value in cookies]
    for headers in ({}, *tried):
        for address in ("/v1/library", "/v1/videos", "/metrics", "/openapi.json"):
            answer = locked.get(address, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="midreel"')
            assert problem(answer)["type"] == "urn:midreel:problem:token-needed"
    shown = {"Authorization": f"Bearer {SECRET}", "Host": "videos.example.org"}
    assert locked.get("/v1/library", headers=shown).status_code == 200


def test_only_the_page_and_health_need_no_token(locked: TestClient) -> None:
    for address in ("/", "/library", "/page/app.js", "/healthz"):
        assert locked.get(address).status_code == 200
    assert locked.get("/page/../v1/library").status_code in (401, 404)
    assert locked.get("/page/%2e%2e/v1/library").status_code == 404


def test_a_session_sets_a_cookie(locked: TestClient) -> None:
    wrong = locked.post("/v1/session", json={"token": "not it"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    given = locked.post("/v1/session", json={"token": SECRET})
    cookie = given.headers["set-cookie"]
    assert given.status_code == 204
    assert cookie.startswith("midreel-80=")  # with the port: browsers send cookies to all ports of a host
    assert SECRET not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert locked.get("/v1/library").status_code == 200  # the client keeps cookies


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = security.hmac.compare_digest
    monkeypatch.setattr(security.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    assert not Token(SECRET).is_right("x")
    assert compared == [(b"x", SECRET.encode())]


@pytest.mark.parametrize("token", ["", "short", "with spaces in the middle of it", "ümläüts-ümläüts-ümläüts"])
def test_weak_and_invalid_tokens_are_refused(token: str) -> None:
    with pytest.raises(BadSetting, match="at least 16"):
        Token(token)


def test_every_response_has_security_headers(client: TestClient) -> None:
    for answer in (
        client.get("/"),
        client.get("/v1/library"),
        client.get("/nothing"),
        client.get("/", headers={"Host": "x"}),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"query": "word " * 10_000}, "query"),
        ({"query": "a\x00b"}, "query"),
        ({"query": "a\x1b[31mb"}, "query"),
        ({"query": "a\nb"}, "query"),
        ({"query": "  "}, "query"),
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({}, "query"),
        ({"query": "a", "top": 0}, "top"),
        ({"query": "a", "top": 10**9}, "top"),
        ({"query": "a", "top": "ten"}, "top"),
        ({"query": "a", "top": "10"}, "top"),
        ({"query": "a", "top": True}, "top"),
        ({"query": "a", "threshold": "high"}, "threshold"),
        ({"query": "a", "videos": []}, "videos"),
        ({"query": "a", "videos": ["../../etc/passwd"]}, "videos"),
        ({"query": "a", "videos": ["a"] * 1001}, "videos"),
        ({"query": "a", "folder": "a\x00"}, "folder"),
        ({"query": "a", "topp": 3}, "topp"),
    ],
)
def test_invalid_fields_are_named(client: TestClient, body: Any, where: str) -> None:
    answer = client.post("/v1/search", json=body)
    body = problem(answer)
    assert (answer.status_code, len(answer.content) < 2000) == (422, True)
    assert any(where in each["where"] for each in body["errors"])
    assert where in body["detail"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"query": "\\ud800"}', b'{"query": "\xff"}', b'{"query": "a", "threshold": NaN}',
     b'{"query": "a", "threshold": 1e999}', b'{"a":' * 5000 + b"1" + b"}" * 5000],
)  # fmt: skip
def test_malformed_bodies_are_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/search", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, problem(answer)["status"]) in ((422, 422), (400, 400))


def test_an_unexpected_exception_is_a_500_without_details(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret")

    with own.searcher() as searcher, TestClient(create_app(searcher), base_url=HERE) as client:
        monkeypatch.setattr(client.app.state.services.listing, "listed", fail)  # type: ignore[attr-defined]
        answer = client.get("/v1/videos")
        assert (answer.status_code, "secret" in answer.text) == (500, False)
        assert "log" in problem(answer)["detail"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert 'route="/v1/videos",status="500"' in client.get("/metrics").text


def test_large_bodies_are_refused(client: TestClient) -> None:
    answer = client.post("/v1/search", content=b"x" * 200_000, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert all(size in problem(answer)["detail"] for size in ("200000", "131072"))
    unannounced = client.post("/v1/search", content=iter([b"x" * 10_000] * 20))
    assert (unannounced.status_code, "131072" in problem(unannounced)["detail"]) == (413, True)
    for method, address in (("GET", "/v1/library"), ("DELETE", f"/v1/videos/{'0' * 32}")):
        assert client.request(method, address, content=b"x" * 200_000).status_code == 413


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%00", "a" * 100, "a b", "file:%2f%2f%2fetc%2fpasswd"])
def test_ids_are_not_paths(client: TestClient, name: str) -> None:
    for what in ("", "/stream", "/thumbnail"):
        answer = client.get(f"/v1/videos/{name}{what}")
        assert answer.status_code in (404, 422)
        assert problem(answer)
        assert "root:" not in answer.text


@pytest.mark.parametrize(
    "path", ["/etc", "Videos/../..", "file:///etc/passwd", "Videos/\x00", "", "\ud800", "x" * 9999]
)
def test_paths_outside_the_roots_are_not_indexed(client: TestClient, path: str) -> None:
    body = json.dumps({"path": path}).encode()
    answer = client.post("/v1/index", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (403, 422)
    assert problem(answer)
    assert client.get("/v1/jobs").json() == {"jobs": []}


def index(client: TestClient, path: str) -> Any:
    job = client.post("/v1/index", json={"path": path}).json()
    wait_for(lambda: client.get(f"/v1/jobs/{job['id']}").json()["state"] not in ("queued", "running"))
    return client.get(f"/v1/jobs/{job['id']}").json()


def test_only_unchanged_indexed_files_are_served(own: World, tmp_path: Path) -> None:
    root, secret = tmp_path / "inbox", tmp_path / "secret.txt"
    root.mkdir()
    secret.write_text("nobody is to see this")
    film, outside = root / "film.mp4", own.videos / "holidays" / "the beach, 2024 ä.mp4"
    film.write_bytes(b"".join((own.videos / "playhouse-test-00001.mp4").read_bytes() for _ in range(1)) + b"more")
    (root / "escape.mp4").symlink_to(tmp_path / "other.mp4")
    (tmp_path / "other.mp4").write_bytes(outside.read_bytes() + b"other")
    (root / "everything").symlink_to("/")
    with own.searcher() as searcher, TestClient(create_app(searcher, roots=[root]), base_url=HERE) as client:
        job = index(client, "inbox")
        assert (job["state"], job["message"][:8]) == ("done", "1 new, 2")
        assert {each["file"]: each["reason"] for each in job["left_out"]} == dict.fromkeys(
            ("inbox/escape.mp4", "inbox/everything"), scan.LEADS_OUT
        )
        files = {video["file"]: video["id"] for video in client.get("/v1/videos").json()["videos"]}
        assert ("film.mp4" in files, "escape.mp4" in files) == (True, False)
        address = f"/v1/videos/{files['film.mp4']}"
        assert client.get(f"{address}/stream").content == film.read_bytes()
        times = film.stat()
        film.unlink()
        assert client.get(f"{address}/stream").status_code == 410
        secret.write_bytes(b"nobody is to see this" + bytes(times.st_size - 21))
        os.utime(secret, ns=(times.st_atime_ns, times.st_mtime_ns))
        film.symlink_to(secret)
        answer = client.get(f"{address}/stream")
        assert (answer.status_code, problem(answer)["type"]) == (410, "urn:midreel:problem:file-changed")
        assert "link" in problem(answer)["detail"]
        assert client.get(f"{address}/thumbnail").status_code == 410
        film.unlink()
        os.mkfifo(film)
        os.utime(film, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert client.get(f"{address}/stream").status_code == 410  # at once, although opening a pipe blocks


def test_a_file_that_cannot_be_opened_is_a_503(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = LibraryListing(at(own.library))
    item = next(iter(listing.contents().items.values()))

    def refuse(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ProblemError, match="Too many open files") as error:
        listing.open(item)
    monkeypatch.undo()
    assert (error.value.problem.status, error.value.headers["Retry-After"]) == (503, "5")
    listing.close()


# ---------------------------------------------------------------- slow clients


def drip(host: str, port: str, head: bytes) -> tuple[bytes, float]:
    """Send a byte every 0.1 s. Return the response, and the seconds until the server closes the connection."""
    start, seen = time.monotonic(), b""
    with socket.create_connection((host, int(port)), timeout=10) as connection, suppress(ConnectionError):
        connection.sendall(head)
        connection.settimeout(0.1)
        while time.monotonic() - start < 8:
            connection.sendall(b" ")
            with suppress(TimeoutError):
                piece = connection.recv(4096)
                if not piece:
                    break
                seen += piece
    return seen, time.monotonic() - start


def test_a_slow_body_is_a_timeout(world: World, served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.TimeoutProtocol, "request_timeout", 1.0)
    host, port = served(world, body_timeout=0.3).removeprefix("http://").split(":")
    more = b"Content-Length: 1000\r\nContent-Type: application/json\r\n\r\n"
    for request in (b"POST /v1/search", b"GET /healthz"):
        seen, seconds = drip(host, port, request + b" HTTP/1.1\r\nHost: localhost\r\n" + more)
        assert seen.startswith(b"HTTP/1.1 408")
        assert b'"status":408' in seen
        assert seconds < 6
    seen, seconds = drip(host, port, b"POST /v1/search HTTP/1.1\r\nHost: example.org\r\n" + more)
    assert (seen[:12], seconds < 6) == (b"HTTP/1.1 403", True)  # does not wait for the body of a refused request


def test_connections_beyond_the_limit_get_retry_after(
    world: World, served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.TimeoutProtocol, "max_connections", 2)
    host, port = served(world).removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(2)]
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Retry-After"], answer.headers["Connection"]) == (503, "5", "close")
    assert json.loads(answer.read())["type"] == "urn:midreel:problem:busy"
    connection.close()
    for each in idle:
        each.close()


@pytest.mark.slow
def test_an_incomplete_head_is_a_timeout(world: World, served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.TimeoutProtocol, "request_timeout", 0.3)
    host, port = served(world).removeprefix("http://").split(":")
    for begun in (
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(begun)
            start, seen = time.monotonic(), b""
            while piece := connection.recv(4096):
                seen += piece
            assert time.monotonic() - start < 8
            assert seen.startswith(b"HTTP/1.1 200") == begun.endswith(b"GET")


def test_slow_readers_do_not_delay_others(world: World, served: Serving, ids: dict[str, str]) -> None:
    video_id = ids["playhouse-test-00000.mp4"]
    host, port = served(world).removeprefix("http://").split(":")
    slow = []
    for _ in range(20):
        connection = socket.create_connection((host, int(port)), timeout=10)
        connection.sendall(f"GET /v1/videos/{video_id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        slow.append(connection)
    quick = http.client.HTTPConnection(host, int(port), timeout=10)
    quick.request("POST", "/v1/search", json.dumps({"query": "a ball"}), {"Content-Type": "application/json"})
    assert quick.getresponse().status == 200
    quick.close()
    for connection in slow:
        connection.close()


@pytest.mark.slow
def test_a_client_that_does_not_read_is_disconnected(
    own: World, served: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.TimeoutProtocol, "read_timeout", 0.3)
    inbox, size = tmp_path / "inbox", 64 * 1024 * 1024
    inbox.mkdir()
    (inbox / "large.mp4").write_bytes((own.videos / "playhouse-test-00001.mp4").read_bytes())
    os.truncate(inbox / "large.mp4", size)
    with own.searcher() as searcher:
        [path] = searcher.add(inbox).new
        [video_id] = [hit.video_id for hit in searcher.search("a ball", where=[f"folder={path.parent}"])]
    host, port = served(own).removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"GET /v1/videos/{video_id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        num_read = len(connection.recv(1))  # the response has started
        time.sleep(1.5)
        with suppress(ConnectionResetError):
            while num_read < size and (piece := connection.recv(1 << 20)):
                num_read += len(piece)
    assert num_read < size


def test_two_servers_do_not_share_metrics(world: World) -> None:
    with (
        Searcher.open(world.library, backbone=world.backbone) as searcher,
        TestClient(create_app(searcher), base_url=HERE) as one,
        TestClient(create_app(searcher), base_url=HERE) as two,
    ):
        one.get("/v1/jobs")
        assert 'route="/v1/jobs"' in one.get("/metrics").text
        assert 'route="/v1/jobs"' not in two.get("/metrics").text


@given(st.text(max_size=20))
def test_any_host_gives_a_valid_cookie_name(host: str) -> None:
    assert re.fullmatch(r"midreel-[0-9]{1,5}", cookie_name(host))


def test_the_cookie_is_found_among_others() -> None:
    token = Token("a-secret-of-some-length")
    sent = f"theme=dark; midreel-8765={token.cookie}; midreel-8766=another; a=b=c"
    assert token.admits(Headers({"host": "box:8765", "cookie": sent}))
    for host in ("box:8766", "box"):
        assert not token.admits(Headers({"host": host, "cookie": sent}))
    assert not token.admits(Headers({"host": "box:8765", "cookie": f"theme=dark; xmidreel-8765={token.cookie}"}))
    assert not token.admits(Headers({"host": "box:8765", "cookie": "midreel-8765=\u00e9"}))
    # The parser of the standard library takes minutes for this.
    assert not token.admits(Headers({"cookie": "a=" * 30_000 + '"'}))
