"""Which files are opened, and what becomes of those that are odd, damaged or hostile."""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import av
import pytest

from midreel.clips import write_clip
from midreel.errors import MissingVideo, UnreadableVideo
from midreel.video import duration, facts, frames_at, read_frames
from tests import zoo

Read = Callable[[Path], object]
READS: tuple[Read, ...] = (
    lambda path: next(read_frames(path, 2)),
    lambda path: frames_at(path, [1.0]),
    duration,
    facts,
    lambda path: write_clip(path, path.with_name("clip.mp4"), 0.5, 1.0, exact=True),
)


def replaced(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert old in data
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


def expect_refused(path: Path, key_word: str) -> None:
    """By everything that reads videos, and not as a file that may be there another day."""
    for read in READS:
        with pytest.raises(UnreadableVideo, match=key_word) as raised:
            read(path)
        assert not isinstance(raised.value, MissingVideo)


# ---------------------------------------------------------------- tags


def film_with_title(path: Path, codec: str) -> Path:
    """A title of the file and one of its video stream, in Latin-1."""
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "Kafe in Munchen"
        stream = container.add_stream(codec, rate=zoo.RATE)
        stream.height, stream.width, stream.pix_fmt = zoo.HEIGHT, zoo.WIDTH, "yuv420p"
        stream.metadata["title"] = stream.metadata["handler_name"] = "Kafe"
        for number in range(24):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(zoo.picture(number), format="rgb24")))
        container.mux(stream.encode(None))
    return replaced(path, b"Kafe", "Kafé".encode("latin-1"))


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv", "a.avi", "a.flv", "a.nut", "a.ogv"])
def test_tags_need_not_be_utf8(tmp_path: Path, name: str) -> None:
    codec = {"a.avi": "mpeg4", "a.ogv": "libvpx"}.get(name, "libx264")
    path = film_with_title(tmp_path / name, codec)
    assert [zoo.number_of(image) for _, image in read_frames(path, 2)] == pytest.approx([0, 6, 12, 18], abs=1.5)
    for read in READS:
        read(path)


# ---------------------------------------------------------------- other files

HLS = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:9\n#EXTINF:2.0,\ninner.ts\n#EXT-X-ENDLIST\n"
SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"


@pytest.mark.parametrize("is_fifo", [True, False])
def test_a_fifo_or_device_is_refused_at_once(tmp_path: Path, is_fifo: bool) -> None:
    path = tmp_path / "film.mp4"
    if is_fifo:
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    is_refused = Event()

    def read() -> None:
        expect_refused(path, "FIFO")
        is_refused.set()

    # In a thread, because to open a FIFO waits for a writer, who never comes.
    Thread(target=read, daemon=True).start()
    assert is_refused.wait(timeout=10)


# ---------------------------------------------------------------- codecs


@pytest.mark.parametrize(
    ("name", "codec", "old", "new", "shown"),
    [
        ("a.mp4", "libx264", b"avc1", b"zzz1", "zzz1"),
        ("a.avi", "mpeg4", b"FMP4", b"ZZZ\xe9", "ZZZ"),
        ("a.mkv", "libx264", b"V_MPEG4/ISO/AVC", b"V_MPEG9/ISO/AVC", "unknown"),
    ],
)
def test_a_codec_that_is_not_known_is_named(
    tmp_path: Path, name: str, codec: str, old: bytes, new: bytes, shown: str
) -> None:
    path = replaced(zoo.film(tmp_path / name, codec=codec), old, new)
    expect_refused(path, f"codec.*{shown}")
    assert av.logging.get_level() is None  # as it was before


def test_sound_of_a_codec_that_is_not_known_is_left_out(tmp_path: Path) -> None:
    path = replaced(zoo.film(tmp_path / "a.mkv", sound=2.0), b"A_AAC", b"A_ZZZ")
    assert not facts(path).has_sound
    for exact in (True, False):
        clip = tmp_path / f"clip.{'mp4' if exact else 'mkv'}"
        write_clip(path, clip, 0.5, 1.5, exact=exact)
        assert not facts(clip).has_sound
        assert duration(clip) >= 1
