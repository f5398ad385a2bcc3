"""A rate limit on wrong tokens, against guessing.

A blocked client is refused without a check of its token. Accepting the right token during a block would reveal it to a
guesser. Refusals are immediate, so blocked clients occupy neither threads nor connections.

A client is identified by its address, which several clients behind a router or proxy may share. A client that has sent
the right token is identified by its address and User-Agent, and is counted alone. Guesses of its neighbours do not
block it.
"""

import ipaddress
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from starlette.datastructures import Headers
from starlette.types import Scope

from midreel.server.problems import ProblemError

MAX_WRONG = 10  # different wrong tokens before the first block, to allow for typing errors
FIRST_BLOCK, MAX_BLOCK = 1.0, 60.0  # seconds; each further wrong token doubles the block
RESET_AFTER = 3600.0  # seconds without a wrong token until the count restarts
TRUST_FOR = 24 * 3600.0  # seconds for which a client is trusted after it has sent the right token
MAX_COUNTS, MAX_TRUSTED = 4096, 1024  # the oldest entries are dropped, to bound the memory
_MAX_ADDRESS = 64  # characters of an unparsable address, which a proxy may send
_log = logging.getLogger("midreel.server")

K = TypeVar("K")
V = TypeVar("V")


class Client(NamedTuple):
    """The sender of a request."""

    address: str
    agent: int  # hash of the User-Agent

    @classmethod
    def of(cls, scope: Scope) -> "Client":
        """Return the client of an ASGI request."""
        host = (scope.get("client") or ("",))[0]
        return cls(_network(host), hash(Headers(scope=scope).get("user-agent", "")))


def _network(host: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address, in which a host may choose any address.

    >>> _network("192.0.2.1"), _network("::ffff:192.0.2.1"), _network("2001:db8::1:2:3:4"), _network("unix")
    ('192.0.2.1', '192.0.2.1', '2001:db8::', 'unix')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:_MAX_ADDRESS]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))


@dataclass
class _Count:
    """The wrong tokens of one client."""

    number: int = 0
    latest: float = 0.0
    blocked_until: float = 0.0
    seen: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_WRONG))  # hashes of the latest wrong tokens


class Throttle:
    """Count wrong tokens per client, and block clients that send too many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # A trusted client is counted by `Client`, all others by address. Both tables are sorted by time, latest last.
        self._counts: OrderedDict[Client | str, _Count] = OrderedDict()
        self._trusted: OrderedDict[Client, float] = OrderedDict()  # time of the last right token

    def check(self, client: Client, sent: str, is_right: Callable[[], bool]) -> bool:
        """Return whether a client has sent the right token.

        Args:
            client: The sender.
            sent: The token. An empty text is not counted as a guess.
            is_right: Compares the token. It is not called while the client is blocked.

        Raises:
            ProblemError: The client is blocked.
        """
        if not sent:  # a page that has no token yet
            return False
        now = self._clock()
        key = client if now - self._trusted.get(client, -math.inf) < TRUST_FOR else client.address
        count = self._counts.get(key)
        if count is not None and now < count.blocked_until:
            raise _blocked(count.blocked_until - now)
        if not is_right():
            self._add(key, sent, now)
            return False
        self._trusted[client] = now
        _move_to_end(self._trusted, client, MAX_TRUSTED)
        return True

    def _add(self, key: Client | str, sent: str, now: float) -> None:
        count = self._counts.get(key)
        if count is None or now - count.latest > RESET_AFTER:
            count = self._counts[key] = _Count()
        count.latest = now
        _move_to_end(self._counts, key, MAX_COUNTS)
        if hash(sent) in count.seen:  # not a new guess: a program or page repeats an old token
            return
        count.seen.append(hash(sent))
        count.number += 1
        if count.number >= MAX_WRONG:
            seconds = min(MAX_BLOCK, FIRST_BLOCK * 2.0 ** min(count.number - MAX_WRONG, 10))
            count.blocked_until = now + seconds
            address = key if isinstance(key, str) else key.address
            _log.warning("%r sent %d wrong tokens and is blocked for %g s", address, count.number, seconds)


def _move_to_end(table: "OrderedDict[K, V]", key: K, max_size: int) -> None:
    table.move_to_end(key)
    while len(table) > max_size:
        table.popitem(last=False)


def _blocked(seconds: float) -> ProblemError:
    rounded = max(1, math.ceil(seconds))
    return ProblemError(
        429,
        f"Too many wrong tokens from this address. Try again in {rounded} s.",
        kind="too-many-wrong-tokens",
        headers={"Retry-After": str(rounded)},
    )
