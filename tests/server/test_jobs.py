import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midreel.library import indexer
from midreel.library.layout import Layout
from midreel.library.report import IndexReport, Progress, Step
from midreel.library.session import Writer
from midreel.media import decode as video
from midreel.server.app import create_app
from midreel.server.jobs import JobDesk, _summary
from midreel.server.listing import Shelf
from midreel.server.problems import ProblemError
from midreel.server.schemas import JobState
from midreel.server.writes import WriteQueue
from tests.server.conftest import HERE, World, wait_for
from tests.server.test_routes import problem
from tests.server.test_security import index


@pytest.fixture
def inbox(own: World, tmp_path: Path) -> Path:
    """Two videos that the library does not know yet, and one that is none."""
    root = tmp_path / "inbox"
    (root / "new").mkdir(parents=True)
    for name in ("playhouse-test-00000.mp4", "playhouse-test-00001.mp4"):
        (root / "new" / name).write_bytes((own.videos / name).read_bytes() + b"another")
    (root / "nothing.mp4").write_bytes(b"nothing")
    return root


@pytest.fixture
def client(own: World, inbox: Path) -> Iterator[TestClient]:
    """Waits for another process for a shorter time than `midreel serve` does."""
    with own.searcher() as searcher:
        app = create_app(searcher, roots=[inbox], write_patience=0.3)
        with TestClient(app, base_url=HERE) as client:
            yield client


def test_a_job_adds_what_is_in_a_folder(client: TestClient, own: World) -> None:
    answer = client.post("/v1/index", json={"path": "inbox"})
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{job['id']}")
    job = index(client, "inbox")
    assert job["state"] == "done"
    jobs = client.get("/v1/jobs").json()["jobs"]
    first = jobs[-1]
    assert (first["state"], first["added"], first["done"], first["total"]) == ("done", 2, 3, 3)
    assert first["message"] == "2 new, 1 left out"
    assert [each["file"] for each in first["left_out"]] == ["inbox/nothing.mp4"]
    assert client.get("/v1/quarantine").json()["total"] == 2
    found = client.post("/v1/search", json={"query": own.queries[0].text, "folder": "inbox/new"}).json()["hits"]
    assert {hit["video"]["folder"] for hit in found} == {"inbox/new"}
    assert len(found) == 2


def test_progress_comes_as_events_until_the_job_is_over(client: TestClient) -> None:
    job = client.post("/v1/index", json={"path": "inbox/new"}).json()
    with client.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = [json.loads(line[5:]) for line in answer.iter_lines() if line.startswith("data:")]
    assert (told[-1]["state"], told[-1]["done"], told[-1]["added"]) == ("done", 2, 2)
    assert [each["done"] for each in told] == sorted(each["done"] for each in told)


def test_a_job_that_is_not_there_is_a_problem(client: TestClient) -> None:
    for method, address in (("GET", "/v1/jobs/x"), ("DELETE", "/v1/jobs/x"), ("GET", "/v1/jobs/x/events")):
        answer = client.request(method, address)
        assert (answer.status_code, problem(answer)["type"]) == (404, "urn:midreel:problem:no-job")


def test_while_another_process_writes_jobs_fail_and_nothing_is_forgotten(client: TestClient, own: World) -> None:
    video_id = client.get("/v1/videos").json()["videos"][0]["id"]
    with Layout(own.library).held():
        job = index(client, "inbox")
        answer = client.delete(f"/v1/videos/{video_id}")
    assert (job["state"], "another process is writing the library" in job["message"]) == ("failed", True)
    assert str(own.library) not in answer.text + job["message"]
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "5")
    assert problem(answer)["type"] == "urn:midreel:problem:library-busy"
    assert client.get(f"/v1/videos/{video_id}").status_code == 200


def test_what_has_left_a_folder_leaves_the_library(client: TestClient, inbox: Path) -> None:
    index(client, "inbox")
    (inbox / "new" / "playhouse-test-00000.mp4").unlink()
    assert "1 removed" in index(client, "inbox")["message"]
    assert client.get("/v1/videos", params={"folder": "inbox/new"}).json()["total"] == 1


# ---------------------------------------------------------------- the desk


class Indexing:
    """Stands for indexing: goes on file by file, each when it is let."""

    def __init__(self, total: int) -> None:
        self.total, self.may_go, self.done = total, threading.Semaphore(0), list[str]()

    def __call__(self, path: Path, progress: Progress, stop: Callable[[], bool]) -> IndexReport:
        report = IndexReport()
        for number in range(self.total):
            if stop():
                break
            assert self.may_go.acquire(timeout=20)
            report.new.append(path / str(number))
            self.done.append(f"{path.name}-{number}")
            progress(Step(path=path / str(number), kind="new", seconds=1.0, total=self.total))
        return report


@pytest.fixture
def shelf(world: World) -> Iterator[Shelf]:
    shelf = Shelf(world.library)
    yield shelf
    shelf.close()


@pytest.fixture
def writes() -> Iterator[WriteQueue]:
    queue = WriteQueue()
    yield queue
    queue.close()


