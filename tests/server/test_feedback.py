"""The routes of feedback and the methods of the client."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midreel.errors import Unwritable
from midreel.library.feedback import FeedbackLog
from midreel.server.app import create_app
from midreel.server.client import Client, ServerProblem
from tests.server.conftest import HERE, Serving, World


@pytest.fixture
def client(own: World) -> Any:
    with own.searcher() as searcher, TestClient(create_app(searcher), base_url=HERE) as client:
        yield client


@pytest.fixture
def video(client: TestClient) -> dict[str, Any]:
    return client.get("/v1/videos").json()["videos"][0]


def post(client: TestClient, about: dict[str, Any], **changes: Any) -> Any:
    body = {"query": "a red cup", "video": about["id"], "match": True, "start": 1.0, "end": 2.5} | changes
    return client.post("/v1/feedback", json={name: value for name, value in body.items() if value is not None})


def test_feedback_is_added_listed_and_deleted(client: TestClient, video: dict[str, Any]) -> None:
    answer = post(client, video, query=" a  red cup ")
    assert answer.status_code == 201
    added = answer.json()
    assert answer.headers["Location"] == f"/v1/feedback/{added['id']}"
    assert (added["query"], added["video"], added["match"]) == ("a red cup", video["id"], True)
    assert (added["start"], added["end"]) == (1.0, 2.5)
    other = post(client, video, query="a boat", match=False, start=None, end=None).json()
    assert (other["match"], other["start"]) == (False, 0.0)
    assert other["end"] == pytest.approx(video["duration"])
    page = client.get("/v1/feedback").json()
    assert page == {"feedback": [added, other], "total": 2, "offset": 0, "limit": 50}
    assert client.get("/v1/feedback", params={"query": "a boat"}).json()["feedback"] == [other]
    assert client.get("/v1/feedback", params={"video": "x"}).json()["total"] == 0
    assert client.get("/v1/feedback", params={"offset": 1, "limit": 1}).json()["feedback"] == [other]
    assert client.delete(f"/v1/feedback/{added['id']}").status_code == 204
    again = client.delete(f"/v1/feedback/{added['id']}")
    assert (again.status_code, again.json()["type"]) == (404, "urn:midreel:problem:missing-feedback")


def test_the_last_word_counts(client: TestClient, video: dict[str, Any]) -> None:
    post(client, video)
    changed = post(client, video, match=False, start=2.0, end=3.0).json()
    assert client.get("/v1/feedback").json()["feedback"] == [changed]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"query": " "}, 422),
        ({"query": "a cup AND a boat"}, 422),
        ({"video": "nothing"}, 404),
        ({"match": "yes"}, 422),
        ({"match": 1}, 422),
        ({"start": -1}, 422),
        ({"start": 9999, "end": 10000}, 422),
        ({"start": 2.0, "end": 1.0}, 422),
        ({"start": "1"}, 422),
        ({"moment": 3}, 422),
    ],
)
def test_bad_requests(client: TestClient, video: dict[str, Any], changes: dict[str, Any], status: int) -> None:
    answer = post(client, video, **changes)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.get("/v1/feedback").json()["total"] == 0


@pytest.mark.parametrize("number", ["0", "-1", "x", str(2**60)])
def test_bad_ids(client: TestClient, number: str) -> None:
    assert client.delete(f"/v1/feedback/{number}").status_code == 422


def test_a_page_of_another_site_may_not_give_feedback(client: TestClient, video: dict[str, Any]) -> None:
    body = {"query": "a cup", "video": video["id"], "match": True}
    answer = client.post("/v1/feedback", json=body, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert client.get("/v1/feedback").json()["total"] == 0


def test_a_read_only_library_is_reported(
    client: TestClient, video: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise Unwritable("/secret/library/feedback.sqlite cannot be written")

    monkeypatch.setattr(FeedbackLog, "add", denied)
    answer = post(client, video)
    assert answer.status_code == 507
    assert "secret" not in answer.text


def test_a_damaged_file_is_reported_and_searches_work(own: World, client: TestClient) -> None:
    (own.library / "feedback.sqlite").write_bytes(b"no database" * 99)
    answer = client.get("/v1/feedback")
    assert answer.status_code == 503
    assert str(own.library) not in answer.text
    assert client.post("/v1/search", json={"query": "a red cup"}).status_code == 200


def test_a_token_is_required(own: World) -> None:
    token = "a-token-of-the-test-0123"
    with own.searcher() as searcher, TestClient(create_app(searcher, token=token), base_url=HERE) as client:
        for answer in (
            client.get("/v1/feedback"),
            client.delete("/v1/feedback/1"),
            client.post("/v1/feedback", json={}),
        ):
            assert answer.status_code == 401
        assert client.get("/v1/feedback", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_the_client_gives_lists_and_removes(own: World, served: Serving, tmp_path: Path) -> None:
    with Client(served(own)) as client:
        hit = client.search(own.queries[0].text, top=1).hits[0]
        added = client.add_feedback(own.queries[0].text, hit.video.id, start=hit.start, end=hit.end)
        refused = client.add_feedback("a boat", hit.video.id, match=False)
        assert list(client.feedback()) == [added, refused]
        assert list(client.feedback(query="a boat")) == [refused]
        assert FeedbackLog(own.library).all()[0].match
        client.remove_feedback(added.id)
        with pytest.raises(ServerProblem):
            client.remove_feedback(added.id)
        with pytest.raises(ServerProblem):
            client.add_feedback("a boat", "nothing")
