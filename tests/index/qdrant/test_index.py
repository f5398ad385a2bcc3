"""What only the index in Qdrant has: versions of videos, collections with an alias, and the size of requests."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from qdrant_client import QdrantClient

from midreel.errors import BadIndex, BadSetting, FingerprintMismatch
from midreel.index.qdrant import QdrantIndex
from midreel.index.qdrant import index as module
from tests.index.library import WEIGHTS, WIDTH, qdrant_client, queries, tokens, video
from tests.index.test_contract import assert_alike, oracle
from tools.forking import fork
from tools.qdrant_core import CoreClient

NAME = "test_videos"


@pytest.fixture(params=["local", "core"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QdrantClient]:
    made = qdrant_client() if request.param == "local" else CoreClient(tmp_path / "core")
    yield made
    if os.environ.get("MIDREEL_QDRANT_URL") and request.param == "local":
        for collection in made.get_collections().collections:
            if collection.name.startswith(NAME):
                made.delete_collection(collection.name)
    made.close()


@pytest.fixture
def index(client: QdrantClient) -> QdrantIndex:
    return QdrantIndex.create(client, name=NAME, branch_weights=WEIGHTS, width=WIDTH, fingerprint="model 1")


class StoppedError(Exception):
    """The writer has crashed."""


def fail_at(index: QdrantIndex, request: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an index crash instead of sending one of its next requests."""
    call, left = index._server.call, [request]

    def counted(*values: Any, **settings: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise StoppedError
        return call(*values, **settings)

    monkeypatch.setattr(index._server, "call", counted)


def test_a_crash_between_any_requests_leaves_the_old_video_or_the_new_one(
    client: QdrantClient, index: QdrantIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REQUEST", 1)  # each window is a request of its own
    states, crashes = set(), 0
    while True:
        index.add("a", video(1, windows=3))
        index.add("b", video(9))
        with monkeypatch.context() as patch:
            fail_at(index, crashes, patch)
            try:
                index.add("a", video(2, windows=2))
            except StoppedError:
                crashes += 1
            else:
                break
        reader = QdrantIndex.open(client, name=NAME)
        windows = len(reader.tokens("a")["clip"])
        states.add(windows)
        assert windows in (2, 3)
        assert sorted(reader.video_ids()) == ["a", "b"]
        assert_alike(reader.search(queries(0)), oracle(reader).search(queries(0)))
    assert states == {2, 3}
    assert crashes >= 4
    monkeypatch.setattr(module, "_GRACE", 0)
    before = index.search(queries(0))
    index.compact()
    assert index.search(queries(0)) == before
    assert client.count(index.collection).count == 2 + 2 + 1  # heads, and the windows of both videos


def test_a_crash_of_a_removal(client: QdrantClient, index: QdrantIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = 0
    while True:
        index.add("a", video(1, windows=3))
        with monkeypatch.context() as patch:
            fail_at(index, crashes, patch)
            try:
                index.remove("a")
            except StoppedError:
                crashes += 1
            else:
                break
        reader = QdrantIndex.open(client, name=NAME)
        assert ("a" in reader) == bool(reader.search(queries(0, 1))[0])
    assert crashes >= 2
    assert index.search(queries(0, 1)) == [[]]


@pytest.mark.parametrize("step", range(1, 5))
def test_two_writers_of_the_same_video(
    client: QdrantClient, index: QdrantIndex, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The second writer adds the video between any two requests of the first one."""
    other, call, left = QdrantIndex.open(client, name=NAME), index._server.call, [step]
    index.add("a", video(0))

    def interrupted(*values: Any, **settings: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            other.add("a", video(2, windows=2))
        return call(*values, **settings)

    monkeypatch.setattr(index._server, "call", interrupted)
    index.add("a", video(1, windows=3))
    monkeypatch.undo()
    windows = len(other.tokens("a")["clip"])
    assert windows in (2, 3)
    assert other.video_ids() == ["a"]
    assert_alike(index.search(queries(0)), oracle(other).search(queries(0)))


@pytest.mark.slow
def test_a_killed_writer_of_the_core(tmp_path: Path) -> None:
    """Acknowledged videos are there after kill -9, and no video is half there."""
    torch.set_num_threads(1)
    QdrantIndex.create(made := CoreClient(tmp_path), name=NAME, branch_weights=WEIGHTS, width=WIDTH)
    made.close()
    total = 0
    for turn in range(3):
        reader, writer = os.pipe()
        child = fork()
        if not child:
            os.close(reader)
            index = QdrantIndex.open(CoreClient(tmp_path), name=NAME)
            for number in range(1000):
                index.add(f"v{turn}-{number}", video(number, windows=1 + number % 3))
                os.write(writer, b".")
            os._exit(0)
        os.close(writer)
        os.read(reader, 1)
        time.sleep(0.3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        acknowledged = 1
        while piece := os.read(reader, 2**12):
            acknowledged += len(piece)
        os.close(reader)
        total += acknowledged
        client = CoreClient(tmp_path)
        index = QdrantIndex.open(client, name=NAME)
        ids = index.video_ids()
        assert [f"v{turn}-{number}" for number in range(acknowledged)] == [
            name for name in ids if name.startswith(f"v{turn}-")
        ][:acknowledged]
        assert len(ids) - total <= turn + 1  # a video may be complete although it was not acknowledged
        for name in ids[-3:]:
            number = int(name.partition("-")[2])
            assert len(index.tokens(name)["clip"]) == 1 + number % 3
        # Exact, because the candidates of many videos are few: the promise is that nothing is lost.
        assert_alike(index.search(queries(0), exact=True), oracle(index).search(queries(0)))
        client.close()


def test_generations(client: QdrantClient, index: QdrantIndex) -> None:
    index.add("a", video(0))
    other = index.successor(branch_weights={"frame": 1.0}, width=8, fingerprint="model 2")
    other.add("b", {"frame": video(1, width=8)["frame"]})
    assert index.is_serving()
    assert not other.is_serving()
    assert QdrantIndex.open(client, name=NAME, fingerprint="model 1").video_ids() == ["a"]
    with pytest.raises(BadSetting, match="serves"):
        index.drop()
    other.serve()
    assert QdrantIndex.open(client, name=NAME).video_ids() == ["b"]
    assert index.video_ids() == ["a"]
    with pytest.raises(FingerprintMismatch, match="model 2"):
        QdrantIndex.open(client, name=NAME, fingerprint="model 1")
    index.drop()
    assert other.video_ids() == ["b"]


def test_missing_and_existing_indexes(client: QdrantClient, index: QdrantIndex) -> None:
    with pytest.raises(BadIndex, match="already"):
        QdrantIndex.create(client, name=NAME, branch_weights=WEIGHTS, width=WIDTH)
    with pytest.raises(BadIndex, match="no index"):
        QdrantIndex.open(client, name="test_missing")
    with pytest.raises(BadSetting, match="width"):
        QdrantIndex.create(client, name="test_other", branch_weights=WEIGHTS, width=0)
    with pytest.raises(BadSetting, match="UTF-8"):
        index.add("\udcff", video(0))


def test_requests_are_small_enough(index: QdrantIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REQUEST", 3 * 24 * 4 * WIDTH)  # the windows of up to three videos
    sizes, call = [], index._server.call

    def counted(method: str, *values: Any, **settings: Any) -> Any:
        if method == "upsert":
            sizes.append(sum(len(part) for point in settings["points"] for part in point.vector.values()))
        return call(method, *values, **settings)

    monkeypatch.setattr(index._server, "call", counted)
    index.add_all((f"v{number}", video(number)) for number in range(12))
    index.add("long", video(12, windows=20))
    assert max(sizes) <= 3 * 24
    assert len(sizes) > 10
    assert len(index) == 13
    assert len(index.tokens("long")["clip"]) == 20


def test_spans_and_lengths_come_back(index: QdrantIndex) -> None:
    added = {branch: tokens(3 * torch.randn(2, 5, WIDTH)) for branch in WEIGHTS}
    index.add("a", added)
    for branch, kept in index.tokens("a").items():
        assert kept.spans == pytest.approx(added[branch].spans.numpy())


@pytest.mark.parametrize("operation", [lambda index: index.tokens("a"), lambda index: index.search(queries(0, 1))])
def test_a_video_that_is_replaced_while_it_is_read(
    client: QdrantClient, index: QdrantIndex, monkeypatch: pytest.MonkeyPatch, operation: Callable[[QdrantIndex], Any]
) -> None:
    index.add("a", video(0, windows=3))
    index.add("b", video(3))
    other, call, seeds = QdrantIndex.open(client, name=NAME), index._server.call, iter(range(1, 3))

    def disturbed(method: str, *values: Any, **settings: Any) -> Any:
        if settings.get("with_vectors"):
            for seed in seeds:
                other.add("a", video(seed))
                break
        return call(method, *values, **settings)

    monkeypatch.setattr(index._server, "call", disturbed)
    assert operation(index)  # the replaced video may be missing from one answer, but never half of it
    monkeypatch.undo()
    assert len(index.tokens("a")["clip"]) == 1
