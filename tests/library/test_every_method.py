"""A library with a model of every method: index, search, moments, reindex and serve."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from midreel.errors import BadSetting
from midreel.features.stores.store import FeatureStore
from midreel.library import indexer
from midreel.library.layout import FEATURES
from midreel.library.reindex import reindex
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted, Writer
from midreel.methods import METHODS, load_method
from midreel.methods.base import join_texts
from midreel.server.app import create_app
from midreel.types import TextFeatures
from tests.features.fakes import FINGERPRINT
from tests.library.small import Eye, index, opened
from tests.methods.small import SMALL, perturbed, small_config

pytestmark = pytest.mark.slow

WIDTH = 4
WIDTHS = {name: WIDTH for name in SMALL if name.endswith("width")}


class Reader(Eye):
    """A backbone whose words have the width of its joint space. A word is the sentence with some noise."""

    def __init__(self) -> None:
        super().__init__(replace(FINGERPRINT, frame_rate=None, dtype=None, source="reader", word_width=WIDTH))

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        noise = np.random.default_rng(0)
        return [
            TextFeatures(
                words=text.sentence + noise.normal(0, 0.1, (5, WIDTH)).astype(np.float32), sentence=text.sentence
            )
            for text in super().encode_texts(texts)
        ]


def save(name: str, folder: Path, seed: int) -> str:
    torch.manual_seed(seed)
    known = {field: width for field, width in WIDTHS.items() if hasattr(METHODS[name].Config, field)}
    perturbed(METHODS[name](small_config(name, **known))).save_pretrained(folder)
    return str(folder)


def scores(library: Path) -> dict[str, float]:
    with Searcher.open(library, backbone=Reader()) as searcher:
        return {hit.path.name: hit.score for hit in searcher.search("a red wall", exact=True)}


def test_a_model_of_joined_features_is_refused(videos: Path, library: Path, tmp_path: Path) -> None:
    model = save("dl_dkd", tmp_path / "model", 1)
    joined = replace(FINGERPRINT, width=2 * WIDTH, sentence_width=WIDTH, source="i3d + clip")
    (tmp_path / "model/data.json").write_text(json.dumps({"fingerprint": json.loads(joined.to_json())}))
    with pytest.raises(BadSetting, match=r"i3d \+ clip"), Writer.open(library, Wanted(model=model)) as writer:
        indexer.index(writer, [videos])
    assert not library.exists()


@pytest.mark.parametrize("name", METHODS)
def test_index_search_reindex_and_serve(name: str, videos: Path, library: Path, tmp_path: Path) -> None:
    first, second = (save(name, tmp_path / f"model {seed}", seed) for seed in (1, 2))
    index(library, videos, eye=Reader(), wanted=Wanted(model=first, backbone="reader"))
    found = scores(library)
    method = load_method(first)
    with Searcher.open(library, backbone=Reader()) as searcher, FeatureStore.open(library / FEATURES) as store:
        hits = searcher.search("a red wall")
        assert len(hits) == 3
        vectors = method.encode_queries(join_texts(Reader().encode_texts(["a red wall"])))
        for hit in hits:
            frames = torch.from_numpy(np.asarray(store.video(hit.video_id).frames, np.float32))[None]
            with torch.no_grad():
                expected = method.score(vectors, method.encode_videos(method.prepare_videos(frames)))
            assert found[hit.path.name] == pytest.approx(expected.item(), abs=0.02)
            assert hit.moments
            assert all(0 <= moment.start < moment.end <= hit.duration + 0.01 for moment in hit.moments)
        with TestClient(create_app(searcher), base_url="http://127.0.0.1") as client:
            answer = client.post("/v1/search", json={"query": "a red wall"})
            assert answer.status_code == 200
            served = answer.json()["hits"]
            assert [hit["score"] for hit in served] == pytest.approx([hit.score for hit in hits], abs=1e-3)
            assert [hit["start"] for hit in served] == pytest.approx([hit.moments[0].start for hit in hits], abs=0.01)
            assert all(hit["start"] < hit["end"] for hit in served)
    with opened(library, eye=Reader()) as writer:
        reindex(writer, second)
    if method.state_dict():
        assert scores(library) != found
    with opened(library, eye=Reader()) as writer:
        reindex(writer, first)
    assert scores(library) == found
