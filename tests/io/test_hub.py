"""Models on a hub: uploaded to a fake one on this computer, downloaded from it, indexed and evaluated with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from midreel.io.hub import hub_id
from tests.io import fake_hub
from tests.io.fake_hub import FakeHub

NAME = "me/small-model"


def command(hub: str, home: Path, *arguments: object, token: str = fake_hub.TOKEN) -> subprocess.CompletedProcess[str]:
    """Run midreel with another hub. The hub's client reads its address when it is imported, so this is a process."""
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HUB_ETAG_TIMEOUT": "20", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "midreel", *map(str, arguments)],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_a_model_goes_to_the_hub_and_comes_back(run_folder: Path, dataset_folder: Path, tmp_path: Path) -> None:
    with fake_hub.running() as hub:
        pushed = command(hub.address, tmp_path, "push", run_folder, NAME, "--private", "--json")
        assert pushed.returncode == 0, pushed.stderr
        assert json.loads(pushed.stdout)["address"] == f"{hub.address}/{NAME}"
        sent = hub.files[NAME]
        assert set(json.loads(pushed.stdout)["files"]) == set(sent) - {".gitattributes"}
        assert sent["model.safetensors"] == (run_folder / "best/model.safetensors").read_bytes()
        assert NAME in hub.private
        assert not any(str(tmp_path).encode() in content for content in sent.values())

        evaluated = command(hub.address, tmp_path, "evaluate", NAME, "--dataset", dataset_folder, "--json", token="")
        assert evaluated.returncode == 0, evaluated.stderr
    own = command("http://127.0.0.1:9", tmp_path, "evaluate", run_folder, "--dataset", dataset_folder, "--json")
    assert json.loads(evaluated.stdout)["figures"] == json.loads(own.stdout)["figures"]

    # Without the hub, the copy on this disk is used.
    again = command("http://127.0.0.1:9", tmp_path, "evaluate", f"hf-hub:{NAME}", "--dataset", dataset_folder, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["figures"] == json.loads(own.stdout)["figures"]


@pytest.mark.slow
def test_refused_and_missing_models(run_folder: Path, dataset_folder: Path, tmp_path: Path) -> None:
    with fake_hub.running() as hub:
        for arguments, token, word in (
            (("push", run_folder, NAME), "hf_wrong", "hf auth login"),
            (("push", run_folder, "no-owner"), fake_hub.TOKEN, "OWNER/NAME"),
            (("evaluate", "me/nothing", "--dataset", dataset_folder), "", "me/nothing"),
        ):
            ended = command(hub.address, tmp_path, *arguments, token=token)
            assert ended.returncode == 1
            assert word in ended.stderr
            assert "Traceback" not in ended.stderr
        assert hub.files == {}


def test_folders_are_not_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_id("runs/mine") == "runs/mine"
    (tmp_path / "runs").mkdir()
    assert hub_id("runs/mine") is None  # a run that does not exist
    assert hub_id("hf-hub:runs/mine") == "runs/mine"
    for name in ("zero-shot", "a/b/c", "../x", "./x", "", "/a/b", "C:/x"):
        assert hub_id(name) is None


def test_nothing_is_asked_of_the_hub_for_a_folder(run_folder: Path) -> None:
    from midreel.methods.model_files import model_folder

    assert model_folder(run_folder) == run_folder / "best"


def test_the_fake_hub_serves_what_it_got() -> None:
    hub: FakeHub
    with fake_hub.running() as hub:
        hub.files["a/b"] = {"x": b"1"}
        first = hub.commit("a/b")
        hub.files["a/b"]["x"] = b"2"
        assert hub.commit("a/b") != first
