"""Queries with operators, in a library whose backbone sees four colours."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from midreel.cli.results import num_moments, table
from midreel.errors import BadQuery, BadSetting
from midreel.library import combined
from midreel.library.query import Part, parse, with_image
from midreel.library.searcher import Searcher
from tests.conftest import Command
from tests.library.small import COLOURS, Eye, film, index

FILMS = {
    "red-blue": ("grey", "red", "grey", "blue", "grey"),
    "blue-red": ("grey", "blue", "grey", "red", "grey"),
    "red": ("grey", "red", "grey", "grey"),
    "blue": ("grey", "blue", "grey", "grey"),
    "green": ("grey", "green", "grey", "green"),
    "grey": ("grey", "grey", "grey"),
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    for name, colours in FILMS.items():
        film(folder / f"{name}.mp4", *colours)
    return folder


@pytest.fixture(scope="module")
def library(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "library"
    index(folder, videos)
    return folder


@pytest.fixture
def searcher(library: Path) -> Searcher:
    return Searcher.open(library, backbone=Eye())


def names(searcher: Searcher, query: str, **options: object) -> list[str]:
    return [hit.path.stem for hit in searcher.search(query, **options)]  # type: ignore[arg-type]


def test_plain_sentences_are_not_touched(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same hits to the bit, also next to queries with operators, and nothing is combined."""
    plain = ["red and then blue without green, not grey or red", "red"]
    before = searcher._find(searcher.encode(plain), 10, False, (), searcher.calibration)
    assert searcher.search_all([*plain, "red AND blue"])[:2] == before
    monkeypatch.setattr(combined, "find", None)
    assert searcher.search_all(plain) == before
    assert not any(hasattr(moment, "part") for hit in before[0] for moment in hit.moments)


def test_and_finds_videos_with_both(searcher: Searcher) -> None:
    assert set(names(searcher, "red AND blue", top=2)) == {"red-blue", "blue-red"}
    ours, theirs = searcher.search("red AND blue"), searcher.search("blue AND red")
    assert [(hit.video_id, hit.score) for hit in ours] == [(hit.video_id, hit.score) for hit in theirs]
    assert [moment.part for moment in ours[0].moments[:2]] == ["red", "blue"]


def test_then_finds_the_order(searcher: Searcher) -> None:
    (hit,) = searcher.search("red THEN blue", top=1)
    assert hit.path.stem == "red-blue"
    whole, red, blue = hit.moments
    assert [each.part for each in hit.moments] == ["red THEN blue", "red", "blue"]
    assert (whole.start, whole.end) == (red.start, blue.end)
    assert red.start < red.end <= blue.start < blue.end
    assert red.start == pytest.approx(2, abs=0.8)
    assert blue.end == pytest.approx(8, abs=0.8)
    assert names(searcher, "blue THEN red", top=1) == ["blue-red"]


def test_not_rejects_moments(searcher: Searcher) -> None:
    """A video may show what is unwanted, but not in the moment that is wanted."""
    assert names(searcher, "red OR green", top=4)[:4] != names(searcher, "red OR green NOT green", top=4)
    assert "green" not in names(searcher, "red OR green NOT green", top=3)
    assert set(names(searcher, "red NOT blue", top=3)) == {"red", "red-blue", "blue-red"}


def test_or_takes_the_better_one(searcher: Searcher) -> None:
    assert set(names(searcher, "green OR red", top=4)) == {"green", "red", "red-blue", "blue-red"}
    alone, twice = searcher.search("red OR red"), searcher.search("red")
    assert [hit.video_id for hit in alone] == [hit.video_id for hit in twice]


def test_one_part_has_the_ranking_and_the_moments_of_a_plain_search(searcher: Searcher) -> None:
    for plain, ours in zip(searcher.search("green"), searcher.search("green OR green"), strict=True):
        assert plain.video_id == ours.video_id
        assert [(m.start, m.end) for m in plain.moments] == [(m.start, m.end) for m in ours.moments]


def test_candidates_give_what_all_videos_give(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = ("red AND blue", "red THEN blue", "red OR green", "red OR green NOT green")
    expected = [searcher.search(query, top=2, exact=True) for query in queries]
    monkeypatch.setattr(combined, "CANDIDATES", 3)
    monkeypatch.setattr(combined, "_PER_HIT", 1)
    assert [searcher.search(query, top=2) for query in queries] == expected


def test_a_filter_does_not_change_the_score(searcher: Searcher) -> None:
    whole = {hit.path.stem: hit.score for hit in searcher.search("red AND blue")}
    some = searcher.search("red AND blue", where=["longer=9"])
    assert {hit.path.stem for hit in some} == {"red-blue", "blue-red"}
    assert all(hit.score == whole[hit.path.stem] for hit in some)
    assert searcher.search("red AND blue", where=["before=2020"]) == []


def test_an_empty_library(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    index(tmp_path / "library", tmp_path / "none")
    with Searcher.open(tmp_path / "library", backbone=Eye()) as searcher:
        assert searcher.search("red AND blue") == []


def test_an_image_with_words(searcher: Searcher, videos: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((16, 16, 3), COLOURS["red"], np.uint8)).save(tmp_path / "red.png")
    image = Part("blue", tmp_path / "red.png")
    scores = {hit.path.stem: hit.score for hit in searcher.search(image)}
    assert min(scores["red"], scores["blue"]) > max(scores["green"], scores["grey"])
    green = searcher.search(with_image(parse("green AND green NOT blue"), tmp_path / "red.png"), top=4)
    assert {hit.path.stem for hit in green} == {"green", "red", "red-blue", "blue-red"}
    own = searcher.search(with_image(parse("red THEN red"), videos / "red-blue.mp4", 3.0))
    assert "red-blue" not in {hit.path.stem for hit in own}
    assert len(own) == len(FILMS) - 1


def test_bad_queries(searcher: Searcher) -> None:
    for query in ("red AND", "THEN red", " "):
        with pytest.raises(BadQuery):
            searcher.search_all(["red", query])
    with pytest.raises(BadSetting, match="top is 0"):
        searcher.search("red AND blue", top=0)
    with pytest.raises(BadSetting, match="UTF-8"):
        searcher.search("red \udcff AND blue")


def test_a_table_shows_a_moment_of_each_part(searcher: Searcher) -> None:
    query = parse("red AND blue")
    line = table(str(query), searcher.search(query, top=1), moments=num_moments(query)).splitlines()[1]
    assert line.count("–") == 2  # noqa: RUF001
    assert num_moments(parse("red THEN blue")) == 1


def test_the_command_line(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("search", tmp_path, "red", "AND")
    assert (ended.code, "AND" in ended.err) == (1, True)
    ended = midreel("search", tmp_path, "red", "--queries", tmp_path / "file")
    assert (ended.code, "--queries" in ended.err) == (1, True)
