"""A method of another package is installed, trained, evaluated, indexed, searched and exported like midreel's own."""

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from midreel.errors import BadPackage, UnknownName
from midreel.methods import METHODS
from midreel.methods.registry import Registry
from tests import ROOT

TOY = Path(__file__).parent / "toy"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the toy package and all packages of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv")
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    (packages / "beside.pth").write_text("\n".join([str(ROOT), *site.getsitepackages()]))
    shutil.copytree(TOY, folder / "toy")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    install = [sys.executable, "-m", "pip", "install", *options, "--target", packages, folder / "toy"]
    subprocess.run(install, check=True, timeout=300)
    return folder / "venv/bin/python"


def run(python: Path, folder: Path, *words: object) -> str:
    command = [python, "-m", "midreel", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_method_of_another_package_from_training_to_export(python: Path, tmp_path: Path) -> None:
    assert "toy" in json.loads(run(python, tmp_path, "methods", "--json"))
    run(python, tmp_path, "playhouse", "data", "--train", 12, "--val", 4, "--test", 6)
    run(python, tmp_path, "extract", "data")
    run(python, tmp_path, "train", "--method", "toy", "--dataset", "data", "--out", "runs/toy", "--keep-trained")
    found = json.loads(run(python, tmp_path, "evaluate", "runs/toy", "--dataset", "data", "--json"))
    names = ("half R@1", "shot R@1", "instant R@1", "found mIoU", "best half mIoU", "best instant R1@0.5")
    assert set(names) <= set(found["figures"])
    assert "best half" in run(python, tmp_path, "evaluate", "runs/toy", "--dataset", "data")
    run(python, tmp_path, "index", "data", "--library", "library", "--model", "runs/toy")
    hits = json.loads(run(python, tmp_path, "search", "library", "a red ball", "--json"))["results"][0]["hits"]
    assert len(hits) == 10
    assert set(hits[0]["branch_scores"]) == {"half", "shot", "instant"}
    assert hits[0]["moments"]
    run(python, tmp_path, "export-model", "runs/toy", "exported", "--onnx")
    facts = json.loads((tmp_path / "exported/encoders.json").read_text())
    assert facts["branch_weights"] == {"half": 0.2, "shot": 0.5, "instant": 0.3}


def registry_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *entries: str) -> Registry[type]:
    """A registry with the entry points of a package that is on the path and not imported."""
    folder = tmp_path / "somebody-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("\n".join(["[some.group]", *entries]))
    monkeypatch.syspath_prepend(tmp_path)
    return Registry("thing", "some.group", {"own": int}, expected=int)


def test_entry_points_are_imported_on_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_with(
        tmp_path, monkeypatch, "truth = builtins:bool", "gone = nowhere:Gone", "word = builtins:str"
    )
    assert list(registry) == ["own", "gone", "truth", "word"]
    assert registry["truth"] is bool
    assert ("gone" in registry, "other" in registry, len(registry)) == (True, False, 4)
    with pytest.raises(UnknownName, match="truth"):
        registry["truht"]
    with pytest.raises(BadPackage, match="somebody"):
        registry["gone"]
    with pytest.raises(BadPackage, match="builtins:str"):
        registry["word"]


def test_a_name_that_exists_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_with(tmp_path, monkeypatch, "own = builtins:bool")
    assert registry["own"] is int
    with pytest.raises(BadPackage, match="somebody"):
        list(registry)


def test_our_own_methods() -> None:
    assert {"clip_zero_shot", "gmmformer_v2", "msc"} <= set(METHODS)
