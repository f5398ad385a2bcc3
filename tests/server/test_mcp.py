"""The MCP server, tested with the SDK's own client: in process, as a subprocess over stdio, and over HTTP."""

import asyncio
import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from PIL import Image

from midreel.datasets import playhouse
from midreel.library.searcher import Searcher
from midreel.media import decode
from midreel.server.mcp import Worker, create_server
from tests.conftest import Command

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-enough-length"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    playhouse.write_dataset(folder / "videos", seed=0, num_test=2)
    with Searcher.create(folder / "library") as searcher:
        searcher.add(folder / "videos", tags=["toys"])
    return folder / "library"


@contextmanager
def working(library: Path, clips: Path | None = None) -> Iterator[Any]:
    worker = Worker(library, clips=clips)
    try:
        yield create_server(worker, writable=clips is not None)
    finally:
        worker.close()


def ask(server: Any, work: Callable[[Client], Awaitable[Any]]) -> Any:
    """Connect a client to a server, let it work, and return the result."""

    async def asking() -> Any:
        async with Client(server) as client:
            return await work(client)

    return asyncio.run(asyncio.wait_for(asking(), 300))


async def use(client: Client) -> dict[str, Any]:
    """Call every reading tool once."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    found = await client.call_tool("search", {"query": "a red ball", "top": 1})
    assert found.structured_content is not None
    hit = found.structured_content["hits"][0]
    arguments = {"video_id": hit["video_id"], "time": hit["moments"][0]["start"], "width": 64}
    picture = await client.call_tool("moment_thumbnail", arguments)
    videos = await client.call_tool("list_videos", {"filters": ["tag=toys"], "limit": 1})
    assert videos.structured_content is not None
    return {
        "tools": tools,
        "hits": found.structured_content,
        "picture": picture.content[0],
        "videos": videos.structured_content,
        "library": json.loads((await client.read_resource("midreel://library")).contents[0].text),
        "video": json.loads((await client.read_resource(f"midreel://videos/{hit['video_id']}")).contents[0].text),
    }


def expect_answers(library: Path, found: dict[str, Any]) -> None:
    """Compare the answers with those of a searcher."""
    with Searcher.open(library) as searcher:
        (hit,) = searcher.search("a red ball", top=1)
    assert set(found["tools"]) == {"search", "list_videos", "moment_thumbnail"}
    assert all(tool.annotations.read_only_hint for tool in found["tools"].values())
    (answer,) = found["hits"]["hits"]
    assert (answer["video_id"], answer["path"]) == (hit.video_id, str(hit.path))
    assert answer["score"] == pytest.approx(hit.score)
    assert answer["confidence"] == pytest.approx(hit.confidence)
    assert [each["start"] for each in answer["moments"]] == pytest.approx([each.start for each in hit.moments])
    assert found["picture"].type == "image"
    with Image.open(io.BytesIO(base64.b64decode(found["picture"].data))) as image:
        assert (image.format, image.width) == ("JPEG", 64)
    assert found["videos"]["total"] == 2
    assert len(found["videos"]["videos"]) == 1
    assert found["library"]["num_videos"] == 2
    assert found["video"]["paths"] == [str(hit.path)]
    assert found["video"]["tags"] == ["toys"]


def test_in_process(library: Path) -> None:
    with working(library) as server:
        expect_answers(library, ask(server, use))


def test_over_stdio(library: Path) -> None:
    command = StdioServerParameters(command=sys.executable, args=["-m", "midreel", "mcp", str(library)])
    expect_answers(library, ask(command, use))


@contextmanager
def over_http(library: Path, *options: str, token: str = "") -> Iterator[str]:
    command = [sys.executable, "-m", "midreel", "mcp", str(library), "--http", "--port", "0", *options]
    environment = {**os.environ, "MIDREEL_TOKEN": token}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_over_http(library: Path) -> None:
    with over_http(library) as address:
        assert address.startswith("http://127.0.0.1:")
        expect_answers(library, ask(address, use))
        for header in ({"Host": "example.org"}, {"Origin": "http://example.org"}):
            answer = httpx2.post(address, json={}, headers=header)
            assert answer.status_code == 403
        assert httpx2.post(address, content=b"x" * 10**6).status_code == 413


def test_the_token_over_http(library: Path) -> None:
    with over_http(library, token=TOKEN) as address:
        assert httpx2.post(address, json={}).status_code == 401

        async def work() -> Any:
            async with (
                httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=300) as http,
                Client(streamable_http_client(address, http_client=http)) as client,
            ):
                return await use(client)

        expect_answers(library, asyncio.run(asyncio.wait_for(work(), 300)))


def test_errors_are_tool_errors_with_a_remedy(library: Path) -> None:
    async def work(client: Client) -> list[Any]:
        return [
            await client.call_tool(name, arguments)
            for name, arguments in (
                ("search", {"query": "a AND"}),
                ("search", {"query": "a ball", "filters": ["size=9"]}),
                ("search", {"query": "a ball", "top": 0}),
                ("moment_thumbnail", {"video_id": "none", "time": 1}),
                ("export_clip", {"video_id": "none", "start": 0, "end": 1}),
            )
        ]

    with working(library) as server:
        answers = ask(server, work)
    assert all(answer.is_error for answer in answers)
    texts = [answer.content[0].text for answer in answers]
    for text, word in zip(texts, ("AND", "size", "top", "list_videos", "export_clip"), strict=True):
        assert word in text
        assert "Traceback" not in text


def test_clips_are_written_only_if_allowed_and_never_over_others(library: Path, tmp_path: Path) -> None:
    clips = tmp_path / "clips"

    async def work(client: Client) -> list[Any]:
        found = await client.call_tool("search", {"query": "a red ball"})
        hit = (found.structured_content or {})["hits"][0]
        arguments = {"video_id": hit["video_id"], "start": 1.0, "end": 2.0, "re_encode": True}
        return [(await client.call_tool("export_clip", arguments)).structured_content for _ in range(2)]

    with working(library, clips) as server:
        first, second = ask(server, work)
    assert {first["file"], second["file"]} == {str(path) for path in clips.iterdir()}
    assert len(list(clips.iterdir())) == 2
    assert decode.duration(Path(first["file"])) == pytest.approx(1, abs=0.11)


def test_wrong_settings(midreel: Command, library: Path, tmp_path: Path) -> None:
    ended = midreel("mcp", library, "--http", "--host", "0.0.0.0")
    assert (ended.code, "token" in ended.err) == (1, True)
    ended = midreel("mcp", tmp_path / "none")
    assert ended.code == 1
    assert "none" in ended.err
