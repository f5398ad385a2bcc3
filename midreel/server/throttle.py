"""A limit on wrong tokens, so that nobody can try thousands of them.

While a client is blocked, its tokens are refused without being checked: to accept the right one even then would tell a
guesser at once which one it is. No request waits, so blocked clients take up neither threads nor connections.

A client is an address. Several clients may share an address, behind a router or a proxy. A client that has shown the
right token is also told apart by its User-Agent and has a count of its own, so the guesses of another do not block it.
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

FREE = 10  # different wrong tokens before the first block, to forgive typing errors
FIRST_BLOCK, LONGEST_BLOCK = 1.0, 60.0  # seconds; each further wrong token doubles it
FORGOTTEN = 3600.0  # seconds without a wrong token, after which a count starts anew
TRUSTED = 24 * 3600.0  # seconds since a client has shown the right token
MOST_COUNTS, MOST_TRUSTED = 4096, 1024  # the oldest are dropped, or many addresses would fill the memory
_LONGEST_NAME = 64  # characters of an address that cannot be parsed: a proxy may pass on anything
_log = logging.getLogger("midreel.server")

K = TypeVar("K")
V = TypeVar("V")


class Client(NamedTuple):
    address: str
    agent: int  # a hash of its User-Agent

    @classmethod
    def of(cls, scope: Scope) -> "Client":
        host = (scope.get("client") or ("",))[0]
        return cls(_network(host), hash(Headers(scope=scope).get("user-agent", "")))


def _network(host: str) -> str:
    """Return the address or, of IPv6, its /64 network: a host may choose any address in that.

    >>> _network("192.0.2.1"), _network("::ffff:192.0.2.1"), _network("2001:db8::1:2:3:4"), _network("unix")
    ('192.0.2.1', '192.0.2.1', '2001:db8::', 'unix')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:_LONGEST_NAME]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))


@dataclass
class _Count:
    """The wrong tokens of one client."""

    number: int = 0
    latest: float = 0.0
    blocked_until: float = 0.0
    seen: deque[int] = field(default_factory=lambda: deque(maxlen=FREE))  # hashes of the latest


class Throttle:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[Client | str, _Count] = OrderedDict()  # the latest wrong token last
        self._trusted: OrderedDict[Client, float] = OrderedDict()  # when they showed the right token, the latest last

    def check(self, client: Client, shown: str, is_right: Callable[[], bool]) -> bool:
        """Return whether what a client shows is right. Raise a ProblemError if the client is blocked."""
        if not shown:  # not a guess: a page that has no token yet
            return False
        now = self._clock()
        key = client if now - self._trusted.get(client, -math.inf) < TRUSTED else client.address
        count = self._counts.get(key)
        if count is not None and now < count.blocked_until:
            raise _blocked(count.blocked_until - now)
        if not is_right():
            self._add(key, shown, now)
            return False
        self._trusted[client] = now
        _keep_latest(self._trusted, client, MOST_TRUSTED)
        return True

    def _add(self, key: Client | str, shown: str, now: float) -> None:
        count = self._counts.get(key)
        if count is None or now - count.latest > FORGOTTEN:
            count = self._counts[key] = _Count()
        count.latest = now
        _keep_latest(self._counts, key, MOST_COUNTS)
        if hash(shown) in count.seen:  # not a new guess: a program or page that has an old token
            return
        count.seen.append(hash(shown))
        count.number += 1
        if count.number >= FREE:
            seconds = min(LONGEST_BLOCK, FIRST_BLOCK * 2.0 ** min(count.number - FREE, 10))
            count.blocked_until = now + seconds
            address = key if isinstance(key, str) else key.address
            _log.warning("%r has sent %d wrong tokens and is blocked for %g s", address, count.number, seconds)


def _keep_latest(table: "OrderedDict[K, V]", key: K, most: int) -> None:
    table.move_to_end(key)
    while len(table) > most:
        table.popitem(last=False)


def _blocked(seconds: float) -> ProblemError:
    rounded = max(1, math.ceil(seconds))
    return ProblemError(
        429,
        f"too many wrong tokens came from this address; try again in {rounded} s",
        kind="too-many-wrong-tokens",
        headers={"Retry-After": str(rounded)},
    )
