"""Access control: the token, host names, origins, body limits and security headers.

It is plain ASGI middleware below FastAPI, so the body of a refused request is never read.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Collection, Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midreel.errors import BadSetting
from midreel.server.problems import ProblemError, busy
from midreel.server.throttle import Client, Throttle

MAX_BODY = 128 * 1024  # bytes
BODY_TIMEOUT = 10.0  # seconds for a whole body
CROWDED = "crowded"  # key in the state of a connection beyond the limit
MIN_TOKEN_LENGTH = 16
NEW_TOKEN = "(umask 077; python -c 'import secrets; print(secrets.token_urlsafe())' > FILE)"
_log = logging.getLogger("midreel.server")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# Paths that need no token: the page, which contains no secret and asks for the token, and the checks of load balancers.
_OPEN_PATHS = ("/", "/library", "/healthz", "/readyz", "/v1/session", "/favicon.ico")
_PAGE_PREFIX = "/page/"

_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_API_HEADERS = [*_HEADERS, (b"cache-control", b"no-store")]
_PAGE_HEADERS = [*_HEADERS, (b"cache-control", b"no-cache")]  # browsers may keep the page but must revalidate it


class Token:
    """The secret of the server. Clients send it as `Authorization: Bearer TOKEN`, browsers as a cookie derived from it.

    Raises:
        BadSetting: The token is too short or has characters that a header cannot contain.
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < MIN_TOKEN_LENGTH or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise BadSetting(
                f"the token has {len(secret)} characters, expected at least {MIN_TOKEN_LENGTH} ASCII characters "
                f"without spaces. Make a new one: {NEW_TOKEN}"
            )
        self._secret = secret.encode()
        self.cookie = hmac.new(self._secret, b"midreel session", hashlib.sha256).hexdigest()
        self._throttle = Throttle()

    def expect_right(self, scope: Scope, given: str) -> None:
        """Raise ProblemError unless `given` is the token, or if its client is blocked after too many wrong tokens."""
        if not self._throttle.check(Client.of(scope), given, lambda: self.is_right(given)):
            raise ProblemError(
                401, "The token is wrong. Use the token that midreel serve was started with.", kind="wrong-token"
            )

    def expect_sent(self, scope: Scope) -> None:
        """Raise ProblemError unless the headers contain the token, or if the client is blocked."""
        headers = Headers(scope=scope)
        if not self._throttle.check(Client.of(scope), _credentials(headers), lambda: self.admits(headers)):
            raise ProblemError(
                401,
                "This server requires a token. Send it as Authorization: Bearer TOKEN.",
                kind="token-needed",
                headers={"WWW-Authenticate": 'Bearer realm="midreel"'},
            )

    def is_right(self, given: str) -> bool:
        """Compare a token in constant time."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._secret)

    def admits(self, headers: Headers) -> bool:
        """Return whether the headers contain the token or its cookie."""
        if self.is_right(_bearer(headers)):
            return True
        return hmac.compare_digest(_own_cookie(headers).encode("utf-8", "replace"), self.cookie.encode())


def _bearer(headers: Headers) -> str:
    kind, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else ""


def _own_cookie(headers: Headers) -> str:
    return _cookie(headers.get("cookie", ""), cookie_name(headers.get("host", "")))


def _credentials(headers: Headers) -> str:
    """Return the bearer token and the cookie of a request, or an empty text if it has neither."""
    return "\n".join(filter(None, (_bearer(headers), _own_cookie(headers))))


def cookie_name(host: str) -> str:
    """Return the name of the cookie for a Host header.

    It contains the port, because browsers send a cookie to all ports of a host, where other servers may run.

    >>> cookie_name("localhost:8765"), cookie_name("example.org")
    ('midreel-8765', 'midreel-80')
    """
    try:
        port = _split(f"//{host}").port
    except ValueError:
        port = None
    return f"midreel-{port or 80}"


def _cookie(header: str, wanted: str) -> str:
    """Return the value of one cookie. The parser of the standard library takes quadratic time on malicious input."""
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return ""


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this computer.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _headers(path: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response that has none of its own."""
    if path.startswith("/v1/"):
        return _API_HEADERS
    return _PAGE_HEADERS if path.startswith(_PAGE_PREFIX) else _HEADERS


class HeadersMiddleware:
    """Add security headers to every response, and answer unexpected exceptions with a 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                given = [(name.lower(), value) for name, value in message.get("headers", ())]
                present = {name for name, _ in given}
                message["headers"] = given + [each for each in _headers(scope["path"]) if each[0] not in present]
            await send(message)

        try:
            await self._app(scope, receive, with_headers)
        except Exception:
            _log.exception("a request failed")
            if has_started:
                raise  # too late for another status: uvicorn closes the connection
            # Only the log has the details, which may contain paths.
            await ProblemError(500, "Internal error. See the server log.")(scope, receive, with_headers)


class AccessMiddleware:
    """Refuse requests that are not allowed.

    * With a token, every request outside the page must contain it.
    * Without a token, the Host header must name this computer. Otherwise a foreign page could resolve its own name to
      this server (DNS rebinding) and read everything.
    * Requests that change something must not come from a page of another site (CSRF).
    * Requests on connections beyond the limit are refused.

    Args:
        app: The application to protect.
        token: The token that requests must contain; None if they need none.
        hosts: Names that the Host header may have besides localhost, if there is no token.
    """

    def __init__(self, app: ASGIApp, *, token: Token | None, hosts: Collection[str] = ()) -> None:
        self._app, self._token, self._hosts = app, token, {*_LOCAL_HOSTS, *hosts}

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
                f"Host is {host[:100]!r}, expected localhost. Other host names require a token: midreel serve --help",
                kind="unknown-host",
            )
        if scope["method"] not in _SAFE_METHODS and not _is_same_site(headers, host):
            raise ProblemError(403, "The request comes from a page of another site.", kind="cross-site")
        is_open = scope["path"] in _OPEN_PATHS or scope["path"].startswith(_PAGE_PREFIX)
        if self._token is not None and not is_open:
            self._token.expect_sent(scope)


def _name_of(host: str) -> str:
    """localhost:8000 -> localhost, [::1]:8000 -> ::1"""
    return _split(f"//{host}").hostname or ""


def _split(address: str) -> SplitResult:
    """Split a URL. An invalid one has no parts."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _is_same_site(headers: Mapping[str, str], host: str) -> bool:
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or _split(origin).netloc == host


class BodyLimitMiddleware:
    """Read the whole body before the request is handled. Refuse bodies that are too large or too slow.

    Args:
        app: The application to protect.
        max_size: The maximum size of a body in bytes.
        timeout: The maximum time for a body to arrive, in seconds.
    """

    def __init__(self, app: ASGIApp, *, max_size: int, timeout: float) -> None:
        self._app, self._max_size, self._timeout = app, max_size, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(Headers(scope=scope), receive)
        except ProblemError as problem:
            problem.headers["Connection"] = "close"  # the rest of the body stays unread
            await problem(scope, receive, send)
            return
        if body is None:
            return
        is_replayed = False

        async def replay() -> Message:
            nonlocal is_replayed
            if is_replayed:
                return await receive()
            is_replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """Return the body, or None if the client has disconnected."""
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > self._max_size:
            raise self._too_large(announced)
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._max_size:
                        raise self._too_large(f"more than {self._max_size}")
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise ProblemError(408, f"The request body did not arrive within {self._timeout:g} s.") from None

    def _too_large(self, size: str) -> ProblemError:
        return ProblemError(
            413, f"The request body has {size[:20]} bytes, expected at most {self._max_size}.", kind="too-large"
        )
