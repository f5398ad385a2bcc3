"""Which files are opened, and how odd, damaged and hostile files are handled."""

import os
import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from threading import Event, Thread

import av
import pytest
from av.format import ContainerFormat

from midreel.errors import MissingVideo, UnreadableVideo
from midreel.library.scan import ENDINGS
from midreel.media import container
from midreel.media.cut import write_clip
from midreel.media.decode import duration, facts, frames_at, read_frames
from tests import zoo
from tools import fuzz_videos

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


def expect_unreadable(path: Path, key_word: str) -> None:
    """Every function that reads videos raises UnreadableVideo, and not MissingVideo."""
    for read in READS:
        with pytest.raises(UnreadableVideo, match=key_word) as raised:
            read(path)
        assert not isinstance(raised.value, MissingVideo)


# ---------------------------------------------------------------- tags


def video_with_title(path: Path, codec: str) -> Path:
    """Write a video whose file and stream have titles in Latin-1."""
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
    path = video_with_title(tmp_path / name, codec)
    assert [zoo.number_of(image) for _, image in read_frames(path, 2)] == pytest.approx([0, 6, 12, 18], abs=1.5)
    for read in READS:
        read(path)


# ---------------------------------------------------------------- references to other files

HLS = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:9\n#EXTINF:2.0,\ninner.ts\n#EXT-X-ENDLIST\n"
SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("concat.mp4", "ffconcat version 1.0\nfile inner.ts\n"),
        ("hls.m3u8", HLS),
        ("sdp.mp4", SDP),
        ("inner%d.jpg", "FFmpeg treats this name as a pattern, and opens inner0.jpg\n"),
    ],
)
def test_references_to_other_files_are_not_followed(tmp_path: Path, name: str, text: str) -> None:
    zoo.film(tmp_path / "inner.ts")
    zoo.film(tmp_path / "inner0.jpg", [0.0], codec="mjpeg", pix_fmt="yuvj420p")
    (tmp_path / name).write_text(text)
    expect_unreadable(tmp_path / name, "format|decoded")


def test_external_data_of_a_mov_is_not_read(tmp_path: Path) -> None:
    inner = zoo.film(tmp_path / "inner.mov").read_bytes()
    outer = tmp_path / "outer.mov"
    outer.write_bytes(with_external_data(inner, "inner.mov"))
    with av.open(str(outer), options={"enable_drefs": "1"}) as container:
        assert sum(1 for _ in container.decode(video=0)) == 24  # FFmpeg would
    for read in (read_frames(outer, 2).__next__, lambda: frames_at(outer, [1.0])):
        with pytest.raises(UnreadableVideo, match="frame"):
            read()


def with_external_data(movie: bytes, name: str) -> bytes:
    """Return a QuickTime movie without data, whose alias record refers to the data of another file."""
    header = bytearray(movie[movie.index(b"moov") - 4 :])
    place = header.index(b"dref") - 4
    target = f"/{name}".encode()
    alias = bytes(10) + bytes(28) + bytes(12) + bytes(64) + bytes(16)  # volume and file names, not used
    alias += struct.pack(">HH", 1, 1) + bytes(16)  # one folder up from here, one down to there
    alias += struct.pack(">HH", 2, len(target)) + target + bytes(len(target) % 2) + struct.pack(">HH", 0xFFFF, 0)
    entry = struct.pack(">I4sI", 12 + len(alias), b"alis", 0) + alias
    dref = struct.pack(">I4sII", 16 + len(entry), b"dref", 0, 1) + entry
    old_size = int.from_bytes(header[place : place + 4], "big")
    header[place : place + old_size] = dref
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):  # those around it
        start = header.index(box) - 4
        size = int.from_bytes(header[start : start + 4], "big") + len(dref) - old_size
        header[start : start + 4] = size.to_bytes(4, "big")
    return movie[: movie.index(b"ftyp") - 4 + int.from_bytes(movie[:4], "big")] + bytes(header)


def test_demuxers_exist_and_cover_all_suffixes_of_the_scan() -> None:
    formats = [ContainerFormat(name, "r").input for name in container.DEMUXERS]
    assert all(formats)
    known = {f".{ending}" for each in formats if each for ending in each.extensions}
    # FFmpeg detects these by content only.
    by_content = {
        *(".asf", ".wmv", ".avi", ".amv", ".divx", ".ogm", ".ogv", ".rm", ".rmvb", ".qt", ".insv", ".ivf", ".nsv"),
        *(".mpg", ".mpeg", ".mpe", ".m1v", ".m2v", ".vob", ".evo", ".tod", ".wtv", ".gxf", ".mxf"),
        *(".ts", ".m2t", ".m2ts", ".mts", ".tp", ".trp"),
    }
    assert ENDINGS - known <= by_content


@pytest.mark.parametrize("kind", fuzz_videos.KINDS, ids=lambda kind: f"{kind.codec}{kind.suffix}")
def test_containers_are_read(tmp_path: Path, kind: fuzz_videos.Kind) -> None:
    path = fuzz_videos.write_film(tmp_path / f"film{kind.suffix}", kind)
    reading = read_frames(path, fuzz_videos.RATE)
    assert len(list(reading)) == kind.num_frames
    assert not reading.damage
    handle = os.open(path, os.O_RDONLY)
    try:  # as the server opens it, without a suffix
        assert facts(Path(f"/dev/fd/{handle}")) == facts(path)
    finally:
        os.close(handle)


