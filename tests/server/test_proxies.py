"""Proxies: parts of videos that browsers can play, made on demand and kept within a size."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest
from fastapi.testclient import TestClient

from midreel.media import cut, decode
from midreel.server import proxies
from midreel.server.app import create_app
from midreel.server.listing import Item
from midreel.server.proxies import Key, Proxies
from tests.server.conftest import World


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def old_film(path: Path, codec: str = "mpeg4", seconds: int = 12, size: tuple[int, int] = (96, 64)) -> Path:
    """Write a film in a format that browsers do not play. It becomes brighter every second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(25 * seconds):
            image = np.full((size[1], size[0], 3), 12 * (number // 25), np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image)))
        output.mux(stream.encode())
    return path


def item(duration: float) -> Item:
    return Item(id="v", title="v", folder="", file="v.avi", duration=duration, date=0.0, files=())


@pytest.mark.parametrize(
    ("duration", "asked", "made"),
    [
        (100, (10.2, 20.5), (10, 21)),
        (100, (10, 20), (10, 20)),
        (100, (0, 90), (0, 60)),
        (100.5, (95.3, 140), (95, 100.5)),
        (100, (300, 400), (99, 100)),
        (0.5, (0, 60), (0, 0.5)),
        (100, (30, 20), (30, 31)),
    ],
)
def test_the_times_of_a_proxy(
    duration: float, asked: tuple[float, float], made: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Item, "version", "1")
    key = Key.of(item(float(duration)), *map(float, asked))
    assert (key.start, key.end) == made


@pytest.fixture
def old(world: World, tmp_path: Path) -> World:
    """A library with an AVI of MPEG-4 and a file of MPEG-2."""
    own = World(videos=tmp_path / "old", library=tmp_path / "library", queries=world.queries, backbone=world.backbone)
    old_film(own.videos / "walk.avi")
    old_film(own.videos / "city.mpg", "mpeg2video", seconds=3)
    from midreel.library import indexer
    from midreel.library.writer import Wanted, Writer

    with Writer.open(own.library, Wanted(backbone="tiny-clip"), backbone=world.backbone) as writer:
        indexer.index(writer, [own.videos])
    return own


def ids(client: TestClient) -> dict[str, str]:
    return {each["title"]: each["id"] for each in client.get("/v1/videos").json()["videos"]}


def test_a_part_becomes_h264(old: World, tmp_path: Path) -> None:
    with old.searcher() as searcher, TestClient(create_app(searcher), base_url="http://127.0.0.1") as client:
        video = ids(client)["walk"]
        answer = client.get(f"/v1/videos/{video}/proxy?start=4.7&end=8.1")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "video/mp4"
        assert answer.headers["midreel-start"] == "4"
        path = tmp_path / "proxy.mp4"
        path.write_bytes(answer.content)
        with av.open(str(path)) as made:
            assert made.streams.video[0].codec_context.name == "h264"
        assert decode.duration(path) == pytest.approx(5, abs=0.1)
        [(_, first)] = decode.frames_at(path, [0.5])
        assert first.mean() == pytest.approx(48, abs=8)  # the fifth second
        part = client.get(f"/v1/videos/{video}/proxy?start=4&end=9", headers={"Range": "bytes=0-9"})
        assert (part.status_code, part.content) == (206, answer.content[:10])
        tag = answer.headers["etag"]
        again = client.get(f"/v1/videos/{video}/proxy?start=4&end=9", headers={"If-None-Match": tag})
        assert again.status_code == 304
        assert client.head(f"/v1/videos/{video}/proxy?start=4&end=9").headers["content-length"] == str(
            len(answer.content)
        )
        assert client.get("/v1/videos/none/proxy").status_code == 404
        (old.videos / "walk.avi").unlink()
        assert client.get(f"/v1/videos/{video}/proxy?start=0&end=3").status_code == 410


def test_concurrent_requests_share_one(old: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made, entered, go_on = [], threading.Event(), threading.Event()
    write = cut.write_clip

    def slow(*arguments: object, **options: object) -> float:
        made.append(arguments)
        entered.set()
        go_on.wait(30)
        return write(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cut, "write_clip", slow)
    with old.searcher() as searcher, TestClient(create_app(searcher), base_url="http://127.0.0.1") as client:
        address = f"/v1/videos/{ids(client)['city']}/proxy"
        with ThreadPoolExecutor(3) as threads:
            answers = [threads.submit(client.get, address) for _ in range(3)]
            assert entered.wait(30)
            go_on.set()
            sizes = {len(each.result().content) for each in answers}
    assert len(made) == 1
    assert len(sizes) == 1


def test_the_least_recently_used_are_removed(tmp_path: Path) -> None:
    kept = Proxies(tmp_path / "proxies", max_bytes=250)
    folder = kept._folder()
    for number in range(3):
        (folder / f"{number}.mp4").write_bytes(bytes(100))
        os.utime(folder / f"{number}.mp4", (number, number))
    opened = proxies._opened(folder / "0.mp4")  # it is used now
    assert opened is not None
    os.close(opened.handle)
    kept._shrink(but=folder / "2.mp4")
    assert sorted(path.name for path in folder.iterdir()) == ["0.mp4", "2.mp4"]
    (folder / "9.mp4").write_bytes(bytes(900))
    kept._shrink(but=folder / "9.mp4")
    assert [path.name for path in folder.iterdir()] == ["9.mp4"]  # larger than all together may be, and just made


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    kept = Proxies()
    folder = kept._folder()
    assert folder.is_dir()
    kept.close()
    assert not folder.exists()


def test_a_large_picture_is_made_smaller(tmp_path: Path) -> None:
    source = old_film(tmp_path / "large.avi", seconds=1, size=(1280, 720))
    cut.write_clip(source, tmp_path / "small.mp4", 0, 1, exact=True, height=480)
    [(_, frame)] = decode.frames_at(tmp_path / "small.mp4", [0.0])
    assert frame.shape[:2] == (480, 852)
