import json
import os
import shutil
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from huggingface_hub import constants

from midreel import doctor, video
from midreel.doctor import Finding, examine
from tests.conftest import Command


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_this_machine_is_in_order(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("doctor", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert [line.split(":")[0].split("  ")[-1].strip() for line in lines[:-1]] == [
        *("Python", "torch", "torchvision", "decoder", "models", "network", "optional libraries", "disk", "permission")
    ]
    assert lines[-1].startswith("0 failed, ")
    assert list(tmp_path.iterdir()) == []


def test_as_json(midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MACHINE", {"Python": doctor.python})
    ended = midreel("doctor", tmp_path / "nowhere", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["ok"]) == (1, False)
    assert found["findings"][-1] == {
        "name": "library",
        "state": "failed",
        "text": f"{tmp_path / 'nowhere'} is no folder",
        "remedy": "check the path",
    }


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    found = doctor.python()
    assert (found.state, found.remedy) == ("failed", "install Python 3.11 or later")


def test_an_old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "2.1.0+cpu")
    assert doctor.torch().remedy == "install torch 2.6 or later"


def test_a_broken_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor.torchvision()
    assert found.line == (
        "FAILED   torchvision: RuntimeError: operator torchvision::nms does not exist; remove it (pip uninstall "
        "torchvision), or install the one that belongs to your torch"
    )
    (package / "__init__.py").write_text("__version__ = '0.99'\n")
    assert doctor.torchvision() == Finding(name="torchvision", state="ok", text="0.99")


def test_a_decoder_that_sees_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def dark(path: Path, rate: float) -> Iterator[tuple[float, video.Image]]:
        return ((time, np.zeros_like(image)) for time, image in list(real(path, rate)))

    real = video.read_frames
    monkeypatch.setattr(video, "read_frames", dark)
    found = doctor.decoder()
    assert found.state == "failed"
    assert "made [0, 0, 0, 0, 0, 0, 0, 0] of grey frames of [20, 40, 60, 80, 100, 120, 140, 160]" in found.text


def test_a_check_that_breaks_is_a_line_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks() -> Finding:
        raise ImportError("no module\nand more")

    monkeypatch.setattr(doctor, "MACHINE", {"models": breaks, "Python": doctor.python})
    found = examine(tmp_path)
    assert [finding.name for finding in found.findings] == ["models", "Python", "disk", "permission"]
    assert found.findings[0].text == "ImportError: no module"
    assert not found.ok


def test_models_without_their_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from midreel.features import backbone

    folder = tmp_path / "tiny-clip"
    shutil.copytree(backbone.SHIPPED["tiny-clip"], folder)
    (folder / "model.safetensors").unlink()
    monkeypatch.setitem(backbone.SHIPPED, "tiny-clip", folder)
    found = doctor._tried("models", doctor.model_files)
    assert found.state == "failed"
    assert "holds no weights, expected model.safetensors" in found.text


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    found = doctor.network()
    assert found.state == "warning"
    assert found.text.startswith("http://127.0.0.1:9 does not answer (")
    assert found.remedy.startswith("only models that are on this disk can be used")


def test_a_hub_that_answers_rudely(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: object, timeout: float) -> None:
        raise urllib.error.HTTPError("http://hub", 403, "no", None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    assert doctor.network().state == "ok"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(("free", "state"), [(5 * 10**9, "ok"), (10**9, "warning"), (10**6, "failed")])
def test_free_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, state: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10**10, 0, free))
    assert doctor.free_space(tmp_path).state == state


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        place = Path("/proc")  # not even root may
    else:
        place = tmp_path / "closed"
        place.mkdir(mode=0o500)
    found = doctor.permission(place)
    assert found.state == "warning"
    assert found.remedy == "searching works; to index, change its rights or choose another folder"


def test_the_health_of_a_library_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "MACHINE", {})
    sick = Finding(name="index", state="failed", text="3 of 9 videos are damaged", remedy="reindex")
    found = examine(tmp_path, lambda library: [sick])
    assert found.findings[-1] == sick
    assert found.text.splitlines()[-2:] == [
        "FAILED   index: 3 of 9 videos are damaged; reindex",
        "1 failed, 0 to be aware of, 2 in order",
    ]

    def dies(library: Path) -> list[Finding]:
        raise OSError(f"{library} melts")

    assert examine(tmp_path, dies).findings[-1].text == f"OSError: {tmp_path} melts"
