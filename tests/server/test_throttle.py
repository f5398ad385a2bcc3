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
    """A throttle, a clock to be turned, and how many tokens were looked at."""

    def __init__(self) -> None:
        self.now, self.num_compared, self._number = 1000.0, 0, 0
        self.throttle = Throttle(lambda: self.now)

    def show(self, client: Client, token: str) -> bool | None:
        """Whether it is right; None while the client is blocked."""

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


def test_some_wrong_tokens_are_free_then_none_is_looked_at() -> None:
    door = Door()
    assert [door.guess(ANN) for _ in range(20)] == [False] * throttle.FREE + [None] * (20 - throttle.FREE)
    assert (door.num_compared, door.show(ANN, SECRET)) == (throttle.FREE, None)
    assert (door.refused.problem.status, door.refused.headers) == (429, {"Retry-After": "1"})
    door.now += throttle.FIRST_BLOCK
    assert door.show(ANN, SECRET) is True


def test_every_further_wrong_token_doubles_the_block_up_to_a_minute() -> None:
    door = Door()
    door.block(ANN)
    blocks = []
    for _ in range(20):
        before = door.now
        while door.guess(ANN) is None:
            door.now += 0.5
        blocks.append(door.now - before)
    assert blocks[:5] == [1, 2, 4, 8, 16]
    assert set(blocks[6:]) == {throttle.LONGEST_BLOCK}


def test_an_hour_of_guessing_is_worth_few_guesses() -> None:
    door = Door()
    for _ in range(36_000):
        door.guess(ANN)
        door.now += 0.1
    assert door.num_compared < 80


def test_one_wrong_token_again_and_again_is_no_guessing() -> None:
    """As a page does that was left open when the token was changed."""
    door = Door()
    assert not any(door.show(ANN, "an old token") for _ in range(1000))
    assert (door.num_compared, door.show(BEN, SECRET)) == (1000, True)


def test_no_token_is_no_guess() -> None:
    door = Door()
    door.block(ANN)
    assert (door.show(ANN, ""), door.num_compared) == (False, throttle.FREE)


def test_other_addresses_are_not_blocked() -> None:
    door = Door()
    door.block(ANN)
    assert (door.show(ELSEWHERE, SECRET), door.show(BEN, SECRET)) == (True, None)


def test_who_has_shown_the_right_token_is_not_blocked_by_others_at_the_same_address() -> None:
    door = Door()
    assert door.show(ANN, SECRET)
    door.block(BEN)
    assert (door.show(ANN, SECRET), door.show(BEN, SECRET)) == (True, None)


def test_who_has_shown_the_right_token_and_then_guesses_is_blocked_alone() -> None:
    door = Door()
    assert door.show(ANN, SECRET)
    door.block(ANN)
    assert (door.show(ANN, SECRET), door.show(BEN, SECRET)) == (None, True)


def test_after_a_day_trust_is_over() -> None:
    door = Door()
    assert door.show(ANN, SECRET)
    door.now += throttle.TRUSTED
    door.block(BEN)
    assert door.show(ANN, SECRET) is None


def test_what_is_long_ago_does_not_count() -> None:
    door = Door()
    for _ in range(throttle.FREE - 1):
        door.guess(ANN)
    door.now += throttle.FORGOTTEN + 1
    assert [door.guess(ANN) for _ in range(throttle.FREE + 1)] == [False] * throttle.FREE + [None]


def test_many_addresses_do_not_fill_the_memory() -> None:
    door = Door()
    for number in range(3 * throttle.MOST_COUNTS):
        door.guess(Client(f"10.0.{number // 256}.{number % 256}", 1))
    for number in range(3 * throttle.MOST_TRUSTED):
        door.show(Client("192.0.2.9", number), SECRET)
    assert len(door.throttle._counts) == throttle.MOST_COUNTS
    assert len(door.throttle._trusted) == throttle.MOST_TRUSTED


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),  # a host may choose among these
        ("2001:db8::1", "2001:db8:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("x" * 100_000, "x" * 99_999, True),  # which a proxy may say
    ],
)
def test_a_client_cannot_choose_another_address(one: str, other: str, is_same: bool) -> None:
    first, second = (Client.of({"type": "http", "client": (host, 1), "headers": []}) for host in (one, other))
    assert (first == second, len(first.address) < 100) == (is_same, True)


def test_a_client_without_an_address_is_one(world: World) -> None:
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
def test_whichever_way_tokens_are_sent_they_count(app: FastAPI, way: Callable[[TestClient, str], Any]) -> None:
    client = at(app, "192.0.2.1")
    assert {way(client, f"guess-{number}").status_code for number in range(throttle.FREE)} == {401}
    for other in WAYS:
        answer = other(client, SECRET)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert problem(answer)["type"] == "urn:midreel:problem:too-many-wrong-tokens"
        assert "set-cookie" not in answer.headers
    assert client.get("/v1/jobs").status_code == 401
    assert [client.get(address).status_code for address in ("/", "/healthz", "/page/app.js")] == [200] * 3
    assert by_header(at(app, "192.0.2.2"), SECRET).status_code == 200
    wait_for(lambda: by_header(client, SECRET).status_code == 200)


def test_a_user_who_is_in_is_not_blocked_by_a_guesser_behind_the_same_proxy(app: FastAPI) -> None:
    user, guesser = at(app, "192.0.2.1", "a browser"), at(app, "192.0.2.1", "a script")
    assert by_session(user, SECRET).status_code == 204
    codes = [by_header(guesser, f"guess-{number}").status_code for number in range(2 * throttle.FREE)]
    assert codes == [401] * throttle.FREE + [429] * throttle.FREE
    assert user.get("/v1/jobs").status_code == 200
    assert by_header(user, SECRET).status_code == 200


def test_behind_a_proxy_on_this_computer_clients_are_told_apart(world: World, served: Serving) -> None:
    address = served(world, token=SECRET).removeprefix("http://")

    def status(client: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": client}
        with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
            connection.request("GET", "/v1/jobs", headers=headers)
            return connection.getresponse().status

    codes = [status("192.0.2.1", f"guess-{number}") for number in range(throttle.FREE + 1)]
    assert (codes[-2:], status("192.0.2.2", SECRET)) == ([401, 429], 200)
