import http.client
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from midreel.server import throttle
from midreel.server.app import create_app
from midreel.server.problems import ProblemError
from midreel.server.throttle import Client, Throttle
from tests.server.conftest import HERE, Serving, World, wait_for
from tests.server.test_routes import problem

SECRET = "a-token-of-some-length"
ANN, BEN = Client("192.0.2.1", 1), Client("192.0.2.1", 2)  # behind one address
ELSEWHERE = Client("198.51.100.1", 1)


class Door:
    """A throttle with a manual clock. It counts the comparisons of tokens."""

    def __init__(self) -> None:
        self.now, self.num_compared, self._number = 1000.0, 0, 0
        self.throttle = Throttle(lambda: self.now)

    def show(self, client: Client, token: str) -> bool | None:
        """Return whether the token is right, or None while the client is blocked."""

        def is_right() -> bool:
            self.num_compared += 1
            return token == SECRET

        try:
            return self.throttle.check(client, token, is_right)
        except ProblemError as refused:
            self.refused = refused
            return None

    def guess(self, client: Client) -> bool | None:
        self._number += 1
        return self.show(client, f"guess {self._number}")

    def block(self, client: Client) -> None:
        while self.guess(client) is False:
            pass


def test_tokens_are_not_compared_during_a_block() -> None:
    door = Door()
    assert [door.guess(ANN) for _ in range(20)] == [False] * throttle.MAX_WRONG + [None] * (20 - throttle.MAX_WRONG)
    assert (door.num_compared, door.show(ANN, SECRET)) == (throttle.MAX_WRONG, None)
    assert (door.refused.problem.status, door.refused.headers) == (429, {"Retry-After": "1"})
    door.now += throttle.FIRST_BLOCK
    assert door.show(ANN, SECRET) is True


def test_each_wrong_token_doubles_the_block_up_to_a_limit() -> None:
    door = Door()
    door.block(ANN)
    blocks = []
    for _ in range(20):
        before = door.now
        while door.guess(ANN) is None:
            door.now += 0.5
        blocks.append(door.now - before)
    assert blocks[:5] == [1, 2, 4, 8, 16]
    assert set(blocks[6:]) == {throttle.MAX_BLOCK}


def test_an_hour_allows_few_guesses() -> None:
    door = Door()
    for _ in range(36_000):
        door.guess(ANN)
        door.now += 0.1
    assert door.num_compared < 80


def test_a_repeated_wrong_token_counts_once() -> None:
    """A page that stays open while the token changes repeats the old one."""
    door = Door()
    assert not any(door.show(ANN, "an old token") for _ in range(1000))
    assert (door.num_compared, door.show(BEN, SECRET)) == (1000, True)


def test_a_missing_token_is_not_counted() -> None:
    door = Door()
    door.block(ANN)
    assert (door.show(ANN, ""), door.num_compared) == (False, throttle.MAX_WRONG)


def test_other_addresses_are_not_blocked() -> None:
    door = Door()
    door.block(ANN)
    assert (door.show(ELSEWHERE, SECRET), door.show(BEN, SECRET)) == (True, None)


def test_a_trusted_client_is_not_blocked_by_its_neighbours() -> None:
    door = Door()
    assert door.show(ANN, SECRET)
    door.block(BEN)
    assert (door.show(ANN, SECRET), door.show(BEN, SECRET)) == (True, None)


def test_a_trusted_client_that_guesses_is_blocked_alone() -> None:
    door = Door()
    assert door.show(ANN, SECRET)
    door.block(ANN)
    assert (door.show(ANN, SECRET), door.show(BEN, SECRET)) == (None, True)


def test_trust_ends_after_a_day() -> None:
    door = Door()
    assert door.show(ANN, SECRET)
    door.now += throttle.TRUST_FOR
    door.block(BEN)
    assert door.show(ANN, SECRET) is None


def test_the_count_restarts_after_an_hour() -> None:
    door = Door()
    for _ in range(throttle.MAX_WRONG - 1):
        door.guess(ANN)
    door.now += throttle.RESET_AFTER + 1
    assert [door.guess(ANN) for _ in range(throttle.MAX_WRONG + 1)] == [False] * throttle.MAX_WRONG + [None]


