"""Servers of a library in PostgreSQL: any number on any machines, which keep nothing themselves."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from midreel.io.locations import PathMap
from midreel.library.searcher import Searcher
from midreel.server.app import create_app
from tests.server.conftest import HERE, World, running, wait_for
from tools.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with PostgresServer({"fsync": "off"}) as server:
        yield server


@pytest.fixture(scope="module")
def filled(database: PostgresServer, world: World) -> str:
    """The URL of a library with the videos of the world."""
    with Searcher.create(database.url) as searcher:
        assert len(searcher.add(world.videos).new) == 5
    return database.url


@pytest.fixture
def two(filled: str, world: World) -> Iterator[list[httpx2.Client]]:
    """Clients of two servers of the same library."""
    with ExitStack() as stack:
        clients = []
        for _ in range(2):
            searcher = stack.enter_context(Searcher.open(filled, backbone=world.backbone))
            address = stack.enter_context(running(create_app(searcher)))
            clients.append(stack.enter_context(httpx2.Client(base_url=address, timeout=60)))
        yield clients


def hits(client: httpx2.Client, query: str) -> list[object]:
    answer = client.post("/v1/search", json={"query": query, "top": 5})
    assert answer.status_code == 200, answer.text
    return [(hit["video"]["id"], hit["score"], hit["start"], hit["end"]) for hit in answer.json()["hits"]]


def test_two_servers_give_the_same_answers(two: list[httpx2.Client], world: World) -> None:
    for query in world.queries[:5]:
        one, other = (hits(client, query.text) for client in two)
        assert one == other
        assert len(one) == 5
    for path in ("/v1/videos", "/v1/library", "/v1/quarantine", "/readyz", "/healthz"):
        one, other = (client.get(path) for client in two)
        assert one.status_code == other.status_code == 200, one.text
        assert one.json() == other.json()
    assert "midreel_videos 5.0" in two[0].get("/metrics").text


@pytest.mark.slow
def test_a_change_by_one_server_is_seen_by_the_other(two: list[httpx2.Client], world: World) -> None:
    video = two[0].get("/v1/videos").json()["videos"][0]
    assert two[0].delete(f"/v1/videos/{video['id']}").status_code == 204
    assert two[1].get(f"/v1/videos/{video['id']}").status_code == 404
    assert video["id"] not in [found[0] for found in hits(two[1], world.queries[0].text)]  # type: ignore[index]
    job = two[1].post("/v1/index", json={"path": "Videos"}).json()
    wait_for(lambda: two[1].get(f"/v1/jobs/{job['id']}").json()["state"] == "done", 60)
    assert two[0].get(f"/v1/videos/{video['id']}").status_code == 200


@pytest.mark.slow
def test_servers_answer_503_while_the_database_is_away_and_recover(
    two: list[httpx2.Client], database: PostgresServer, world: World
) -> None:
    expected = hits(two[0], world.queries[0].text)
    database.kill()
    try:
        for client in two:
            answer = client.post("/v1/search", json={"query": "a red ball"})
            assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").status_code == 503
            assert client.get("/metrics").status_code == 200
    finally:
        database.start()
    for client in two:
        wait_for(lambda client=client: client.get("/readyz").status_code == 200)  # type: ignore[misc]
        assert hits(client, world.queries[0].text) == expected


# ---------------------------------------------------------------- files in other places


@pytest.fixture
def moved(world: World, tmp_path: Path) -> Path:
    """A copy of the videos in another folder."""
    return Path(shutil.copytree(world.videos, tmp_path / "copy", copy_function=shutil.copyfile))


def fetch(world: World, filled: str, locations: PathMap, paths: list[str], **headers: str) -> list[httpx2.Response]:
    """Return the answers of a server to requests about the first video, whose id replaces `ID`."""
    with ExitStack() as stack:
        searcher = stack.enter_context(Searcher.open(filled, backbone=world.backbone))
        address = stack.enter_context(running(create_app(searcher, locations=locations)))
        client = stack.enter_context(httpx2.Client(base_url=address, timeout=60))
        video = client.get("/v1/videos", params={"text": "00000"}).json()["videos"][0]
        return [client.get(path.replace("ID", video["id"]), headers=headers) for path in paths]


PATHS = ["/v1/videos/ID/stream", "/v1/videos/ID/thumbnail?t=1"]


def test_files_are_read_where_the_map_leads(world: World, filled: str, moved: Path) -> None:
    original = (world.videos / "playhouse-test-00000.mp4").read_bytes()
    stream, picture = fetch(world, filled, PathMap.parse([f"{world.videos}={moved}"]), PATHS)
    assert (stream.content, picture.status_code) == (original, 200)
    (moved / "playhouse-test-00000.mp4").write_bytes(original + b"!")
    assert fetch(world, filled, PathMap.parse([f"{world.videos}={moved}"]), PATHS[:1])[0].status_code == 410
    (moved / "playhouse-test-00000.mp4").unlink()
    (moved / "playhouse-test-00000.mp4").symlink_to(world.videos / "playhouse-test-00000.mp4")
    # A link must not lead out of the folder that the map names.
    assert fetch(world, filled, PathMap.parse([f"{world.videos}={moved}"]), PATHS[:1])[0].status_code == 410


@pytest.fixture(scope="module")
def bucket(world: World) -> Iterator[str]:
    """The URL of a bucket with the videos, on a local server that speaks S3."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"{HERE}:{port}",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "hidden-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        system = fsspec.filesystem("s3")
        system.mkdir("films")
        system.put(str(world.videos), "films/videos", recursive=True)
        yield "s3://films/videos"
    server.stop()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.slow
def test_files_are_read_from_object_storage(
    world: World, filled: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of the proxies
    original = (world.videos / "playhouse-test-00000.mp4").read_bytes()
    locations = PathMap.parse([f"{world.videos}={bucket}"])
    stream, picture = fetch(world, filled, locations, PATHS)
    assert (stream.content, picture.status_code) == (original, 200)
    assert picture.headers["Content-Type"] == "image/jpeg"
    (proxy,) = fetch(world, filled, locations, ["/v1/videos/ID/proxy?end=1"])
    assert (proxy.status_code, proxy.json()["type"]) == (404, "urn:midreel:problem:no-proxy")
    (part,) = fetch(world, filled, locations, PATHS[:1], Range="bytes=100-199")
    assert (part.status_code, part.content) == (206, original[100:200])
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(original)}"


@pytest.mark.slow
def test_only_the_requested_bytes_are_transferred(world: World, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from midreel.io.locations import RemoteFile

    original = (world.videos / "playhouse-test-00000.mp4").read_bytes()
    file = RemoteFile(f"{bucket}/playhouse-test-00000.mp4")
    asked = []
    read = file._system.cat_file
    monkeypatch.setattr(file._system, "cat_file", lambda *a, **k: asked.append(k) or read(*a, **k))
    assert file.read(50, 7) == original[7:57]
    assert file.read(50, file.size - 10) == original[-10:]
    assert asked == [{"start": 7, "end": 57}, {"start": file.size - 10, "end": file.size}]
    with pytest.raises(FileNotFoundError):
        RemoteFile(f"{bucket}/missing.mp4")


@pytest.mark.slow
def test_a_storage_that_is_away_gives_503(
    world: World, filled: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{HERE}:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    (answer,) = fetch(world, filled, PathMap.parse([f"{world.videos}={bucket}"]), PATHS[:1])
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    assert answer.status_code == 503
    assert "hidden-secret" not in answer.text
