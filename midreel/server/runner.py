"""Run the application: listen on an address, limit connections, and shut down gracefully."""

import asyncio
import errno
import gc
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from midreel.errors import BadSetting
from midreel.features.backbones.base import Engine
from midreel.io.locations import PathMap
from midreel.library.place import Place
from midreel.library.searcher import Searcher
from midreel.library.serving import announced
from midreel.server.app import create_app
from midreel.server.security import CROWDED, NEW_TOKEN, is_loopback

TOKEN = "MIDREEL_TOKEN"
REQUEST_TIMEOUT = 20.0  # seconds for the head and body of a request
READ_TIMEOUT = 120.0  # seconds in which a client must read some of a response; a paused player reconnects later
MAX_CONNECTIONS = 512
_SHUTDOWN_TIMEOUT = 5  # seconds to finish the responses in progress


def serve(
    library: Place,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    roots: Sequence[Path] = (),
    locations: PathMap = PathMap(),  # noqa: B008
    device: str = "cpu",
    engine: Engine = "auto",
    on_ready: Callable[[str], None] = print,
) -> None:
    """Serve a library until the process is interrupted.

    Args:
        library: The folder of the library, or the URL of its database.
        host: The address to listen on. Any other than localhost requires a token.
        port: The port to listen on; 0 chooses a free one.
        token: The token that clients must send.
        roots: Folders that clients may index, in addition to the folders that the library was made from.
        locations: Where the files of the library are on this machine.
        device: The torch device.
        engine: What computes backbone and model. See `load_backbone`.
        on_ready: Called with the URL of the page once the server accepts connections.

    Raises:
        BadSetting: The host requires a token, the token is too short, or the port is in use.
        MissingLibrary: There is no library in the folder.
    """
    expect_token(host, token)
    with Searcher.open(library, device=device, engine=engine) as searcher, listen(host, port) as listener:
        app = create_app(searcher, token=token, hosts=[host], roots=roots, locations=locations, device=device)
        server = Server(app)
        port = listener.getsockname()[1]
        on_ready(page_url(host, port, token))
        if is_loopback(host) and searcher.storage.folder is not None:
            server.until_shutdown.enter_context(announced(searcher.storage.folder, page_url(host, port, None)))
        try:
            server.run(sockets=[listener])
        finally:
            server.until_shutdown.close()
            # A second Ctrl-C skips the shutdown of the application. A search that still runs needs the searcher.
            app.state.services.close()


def expect_token(host: str, token: str | None) -> None:
    """Raise BadSetting if other computers can reach the host and there is no token.

    Every client that can reach the server can see every video.
    """
    if not is_loopback(host) and token is None:
        raise BadSetting(
            f"host {host} is reachable from other computers, expected a token. Set {TOKEN}, or make a token file "
            f"and pass --token-file FILE: {NEW_TOKEN}"
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Raise BadSetting if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is explicit. Without it, each response is delayed by about 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # from now on, early clients wait and are not refused
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        is_in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        hint = " Is another midreel serve running?" if is_in_use else ""
        raise BadSetting(
            f"cannot listen on {host}, port {port} ({reason}), expected a free port of this computer. "
            f"Try --port 0, which chooses one.{hint}"
        ) from error
    return listener


def page_url(host: str, port: int, token: str | None) -> str:
    """Return the URL of the page. The token is in the fragment, which browsers do not send to servers.

    Args:
        host: The address that the server binds to. The URL has the name of this computer instead of "0.0.0.0" and "::".
        port: The port of the server.
        token: The access token; None if the server needs none.
    """
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"#token={token}" if token else "")


def read_token(path: Path | None) -> str | None:
    """Return the token from a file or, if `path` is None, from the environment variable MIDREEL_TOKEN.

    There is no command line option for the token itself, because other users can read the command line.
    """
    if path is None:
        return os.environ.get(TOKEN) or None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} cannot be read ({error}), expected a file that contains the token.") from error


class Server(uvicorn.Server):
    """A server that ends all writes before it closes connections.

    A client that follows a job or waits for a removal keeps its connection open until the write has ended.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=TimeoutProtocol,
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
                **options,
            )
        )
        self._services = app.state.services
        self.until_shutdown = ExitStack()  # uvicorn ends the process by the signal that stopped it, without `finally`

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and take everything that was loaded out of the collection of garbage: it stays until the end."""
        await super().startup(sockets)
        gc.freeze()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the writes and take the note away, then shut down."""
        self._services.end()
        self.until_shutdown.close()
        await super().shutdown(sockets)


class TimeoutProtocol(H11Protocol):
    """HTTP/1.1 with timeouts. It closes a connection if:

    * no complete request arrives within `request_timeout`,
    * the client reads nothing of a response for `read_timeout`.

    Connections beyond `max_connections` are marked as crowded, and `AccessMiddleware` refuses their requests.
    """

    request_timeout = REQUEST_TIMEOUT
    read_timeout = READ_TIMEOUT
    max_connections = MAX_CONNECTIONS
    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request."""
        super().connection_made(transport)
        self._request_timer = self.loop.call_later(self.request_timeout, self._close_if_incomplete)
        if len(self.connections) > self.max_connections:
            self.app_state = {**self.app_state, CROWDED: True}

    def data_received(self, data: bytes) -> None:
        """Start the timer at the beginning of a request, and cancel it at its end."""
        super().data_received(data)
        if self._is_incomplete and self._request_timer is None:
            self._request_timer = self.loop.call_later(self.request_timeout, self._close_if_incomplete)
        elif not self._is_incomplete and self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    @property
    def _is_incomplete(self) -> bool:
        """Whether a part of the request is missing, even if the response was already sent."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def pause_writing(self) -> None:
        """Start the timer of the client, which has not read what was sent."""
        super().pause_writing()
        # abort, not close: close waits until the client has read everything.
        self._read_timer = self.loop.call_later(self.read_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the timer of the client, which reads again."""
        if self._read_timer is not None:
            self._read_timer.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for timer in (self._request_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _close_if_incomplete(self) -> None:
        self._request_timer = None
        if self._is_incomplete and not self.transport.is_closing():
            self.transport.close()
