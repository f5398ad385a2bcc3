import math
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting, MissingVideo, UnreadableVideo
from midreel.media import container, decode
from midreel.media.decode import Image, duration, frames_at, read_frames, write_video
from tests import zoo


def numbered(count: int, height: int = 48, width: int = 64) -> list[Image]:
    return [zoo.picture(number, height, width) for number in range(count)]


number = zoo.number_of


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
def test_each_frame_is_the_one_that_is_shown(clip: Path, rate: float) -> None:
    times = [time for time, _ in read_frames(clip, rate)]
    assert len(times) == math.ceil(5 * rate)
    assert times == pytest.approx([math.floor(12 * k / rate + 1e-6) / 12 for k in range(len(times))])


def test_only_returned_frames_are_converted(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    convert = decode._Converter.__call__
    monkeypatch.setattr(decode._Converter, "__call__", lambda self, frame: made.append(frame) or convert(self, frame))
    frames = read_frames(clip, 2)
    assert next(frames)[0] == 0
    assert len(made) == 1
    assert len(list(frames)) == 9
    assert len(made) == 10


def test_rates_are_checked(clip: Path) -> None:
    with pytest.raises(BadSetting, match="rate is 0"):
        next(read_frames(clip, 0))
    with pytest.raises(BadSetting, match="rate is 0"):
        write_video(clip, numbered(1), rate=0)


def test_duration(clip: Path) -> None:
    assert duration(clip) == pytest.approx(5)


@pytest.mark.parametrize(
    ("suffix", "codec"), [("mkv", "libx264"), ("ts", "libx264"), ("h264", "libx264"), ("avi", "mpeg4")]
)
def test_other_containers(tmp_path: Path, suffix: str, codec: str) -> None:
    path = tmp_path / f"clip.{suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=12)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.max_b_frames = 0
        for image in [*numbered(60), None]:
            frame = None if image is None else av.VideoFrame.from_ndarray(image, format="rgb24")
            container.mux(stream.encode(frame))
    frames = list(read_frames(path, 2))
    if suffix != "h264":  # a raw stream has no timestamps
        assert duration(path) == pytest.approx(5, abs=0.1)
        assert [time for time, _ in frames] == pytest.approx([k / 2 for k in range(10)], abs=0.05)
    assert number(frames[0][1]) == pytest.approx(0, abs=0.7)
    assert number(frames[-1][1]) == pytest.approx(54, abs=6)


def test_written_videos_play_in_browsers(clip: Path) -> None:
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.pix_fmt == "yuv420p"
    data = clip.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")  # the index comes first, so that it plays while loading


def test_the_same_frames_give_the_same_bytes(clip: Path, tmp_path: Path) -> None:
    """Even in a process that has encoded other videos."""
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    for number in range(30):
        zoo.film(tmp_path / "other.mkv", draw=lambda k: np.roll(noise, k, 1), options={"bf": str(number % 4)})
        write_video(tmp_path / "again.mp4", numbered(60), rate=12)
        assert (tmp_path / "again.mp4").read_bytes() == clip.read_bytes()


def test_an_interrupted_write_keeps_the_old_file(tmp_path: Path) -> None:
    def stops() -> Iterator[Image]:
        yield from numbered(20)
        raise KeyboardInterrupt

    path = tmp_path / "clip.mp4"
    path.write_bytes(b"old content")
    with pytest.raises(KeyboardInterrupt):
        write_video(path, stops(), rate=12)
    assert [file.name for file in tmp_path.iterdir()] == ["clip.mp4"]
    assert path.read_bytes() == b"old content"


def test_invalid_frames_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    with pytest.raises(BadBatch, match=r"\(47, 64, 3\)"):
        write_video(path, numbered(2, height=47), rate=12)
    with pytest.raises(BadBatch, match=r"frame 1 has shape \(50, 64, 3\)"):
        write_video(path, [*numbered(1), *numbered(1, height=50)], rate=12)
    with pytest.raises(BadSetting, match=r"clip\.mp4.*0 frames"):
        write_video(path, [], rate=12)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- the zoo


@pytest.fixture(scope="module")
def beasts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zoo.Beast]:
    return zoo.good(tmp_path_factory.mktemp("zoo"))


