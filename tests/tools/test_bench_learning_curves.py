"""What training brings, by the number of training videos, on a tiny budget."""

import re
from pathlib import Path

import pytest
import torch

from benchmarks import learning_curves as tool
from midreel.methods.batches import VideoBatch
from midreel.training.data import FeatureSet
from midreel.types import Query, Split


def data(video_of_query: list[int]) -> FeatureSet:
    """A set of which only the videos of the queries matter."""
    return FeatureSet(
        video_ids=("a", "b"),
        queries=(),
        durations=torch.ones(2),
        videos=VideoBatch(frames=torch.zeros(2, 1, 1), clip_of_frame=torch.zeros(2, 1, dtype=torch.long)),
        texts=(),
        video_of_query=torch.tensor(video_of_query),
    )


def test_a_blend_chooses_the_weight_on_val() -> None:
    """On val our scores are right and theirs are wrong, so the weight is 1, also where theirs would be better."""
    right, wrong = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    sets = {"val": data([0, 1]), "test": data([0, 1])}
    found = tool.blended({"val": right, "test": wrong}, {"val": wrong, "test": right}, sets)
    assert found.weight == 1.0
    assert found.figures["val"]["R@1"] == 100.0
    assert found.figures["test"]["R@1"] == 0.0
    # The other way round, our weight must be below one half: a tie counts as a miss. The largest such weight wins.
    found = tool.blended({"val": wrong, "test": wrong}, {"val": right, "test": right}, sets)
    assert found.weight == 0.4
    assert found.figures["test"]["R@1"] == 100.0


def test_a_draw_keeps_the_queries_of_its_videos() -> None:
    split = Split(
        video_ids=tuple("abcd"),
        queries=tuple(Query(id=f"{v}{n}", text="x", video_id=v) for v in "abcd" for n in (1, 2)),
    )
    some, other = (tool._drawn(split, 2, seed) for seed in (1, 2))
    assert len(some.video_ids) == 2
    assert {query.video_id for query in some.queries} == set(some.video_ids)
    assert len(some.queries) == 4
    assert tool._drawn(split, 2, 1) == some
    assert {some, other} <= {tool._drawn(split, 2, seed) for seed in range(1, 9)}
    assert tool._drawn(split, 9, 1) == split


@pytest.mark.parametrize(("num_train", "expected"), [(25, 10), (100, 20), (300, 60), (1000, 150)])
def test_how_many_videos_are_held_out(num_train: int, expected: int) -> None:
    assert tool.num_to_choose_on(num_train, 150) == expected


def test_cells_that_are_at_least_zero_shot() -> None:
    def cells(ours: float) -> dict[str, tool.Cell]:
        of = {"zero-shot": 100.0, "MSC": ours}
        return {label: tool.Cell(weight=1.0, figures={"test": {"SumR": value}}) for label, value in of.items()}

    assert tool.never_worse({5: [cells(99.0), cells(100.0)], 9: [cells(101.0)]}, "MSC", "test") == (2, 3)


@pytest.mark.slow
def test_a_study_is_written_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "training-size.md"
    words = ["--out", str(tmp_path / "out"), "--write", str(page), "--sizes", "0,4", "--seeds", "1"]
    tool.main([*words, "--train", "6", "--val", "4", "--test", "4"])
    text = page.read_text()
    for label in tool.LABELS:
        assert len(re.findall(rf"^\| {re.escape(label.replace('_', chr(92) + '_'))} \|", text, re.MULTILINE)) >= 3
    assert (tmp_path / "learning-curves.png").stat().st_size > 10_000
    capsys.readouterr()
    tool.main([*words, "--train", "6", "--val", "4", "--test", "4"])
    assert (page.read_text(), capsys.readouterr().err) == (text, "")
    tool.main([*words, "--train", "6", "--val", "4", "--test", "4", "--only-finished"])
    assert (page.read_text(), capsys.readouterr().err) == (text, "")
