import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from midreel import recipes
from midreel.cli import console, training_console
from midreel.experiments.progress import Audience
from midreel.features.extract import Outcome
from midreel.library.diff import FileState
from midreel.library.report import Step
from midreel.training.fit import Monitor

TERMS = {"clip_nce": 0.1234, "clip_triplet": 0.25, "frame_nce": 1.5, "tcpl_angle": 2.0, "cbva": 0.75}


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, _environ={})


def shown(bars: console.Bars) -> str:
    """Return what the screen shows now."""
    screen = terminal(bars.console.width)
    screen.print(bars.get_renderable())
    return screen.file.getvalue()


@pytest.fixture(params=[80, 160])
def bars(request: pytest.FixtureRequest) -> Iterator[console.Bars]:
    with console.bars(terminal(request.param)) as progress:
        yield progress


def test_training_shows_terms_time_left_and_best_metric(bars: console.Bars, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(bars, "get_time", lambda: float(next(clock)))
    bar = training_console.TrainingBar(bars, "msc, seed 1", num_epochs=4)
    assert isinstance(bar, Monitor)
    for step in (1, 2, 3):
        bar.step(0, step, 10, TERMS)
    seen = " ".join(shown(bars).split())
    assert "msc, seed 1" in seen
    assert "3/40" in seen
    assert "clip_nce 0.123 clip_triplet 0.250 frame_nce 1.500 tcpl_angle 2.000 cbva 0.750" in seen
    assert "left -:--:--" not in seen
    assert "left 0:0" in seen
    bar.epoch({"metrics": {"R@1": 1.0, "SumR": 120.04}}, 130.0)
    bar.step(1, 1, 10, TERMS)
    seen = " ".join(shown(bars).split())
    assert "SumR 120.0 (best 130.0) clip_nce" in seen
    assert "11/40" in seen


def test_indexing_shows_speed_from_the_second_video(bars: console.Bars, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call tells when the first video ended, not when it started."""
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    bar = console.IndexingBar(bars)
    for number in range(3):
        bar(Step(path=Path(f"{number}.mp4"), state=FileState.NEW, seconds=50.0, total=4))
        assert ("videos/s" in shown(bars)) == (number > 0)
    assert "0.1 videos/s 5x real time" in " ".join(shown(bars).split())


def test_long_notes_are_not_truncated(bars: console.Bars) -> None:
    bar = training_console.TrainingBar(bars, "vcpl_retrieved, seed 9527", num_epochs=100)
    bar.epoch({"metrics": {"SumR": 120.0}}, 130.0)
    bar.step(1, 1, 1000, TERMS | {f"another_term_{k}": 1.0 for k in range(9)})
    assert "…" not in shown(bars)


def test_extraction_shows_speed_time_left_and_failures(bars: console.Bars, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(bars, "get_time", lambda: float(next(clock)))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    bar = console.ExtractionBar(bars, "videos", 6)
    bar(Outcome(id="q", of="text", kind="done"))
    assert "0/6" in shown(bars)
    assert "videos/s" not in shown(bars)
    bar(Outcome(id="a", kind="skipped"))
    assert "0/5" in shown(bars)  # skipped videos do not count
    for name in ("b", "c"):
        bar(Outcome(id=name, kind="done", num_frames=4000))
    seen = " ".join(shown(bars).split())
    assert "2/5" in seen
    assert re.search(r"0\.\d videos/s [\d,]+ frames/s", seen)
    assert "left 0:0" in seen
    assert "failed" not in seen
    bar(Outcome(id="d", kind="failed", reason="[/b] is no video"))
    bar(Outcome(id="e", kind="quarantined", reason="[/b] is no video"))
    assert "4/5" in shown(bars)
    assert "2 failed" in shown(bars)


def test_stage_shows_one_step_at_a_time(bars: console.Bars) -> None:
    stage: Audience = training_console.Stage(bars)
    count = stage.files(2)
    assert count is not None
    count("playhouse-[red]-00000")  # a name is not markup
    assert "playhouse-[red]-00000" in shown(bars)
    stage.say("extracting")
    assert "playhouse" not in shown(bars)
    note = stage.features(1)
    assert note is not None
    note(Outcome(id="a", kind="done", num_frames=4))
    assert "1/1" in shown(bars)
    stage.training("base", recipes.build("msc", "playhouse", {"epochs": 3}))
    stage.training("msc", recipes.build("msc", "playhouse", {"epochs": 3}))
    assert "msc" in shown(bars)
    assert "base" not in shown(bars)


def run_all(bars: console.Bars) -> None:
    stage = training_console.Stage(bars)
    stage.files(1)("a")
    stage.features(1)(Outcome(id="a", kind="failed", reason="no video"))
    monitor = stage.training("base", recipes.build("msc", "playhouse"))
    monitor.step(0, 1, 10, TERMS)
    monitor.epoch({"metrics": {"SumR": 1.0}}, 1.0)


def test_no_bars_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.bars() as progress:
        run_all(progress)
    assert capsys.readouterr() == ("", "")
    with console.bars() as progress:
        training_console.Stage(progress).say("training")
    assert capsys.readouterr() == ("", "training\n")


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that takes long prints a line at each interval, with the progress and the note of its task."""
    now = 0.0
    with console.bars() as progress:
        monkeypatch.setattr(progress, "get_time", lambda: now)
        progress._last_line = now
        monitor = training_console.Stage(progress).training("msc", recipes.build("msc", "playhouse", {"epochs": 40}))
        for epoch in range(40):
            monitor.step(epoch, 10, 10, {"cbva": 0.5})
            now += 2.0
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 2)
    assert err.splitlines()[0].split() == ["msc", "160", "of", "400", "cbva", "0.500"]


def test_bars_are_erased_and_leave_stdout_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes Rich treat stderr as a terminal
    with console.bars() as progress:
        run_all(progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert "base" in err
    after_the_last_erase = err.rsplit("\x1b[2K", 1)[-1]
    assert after_the_last_erase.replace("\x1b[?25h", "").strip() == ""
