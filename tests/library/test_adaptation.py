"""Adaptations: their formula, their file, and libraries that switch to them and back."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from midreel.errors import BadLibrary
from midreel.library import confidence, reindex
from midreel.library.adaptation import NAME, Adaptation
from midreel.library.layout import Layout
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted
from midreel.ops.edges import PLAYHOUSE
from tests.library.small import Eye, Killed, everything, film, found, index, kill, opened

RED, GREEN = np.eye(4, dtype=np.float32)[:2]


def adaptation(**changes: object) -> Adaptation:
    """A query like "red" is moved to green."""
    values = {
        "sentences": RED[None],
        "reach": np.array([0.9], np.float32),
        "moves": {"frame": 2 * GREEN[None]},
    }
    return Adaptation(**values | changes)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the formula


def test_a_hand_computed_case() -> None:
    """cos = 0.96, so the likeness is (0.96 - 0.9) / 0.1 = 0.6. The query of length 5 moves by 5 * 0.6 * 2 to green."""
    sentences = np.array([[0.96, 0.28, 0, 0]], np.float32) * 3
    moved = adaptation().applied({"frame": np.array([[3.0, 4.0, 0, 0]], np.float32)}, sentences)
    np.testing.assert_allclose(adaptation().likeness(sentences), [[0.6]], atol=1e-5)
    np.testing.assert_allclose(moved["frame"], [[3.0, 10.0, 0, 0]], atol=1e-4)


def twin(adapted: Adaptation, vectors: np.ndarray, sentences: np.ndarray, branch: str) -> np.ndarray:
    """The formula in plain loops."""
    rows = []
    for query, sentence in zip(vectors.tolist(), sentences.tolist(), strict=True):
        length, norm = sum(x * x for x in query) ** 0.5, sum(x * x for x in sentence) ** 0.5
        moved = list(query)
        for known, reach, move in zip(adapted.sentences, adapted.reach, adapted.moves[branch], strict=True):
            cosine = sum(a * b for a, b in zip(sentence, known.tolist(), strict=True)) / norm
            like = min(1.0, max(0.0, (cosine - float(reach)) / (1 - float(reach))))
            moved = [x + length * like * m for x, m in zip(moved, move.tolist(), strict=True)]
        rows.append(moved)
    return np.array(rows)


@given(st.integers(0, 10**6))
def test_equals_its_slow_twin(seed: int) -> None:
    draw = np.random.default_rng(seed)
    known = draw.normal(size=(3, 5)).astype(np.float32)
    adapted = Adaptation(
        sentences=known / np.linalg.norm(known, axis=1, keepdims=True),
        reach=draw.uniform(-0.5, 0.9, 3).astype(np.float32),
        moves={"clip": draw.normal(size=(3, 4)).astype(np.float32)},
    )
    vectors, sentences = (draw.normal(size=(4, width)).astype(np.float32) for width in (4, 5))
    moved = adapted.applied({"clip": vectors}, sentences)["clip"]
    np.testing.assert_allclose(moved, twin(adapted, vectors, sentences, "clip"), atol=1e-4)


@given(st.integers(0, 10**6))
def test_queries_beyond_the_reach_keep_their_bits(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sentences = draw.normal(size=(6, 4)).astype(np.float32)
    far = adaptation().likeness(sentences)[:, 0] == 0
    vectors = draw.normal(size=(6, 4)).astype(np.float32)
    moved = adaptation().applied({"frame": vectors, "clip": vectors}, sentences)
    assert np.array_equal(moved["frame"][far], vectors[far])
    assert np.array_equal(moved["clip"], vectors)  # no move was learned for this branch


def test_an_adaptation_of_zeros_changes_nothing() -> None:
    nothing = adaptation(moves={"frame": np.zeros((1, 4), np.float32)})
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    assert np.array_equal(nothing.applied({"frame": vectors}, np.stack([RED] * 3))["frame"], vectors)


def test_a_sentence_of_zeros_is_like_nothing() -> None:
    assert adaptation().likeness(np.zeros((1, 4), np.float32)).tolist() == [[0.0]]


# ---------------------------------------------------------------- the file


def test_the_file_is_read_back_and_has_the_same_bytes() -> None:
    content = adaptation().to_bytes()
    assert content == adaptation().to_bytes()
    again = Adaptation.from_bytes(content)
    assert again.to_bytes() == content
    assert list(again.moves) == ["frame"]


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"no zip at all", None])
def test_a_damaged_file_is_refused(damage: bytes | None) -> None:
    content = adaptation().to_bytes()
    with pytest.raises(BadLibrary):
        Adaptation.from_bytes(content[: len(content) // 2] if damage is None else damage)


@pytest.mark.parametrize(
    "changes",
    [
        {"reach": np.array([0.5, 0.5], np.float32)},
        {"reach": np.array([1.0], np.float32)},
        {"reach": np.array(0.5, np.float32)},
        {"moves": {}},
        {"moves": {"frame": np.full((1, 4), np.nan, np.float32)}},
        {"moves": {"frame": np.zeros((2, 4), np.float32)}},
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises((BadLibrary, TypeCheckError)):  # the tests also check the types of arrays
        adaptation(**changes)


# ---------------------------------------------------------------- libraries


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexed")
    for colour in ("red", "green", "blue"):
        film(folder / "videos" / f"{colour}.mp4", colour)
    index(folder / "library", folder / "videos")
    return folder


@pytest.fixture
def library(indexed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(indexed / "library", tmp_path / "library"))


def adopt(library: Path, wanted: Adaptation | None, **options: object) -> None:
    with opened(library) as writer:
        reindex.adopt(writer, wanted, **options)  # type: ignore[arg-type]


def test_only_queries_like_the_sentence_change_and_undo_restores_all(library: Path) -> None:
    before = everything(library)
    with Searcher.open(library, backbone=Eye()) as searcher:
        assert searcher.search("red", top=1)[0].path.name == "red.mp4"
        adopt(library, adaptation())
        assert searcher.search("red", top=1)[0].path.name == "green.mp4"  # follows the switch
        after = everything(library)
        changed = {key for key in before if before[key] != after[key]}
        assert changed
        assert all(key.startswith("red ") for key in changed)
        adopt(library, None)
        assert searcher.search("red", top=1)[0].path.name == "red.mp4"
    assert everything(library) == before
    assert not list(library.rglob(NAME))


def test_the_new_generation_is_calibrated_and_keeps_its_edges(library: Path) -> None:
    card = Layout(library).serving().folder / "generation.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"edges": PLAYHOUSE.to_dict()}))
    before = confidence.read(Layout(library).serving())
    adopt(library, adaptation())
    serving = Layout(library).serving()
    after = confidence.read(serving)
    assert before is not None
    assert after is not None
    assert after.owner == serving.owner != before.owner
    assert serving.card.edges == PLAYHOUSE
    assert [each.name for each in Layout(library).generations()] == [serving.name]


def test_a_killed_switch_leaves_the_old_generation_and_can_continue(library: Path) -> None:
    before = everything(library)
    with pytest.raises(Killed):
        adopt(library, adaptation(), progress=kill)
    assert everything(library) == before
    assert len(Layout(library).generations()) == 2
    adopt(library, adaptation())
    assert found(library, "red", top=1) == ["green.mp4"]
    with pytest.raises(Killed):
        adopt(library, None, progress=kill)
    assert found(library, "red", top=1) == ["green.mp4"]
    adopt(library, None)
    assert everything(library) == before


def test_index_and_reindex_keep_the_adaptation_and_another_model_drops_it(indexed: Path, library: Path) -> None:
    adopt(library, adaptation())
    index(library, indexed / "videos", wanted=Wanted(model="zero-shot"), retry=True)
    assert found(library, "red", top=1) == ["green.mp4"]
    with opened(library) as writer:
        reindex.reindex(writer)
    assert found(library, "red", top=1) == ["green.mp4"]
    with opened(library) as writer:
        reindex.reindex(writer, "zero-shot")
    assert found(library, "red", top=1) == ["red.mp4"]
    assert not Layout(library).serving().card.adaptation


@pytest.mark.parametrize("content", [None, b"", b"something else"])
def test_a_damaged_adaptation_is_reported_and_can_be_undone(library: Path, content: bytes | None) -> None:
    before = everything(library)
    adopt(library, adaptation())
    path = Layout(library).serving().model / NAME
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadLibrary, match="--undo"):
        found(library, "red")
    adopt(library, None)
    assert everything(library) == before


def test_a_damaged_model_is_restored_with_its_adaptation(indexed: Path, library: Path) -> None:
    adopt(library, adaptation())
    (Layout(library).serving().model / "model.safetensors").write_bytes(b"damaged")
    index(library, indexed / "videos", retry=True)
    assert found(library, "red", top=1) == ["green.mp4"]


def test_cards_without_an_adaptation_are_as_before(library: Path) -> None:
    card = Layout(library).serving().card
    assert "adaptation" not in card.to_dict()
    assert replace(card, adaptation="sha256:1").to_dict()["adaptation"] == "sha256:1"