def test_a_job_that_is_cancelled_ends_after_the_video_in_flight(shelf: Shelf, writes: WriteQueue) -> None:
    indexing = Indexing(total=5)
    desk = JobDesk(indexing, shelf, writes)
    job = desk.begin(Path("/a"), "a")
    indexing.may_go.release(2)
    wait_for(lambda: job.done == 2)
    assert job.shown().seconds_left is not None
    desk.cancel(job)
    assert job.shown().state == JobState.RUNNING
    indexing.may_go.release()
    wait_for(lambda: job.state.is_over)
    assert (job.state, job.done) == (JobState.CANCELLED, 3)
    assert job.message == "cancelled; what was begun is finished and stays: 3 new"


def test_every_video_that_a_cancelled_job_has_begun_is_kept(
    client: TestClient, own: World, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on, real = list[str](), threading.Event(), video.read_frames

    def slowly(path: Path, *options: Any, **more: Any) -> Any:
        begun.append(path.name)
        assert may_go_on.wait(20)
        return real(path, *options, **more)

    for number in range(4):
        (inbox / "new" / f"{number}.mp4").write_bytes(
            (own.videos / "playhouse-test-00002.mp4").read_bytes() + b"%d" % number
        )
    monkeypatch.setattr(video, "read_frames", slowly)
    job = client.post("/v1/index", json={"path": "inbox/new"}).json()["id"]
    wait_for(lambda: bool(begun))
    client.delete(f"/v1/jobs/{job}")
    may_go_on.set()
    wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled")
    kept = client.get("/v1/videos", params={"folder": "inbox/new"}).json()["videos"]
    assert {video["file"] for video in kept} == set(begun)
    assert 0 < len(begun) < 6


def test_what_was_moved_survives_a_job_that_is_cancelled_before_it_has_looked_there(
    client: TestClient, own: World, inbox: Path
) -> None:
    index(client, "inbox")
    (inbox / "new" / "playhouse-test-00000.mp4").rename(inbox / "moved.mp4")
    with Writer.open(own.library, backbone=own.backbone) as writer:
        indexer.index(writer, [inbox], stop=lambda: True)
    assert client.get("/v1/videos", params={"folder": "inbox"}).json()["total"] == 2
    assert "1 moved" in index(client, "inbox")["message"]


def test_a_job_tells_of_copies_of_damage_and_of_places_that_are_away() -> None:
    here = Path("/a/b")
    report = IndexReport(
        new=[here],
        copies=[here, here],
        repaired=[here],
        damaged={here: "1 packet could not be decoded"},
        unreachable={here: "it does not exist now"},
    )
    assert _summary(report) == (
        "1 new, 2 copies, 1 repaired, 1 damaged in part, 1 not looked into, whose videos are kept"
    )


def test_jobs_wait_for_each_other_and_too_many_are_refused(shelf: Shelf, writes: WriteQueue) -> None:
    indexing = Indexing(total=1)
    desk = JobDesk(indexing, shelf, writes, most_waiting=2)
    first = desk.begin(Path("/a"), "a")
    wait_for(lambda: first.state == JobState.RUNNING)
    second, third = desk.begin(Path("/b"), "b"), desk.begin(Path("/c"), "c")
    assert desk.begin(Path("/b"), "b") is second
    with pytest.raises(ProblemError) as refused:
        desk.begin(Path("/d"), "d")
    assert (refused.value.problem.status, refused.value.headers["Retry-After"]) == (503, "30")
    desk.cancel(third)
    assert (third.state, third.turn is not None and writes.withdraw(third.turn)) == (JobState.CANCELLED, False)
    indexing.may_go.release(2)
    wait_for(lambda: second.state == JobState.DONE)
    assert indexing.done == ["a-0", "b-0"]


def test_an_end_in_between_cancels_what_waits_and_waits_for_what_runs(
    shelf: Shelf, writes: WriteQueue, caplog: pytest.LogCaptureFixture
) -> None:
    indexing = Indexing(total=3)
    desk = JobDesk(indexing, shelf, writes)
    running, waiting = desk.begin(Path("/a"), "a"), desk.begin(Path("/b"), "b")
    wait_for(lambda: running.state == JobState.RUNNING)
    indexing.may_go.release()
    threading.Timer(0.1, indexing.may_go.release).start()
    desk.end()
    writes.close()
    assert (running.state, waiting.state) == (JobState.CANCELLED, JobState.CANCELLED)
    assert waiting.message == "the server ended before it began; ask for it again"
    assert indexing.done in (["a-0", "a-1"], ["a-0"])
    assert [record.getMessage() for record in caplog.records] == [
        "the server ends: indexing a ends after the videos in flight; index it again to go on",
        "the server ends: indexing b has not begun; index it again to go on",
    ]


def test_old_jobs_are_forgotten_and_failures_are_told(shelf: Shelf, writes: WriteQueue) -> None:
    def fail(path: Path, progress: Progress, stop: Callable[[], bool]) -> IndexReport:
        raise RuntimeError("a secret")

    desk = JobDesk(fail, shelf, writes, kept=3)
    for number in range(6):
        job = desk.begin(Path(f"/{number}"), str(number))
        wait_for(lambda job=job: job.state.is_over)
    assert [job.name for job in desk.jobs()] == ["5", "4", "3"]
    assert (job.state, "secret" in job.message) == (JobState.FAILED, False)


def test_a_folder_that_is_gone_fails_its_job(client: TestClient, inbox: Path, own: World) -> None:
    shutil.rmtree(inbox / "new")
    answer = client.post("/v1/index", json={"path": "inbox/new"})
    assert (answer.status_code, problem(answer)["type"]) == (404, "urn:midreel:problem:no-file")