@pytest.mark.parametrize("is_fifo", [True, False])
def test_a_fifo_or_device_is_rejected_at_once(tmp_path: Path, is_fifo: bool) -> None:
    path = tmp_path / "film.mp4"
    if is_fifo:
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    is_rejected = Event()

    def read() -> None:
        expect_unreadable(path, "FIFO")
        is_rejected.set()

    # In a thread, because opening a FIFO blocks until another process writes to it.
    Thread(target=read, daemon=True).start()
    assert is_rejected.wait(timeout=10)


# ---------------------------------------------------------------- codecs


@pytest.mark.parametrize(
    ("name", "codec", "old", "new", "shown"),
    [
        ("a.mp4", "libx264", b"avc1", b"zzz1", "zzz1"),
        ("a.avi", "mpeg4", b"FMP4", b"ZZZ\xe9", "ZZZ"),
        ("a.mkv", "libx264", b"V_MPEG4/ISO/AVC", b"V_MPEG9/ISO/AVC", "unknown"),
    ],
)
def test_an_unknown_codec_is_named(tmp_path: Path, name: str, codec: str, old: bytes, new: bytes, shown: str) -> None:
    path = replaced(zoo.film(tmp_path / name, codec=codec), old, new)
    expect_unreadable(path, f"codec.*{shown}")
    assert av.logging.get_level() is None  # as it was before


def test_sound_of_an_unknown_codec_is_skipped(tmp_path: Path) -> None:
    path = replaced(zoo.film(tmp_path / "a.mkv", sound=2.0), b"A_AAC", b"A_ZZZ")
    assert not facts(path).has_sound
    for exact in (True, False):
        clip = tmp_path / f"clip.{'mp4' if exact else 'mkv'}"
        write_clip(path, clip, 0.5, 1.5, exact=exact)
        assert not facts(clip).has_sound
        assert duration(clip) >= 1


# ---------------------------------------------------------------- damage


def test_a_truncated_file_gives_the_same_frames_on_any_number_of_cores(tmp_path: Path) -> None:
    """With several threads, PyAV loses the frames behind a damaged packet."""
    path = fuzz_videos.write_film(tmp_path / "a.mp4", fuzz_videos.KINDS[0])
    data = path.read_bytes()
    for share in (0.3, 0.5, 0.7, 0.9):
        path.write_bytes(data[: round(len(data) * share)])
        reading = read_frames(path, fuzz_videos.RATE)
        expected = times_with_one_thread(path)
        assert sorted({start for start, _ in reading}) == pytest.approx(expected)
        assert reading.duration == pytest.approx(expected[-1] + 1 / fuzz_videos.RATE)


def times_with_one_thread(path: Path) -> list[float]:
    """Return the times of all frames that FFmpeg decodes with one thread."""
    found: list[float] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for packet in container.demux(stream):
            try:
                frames = stream.codec_context.decode(packet if packet.size else None)
            except av.error.FFmpegError:
                continue
            found += [float(frame.pts * stream.time_base) for frame in frames]
    return found


def test_a_damaged_file_is_unreadable_even_if_ffmpeg_reports_a_disk_error(tmp_path: Path) -> None:
    path = zoo.film(tmp_path / "a.mkv")
    path.write_bytes(path.read_bytes()[:400])  # FFmpeg: Input/output error
    expect_unreadable(path, "decoded")


def test_frames_before_damage_are_read_even_if_ffmpeg_reports_a_disk_error(tmp_path: Path) -> None:
    kind = next(kind for kind in fuzz_videos.KINDS if kind.suffix == ".gxf")
    path = fuzz_videos.write_film(tmp_path / "a.gxf", kind)
    data = path.read_bytes()
    hole = len(data) * 3 // 4
    path.write_bytes(data[:hole] + data[hole + 188 :])  # FFmpeg: Operation not permitted
    reading = read_frames(path, fuzz_videos.RATE)
    assert 1 <= len(list(reading)) < kind.num_frames
    assert reading.damage


def test_a_disk_error_raises_missing_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo.film(tmp_path / "a.mkv")
    path.write_bytes(path.read_bytes()[:400])

    def fails(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(container, "open_regular", fails)
    with pytest.raises(MissingVideo):
        next(read_frames(path, 2))


def test_a_first_frame_after_a_million_years_means_a_broken_clock(tmp_path: Path) -> None:
    kind = next(kind for kind in fuzz_videos.KINDS if kind.suffix == ".ivf")
    path = fuzz_videos.write_film(tmp_path / "a.ivf", kind)
    data = bytearray(path.read_bytes())
    place = 32  # after the file header; each frame follows its size and its time
    for number in range(kind.num_frames):
        data[place + 4 : place + 12] = (number + 2**50).to_bytes(8, "little")
        place += 12 + int.from_bytes(data[place : place + 4], "little")
    path.write_bytes(data)
    reading = read_frames(path, fuzz_videos.RATE)
    assert len(list(islice(reading, 1000))) == pytest.approx(kind.num_frames, abs=2)  # large floats are coarse
    assert reading.duration == pytest.approx(kind.num_frames / fuzz_videos.RATE, abs=0.1)


def test_huge_frames_are_rejected(tmp_path: Path) -> None:
    """A file of 1 MB may contain a frame that needs gigabytes."""
    path = tmp_path / "a.mov"
    width, height = 12_000, 9_000
    with av.open(str(path), "w") as container:
        stream = container.add_stream("qtrle", rate=1)
        stream.height, stream.width, stream.pix_fmt = height, width, "gray"
        frame = av.VideoFrame(width, height, "gray")
        frame.planes[0].update(bytes(frame.planes[0].buffer_size))
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for read in (read_frames(path, 1).__next__, lambda: frames_at(path, [0.0])):
        with pytest.raises(UnreadableVideo, match="frame"):
            read()
