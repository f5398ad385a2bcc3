"""The measurement of ranges and repeated events, on a tiny budget."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import moments as tool
from midreel.experiments.edges import FoundEdges
from midreel.ops.edges import EdgeCalibration


def edges(found: list[list[float]], true: list[list[float]], slope: float) -> FoundEdges:
    number = len(found)
    return FoundEdges(
        found=np.array(found, np.float64),
        true=np.array(true, np.float64),
        slopes=np.full((number, 2, 2), slope),
        videos=np.array([[0.0, 60.0]] * number),
    )


def test_share_and_width_by_hand() -> None:
    """Ranges reach one second before and two after each edge."""
    some = edges([[10, 20], [30, 40]], [[9, 22.5], [32, 38]], slope=1.0)
    wide = EdgeCalibration(start=(1.0, 2.0), end=(1.0, 2.0))
    assert tool.share(some, wide) == 50
    assert tool.width(some, wide) == 3
    both = tool.pooled([some, some])
    assert (len(both), tool.share(both, wide)) == (4, 50)


def test_thirds_follow_the_slopes() -> None:
    steep, flat = edges([[10, 20]] * 3, [[10, 20]] * 3, 1.0), edges([[10, 20]] * 3, [[19, 29]] * 3, 2.0)
    shares = tool.thirds(tool.pooled([steep, flat]), EdgeCalibration(start=(1.0, 1.0), end=(1.0, 1.0)))
    assert shares == (100, 0)


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    page, picture = tmp_path / "ranges.md", tmp_path / "ranges.png"
    words = ["--out", str(tmp_path / "out"), "--worlds", "3,4", "--write", str(page), "--picture", str(picture)]
    tool.main([*words, "--train", "6", "--val", "12", "--test", "3", "--epochs", "1", "--batch-size", "3"])
    text = page.read_text()
    assert len(re.findall("^## ", text, re.MULTILINE)) == 3
    for row in ("MSC; val of another world", "slope of the curve", "MSC; difference"):
        assert f"| {row} |" in text
    assert picture.exists()
