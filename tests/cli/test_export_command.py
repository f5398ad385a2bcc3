"""Tests of midreel export."""

import csv
import json
import re
from pathlib import Path

import pytest

from midreel.datasets import playhouse
from midreel.library.searcher import Searcher
from midreel.media import decode
from tests.conftest import Command


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generated videos, indexed with the backbone that comes with midreel."""
    folder = tmp_path_factory.mktemp("export")
    playhouse.write_dataset(folder / "videos", seed=0, num_test=2)
    with Searcher.create(folder / "library") as searcher:
        searcher.add(folder / "videos")
    return folder / "library"


def test_clips(midreel: Command, library: Path, tmp_path: Path) -> None:
    ended = midreel("export", library, "a red ball", tmp_path / "clips", "--re-encode", "-n", "1")
    assert (ended.code, ended.err) == (0, "")
    (clip,) = (tmp_path / "clips").iterdir()
    assert ended.out.strip() == str(clip)
    with Searcher.open(library) as searcher:
        moment = searcher.search("a red ball")[0].moments[0]
    assert decode.duration(clip) == pytest.approx(moment.end - moment.start, abs=0.1)


def test_warning_that_copied_clips_start_early(midreel: Command, library: Path, tmp_path: Path) -> None:
    ended = midreel("export", library, "a red ball", tmp_path / "clips", "--moments", 3)
    early = re.search(r"up to ([\d.]+) s before .* --re-encode", ended.err)
    assert early is not None, ended.err
    assert ended.code == 0
    spare = []
    for clip in (tmp_path / "clips").iterdir():
        start, end = clip.stem.split()[-1].split("-")
        spare.append(decode.duration(clip) - (float(end) - float(start)))
    assert float(early[1]) == pytest.approx(max(spare), abs=0.3)
    as_json = midreel("export", library, "a red ball", tmp_path / "again", "--moments", 3, "--json")
    assert json.loads(as_json.out)["early"] == pytest.approx(float(early[1]), abs=0.051)


def test_table_with_several_moments_of_each_video(midreel: Command, library: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.csv"
    assert midreel("export", library, "a red ball", out, "--moments", "3").code == 0
    with Searcher.open(library) as searcher:
        expected = [
            (str(hit.path), f"{moment.start:.3f}", f"{moment.score:.6f}")
            for hit in searcher.search("a red ball")
            for moment in hit.moments[:3]
        ]
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(row["path"], row["start"], row["moment_score"]) for row in rows] == expected

    again = midreel("export", library, "a red ball", out)
    assert again.code == 1
    assert "overwrite" in again.err


def test_unknown_suffix_fails_before_the_search(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("export", tmp_path / "nowhere", "a red ball", tmp_path / "found.xls")
    assert ended.code == 1
    for word in ("found.xls", ".csv, .m3u, .m3u8, .edl, .otio, .fcpxml, .png"):
        assert word in ended.err
