import errno
import json
import os
import shutil
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
from huggingface_hub import constants

from midreel.cli import doctor
from midreel.cli.doctor import Finding, examine
from midreel.errors import BadIndex, BadLibrary
from midreel.library.catalogue import Catalogue
from midreel.library.layout import Layout
from midreel.library.searcher import Searcher
from midreel.media import decode
from tests.conftest import Command
from tests.library.small import Eye, film, index, opened


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_doctor_passes_here(midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = midreel("doctor")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert [line.split(":")[0].split("  ")[-1].strip() for line in lines[:-1]] == [
        *("Python", "onnxruntime", "torch", "torchvision", "decoder", "models", "network"),
        *("optional libraries", "disk", "permission"),
    ]
    assert lines[-1].startswith("0 failed, ")
    assert list(tmp_path.iterdir()) == []


def test_json(midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MACHINE", {"Python": doctor.python})
    ended = midreel("doctor", tmp_path / "nowhere", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["ok"]) == (1, False)
    last = found["findings"][-1]
    assert (last["name"], last["state"], set(last)) == ("library", "failed", {"name", "state", "text", "remedy"})
    assert str(tmp_path / "nowhere") in last["text"]


def test_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    found = doctor.python()
    assert (found.state, "3.11" in found.remedy) == ("failed", True)


def test_old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "2.1.0+cpu")
    found = doctor.torch()
    assert (found.state, "2.6" in found.remedy) == ("failed", True)


def test_broken_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor.torchvision()
    first, second = found.line.splitlines()
    assert first == "FAILED   torchvision: RuntimeError: operator torchvision::nms does not exist"
    assert "pip uninstall torchvision" in second
    (package / "__init__.py").write_text("__version__ = '0.99'\n")
    assert doctor.torchvision() == Finding(name="torchvision", state="ok", text="0.99")


def test_decoder_with_wrong_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def dark(path: Path, rate: float) -> Iterator[tuple[float, decode.Image]]:
        return ((time, np.zeros_like(image)) for time, image in list(real(path, rate)))

    real = decode.read_frames
    monkeypatch.setattr(decode, "read_frames", dark)
    found = doctor.decoder()
    assert found.state == "failed"
    assert "[0, 0, 0, 0, 0, 0, 0, 0]" in found.text
    assert "[20, 40, 60, 80, 100, 120, 140, 160]" in found.text


def test_broken_check_fails_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks() -> Finding:
        raise ImportError("no module\nand more")

    monkeypatch.setattr(doctor, "MACHINE", {"models": breaks, "Python": doctor.python})
    monkeypatch.chdir(tmp_path)
    found = examine()
    assert [finding.name for finding in found.findings] == ["models", "Python", "disk", "permission"]
    assert found.findings[0].text == "ImportError: no module"
    assert not found.ok


def test_model_without_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from midreel.features.backbones import base

    folder = tmp_path / "tiny-clip"
    shutil.copytree(base.SHIPPED["tiny-clip"], folder)
    (folder / "model.safetensors").unlink()
    monkeypatch.setitem(base.SHIPPED, "tiny-clip", folder)
    found = doctor._run("models", doctor.model_files)
    assert found.state == "failed"
    assert "model.safetensors" in found.text


def test_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # a port without a server
    found = doctor.network()
    assert found.state == "warning"
    assert "http://127.0.0.1:9" in found.text
    assert "tiny-clip" in found.remedy


def test_hub_with_an_error_status(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_read_only_folder(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        place = Path("/proc")  # not even root may
    else:
        place = tmp_path / "closed"
        place.mkdir(mode=0o500)
    found = doctor.permission(place)
    assert found.state == "warning"
    assert "permissions" in found.remedy


def test_full_disk_and_missing_permission_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> Finding:
        def fsync(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)
        return doctor.permission(tmp_path)

    assert "free disk space" in fail(errno.ENOSPC).remedy
    assert "permissions" in fail(errno.EACCES).remedy


@pytest.fixture
def library(tmp_path: Path) -> Path:
    film(tmp_path / "films/sunset.mp4", "grey", "red")
    film(tmp_path / "films/sea.mp4", "blue", "grey")
    index(tmp_path / "library", tmp_path / "films")
    return tmp_path / "library"


def test_changed_backbone(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """The library was made with a fake backbone, and names tiny-clip."""
    monkeypatch.setattr(doctor, "MACHINE", {})
    Layout(library).write(replace(Layout(library).settings(), backbone="tiny-clip"))
    (found,) = [finding for finding in examine(library).findings if finding.name == "library's models"]
    assert (found.state, "tiny-clip" in found.text) == ("failed", True)


def test_models_of_a_library(tmp_path: Path) -> None:
    Searcher.create(tmp_path / "mine").close()
    assert doctor.library_models(tmp_path / "mine").text.startswith("tiny-clip and zero-shot")
    (tmp_path / "mine/generations/1/model/config.json").write_text("{}")
    with pytest.raises(BadLibrary, match="digest"):
        doctor.library_models(tmp_path / "mine")


def test_check_of_models_searches(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    opened = Searcher.open
    monkeypatch.setattr(Searcher, "open", lambda folder: opened(folder, backbone=Eye()))
    assert doctor.library_models(library).state == "ok"
    for path in library.glob("generations/*/index/manifest.sqlite"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(BadIndex):
        doctor.library_models(library)


def test_healthy_and_damaged_library(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    monkeypatch.setattr(doctor, "MACHINE", {})
    # The library has a fake backbone, which this check cannot load.
    checks = {name: check for name, check in doctor.LIBRARY.items() if name != "library's models"}
    monkeypatch.setattr(doctor, "LIBRARY", checks)
    found = examine(library)
    assert found.ok
    names = ["disk", "permission", "library", "index", "features", "agreement"]
    assert [finding.name for finding in found.findings] == names
    assert "2 videos" in found.findings[-1].text

    for path in library.glob("generations/*/index/**/*"):
        if path.is_file() and "sqlite" not in path.name and path.stat().st_size > 100:
            content = bytearray(path.read_bytes())
            content[100] ^= 1
            path.write_bytes(content)
    sick = examine(library)
    assert not sick.ok
    assert "FAILED   index: " in sick.text
    assert f"midreel index --library {library} --retry" in sick.text


def test_lost_catalogue_rows(library: Path) -> None:
    """Tokens and features without a row, as after the loss of SQLite's write-ahead log: no search finds the video."""
    with closing(Catalogue(library, mode="write")) as catalogue:
        lost = min(catalogue.video_ids())
        catalogue.forget_videos([lost])
    found = doctor.agreement(library)
    assert (found.state, lost in found.text) == ("failed", True)
    index(library)
    assert doctor.agreement(library).state == "ok"


def test_lost_tokens(library: Path) -> None:
    with opened(library) as writer:
        lost = writer.index.video_ids()[0]
        writer.index.remove(lost)
    found = doctor.agreement(library)
    assert (found.state, lost in found.text) == ("failed", True)


def test_lost_features(library: Path) -> None:
    with opened(library) as writer:
        lost = writer.store.video_ids()[0]
        writer.store.keep_videos(set(writer.store.video_ids()) - {lost})
    found = doctor.agreement(library)
    assert (found.state, lost in found.text) == ("failed", True)
    (library / "features.h5").unlink()
    assert doctor._run("features", lambda: doctor.features(library)).state == "failed"


def test_damaged_features(library: Path) -> None:
    assert doctor.features(library).state == "ok"
    with h5py.File(library / "features.h5", "r+", libver="v110") as file:
        file["videos/frames"][0] += 1
    found = doctor.features(library)
    assert (found.state, "checksum" in found.text) == ("warning", True)


def test_features_of_removed_videos(library: Path) -> None:
    with opened(library) as writer:
        writer.remove(writer.index.video_ids()[0])
    found = doctor.agreement(library)
    assert (found.state, "1 removed" in found.text) == ("ok", True)


def test_unreadable_files_are_a_warning(library: Path, tmp_path: Path) -> None:
    (tmp_path / "films/notes.mp4").write_text("to do: buy milk")
    index(library, tmp_path / "films")
    found = doctor.catalogue(library)
    assert (found.state, f"midreel info {library}" in found.remedy) == ("warning", True)
    assert found.text.endswith("; unreadable files: 1")


def test_folder_without_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "MACHINE", {})
    (tmp_path / "apart/empty").mkdir(parents=True)  # a library beside it would be suggested instead
    found = examine(tmp_path / "apart/empty")
    assert not found.ok
    assert found.findings[-1].name == "library"
    assert "midreel index" in found.findings[-1].text
