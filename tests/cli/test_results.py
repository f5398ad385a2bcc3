from dataclasses import replace
from pathlib import Path

import pytest

from midreel.cli.results import read_example, read_queries, sparkline, table
from midreel.errors import BadAnnotation, BadSetting
from midreel.library.hits import RelevanceCurve
from midreel.library.searcher import Searcher
from tests.library.small import Eye, film, index


def test_a_table(tmp_path: Path) -> None:
    videos, library = tmp_path / "videos", tmp_path / "library"
    film(videos / "sunset.mp4", "grey", "red", "blue")
    film(videos / "meadow.mp4", "grey", "green")
    index(library, videos)
    with Searcher.open(library, backbone=Eye()) as searcher:
        hits = searcher.search("red", top=2)
    title, first, second = table("red", hits, threshold=0).splitlines()
    assert title == "“red”"
    assert first.startswith("  1  ")
    assert "  0:01–0:04  " in first  # noqa: RUF001
    assert first.endswith(f"  {videos / 'sunset.mp4'}")
    assert "█" in first
    assert "█" not in second
    assert table("red", []) == "“red”\n  nothing found"


def test_a_table_without_a_confident_match_says_so_first(tmp_path: Path) -> None:
    film(tmp_path / "videos/sunset.mp4", "red")
    index(tmp_path / "library", tmp_path / "videos")
    with Searcher.open(tmp_path / "library", backbone=Eye()) as searcher:
        (hit,) = searcher.search("red")
    sure, unsure, unknown = (replace(hit, confidence=confidence) for confidence in (0.999, 0.499, None))
    assert [len(table("red", [each]).splitlines()) for each in (sure, unsure, unknown)] == [2, 3, 2]
    _, doubt, guess = table("red", [unsure]).splitlines()
    assert "no confident match" in doubt
    assert "  49%  " in guess  # rounded down: it is below the threshold
    assert "  99%  " in table("red", [sure])
    assert "%" not in table("red", [unknown])
    assert "no confident" not in table("red", [unsure], threshold=0.4)


def test_a_curve_of_blocks() -> None:
    assert sparkline(RelevanceCurve(times=(), values=()), 1.0, 0.0, 1.0, 3) == "▁▁▁"
    assert sparkline(RelevanceCurve(times=(0.0, 0.1, 1.0), values=(0.2, 1.0, 0.5)), 1.0, 0.0, 1.0, 2) == "█▅"
    assert sparkline(RelevanceCurve(times=(0.5,), values=(0.3,)), 1.0, 0.3, 0.3, 1) == "▁"


def test_queries_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "queries.txt"
    path.write_text("a red ball\n\n  a dog \n", encoding="utf-8-sig")
    assert read_queries(path) == ["a red ball", "a dog"]
    path.write_text("\n")
    with pytest.raises(BadAnnotation, match="is empty, expected a query on each line"):
        read_queries(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadAnnotation, match=r"cannot be read .* expected a query on each line, in UTF-8"):
        read_queries(path)


def test_which_moment_is_meant(tmp_path: Path) -> None:
    assert read_example("a b.mp4@0:07.5") == (Path("a b.mp4"), 7.5)
    assert read_example("photo.jpg") == (Path("photo.jpg"), None)
    (tmp_path / "me@9.jpg").touch()
    assert read_example(str(tmp_path / "me@9.jpg")) == (tmp_path / "me@9.jpg", None)
    with pytest.raises(BadSetting, match="'noon'"):
        read_example("film.mp4@noon")
