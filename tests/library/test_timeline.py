"""Timelines are read back with OpenTimelineIO, and FCPXML also as exact fractions."""

import os
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import av
import opentimelineio as otio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadPackage, BadSetting
from midreel.library.export import FoundMoment, export, timecode
from midreel.library.timeline import Source, frame_of_timecode, source_rate
from midreel.media import decode
from tests import zoo

NTSC = Fraction(30000, 1001)
RATES = [Fraction(24000, 1001), Fraction(24), Fraction(25), NTSC, Fraction(30), Fraction(50), 2 * NTSC, Fraction(60)]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Videos of 29.97 frames per second, of 12 with sound, and of a variable rate."""
    folder = tmp_path_factory.mktemp("films")
    return {
        "ntsc": zoo.broadcast(folder / "news.mp4"),
        "sound": zoo.film(folder / "beach day.mp4", zoo.at_rate(60), sound=5.0),
        "variable": zoo.film(folder / "phone.mp4", [0.0, 0.1, 0.15, 0.9, 1.0, 1.8, 3.0]),
    }


@pytest.fixture
def found(films: dict[str, Path]) -> list[FoundMoment]:
    return [
        FoundMoment(path=films["ntsc"], start=0.5, end=1.5, score=0.81, query="a dog, <wet>", confidence=0.93),
        FoundMoment(path=films["sound"], start=1.5, end=3.0, score=0.5, query="a dog, <wet>"),
        FoundMoment(path=films["variable"], start=0.9, end=1.8, score=0.25, query="a dog, <wet>"),
        FoundMoment(path=films["sound"], start=4.5, end=4.501, score=0.2, query="a dog, <wet>"),
    ]


def read_otio(found: list[FoundMoment], path: Path) -> Any:
    assert export(found, path, "otio").failed == []
    return otio.adapters.read_from_file(str(path))


def read_clips(found: list[FoundMoment], path: Path) -> list[Any]:
    """Return copies of the video clips, which would not outlive their timeline."""
    timeline = read_otio(found, path)
    return [clip.clone() for clip in timeline.video_tracks()[0]]


def read_xml(found: list[FoundMoment], path: Path, **options: Any) -> ElementTree.Element:
    assert export(found, path, "fcpxml", **options).failed == []
    return ElementTree.parse(path).getroot()


def seconds(text: str | None) -> Fraction:
    assert text is not None
    assert text.endswith("s")
    return Fraction(text[:-1])


# ---------------------------------------------------------------- OpenTimelineIO


def test_clips_read_back_with_the_times_of_their_moments(found: list[FoundMoment], tmp_path: Path) -> None:
    timeline = read_otio(found, tmp_path / "dogs.otio")
    assert timeline.name == "a dog, <wet>"
    (video,) = timeline.video_tracks()
    for moment, clip in zip(found, video, strict=True):
        rate = Fraction(clip.source_range.start_time.rate).limit_denominator(2000)
        assert rate == source_rate(decode.facts(moment.path).frame_rate)
        begin, end = clip.source_range.start_time, clip.source_range.end_time_exclusive()
        assert begin.value == int(begin.value)
        assert begin.to_seconds() == pytest.approx(moment.start, abs=0.501 / rate)
        assert end.to_seconds() == pytest.approx(max(moment.end, moment.start), abs=1.001 / rate)
        assert clip.source_range.duration.value >= 1
        assert clip.media_reference.target_url == moment.path.as_uri()
        whole = clip.media_reference.available_range
        assert whole.duration.to_seconds() == pytest.approx(decode.duration(moment.path), abs=0.501 / rate)
        assert whole.start_time <= begin < end <= whole.end_time_exclusive()


def test_ntsc_times_are_frames_of_30000_1001(found: list[FoundMoment], tmp_path: Path) -> None:
    (clip,) = read_clips(found[:1], tmp_path / "news.otio")
    assert clip.source_range.start_time.rate == pytest.approx(30000 / 1001, abs=1e-12)
    assert (clip.source_range.start_time.value, clip.source_range.duration.value) == (15, 30)


def test_edges_on_frames_are_exact(films: dict[str, Path], tmp_path: Path) -> None:
    starts = [0.0, 0.1, 0.15, 0.9, 1.0, 1.8, 3.0]
    variable = [FoundMoment(path=films["variable"], start=a, end=b, score=1, query="q") for a, b in pairwise(starts)]
    times = [(float(k / NTSC), float((k + 7) / NTSC)) for k in range(50)]
    even = [FoundMoment(path=films["ntsc"], start=start, end=end, score=1, query="q") for start, end in times]
    variable_clips = read_clips(variable, tmp_path / "v.otio")
    for moment, clip in zip(variable, variable_clips, strict=True):
        assert clip.source_range.start_time.to_seconds() == pytest.approx(moment.start, abs=1 / 47)
    for moment, clip in zip(even, read_clips(even, tmp_path / "e.otio"), strict=True):
        assert clip.source_range.start_time.to_seconds() == pytest.approx(float(moment.start), abs=1e-9)
        assert clip.source_range.duration.value == 7


def test_markers_have_query_score_and_confidence(found: list[FoundMoment], tmp_path: Path) -> None:
    timeline = read_otio(found, tmp_path / "dogs.otio")
    first, second, *_ = (clip.markers[0] for clip in timeline.video_tracks()[0])
    assert first.name == "a dog, <wet>"
    assert "0.810" in first.comment
    assert "93%" in first.comment
    assert dict(first.metadata["midreel"]) == {
        "query": "a dog, <wet>",
        "score": 0.81,
        "confidence": 0.93,
        "start": 0.5,
        "end": 1.5,
    }
    assert "confidence" not in second.metadata["midreel"]
    assert first.marked_range == timeline.video_tracks()[0][0].source_range


def test_the_audio_track_is_in_step_with_the_video(found: list[FoundMoment], tmp_path: Path) -> None:
    timeline = read_otio(found, tmp_path / "dogs.otio")
    (video,), (audio,) = timeline.video_tracks(), timeline.audio_tracks()
    assert [isinstance(each, otio.schema.Clip) for each in audio] == [False, True, False, True]
    for picture, sound in zip(video, audio, strict=True):
        assert sound.range_in_parent() == picture.range_in_parent()
    assert read_otio([found[0]], tmp_path / "silent.otio").audio_tracks() == []


# ---------------------------------------------------------------- FCPXML


@pytest.mark.parametrize("rate", [None, Fraction(25), NTSC])
def test_xml_reads_back_in_exact_fractions(found: list[FoundMoment], tmp_path: Path, rate: Fraction | None) -> None:
    root = read_xml(found, tmp_path / "dogs.fcpxml", frame_rate=rate)
    sequence, formats = root.find(".//sequence"), {each.get("id"): each for each in root.iter("format")}
    assert sequence is not None
    frame = seconds(formats["sequence"].get("frameDuration"))
    assert 1 / frame == (rate or NTSC)
    assets = {each.get("id"): each for each in root.iter("asset")}
    assert len(assets) == 3  # the same file twice is one asset
    place = Fraction(0)
    for moment, clip in zip(found, root.iter("asset-clip"), strict=True):
        asset = assets[clip.get("ref")]
        own = seconds(formats[asset.get("format")].get("frameDuration"))
        assert asset.get("src") == moment.path.as_uri()
        assert asset.get("hasAudio") == ("1" if "beach" in moment.path.name else None)
        assert seconds(clip.get("offset")) == place
        assert float(seconds(clip.get("start"))) == pytest.approx(moment.start, abs=0.501 * own)
        assert seconds(clip.get("start")) % own == 0
        assert seconds(clip.get("duration")) % frame == 0
        marker = clip.find("marker")
        assert marker is not None
        assert (marker.get("value"), marker.get("start")) == (moment.query, clip.get("start"))
        assert f"{moment.score:.3f}" in (marker.get("note") or "")
        place += seconds(clip.get("duration"))
    assert seconds(sequence.get("duration")) == place
    assert sequence.get("tcFormat") == ("DF" if (rate or NTSC) == NTSC else "NDF")


def test_videos_of_another_rate_are_conformed(found: list[FoundMoment], tmp_path: Path) -> None:
    root = read_xml(found, tmp_path / "dogs.fcpxml", frame_rate=Fraction(24))
    rates = [clip.find("conform-rate") for clip in root.iter("asset-clip")]
    assert [None if each is None else each.get("srcFrameRate") for each in rates][:2] == ["29.97", None]


def test_the_adapter_of_opentimelineio_reads_the_xml(films: dict[str, Path], tmp_path: Path) -> None:
    found = [FoundMoment(path=films["sound"], start=1.5, end=3.0, score=0.5, query="a dog")]
    export(found, tmp_path / "dogs.fcpxml", "fcpxml", frame_rate=Fraction(24))
    read = otio.adapters.read_from_file(str(tmp_path / "dogs.fcpxml"), adapter_name="fcpx_xml")
    clips = list(read.find_clips())
    assert {clip.media_reference.target_url for clip in clips} == {films["sound"].as_uri()}
    assert {clip.source_range.start_time.to_seconds() for clip in clips} == {1.5}
    assert {clip.source_range.duration.to_seconds() for clip in clips} == {1.5}


# ---------------------------------------------------------------- rates, timecodes and odd input


@given(st.fractions(Fraction(1, 100), 300))
def test_times_are_counted_finely_enough(rate: Fraction) -> None:
    assert Fraction(24000, 1001) <= source_rate(rate) <= 60


@pytest.mark.parametrize("rate", RATES)
@given(frame=st.integers(0, 24 * 3600 * 23))
def test_timecodes_read_back(rate: Fraction, frame: int) -> None:
    assert frame_of_timecode(timecode(frame, rate), rate) == frame


@pytest.mark.parametrize("form", ["otio", "fcpxml"])
def test_times_count_from_the_timecode_of_the_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / "camera.mov"
    with av.open(str(path), "w") as container:
        container.metadata["timecode"] = "10:00:00:00"
        stream = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = zoo.HEIGHT, zoo.WIDTH, "yuv420p"
        for number in range(50):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(zoo.picture(number), format="rgb24")))
        container.mux(stream.encode(None))
    assert decode.facts(path).timecode == "10:00:00:00"
    assert Source.of(path).origin == 36_000 * 25
    moment = FoundMoment(path=path, start=1.0, end=1.5, score=1, query="q")
    if form == "otio":
        (clip,) = read_clips([moment], tmp_path / "out.otio")
        assert clip.source_range.start_time.to_timecode() == "10:00:01:00"
        assert clip.media_reference.available_range.start_time.to_timecode() == "10:00:00:00"
    else:
        root = read_xml([moment], tmp_path / "out.fcpxml")
        assert [each.get("start") for each in (*root.iter("asset"), *root.iter("asset-clip"))] == ["36000s", "36001s"]


@pytest.mark.parametrize("form", ["otio", "fcpxml"])
def test_odd_names_and_queries(films: dict[str, Path], tmp_path: Path, form: str) -> None:
    names = ('a b\'s "c" <&>.mp4', "line\nbreak.mp4", os.fsdecode(b"\xe9t\xe9.mp4"), "日本\x07.mp4")
    moments = []
    for name in names:
        path = tmp_path / name
        path.write_bytes(films["sound"].read_bytes())
        moments.append(FoundMoment(path=path, start=1, end=2, score=1, query='"<dog>"\x00\n& \udce9'))
    if form == "otio":
        urls = [clip.media_reference.target_url for clip in read_clips(moments, tmp_path / "o.otio")]
    else:
        urls = [asset.get("src") for asset in read_xml(moments, tmp_path / "o.fcpxml").iter("asset")]
    assert urls == [moment.path.as_uri() for moment in moments]


@pytest.mark.parametrize("form", ["otio", "fcpxml"])
def test_unreadable_videos_are_skipped(found: list[FoundMoment], tmp_path: Path, form: str) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    broken = replace(found[0], path=tmp_path / "broken.mp4")
    written = export([broken, *found], tmp_path / "out", form)
    assert [moment for moment, _ in written.failed] == [broken]
    with pytest.raises(BadSetting, match="broken"):
        export([broken], tmp_path / "none", form)


def test_moments_beyond_the_end_keep_a_frame(films: dict[str, Path], tmp_path: Path) -> None:
    late = FoundMoment(path=films["sound"], start=50.0, end=60.0, score=1, query="q")
    (clip,) = read_clips([late], tmp_path / "late.otio")
    assert clip.source_range.duration.value == 1
    whole = clip.media_reference.available_range
    assert clip.source_range.end_time_exclusive() == whole.end_time_exclusive()


def test_without_opentimelineio(found: list[FoundMoment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentimelineio", None)
    with pytest.raises(BadPackage, match=r"midreel\[otio\]"):
        export(found, tmp_path / "out.otio", "otio")
    assert not (tmp_path / "out.otio").exists()
    assert export(found, tmp_path / "out.fcpxml", "fcpxml").files
