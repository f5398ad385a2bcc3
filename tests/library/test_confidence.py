"""Hits have a confidence, and a library calibrates itself. Without a calibration, searches work as before."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadSetting, MissingFeatures, Unwritable
from midreel.library import confidence
from midreel.library.confidence import NAME, Calibration
from midreel.library.hits import is_confident
from midreel.library.reindex import reindex
from midreel.library.searcher import Searcher
from midreel.types import TextFeatures
from tests.library.small import Eye, film, index, opened


class Speaker(Eye):
    """An eye that also understands sentences without colours: as noise, the same for the same sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.num_texts = 0

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        self.num_texts += len(texts)
        noise = [np.random.default_rng(list(text.encode())).uniform(0, 0.5, 4).astype(np.float32) for text in texts]
        # Background sentences name colours, too, so only queries of one word are pure.
        return [
            known if len(text.split()) == 1 else TextFeatures(words=known.words, sentence=sentence)
            for text, known, sentence in zip(texts, super().encode_texts(texts), noise, strict=True)
        ]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    film(tmp_path / "films/a.mp4", "red", "grey")
    film(tmp_path / "films/b.mp4", "green")
    index(tmp_path / "library", tmp_path / "films", eye=Speaker())
    return tmp_path / "library"


def card(library: Path, generation: int = 1) -> Path:
    return library / "generations" / str(generation) / NAME


def confidences(library: Path, query: str) -> list[float | None]:
    with Searcher.open(library, backbone=Speaker()) as searcher:
        return [hit.confidence for hit in searcher.search(query)]


def known(library: Path, query: str) -> list[float]:
    found = [each for each in confidences(library, query) if each is not None]
    assert found
    return found


def test_a_match_is_more_confident_than_other_queries(library: Path) -> None:
    assert known(library, "red")[0] > 0.9
    assert known(library, "something else entirely")[0] < known(library, "red")[0]


def test_confidence_falls_with_the_rank_and_is_in_the_json(library: Path) -> None:
    with Searcher.open(library, backbone=Speaker()) as searcher:
        hits = searcher.search("red")
    assert all(0 <= (hit.confidence or 0) <= 1 for hit in hits)
    assert all((better.confidence or 0) >= (worse.confidence or 0) for better, worse in pairwise(hits))
    assert hits[0].to_dict()["confidence"] == hits[0].confidence


def test_an_image_has_no_confidence(library: Path, tmp_path: Path) -> None:
    with Searcher.open(library, backbone=Speaker()) as searcher:
        hits = searcher.search_like(tmp_path / "films/a.mp4", 1.0)
    assert [hit.confidence for hit in hits] == [None]
    assert is_confident(hits) is None


def test_a_threshold_decides_what_is_confident(library: Path) -> None:
    with Searcher.open(library, backbone=Speaker()) as searcher:
        hits = searcher.search("something else entirely")
    best = max(hit.confidence or 0 for hit in hits)
    assert is_confident(hits, threshold=best) is True
    assert is_confident(hits, threshold=min(1, best + 0.01)) is False
    assert is_confident([]) is None
    for threshold in (-0.1, 1.1, float("nan")):
        with pytest.raises(BadSetting):
            is_confident(hits, threshold)


# ---------------------------------------------------------------- when it is made


def test_a_library_is_calibrated_again_only_when_it_has_changed_enough(library: Path, tmp_path: Path) -> None:
    before = card(library).read_bytes()
    speaker = Speaker()
    index(library, eye=speaker)
    assert speaker.num_texts == 0, "nothing has changed"
    assert card(library).read_bytes() == before
    film(tmp_path / "films/c.mp4", "blue")
    index(library, eye=speaker)
    assert speaker.num_texts == len(confidence.background_sentences())
    assert json.loads(card(library).read_text())["num_videos"] == 3


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_a_calibration_fits_libraries_of_about_its_size(made: int, now: int) -> None:
    digest = confidence._digest(confidence.background_sentences())
    found = Calibration(location=0.5, scale=0.1, num_videos=made, sentences=digest, owner="")
    assert found.fits(now) is (0.75 * made <= now <= 1.25 * made)


