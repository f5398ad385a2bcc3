"""A proxy of a Unix socket that cuts a connection after a number of messages."""

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Forwards connections to a server. `cut` makes it end the next connection in the middle.

    Args:
        folder: A new folder for its socket.
        server: The folder of the server's socket.

    Attributes:
        num_cut: The number of connections that it has ended.
    """

    def __init__(self, folder: Path, server: Path) -> None:
        self.num_cut, self._server, self._folder = 0, server, folder
        self._remaining: dict[str, int] = {}
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the database behind the proxy."""
        return f"postgresql://postgres@/postgres?host={self._folder}"

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._sockets):
            _close(each)

    def cut(self, direction: str, after: int) -> None:
        """Cut a connection once, instead of the message after `after` messages.

        Args:
            direction: "request" or "answer".
            after: The number of messages to forward first.
        """
        with self._lock:
            self._remaining = {direction: after}

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server / _SOCKET))
                self._sockets += [client, server]
                for source, target, direction in ((client, server, "request"), (server, client, "answer")):
                    threading.Thread(target=self._forward, args=(source, target, direction), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                if self._is_due(direction):
                    self.num_cut += 1
                    break
                target.sendall(data)
        _close(source)
        _close(target)

    def _is_due(self, direction: str) -> bool:
        with self._lock:
            if direction not in self._remaining:
                return False
            self._remaining[direction] -= 1
            if self._remaining[direction] >= 0:
                return False
            self._remaining = {}
            return True


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
