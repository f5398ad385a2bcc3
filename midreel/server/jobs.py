"""Indexing at a client's request: one job after the other, each with progress, each to be cancelled.

A job that is cancelled, or that the server's end cuts short, begins no further video and commits those it has begun:
no work is lost, and one that is asked for again goes on from there.
"""

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from midreel.errors import LibraryBusy, MidreelError
from midreel.library import indexer
from midreel.library.report import IndexReport, Progress, Step
from midreel.library.searcher import Searcher
from midreel.server import schemas
from midreel.server.listing import Shelf
from midreel.server.problems import ProblemError, busy, of_error
from midreel.server.schemas import JobState, Quarantined
from midreel.server.writes import WriteQueue, open_to_write

_MOST_LEFT_OUT = 100  # that a job tells of; the quarantine lists all
_log = logging.getLogger("midreel.server")

Index = Callable[[Path, Progress, Callable[[], bool]], IndexReport]  # a path, whom to tell, whether to stop


class Job:
    """What is known of one job; written by the thread that runs it, read by all."""

    def __init__(self, path: Path, name: str) -> None:
        self.id, self.path, self.name = secrets.token_urlsafe(12), path, name
        self.state, self.is_cancelled = JobState.QUEUED, False
        self.done, self.added = 0, 0
        self.total: int | None = None
        self.latest, self.message = "", ""
        self.left_out: list[Quarantined] = []
        self.began, self.ended = 0.0, 0.0
        self.turn: Future[None] | None = None  # in the queue

    def shown(self) -> schemas.Job:
        seconds = (self.ended or time.monotonic()) - self.began if self.began else 0.0
        left = None
        if self.state == JobState.RUNNING and self.total and self.done:
            left = seconds / self.done * max(0, self.total - self.done)
        return schemas.Job(
            id=self.id,
            path=self.name,
            state=self.state,
            done=self.done,
            total=self.total,
            latest=self.latest,
            added=self.added,
            left_out=list(self.left_out),
            seconds=round(seconds, 1),
            seconds_left=None if left is None else round(left, 1),
            message=self.message,
        )


class JobDesk:
    def __init__(
        self, index: Index, shelf: Shelf, writes: WriteQueue, *, most_waiting: int = 8, kept: int = 50
    ) -> None:
        self._index, self._shelf, self._writes = index, shelf, writes
        self._most_waiting, self._kept = most_waiting, kept
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def begin(self, path: Path, name: str) -> Job:
        """A new job; or the one that waits to do the same."""
        with self._lock:
            waiting = [job for job in self._jobs.values() if job.state == JobState.QUEUED]
            same = next((job for job in waiting if job.path == path and not job.is_cancelled), None)
            if same is not None:
                return same
            if len(waiting) >= self._most_waiting:
                raise busy("jobs", seconds=30)
            job = Job(path, name)
            job.turn = self._writes.add_job(lambda: self._run(job))
            over = [old.id for old in self._jobs.values() if old.state.is_over]
            for old in itertools.islice(over, max(0, len(self._jobs) + 1 - self._kept)):
                del self._jobs[old]
            self._jobs[job.id] = job
            return job

    def job(self, job_id: str) -> Job:
        found = self._jobs.get(job_id)
        if found is None:
            raise ProblemError(404, f"there is no job {job_id!r}; GET /v1/jobs lists the latest", kind="no-job")
        return found

    def jobs(self) -> list[Job]:
        """The latest first."""
        return list(reversed(list(self._jobs.values())))

    def unfinished(self) -> int:
        return sum(not job.state.is_over for job in list(self._jobs.values()))

    def cancel(self, job: Job, why: str = "cancelled") -> None:
        """It ends after the videos in flight."""
        with self._lock:
            job.is_cancelled = True
            if job.state == JobState.QUEUED:
                job.state, job.message = JobState.CANCELLED, f"{why} before it began; ask for it again"
                if job.turn is not None:  # or it would stay in the queue until all before it are done
                    self._writes.withdraw(job.turn)

    def end(self) -> None:
        """Of the server: what runs finishes the videos in flight, and whoever started the server is told what is not
        done, for the list of jobs goes with it."""
        for job in reversed(self.jobs()):
            if not job.state.is_over and not job.is_cancelled:
                begun = "ends after the videos in flight" if job.state == JobState.RUNNING else "has not begun"
                _log.warning("the server ends: indexing %s %s; index it again to go on", job.name, begun)
                self.cancel(job, "the server ended")

    def _run(self, job: Job) -> None:
        with self._lock:
            if job.state.is_over:
                return
            job.state, job.began = JobState.RUNNING, time.monotonic()
        try:
            report = self._index(job.path, lambda step: self._note(job, step), lambda: job.is_cancelled)
            state, message = JobState.DONE, _summary(report)
            job.left_out = self._left_out(report)
            if job.is_cancelled and job.done != job.total:
                state, message = JobState.CANCELLED, f"cancelled; what was begun is finished and stays: {message}"
        except MidreelError as error:
            state, message = JobState.FAILED, of_error(error).problem.detail
            if job.is_cancelled and isinstance(error, LibraryBusy):
                state, message = JobState.CANCELLED, "cancelled before it began; ask for it again"
        except Exception:
            _log.exception("a job failed")
            state, message = JobState.FAILED, "something went wrong in the server; its log says what"
        job.ended, job.message, job.state = time.monotonic(), message, state

    def _note(self, job: Job, step: Step) -> None:
        job.done, job.total, job.latest = job.done + 1, step.total, self._shelf.name(step.path)
        job.added += step.state in ("new", "changed")

    def _left_out(self, report: IndexReport) -> list[Quarantined]:
        reasons = itertools.islice((report.unreachable | report.failed | report.quarantined).items(), _MOST_LEFT_OUT)
        name, clean = self._shelf.name, self._shelf.without_paths
        return [Quarantined(file=name(path), reason=clean(reason, path)) for path, reason in reasons]


def _summary(report: IndexReport) -> str:
    counts = {
        "new": len(report.new),
        "changed": len(report.changed),
        "moved": len(report.moved),
        "copies": len(report.copies),
        "repaired": len(report.repaired),
        "removed": len(report.removed),
        "unchanged": report.unchanged + len(report.touched),
        "damaged in part": len(report.damaged),
        "left out": len(report.quarantined) + len(report.failed),
        "not looked into, whose videos are kept": len(report.unreachable),
    }
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no video there"


def indexing(searcher: Searcher, shelf: Shelf, writes: WriteQueue, device: str) -> Index:
    """Indexes what lies in the roots: a link in a folder that leads elsewhere is not followed."""

    def index(path: Path, progress: Progress, stop: Callable[[], bool]) -> IndexReport:
        until, backbone = writes.until(), searcher.backbone
        with open_to_write(searcher.folder, until=until, stop=stop, device=device, backbone=backbone) as writer:
            return indexer.index(writer, [path], follow=shelf.may_index, progress=progress, stop=stop)

    return index