def test_other_background_sentences_need_a_new_calibration() -> None:
    assert not Calibration(location=0.5, scale=0.1, num_videos=5, sentences="other", owner="").fits(5)


def test_a_reindex_calibrates_the_new_generation(library: Path) -> None:
    with opened(library, eye=Speaker()) as writer:
        reindex(writer, "zero-shot-clips")
    assert card(library, 2).exists()
    assert known(library, "red")[0] > 0.5


def test_a_searcher_follows_a_new_calibration(library: Path) -> None:
    values = json.loads(card(library).read_text())
    with Searcher.open(library, backbone=Speaker()) as searcher:
        first = searcher.search("red")[0]
        values["location"] += 10
        write(card(library), values)
        again = searcher.search("red")[0]
    assert (first.confidence or 0) > 0.5 > (again.confidence or 0)
    assert first.score == again.score


def test_a_library_of_one_video_has_a_confidence(tmp_path: Path) -> None:
    film(tmp_path / "films/a.mp4", "red")
    index(tmp_path / "library", tmp_path / "films", eye=Speaker())
    assert known(tmp_path / "library", "red")[0] > 0.5


def test_an_empty_library_is_not_calibrated(tmp_path: Path) -> None:
    (tmp_path / "films").mkdir()
    index(tmp_path / "library", tmp_path / "films", eye=Speaker())
    assert not card(tmp_path / "library").exists()


# ---------------------------------------------------------------- missing, damaged, foreign


def write(path: Path, values: dict[str, object]) -> None:
    values = {name: value for name, value in values.items() if name != "checksum"}
    path.write_text(json.dumps(values | {"checksum": confidence._checksum(values)}))


def test_an_older_library_works_and_is_calibrated_by_the_next_index(library: Path) -> None:
    card(library).unlink()
    assert confidences(library, "red") == [None, None]
    index(library, eye=Speaker())
    assert known(library, "red")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 9999, b'{"checksum": 1}', None])
def test_a_damaged_calibration_counts_as_missing(library: Path, content: bytes | None) -> None:
    if content is None:
        card(library).unlink()
        card(library).mkdir()
    else:
        card(library).write_bytes(content)
    assert confidences(library, "red") == [None, None]


def test_every_flipped_byte_is_detected(library: Path) -> None:
    whole = card(library).read_bytes()
    with Searcher.open(library, backbone=Speaker()) as searcher:
        expected = confidence.read(searcher.generation)
        for place in range(len(whole)):
            card(library).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            assert confidence.read(searcher.generation) in (None, expected), place


@pytest.mark.parametrize("changes", [{"scale": 0}, {"scale": "wide"}, {"location": None}, {"more": 1}])
def test_invalid_values_count_as_missing(library: Path, changes: dict[str, object]) -> None:
    write(card(library), json.loads(card(library).read_text()) | changes)
    assert confidences(library, "red") == [None, None]


def test_a_calibration_of_another_library_is_not_used(library: Path) -> None:
    write(card(library), json.loads(card(library).read_text()) | {"owner": "other/1"})
    assert confidences(library, "red") == [None, None]


@pytest.mark.parametrize("error", [Unwritable("the disk is full"), MissingFeatures("no backbone"), OSError(28, "full")])
def test_a_failed_calibration_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(confidence, "measure", fail)
    film(tmp_path / "films/a.mp4", "red")
    assert len(index(tmp_path / "library", tmp_path / "films", eye=Speaker()).new) == 1
    assert confidences(tmp_path / "library", "red") == [None]


def test_the_background_sentences_are_distinct_texts() -> None:
    sentences = confidence.SENTENCES.read_text(encoding="utf-8").splitlines()
    assert len(set(sentences)) == len(sentences) > 400
    assert all(sentence.strip() == sentence != "" for sentence in sentences)
