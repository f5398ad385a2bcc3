"""A library whose model has a branch of every similarity."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from midreel.errors import BadLibrary
from midreel.features.stores.store import FeatureStore
from midreel.library.layout import CARD, FEATURES, Layout
from midreel.library.reindex import reindex
from midreel.library.searcher import Searcher
from midreel.methods import ClipZeroShot, load_method
from midreel.methods.base import join_texts
from midreel.types import with_norms
from tests.library.small import Eye, everything, index, opened
from tests.similar import BRANCHES, SIMILARITIES, give_similarities


@pytest.fixture
def similar(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    give_similarities(monkeypatch)
    index(library, videos)
    return library


def test_search_ranks_as_the_method_does(similar: Path) -> None:
    with Searcher.open(similar, backbone=Eye()) as searcher, FeatureStore.open(similar / FEATURES) as store:
        assert searcher.generation.card.similarities == searcher.index.similarities == SIMILARITIES
        method = load_method(searcher.generation.model)
        assert isinstance(method, ClipZeroShot)
        vectors = method.encode_queries(join_texts(Eye().encode_texts(["red", "green"])))
        for query, hits in enumerate(searcher.search_all(["red", "green"], exact=True)):
            assert len(hits) == 3
            for hit in hits:
                frames = torch.from_numpy(np.asarray(store.video(hit.video_id).frames, np.float32))[None]
                tokens = method.encode_videos(method.prepare_videos(frames))
                assert hit.score == pytest.approx(float(method.score(vectors, tokens)[query, 0]), abs=0.01)
                assert set(hit.branch_scores) == set(BRANCHES) - {"key"}
        assert searcher.search("red")[0].path.name == "sunset.mp4"


def test_moments_are_found_by_cosines(similar: Path) -> None:
    """The film shows grey, red and blue for two seconds each. Curves are cosines, whatever the lengths of tokens."""
    with Searcher.open(similar, backbone=Eye()) as searcher:
        (best,) = searcher.search("red", top=1)
        assert (best.moments[0].start, best.moments[0].end) == pytest.approx((2, 4), abs=0.3)
        assert max(best.curve.values) <= 1 + 1e-4
        like = searcher.search_like(best.path, 5.0)  # blue
        assert like[0].path.name == "sea.mkv"


def test_reindex_from_and_to_other_similarities(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(library, videos)
    before, card = everything(library), Layout(library).serving().folder / CARD
    assert "similarities" not in json.loads(card.read_text())  # earlier versions can read it
    with monkeypatch.context() as patch:
        give_similarities(patch)
        with opened(library) as writer:
            reindex(writer, "zero-shot")
        assert everything(library) != before
        with Searcher.open(library, backbone=Eye()) as searcher:
            tokens = searcher.index.tokens(searcher.search("red")[0].video_id)
            lengths = {branch: float(np.linalg.norm(part.vectors[0, 0])) for branch, part in tokens.items()}
            assert with_norms(SIMILARITIES) == set(BRANCHES)
            assert lengths["key"] == pytest.approx(2 * lengths["frame"], rel=1e-3)
    with opened(library) as writer:
        reindex(writer, "zero-shot")
    assert everything(library) == before


@pytest.mark.parametrize(
    "damage",
    [
        [],
        {"frame": 1},
        {"frame": "dot"},
        {"frame": {"kind": "dit"}},
        {"frame": {"kind": ["dot"]}},
        {"frame": {"kind": "attention"}},
        {"frame": {"kind": "attention", "guide": "clop", "keys": "key"}},
        {"frame": {"kind": "attention", "guide": 1, "keys": {}}},
        {"frcme": {"kind": "dot"}},
        {"frame": {"kind": "dot", "novel": 1}},
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_card_with_damaged_similarities_is_refused(tmp_path: Path, damage: object) -> None:
    from tests.library.test_layout import A_CARD, model

    layout = Layout(tmp_path)
    path = layout.begin_generation(A_CARD, model(layout)).folder / CARD
    path.write_text(json.dumps(json.loads(path.read_text()) | {"similarities": damage}))
    with pytest.raises(BadLibrary):
        layout.generation("1")


def test_the_similarities_of_a_card_are_read_back(similar: Path) -> None:
    generation = Layout(similar).serving()
    assert json.loads((generation.folder / CARD).read_text())["similarities"]["frame"] == {
        "kind": "attention",
        "guide": "clip",
        "keys": "key",
    }
    with opened(similar) as writer:  # the same card, so an interrupted reindex continues
        assert writer.generation.card == generation.card
