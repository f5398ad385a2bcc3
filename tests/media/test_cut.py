"""Clips are read back and compared with their sources, the videos of tests/zoo.py."""

from fractions import Fraction
from pathlib import Path

import av
import pytest

from midreel.errors import BadSetting, MissingVideo, UnreadableVideo, Unwritable
from midreel.media.cut import clip_suffix, write_clip
from midreel.media.decode import duration, facts, frames_at, read_frames
from tests import zoo

number = zoo.number_of
# Videos that cannot be copied, each with a key word of the error.
NO_COPY = {
    "trimmed.mp4": "trimmed",
    "bare.h264": "timestamps",
    "clock set anew.ts": "matroska",
}


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of five seconds with sound and a key frame each second."""
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    return zoo.film(path, zoo.at_rate(60), sound=5.0, options={"x264-params": "scenecut=0"})


@pytest.fixture(scope="module")
def beasts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zoo.Beast]:
    return zoo.good(tmp_path_factory.mktemp("zoo"))


def seconds_of_sound(path: Path) -> float:
    with av.open(str(path)) as container:
        return sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))


def test_an_exact_clip_has_exactly_the_frames_shown(film: Path, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    assert write_clip(film, clip, 1.3, 3.1, exact=True) == 1.3
    assert duration(clip) == pytest.approx(1.8, abs=1e-3)
    found = list(read_frames(clip, 120))
    numbers = [round(number(image)) for _, image in found]
    assert sorted(set(numbers)) == list(range(15, 38))
    # Frame 15 begins at 1.25 s, before the clip; frame 16 is shown 1/30 s after its start.
    assert next(time for time, _ in found if time > 0) == pytest.approx(16 / 12 - 1.3, abs=1e-3)
    assert seconds_of_sound(clip) == pytest.approx(1.8, abs=0.07)  # AAC has blocks of 64 ms at this rate


def test_a_copied_clip_starts_at_the_key_frame_before(film: Path, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    begin = write_clip(film, clip, 2.4, 3.1)
    assert begin == pytest.approx(2.0, abs=1e-3)
    assert number(next(read_frames(clip, 12))[1]) == pytest.approx(24, abs=0.7)
    assert duration(clip) == pytest.approx(3.1 - begin, abs=4 / 12)
    assert seconds_of_sound(clip) == pytest.approx(1.1, abs=0.15)


def test_a_copy_has_identical_frames(film: Path, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    begin = write_clip(film, clip, 2.0, 4.0)
    times = [k / 12 for k in range(24)]
    for (_, mine), (_, theirs) in zip(
        frames_at(clip, times), frames_at(film, [begin + time for time in times]), strict=True
    ):
        assert (mine == theirs).all()


@pytest.mark.parametrize("exact", [True, False])
def test_the_whole_zoo_can_be_cut(beasts: dict[str, zoo.Beast], tmp_path: Path, exact: bool) -> None:
    for name, beast in beasts.items():
        start, end = 0.4 * beast.end, 0.8 * beast.end
        if name in NO_COPY and not exact:
            with pytest.raises(BadSetting, match=rf"{NO_COPY[name]}.*--re-encode"):
                write_clip(beast.path, tmp_path / f"clip{clip_suffix(beast.path, exact=False)}", start, end)
            continue
        clip = tmp_path / f"clip{clip_suffix(beast.path, exact=exact)}"
        begin = write_clip(beast.path, clip, start, end, exact=exact)
        (_, first), *_ = frames_at(clip, [0])
        assert first.shape[:2] == (beast.shape[0] // 2 * 2, beast.shape[1] // 2 * 2) if exact else beast.shape[:2], name
        assert number(first) == pytest.approx(beast.number_at(begin), abs=1.2), name
        assert begin == start if exact else begin <= start + 1e-3, name
        if exact:
            assert duration(clip) == pytest.approx(end - start, abs=2e-3), name
        else:
            assert duration(clip) >= end - begin - 2 / 12, name


def test_a_copy_does_not_show_trimmed_frames(tmp_path: Path) -> None:
    film, clip = zoo.trimmed(tmp_path / "film.mp4", gop=12), tmp_path / "clip.mp4"
    assert write_clip(film, clip, 1.5, 9.0) == pytest.approx(1.0)
    assert [round(number(image)) for _, image in read_frames(clip, 12)] == list(
        range(12, 37)
    )  # the last three refer to later frames


def test_a_moment_late_in_a_long_video_is_cut(tmp_path: Path) -> None:
    film = zoo.film_of_hours(tmp_path / "film.mp4", 0.5)
    clip = tmp_path / "clip.mp4"
    write_clip(film, clip, 1703.5, 1706.0, exact=True)
    assert [round(number(image)) for _, image in read_frames(clip, 2)] == [3, 4, 4, 5, 5]
    assert write_clip(film, clip, 1703.5, 1706.0) == 1700


def test_damaged_packets_in_a_clip_are_skipped(tmp_path: Path) -> None:
    film = zoo.hit_in_the_middle(tmp_path / "film.mp4")
    clip = tmp_path / "clip.mp4"
    write_clip(film, clip, 1.0, 4.0, exact=True)
    assert duration(clip) == pytest.approx(3, abs=2e-3)
    numbers = [round(number(image)) for _, image in read_frames(clip, 12)]
    assert (numbers[0], numbers[-1]) == (12, 47)


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "tags"),
    [
        ("usual.mp4", "libx264", "yuv420p", (2, 2, 2, 1)),
        ("high definition.mp4", "libx264", "yuv420p", (1, 1, 1, 1)),
        ("telephone.mp4", "libx264", "yuv420p", (1, 1, 1, 2)),
        ("studio.mp4", "libx264", "yuv444p", (6, 6, 6, 1)),
        ("screen.mkv", "ffv1", "bgra", (2, 2, 2, 0)),
    ],
)
def test_colours_are_kept(tmp_path: Path, name: str, codec: str, pix_fmt: str, tags: tuple[int, int, int, int]) -> None:
    film = zoo.colourful(tmp_path / name, codec=codec, pix_fmt=pix_fmt, tags=tags)
    clip = tmp_path / "clip.mp4"
    write_clip(film, clip, 0.2, 0.8, exact=True)
    ((_, theirs),), ((_, mine),) = frames_at(film, [0.5]), frames_at(clip, [0.2])
    for corner in ((16, 16), (16, 48), (48, 16), (48, 48)):
        assert mine[corner].tolist() == pytest.approx(theirs[corner].tolist(), abs=5), corner
    with av.open(str(film)) as source, av.open(str(clip)) as copy:
        before, after = source.streams.video[0].codec_context, copy.streams.video[0].codec_context
        assert after.color_range in (0, 1)  # the default of H.264 is the narrow range
        if pix_fmt != "bgra":
            assert (after.colorspace, after.color_primaries) == (before.colorspace, before.color_primaries)


@pytest.mark.parametrize("exact", [True, False])
def test_pixel_aspect_is_kept(tmp_path: Path, exact: bool) -> None:
    film = zoo.film(tmp_path / "film.mp4", options={"aspect": "4:3"})
    assert facts(film).pixel_aspect == Fraction(4, 3)
    write_clip(film, tmp_path / "clip.mp4", 0.5, 1.5, exact=exact)
    assert facts(tmp_path / "clip.mp4").pixel_aspect == Fraction(4, 3)


def test_clips_of_a_video_with_unordered_times(tmp_path: Path) -> None:
    """Each frame is shown, except those that come too late."""
    film, clip = zoo.out_of_order(tmp_path / "film.mkv"), tmp_path / "clip.mp4"
    write_clip(film, clip, 0.5, 1.5, exact=True)
    assert duration(clip) == pytest.approx(1, abs=2e-3)
    numbers = [round(number(image)) for _, image in read_frames(clip, 12)]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == pytest.approx((6, 17), abs=2)


@pytest.mark.parametrize("exact", [True, False])
def test_invalid_arguments_are_rejected(film: Path, tmp_path: Path, exact: bool) -> None:
    clip = tmp_path / "clip.mp4"
    with pytest.raises(BadSetting, match=r"film\.mp4 ends at 5 s"):
        write_clip(film, clip, 7, 8, exact=exact)
    with pytest.raises(BadSetting, match="from 3 to 2 s"):
        write_clip(film, clip, 3, 2, exact=exact)
    with pytest.raises(BadSetting, match=r"'clip\.avi', expected the suffix \.mp4"):
        write_clip(film, tmp_path / "clip.avi", 1, 2, exact=exact)
    with pytest.raises(MissingVideo, match=r"nowhere\.mp4"):
        write_clip(tmp_path / "nowhere.mp4", clip, 1, 2, exact=exact)
    with pytest.raises(UnreadableVideo):
        write_clip(zoo.song(tmp_path / "song.mp4"), clip, 0, 1, exact=exact)
    with pytest.raises(Unwritable, match="No such file"):
        write_clip(film, tmp_path / "no folder" / "clip.mp4", 1, 2, exact=exact)
    assert [path.name for path in tmp_path.iterdir()] == ["song.mp4"]


def test_a_codec_that_the_container_does_not_support(tmp_path: Path) -> None:
    film = zoo.film(tmp_path / "film.mkv", codec="ffv1")
    film = film.rename(tmp_path / "film.webm")  # the suffix is wrong
    with pytest.raises(BadSetting, match=r"clip\.webm.*--re-encode"):
        write_clip(film, tmp_path / "clip.webm", 0, 1)
    write_clip(film, tmp_path / "clip.mp4", 0, 1, exact=True)
    assert duration(tmp_path / "clip.mp4") == pytest.approx(1, abs=2e-3)


def test_facts(film: Path, tmp_path: Path) -> None:
    assert facts(film).frame_rate == 12
    assert facts(film).has_sound
    silent = zoo.broadcast(tmp_path / "silent.mp4")
    assert not facts(silent).has_sound
    assert facts(silent).frame_rate == Fraction(30000, 1001)
