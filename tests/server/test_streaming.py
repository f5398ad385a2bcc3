import os
from itertools import pairwise
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from midreel.server.streaming import CHUNK, Unsatisfiable, media_type, requested_part
from tests.server.conftest import World
from tests.server.test_listing import item_named
from tests.server.test_routes import problem


def slow_part(first: int | None, last: int | None, size: int) -> list[int]:
    """Return the positions of the bytes that RFC 9110 means by first-last."""
    if first is None:
        return list(range(size))[-last:] if last else []
    return [number for number in range(size) if number >= first and (last is None or number <= last)]


@given(first=st.none() | st.integers(0, 30), last=st.none() | st.integers(0, 30), size=st.integers(1, 20))
def test_ranges_follow_rfc_9110(first: int | None, last: int | None, size: int) -> None:
    if first is None and last is None:
        return
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    if first is not None and last is not None and last < first:
        assert requested_part(header, size) is None
        return
    expected = slow_part(first, last, size)
    if not expected:
        with pytest.raises(Unsatisfiable):
            requested_part(header, size)
        return
    part = requested_part(header, size)
    assert part is not None
    assert list(range(part.first, part.last + 1)) == expected
    assert len(part) == len(expected)


@given(st.text(max_size=40))
def test_any_other_header_is_ignored_or_refused(text: str) -> None:
    for header in (text, f"bytes={text}"):
        try:
            part = requested_part(header, 100)
        except Unsatisfiable:
            continue
        assert part is None or 0 <= part.first <= part.last < 100


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [("bytes=0-", 0, None), ("bytes=0-0", 0, 0), ("bytes=1000-70000", 1000, 70000), ("bytes=-500", -500, None),
     ("bytes=5-999999999999", 5, None), ("Bytes=10-20", 10, 20), (f"bytes=5-{10**25}", 5, None)],
)  # fmt: skip
def test_parts_have_the_right_bytes(
    client: TestClient, world: World, ids: dict[str, str], header: str, first: int, last: int | None
) -> None:
    name = "playhouse-test-00000.mp4"
    content = (world.videos / name).read_bytes()
    expected = content[first : None if last is None else last + 1]
    answer = client.get(f"/v1/videos/{ids[name]}/stream", headers={"Range": header})
    begin = first % len(content) if first < 0 else first
    assert (answer.status_code, answer.content) == (206, expected)
    assert answer.headers["content-range"] == f"bytes {begin}-{begin + len(expected) - 1}/{len(content)}"
    assert answer.headers["content-length"] == str(len(expected))


@given(cuts=st.lists(st.integers(0, 10**6), min_size=1, max_size=6))
def test_adjacent_parts_make_up_the_file(
    client: TestClient, world: World, ids: dict[str, str], cuts: list[int]
) -> None:
    name = "playhouse-test-00002.mp4"
    content = (world.videos / name).read_bytes()
    borders = [0, *sorted({cut % len(content) for cut in cuts} - {0}), len(content)]
    parts = [
        client.get(f"/v1/videos/{ids[name]}/stream", headers={"Range": f"bytes={start}-{end - 1}"}).content
        for start, end in pairwise(borders)
    ]
    assert b"".join(parts) == content


def test_no_range_or_several_ranges_return_the_whole_file(
    client: TestClient, world: World, ids: dict[str, str]
) -> None:
    name = "the beach, 2024 ä.mp4"
    content = (world.videos / "holidays" / name).read_bytes()
    for header in ({}, {"Range": "bytes=0-1,4-5"}, {"Range": "pages=1-2"}):
        answer = client.get(f"/v1/videos/{ids[name]}/stream", headers=header)
        assert (answer.status_code, answer.content) == (200, content)
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["content-disposition"] == "inline; filename*=UTF-8''the%20beach%2C%202024%20%C3%A4.mp4"


@pytest.mark.parametrize("header", ["bytes=99999999-", "bytes=-0"])
def test_a_range_beyond_the_file_is_a_416_with_its_size(
    client: TestClient, world: World, ids: dict[str, str], header: str
) -> None:
    name = "playhouse-test-00000.mp4"
    size = (world.videos / name).stat().st_size
    answer = client.get(f"/v1/videos/{ids[name]}/stream", headers={"Range": header})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{size}")
    assert str(size) in problem(answer)["detail"]


def test_conditional_requests_compare_versions(client: TestClient, world: World, ids: dict[str, str]) -> None:
    address = f"/v1/videos/{ids['playhouse-test-00000.mp4']}/stream"
    tag = client.head(address).headers["etag"]
    part = {"Range": "bytes=0-9"}
    assert client.get(address, headers={**part, "If-Range": tag}).status_code == 206
    assert client.get(address, headers={**part, "If-Range": '"another"'}).status_code == 200
    assert client.get(address, headers={"If-None-Match": tag}).status_code == 304
    # An id covers samples of a file. Other changes show only in the modification time.
    modified = (world.videos / "playhouse-test-00000.mp4").stat().st_mtime_ns
    assert f"{modified:x}" in tag
    assert f"{modified:x}" in client.get(address.replace("stream", "thumbnail")).headers["etag"]


def test_head_returns_the_size(client: TestClient, world: World, ids: dict[str, str]) -> None:
    name = "playhouse-test-00000.mp4"
    answer = client.head(f"/v1/videos/{ids[name]}/stream")
    size = (world.videos / name).stat().st_size
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", str(size))


def test_all_files_are_closed(client: TestClient, ids: dict[str, str]) -> None:
    def num_open() -> int:
        return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0  # noqa: PTH208

    address = f"/v1/videos/{ids['playhouse-test-00000.mp4']}/stream"
    client.get(address)
    before = num_open()
    for headers in ({}, {"Range": "bytes=0-9"}, {"Range": "bytes=99999999-"}, {"If-None-Match": "*"}):
        client.get(address, headers=headers)
        client.head(address, headers=headers)
    assert num_open() <= before


def test_only_videos_have_a_media_type() -> None:
    assert media_type(item_named("film.html")) == media_type(item_named("film.svg")) == "application/octet-stream"
    assert media_type(item_named("film.webm")) == "video/webm"
    assert CHUNK < 1024 * 1024