@pytest.mark.usefixtures("unchecked")
def test_reading_the_zoo(beasts: dict[str, zoo.Beast]) -> None:
    """Each kind of file gives the frame shown at each time, and no frame after the last."""
    for name, beast in beasts.items():
        for rate in (0.5, 2, 7, 30):
            reading = read_frames(beast.path, rate)
            frames = list(reading)
            wanted = [beast.number_at(k / rate) for k in range(len(frames))]
            assert [number(image) for _, image in frames] == pytest.approx(wanted, abs=0.8), (name, rate)
            starts = [max(beast.starts[each], 0) for each in wanted]
            assert [start for start, _ in frames] == pytest.approx(starts, abs=2e-3), (name, rate)
            assert {image.shape for _, image in frames} == {beast.shape}, name
            assert reading.duration == pytest.approx(beast.end, abs=0.11), name
            assert (len(frames) - 1) / rate < reading.duration <= len(frames) / rate + 1e-5, (name, rate)
            assert not reading.damage, (name, reading.damage)
        assert duration(beast.path) == pytest.approx(reading.duration, abs=0.11), name


@pytest.mark.usefixtures("unchecked")
def test_seeking_in_the_zoo(beasts: dict[str, zoo.Beast]) -> None:
    """Seeking finds the same frames as reading, in the requested order."""
    for name, beast in beasts.items():
        read = list(read_frames(beast.path, 10))
        times = [k / 10 for k in range(len(read))][::-3]
        found = frames_at(beast.path, times)
        assert [start for start, _ in found] == pytest.approx([start for start, _ in read[::-3]], abs=1e-3), name
        for (_, image), (_, expected) in zip(found, read[::-3], strict=True):
            np.testing.assert_array_equal(image, expected, name)
        (_, after), (_, before) = frames_at(beast.path, [beast.end + 100, -1])
        np.testing.assert_array_equal(after, list(read_frames(beast.path, 50))[-1][1], name)
        np.testing.assert_array_equal(before, read[0][1], name)


def test_seeking_does_not_decode_the_whole_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo.film_of_hours(tmp_path / "film.mp4", 1.0)
    seen: list[float] = []
    seconds = container.Clock.seconds
    monkeypatch.setattr(container.Clock, "seconds", lambda self, pts: seen.append(seconds(self, pts)) or seen[-1])
    times = [3003.5, 7.5, 2000, 3001]
    assert [start for start, _ in frames_at(path, times)] == [3003.0, 7.0, 2000.0, 3001.0]
    assert len(seen) < 50


@pytest.mark.parametrize(("degrees", "corner"), [(0, (0, 0)), (90, (-1, 0)), (180, (-1, -1)), (-90, (0, -1))])
def test_rotation_is_applied(tmp_path: Path, degrees: int, corner: tuple[int, int]) -> None:
    _, image = next(read_frames(zoo.film(tmp_path / "turned.mp4", turned=degrees), 1))
    assert image.flags.c_contiguous
    assert image[corner].mean() > 200


def test_a_truncated_file_gives_the_frames_before_the_cut(tmp_path: Path) -> None:
    path = zoo.cut_short(tmp_path / "cut.mp4")
    reading = read_frames(path, 12)
    frames = list(reading)
    assert 15 < len(frames) < 45
    assert [number(image) for _, image in frames] == pytest.approx(range(len(frames)), abs=0.8)
    assert reading.duration == pytest.approx(len(frames) / 12)
    assert reading.damage.cut == (pytest.approx(reading.duration, abs=0.2), 5.0)


@pytest.mark.parametrize("sound", [0.0, 9.0])
def test_a_missing_end_is_reported_if_only_the_file_has_a_duration(tmp_path: Path, sound: float) -> None:
    path = zoo.film(tmp_path / "film.mkv", zoo.at_rate(60), sound=sound, options={"crf": "0"})
    whole = read_frames(path, 2)
    assert len(list(whole)) == 10
    assert not whole.damage  # the picture may end before the sound
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    cut = read_frames(path, 2)
    list(cut)
    assert cut.damage.cut == pytest.approx((cut.duration, sound or 5.0), abs=0.2)


def test_damaged_packets_are_skipped_and_counted(tmp_path: Path) -> None:
    """The last good frame is repeated until the next key frame."""
    reading = read_frames(zoo.hit_in_the_middle(tmp_path / "hit.mp4"), 12)
    numbers = [number(image) for _, image in reading]
    assert numbers == pytest.approx([min(k, 23) if k < 36 else k for k in range(60)], abs=1.4)
    assert str(reading.damage) == "12 packets could not be decoded"
    assert reading.duration == pytest.approx(5)


