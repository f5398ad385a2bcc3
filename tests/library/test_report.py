"""What is told of an indexing, then and later."""

import json
import shutil
from pathlib import Path

from midreel.cli import doctor
from midreel.features.stores import origins
from midreel.library.summary import summarise
from tests import zoo
from tests.library.small import counts, film, index, opened


def test_a_download_that_was_cut_off_is_indexed_and_told(videos: Path, library: Path) -> None:
    path = zoo.cut_short(videos / "cut.mp4")
    report = index(library, videos)
    told = "1 packet could not be decoded, it ends at 1.9 s of 5.0 s"
    assert report.text.startswith(f"damaged {path}: {told}\n4 new")
    # And again whenever somebody asks, wherever it has been moved or copied to.
    moved = path.rename(videos / "moved.mp4")
    assert counts(index(library, videos)) == {"unchanged": 3, "moved": 1}
    copy = shutil.copy2(moved, videos / "copy.mp4")
    assert counts(index(library, videos)) == {"unchanged": 4, "copies": 1}
    assert summarise(library).damaged == {copy: told, moved: told}
    assert f"damaged {moved}: {told}" in summarise(library).text
    assert json.loads(json.dumps(summarise(library).to_dict()))["damaged"] == {str(copy): told, str(moved): told}
    finding = doctor.catalogue(library)
    assert (finding.state, f"midreel info {library}" in finding.remedy) == ("warning", True)
    assert finding.text.endswith("; partly readable files: 2")


def test_what_could_not_be_read_is_still_known_when_a_video_is_repaired(videos: Path, library: Path) -> None:
    path = zoo.cut_short(videos / "cut.mp4")
    index(library, videos)
    told = summarise(library).damaged
    assert list(told) == [path]
    with opened(library) as writer:
        writer.index.remove(origins.content_id(path))
    assert counts(index(library, videos)) == {"unchanged": 4, "repaired": 1}
    assert summarise(library).damaged == told
    film(path, "red")
    index(library, videos)
    assert summarise(library).damaged == {}


def test_that_not_all_could_be_read_is_known_as_long_as_the_features_are(videos: Path, library: Path) -> None:
    (videos / "cut").mkdir()
    path = zoo.cut_short(videos / "cut" / "cut.mp4")
    index(library, videos)
    away = path.parent.rename(videos.parent / "away")
    index(library, videos)
    assert summarise(library).damaged == {}
    away.rename(path.parent)
    for _ in range(2):
        report = index(library, videos)
        assert report.damaged == summarise(library).damaged == {path: "not all of it could be read"}
        (library / "catalogue.sqlite").unlink()
