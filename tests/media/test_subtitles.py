from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.media import subtitles
from midreel.media.subtitles import Line, parse

SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Hello</i> there,
my friend &amp; you

2
01:00:03,000 --> 01:00:04,250
{\\an8}Good bye
3
01:00:05,5 --> 01:00:06,75
Without an empty row
"""
VTT = """\ufeffWEBVTT - a title

NOTE 00:00 is not a cue

STYLE
::cue { color: red }

intro
00:01.000 --> 00:02.000 align:start position:0%
<v Anna>Short times</v>
"""


def test_srt() -> None:
    assert parse(SRT) == [
        Line(1.0, 2.5, "Hello there, my friend & you"),
        Line(3603.0, 3604.25, "Good bye"),
        Line(3605.5, 3606.75, "Without an empty row"),
    ]


def test_vtt() -> None:
    assert parse(VTT) == [Line(1.0, 2.0, "Short times")]


@pytest.mark.parametrize(
    "text", ["", "nothing", "00:00:02,000 --> 00:00:01,000\nback in time", "00:00:01,000 --> 00:00:02,000\n<b></b>"]
)
def test_what_is_not_a_line_is_skipped(text: str) -> None:
    assert parse(text) == []


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_any_text_is_read(text: str) -> None:
    for line in parse(f"00:00:01,000 --> 00:00:02,000\n{text}"):
        assert line.text.strip() == line.text != ""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "film.srt"
    path.write_bytes("00:00:01,000 --> 00:00:02,000\nDéjà vu\n".encode(encoding))
    assert subtitles.read(path) == [Line(1.0, 2.0, "Déjà vu")]


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subtitles, "LARGEST_FILE", 10)
    (tmp_path / "film.srt").write_text(SRT)
    assert subtitles.read(tmp_path / "film.srt") == []


def test_files_beside_a_video(tmp_path: Path) -> None:
    for name in ("film.srt", "film.en.vtt", "film.DE.SRT", "film2.srt", "film.part.two.srt", "other.srt", "film.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "film.fr.srt").mkdir()
    assert [path.name for path in subtitles.beside(tmp_path / "film.mp4")] == ["film.DE.SRT", "film.en.vtt", "film.srt"]
    assert subtitles.beside(tmp_path / "nowhere" / "film.mp4") == []


def with_track(path: Path, text: str) -> Path:
    """Write a film whose file has a track of subtitles."""
    source = path.with_suffix(".srt")
    source.write_text(text)
    with av.open(str(source)) as lines, av.open(str(path), "w") as output:
        video = output.add_stream("libx264", rate=5)
        video.width = video.height = 16
        video.pix_fmt = "yuv420p"
        track = output.add_stream_from_template(lines.streams[0])
        for _ in range(40):
            output.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8))))
        output.mux(video.encode())
        for packet in lines.demux():
            if packet.dts is not None:
                packet.stream = track
                output.mux(packet)
    source.unlink()
    return path


def test_tracks_in_the_file(tmp_path: Path) -> None:
    film = with_track(tmp_path / "film.mkv", SRT.replace("01:00:", "00:00:"))
    found = subtitles.embedded(film)
    assert found[:2] == [Line(1.0, 2.5, "Hello there, my friend & you"), Line(3.0, 4.25, "Good bye")]


def test_a_file_without_tracks_or_without_video(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"not a video")
    assert subtitles.embedded(tmp_path / "film.mp4") == []
    assert subtitles.embedded(tmp_path / "missing.mp4") == []
