import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from midreel.errors import MissingLibrary, MissingTokens
from midreel.library.filters import Filter
from midreel.server import readiness
from midreel.server.app import create_app
from midreel.server.problems import ProblemError
from midreel.server.readiness import Readiness
from tests.server.conftest import HERE, World, wait_for
from tests.server.test_routes import problem, search

MISSING = "urn:midreel:problem:missing-library"


@pytest.fixture
def client(own: World) -> Iterator[TestClient]:
    with own.searcher() as searcher, TestClient(create_app(searcher), base_url=HERE) as client:
        wait_for(lambda: ready(client) == 200)
        yield client


def ready(client: TestClient) -> int:
    return client.get("/readyz").status_code


def delete(library: Path) -> None:
    shutil.copytree(library, library.parent / "backup")
    shutil.rmtree(library)


def restore(library: Path) -> None:
    (library.parent / "backup").rename(library)


def move_away(library: Path) -> None:
    library.rename(library.parent / "backup")


def damage_settings(library: Path) -> None:
    shutil.copytree(library, library.parent / "backup")
    (library / "library.json").write_text("{")


def damage_catalogue(library: Path) -> None:
    shutil.copytree(library, library.parent / "backup")
    (library / "catalogue.sqlite").unlink()
    (library / "catalogue.sqlite").write_bytes(b"no database" * 1000)


def replace_by_backup(library: Path) -> None:
    shutil.rmtree(library)
    restore(library)


@pytest.mark.parametrize(
    ("harm", "repair"),
    [
        (delete, restore),
        (move_away, restore),
        (damage_settings, replace_by_backup),
        (damage_catalogue, replace_by_backup),
    ],
)
def test_readiness_follows_the_library_without_a_restart(
    client: TestClient, own: World, harm: Callable[[Path], None], repair: Callable[[Path], None]
) -> None:
    harm(own.library)
    wait_for(lambda: ready(client) == 503)
    answer = client.get("/readyz")
    assert (problem(answer)["type"], answer.headers["retry-after"]) == ("urn:midreel:problem:not-ready", "2")
    assert ("library" in answer.json()["detail"], str(own.library) in answer.text) == (True, False)
    assert client.get("/healthz").status_code == 200
    repair(own.library)
    wait_for(lambda: ready(client) == 200)
    assert len(search(client, own.queries[0].text)["hits"]) == 5


def test_a_failed_search_makes_the_server_unready_at_once(client: TestClient, own: World) -> None:
    search(client, "a search that works")
    delete(own.library)
    assert client.post("/v1/search", json={"query": "a ball"}).status_code == 503
    assert ready(client) == 503


def test_every_request_reports_a_missing_library(client: TestClient, own: World) -> None:
    video_id = client.get("/v1/videos").json()["videos"][0]["id"]
    delete(own.library)
    requests = [
        ("POST", "/v1/search", {"query": "a ball"}),
        ("POST", "/v1/search", {"query": "a ball", "folder": "Videos"}),
        ("GET", "/v1/videos", None),
        ("GET", f"/v1/videos/{video_id}", None),
        ("GET", f"/v1/videos/{video_id}/stream", None),
        ("GET", f"/v1/videos/{video_id}/thumbnail", None),
        ("GET", f"/v1/videos/{video_id}/curve?query=x", None),
        ("GET", "/v1/library", None),
        ("GET", "/v1/quarantine", None),
        ("POST", "/v1/index", {"path": "Videos"}),
        ("DELETE", f"/v1/videos/{video_id}", None),
    ]
    for method, address, sent in requests:
        answer = client.request(method, address, json=sent)
        body = problem(answer)
        assert (address, body["status"], body["type"]) == (address, 503, MISSING)
        assert answer.headers["retry-after"] == "5"
    assert not own.library.exists()
    figures = client.get("/metrics")
    assert (figures.status_code, "midreel_videos NaN" in figures.text) == (200, True)


def test_a_replaced_library_is_served(client: TestClient, own: World, tmp_path: Path) -> None:
    served = own.copied(tmp_path / "other")
    with served.searcher() as searcher:
        gone = searcher.search("a ball", top=1)[0].video_id
        searcher.remove(gone)
    shutil.rmtree(own.library)
    served.library.rename(own.library)
    assert client.get("/v1/videos").json()["total"] == 4
    assert len(search(client, "a ball")["hits"]) == 4
    assert client.get(f"/v1/videos/{gone}/stream").status_code == 404


# ---------------------------------------------------------------- results of searches


class Searches:
    """A search that counts its calls and raises `error`."""

    def __init__(self, watch: Readiness) -> None:
        self.error: Exception | None = None
        self.number = 0
        self._search = watch.watched(self._answer)

    def _answer(self, queries: list[str], top: int, where: Filter) -> list[str]:
        self.number += 1
        if self.error is not None:
            raise self.error
        return queries

    async def __call__(self) -> None:
        self._search(["a ball"], 1, Filter())


def is_ready(watch: Readiness, searches: Searches) -> bool:
    try:
        asyncio.run(watch.expect(searches))
    except ProblemError:
        return False
    return True


def test_a_server_is_not_ready_before_its_first_search() -> None:
    watch = Readiness()
    searches = Searches(watch)
    assert (is_ready(watch, searches), searches.number) == (False, 0)
    asyncio.run(searches())
    assert (is_ready(watch, searches), searches.number) == (True, 1)


def test_an_old_result_triggers_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Readiness()
    searches = Searches(watch)
    asyncio.run(searches())
    monkeypatch.setattr(readiness, "MAX_AGE", 1e9)
    assert (is_ready(watch, searches), searches.number) == (True, 1)
    monkeypatch.setattr(readiness, "MAX_AGE", -1.0)
    assert (is_ready(watch, searches), searches.number) == (True, 2)
    searches.error = MissingLibrary("gone")
    assert (is_ready(watch, searches), watch.is_ready) == (False, False)
    searches.error = None
    assert (is_ready(watch, searches), watch.is_ready) == (True, True)


def test_a_missing_video_does_not_make_the_server_unready() -> None:
    watch = Readiness()
    searches = Searches(watch)
    asyncio.run(searches())
    searches.error = MissingTokens("removed")
    with pytest.raises(MissingTokens):
        asyncio.run(searches())
    assert watch.is_ready


def test_a_slow_search_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "MAX_AGE", -1.0)
    monkeypatch.setattr(readiness, "TIMEOUT", 0.01)
    watch = Readiness()
    asyncio.run(Searches(watch)())

    async def ask() -> None:
        await watch.expect(asyncio.Event().wait)

    with pytest.raises(ProblemError, match="takes more"):
        asyncio.run(ask())


def test_only_changes_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "MAX_AGE", -1.0)
    watch = Readiness()
    searches = Searches(watch)
    asyncio.run(searches())
    for searches.error in (MissingLibrary("gone"), MissingLibrary("still gone"), None, None):
        is_ready(watch, searches)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "gone" in caplog.text