def test_reading_stops_after_many_errors_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "MAX_ERRORS_IN_A_ROW", 10)
    reading = read_frames(zoo.hit_in_the_middle(tmp_path / "hit.mp4"), 12)
    assert len(list(reading)) == 24
    assert reading.damage.num_packets >= 10


def test_times_that_go_back_slightly(tmp_path: Path) -> None:
    frames = list(read_frames(zoo.out_of_order(tmp_path / "jumping.mkv"), 12))
    times = [start for start, _ in frames]
    assert times == sorted(times)
    assert [number(image) for _, image in frames][3::4] == pytest.approx(range(3, 24, 4), abs=2.5)


def test_a_clock_that_jumps_ten_hours_is_repaired_and_a_long_still_is_not(tmp_path: Path) -> None:
    starts = [0.0, 0.5, 1.0, 36_000.0, 36_000.5]
    reading = read_frames(zoo.film(tmp_path / "jump.mkv", starts), 2)
    assert [number(image) for _, image in reading] == pytest.approx([0, 1, 2, 3], abs=0.8)
    assert reading.duration < 3
    still = read_frames(zoo.film(tmp_path / "still.mkv", [0.0, 300.0]), 0.1)
    assert [number(image) for _, image in still] == pytest.approx([0] * 30 + [1], abs=0.8)


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_a_picture_that_starts_long_after_the_sound(tmp_path: Path, ending: str) -> None:
    starts = zoo.at_rate(24, first=700.9)
    options = {"x264-params": "bframes=3:b-adapt=0:scenecut=0"}
    path = zoo.film(tmp_path / f"late.{ending}", starts, sound=1.0, gop=1000, options=options)
    reading = read_frames(path, 0.7)
    frames = list(reading)
    shown = [max(sum(start <= k / 0.7 + 1e-3 for start in starts) - 1, 0) for k in range(len(frames))]
    assert [number(image) for _, image in frames] == pytest.approx(shown, abs=0.8)
    assert [start for start, _ in frames] == pytest.approx([starts[each] for each in shown], abs=2e-3)
    assert (reading.duration, duration(path)) == pytest.approx((702.9, 702.9), abs=2e-3)
    found = frames_at(path, [5.0, 702.0])
    assert [start for start, _ in found] == pytest.approx([700.9, starts[13]], abs=2e-3)
    assert not reading.damage


@pytest.mark.parametrize(("ending", "rate"), [("mp4", 1), ("mp4", 2), ("mkv", 1), ("ts", 1)])
def test_the_duration_of_a_slow_video_with_reordered_frames(tmp_path: Path, ending: str, rate: int) -> None:
    """A frame stored four seconds before an earlier one is not a clock reset."""
    options = {"x264-params": "bframes=3:b-adapt=0:scenecut=0:b-pyramid=normal"}
    path = zoo.film(tmp_path / f"slow.{ending}", zoo.at_rate(24, rate), gop=1000, options=options)
    reading = read_frames(path, rate)
    assert len(list(reading)) == 24
    assert duration(path) == reading.duration == pytest.approx(24 / rate, abs=1)


def test_a_repeated_frame_is_converted_once(tmp_path: Path) -> None:
    frames = list(read_frames(zoo.film(tmp_path / "slides.mp4", [0.0, 5.0]), 2))
    assert [start for start, _ in frames] == [0.0] * 10 + [5.0]
    assert all(image is frames[0][1] for _, image in frames[:10])


@pytest.mark.usefixtures("unchecked")
def test_a_long_video_needs_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    def peaks(hours: float) -> tuple[int, int]:
        path = zoo.film_of_hours(tmp_path / "film.mp4", hours)
        tracemalloc.start()
        assert sum(1 for _ in read_frames(path, 1)) == round(hours * 3600)
        _, held = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return held, resident()

    short, long = peaks(0.02), peaks(2.0)
    assert long[0] < 2 * short[0]
    assert long[1] < 1.1 * short[1]


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------- decoding less


@pytest.fixture(scope="module")
def texture() -> Image:
    return np.random.default_rng(0).integers(0, 256, (150, 190, 3), np.uint8)


