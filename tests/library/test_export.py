import csv
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from midreel.errors import BadSetting, UnknownName, Unwritable
from midreel.library import export as exports
from midreel.library.export import FoundMoment, clip_name, edit_list, export, playlist, table, timecode, usual_rate
from midreel.media import decode
from tests import zoo

NTSC = Fraction(30000, 1001)
ODD_NAMES = (
    'a b\'s "c" $d.mp4',
    "line\nbreak.mp4",
    "#hash, 50%.mp4",
    os.fsdecode(b"\xe9t\xe9.mp4"),
    "-rf.mp4",
    "日本.mp4",
)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.film(tmp_path_factory.mktemp("film") / "beach day.mp4", zoo.at_rate(60), sound=5.0)


@pytest.fixture
def found(film: Path) -> list[FoundMoment]:
    return [
        FoundMoment(path=film, start=1.5, end=3.0, score=0.81, query="a dog, wet"),
        FoundMoment(path=film, start=0.0, end=1.25, score=0.5, query="a boat"),
    ]


# ---------------------------------------------------------------- all forms


@pytest.mark.parametrize("form", [form for form in exports.FORMS if form != "clips"])
def test_existing_files_are_overwritten_only_on_request(found: list[FoundMoment], tmp_path: Path, form: str) -> None:
    target = tmp_path / "out"
    target.write_text("mine")
    with pytest.raises(Unwritable, match="--overwrite"):
        export(found, target, form)
    assert target.read_text() == "mine"
    assert export(found, target, form, overwrite=True).files == [target]
    assert target.read_bytes() != b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("form", exports.FORMS)
def test_folders_are_created(found: list[FoundMoment], tmp_path: Path, form: str) -> None:
    target = tmp_path / "new" / "out"
    written = export(found, target, form)
    assert not written.failed
    assert all(path.stat().st_size for path in written.files)
    (tmp_path / "file").touch()
    with pytest.raises(Unwritable, match="deeper"):
        export(found, tmp_path / "file" / "deeper" / "out", form)


def test_invalid_exports(found: list[FoundMoment], tmp_path: Path) -> None:
    with pytest.raises(BadSetting):
        export([], tmp_path / "out", "csv")
    with pytest.raises(UnknownName, match="clips, sheet, csv, m3u, edl, otio, fcpxml"):
        export(found, tmp_path / "out", "xml")
    with pytest.raises(BadSetting, match="2 to 1 s"):
        FoundMoment(path=Path("a.mp4"), start=2, end=1, score=0, query="")


# ---------------------------------------------------------------- tables and playlists


