import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midreel.experiments.scheduler import Progress, run_tasks
from tests import ROOT
from tests.experiments.processes import write_pid


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_is_named_and_the_rest_goes_on(jobs: int, tmp_path: Path) -> None:
    names = ["first", "refuses", "is broken", *(["is killed"] if jobs > 1 else []), "last"]
    states: list[tuple[int, int]] = []
    failed = run_tasks(
        {name: tmp_path / name for name in names},
        write_pid,
        jobs=jobs,
        notify=lambda progress: states.append((len(progress.done), len(progress.failed))),
    )
    assert list(failed) == names[1:-1] if jobs == 1 else set(failed) == set(names[1:-1])
    assert failed["refuses"] == "width is 0"
    assert failed["is broken"] == "ZeroDivisionError: by zero"
    if jobs > 1:
        assert "-9" in failed["is killed"]
    assert states[-1] == (2, len(names) - 2)
    here = {(tmp_path / name).read_text() == str(os.getpid()) for name in ("first", "last")}
    assert here == {jobs == 1}


def test_no_tasks() -> None:
    assert run_tasks({}, write_pid, jobs=2) == {}


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    """A scheduler that is killed leaves no process behind, which would keep the lock of its run."""
    files = [tmp_path / "hangs", tmp_path / "other" / "hangs"]
    files[1].parent.mkdir()
    command = [sys.executable, "-m", "tests.experiments.processes", *map(str, files)]
    with subprocess.Popen(command, cwd=ROOT) as parent:
        _wait_until(lambda: all(file.exists() and file.read_text() for file in files))
        parent.send_signal(signal.SIGKILL)
    for file in files:
        _wait_until(lambda file=file: not Path(f"/proc/{file.read_text()}").exists() or _is_zombie(file.read_text()))


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def _wait_until(is_true: object) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    progress = Progress(num_tasks=4, _start=100.0)
    assert progress.seconds_left is None
    progress.end("finished before", None)  # it took no time, and says nothing about the others
    assert progress.seconds_left is None
    progress.tick("resumed", 0.5)
    clock[0] = 110.0
    progress.tick("resumed", 0.75)  # a quarter in ten seconds; two and a quarter are left
    assert progress.seconds_left == pytest.approx(90)
    progress.tick("resumed", 1.0)
    assert progress.finished < 2  # not before it has returned
    progress.end("resumed", "a reason")
    assert progress.finished == 2
