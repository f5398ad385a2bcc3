"""The requests and limits in docs/server.md are right."""

import json
import re
import shlex
from itertools import pairwise
from urllib.parse import urlsplit

from fastapi.testclient import TestClient

from midreel.server import schemas, throttle, writes
from midreel.server.app import create_app
from tests import ROOT
from tests.server.conftest import HERE, World

PAGE = (ROOT / "docs/server.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("curl")]


def test_every_curl_command_works(own: World) -> None:
    with own.searcher() as searcher, TestClient(create_app(searcher), base_url=HERE) as client:
        video_id = client.get("/v1/videos").json()["videos"][0]["id"]
        job = client.post("/v1/index", json={"path": "Videos/holidays"}).json()["id"]
        said = {"query": "red", "video": video_id, "match": True, "start": 0.0, "end": 0.5}
        given = client.post("/v1/feedback", json=said).json()["id"]
        tried = 0
        for command in commands():
            words = shlex.split(
                command.replace("$ID", video_id)
                .replace("$JOB", job)
                .replace("$FEEDBACK", str(given))
                .replace("@header", "'Authorization: Bearer x'")
            )
            address = next(word for word in words if word.startswith("http"))
            after = dict(pairwise(words))
            headers = dict([after["-H"].split(": ", 1)]) if "-H" in after else {}
            body = after.get("-d")
            method = after.get("-X", "POST" if body else "GET")
            parts = urlsplit(address)
            answer = client.request(
                method, f"{parts.path}?{parts.query}", headers=headers, content=body.encode() if body else None
            )
            assert answer.status_code < 300, command
            tried += 1
    assert tried >= 12


def test_the_example_response_matches_the_schema() -> None:
    shown = json.loads(next(block for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if '"hits"' in block))
    assert set(shown) == set(schemas.SearchResponse.model_fields)
    assert set(shown["hits"][0]) == set(schemas.Hit.model_fields)
    assert set(shown["hits"][0]["alternatives"][0]) == set(schemas.Moment.model_fields)


def test_the_limits_match_the_code() -> None:
    assert f"| a query | {schemas.MAX_QUERY_LENGTH} characters" in PAGE
    assert f"| `top` | {schemas.MAX_HITS} |" in PAGE
    assert f"| different wrong tokens from an address | {throttle.MAX_WRONG} |" in PAGE
    assert f"| removals that wait | {writes.MAX_REMOVALS} |" in PAGE
    assert f"| a removal's wait for its turn | {writes.WRITE_TIMEOUT:g} s |" in PAGE
