from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from midreel.datasets.dataset import Dataset
from midreel.experiments import report, runs
from midreel.experiments.report import Confidence, Contender, Hit, Search
from midreel.media.decode import write_video
from midreel.training.data import FeatureSet
from midreel.training.fit import read_lines
from midreel.types import Moment, Query

QUERY = Query(id="q", text="a dog jumps", video_id="pool", moments=(Moment(start=3.0, end=9.5),))


def hit(video_id: str, score: float = 0.5) -> Hit:
    return Hit(video_id=video_id, score=score, moment=Moment(start=2.0, end=8.25))


def test_a_search_as_text() -> None:
    assert Search(query=QUERY, hits=[hit("beach"), hit("pool", 0.25)]).text == (
        "“a dog jumps”\n"
        "  1. beach  2.0 to 8.3 s  score 0.500\n"
        "  2. pool  2.0 to 8.3 s  score 0.250  ✓ annotated: 3.0 to 9.5 s"
    )
    twice = replace(QUERY, moments=(*QUERY.moments, Moment(start=20.0, end=21.0)))
    assert Search(query=twice, hits=[hit("pool")]).text.endswith("✓ annotated: 3.0 to 9.5 s and 20.0 to 21.0 s")
    missed = Search(query=replace(QUERY, moments=()), hits=[hit("beach")])
    assert missed.text.splitlines()[-1] == "  ✗ expected pool, an unknown time"
    assert missed.to_dict()["hits"] == [{"video_id": "beach", "score": 0.5, "moment": {"start": 2.0, "end": 8.25}}]


def test_the_verdict_on_the_first_hit() -> None:
    right = Search(query=QUERY, hits=[hit("pool"), hit("beach")])
    assert "pool, 2.0 to 8.3 s" in right.verdict
    assert "3.0 to 9.5 s" in right.verdict
    assert "another video" not in right.verdict
    assert right.is_right
    wrong = Search(query=QUERY, hits=[hit("beach"), hit("pool")])
    assert "another video: beach, 2.0 to 8.3 s" in wrong.verdict
    assert not wrong.is_right
    assert "pool" in wrong.verdict
    assert f"![{wrong.verdict}](pictures/search-7.png)" in report._found(7, wrong)


def test_stills_of_a_found_moment(tmp_path: Path) -> None:
    """A video that gets brighter for ten seconds. Its stills are in order and within the moment."""
    write_video(tmp_path / "pool.mp4", (np.full((32, 32, 3), 20 + 2 * k, np.uint8) for k in range(100)), rate=10)
    report._draw_moment(tmp_path, hit("pool"), "The first hit is right", tmp_path / "stills.png")
    title, drawn = np.split(np.asarray(Image.open(tmp_path / "stills.png")), [report.TITLE_HEIGHT])
    assert title.min() < 50  # there is ink
    gaps = np.full((32, report.STILL_GAP, 3), 255)
    stills = np.concatenate((drawn, gaps), 1).reshape(32, 6, 32 + report.STILL_GAP, 3)[:, :, :32].mean((0, 2, 3))
    wanted = np.linspace(2.0, 8.25, 8)[1:-1]
    assert stills == pytest.approx(20 + 20 * wanted, abs=6)
    report._draw_moment(tmp_path, hit("nowhere"), "The first hit is right", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_a_report(dataset_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    contenders = []
    for label, name in (("zero", "zero-shot"), ("trained", str(run_folder))):
        method = runs.load(name, dataset)
        data = FeatureSet.of(method, dataset, "test")
        history = [] if name == "zero-shot" else list(read_lines(run_folder / "metrics.jsonl"))
        examination = runs.examine(method, data)
        contenders.append(Contender(label=label, method=method, data=data, examination=examination, history=history))
    query = contenders[0].data.queries[0]
    searches = [Search(query=query, hits=[hit(query.video_id)])]
    some = Confidence(present=1, num_present=2, absent=3, num_absent=4)
    assert not report.is_current(tmp_path / "report.md", contenders, searches, some)
    path = report.write_report(tmp_path, dataset, contenders, searches, some, {"resting": 3.2, "training": None})
    assert report.is_current(path, contenders, searches, some)
    assert not report.is_current(path, contenders[::-1], searches, some)
    assert not report.is_current(path, contenders, searches, replace(some, present=2))
    assert not report.is_current(path, contenders, [Search(query=query, hits=[hit("elsewhere")])], some)
    text = path.read_text(encoding="utf-8")
    assert "(6 train, 3 val, 3 test)" in text
    assert "one frame every 2 s" in text
    assert report.table(contenders) in text
    assert "in 1 of 1 searches" in text
    assert "1 of 2" in some.text
    assert "3 of 4" in some.text
    summary = report.summary(contenders).splitlines()
    assert [line.split()[0] for line in summary] == ["R@1", "zero", "trained"]
    assert all(len(line) <= 80 for line in summary)
    assert "Time: resting 3 s; skipped: training." in text
    seconds = contenders[-1].data.durations[0].item()
    assert "12 frames" in text
    assert f"{seconds:.0f} s" in text
    assert f"{seconds / 12:.1f} s apart" in text
    assert searches[0].text in text
    names = {picture.name for picture in (tmp_path / "pictures").iterdir()}
    assert names == {"learning.png", "similarities.png", "relevance.png"}  # the video has no file
