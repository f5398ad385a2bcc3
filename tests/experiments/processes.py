"""Work for the processes of the scheduler. It imports nothing heavy, because each process imports it again."""

import os
import signal
import sys
import time
from pathlib import Path

from midreel.errors import BadSetting
from midreel.experiments.scheduler import Tick, run_tasks


def write_pid(path: Path, tick: Tick) -> None:
    """Write the number of this process. Some names end it in other ways."""
    tick(0.5)
    if path.name == "refuses":
        raise BadSetting("width is 0")
    if path.name == "is broken":
        raise ZeroDivisionError("by zero")
    if path.name == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    path.write_text(str(os.getpid()))
    if path.name == "hangs":
        time.sleep(600)


if __name__ == "__main__":
    run_tasks({"one": Path(sys.argv[1]), "two": Path(sys.argv[2])}, write_pid, jobs=2)
