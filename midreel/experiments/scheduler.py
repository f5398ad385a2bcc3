"""Run many tasks: in this process, or in several at once. A task that fails is named, and the others continue.

The scheduler knows nothing about the tasks. A task that is killed and started again must continue by itself, and one
that is finished must return at once. Runs do both.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from midreel.errors import MidreelError

T = TypeVar("T")
Tick = Callable[[float], None]  # receives the finished share of a task
Work = Callable[[T, Tick], None]
KEPT_SHARE = 0.999  # a task counts as finished only when it has returned


@dataclass(kw_only=True)
class Progress:
    """The state of all tasks.

    Attributes:
        num_tasks: The number of tasks.
        done: The names of the finished tasks.
        failed: The reason of each failed task, by name.
        running: The finished share of each running task, by name.
    """

    num_tasks: int
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    _start: float = field(default_factory=time.monotonic)
    _at_start: dict[str, float] = field(default_factory=dict)  # what each task had finished before

    def tick(self, name: str, share: float) -> None:
        """Record the finished share of a running task."""
        self._at_start.setdefault(name, share)
        self.running[name] = min(share, KEPT_SHARE)

    def end(self, name: str, reason: str | None) -> None:
        """Record the end of a task, and the reason if it failed."""
        self.running.pop(name, None)
        self._at_start.setdefault(name, 1.0)  # it never ticked: there was nothing to do
        if reason is None:
            self.done.append(name)
        else:
            self.failed[name] = reason

    @property
    def finished(self) -> float:
        """The number of finished tasks, with the finished share of the running ones."""
        return float(len(self.done) + len(self.failed) + sum(self.running.values()))

    @property
    def seconds_left(self) -> float | None:
        """The estimated time that is left, or None as long as nothing is known. Tasks are taken as equally long."""
        made = self.finished - sum(self._at_start.values())
        if made <= 0:
            return None
        return (self.num_tasks - self.finished) * (time.monotonic() - self._start) / made


def run_tasks(
    tasks: Mapping[str, T],
    work: Work[T],
    *,
    jobs: int = 1,
    notify: Callable[[Progress], None] | None = None,
) -> dict[str, str]:
    """Run all tasks, and return the reasons of those that failed, by name.

    With `jobs=1`, tasks run in this process. Otherwise each one runs in a process of its own, so that even a crash of
    the interpreter ends only one task. These processes end with this one, however it ends.

    Args:
        tasks: The tasks by name, in the order in which they start.
        work: Does a task. With several jobs it must be a function of a module, and tasks must be picklable.
        jobs: The number of tasks at the same time.
        notify: Called after every change.
    """
    progress = Progress(num_tasks=len(tasks))
    report = notify or (lambda progress: None)
    if jobs == 1:
        for name, task in tasks.items():

            def tick(share: float, name: str = name) -> None:
                progress.tick(name, share)
                report(progress)

            progress.end(name, _attempt(work, task, tick))
            report(progress)
    else:
        _run_in_processes(tasks, work, jobs, progress, report)
    return progress.failed


def _attempt(work: Work[T], task: T, tick: Tick) -> str | None:
    """Do a task. Return the reason if it fails."""
    try:
        work(task, tick)
    except (MidreelError, OSError) as error:
        return str(error)
    except Exception as error:  # a defect in one task must not stop the others
        return f"{type(error).__name__}: {error}"
    return None


# ---------------------------------------------------------------- processes


@dataclass(frozen=True, kw_only=True)
class _Worker:
    name: str
    process: BaseProcess


def _run_in_processes(
    tasks: Mapping[str, T], work: Work[T], jobs: int, progress: Progress, report: Callable[[Progress], None]
) -> None:
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    waiting = deque(tasks.items())
    running: dict[Connection, _Worker] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name, task = waiting.popleft()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_main, args=(work, task, theirs), daemon=True)
                process.start()
                theirs.close()  # so that the end of the process is the end of the pipe
                running[ours] = _Worker(name=name, process=process)
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                worker = running[connection]
                message = _receive(connection)
                if isinstance(message, float):
                    progress.tick(worker.name, message)
                else:
                    worker.process.join()
                    code = worker.process.exitcode
                    reason = message[0] if message else f"its process ended with the code {code}. Run it again."
                    progress.end(worker.name, reason)
                    running.pop(connection).process.close()
                    connection.close()
                report(progress)
    finally:
        for worker in running.values():
            worker.process.terminate()
            worker.process.join()


def _receive(connection: Connection) -> float | tuple[str | None] | None:
    """Return a share, the reason at the end of a task in a tuple, or None if the process died."""
    try:
        received: Any = connection.recv()
    except (EOFError, OSError):
        return None
    return received


def _main(work: Work[T], task: T, connection: Connection) -> None:
    """Do a task in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which then ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection.send((_attempt(work, task, connection.send),))
    connection.close()


def _end_with_parent() -> None:
    """End this process when its parent has ended, even by a kill: it would keep the lock of its run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
