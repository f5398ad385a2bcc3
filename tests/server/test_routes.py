import io
import json
import math
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from midreel.library.searcher import Searcher
from midreel.media import decode as video
from midreel.server import schemas
from midreel.server.answers import thinned
from midreel.server.app import PAGE, create_app
from tests.server.conftest import HERE, World, wait_for


def search(client: TestClient, query: str, **more: Any) -> Any:
    answer = client.post("/v1/search", json={"query": query, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def problem(answer: Any) -> Any:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    return body


# ---------------------------------------------------------------- search


def test_search_returns_the_hits_of_the_searcher(client: TestClient, world: World) -> None:
    query = world.queries[0].text
    with world.searcher() as searcher:
        expected = searcher.search(query, top=3)
    found = search(client, query, top=3)["hits"]
    assert [hit["rank"] for hit in found] == [1, 2, 3]
    assert [hit["video"]["id"] for hit in found] == [hit.video_id for hit in expected]
    for hit, same in zip(found, expected, strict=True):
        assert math.isclose(hit["score"], same.score, abs_tol=1e-5)
        assert hit["branch_scores"] == pytest.approx(dict(same.branch_scores), abs=1e-5)
        assert (hit["start"], hit["end"]) == pytest.approx((same.moments[0].start, same.moments[0].end))
        assert len(hit["alternatives"]) == len(same.moments) - 1
        for shown, moment in zip([hit, *hit["alternatives"]], same.moments, strict=True):
            assert shown["start_range"] == pytest.approx(moment.start_range, abs=1e-3)
            assert shown["end_range"] == pytest.approx(moment.end_range, abs=1e-3)
            assert shown["start_range"][0] <= shown["start"] <= shown["start_range"][1]
            assert shown["end_range"][0] <= shown["end"] <= shown["end_range"][1] <= hit["video"]["duration"] + 1e-3
        assert hit["curve"]["values"] == pytest.approx(list(same.curve.values), abs=1e-3)
        assert hit["stream"].startswith(f"/v1/videos/{same.video_id}/stream#t=")


@pytest.mark.parametrize("form", ["{0}", "{0} AND {1}", "{0} THEN {1}"])
def test_an_answer_has_the_form_of_its_schema(client: TestClient, world: World, form: str) -> None:
    """The slow twin of `answers`: pydantic reads the answer, and writes the same."""
    query = form.format(*(query.text for query in world.queries[:2]))
    sent = client.post("/v1/search", json={"query": query}).json()
    assert sent["hits"]
    assert json.loads(schemas.SearchResponse.model_validate(sent, extra="forbid").model_dump_json()) == sent


def test_the_urls_of_a_hit_work(client: TestClient, world: World) -> None:
    hit = search(client, world.queries[0].text, top=1)["hits"][0]
    for address in (hit["thumbnail"], hit["stream"], hit["video"]["thumbnail"], hit["video"]["stream"]):
        assert client.get(address.partition("#")[0]).status_code == 200


def test_a_threshold_decides_what_is_confident_and_drops_no_hit(client: TestClient, world: World) -> None:
    everything = search(client, world.queries[0].text)
    confidences = [hit["confidence"] for hit in everything["hits"]]
    assert confidences == sorted(confidences, reverse=True)
    assert all(0 <= confidence <= 1 for confidence in confidences)
    assert everything["threshold"] == 0.5
    assert everything["confident"] is (confidences[0] >= 0.5)
    for threshold, confident in ((confidences[0], True), (1, False), (0, True)):
        some = search(client, world.queries[0].text, threshold=threshold)
        assert (some["confident"], some["threshold"]) == (confident, threshold)
        assert [hit["confidence"] for hit in some["hits"]] == confidences


@pytest.mark.parametrize("threshold", [-0.1, 1.1])
def test_a_threshold_is_a_probability(client: TestClient, threshold: float) -> None:
    answer = client.post("/v1/search", json={"query": "a ball", "threshold": threshold})
    assert answer.status_code == 422
    assert "threshold" in answer.text


def test_a_search_can_be_limited_to_videos_and_to_a_folder(
    client: TestClient, world: World, ids: dict[str, str]
) -> None:
    query, chosen = world.queries[0].text, [ids["playhouse-test-00001.mp4"], ids["playhouse-test-00002.mp4"]]
    assert {hit["video"]["id"] for hit in search(client, query, videos=chosen)["hits"]} == set(chosen)
    beach = search(client, query, folder="Videos/holidays")["hits"]
    assert [hit["video"]["file"] for hit in beach] == ["the beach, 2024 ä.mp4"]
    assert len(search(client, query, folder="Videos")["hits"]) == 5
    assert search(client, query, folder="Videos/holidays", videos=chosen)["hits"] == []


def test_unknown_videos_and_folders_are_named(client: TestClient) -> None:
    answer = client.post("/v1/search", json={"query": "a ball", "videos": ["0" * 32]})
    assert (answer.status_code, "0" * 32 in problem(answer)["detail"]) == (404, True)
    answer = client.post("/v1/search", json={"query": "a ball", "folder": "Videos/../.."})
    assert (answer.status_code, problem(answer)["type"]) == (404, "urn:midreel:problem:no-folder")


def test_the_curve_of_a_video_equals_the_curve_of_its_hit(
    client: TestClient, world: World, ids: dict[str, str]
) -> None:
    query, video_id = world.queries[0].text, ids["playhouse-test-00003.mp4"]
    alone = client.get(f"/v1/videos/{video_id}/curve", params={"query": query}).json()
    hit = search(client, query, videos=[video_id])["hits"][0]
    assert (alone["curve"], alone["score"]) == (hit["curve"], hit["score"])
    assert (alone["moments"][0]["start"], alone["moments"][0]["end"]) == (hit["start"], hit["end"])


def test_operators_in_a_search(client: TestClient, world: World) -> None:
    a, b = world.queries[0].text, world.queries[5].text
    found = search(client, f"{a}  AND\u2003{b}")
    expected = world.searcher().search(f"{a} AND {b}")
    assert [(hit["video"]["id"], hit["score"]) for hit in found["hits"]] == [
        (hit.video_id, hit.score) for hit in expected
    ]
    first = found["hits"][0]
    assert (first["part"], first["alternatives"][0]["part"]) == (a, b)
    assert search(client, a)["hits"][0]["part"] == ""
    alone = client.get(f"/v1/videos/{first['video']['id']}/curve", params={"query": f"{a} AND {b}"}).json()
    assert (alone["score"], alone["moments"][1]["part"]) == (first["score"], b)


def test_a_misplaced_operator_is_a_problem(client: TestClient, ids: dict[str, str]) -> None:
    for answer in (
        client.post("/v1/search", json={"query": "a ball NOT"}),
        client.get(f"/v1/videos/{ids['playhouse-test-00001.mp4']}/curve", params={"query": "a ball NOT"}),
    ):
        assert (answer.status_code, problem(answer)["type"]) == (422, "urn:midreel:problem:bad-query")
        assert "'a ball NOT'" in problem(answer)["detail"]


def test_a_moment_with_words(client: TestClient, world: World, ids: dict[str, str]) -> None:
    own = ids["playhouse-test-00001.mp4"]
    found = search(client, "a ball", like={"video": own, "time": 3})["hits"]
    assert {hit["video"]["id"] for hit in found} == set(ids.values()) - {own}
    assert [hit["score"] for hit in found] != [hit["score"] for hit in search(client, "a ball")["hits"]][:4]
    late = client.post("/v1/search", json={"query": "a ball", "like": {"video": own, "time": 9999}})
    assert (late.status_code, "9999" in problem(late)["detail"]) == (422, True)
    unknown = client.post("/v1/search", json={"query": "a ball", "like": {"video": "0" * 32, "time": 1}})
    assert unknown.status_code == 404


@given(values=st.lists(st.floats(-1, 1), max_size=60), most=st.integers(1, 20))
def test_a_long_curve_is_thinned_and_keeps_its_peaks(values: list[float], most: int) -> None:
    kept = thinned(values, most)
    assert kept == sorted(set(kept))
    assert len(kept) == min(len(values), most)
    assert max((values[k] for k in kept), default=0) == max(values, default=0)


# ---------------------------------------------------------------- videos


def test_videos_are_paginated(client: TestClient) -> None:
    pages = [client.get("/v1/videos", params={"offset": offset, "limit": 2}).json() for offset in (0, 2, 4, 6)]
    assert [len(page["videos"]) for page in pages] == [2, 2, 1, 0]
    assert {page["total"] for page in pages} == {5}
    assert len({video["id"] for page in pages for video in page["videos"]}) == 5


def test_videos_can_be_listed_by_name_and_folder(client: TestClient) -> None:
    def files(**words: str) -> list[str]:
        return [video["file"] for video in client.get("/v1/videos", params=words).json()["videos"]]

    assert files(text="BEACH") == ["the beach, 2024 ä.mp4"] == files(folder="Videos/holidays")
    assert len(files(folder="Videos")) == 5
    assert files(text="no such name") == []


def test_no_response_contains_a_path(client: TestClient, world: World) -> None:
    addresses = ("/v1/videos", "/v1/library", "/v1/quarantine", "/v1/jobs", "/metrics")
    body = [client.get(address).text for address in addresses]
    body.append(client.post("/v1/search", json={"query": "a ball"}).text)
    assert not any(str(world.videos.parent) in text for text in body)
    assert "Videos/broken.mp4" in body[2]


def test_a_video_has_its_title_size_and_duration(client: TestClient, ids: dict[str, str], world: World) -> None:
    body = client.get(f"/v1/videos/{ids['the beach, 2024 ä.mp4']}").json()
    path = world.videos / "holidays" / "the beach, 2024 ä.mp4"
    assert (body["title"], body["folder"], body["copies"]) == ("the beach, 2024 ä", "Videos/holidays", 1)
    assert (body["size"], body["duration"]) == (path.stat().st_size, pytest.approx(video.duration(path), abs=0.1))


@pytest.mark.parametrize("what", ["", "/stream", "/thumbnail", "/curve?query=x"])
def test_an_unknown_video_is_a_404(client: TestClient, what: str) -> None:
    answer = client.get(f"/v1/videos/{'0' * 32}{what}")
    assert (answer.status_code, problem(answer)["type"]) == (404, "urn:midreel:problem:no-video")


def test_a_removed_video_is_not_found(own: World) -> None:
    with own.searcher() as searcher, TestClient(create_app(searcher), base_url=HERE) as client:
        hit = search(client, own.queries[0].text, top=1)["hits"][0]["video"]["id"]
        assert client.delete(f"/v1/videos/{hit}").status_code == 204
        assert client.get(f"/v1/videos/{hit}").status_code == 404
        assert client.delete(f"/v1/videos/{hit}").status_code == 404
        left = search(client, own.queries[0].text)["hits"]
        assert len(left) == 4
        assert hit not in [each["video"]["id"] for each in left]
    assert own.videos.is_dir()
    assert len(list(own.videos.rglob("*.mp4"))) == 6


# ---------------------------------------------------------------- thumbnails


def test_a_thumbnail_is_the_frame_at_its_time(client: TestClient, world: World, ids: dict[str, str]) -> None:
    address = f"/v1/videos/{ids['playhouse-test-00001.mp4']}/thumbnail"
    answer = client.get(address, params={"t": 7.0, "width": 960}, headers={"Accept": "image/jpeg"})
    drawn = Image.open(io.BytesIO(answer.content))
    [(_, frame)] = video.frames_at(world.videos / "playhouse-test-00001.mp4", [7.0])
    expected = Image.fromarray(frame)
    assert (answer.headers["content-type"], drawn.size) == ("image/jpeg", expected.size)
    difference = [abs(a - b) for a, b in zip(drawn.tobytes(), expected.tobytes(), strict=True)]
    assert sum(difference) / len(difference) < 4


def test_a_thumbnail_is_cached_and_webp_if_accepted(client: TestClient, ids: dict[str, str]) -> None:
    address = f"/v1/videos/{ids['playhouse-test-00001.mp4']}/thumbnail?t=3&width=64"
    answer = client.get(address, headers={"Accept": "image/webp,*/*"})
    assert (answer.headers["content-type"], Image.open(io.BytesIO(answer.content)).width) == ("image/webp", 64)
    assert "max-age" in answer.headers["cache-control"]
    hits = client.get("/metrics").text
    again = client.get(address, headers={"Accept": "image/webp,*/*"})
    assert again.content == answer.content
    assert 'midreel_thumbnails_total{cache="hit"}' in client.get("/metrics").text != hits
    same = client.get(address, headers={"Accept": "image/webp", "If-None-Match": answer.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")


def test_a_thumbnail_after_the_end_is_the_last_frame(client: TestClient, ids: dict[str, str]) -> None:
    assert client.get(f"/v1/videos/{ids['playhouse-test-00001.mp4']}/thumbnail?t=1e9").status_code == 200


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_a_wrong_content_type_is_explained(client: TestClient, kind: str | None) -> None:
    """As curl sends it by default."""
    headers = {} if kind is None else {"Content-Type": kind}
    body = problem(client.post("/v1/search", content=b'{"query": "a red ball"}', headers=headers))
    assert (body["status"], (kind or "missing") in body["detail"]) == (422, True)
    assert "-H 'Content-Type: application/json'" in body["detail"]
    body = problem(client.post("/v1/search", json=["a red ball"]))
    assert "Content-Type" not in body["detail"]


def test_the_library_has_counts_folders_and_examples(client: TestClient, world: World) -> None:
    assert client.get("/v1/library").json()["unsearchable"] in (None, 0)  # None before the first search
    wait_for(lambda: client.get("/readyz").status_code == 200)
    body = client.get("/v1/library").json()
    assert (body["videos"], body["quarantined"], body["unsearchable"], body["roots"]) == (5, 1, 0, ["Videos"])
    assert body["folders"] == [{"name": "Videos", "videos": 4}, {"name": "Videos/holidays", "videos": 1}]
    texts = {query.text for query in world.queries}
    assert body["examples"]
    assert set(body["examples"]) <= texts


def test_the_library_lists_damaged_videos(own: World) -> None:
    for path in own.library.glob("generations/*/index/*.tokens0"):
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    with own.searcher() as searcher, TestClient(create_app(searcher), base_url=HERE) as client:
        wait_for(lambda: client.get("/readyz").status_code == 200)
        assert len(search(client, own.queries[0].text)["hits"]) == 4
        body = client.get("/v1/library").json()
        (lost,) = searcher.unsearchable()
    assert (body["videos"], body["unsearchable"], body["unsearchable_files"]) == (5, 1, [f"Videos/{lost.name}"])


def test_the_quarantine_has_reasons(client: TestClient) -> None:
    body = client.get("/v1/quarantine").json()
    assert (body["total"], body["files"][0]["file"]) == (1, "Videos/broken.mp4")
    assert "Videos/broken.mp4" in body["files"][0]["reason"]


def test_health_readiness_and_metrics(client: TestClient, world: World) -> None:
    search(client, world.queries[0].text)
    assert client.get("/healthz").json()["status"] == "ok"
    assert client.get("/readyz").json()["status"] == "ready"
    text = client.get("/metrics").text
    assert 'midreel_http_requests_total{method="POST",route="/v1/search",status="200"}' in text
    assert "midreel_videos 5.0" in text
    assert "midreel_search_seconds_bucket" in text


def test_a_damaged_library_is_not_ready_and_reveals_no_paths(own: World) -> None:
    [model] = (own.library / "generations").rglob("model.safetensors")
    whole = model.read_bytes()
    model.write_bytes(b"broken")
    with Searcher.open(own.library, backbone=own.backbone) as searcher:
        app = create_app(searcher)
        with TestClient(app, base_url=HERE, raise_server_exceptions=False) as client:
            answer = client.post("/v1/search", json={"query": "a ball"})
            assert (answer.status_code, str(own.library) in answer.text) == (503, False)
            assert problem(answer)["type"] == "urn:midreel:problem:bad-library"
            ready = client.get("/readyz")
            assert (ready.status_code, ready.headers["retry-after"]) == (503, "2")
            assert client.get("/healthz").status_code == 200
            assert 'route="/v1/search",status="503"' in client.get("/metrics").text
            model.write_bytes(whole)
            wait_for(lambda: client.get("/readyz").status_code == 200)


def test_the_page_and_its_files_are_served(client: TestClient) -> None:
    assert "<title>midreel</title>" in client.get("/").text == client.get("/library").text
    for part in ("style.css", "app.js", "theme.js", "icon.svg"):
        answer = client.get(f"/page/{part}")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    assert client.get("/page/../app.py").status_code == 404
    assert client.get("/page/%2e%2e/app.py").status_code == 404


def test_the_page_loads_nothing_from_other_sites() -> None:
    for part in PAGE.iterdir():
        text = part.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert "//cdn" not in text


def test_unknown_paths_and_methods_are_problems(client: TestClient) -> None:
    assert problem(client.get("/v2/search"))["status"] == 404
    answer = client.put("/v1/search", json={})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "PUT" in problem(answer)["detail"]
