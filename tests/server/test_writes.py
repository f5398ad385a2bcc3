import asyncio
import http.client
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midreel.errors import Locked, MissingLibrary
from midreel.library.layout import Layout
from midreel.library.writer import Writer
from midreel.media import decode
from midreel.server.app import create_app
from midreel.server.client import Client, ServerProblem
from midreel.server.problems import ProblemError
from midreel.server.writes import WriteQueue, open_to_write
from tests.server.conftest import HERE, World, running, wait_for
from tests.server.test_routes import problem

BUSY = "urn:midreel:problem:locked"


def ids_of(client: TestClient) -> list[str]:
    return [each["id"] for each in client.get("/v1/videos").json()["videos"]]


@pytest.fixture
def queue() -> Iterator[WriteQueue]:
    queue = WriteQueue()
    yield queue
    queue.close()


@pytest.fixture
def client(own: World) -> Iterator[TestClient]:
    with own.searcher() as searcher, TestClient(create_app(searcher), base_url=HERE) as client:
        yield client


class Gate:
    """Block decoding until `is_open` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached, self.is_open = threading.Event(), threading.Event()
        real = decode.read_frames

        def read_frames(*words: Any, **options: Any) -> Any:
            self.is_reached.set()
            assert self.is_open.wait(20)
            return real(*words, **options)

        monkeypatch.setattr(decode, "read_frames", read_frames)


@pytest.fixture
def inbox(own: World, tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    (folder / "new.mp4").write_bytes((own.videos / "playhouse-test-00000.mp4").read_bytes() + b"another")
    return folder


# ---------------------------------------------------------------- over HTTP


def test_concurrent_removals_all_succeed(client: TestClient) -> None:
    video_ids = ids_of(client)
    with ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(lambda each: client.delete(f"/v1/videos/{each}").status_code, video_ids))
    assert (answers, ids_of(client)) == ([204] * 5, [])


def test_a_second_removal_of_a_video_is_a_404(client: TestClient) -> None:
    video_id = ids_of(client)[0]
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda _: client.delete(f"/v1/videos/{video_id}").status_code, range(2)))
    assert sorted(answers) == [204, 404]


def test_removals_by_two_servers_all_succeed(own: World) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                TestClient(create_app(stack.enter_context(own.searcher())), base_url=HERE, client=("127.0.0.1", number))
            )
            for number in range(2)
        ]
        video_ids = ids_of(clients[0])[:4]
        with ThreadPoolExecutor(4) as threads:
            removals = [
                threads.submit(clients[number % 2].delete, f"/v1/videos/{each}")
                for number, each in enumerate(video_ids)
            ]
        assert [removal.result().status_code for removal in removals] == [204] * 4
        assert [len(ids_of(client)) for client in clients] == [1, 1]


def test_a_removal_waits_for_the_running_job_and_overtakes_queued_ones(
    own: World, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with own.searcher() as searcher, TestClient(create_app(searcher, roots=[inbox]), base_url=HERE) as client:
        video_id = ids_of(client)[0]
        first = client.post("/v1/index", json={"path": "inbox"}).json()["id"]
        assert gate.is_reached.wait(20)
        waiting = client.post("/v1/index", json={"path": "Videos"}).json()["id"]
        with ThreadPoolExecutor(1) as threads:
            removal = threads.submit(client.delete, f"/v1/videos/{video_id}")
            writes = client.app.state.services.writes  # type: ignore[attr-defined]
            wait_for(lambda: writes.num_removals == 1)
            gate.is_open.set()
            assert removal.result().status_code == 204
        wait_for(lambda: client.get(f"/v1/jobs/{waiting}").json()["state"] == "done")
        assert client.get(f"/v1/jobs/{first}").json()["state"] == "done"
        # The queued job ran after the removal and indexed the file again.
        assert video_id in ids_of(client)


def test_a_removal_during_a_long_job_is_a_409(own: World, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with own.searcher() as searcher:
        app = create_app(searcher, roots=[inbox], write_timeout=0.2)
        with TestClient(app, base_url=HERE) as client:
            video_id = ids_of(client)[0]
            job = client.post("/v1/index", json={"path": "inbox"}).json()["id"]
            assert gate.is_reached.wait(20)
            answer = client.delete(f"/v1/videos/{video_id}")
            assert (answer.status_code, answer.headers["retry-after"]) == (409, "5")
            assert problem(answer)["type"] == BUSY
            gate.is_open.set()
            wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "done")
            assert video_id in ids_of(client)  # a refused removal does not run later
            assert client.delete(f"/v1/videos/{video_id}").status_code == 204


def test_a_removal_waits_for_another_process(own: World, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    video_id, was_busy, open_writer = ids_of(client)[0], threading.Event(), Writer.open

    @contextmanager
    def watched(*words: Any, **options: Any) -> Iterator[Writer]:
        try:
            with open_writer(*words, **options) as writer:
                yield writer
        except Locked:
            was_busy.set()
            raise

    monkeypatch.setattr(Writer, "open", watched)
    with ThreadPoolExecutor(1) as threads:
        with Layout(own.library).locked():
            removal = threads.submit(client.delete, f"/v1/videos/{video_id}")
            assert was_busy.wait(20)
        assert removal.result().status_code == 204


def test_a_job_that_waits_for_another_process_can_be_cancelled(own: World, client: TestClient) -> None:
    with Layout(own.library).locked():
        job = client.post("/v1/index", json={"path": "Videos"}).json()["id"]
        wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
        client.delete(f"/v1/jobs/{job}")
        wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled")


def test_a_client_that_disconnects_does_not_withdraw_its_removal(
    own: World, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with own.searcher() as searcher:
        app = create_app(searcher, roots=[inbox])
        with running(app) as address, Client(address) as client:
            video_id = next(client.videos()).id
            client.index("inbox")
            assert gate.is_reached.wait(20)
            with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)) as impatient:
                impatient.request("DELETE", f"/v1/videos/{video_id}")
                wait_for(lambda: app.state.services.writes.num_removals == 1)
            gate.is_open.set()
            wait_for(lambda: video_id not in {each.id for each in client.videos()})


def test_a_shutdown_refuses_waiting_removals(own: World, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with own.searcher() as searcher:
        app = create_app(searcher, roots=[inbox])
        writes = app.state.services.writes
        with ExitStack() as clients, ThreadPoolExecutor(2) as threads:
            with running(app) as address:
                client = clients.enter_context(Client(address))  # stays open until the removal is answered
                video_id = next(client.videos()).id
                client.index("inbox")
                assert gate.is_reached.wait(20)
                removal = threads.submit(client.remove, video_id)
                wait_for(lambda: writes.num_removals == 1)
                threads.submit(lambda: (wait_for(lambda: writes.is_ended), gate.is_open.set()))
            refused = removal.exception()
    assert isinstance(refused, ServerProblem)
    assert refused.problem.status == 503
    with own.searcher() as searcher:
        assert (video_id in searcher, len(searcher)) == (True, 6)


# ---------------------------------------------------------------- the queue


def blocked(queue: WriteQueue) -> threading.Event:
    """Add a job that runs until the returned event is set."""
    started, may_end = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert may_end.wait(20)

    queue.add_job(work)
    assert started.wait(20)
    return may_end


def test_writes_run_one_at_a_time_in_order_and_removals_first(queue: WriteQueue) -> None:
    done, may_end = list[str](), blocked(queue)

    def noted(name: str) -> Callable[..., None]:
        return lambda *_: done.append(name)

    async def run() -> None:
        jobs = [asyncio.wrap_future(queue.add_job(noted(name))) for name in ("job 1", "job 2")]
        removals = [asyncio.create_task(queue.remove(noted(name))) for name in ("removal 1", "removal 2")]
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(*jobs, *removals)

    asyncio.run(run())
    assert done == ["removal 1", "removal 2", "job 1", "job 2"]


def test_a_failed_write_does_not_affect_others(queue: WriteQueue) -> None:
    async def run() -> list[Any]:
        return await asyncio.gather(
            queue.remove(lambda _: 1 // 0), queue.remove(lambda _: "removed"), return_exceptions=True
        )

    failure, result = asyncio.run(run())
    assert (type(failure), result) == (ZeroDivisionError, "removed")


def test_removals_beyond_the_limit_are_refused() -> None:
    queue = WriteQueue(max_removals=1)
    may_end = blocked(queue)

    async def run() -> int:
        first = asyncio.create_task(queue.remove(lambda _: None))
        await asyncio.sleep(0)
        with pytest.raises(ProblemError) as refused:
            await queue.remove(lambda _: None)
        may_end.set()
        await first
        return refused.value.problem.status

    assert asyncio.run(run()) == 503
    queue.close()


def test_withdrawn_writes_do_not_run(queue: WriteQueue) -> None:
    done, may_end = list[int](), blocked(queue)
    for number in range(3):
        assert queue.withdraw(queue.add_job(lambda number=number: done.append(number)))
    last = queue.add_job(lambda: done.append(9))
    may_end.set()
    last.result(20)
    assert (done, queue.withdraw(last)) == ([9], False)


def test_the_end_refuses_waiting_removals_and_waits_for_the_running_write(queue: WriteQueue) -> None:
    may_end = blocked(queue)

    async def run() -> ProblemError:
        removal = asyncio.create_task(queue.remove(lambda _: None))
        await asyncio.sleep(0)
        queue.end()
        with pytest.raises(ProblemError) as refused:
            await removal
        with pytest.raises(ProblemError):
            await queue.remove(lambda _: None)
        return refused.value

    refused = asyncio.run(run())
    assert (refused.problem.status, refused.problem.type) == (503, "urn:midreel:problem:shutting-down")
    closing = threading.Thread(target=queue.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    may_end.set()
    closing.join(20)
    assert not closing.is_alive()


# ---------------------------------------------------------------- the library


def test_a_locked_library_is_busy_after_the_deadline(own: World) -> None:
    attempts = iter([False, False, True])
    with (
        Layout(own.library).locked(),
        pytest.raises(Locked),
        open_to_write(own.library, deadline=float("inf"), stop=lambda: next(attempts)),
    ):
        pass
    assert next(attempts, None) is None
    with (
        Layout(own.library).locked(),
        pytest.raises(Locked),
        open_to_write(own.library, deadline=0.0, stop=lambda: False),
    ):
        pass


def test_a_missing_library_is_not_created(own: World) -> None:
    shutil.rmtree(own.library)
    with pytest.raises(MissingLibrary), open_to_write(own.library, deadline=0.0, stop=lambda: False):
        pass
    assert not own.library.exists()


def test_a_job_does_not_create_a_missing_library(client: TestClient, own: World) -> None:
    """The disk may be unmounted after the request was accepted."""
    services = client.app.state.services  # type: ignore[attr-defined]
    wait_for(lambda: client.get("/readyz").status_code == 200)
    shutil.rmtree(own.library)
    job = services.jobs.start(own.videos, "Videos")
    wait_for(lambda: job.state.is_over)
    assert (job.state, "missing" in job.message, own.library.exists()) == ("failed", True, False)


def test_a_job_reports_that_its_library_was_deleted(own: World, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with own.searcher() as searcher, TestClient(create_app(searcher, roots=[inbox]), base_url=HERE) as client:
        job = client.post("/v1/index", json={"path": "inbox"}).json()["id"]
        assert gate.is_reached.wait(20)
        shutil.rmtree(own.library)
        gate.is_open.set()
        wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["state"] != "running")
        ended = client.get(f"/v1/jobs/{job}").json()
    assert (ended["state"], "missing" in ended["message"], own.library.exists()) == ("failed", True, False)
