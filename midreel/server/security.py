"""Who may ask, from where, and how much; below the framework, so that nothing is read of what is refused."""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Collection, Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midreel.errors import BadSetting
from midreel.server.problems import ProblemError, busy
from midreel.server.throttle import Client, Throttle

MOST_BODY = 128 * 1024  # bytes
BODY_PATIENCE = 10.0  # seconds for all of a body
CROWDED = "crowded"  # in the state of a connection that is one too many
SHORTEST_TOKEN = 16
_log = logging.getLogger("midreel.server")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_SAFE = ("GET", "HEAD", "OPTIONS")
# Without a token: the page itself, which holds no secret and asks for one; and what a load balancer asks.
_OPEN = ("/", "/library", "/healthz", "/readyz", "/v1/session", "/favicon.ico")
_OPEN_BELOW = "/page/"

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Token:
    """A secret that clients show: as `Authorization: Bearer`, or as a cookie that was given for it."""

    def __init__(self, secret: str) -> None:
        if len(secret) < SHORTEST_TOKEN or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise BadSetting(
                f"the token has {len(secret)} characters, expected at least {SHORTEST_TOKEN} ASCII characters without "
                f"spaces; make one, in a file that only you can read: "
                f"(umask 077; python -c 'import secrets; print(secrets.token_urlsafe())' > token)"
            )
        self._secret = secret.encode()
        self.cookie = hmac.new(self._secret, b"midreel session", hashlib.sha256).hexdigest()

        self._throttle = Throttle()

    def expect_right(self, scope: Scope, given: str) -> None:
        """Raise a ProblemError unless a client gives this token, or if it has given too many wrong ones."""
        if not self._throttle.check(Client.of(scope), given, lambda: self.is_right(given)):
            raise ProblemError(
                401, "this is not the token; see what midreel serve was started with", kind="wrong-token"
            )

    def expect_shown(self, scope: Scope) -> None:
        """Raise a ProblemError unless a request shows this token, or if its client has shown too many wrong ones."""
        headers = Headers(scope=scope)
        if not self._throttle.check(Client.of(scope), _shown(headers), lambda: self.admits(headers)):
            raise ProblemError(
                401,
                "a token is needed; send it as Authorization: Bearer TOKEN",
                kind="token-needed",
                headers={"WWW-Authenticate": 'Bearer realm="midreel"'},
            )

    def is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._secret)

    def admits(self, headers: Headers) -> bool:
        if self.is_right(_bearer(headers)):
            return True
        return hmac.compare_digest(_own_cookie(headers).encode("utf-8", "replace"), self.cookie.encode())


def _bearer(headers: Headers) -> str:
    kind, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else ""


def _own_cookie(headers: Headers) -> str:
    return _cookie(headers.get("cookie", ""), cookie_name(headers.get("host", "")))


def _shown(headers: Headers) -> str:
    """All that a request shows, in whatever way; nothing if it shows no token."""
    return "\n".join(filter(None, (_bearer(headers), _own_cookie(headers))))


def cookie_name(host: str) -> str:
    """With the port, as the browser knows it: cookies go to all ports of a host, where other servers may have theirs.

    >>> cookie_name("localhost:8765"), cookie_name("example.org")
    ('midreel-8765', 'midreel-80')
    """
    try:
        port = _split(f"//{host}").port
    except ValueError:
        port = None
    return f"midreel-{port or 80}"


def _cookie(header: str, wanted: str) -> str:
    """Ours, of all in a header; by hand, for the standard parser takes quadratic time over what a stranger may send."""
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return ""


def is_loopback(host: str) -> bool:
    """
    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class SafeAnswers:
    """Every answer says what browsers may not do with it; an error that nobody has caught is one, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1/"):
                    headers.setdefault("Cache-Control", "no-store")
                elif scope["path"].startswith(_OPEN_BELOW):
                    headers.setdefault("Cache-Control", "no-cache")  # kept, and asked whether it is still so
            await send(message)

        try:
            await self._app(scope, receive, with_headers)
        except Exception:
            _log.exception("a request failed")
            if has_begun:
                raise  # all that is left is to cut it off
            # What it was stands in the log; to a stranger it would say where files are.
            await ProblemError(500, "something went wrong in the server; its log says what")(
                scope, receive, with_headers
            )


class Guard:
    """Turns away who may not ask.

    Without a token, only this computer's own names are answered to: a page of a stranger could otherwise have its own
    name lead here, and read everything. Whatever changes something must come from the page itself, or no page at all.
    """

    def __init__(self, app: ASGIApp, *, token: Token | None, hosts: Collection[str] = ()) -> None:
        self._app, self._token, self._hosts = app, token, {*_LOCAL, *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._expect_allowed(scope, Headers(scope=scope))
        except ProblemError as problem:
            await problem(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _expect_allowed(self, scope: Scope, headers: Headers) -> None:
        if CROWDED in scope.get("state", ()):
            crowded = busy("connections", seconds=5)
            crowded.headers["Connection"] = "close"
            raise crowded
        host = headers.get("host", "")
        if self._token is None and _name_of(host) not in self._hosts:
            raise ProblemError(
                403,
                f"this server does not answer to the name {host[:100]!r}, expected localhost; "
                f"to be reached from elsewhere it needs a token: midreel serve --help",
                kind="unknown-host",
            )
        if scope["method"] not in _SAFE and not _is_same_site(headers, host):
            raise ProblemError(
                403, "the request comes from a page of another site; send it from this one", kind="cross-site"
            )
        is_open = scope["path"] in _OPEN or scope["path"].startswith(_OPEN_BELOW)
        if self._token is not None and not is_open:
            self._token.expect_shown(scope)


def _name_of(host: str) -> str:
    """localhost:8000 -> localhost, [::1]:8000 -> ::1"""
    return _split(f"//{host}").hostname or ""


def _split(address: str) -> SplitResult:
    """Nothing at all of what is no address."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _is_same_site(headers: Mapping[str, str], host: str) -> bool:
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or _split(origin).netloc == host


class BoundedBody:
    """Reads so much of a request and not more, and does not wait for one who dawdles."""

    def __init__(self, app: ASGIApp, *, most: int, patience: float) -> None:
        self._app, self._most, self._patience = app, most, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(Headers(scope=scope), receive)
        except ProblemError as problem:
            problem.headers["Connection"] = "close"  # the rest of it is not read
            await problem(scope, receive, send)
            return
        if body is None:
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """None if the client has gone."""
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > self._most:
            raise self._too_large(announced)
        body = bytearray()
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._most:
                        raise self._too_large(f"more than {self._most}")
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise ProblemError(
                408, f"the request's body did not come within {self._patience:g} s; send it at once"
            ) from None

    def _too_large(self, size: str) -> ProblemError:
        return ProblemError(
            413, f"the request's body has {size[:20]} bytes, expected at most {self._most}; send less", kind="too-large"
        )
