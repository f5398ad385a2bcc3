"""From a folder of videos to what is found in it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from midreel.library.indexing import Step
from midreel.library.searcher import Searcher
from tests import ROOT
from tests.library.small import Eye, counts, film, found, index
from tests.library.test_scan import ODD_NAMES


def test_a_folder_is_indexed_and_found(videos: Path, library: Path) -> None:
    steps: list[Step] = []
    report = index(library, videos, progress=steps.append)
    assert counts(report) == {"new": 3}
    assert report.video_seconds == 14.0
    assert (len(steps), {step.total for step in steps}, sum(step.seconds for step in steps)) == (3, {3}, 14.0)
    assert set(report.seconds) == {"total", "backbone", "tokens", "index", "catalogue"}
    assert report.text.startswith("3 new, 0 removed, 0 unchanged, 0 quarantined; 0.00 hours of video in ")
    assert json.loads(json.dumps(report.to_dict()))["new"] == [str(path) for path in report.new]
    assert found(library, "red", top=1) == ["sunset.mp4"]
    assert found(library, "green", top=1) == ["meadow.mp4"]
    assert set(found(library, "blue", top=2)) == {"sunset.mp4", "sea.mkv"}


def test_names_of_any_bytes(tmp_path: Path, library: Path) -> None:
    for number, name in enumerate(ODD_NAMES):
        film(tmp_path / "odd" / os.fsdecode(name), *(["grey"] * number), "red")
    report = index(library, tmp_path / "odd")
    assert counts(report) == {"new": len(ODD_NAMES)}
    with Searcher.open(library, backbone=Eye()) as searcher:
        hits = searcher.search("red", top=20)
    assert {os.fsencode(hit.path.name) for hit in hits} == set(ODD_NAMES)
    assert json.loads(json.dumps([hit.to_dict() for hit in hits]))
    assert counts(index(library, tmp_path / "odd")) == {"unchanged": len(ODD_NAMES)}


def test_a_long_video_is_found_as_a_short_one_is(tmp_path: Path, library: Path) -> None:
    film(tmp_path / "videos/film.mp4", *(["grey", "blue"] * 80), "red", *(["blue", "grey"] * 20))
    film(tmp_path / "videos/clip.mp4", "grey", "red")
    index(library, tmp_path / "videos")
    with Searcher.open(library, backbone=Eye()) as searcher:
        film_hit, clip = sorted(searcher.search("red"), key=lambda hit: -hit.duration)
        assert film_hit.duration == 402.0
        assert film_hit.score == pytest.approx(clip.score, abs=0.01)
        assert 318 <= film_hit.moments[0].start < film_hit.moments[0].end <= 324
        best = max(zip(film_hit.curve.values, film_hit.curve.times, strict=True))[1]
        assert 320 <= best <= 322
        assert list(film_hit.curve.times) == sorted(film_hit.curve.times)
        assert len(film_hit.curve.times) == pytest.approx(2 * 402, abs=10)  # what a border cuts is in two
        assert searcher.index.tokens(film_hit.video_id)["frame"].vectors.shape[0] == len(
            searcher.generation.card.windows.windows(804)
        )


@pytest.mark.slow
def test_interrupted_at_random_points() -> None:
    """In a process of its own: it forks, and the threads of other tests would be missing in its children."""
    command = [sys.executable, "-m", "tools.crash_library", "--times", "6", "--seed", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("6 interrupted")
