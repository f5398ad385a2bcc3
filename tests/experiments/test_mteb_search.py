"""midreel as a model of mteb, evaluated by mteb itself on a task of generated videos."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from midreel.datasets import playhouse
from midreel.errors import BadPackage
from midreel.experiments.mteb_search import MtebSearch
from midreel.library.searcher import Searcher
from tests import ROOT

# In a process of its own: the package warns, and takes seconds to import.
PROGRAM = """
import json, sys
from pathlib import Path
import datasets
import mteb
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from midreel.experiments.mteb_search import MtebSearch

def main():
    videos, queries, with_bytes = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] == "bytes"

    class Playhouse(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="PlayhouseT2V", description="generated", dataset={"path": "local/playhouse", "revision": "1"},
            type="Any2AnyRetrieval", category="t2v", modalities=["text", "video"], eval_splits=["test"],
            eval_langs=["eng-Latn"], main_score="ndcg_at_10", date=None, domains=None, task_subtypes=None, license=None,
            annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation="", reference=None)

        def load_data(self, **kwargs):
            content = [Path(path).read_bytes() if with_bytes else None for path in videos.values()]
            video = [{"path": path, "bytes": data} for path, data in zip(videos.values(), content)]
            corpus = datasets.Dataset.from_dict({"id": list(videos), "video": video})
            self.dataset = {"default": {"test": {
                "corpus": corpus,
                "queries": datasets.Dataset.from_dict({"id": list(queries), "text": [q[0] for q in queries.values()]}),
                "relevant_docs": {name: {q[1]: 1} for name, q in queries.items()},
                "top_ranked": None,
            }}}
            self.data_loaded = True

    model = MtebSearch()
    task = Playhouse()
    scores = task.evaluate(model, "test", encode_kwargs={})["default"]
    found = model.search(
        datasets.Dataset.from_dict({"id": ["one"], "text": ["a red ball"]}), top_k=2)
    from mteb.models.models_protocols import SearchProtocol
    result = {"ndcg": scores["ndcg_at_10"], "recall": scores["recall_at_1"], "found": found,
              "fits": isinstance(model, SearchProtocol), "name": model.mteb_model_meta.name}
    print(json.dumps(result))

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("content", ["path", "bytes"])
def test_mteb_scores_what_a_search_finds(tmp_path: Path, content: str) -> None:
    split = playhouse.write_dataset(tmp_path / "videos", seed=0, num_test=4)["test"]
    paths = {video_id: str(next((tmp_path / "videos").rglob(f"{video_id}.mp4"))) for video_id in split.video_ids}
    queries = {query.id: (query.text, query.video_id) for query in split.queries}
    (tmp_path / "run.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "run.py"), json.dumps(paths), json.dumps(queries), content],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["fits"]
    with Searcher.create(tmp_path / "library") as searcher:
        searcher.add(tmp_path / "videos")
        hits = searcher.search("a red ball", top=2, exact=True)
        best = [searcher.search(text, top=1, exact=True)[0].path.stem == video for text, video in queries.values()]
    assert result["found"]["one"] == pytest.approx({hit.path.stem: hit.score for hit in hits}, abs=1e-5)
    assert result["recall"] == pytest.approx(sum(best) / len(best), abs=1e-4)
    assert 0 < result["ndcg"] <= 1


def test_without_mteb(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mteb", "mteb.models", "mteb.models.model_meta"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadPackage, match=r"midreel\[mteb\]"):
        MtebSearch()
