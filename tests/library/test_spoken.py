import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadLibrary, BadQuery
from midreel.library import spoken, subtitle_rows
from midreel.library.catalogue import Catalogue
from midreel.library.filters import span
from midreel.library.hits import Hit, RelevanceCurve
from midreel.library.query import And, Part, Said, parse, with_image
from midreel.library.records import Spoken
from midreel.library.searcher import Searcher
from midreel.library.spoken import Heard, fused, fused_score
from midreel.media.subtitles import Line
from tests.conftest import Command
from tests.library.small import Eye, Killed, film, found, index, kill, opened
from tests.media.test_subtitles import SRT, with_track

WORDS = "1\n00:00:01,000 --> 00:00:03,000\nThe treasure was buried here\n\n2\n00:00:04,000 --> 00:00:05,000\nDig now!\n"


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Three films. Two have subtitles."""
    folder = tmp_path / "videos"
    film(folder / "sunset.mp4", "grey", "red", "blue")
    film(folder / "trip/meadow.mp4", "grey", "green")
    film(folder / "trip/sea.mkv", "blue", "grey")
    (folder / "sunset.srt").write_text(WORDS)
    (folder / "trip/sea.en.vtt").write_text(
        "WEBVTT\n\n00:00.500 --> 00:01.500\nThey walked to the treasures of the sea\n"
    )
    return folder


def hits_of(library: Path, query: str, *, weight: float | None = None) -> list[Hit]:
    with Searcher.open(library, backbone=Eye()) as searcher:
        searcher.subtitles = searcher.subtitles if weight is None else weight
        return searcher.search(query)


# ---------------------------------------------------------------- the query


def test_said_is_an_operator() -> None:
    assert parse('said:"dig now"') == Said(("dig now",))
    assert parse("a dog said:sit") == Said(("sit",), Part("a dog"))
    assert parse('a dog AND said:"sit"') == parse('said:"sit" AND a dog') == Said(("sit",), Part("a dog"))
    assert parse('a dog AND a cat said:"a" said:"b"') == Said(("a", "b"), And((Part("a dog"), Part("a cat"))))
    assert parse("unsaid:word") == Part("unsaid:word")
    assert str(parse('a dog said:"sit down"')) == 'a dog said:"sit down"'


@pytest.mark.parametrize("text", ['said:""', "said:", 'said:"open', 'a dog NOT said:"no"', 'a dog THEN said:"no"'])
def test_misplaced_said(text: str) -> None:
    with pytest.raises(BadQuery):
        parse(text)


def test_an_image_goes_to_what_is_seen() -> None:
    image = Path("dog.jpg")
    assert with_image(parse('said:"sit"'), image) == Said(("sit",), Part("", image))


# ---------------------------------------------------------------- index and search


def test_words_are_found_with_their_time(videos: Path, library: Path) -> None:
    index(library, videos)
    (hit,) = hits_of(library, 'said:"treasure was buried"')
    assert hit.path.name == "sunset.mp4"
    assert hit.said == (Line(1.0, 3.0, "The treasure was buried here"),)
    assert (hit.moments[0].start, hit.moments[0].end) == (1.0, 3.0)
    assert hit.to_dict()["said"] == [{"start": 1.0, "end": 3.0, "text": "The treasure was buried here"}]
    assert [each.path.name for each in hits_of(library, "said:treasure")] == ["sunset.mp4", "sea.mkv"]  # by stem
    assert hits_of(library, 'said:"buried treasure"') == []


def test_said_with_what_is_seen(videos: Path, library: Path) -> None:
    index(library, videos)
    both = hits_of(library, "red said:treasure")
    assert [hit.path.name for hit in both] == ["sunset.mp4", "sea.mkv"]
    assert both[0].said
    assert both[0].moments[0].start == 1.0
    assert {hit.path.name for hit in hits_of(library, "blue NOT red said:treasure")} == {"sunset.mp4", "sea.mkv"}
    assert hits_of(library, "red said:nowhere") == []


def test_a_plain_sentence_is_heard_too(videos: Path, library: Path) -> None:
    index(library, videos)
    (hit,) = [hit for hit in hits_of(library, "the buried treasure") if hit.said]
    assert (hit.path.name, hit.said[0].start) == ("sunset.mp4", 1.0)
    assert hits_of(library, "the buried treasure", weight=1)[0].path.name == "sunset.mp4"
    assert not any(hit.said for hit in hits_of(library, "the buried treasure", weight=0))
    assert not any(hit.said for hit in hits_of(library, "green"))


def test_a_library_without_subtitles_has_no_tables(tmp_path: Path, library: Path) -> None:
    film(tmp_path / "films/a.mp4", "red")
    index(library, tmp_path / "films")
    catalogue = Catalogue(library)
    assert not catalogue.has_spoken()
    catalogue.close()
    assert hits_of(library, 'said:"red"') == []


def test_filters_hold_for_what_is_said(videos: Path, library: Path) -> None:
    index(library, videos)
    assert found(library, "said:treasure", where=[f"folder={videos / 'trip'}"]) == ["sea.mkv"]
    assert "sunset.mp4" not in found(library, "buried treasure", where=[f"folder={videos / 'trip'}"])


def test_tracks_in_the_file_are_indexed(tmp_path: Path, library: Path) -> None:
    (tmp_path / "films").mkdir()
    with_track(tmp_path / "films/film.mkv", SRT.replace("01:00:", "00:00:"))
    index(library, tmp_path / "films")
    (hit,) = hits_of(library, 'said:"good bye"')
    assert (hit.said[0].start, hit.said[0].end) == (3.0, 4.25)


def test_new_changed_and_removed_subtitles(videos: Path, library: Path) -> None:
    index(library, videos)
    (videos / "trip/meadow.srt").write_text(WORDS.replace("treasure", "picnic"))
    index(library, videos)
    assert found(library, 'said:"picnic"') == ["meadow.mp4"]
    (videos / "trip/meadow.srt").write_text(WORDS.replace("treasure", "swimming pool"))
    os.utime(videos / "trip/meadow.srt", ns=(1, 1))
    index(library, videos)
    assert found(library, 'said:"picnic"') == []
    assert found(library, 'said:"swimming pool"') == ["meadow.mp4"]
    (videos / "trip/meadow.srt").unlink()
    index(library, videos)
    assert found(library, 'said:"swimming pool"') == []


def test_a_removed_video_is_not_heard(videos: Path, library: Path) -> None:
    index(library, videos)
    (videos / "sunset.mp4").unlink()
    index(library, videos)
    assert found(library, "said:treasure") == ["sea.mkv"]
    with sqlite3.connect(library / "catalogue.sqlite") as database:
        texts = [text for (text,) in database.execute("SELECT text FROM lines")]
        assert texts == ["They walked to the treasures of the sea"]
        database.execute("INSERT INTO spoken (spoken) VALUES ('integrity-check')")
    database.close()


def test_an_error_between_row_and_lines_leaves_neither(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(subtitle_rows, "_DROP", ("DELETE FROM nothing WHERE video_id = ?",))  # after tables and row
        with pytest.raises(BadLibrary):
            index(library, videos / "sunset.mp4")
    catalogue = Catalogue(library)
    assert len(catalogue) == 0
    assert not catalogue.has_spoken()
    catalogue.close()
    index(library, videos)
    assert found(library, 'said:"dig now"') == ["sunset.mp4"]


def test_retry_reads_all_subtitles_again(videos: Path, library: Path) -> None:
    index(library, videos)
    with opened(library) as writer:
        (video_id,) = [video_id for video_id, stamp in writer.catalogue.stamps().items() if "sunset" in stamp]
        stamp = writer.catalogue.stamps()[video_id]
        writer.catalogue.put_spoken(video_id, Spoken(lines=(), stamp=stamp))
    index(library, videos)
    assert found(library, 'said:"dig now"') == []
    index(library, videos, retry=True)
    assert found(library, 'said:"dig now"') == ["sunset.mp4"]


def test_a_killed_run_is_completed(videos: Path, library: Path) -> None:
    with pytest.raises(Killed):
        index(library, videos, progress=kill)
    index(library, videos)
    assert sorted(found(library, "said:treasure")) == ["sea.mkv", "sunset.mp4"]


def test_the_command_line_shows_the_words(midreel: Command, videos: Path, library: Path) -> None:
    assert midreel("index", videos, "--library", library).code == 0
    shown = midreel("search", library, 'said:"buried here"').out.splitlines()[-1]
    assert shown.split()[0] == span(1, 3)
    assert "The treasure was buried here" in shown
    answer = json.loads(midreel("search", library, 'said:"buried here"', "--json").out)
    assert answer["results"][0]["hits"][0]["said"][0]["start"] == 1.0
    assert midreel("search", library, "red", "--subtitles", "0.2").code == 0
    assert midreel("search", library, "red", "--subtitles", "7").code == 2


# ---------------------------------------------------------------- fusion


def hit(video_id: str) -> Hit:
    curve = RelevanceCurve(times=(1.0,), values=(0.5,))
    path = Path(f"{video_id}.mp4")
    return Hit(
        video_id=video_id,
        score=0.5,
        branch_scores={},
        path=path,
        paths=(path,),
        duration=9.0,
        moments=(),
        curve=curve,
    )


def heard(*video_ids: str) -> list[Heard]:
    return [Heard(video_id=each, lines=(Line(0.0, 1.0, each),)) for each in video_ids]


def test_fusion_by_hand() -> None:
    assert fused_score(2, 1, 0.25) == pytest.approx(0.75 / 2 + 0.25 / 1)
    # a: 0.5; b: 0.5/2 + 0.5/2 = 0.5; c: only heard, third in the picture: 0.5/3 + 0.5/1
    found = fused([hit("a"), hit("b")], heard("c", "b"), lambda ids: [hit(each) for each in ids], top=3, weight=0.5)
    assert [each.video_id for each in found] == ["c", "a", "b"]
    assert [len(each.said) for each in found] == [1, 0, 1]


@given(st.permutations("abcd"), st.permutations("abcd"))
def test_below_a_third_the_first_in_the_picture_stays_first(seen: Sequence[str], said: Sequence[str]) -> None:
    found = fused([hit(each) for each in seen], heard(*said), lambda _: [], top=9, weight=0.33)
    assert found[0].video_id == seen[0]


def test_no_weight_is_the_picture_alone() -> None:
    seen = [hit("a"), hit("b")]
    assert fused(seen, heard("b"), lambda _: [], top=2, weight=0.0) == seen
    assert fused(seen, [], lambda _: [], top=1, weight=0.5) == seen[:1]


@given(st.permutations("abcdef"), st.lists(st.sampled_from("abcdefgh"), unique=True), st.floats(0.01, 1))
def test_fusion_equals_plain_loops(seen: Sequence[str], said: list[str], weight: float) -> None:
    found = fused(
        [hit(each) for each in seen], heard(*said), lambda ids: [hit(each) for each in ids], top=99, weight=weight
    )
    order = [*seen, *(each for each in said if each not in seen)]
    scores = {}
    for video_id in order:
        score = (1 - weight) / (order.index(video_id) + 1)
        if video_id in said:
            score += weight / (said.index(video_id) + 1)
        scores[video_id] = score
    values = [scores[each.video_id] for each in found]
    assert values == sorted(values, reverse=True)
    assert {each.video_id for each in found} == set(order)


def test_most_words_of_a_sentence_must_be_said(videos: Path, library: Path) -> None:
    index(library, videos)
    catalogue = Catalogue(library)
    assert spoken.search(catalogue, ["a big red treasure"], phrase=False) == []
    assert len(spoken.search(catalogue, ["treasure buried yesterday"], phrase=False)) == 1
    assert spoken.search(catalogue, ['" OR *'], phrase=False) == []
    catalogue.close()