def test_a_table_reads_back(found: list[FoundMoment], tmp_path: Path) -> None:
    odd = [replace(found[0], path=Path(name), query='says "hi"\nand goes') for name in ODD_NAMES]
    export(odd + found, tmp_path / "found.csv", "csv")
    with (tmp_path / "found.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [*ODD_NAMES, *(str(moment.path) for moment in found)]
    assert rows[0]["query"] == 'says "hi"\nand goes'
    assert rows[-2] | {"path": ""} == {
        "moment_rank": "7",
        "query": "a dog, wet",
        "moment_score": "0.810000",
        "start": "1.500",
        "end": "3.000",
        "path": "",
    }


def test_table_format() -> None:
    moment = FoundMoment(path=Path("a.mp4"), start=1, end=2.5, score=0.25, query="x")
    assert table([moment]) == "moment_rank,query,moment_score,start,end,path\n1,x,0.250000,1.000,2.500,a.mp4\n"


def test_playlist_format(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    moment = FoundMoment(path=Path("my film.mp4"), start=1, end=9.5, score=0.25, query="a\ndog")
    assert playlist([moment]).splitlines() == [
        "#EXTM3U",
        "#EXTINF:8,a dog (my film.mp4)",
        "#EXTVLCOPT:start-time=1.000",
        "#EXTVLCOPT:stop-time=9.500",
        f"{tmp_path.as_uri()}/my%20film.mp4",
    ]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_the_url_in_a_playlist_leads_to_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    lines = playlist([FoundMoment(path=path, start=0, end=1, score=1, query="q")]).splitlines()
    assert len(lines) == 5
    assert Path(os.fsdecode(unquote_to_bytes(urlsplit(lines[-1]).path))).samefile(path)


# ---------------------------------------------------------------- edit lists


def numbered(rate: int, dropped: int) -> Iterator[str]:
    """Yield all timecodes of 25 minutes in order, without the dropped ones."""
    for minute in range(25):
        for second in range(60):
            for frame in range(rate):
                if not (second == 0 and frame < dropped and minute % 10):
                    yield f"00:{minute:02d}:{second:02d}{';' if dropped else ':'}{frame:02d}"


@pytest.mark.parametrize(
    ("rate", "base", "dropped"),
    [(Fraction(25), 25, 0), (Fraction(30), 30, 0), (NTSC, 30, 2), (2 * NTSC, 60, 4), (Fraction(24000, 1001), 24, 0)],
)
def test_timecodes_in_order(rate: Fraction, base: int, dropped: int) -> None:
    for frame, name in enumerate(numbered(base, dropped)):
        if frame % 7 == 0 or frame % base < 5:
            assert timecode(frame, rate) == name


@given(st.integers(0, 24 * 3600 * 30 - 3000))
def test_drop_frame_timecodes_keep_time(frame: int) -> None:
    hours, minutes, seconds, frames = map(int, re.split("[:;]", timecode(frame, NTSC)))
    shown = hours * 3600 + minutes * 60 + seconds + frames / 30
    assert shown == pytest.approx(float(frame / NTSC), abs=0.2)


def test_edit_list_format(found: list[FoundMoment], film: Path) -> None:
    assert edit_list(found, Fraction(25)).splitlines() == [
        "TITLE: midreel",
        "FCM: NON-DROP FRAME",
        "",
        "001  AX       B     C        00:00:01:13 00:00:03:00 00:00:00:00 00:00:01:12",
        "* FROM CLIP NAME: beach day.mp4",
        f"* SOURCE FILE: {film}",
        "* COMMENT: a dog, wet (score 0.810)",
        "",
        "002  AX       B     C        00:00:00:00 00:00:01:06 00:00:01:12 00:00:02:18",
        "* FROM CLIP NAME: beach day.mp4",
        f"* SOURCE FILE: {film}",
        "* COMMENT: a boat (score 0.500)",
    ]


@pytest.mark.parametrize("rate", [Fraction(12), Fraction(25), Fraction(30), NTSC, 2 * NTSC])
def test_events_have_the_same_length_in_source_and_edit(found: list[FoundMoment], rate: Fraction) -> None:
    place = {timecode(frame, rate): frame for frame in range(1000)}
    ends = 0
    moments = [*found, replace(found[0], start=1.0, end=1.001)]
    text = edit_list(moments, rate)
    assert ("FCM: DROP FRAME" in text) == (rate.denominator == 1001)
    events = [line.split()[4:] for line in text.splitlines() if re.match(r"\d{3} ", line)]
    for moment, codes in zip(moments, events, strict=True):
        begin, end, new_begin, new_end = (place[code] for code in codes)
        assert begin / rate == pytest.approx(moment.start, abs=0.51 / rate)
        assert end - begin == new_end - new_begin == max(1, round(moment.end * rate) - begin)
        assert new_begin == ends
        ends = new_end


def test_an_edit_list_has_the_rate_of_the_first_video(found: list[FoundMoment], tmp_path: Path) -> None:
    assert " 00:00:01:06 00:00:03:00 " in edit_list(found)  # 12 frames per second
    first = replace(found[0], path=zoo.broadcast(tmp_path / "news.mp4"), start=1.0, end=2.0)
    assert " 00:00:01;00 00:00:02;00 00:00:00;00 00:00:01;00\n" in edit_list([first, *found])


def test_an_edit_list_skips_unreadable_videos(found: list[FoundMoment], tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    broken = replace(found[0], path=tmp_path / "broken.mp4")
    written = export([broken, *found], tmp_path / "out.edl", "edl")
    assert (tmp_path / "out.edl").read_text() == edit_list(found)
    ((moment, reason),) = written.failed
    assert (moment, "broken.mp4" in reason) == (broken, True)
    with pytest.raises(BadSetting, match="broken"):
        export([broken], tmp_path / "none.edl", "edl")


@pytest.mark.parametrize(
    ("rate", "usual"),
    [
        *[("29.9701", NTSC), ("29.97", NTSC), ("23.976", "24000/1001"), ("25.01", 25), ("28.2", 28), ("0.1", 1)],
        *[("240", 60), ("119.88", "60000/1001"), ("120.05", 60), ("90", 45), ("61", 30), ("60.05", 60)],
    ],
)
def test_usual_rates(rate: str, usual: Fraction | int | str) -> None:
    assert usual_rate(Fraction(rate)) == Fraction(usual)


def test_invalid_edit_lists(found: list[FoundMoment]) -> None:
    with pytest.raises(BadSetting, match="1,000"):
        edit_list(found * 500)
    with pytest.raises(BadSetting, match="120"):
        edit_list(found, Fraction(120))  # the last frame of a second would have three digits


def test_line_breaks_are_removed_from_an_edit_list(found: list[FoundMoment], tmp_path: Path) -> None:
    path = zoo.film(tmp_path / "line\nbreak.mp4")
    text = edit_list([replace(found[0], path=path, query="two\nlines")])
    assert "* FROM CLIP NAME: line break.mp4\n" in text
    assert "* COMMENT: two lines (score" in text
    assert "       V     C  " in text  # it has no sound


# ---------------------------------------------------------------- clips


@pytest.mark.parametrize("exact", [True, False])
def test_clips_read_back(found: list[FoundMoment], tmp_path: Path, exact: bool) -> None:
    written = export(found, tmp_path, "clips", exact=exact)
    assert [path.name for path in written.files] == ["001 beach day 1.5-3.0.mp4", "002 beach day 0.0-1.3.mp4"]
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in written.files}
    for path, moment in zip(written.files, found, strict=True):
        seconds = decode.duration(path)
        assert seconds == pytest.approx(moment.end - moment.start, abs=1e-2) if exact else seconds >= 1.2
    (_, image), *_ = decode.frames_at(written.files[0], [0])
    if exact:
        assert zoo.number_of(image) == pytest.approx(18, abs=0.7)
    with pytest.raises(Unwritable, match=r"001 beach day 1\.5-3\.0\.mp4"):
        export(found[:1], tmp_path, "clips", exact=exact)


def test_a_missing_video_is_reported_and_the_others_are_cut(found: list[FoundMoment], tmp_path: Path) -> None:
    gone = replace(found[0], path=tmp_path / "gone.mp4")
    written = export([gone, found[1]], tmp_path / "clips")
    assert [path.name for path in written.files] == ["002 beach day 0.0-1.3.mp4"]
    ((moment, reason),) = written.failed
    assert moment == gone
    assert str(gone.path) in reason


@given(st.binary(min_size=1, max_size=250).filter(lambda name: b"/" not in name and b"\0" not in name))
def test_names_of_clips_are_safe(name: bytes) -> None:
    moment = FoundMoment(path=Path(os.fsdecode(name)), start=0, end=1, score=1, query="q")
    made = clip_name(1, moment)
    assert made.startswith("001 ")
    assert len(made.encode()) < 200
    assert Path(made).name == made
    assert all(letter.isprintable() or letter.isspace() or ord(letter) > 0x9F for letter in made)
    assert not re.search(r'[\x00-\x1f/\\:*?"<>|\'`$]', made)


def test_same_names_from_different_folders_do_not_collide(found: list[FoundMoment], tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    twin = tmp_path / "a" / found[0].path.name
    twin.write_bytes(found[0].path.read_bytes())
    written = export([found[0], replace(found[0], path=twin)], tmp_path / "clips")
    assert len(set(written.files)) == 2


@pytest.mark.parametrize("name", ODD_NAMES)
def test_videos_with_odd_names_are_cut(film: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(film.read_bytes())
    moment = FoundMoment(path=path, start=1, end=2, score=1, query="q")
    for exact in (True, False):
        written = export([moment], tmp_path / f"clips {exact}", exact=exact)
        assert not written.failed
        assert decode.duration(written.files[0]) >= 1


# ---------------------------------------------------------------- contact sheets


def test_a_contact_sheet_shows_the_moments(found: list[FoundMoment], tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    gone = replace(found[0], path=tmp_path / "gone.mp4", query="日本 \n")
    written = export([found[0], gone, found[1]], path, "sheet")
    assert [moment for moment, _ in written.failed] == [gone]
    with Image.open(path) as sheet:
        assert sheet.format == "PNG"
        pixels = sheet.convert("L")
        rows = [exports.ROW * row + exports.MARGIN + exports.LINE + exports.STILL_HEIGHT // 2 for row in range(2)]
        shades = [pixels.getpixel((exports.MARGIN + exports.STILL_WIDTH // 3, row)) for row in rows]
        assert shades == pytest.approx([zoo.STEP * 18, 0], abs=3)
        assert sheet.height == 2 * exports.ROW + exports.MARGIN


def test_a_contact_sheet_without_a_readable_video(found: list[FoundMoment], tmp_path: Path) -> None:
    gone = replace(found[0], path=tmp_path / "gone.mp4")
    with pytest.raises(BadSetting, match=r"gone\.mp4"):
        export([gone], tmp_path / "sheet.png", "sheet")
