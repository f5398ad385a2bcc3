import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midreel.library import indexer
from midreel.library.diff import FileState
from midreel.library.layout import Layout
from midreel.library.report import IndexReport, Progress, Step
from midreel.library.storage import at
from midreel.library.writer import Writer
from midreel.media import decode as video
from midreel.server.app import create_app
from midreel.server.jobs import JobQueue, _summary
from midreel.server.listing import LibraryListing
from midreel.server.problems import ProblemError
from midreel.server.schemas import JobState
from midreel.server.writes import WriteQueue
from tests.server.conftest import HERE, World, wait_for
from tests.server.test_routes import problem
from tests.server.test_security import index


@pytest.fixture
def inbox(own: World, tmp_path: Path) -> Path:
    """Two new videos and one unreadable file."""
    root = tmp_path / "inbox"
    (root / "new").mkdir(parents=True)
    for name in ("playhouse-test-00000.mp4", "playhouse-test-00001.mp4"):
        (root / "new" / name).write_bytes((own.videos / name).read_bytes() + b"another")
    (root / "nothing.mp4").write_bytes(b"nothing")
    return root


@pytest.fixture
def client(own: World, inbox: Path) -> Iterator[TestClient]:
    """A server with a short write timeout."""
    with own.searcher() as searcher:
        app = create_app(searcher, roots=[inbox], write_timeout=0.3)
        with TestClient(app, base_url=HERE) as client:
            yield client


def test_a_job_adds_the_videos_of_a_folder(client: TestClient, own: World) -> None:
    answer = client.post("/v1/index", json={"path": "inbox"})
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{job['id']}")
    job = index(client, "inbox")
    assert job["state"] == "done"
    jobs = client.get("/v1/jobs").json()["jobs"]
    first = jobs[-1]
    assert (first["state"], first["added"], first["done"], first["total"]) == ("done", 2, 3, 3)
    assert first["message"].startswith("2 new, 1 ")
    assert [each["file"] for each in first["left_out"]] == ["inbox/nothing.mp4"]
    assert client.get("/v1/quarantine").json()["total"] == 2
    found = client.post("/v1/search", json={"query": own.queries[0].text, "folder": "inbox/new"}).json()["hits"]
    assert {hit["video"]["folder"] for hit in found} == {"inbox/new"}
    assert len(found) == 2


def test_events_report_progress_until_the_job_ends(client: TestClient) -> None:
    job = client.post("/v1/index", json={"path": "inbox/new"}).json()
    with client.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        sent = [json.loads(line[5:]) for line in answer.iter_lines() if line.startswith("data:")]
    assert (sent[-1]["state"], sent[-1]["done"], sent[-1]["added"]) == ("done", 2, 2)
    assert [each["done"] for each in sent] == sorted(each["done"] for each in sent)


def test_an_unknown_job_is_a_404(client: TestClient) -> None:
    for method, address in (("GET", "/v1/jobs/x"), ("DELETE", "/v1/jobs/x"), ("GET", "/v1/jobs/x/events")):
        answer = client.request(method, address)
        assert (answer.status_code, problem(answer)["type"]) == (404, "urn:midreel:problem:no-job")


def test_jobs_and_removals_fail_while_another_process_writes(client: TestClient, own: World) -> None:
    video_id = client.get("/v1/videos").json()["videos"][0]["id"]
    with Layout(own.library).locked():
        job = index(client, "inbox")
        answer = client.delete(f"/v1/videos/{video_id}")
    assert (job["state"], "Another process" in job["message"]) == ("failed", True)
    assert str(own.library) not in answer.text + job["message"]
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "5")
    assert problem(answer)["type"] == "urn:midreel:problem:locked"
    assert client.get(f"/v1/videos/{video_id}").status_code == 200


def test_a_job_removes_missing_videos(client: TestClient, inbox: Path) -> None:
    index(client, "inbox")
    (inbox / "new" / "playhouse-test-00000.mp4").unlink()
    assert "1 removed" in index(client, "inbox")["message"]
    assert client.get("/v1/videos", params={"folder": "inbox/new"}).json()["total"] == 1


# ---------------------------------------------------------------- the queue


class Indexing:
    """A fake index function that processes one file per release of `may_go`."""

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
            progress(Step(path=path / str(number), state=FileState.NEW, seconds=1.0, total=self.total))
        return report


@pytest.fixture
def listing(world: World) -> Iterator[LibraryListing]:
    listing = LibraryListing(at(world.library))
    yield listing
    listing.close()


@pytest.fixture
def writes() -> Iterator[WriteQueue]:
    queue = WriteQueue()
    yield queue
    queue.close()


def test_a_cancelled_job_ends_after_the_video_in_progress(listing: LibraryListing, writes: WriteQueue) -> None:
    indexing = Indexing(total=5)
    queue = JobQueue(indexing, listing, writes)
    job = queue.start(Path("/a"), "a")
    indexing.may_go.release(2)
    wait_for(lambda: job.done == 2)
    assert job.to_schema().seconds_left is not None
    queue.cancel(job)
    assert job.to_schema().state == JobState.RUNNING
    indexing.may_go.release()
    wait_for(lambda: job.state.is_over)
    assert (job.state, job.done) == (JobState.CANCELLED, 3)
    assert job.message.endswith("3 new")


