"""Reports of damaged videos: by the run that reads them, and by later commands."""

import json
import shutil
from pathlib import Path

from midreel.cli import doctor
from midreel.features.stores import origins
from midreel.library.summary import summarise
from tests import zoo
from tests.library.small import counts, film, index, opened


def test_an_incomplete_download_is_indexed_and_reported(videos: Path, library: Path) -> None:
    path = zoo.cut_short(videos / "cut.mp4")
    report = index(library, videos)
    (damage,) = report.damaged.values()
    assert "1.9 s of 5.0 s" in damage
    assert report.text.startswith(f"partly readable {path}: {damage}\n4 new")
    # Later commands report it too, for each file that the video is moved or copied to.
    moved = path.rename(videos / "moved.mp4")
    assert counts(index(library, videos)) == {"unchanged": 3, "moved": 1}
    copy = shutil.copy2(moved, videos / "copy.mp4")
    assert counts(index(library, videos)) == {"unchanged": 4, "copies": 1}
    assert summarise(library).damaged == {copy: damage, moved: damage}
    assert f"partly readable {moved}: {damage}" in summarise(library).text
    assert json.loads(json.dumps(summarise(library).to_dict()))["damaged"] == {str(copy): damage, str(moved): damage}
    finding = doctor.catalogue(library)
    assert (finding.state, f"midreel info {library}" in finding.remedy) == ("warning", True)
    assert finding.text.endswith("; partly readable files: 2")


def test_a_repaired_video_keeps_its_damage(videos: Path, library: Path) -> None:
    path = zoo.cut_short(videos / "cut.mp4")
    index(library, videos)
    damaged = summarise(library).damaged
    assert list(damaged) == [path]
    with opened(library) as writer:
        writer.index.remove(origins.content_id(path))
    assert counts(index(library, videos)) == {"unchanged": 4, "repaired": 1}
    assert summarise(library).damaged == damaged
    film(path, "red")
    index(library, videos)
    assert summarise(library).damaged == {}


def test_the_feature_store_remembers_that_a_video_is_damaged(videos: Path, library: Path) -> None:
    (videos / "cut").mkdir()
    path = zoo.cut_short(videos / "cut" / "cut.mp4")
    index(library, videos)
    away = path.parent.rename(videos.parent / "away")
    index(library, videos)
    assert summarise(library).damaged == {}
    away.rename(path.parent)
    for _ in range(2):
        report = index(library, videos)
        assert list(report.damaged) == [path]
        assert report.damaged == summarise(library).damaged
        (library / "catalogue.sqlite").unlink()
