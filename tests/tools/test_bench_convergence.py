"""How fast methods learn, on a tiny budget."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import convergence as tool
from midreel.evaluation.tables import Spread
from midreel.types import VideoFeatures


def test_noise_is_as_long_as_stated_and_always_the_same() -> None:
    frames = np.random.default_rng(0).standard_normal((50, 400)).astype(np.float32)
    clean = VideoFeatures(frames=frames, times=np.arange(50.0), duration=50.0)
    noisy = tool.NoisyFrames(SimpleNamespace(video=lambda video_id: clean, text=None), noise=2.0)
    found = noisy.video("a").frames
    added = np.linalg.norm(found - frames, axis=1) / np.linalg.norm(frames, axis=1)
    assert added.mean() == pytest.approx(2.0, rel=0.02)
    assert np.array_equal(noisy.video("a").frames, found)
    assert not np.array_equal(noisy.video("b").frames, found)


def test_means_by_epoch_and_the_first_epoch_at_a_goal() -> None:
    means = tool.by_epoch({"msc": [[1.0, 4.0, 6.0], [3.0, 4.0, 8.0]]})["msc"]
    assert {epoch: found.mean for epoch, found in means.items()} == {1: 2.0, 2: 4.0, 3: 7.0}
    assert tool.first_epoch_at(means, 4.0) == 2
    assert tool.first_epoch_at(means, 7.5) is None
    assert tool.first_epoch_at({1: Spread.of([1.0])}, 1.0) == 1


@pytest.mark.slow
def test_a_study_is_written_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "convergence.md"
    words = ["--out", str(tmp_path / "out"), "--write", str(page), "--epochs", "2", "--seeds", "1"]
    tool.main([*words, "--train", "6", "--val", "4", "--test", "4"])
    text = page.read_text()
    assert len(re.findall(r"^\| epoch \d \|", text, re.MULTILINE)) == 2
    assert (tmp_path / "convergence.png").stat().st_size > 10_000
    capsys.readouterr()
    tool.main([*words, "--train", "6", "--val", "4", "--test", "4"])
    assert (page.read_text(), capsys.readouterr().err) == (text, "")
