"""midreel diagnose on a real library and a real run."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from midreel.datasets import playhouse
from midreel.datasets.dataset import Dataset
from midreel.evaluation import collapse
from midreel.evaluation.diagnosis import FeatureStatistics
from midreel.experiments import runs
from midreel.experiments.diagnose import Diagnosis, diagnose, library_subject, run_subject
from midreel.experiments.diagnosis_page import page
from midreel.library.searcher import Searcher
from midreel.media import decode
from midreel.methods.model_files import STATISTICS
from tests.conftest import Command

pytestmark = pytest.mark.slow

NUM_VIDEOS = 6


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six generated videos, and a copy of the first at another size and frame rate."""
    folder = tmp_path_factory.mktemp("diagnose")
    playhouse.write_dataset(folder / "videos", seed=0, num_test=NUM_VIDEOS)
    first = min((folder / "videos").rglob("*.mp4"))
    times = np.arange(0, decode.duration(first), 0.1).tolist()
    resized = [np.asarray(Image.fromarray(image).resize((96, 72))) for _, image in decode.frames_at(first, times)]
    decode.write_video(folder / "videos" / "<b>copy.mp4", resized, 10)
    with Searcher.create(folder / "library") as searcher:
        searcher.add(folder / "videos")
    return folder / "library"


@pytest.fixture(scope="module")
def found(library: Path) -> Diagnosis:
    with library_subject(library) as subject:
        return diagnose(subject)


def test_the_video_side_equals_the_measure_on_all_tokens(library: Path, found: Diagnosis) -> None:
    with Searcher.open(library) as searcher:
        vectors, owners = [], []
        for number, video_id in enumerate(searcher.index.video_ids()):
            tokens = searcher.index.tokens(video_id)["frame"]
            vectors.append(tokens.vectors[tokens.mask])
            owners += [number] * len(vectors[-1])
    expected = collapse.similarity(torch.from_numpy(np.concatenate(vectors)), torch.tensor(owners))
    assert found.video["frame"].intra == pytest.approx(expected.intra, abs=1e-6)
    assert found.video["frame"].diff_norm == pytest.approx(expected.diff_norm, abs=1e-6)
    assert set(found.video) == {"clip", "frame", "backbone"}


def test_the_copy_is_the_only_near_duplicate(found: Diagnosis) -> None:
    ((one, other, cosine),) = found.duplicates
    assert "copy" in one + other
    assert "playhouse-test-00000" in one + other
    assert cosine > 0.95


def test_hubs_count_what_searches_find(library: Path, found: Diagnosis) -> None:
    assert found.hubness is not None
    assert found.hubness.counts.sum() == found.hubness.num_sentences * found.hubness.top
    with Searcher.open(library) as searcher:
        sentences = ("a red ball", "a dog")
        expected = [searcher.search(sentence, top=1)[0].path.name for sentence in sentences]
    with library_subject(library, sentences) as subject:
        given = diagnose(subject)
    assert given.hubness is not None
    names = [Path(given.videos[k]).name for k in np.repeat(np.arange(len(given.videos)), given.hubness.counts)]
    assert sorted(names) == sorted(expected)


def test_an_untrained_model_has_no_drift(found: Diagnosis) -> None:
    assert found.drift is None
    assert "zero-shot" in found.no_drift
    assert math.isnan(found.text["frame"].similarity.intra)
    assert found.text["backbone"].spearman == pytest.approx(1)


def test_a_sample(library: Path) -> None:
    with library_subject(library) as subject:
        some = diagnose(subject, most=5)
    assert (some.num_videos, some.num_measured) == (NUM_VIDEOS + 1, 5)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_is_whole_and_loads_nothing(found: Diagnosis) -> None:
    text, reader = page(found), _Page()
    reader.feed(text)
    tags = [tag for tag, _ in reader.tags]
    assert not {"script", "link", "img", "iframe", "b"} & set(tags)
    assert not re.search(r"https?:|url\(", text)
    assert "&lt;b&gt;copy" in text
    assert tags.count("h1") == 1
    assert tags.count("svg") == 2
    for tag, attributes in reader.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "html":
            assert attributes["lang"] == "en"
    assert tags.count("table") == tags.count("caption")


def test_the_command(midreel: Command, library: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    ended = midreel("diagnose", library, "--html", target)
    assert (ended.code, ended.err) == (0, "")
    for word in ("Intra Sim", "near-duplicates: 1 pair", "hubs:", "never found", "drift", str(target)):
        assert word in ended.out
    again = midreel("diagnose", library, "--html", target, "--json")
    assert (again.code, "--overwrite" in again.err) == (1, True)
    as_json = json.loads(midreel("diagnose", library, "--json", "--html", target, "--overwrite").out)
    assert as_json["videos"] == NUM_VIDEOS + 1
    assert as_json["text"]["frame"]["intra"] is None  # NaN is not JSON
    assert len(as_json["near_duplicates"]) == 1


def test_wrong_arguments(midreel: Command, library: Path, tmp_path: Path) -> None:
    for arguments, word in (
        ((tmp_path / "nothing",), "--dataset"),
        ((library, "--dataset", tmp_path), "library"),
        ((tmp_path, "--dataset", tmp_path, "--queries", tmp_path / "q.txt"), "--queries"),
    ):
        ended = midreel("diagnose", *arguments)
        assert ended.code == 1
        assert word in ended.err
        assert "Traceback" not in ended.err


# ---------------------------------------------------------------- runs


def test_training_saves_the_statistics_of_its_features(run_folder: Path, dataset_folder: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    saved = FeatureStatistics.from_json((run_folder / "best" / STATISTICS).read_text())
    videos = dataset.split("train").video_ids
    assert saved.num_videos == len(videos)
    means = np.stack([dataset.store.video(video_id).frames.mean(0) for video_id in videos])
    np.testing.assert_allclose(saved.mean, means.mean(0), rtol=1e-3, atol=1e-5)


def test_a_run(midreel: Command, run_folder: Path, dataset_folder: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    split = runs.reporting_split(dataset)
    with run_subject(run_folder, dataset, split) as subject:
        found = diagnose(subject)
    assert found.num_videos == len(dataset.split(split).video_ids)
    assert set(found.text) == {"clip", "frame", "backbone"}
    assert found.drift is not None
    assert found.drift.by_chance > 0
    with run_subject(run_folder, dataset, "train") as subject:
        same = diagnose(subject)
    assert same.drift is not None
    assert same.drift.distance == pytest.approx(0, abs=1e-3)
    assert same.drift.spread == pytest.approx(1, abs=1e-3)
    ended = midreel("diagnose", run_folder, "--dataset", dataset_folder, "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["drift"]["distance"] == pytest.approx(found.drift.distance, rel=1e-4)
