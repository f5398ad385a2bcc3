"""The comparison of all methods, on a tiny budget."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import methods as tool
from midreel.errors import BadRun
from midreel.evaluation.tables import Spread
from midreel.experiments import runs

TINY = ["--train", "6", "--val", "3", "--test", "3", "--epochs", "1", "--batch-size", "3", "--rounds", "1"]


def outcome(*ranks: int) -> tool.Outcome:
    return tool.Outcome(figures={}, ranks=ranks, chosen_by=None)


def test_interval_over_seeds() -> None:
    """Three values: 4.303 standard errors, by the table of Student's distribution."""
    found = tool.interval([1.0, 2.0, 3.0])
    assert (found.mean, found.num) == (2.0, 3)
    assert found.spread == pytest.approx(4.3027 / 3**0.5, abs=1e-4)
    assert tool.interval([5.0]) == Spread(mean=5.0, spread=0.0, num=1)


def test_difference_on_the_same_queries() -> None:
    ours, theirs = [outcome(1, 6, 200), outcome(1, 1, 200)], [outcome(1, 11, 200)]
    found = tool.difference(ours, theirs, [0, 1, 1])
    assert found.mean == pytest.approx((0 + 200 + 0) / 3)
    same = tool.difference(ours, ours, [0, 1, 2])
    assert (same.mean, same.spread) == (0.0, 0.0)


def test_the_interval_covers_the_choice_of_videos() -> None:
    """For one query in each video, the bootstrap agrees with the normal approximation."""
    ranks = np.random.default_rng(1).choice([1, 200], size=400)
    found = tool.difference([outcome(*ranks.tolist())], [outcome(*[200] * 400)], range(400))
    assert found.spread == pytest.approx(1.96 * 400 * 0.5 / 400**0.5, rel=0.1)


def test_ratio_of_times() -> None:
    assert tool._median([1.0, 2.0, 4.0]).mean == 2.0
    assert tool._median([3.0]) == Spread(mean=3.0, spread=0.0, num=1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("msc", "msc"),
        ("arl", "arl (reconstruction)"),
        ("proto_prvr, 3 x epochs", "proto_prvr, 3 x epochs (reconstruction)"),
        ("bgm_net without alignment", "bgm_net without alignment"),
    ],
)
def test_reconstructions_are_labelled(name: str, expected: str) -> None:
    assert tool._label(name) == expected


@pytest.mark.slow
def test_a_comparison_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "methods.md"
    words = ["--out", str(tmp_path / "out"), "--write", str(page), "--methods", "clip_zero_shot,msc", *TINY]
    tool.main([*words, "--seeds", "1", "--grid", "3e-4"])
    text = page.read_text()
    assert len(list((tmp_path / "out/runs/msc").glob("lr-*/seed-*/result.json"))) == 1
    assert re.findall(r"^## .*$", text, re.MULTILINE) == [
        "## Finding the video",
        "## Finding the moment, and collapse",
        "## Cost",
        "## Where the order differs from the paper's",
        "## Learning rates",
        "## How far to trust it",
    ]
    assert len(re.findall(r"^\| msc \|", text, re.MULTILINE)) == 4
    assert len(re.findall(r"^\| clip\\_zero\\_shot \|", text, re.MULTILINE)) == 3
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}
    capsys.readouterr()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(runs, "train_or_resume", refuse)
    tool.main([*words, "--seeds", "1", "--grid", "3e-4"])
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert (page.read_text(), capsys.readouterr().err) == (text, "")
    with pytest.raises(AssertionError, match="again"):
        tool.main([*words, "--seeds", "2", "--grid", "3e-4"])
    with pytest.raises(BadRun, match="epochs"):
        tool.main([*words, "--seeds", "1", "--grid", "3e-4", "--epochs", "2"])
    cost = json.loads((tmp_path / "out/runs/msc/cost.json").read_text())
    assert cost["MFLOPs, a video"] > cost["MFLOPs, a query"] > 0
