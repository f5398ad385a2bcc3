import math
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from midreel import video
from midreel.errors import BadSetting, BadShape, UnreadableVideo
from midreel.video import Image, duration, read_frames, write_video


def numbered(count: int, height: int = 48, width: int = 64) -> list[Image]:
    """Frames whose brightness tells their number, with a light patch in the upper left corner."""
    frames = np.zeros((count, height, width, 3), np.uint8)
    frames += (np.arange(count) * 3).astype(np.uint8)[:, None, None, None]
    frames[:, :12, :12] = 255
    return list(frames)


def number(image: Image) -> float:
    return float(image[image.shape[0] // 2 :, image.shape[1] // 2 :].mean()) / 3


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    write_video(path, numbered(60), rate=12)
    return path


def test_frames_come_at_the_asked_rate_with_their_times(clip: Path) -> None:
    frames = list(read_frames(clip, 2))
    assert [time for time, _ in frames] == pytest.approx([k / 2 for k in range(10)])
    assert [number(image) for _, image in frames] == pytest.approx([6 * k for k in range(10)], abs=0.7)
    assert frames[0][1].shape == (48, 64, 3)
    assert frames[0][1].dtype == np.uint8


@pytest.mark.parametrize("rate", [0.1, 0.7, 5, 12, 30])
def test_each_frame_is_the_nearest(clip: Path, rate: float) -> None:
    times = [time for time, _ in read_frames(clip, rate)]
    assert len(times) == math.ceil(5 * rate)
    for k, time in enumerate(times):
        assert abs(time - k / rate) <= min(abs(j / 12 - k / rate) for j in range(60)) + 1e-6


def test_only_what_is_taken_becomes_an_image(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    convert = video._image
    monkeypatch.setattr(video, "_image", lambda frame: made.append(frame.time) or convert(frame))
    frames = read_frames(clip, 2)
    assert next(frames)[0] == 0
    assert len(made) == 1
    assert len(list(frames)) == 9
    assert len(made) == 10


def test_a_rate_that_cannot_be(clip: Path) -> None:
    with pytest.raises(BadSetting, match="rate is 0, expected more than 0 frames per second; try 2"):
        next(read_frames(clip, 0))
    with pytest.raises(BadSetting, match="rate is 0, expected at least 1"):
        write_video(clip, numbered(1), rate=0)


def test_duration(clip: Path) -> None:
    assert duration(clip) == pytest.approx(5)


@pytest.mark.parametrize(
    ("suffix", "codec"), [("mkv", "libx264"), ("ts", "libx264"), ("h264", "libx264"), ("avi", "mpeg4")]
)
def test_other_containers_say_the_same(tmp_path: Path, suffix: str, codec: str) -> None:
    path = tmp_path / f"clip.{suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=12)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.max_b_frames = 0
        for image in [*numbered(60), None]:
            frame = None if image is None else av.VideoFrame.from_ndarray(image, format="rgb24")
            container.mux(stream.encode(frame))
    frames = list(read_frames(path, 2))
    if suffix != "h264":  # a bare stream says nothing about time
        assert duration(path) == pytest.approx(5, abs=0.1)
        assert [time for time, _ in frames] == pytest.approx([k / 2 for k in range(10)], abs=0.05)
    assert number(frames[0][1]) == pytest.approx(0, abs=0.7)
    assert number(frames[-1][1]) == pytest.approx(54, abs=6)


@pytest.mark.parametrize(("degrees", "corner"), [(0, (0, 0)), (90, (-1, 0)), (180, (-1, -1)), (-90, (0, -1))])
def test_a_turned_camera(tmp_path: Path, degrees: int, corner: tuple[int, int]) -> None:
    path = tmp_path / "turned.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.set_display_rotation(degrees)
        for image in [*numbered(3), None]:
            frame = None if image is None else av.VideoFrame.from_ndarray(image, format="rgb24")
            container.mux(stream.encode(frame))
    _, image = next(read_frames(path, 1))
    assert image.shape == ((48, 64, 3) if degrees % 180 == 0 else (64, 48, 3))
    assert image[corner].mean() > 200


def test_a_browser_plays_it(clip: Path) -> None:
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.pix_fmt == "yuv420p"
    data = clip.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")  # the index comes first, so that it plays while it loads


def test_the_same_frames_give_the_same_bytes(clip: Path, tmp_path: Path) -> None:
    write_video(tmp_path / "again.mp4", numbered(60), rate=12)
    assert (tmp_path / "again.mp4").read_bytes() == clip.read_bytes()


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def stops() -> Iterator[Image]:
        yield from numbered(20)
        raise KeyboardInterrupt

    path = tmp_path / "clip.mp4"
    path.write_bytes(b"what was there before")
    with pytest.raises(KeyboardInterrupt):
        write_video(path, stops(), rate=12)
    assert [file.name for file in tmp_path.iterdir()] == ["clip.mp4"]
    assert path.read_bytes() == b"what was there before"


def test_frames_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    with pytest.raises(BadShape, match=r"frames have shape \(47, 64, 3\), expected even height x even width x 3; crop"):
        write_video(path, numbered(2, height=47), rate=12)
    with pytest.raises(BadShape, match=r"frame 1 has shape \(50, 64, 3\), but frame 0 has \(48, 64, 3\); resize it"):
        write_video(path, [*numbered(1), *numbered(1, height=50)], rate=12)
    with pytest.raises(BadSetting, match=r"no frame for .*clip\.mp4, expected at least one; render some"):
        write_video(path, [], rate=12)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"this is a text, whatever its name says\n" * 50])
def test_a_file_that_is_no_video(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.mp4"
    path.write_bytes(content)
    said = r"notes\.mp4 cannot be decoded \(.+\), expected a video that ffmpeg reads; convert it or leave it out"
    with pytest.raises(UnreadableVideo, match=said):
        next(read_frames(path, 2))
    with pytest.raises(UnreadableVideo, match=said):
        duration(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnreadableVideo, match=r"gone\.mp4 does not exist, expected a video file; check the path"):
        next(read_frames(tmp_path / "gone.mp4", 2))
    with pytest.raises(UnreadableVideo, match="cannot be decoded"):
        duration(tmp_path)


def test_sound_alone(tmp_path: Path) -> None:
    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.rate = 16000
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    with pytest.raises(UnreadableVideo, match=r"song\.mp4 has sound but no picture, expected a video; leave it out"):
        next(read_frames(path, 2))


def test_a_video_without_frames(tmp_path: Path, clip: Path) -> None:
    path = tmp_path / "headless.mp4"
    data = clip.read_bytes()
    path.write_bytes(data[: data.index(b"mdat") + 8])
    with pytest.raises(UnreadableVideo, match=r"headless\.mp4 (holds no frame|cannot be decoded)"):
        next(read_frames(path, 2))