def test_a_cancelled_job_keeps_the_videos_in_progress(
    client: TestClient, own: World, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, may_go_on, real = list[str](), threading.Event(), video.read_frames

    def read_slowly(path: Path, *options: Any, **more: Any) -> Any:
        started.append(path.name)
        assert may_go_on.wait(20)
        return real(path, *options, **more)

    for number in range(4):
        (inbox / "new" / f"{number}.mp4").write_bytes(
            (own.videos / "playhouse-test-00002.mp4").read_bytes() + b"%d" % number
        )
    monkeypatch.setattr(video, "read_frames", read_slowly)
    job = client.post("/v1/index", json={"path": "inbox/new"}).json()["id"]
    wait_for(lambda: bool(started))
    client.delete(f"/v1/jobs/{job}")
    may_go_on.set()
    wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled")
    kept = client.get("/v1/videos", params={"folder": "inbox/new"}).json()["videos"]
    assert {video["file"] for video in kept} == set(started)
    assert 0 < len(started) < 6


def test_a_moved_video_survives_a_job_cancelled_before_it_is_found(client: TestClient, own: World, inbox: Path) -> None:
    index(client, "inbox")
    (inbox / "new" / "playhouse-test-00000.mp4").rename(inbox / "moved.mp4")
    with Writer.open(own.library, backbone=own.backbone) as writer:
        indexer.index(writer, [inbox], stop=lambda: True)
    assert client.get("/v1/videos", params={"folder": "inbox"}).json()["total"] == 2
    assert "1 moved" in index(client, "inbox")["message"]


def test_the_summary_counts_copies_damage_and_unreachable_folders() -> None:
    here = Path("/a/b")
    report = IndexReport(
        new=[here],
        copies=[here, here],
        repaired=[here],
        damaged={here: "1 packet could not be decoded"},
        unreachable={here: "it does not exist now"},
    )
    counts = _summary(report).split(", ")
    assert counts[:3] == ["1 new", "2 copies", "1 repaired"]
    assert ["partly readable" in counts[3], "unreachable" in counts[4], len(counts)] == [True, True, 5]


def test_jobs_run_one_at_a_time_and_the_queue_is_limited(listing: LibraryListing, writes: WriteQueue) -> None:
    indexing = Indexing(total=1)
    queue = JobQueue(indexing, listing, writes, max_waiting=2)
    first = queue.start(Path("/a"), "a")
    wait_for(lambda: first.state == JobState.RUNNING)
    second, third = queue.start(Path("/b"), "b"), queue.start(Path("/c"), "c")
    assert queue.start(Path("/b"), "b") is second
    with pytest.raises(ProblemError) as refused:
        queue.start(Path("/d"), "d")
    assert (refused.value.problem.status, refused.value.headers["Retry-After"]) == (503, "30")
    queue.cancel(third)
    assert (third.state, third.write is not None and writes.withdraw(third.write)) == (JobState.CANCELLED, False)
    indexing.may_go.release(2)
    wait_for(lambda: second.state == JobState.DONE)
    assert indexing.done == ["a-0", "b-0"]


def test_a_shutdown_cancels_queued_jobs_and_waits_for_the_running_one(
    listing: LibraryListing, writes: WriteQueue, caplog: pytest.LogCaptureFixture
) -> None:
    indexing = Indexing(total=3)
    queue = JobQueue(indexing, listing, writes)
    running, waiting = queue.start(Path("/a"), "a"), queue.start(Path("/b"), "b")
    wait_for(lambda: running.state == JobState.RUNNING)
    indexing.may_go.release()
    threading.Timer(0.1, indexing.may_go.release).start()
    queue.end()
    writes.close()
    assert (running.state, waiting.state) == (JobState.CANCELLED, JobState.CANCELLED)
    assert "shut down" in waiting.message
    assert indexing.done in (["a-0", "a-1"], ["a-0"])
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == ["a", "b"]


def test_old_jobs_are_dropped_and_failures_are_reported(listing: LibraryListing, writes: WriteQueue) -> None:
    def fail(path: Path, progress: Progress, stop: Callable[[], bool]) -> IndexReport:
        raise RuntimeError("a secret")

    queue = JobQueue(fail, listing, writes, kept=3)
    for number in range(6):
        job = queue.start(Path(f"/{number}"), str(number))
        wait_for(lambda job=job: job.state.is_over)
    assert [job.name for job in queue.jobs()] == ["5", "4", "3"]
    assert (job.state, "secret" in job.message) == (JobState.FAILED, False)


def test_a_missing_folder_is_a_404(client: TestClient, inbox: Path, own: World) -> None:
    shutil.rmtree(inbox / "new")
    answer = client.post("/v1/index", json={"path": "inbox/new"})
    assert (answer.status_code, problem(answer)["type"]) == (404, "urn:midreel:problem:no-file")
