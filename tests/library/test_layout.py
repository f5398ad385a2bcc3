import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from midreel.errors import BadLibrary, Locked, MissingLibrary, Unwritable
from midreel.library.layout import CARD, SETTINGS, Card, Layout, Settings
from midreel.library.windows import Windowing
from midreel.ops.edges import EdgeCalibration

A_LIBRARY = Settings(backbone="tiny-clip", rate=2.0, fingerprint={"width": 4}, serving="1")
A_CARD = Card(
    model="zero-shot",
    digest="d",
    width=4,
    branch_weights={"frame": 1.0},
    curve_weights={"frame": 1.0},
    windows=Windowing.of(8),
)


def model(layout: Layout) -> Path:
    folder = layout.folder / "model.new"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_settings_are_read_back(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert not layout.exists()
    layout.write(A_LIBRARY)
    assert layout.exists()
    assert layout.settings() == A_LIBRARY


def test_no_library(tmp_path: Path) -> None:
    """The remedy depends on what is in the folder, and beside it."""
    wanted, beside = tmp_path / "films" / "wanted", tmp_path / "films" / "search"
    with pytest.raises(MissingLibrary, match=f"{wanted} does not exist, .*midreel index VIDEOS --library {wanted}"):
        Layout(wanted).settings()
    wanted.mkdir(parents=True)
    (wanted / "file").touch()
    with pytest.raises(MissingLibrary, match=f"midreel index {wanted} --library"):
        Layout(wanted).settings()
    with pytest.raises(MissingLibrary, match="file is not a folder"):
        Layout(wanted / "file").settings()
    beside.mkdir()
    Layout(beside).write(A_LIBRARY)
    with pytest.raises(MissingLibrary, match=f"{beside}\\?"):
        Layout(wanted).settings()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "novel": 2}', "\udcff"])
def test_damaged_settings(tmp_path: Path, text: str) -> None:
    (tmp_path / SETTINGS).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadLibrary, match=SETTINGS):
        Layout(tmp_path).settings()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("backbone", [None, 1, []]),
        ("rate", [None, 0, -1, 10**30, float("nan"), "2", "1" * 10**6]),
        ("fingerprint", [None, "x" * 10**6, []]),
        ("serving", [None, 1, 10**30, "", "../..", []]),
    ],
)
def test_settings_with_a_damaged_value(tmp_path: Path, unchecked: None, name: str, values: list[object]) -> None:
    for value in values:
        (tmp_path / SETTINGS).write_text(json.dumps(vars(A_LIBRARY) | {name: value}))
        with pytest.raises(BadLibrary) as caught:
            Layout(tmp_path).settings()
        assert len(str(caught.value)) < 1000
        assert "delete" not in str(caught.value)


def test_a_newer_format(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text(json.dumps({"format": 2, "whatever": 1}))
    with pytest.raises(BadLibrary, match="format 2"):
        Layout(tmp_path).settings()


def test_generations(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert layout.generations() == []
    first = layout.begin_generation(A_CARD, model(layout))
    assert (first.name, first.card) == ("1", A_CARD)
    assert (first.model / "config.json").read_text() == "{}"
    second = layout.begin_generation(replace(A_CARD, digest="e"), model(layout))
    assert layout.generations() == [first, second]
    assert layout.generation("2") == second
    (second.folder / CARD).write_text("{")
    assert layout.generations() == [first]
    with pytest.raises(BadLibrary, match="midreel reindex"):
        layout.generation("2")
    assert layout.begin_generation(A_CARD, model(layout)).name == "3"
    layout.drop_generations(but="3")
    assert [each.name for each in layout.generations()] == ["3"]


def test_the_edges_of_a_model_are_kept(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    measured = replace(A_CARD, edges=EdgeCalibration(start=(0.5, 1.0), end=(0.25, 2.0)))
    assert layout.begin_generation(measured, model(layout)).card == layout.generation("1").card == measured
    layout.begin_generation(A_CARD, model(layout))
    assert layout.generation("2").card.edges is None
    assert "edges" not in (tmp_path / "generations/2" / CARD).read_text()  # so that older versions can read it
    path = tmp_path / "generations/1" / CARD
    path.write_text(path.read_text().replace("0.25", "-1"))
    with pytest.raises(BadLibrary):
        layout.generation("1")


HOLD = """
import sys, time
from pathlib import Path
from midreel.library.layout import Layout
with Layout(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new/library")
    with layout.locked(), pytest.raises(Locked, match=str(os.getpid())), layout.locked():
        pass
    with layout.locked():
        pass


def test_the_lock_of_a_killed_writer_is_released(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    with pytest.raises(Locked, match=str(child.pid)), Layout(tmp_path).locked():
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    with Layout(tmp_path).locked():
        pass


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unwritable, match="Not a directory"), Layout(tmp_path / "file/library").locked():
        pass


def test_sizes(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.begin_generation(A_CARD, model(layout))
    layout.features.write_bytes(b"12345")
    assert layout.size()["features"] == 5
    assert layout.size()["catalogue"] == 0
    assert layout.size()["index"] > 2


@pytest.mark.parametrize("content", [b"[" * 10**5, b"\xff" * 10**5, b"[]", b"{}", b'{"windows": 1}'])
def test_the_error_of_a_damaged_card_names_the_file_and_is_short(tmp_path: Path, content: bytes) -> None:
    layout = Layout(tmp_path)
    generation = layout.begin_generation(A_CARD, model(layout))
    (generation.folder / CARD).write_bytes(content)
    with pytest.raises(BadLibrary, match=CARD) as raised:
        layout.generation(generation.name)
    assert len(str(raised.value)) < 500 + len(str(tmp_path)) * 2


@pytest.mark.parametrize(
    "damage",
    [
        {"width": "3"},
        {"width": 0},
        {"model": 1},
        {"branch_weights": {"frame": "1.0"}},
        {"branch_weights": {"frame": -1.0}},
        {"branch_weights": {"frame": 0.0}},
        {"branch_weights": [1.0]},
        {"curve_weights": {"frame": "1.0"}},
        {"curve_weights": {"frcme": 1.0}},  # not a branch
        {"curve_weights": {"frame": float("nan")}},
        {"windows": {"size": 2.5, "longest": 4}},
        {"windows": {"size": "2", "longest": 4}},
    ],
)
def test_a_card_with_a_damaged_value_is_refused(tmp_path: Path, damage: dict[str, object]) -> None:
    layout = Layout(tmp_path)
    path = layout.begin_generation(A_CARD, model(layout)).folder / CARD
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(BadLibrary):
        layout.serving(Settings(backbone="b", rate=1.0, fingerprint={}, serving="1"))
    assert layout.generations() == []


def test_settings_are_parsed_once_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, parsed = Layout(tmp_path), list[str]()
    layout.write(A_LIBRARY)
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or real(text))
    assert [layout.settings() for _ in range(3)] == [A_LIBRARY] * 3
    assert len(parsed) == 1
    layout.write(replace(A_LIBRARY, serving="2"))
    assert [layout.settings().serving for _ in range(2)] == ["2", "2"]
    assert len(parsed) == 2
    (tmp_path / SETTINGS).unlink()
    with pytest.raises(BadLibrary):
        layout.settings()


def test_a_card_without_curve_weights_gets_the_old_ones(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    path = layout.begin_generation(A_CARD, model(layout)).folder / CARD
    values = json.loads(path.read_text())
    del values["curve_weights"]
    path.write_text(json.dumps(values))
    assert layout.generation("1").card.curve_weights == {"frame": 3.0}
