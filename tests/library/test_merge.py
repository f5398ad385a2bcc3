"""Libraries of shards merge into the library of one run."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from midreel.errors import BadSetting, FingerprintMismatch, MissingLibrary
from midreel.features.backbones.choice import VARIABLE
from midreel.features.shards import Shard
from midreel.library import diff, indexer
from midreel.library.catalogue import Catalogue
from midreel.library.merge import MergeReport, merge
from midreel.library.writer import Wanted
from tests.conftest import Command
from tests.library.small import Eye, Killed, counts, everything, film, found, index, kill, opened


@pytest.fixture
def many(tmp_path: Path) -> Path:
    folder = tmp_path / "many"
    colours = ("red", "green", "blue", "grey")
    for number in range(8):
        film(folder / f"{number}.mp4", *(["grey"] * number), colours[number % 4])
    shutil.copy(folder / "3.mp4", folder / "a copy of 3.mp4")
    (folder / "broken.mp4").write_text("this is no video\n" * 9)
    return folder


def index_shard(folder: Path, place: Path, number: int, count: int, **options: object) -> Path:
    part = Shard(number=number, count=count)
    library = folder / f"part {number}"
    with opened(library) as writer:
        part.record(library, finished=False)
        indexer.index(writer, [place], settle=diff.only_shard(part), **options)  # type: ignore[arg-type]
        part.record(library, finished=True)
    return library


def merged(parts: list[Path], out: Path) -> MergeReport:
    return merge(parts, out, backbone=Eye())


@pytest.mark.slow
def test_shards_merge_into_the_library_of_one_run(many: Path, library: Path, tmp_path: Path) -> None:
    index(library, many, tags=["trip"])
    parts = [index_shard(tmp_path, many, number, 3, tags=["trip"]) for number in (1, 2, 3)]
    many.rename(tmp_path / "not mounted here")  # the merge needs no video files
    out = tmp_path / "out"
    report = merged(parts, out)
    assert (report.added, report.known, report.is_partial) == (8, 0, False)
    assert everything(out) == everything(library)
    with closing(Catalogue(out)) as found, closing(Catalogue(library)) as expected:
        assert found.files() == expected.files()
        assert found.tags() == expected.tags() == {"trip": 8}
        assert found.places() == expected.places()
        assert found.quarantine().keys() == {many / "broken.mp4"}
        assert list(found.videos()) == list(expected.videos())
    again = merged(parts, out)
    assert (again.added, again.known) == (0, 8)
    (tmp_path / "not mounted here").rename(many)
    assert counts(index(out)) == {"unchanged": 9, "quarantined": 1}


@pytest.mark.slow
def test_killed_and_absent_parts_are_named(many: Path, tmp_path: Path) -> None:
    first = index_shard(tmp_path, many, 1, 3)
    with pytest.raises(Killed):
        index_shard(tmp_path, many, 2, 3, progress=kill)
    out = tmp_path / "out"
    report = merged([first, tmp_path / "part 2"], out)
    assert report.is_partial
    assert report.unfinished.keys() == {str(tmp_path / "part 2"), "3/3"}
    assert "part 2" in report.text
    parts = [first, *(index_shard(tmp_path, many, number, 3) for number in (2, 3))]
    report = merged(parts, out)
    assert not report.is_partial
    with closing(Catalogue(out)) as catalogue:
        assert len(catalogue) == 8


def test_parts_that_do_not_fit(many: Path, tmp_path: Path) -> None:
    part = index_shard(tmp_path, many, 1, 2)
    with pytest.raises(MissingLibrary):
        merged([tmp_path / "absent"], tmp_path / "out")
    with pytest.raises(BadSetting, match="also a part"):
        merged([part], part)
    other = tmp_path / "part 2"
    index(other, many, wanted=Wanted(rate=1.0))
    with pytest.raises(FingerprintMismatch):
        merged([part, other], tmp_path / "out")
    clips = tmp_path / "part 3"
    index(clips, many, wanted=Wanted(model="zero-shot-clips"))
    with pytest.raises(BadSetting, match="zero-shot-clips"):
        merged([part, clips], tmp_path / "out 2")


def test_subtitles_are_copied(tmp_path: Path) -> None:
    film(tmp_path / "films/a.mp4", "red", "blue")
    film(tmp_path / "more/b.mp4", "green")
    (tmp_path / "films/a.srt").write_text("1\n00:00:00,500 --> 00:00:01,000\nDig now!\n")
    parts = [tmp_path / "part 1", tmp_path / "part 2"]
    index(parts[0], tmp_path / "films")
    index(parts[1], tmp_path / "more")
    (tmp_path / "films").rename(tmp_path / "not mounted here")  # the merge reads no subtitle files
    out = tmp_path / "out"
    merged(parts, out)
    assert found(out, 'said:"dig now"') == ["a.mp4"]
    with closing(Catalogue(out)) as copied, closing(Catalogue(parts[0])) as original:
        assert copied.stamps() == original.stamps() != {}
    merged(parts, out)
    with closing(Catalogue(out)) as copied:
        (video_id,) = copied.stamps()
        spoken = copied.spoken_in(video_id)
        assert spoken is not None
        assert [line.text for line in spoken.lines] == ["Dig now!"]


def test_a_shard_needs_a_backbone(tmp_path: Path, midreel: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    film(tmp_path / "films/a.mp4", "red")
    monkeypatch.delenv(VARIABLE)
    ended = midreel("index", tmp_path / "films", "--library", tmp_path / "part", "--shard", "1/2")
    assert ended.code == 1
    assert "--backbone" in ended.err
    assert not (tmp_path / "part").exists()
