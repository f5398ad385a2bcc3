import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jaxtyping
import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from midreel.features import Backbone

settings.register_profile("midreel", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("midreel")
os.environ["MIDREEL_BACKBONE"] = "tiny-clip"  # the default of new libraries: tests use no network
torch.set_num_threads(1)  # the tensors are tiny: more threads would only wait for each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "exported_run" in getattr(item, "fixturenames", ()):  # half a minute to make
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _few_background_sentences() -> Iterator[None]:
    """Calibrate libraries on every sixteenth background sentence, which saves a second for each library of a test."""
    from midreel.library import confidence

    few = confidence.background_sentences()[::16]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confidence, "background_sentences", lambda: few)
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switches jaxtyping off, as it is outside pytest, so that a test can read midreel's own message."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# ---------------------------------------------------------------- a backbone, a library, the command line
# What they need is imported when it is needed: transformers alone takes seconds.


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.features.tiny_clip import save_tiny_clip

    return save_tiny_clip(tmp_path_factory.mktemp("tiny") / "clip")


@pytest.fixture(scope="session")
def backbone(tiny_clip: Path) -> "Backbone":
    from midreel.features import load_backbone

    return load_backbone(f"local-dir:{tiny_clip}")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL database: of a temporary server, or of the one that MIDREEL_POSTGRES_URL names."""
    if url := os.environ.get("MIDREEL_POSTGRES_URL"):
        yield url
        return
    from tools.postgres_server import PostgresServer

    # Without fsync, commits survive killed processes, but not a machine without power. Tests kill only processes.
    with PostgresServer({"fsync": "off", "shared_buffers": "64MB"}) as server:
        yield server.url


@pytest.fixture
def schema_name(postgres_url: str) -> Iterator[str]:
    """The name of a new index in the database, which is deleted afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield name
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", (name,))
        for (each,) in found.fetchall():
            connection.execute(f"DROP SCHEMA {each} CASCADE".encode())


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory, backbone: "Backbone") -> Path:
    """A small playhouse, without files, and its features; to be left as it is."""
    from midreel.datasets import dataset, open_annotations, playhouse

    folder = tmp_path_factory.mktemp("library")
    playhouse.write_dataset(folder, seed=3, num_train=6, num_val=3, num_test=3, files=())
    dataset.extract(open_annotations(folder), backbone, rate=0.5)
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """A finished run on that library; to be left as it is."""
    from midreel import recipes
    from midreel.datasets.dataset import Dataset
    from midreel.experiments import runs
    from tests.experiments.small import SETTINGS

    folder = tmp_path_factory.mktemp("runs") / "run"
    runs.train(Dataset.open(dataset_folder), recipes.build("msc", "playhouse", SETTINGS), folder)
    return folder


@pytest.fixture(scope="session")
def exported_run(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> "ExportedRun":
    """That run, exported with its graphs, which takes a while; to be left as it is."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "runs").mkdir()
    (folder / "runs/mine").symlink_to(run_folder)
    command = [sys.executable, "-m", "midreel", "export-model", "runs/mine", "exported", "--onnx"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    return ExportedRun(folder / "exported", Ended(ended.returncode, ended.stdout, ended.stderr))


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@dataclass(frozen=True)
class ExportedRun:
    folder: Path
    ended: Ended


@pytest.fixture
def midreel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `midreel WORDS` in this process, which is what the installed script does in one of its own."""
    from midreel import cli

    def run(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["midreel", *map(str, words)])
        monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # which the command replaces
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    return run
