import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from midreel.datasets import playhouse
from midreel.datasets.dataset import Dataset
from midreel.errors import BadFeatures, BadSetting
from midreel.experiments import demo, runs
from midreel.experiments.progress import Audience
from midreel.features import Backbone
from midreel.features.extract import Outcome, Progress
from midreel.library.searcher import Searcher
from midreel.methods import load_method
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from tests.experiments.small import SETTINGS

SIZE = demo.Size(num_train=3, num_val=2, num_test=2, rate=0.5)


class Listener(Audience):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.extracted: list[str] = []
        self.totals: list[int] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def features(self, total: int) -> Progress:
        self.totals.append(total)

        def note(outcome: Outcome) -> None:
            self.extracted.append(outcome.of)

        return note

    def training(self, title: str, recipe: Recipe) -> None:
        self.lines.append(f"{title}, {recipe.epochs} epoch")


@pytest.mark.slow
def test_a_demo_and_its_repetitions(tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "BACKBONE", f"local-dir:{tiny_clip}")
    monkeypatch.setattr(playhouse, "write_dataset", partial(playhouse.write_dataset, size=(48, 36), rate=4))
    listener, changes = Listener(), SETTINGS | {"epochs": 1, "joint_width": 24}
    found = demo.run(tmp_path, seed=3, size=SIZE, changes=changes, audience=listener)

    assert [line.split()[0] for line in listener.lines] == [
        "generating",
        "extracting",
        *("training", "clip_residual,"),
        *("training", "base,"),
        *("training", "msc,"),
        "indexing",
        "evaluating",
    ]
    assert listener.totals == [listener.extracted.count("video")]
    assert len(list((tmp_path / "dataset").glob("*.mp4"))) == 2
    assert [contender.label for contender in found.contenders] == [
        "CLIP zero-shot",
        "CLIP zero-shot, with OP-ToMe clips",
        "beyond the paper: clip_residual",
        "(a) base",
        "(e) + adaptive = MSC",
    ]
    assert [len(contender.history) for contender in found.contenders] == [0, 0, 1, 1, 1]
    assert [len(search.hits) for search in found.searches] == [2, 2]
    assert set(found.seconds) >= {"making the videos", "extracting features", "training base", "training msc"}
    for name in ("learning.png", "similarities.png", "relevance.png", "search-1.png", "search-2.png"):
        assert np.asarray(Image.open(tmp_path / "pictures" / name)).std() > 1
    report = found.report.read_text(encoding="utf-8")
    assert all(search.query.text in report and search.query.text in found.text for search in found.searches)
    assert str(found.report) in found.text
    assert f"midreel search {tmp_path / 'library'} " in found.text
    with Searcher.open(found.library) as searcher:
        hits = searcher.search(found.searches[0].query.text, top=2)
    assert {hit.path.parent for hit in hits} == {tmp_path / "dataset"}
    rows = json.loads(json.dumps(found.to_dict()))["rows"]
    assert rows["(a) base"]["R@100"] == 100

    # A second demo skips all steps, has the same results and writes nothing.
    def files() -> dict[Path, int]:
        mine = (path for path in tmp_path.rglob("*") if tmp_path / "library" not in (path, *path.parents))
        return {path: path.stat().st_mtime_ns for path in mine}  # opening a library changes its database

    before, listener = files(), Listener()
    again = demo.run(tmp_path, seed=3, size=SIZE, changes=changes, audience=listener)
    assert files() == before
    assert [search.to_dict() for search in again.searches] == [search.to_dict() for search in found.searches]
    assert sum(line.startswith("skipped") for line in listener.lines) == 6
    assert not any("epoch" in line for line in listener.lines)
    assert str(found.report) in listener.lines[-1]
    assert [step for step, taken in again.seconds.items() if taken is not None] == ["examining and searching"]

    # A step whose result is missing is repeated, and the report has its duration.
    shutil.rmtree(tmp_path / "msc")
    third = demo.run(tmp_path, seed=3, size=SIZE, changes=changes)
    assert third.seconds["training base"] is None
    assert third.seconds["training msc"] is not None
    report = found.report.read_text(encoding="utf-8")
    assert "Time: training msc " in report
    assert "skipped: making the videos, " in report
    with pytest.raises(BadSetting, match="seed"):
        demo.run(tmp_path, seed=4, size=SIZE, changes=changes)

    # A new model reindexes the library.
    for name in demo.TRAINED:
        shutil.rmtree(tmp_path / name)
    fourth = demo.run(tmp_path, seed=3, size=SIZE, changes=changes | {"seed": 5})
    assert fourth.seconds["indexing"] is not None
    with Searcher.open(fourth.library) as searcher:
        theirs, ours = (
            method.state_dict()
            for method in (load_method(searcher.generation.model), load_method(tmp_path / "msc/best"))
        )
    assert all(weight.equal(ours[name]) for name, weight in theirs.items())


def test_a_corrupt_video_ends_the_demo(tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "BACKBONE", f"local-dir:{tiny_clip}")
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/playhouse-test-00000.mp4").write_bytes(b"no video")
    size = demo.Size(num_train=0, num_val=0, num_test=1, rate=0.5)
    with pytest.raises(BadFeatures, match="playhouse-test-00000"):
        demo.run(tmp_path, seed=3, size=size)


def test_a_search_ranks_as_the_score_does(dataset_folder: Path, backbone: Backbone) -> None:
    library = Dataset.open(dataset_folder)
    method = runs.load("zero-shot", library)
    data = FeatureSet.of(method, library, "test")
    query = data.queries[0]
    hits = demo.search(query.text, method, data, backbone, top=2)
    with torch.no_grad():
        queries, videos = next(data.query_batches(999)), next(data.video_batches(999))
        scores = method.score(method.encode_queries(queries), method.encode_videos(videos))[0]
    best = scores.argsort(descending=True)[:2].tolist()
    assert [hit.video_id for hit in hits] == [data.video_ids[video] for video in best]
    assert [hit.score for hit in hits] == pytest.approx(scores[best].tolist(), abs=2e-3)  # the store has half precision
    for hit in hits:
        duration = data.durations[data.video_ids.index(hit.video_id)]
        assert 0 <= hit.moment.start < hit.moment.end <= duration
    assert len(demo.search(query.text, method, data, backbone, top=99)) == len(data)