@settings(max_examples=15)
@given(
    gaps=st.lists(st.sampled_from([0.002, 0.04, 1 / 12, 1 / 12, 1 / 12, 0.5]), min_size=1, max_size=90),
    first=st.sampled_from([0.0, 1.3]),
    settings=st.fixed_dictionaries(
        {
            "keyint": st.sampled_from([1, 5, 12, 250]),
            "min-keyint": st.just(1),
            "bframes": st.sampled_from([0, 2, 3, 16]),
            "b-pyramid": st.sampled_from(["none", "strict", "normal"]),
            "b-adapt": st.just(0),
            "open-gop": st.integers(0, 1),
            "intra-refresh": st.sampled_from([0, 0, 0, 1]),
            "ref": st.integers(1, 6),
            "slices": st.sampled_from([1, 3]),
            "repeat-headers": st.integers(0, 1),
            "tff": st.sampled_from([0, 0, 0, 1]),
        }
    ),
    ending=st.sampled_from(["mp4", "mkv"]),
    rates=st.sets(st.sampled_from([0.1, 0.5, 1, 2, 3.3, 10]), min_size=2, max_size=2),
)
def test_decoding_less_gives_the_same_frames(
    tmp_path_factory: pytest.TempPathFactory,
    texture: Image,
    gaps: list[float],
    first: float,
    settings: dict[str, object],
    ending: str,
    rates: set[float],
) -> None:
    """Bit by bit, for any structure of the groups of pictures."""
    path = zoo.film(
        tmp_path_factory.mktemp("less") / f"film.{ending}",
        list(first + np.cumsum(gaps)),
        options={"preset": "veryfast", "x264-params": ":".join(f"{name}={value}" for name, value in settings.items())},
        draw=lambda k: texture[k % 97 : k % 97 + 48, 3 * k % 120 : 3 * k % 120 + 64].copy(),
    )
    for rate in rates:
        less = read_frames(path, rate)
        frames = list(less)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode, "EXACT_FORMATS", ())
            all_of_it = read_frames(path, rate)
            for (start, image), (expected_start, expected) in zip(frames, all_of_it, strict=True):
                assert start == expected_start
                np.testing.assert_array_equal(image, expected)
        assert less.duration == all_of_it.duration
        some = frames[:: max(1, len(frames) // 4)]
        found = frames_at(path, [k / rate for k in range(len(frames))][:: max(1, len(frames) // 4)])
        for (start, image), (expected_start, expected) in zip(found, some, strict=True):
            assert start == expected_start
            np.testing.assert_array_equal(image, expected)


def test_unneeded_frames_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short groups are decoded up to the wanted frame. Long groups are decoded without unreferenced frames."""
    counts: list[int] = []
    decode_packets = decode.decode_packets

    def counting(*arguments: object) -> Iterator[object]:
        counts.append(0)
        for frame in decode_packets(*arguments):  # type: ignore[arg-type]
            counts[-1] += 1
            yield frame

    monkeypatch.setattr(decode, "decode_packets", counting)
    for name, gop in (("often.mp4", 12), ("seldom.mp4", 1000)):
        options = {"x264-params": "scenecut=0:b-adapt=0:bframes=3:b-pyramid=none"}
        path = zoo.film(tmp_path / name, zoo.at_rate(120, 12), gop=gop, options=options)
        list(read_frames(path, 1))
    assert counts[0] <= 3 * 10 + 4
    assert 30 <= counts[1] <= 65


def test_other_codecs_are_decoded_completely(tmp_path: Path) -> None:
    path = zoo.film(tmp_path / "film.mkv", zoo.at_rate(60), codec="libx265", options={"x265-params": "log-level=none"})
    assert [number(image) for _, image in read_frames(path, 1)] == pytest.approx(range(0, 60, 12), abs=0.8)


# ---------------------------------------------------------------- unreadable files


def test_files_that_are_not_videos(tmp_path: Path) -> None:
    for name, reason in zoo.bad(tmp_path).items():
        for read in (lambda path: next(read_frames(path, 2)), lambda path: frames_at(path, [1.0])):
            with pytest.raises(UnreadableVideo, match=rf"{name}.* {reason}\b") as raised:
                read(tmp_path / name)
            assert not isinstance(raised.value, MissingVideo)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingVideo, match=r"gone\.mp4"):
        next(read_frames(tmp_path / "gone.mp4", 2))
    with pytest.raises(MissingVideo, match="Is a directory"):
        duration(tmp_path)


def test_a_file_without_read_permission(clip: Path, tmp_path: Path) -> None:
    path = tmp_path / "secret.mp4"
    path.write_bytes(clip.read_bytes())
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody, because root may read everything
    try:
        with pytest.raises(MissingVideo, match=r"secret\.mp4.*Permission denied"):
            next(read_frames(path, 2))
    finally:
        os.seteuid(user)
