"""Runs the application: the address it listens on, who may reach it, and how it ends."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from midreel.errors import BadSetting
from midreel.library.searcher import Searcher
from midreel.server.app import create_app
from midreel.server.security import CROWDED, is_loopback

TOKEN = "MIDREEL_TOKEN"
PATIENCE = 20.0  # seconds for a request, head and body
READ_PATIENCE = 120.0  # seconds for which nothing of an answer is read; a player that goes on after that asks anew
MOST_CONNECTIONS = 512
_GOODBYE = 5  # seconds for answers that are being sent when the server ends


def serve(
    library: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    roots: Sequence[Path] = (),
    device: str = "cpu",
    told: Callable[[str], None] = print,
) -> None:
    """Serves a library until it is interrupted. `told` is given the address when it can be opened."""
    expect_token(host, token)
    with Searcher.open(library, device=device) as searcher, listening(host, port) as listener:
        app = create_app(searcher, token=token, hosts=[host], roots=roots, device=device)
        server = Server(app)
        told(address(host, listener.getsockname()[1], token))
        try:
            server.run(sockets=[listener])
        finally:
            # Interrupted twice, a server leaves without it; what still searches must not find the searcher closed.
            app.state.services.close()


def expect_token(host: str, token: str | None) -> None:
    """Whoever can reach the server can see every video: beyond this computer, that takes a token."""
    if not is_loopback(host) and token is None:
        raise BadSetting(
            f"the host is {host}, which others can reach, expected a token with it: set {TOKEN}, or give --token-file "
            f"FILE, made by (umask 077; python -c 'import secrets; print(secrets.token_urlsafe())' > FILE). "
            f"Or serve this computer only: --host 127.0.0.1"
        )


def listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, or asyncio would not send small pieces at once, and each answer would wait some 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # from now on, who comes early waits and is not refused
    except (OSError, OverflowError) as error:
        listener.close()
        is_taken = getattr(error, "errno", None) == errno.EADDRINUSE
        by_whom = "; perhaps another midreel serve runs there" if is_taken else ""
        raise BadSetting(
            f"cannot listen on {host}, port {port} ({getattr(error, 'strerror', None) or error}{by_whom}), expected a "
            f"free port of this computer; try another: --port 0 takes any"
        ) from error
    return listener


def address(host: str, port: int, token: str | None) -> str:
    """What to open in a browser. The token is in the fragment, which browsers keep to themselves."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"#token={token}" if token else "")


def read_token(path: Path | None) -> str | None:
    """From a file, or from the environment: a command line can be read by anybody on the computer."""
    if path is None:
        return os.environ.get(TOKEN) or None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} cannot be read ({error}), expected a file that holds the token") from error


class Server(uvicorn.Server):
    """Ends in order: writes first, for clients that watch a job or wait for a removal keep their connections open."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Punctual,
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GOODBYE,
                **options,
            )
        )
        self._services = app.state.services

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.end()
        await super().shutdown(sockets)


class Punctual(H11Protocol):
    """Closes connections on which no request comes, or one that does not get to its end, or nobody reads the answer."""

    patience = PATIENCE
    stall = READ_PATIENCE
    most = MOST_CONNECTIONS
    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._request_timer = self.loop.call_later(self.patience, self._give_up)
        if len(self.connections) > self.most:
            self.app_state = {**self.app_state, CROWDED: True}

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_awaiting and self._request_timer is None:
            self._request_timer = self.loop.call_later(self.patience, self._give_up)
        elif not self._is_awaiting and self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    @property
    def _is_awaiting(self) -> bool:
        """Whether some of a request is still to come, be it that it was answered already."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def pause_writing(self) -> None:
        super().pause_writing()
        # To close would be to wait until all is read.
        self._read_timer = self.loop.call_later(self.stall, self.transport.abort)

    def resume_writing(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._request_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        self._request_timer = None
        if self._is_awaiting and not self.transport.is_closing():
            self.transport.close()
