"""Index jobs. They run one after the other, report progress and can be cancelled.

A cancelled job starts no further video, and commits the videos in progress. A shutdown cancels all jobs. No work is
lost: a new job for the same folder continues there.
"""

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from midreel.errors import Locked, MidreelError
from midreel.library.report import IndexReport, Progress, Step
from midreel.library.searcher import Searcher
from midreel.server import schemas
from midreel.server.listing import LibraryListing
from midreel.server.problems import ProblemError, busy, problem_of
from midreel.server.schemas import JobState, Quarantined
from midreel.server.writes import WriteQueue, open_to_write

_MAX_LEFT_OUT = 100  # skipped files that a job lists; /v1/quarantine lists all unreadable ones
_log = logging.getLogger("midreel.server")

Index = Callable[[Path, Progress, Callable[[], bool]], IndexReport]
"""Indexes a path. The other arguments are called with each step, and to ask whether to stop."""


class Job:
    """The state of one job. The thread that runs the job writes it; all threads read it."""

    def __init__(self, path: Path, name: str) -> None:
        self.id, self.path, self.name = secrets.token_urlsafe(12), path, name
        self.state, self.is_cancelled = JobState.QUEUED, False
        self.done, self.added = 0, 0
        self.total: int | None = None
        self.latest, self.message = "", ""
        self.left_out: list[Quarantined] = []
        self.started, self.ended = 0.0, 0.0
        self.write: Future[None] | None = None  # its entry in the write queue

    def to_schema(self) -> schemas.Job:
        """Return the job as the API shows it."""
        seconds = (self.ended or time.monotonic()) - self.started if self.started else 0.0
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


class JobQueue:
    """The queued, running and latest jobs.

    Args:
        index: The function that a job runs.
        listing: Gives files the names that clients see.
        writes: The queue in which the jobs run.
        max_waiting: The maximum number of queued jobs.
        kept: The number of jobs to remember.
    """

    def __init__(
        self, index: Index, listing: LibraryListing, writes: WriteQueue, *, max_waiting: int = 8, kept: int = 50
    ) -> None:
        self._index, self._listing, self._writes = index, listing, writes
        self._max_waiting, self._kept = max_waiting, kept
        self._jobs: dict[str, Job] = {}  # by id, oldest first
        self._lock = threading.Lock()  # guards `_jobs`, and the step of a job from queued to running or cancelled

    def start(self, path: Path, name: str) -> Job:
        """Return a new job, or a queued job for the same path.

        Args:
            path: What to index.
            name: The name of the path that clients see.

        Raises:
            ProblemError: The queue is full, or the server is shutting down.
        """
        with self._lock:
            waiting = [job for job in self._jobs.values() if job.state == JobState.QUEUED]
            same = next((job for job in waiting if job.path == path and not job.is_cancelled), None)
            if same is not None:
                return same
            if len(waiting) >= self._max_waiting:
                raise busy("jobs", seconds=30)
            job = Job(path, name)
            job.write = self._writes.add_job(lambda: self._run(job))
            over = [old.id for old in self._jobs.values() if old.state.is_over]
            for old in itertools.islice(over, max(0, len(self._jobs) + 1 - self._kept)):
                del self._jobs[old]
            self._jobs[job.id] = job
            return job

    def job(self, job_id: str) -> Job:
        """Return a job. Raise ProblemError if there is none with this id."""
        found = self._jobs.get(job_id)
        if found is None:
            raise ProblemError(404, f"No job {job_id!r}. GET /v1/jobs lists the latest jobs.", kind="no-job")
        return found

    def jobs(self) -> list[Job]:
        """Return the jobs, newest first."""
        return list(reversed(list(self._jobs.values())))

    def num_unfinished(self) -> int:
        """Return the number of queued and running jobs."""
        return sum(not job.state.is_over for job in list(self._jobs.values()))

    def cancel(self, job: Job, reason: str = "Cancelled") -> None:
        """Cancel a job. If it is running, it ends after the videos in progress."""
        with self._lock:
            job.is_cancelled = True
            if job.state == JobState.QUEUED:
                job.state, job.message = JobState.CANCELLED, f"{reason} before it started."
                if job.write is not None:  # otherwise it stays in the queue until its turn
                    self._writes.withdraw(job.write)

    def end(self) -> None:
        """Cancel all jobs because the server shuts down, and log the unfinished ones, oldest first."""
        for job in reversed(self.jobs()):
            if not job.state.is_over and not job.is_cancelled:
                state = "ends after the videos in progress" if job.state == JobState.RUNNING else "has not started"
                _log.warning(
                    "the server is shutting down; indexing %s %s. Index it again to continue.", job.name, state
                )
                self.cancel(job, "The server shut down")

    def _run(self, job: Job) -> None:
        with self._lock:
            if job.state.is_over:
                return
            job.state, job.started = JobState.RUNNING, time.monotonic()
        try:
            report = self._index(job.path, lambda step: self._record(job, step), lambda: job.is_cancelled)
            state, message = JobState.DONE, _summary(report)
            job.left_out = self._left_out(report)
            if job.is_cancelled and job.done != job.total:
                state, message = JobState.CANCELLED, f"Cancelled. Kept so far: {message}"
        except MidreelError as error:
            state, message = JobState.FAILED, problem_of(error).problem.detail
            if job.is_cancelled and isinstance(error, Locked):
                state, message = JobState.CANCELLED, "Cancelled before it started."
        except Exception:
            _log.exception("a job failed")
            state, message = JobState.FAILED, "Internal error. See the server log."
        # The state comes last: a reader that sees the job as over also sees its message.
        job.ended, job.message, job.state = time.monotonic(), message, state

    def _record(self, job: Job, step: Step) -> None:
        job.done, job.total, job.latest = job.done + 1, step.total, self._listing.name(step.path)
        job.added += step.state in ("new", "changed")

    def _left_out(self, report: IndexReport) -> list[Quarantined]:
        reasons = itertools.islice((report.unreachable | report.failed | report.quarantined).items(), _MAX_LEFT_OUT)
        name, clean = self._listing.name, self._listing.without_paths
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
        "partly readable": len(report.damaged),
        "unreadable": len(report.quarantined) + len(report.failed),
        "unreachable (their videos are kept)": len(report.unreachable),
    }
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no videos found"


def index_function(searcher: Searcher, listing: LibraryListing, writes: WriteQueue, device: str) -> Index:
    """Return a function that indexes a path into the library. It does not follow links that lead out of the roots.

    Args:
        searcher: The library to write. Its backbone is used again.
        listing: Decides which links to follow.
        writes: Limits how long to wait for another writer.
        device: The torch device for backbone and model.
    """

    def index(path: Path, progress: Progress, stop: Callable[[], bool]) -> IndexReport:
        from midreel.library import indexer  # its decoder and files of features are not needed to search

        deadline, backbone = writes.deadline(), searcher.backbone
        with open_to_write(
            searcher.storage.place, deadline=deadline, stop=stop, device=device, backbone=backbone
        ) as writer:
            return indexer.index(writer, [path], follow=listing.may_index, progress=progress, stop=stop)

    return index