def test_the_tables_are_bounded() -> None:
    door = Door()
    for number in range(3 * throttle.MAX_COUNTS):
        door.guess(Client(f"10.0.{number // 256}.{number % 256}", 1))
    for number in range(3 * throttle.MAX_TRUSTED):
        door.show(Client("192.0.2.9", number), SECRET)
    assert len(door.throttle._counts) == throttle.MAX_COUNTS
    assert len(door.throttle._trusted) == throttle.MAX_TRUSTED


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),  # one host may use both
        ("2001:db8::1", "2001:db8:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("x" * 100_000, "x" * 99_999, True),  # as a proxy may send
    ],
)
def test_a_client_cannot_choose_another_address(one: str, other: str, is_same: bool) -> None:
    first, second = (Client.of({"type": "http", "client": (host, 1), "headers": []}) for host in (one, other))
    assert (first == second, len(first.address) < 100) == (is_same, True)


def test_a_client_may_have_no_address(world: World) -> None:
    assert Client.of({"type": "http", "client": None, "headers": []}).address == ""


# ---------------------------------------------------------------- over HTTP


@pytest.fixture
def app(world: World) -> Iterator[FastAPI]:
    with world.searcher() as searcher:
        app = create_app(searcher, token=SECRET)
        yield app
        app.state.services.close()


def at(app: FastAPI, address: str, agent: str = "a browser") -> TestClient:
    return TestClient(app, base_url=HERE, client=(address, 1), headers={"User-Agent": agent})


def by_header(client: TestClient, token: str) -> Any:
    return client.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"})


def by_cookie(client: TestClient, token: str) -> Any:
    return client.get("/v1/jobs", headers={"Cookie": f"midreel-80={token}"})


def by_session(client: TestClient, token: str) -> Any:
    return client.post("/v1/session", json={"token": token})


WAYS = [by_header, by_cookie, by_session]


@pytest.mark.parametrize("way", WAYS)
def test_tokens_count_in_headers_cookies_and_sessions(app: FastAPI, way: Callable[[TestClient, str], Any]) -> None:
    client = at(app, "192.0.2.1")
    assert {way(client, f"guess-{number}").status_code for number in range(throttle.MAX_WRONG)} == {401}
    for other in WAYS:
        answer = other(client, SECRET)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert problem(answer)["type"] == "urn:midreel:problem:too-many-wrong-tokens"
        assert "set-cookie" not in answer.headers
    assert client.get("/v1/jobs").status_code == 401
    assert [client.get(address).status_code for address in ("/", "/healthz", "/page/app.js")] == [200] * 3
    assert by_header(at(app, "192.0.2.2"), SECRET).status_code == 200
    wait_for(lambda: by_header(client, SECRET).status_code == 200)


def test_a_signed_in_user_is_not_blocked_by_a_guesser_behind_the_same_proxy(app: FastAPI) -> None:
    user, guesser = at(app, "192.0.2.1", "a browser"), at(app, "192.0.2.1", "a script")
    assert by_session(user, SECRET).status_code == 204
    codes = [by_header(guesser, f"guess-{number}").status_code for number in range(2 * throttle.MAX_WRONG)]
    assert codes == [401] * throttle.MAX_WRONG + [429] * throttle.MAX_WRONG
    assert user.get("/v1/jobs").status_code == 200
    assert by_header(user, SECRET).status_code == 200


def test_clients_behind_a_local_proxy_are_counted_separately(world: World, served: Serving) -> None:
    address = served(world, token=SECRET).removeprefix("http://")

    def status(client: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": client}
        with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
            connection.request("GET", "/v1/jobs", headers=headers)
            return connection.getresponse().status

    codes = [status("192.0.2.1", f"guess-{number}") for number in range(throttle.MAX_WRONG + 1)]
    assert (codes[-2:], status("192.0.2.2", SECRET)) == ([401, 429], 200)
