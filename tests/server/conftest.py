import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from midreel.datasets import playhouse
from midreel.features import Backbone, load_backbone
from midreel.library.searcher import Searcher
from midreel.server.app import create_app
from midreel.server.runner import Server, listen
from midreel.types import Query
from tests.server import chromium

HERE = "http://127.0.0.1"


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still false after {seconds:g} s"
        time.sleep(0.01)


@dataclass(frozen=True, kw_only=True)
class World:
    """A library of playhouse videos: four in one folder, one in a subfolder, and an unreadable file."""

    videos: Path
    library: Path
    queries: list[Query]
    backbone: Backbone

    def copied(self, folder: Path) -> "World":
        """Return a world with a copy of the library, which a test may change, and the same videos."""
        shutil.copytree(self.library, folder / "library")
        return World(videos=self.videos, library=folder / "library", queries=self.queries, backbone=self.backbone)

    def searcher(self) -> Searcher:
        return Searcher.open(self.library, backbone=self.backbone)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("served")
    videos = folder / "Videos"
    split = playhouse.write_dataset(videos, seed=0, num_test=5)["test"]
    (videos / "holidays").mkdir()
    (videos / "playhouse-test-00004.mp4").rename(videos / "holidays" / "the beach, 2024 ä.mp4")
    (videos / "broken.mp4").write_bytes(b"this is no video" * 100)
    backbone = load_backbone("tiny-clip")
    with Searcher.create(folder / "library") as searcher:
        report = searcher.add(videos)
    assert (len(report.new), len(report.quarantined)) == (5, 1)
    return World(videos=videos, library=folder / "library", queries=split.queries, backbone=backbone)


@pytest.fixture(scope="session")
def app(world: World) -> Iterator[FastAPI]:
    """An application that tests must not change."""
    with world.searcher() as searcher:
        yield create_app(searcher)


@pytest.fixture(scope="session")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=HERE) as client:
        yield client


@pytest.fixture(scope="session")
def ids(client: TestClient) -> dict[str, str]:
    """The id of each video, by file name."""
    return {video["file"]: video["id"] for video in client.get("/v1/videos").json()["videos"]}


@pytest.fixture
def own(world: World, tmp_path: Path) -> World:
    return world.copied(tmp_path)


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Run an application as `midreel serve` does, and yield its address."""
    with listen("127.0.0.1", 0) as listener:
        server = Server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"{HERE}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


Serving = Callable[..., str]


@pytest.fixture
def served() -> Iterator[Serving]:
    """A function that serves a world until the test ends. Servers stop before their searchers are closed."""
    with ExitStack() as stack:

        def serve(world: World, **options: Any) -> str:
            return stack.enter_context(running(create_app(stack.enter_context(world.searcher()), **options)))

        yield serve


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report tests that were skipped because there is no browser."""
    for reason in sorted(set(chromium.skipped)):
        terminalreporter.section("the page", yellow=True)
        terminalreporter.write_line(reason)
