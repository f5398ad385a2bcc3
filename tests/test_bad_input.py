"""Tests of the commands with bad input: each prints a clear error or lists what it skips, and loses nothing."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from midreel.cli import training_console
from midreel.datasets.dataset import Dataset
from midreel.features import load_backbone
from midreel.features.stores.hdf5_log import HDF5Log
from midreel.features.stores.store import FeatureStore
from midreel.media.decode import read_frames, write_video
from midreel.training.fit import read_lines
from tests import zoo
from tests.conftest import Command
from tests.experiments.small import as_options


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """A dataset of two good videos, without features."""
    for number, name in enumerate(("beach", "pool")):
        pictures = (np.full((32, 32, 3), 40 * (number + k), np.uint8) for k in range(4))
        write_video(tmp_path / f"{name}.mp4", pictures, rate=2)
    describe(tmp_path, "beach", "pool")
    return tmp_path


def describe(folder: Path, *video_ids: str) -> None:
    lines = [json.dumps({"video": video_id, "query": f"the {video_id}"}) for video_id in video_ids]
    (folder / "annotations.jsonl").write_text("\n".join(lines))


@pytest.fixture
def copy(dataset_folder: Path, tmp_path: Path) -> Path:
    """A copy of a dataset with features, which a test may damage."""
    return Path(shutil.copytree(dataset_folder, tmp_path / "dataset"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "last/model.safetensors")


def expect_same_run(run: Path, whole: Path) -> None:
    assert list(read_lines(run / "metrics.jsonl")) == list(read_lines(whole / "metrics.jsonl"))
    for name, weight in weights(whole).items():
        assert weight.equal(weights(run)[name])


# ---------------------------------------------------------------- videos and queries


def test_unreadable_empty_and_missing_video(midreel: Command, videos: Path, tiny_clip: Path) -> None:
    describe(videos, "broken", "beach", "empty", "missing", "pool")
    (videos / "broken.mp4").write_bytes(b"not a video, whatever its name says")
    (videos / "empty.mp4").touch()
    extract = ("extract", videos, "--backbone", f"local-dir:{tiny_clip}", "--json")
    ended = midreel(*extract)
    assert ended.code == 3
    found = json.loads(ended.out)["videos"]
    assert (found["done"], found["skipped"], list(found["failed"])) == (2, 0, ["broken", "empty", "missing"])
    for name in ("broken", "empty"):
        assert f"{name}.mp4" in found["failed"][name]
    assert "missing" in found["failed"]["missing"]

    # After a repair, a second run encodes the repaired video only.
    shutil.copy(videos / "pool.mp4", videos / "broken.mp4")
    ended = midreel(*extract[:-1], "--workers", 1)
    assert ended.code == 3
    assert ended.out.splitlines()[:2] == [
        "videos: 1 encoded, 2 unchanged, 2 failed",
        "queries: 0 encoded, 5 unchanged, 0 failed",
    ]
    assert ended.out.splitlines()[2].startswith("failed empty: ")
    assert ended.out.splitlines()[4].startswith("1 of these ")
    assert "--retry" in ended.out.splitlines()[4]
    assert sorted(FeatureStore.open(videos / "features.h5").video_ids()) == ["beach", "broken", "pool"]

    # --retry decodes the unreadable file again.
    assert json.loads(midreel(*extract).out)["not_retried"] == ["empty"]
    ended = midreel(*extract, "--retry")
    assert (ended.code, json.loads(ended.out)["not_retried"]) == (3, [])

    # A video whose file broke keeps its old features. The command says so, because training uses them.
    assert json.loads(ended.out)["outdated"] == []
    (videos / "broken.mp4").write_bytes(b"broken")
    assert json.loads(midreel(*extract).out)["outdated"] == ["broken"]
    assert midreel(*extract[:-1]).out.splitlines()[-2].startswith("note: broken ")
    assert FeatureStore.open(videos / "features.h5").has_video("broken")


def test_folder_of_videos_without_annotations(midreel: Command, videos: Path, tiny_clip: Path) -> None:
    (videos / "annotations.jsonl").unlink()
    zoo.hit_in_the_middle(videos / "hit.mp4")
    zoo.cut_short(videos / "cut.mp4")
    extract = ("extract", videos, "--backbone", f"local-dir:{tiny_clip}", "--out", videos / "out.h5")
    ended = midreel(*extract)
    counts, cut, hit, _ = ended.out.splitlines()
    assert counts == "videos: 4 encoded, 0 unchanged, 0 failed"
    assert re.match(r"partly readable cut: 1 packet .* 1\.9 s of 5\.0 s$", cut)
    assert hit.startswith("partly readable hit: 12 packets ")
    assert (ended.code, FeatureStore.open(videos / "out.h5").video_ids()) == (0, ["beach", "cut", "hit", "pool"])


def test_query_without_a_video(midreel: Command, videos: Path, tiny_clip: Path) -> None:
    """A missing video is listed by extract. A line without a video is an error."""
    describe(videos, "beach", "desert")
    ended = midreel("extract", videos, "--backbone", f"local-dir:{tiny_clip}")
    assert ended.code == 3
    assert f"failed desert: {videos} " in ended.out
    with (videos / "annotations.jsonl").open("a") as file:
        file.write('\n{"query": "a dog"}')
    ended = midreel("extract", videos)
    assert (ended.code, ended.out) == (1, "")
    assert "annotations.jsonl, line 3" in ended.err


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_video_without_features(midreel: Command, copy: Path, command: str, tmp_path: Path) -> None:
    described = {"video": "beach", "query": "a dog", "id": "new", "split": "test" if command == "evaluate" else "train"}
    with (copy / "annotations.jsonl").open("a") as file:
        file.write(json.dumps(described))
    options = {"train": ["--out", tmp_path / "run", *as_options()], "evaluate": ["zero-shot"]}
    ended = midreel(command, "--dataset", copy, *options[command])
    assert (ended.code, ended.out) == (1, "")
    assert "'beach'" in ended.err
    assert f"midreel extract {copy}" in ended.err
    assert not (tmp_path / "run").exists()


def test_nan_features_are_not_stored(midreel: Command, videos: Path, tiny_clip: Path, tmp_path: Path) -> None:
    """A backbone whose weights are damaged."""
    damaged = Path(shutil.copytree(tiny_clip, tmp_path / "damaged"))
    broken = load_file(damaged / "model.safetensors")
    broken["visual_projection.weight"][0, 0] = torch.nan
    save_file(broken, damaged / "model.safetensors", metadata={"format": "pt"})
    ended = midreel("extract", videos, "--backbone", f"local-dir:{damaged}", "--json")
    assert ended.code == 3
    found = json.loads(ended.out)
    assert found["queries"]["done"] == 2
    assert list(found["videos"]["failed"]) == ["beach", "pool"]
    for name, reason in found["videos"]["failed"].items():
        assert repr(name) in reason
        assert "NaN" in reason


def test_nan_features_are_not_read(midreel: Command, copy: Path, tmp_path: Path) -> None:
    """Another program may have stored NaN."""
    video_id = Dataset.open(copy).splits["train"].video_ids[2]
    original = HDF5Log(copy / "features.h5")
    ids = {table: original.ids(table) for table in ("videos", "texts")}
    entries = {table: {key: dict(original.read(table, key) or {}) for key in ids[table]} for table in ids}
    original.close()
    fingerprint = FeatureStore.open(copy / "features.h5").fingerprint
    (copy / "features.h5").unlink()
    FeatureStore.create(copy / "features.h5", fingerprint).close()
    entries["videos"][video_id]["frames"][1, 2] = np.nan
    damaged_store = HDF5Log(copy / "features.h5", writable=True)
    for table, rows in entries.items():
        damaged_store.append(table, rows)
    damaged_store.close()
    ended = midreel("train", "--dataset", copy, "--out", tmp_path / "run", *as_options())
    assert ended.code == 1
    assert repr(video_id) in ended.err
    assert "NaN" in ended.err
    assert not (tmp_path / "run").exists()


def test_damaged_and_missing_store(midreel: Command, copy: Path, tmp_path: Path) -> None:
    train = ("train", "--dataset", copy, "--out", tmp_path / "run", *as_options())
    whole = (copy / "features.h5").read_bytes()
    for content, message in (
        (b"not a store", "features.h5"),
        (whole[: len(whole) // 2], "truncated"),
    ):
        (copy / "features.h5").write_bytes(content)
        ended = midreel(*train)
        assert (ended.code, ended.out) == (1, "")
        assert message in ended.err
        assert "extract" in ended.err
        assert "Traceback" not in ended.err
    (copy / "features.h5").unlink()
    assert f"midreel extract {copy}" in midreel(*train).err
    assert not (tmp_path / "run").exists()


def test_store_and_model_of_another_backbone(
    midreel: Command, copy: Path, run_folder: Path, tiny_clip: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(tiny_clip, tmp_path / "other"))
    changed = load_file(other / "model.safetensors")
    changed["visual_projection.weight"] += 1
    save_file(changed, other / "model.safetensors", metadata={"format": "pt"})

    before = (copy / "features.h5").read_bytes()
    ended = midreel("extract", copy, "--backbone", f"local-dir:{other}", "--rate", 0.5)
    assert (ended.code, ended.out) == (1, "")
    assert "weights" in ended.err
    assert f"local-dir:{tiny_clip}" in ended.err
    assert (copy / "features.h5").read_bytes() == before

    (copy / "features.h5").unlink()
    fingerprint = load_backbone(f"local-dir:{other}").fingerprint
    shutil.copy(copy / "annotations.jsonl", other)
    assert midreel("extract", copy, "--backbone", f"local-dir:{other}", "--rate", 0.1).code == 0
    ended = midreel("evaluate", run_folder, "--dataset", copy)
    assert (ended.code, ended.out) == (1, "")
    assert fingerprint.weights[:12] in ended.err
    assert "frame_rate 0.5 != 0.1" in ended.err
    assert f"midreel extract {copy} --backbone local-dir:{tiny_clip} --rate 0.5" in ended.err


# ---------------------------------------------------------------- disks and kills


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Limit the size of files, so that writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_while_extracting(midreel: Command, videos: Path, tiny_clip: Path) -> None:
    extract = ("extract", videos, "--backbone", f"local-dir:{tiny_clip}")
    assert midreel(*extract).code == 0
    shutil.copy(videos / "pool.mp4", videos / "desert.mp4")
    describe(videos, "beach", "pool", "desert")
    with limited_file_size((videos / "features.h5").stat().st_size // 2):
        ended = midreel(*extract)
    assert (ended.code, ended.out) == (1, "")
    assert "features.h5" in ended.err
    ended = midreel(*extract)
    assert ended.out.splitlines()[0] == "videos: 1 encoded, 2 unchanged, 0 failed"


def test_full_disk_while_generating_videos(midreel: Command, tmp_path: Path) -> None:
    make = ("playhouse", tmp_path, "--train", 0, "--val", 0, "--seed", 3, "--test")
    assert midreel(*make, 1).code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with limited_file_size(50_000):
        ended = midreel(*make, 2)
    assert (ended.code, ended.out) == (1, "")
    assert "playhouse-test-00001.mp4" in ended.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize("after", ["playhouse.json", "*.mp4"], ids=["at the start", "halfway"])
def test_interrupt_while_generating_videos(tmp_path: Path, after: str) -> None:
    """Ctrl-C reaches the workers too. The command prints one line, and leaves no partial file."""
    words = ["playhouse", str(tmp_path), "--train", "0", "--val", "0", "--test", "60", "--seed", "3"]
    # A shell that runs the tests in the background makes them ignore SIGINT, so restore Python's handler.
    handler = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{handler} runpy.run_module('midreel', run_name='__main__')", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not any(tmp_path.glob(after)) and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)  # the workers import what they need
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("midreel: interrupted")
    assert len(err.splitlines()) == 1
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".mp4"}
    for path in tmp_path.glob("*.mp4"):
        assert len(list(read_frames(path, 1.0))) > 10
    assert len(list(tmp_path.glob("*.mp4"))) < 60


def test_full_disk_while_training(
    midreel: Command, dataset_folder: Path, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up after the first of two epochs. --resume ends with the same bits as an undisturbed run."""
    train = ("train", "--dataset", dataset_folder, "--out", tmp_path / "run", *as_options())
    after = training_console.TrainingBar.epoch
    size = (run_folder / "last/optimiser.safetensors").stat().st_size // 2
    with limited_file_size(resource.RLIM_INFINITY), monkeypatch.context() as patch:

        def fill(bar: training_console.TrainingBar, record: dict[str, object], best: float) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            after(bar, record, best)

        patch.setattr(training_console.TrainingBar, "epoch", fill)
        ended = midreel(*train)
    assert (ended.code, ended.out) == (1, "")
    assert str(tmp_path / "run") in ended.err
    assert "--resume" in ended.err
    assert json.loads((tmp_path / "run/last/trainer.json").read_text())["state"]["epoch"] == 1
    assert midreel(*train, "--resume").code == 0
    expect_same_run(tmp_path / "run", run_folder)


KILLED = """
import os, signal, sys
from midreel import cli
from midreel.cli import console, training_console

def step(bar, epoch, number, *_):
    if (epoch, number) == (1, 1):
        os.kill(os.getpid(), signal.SIGKILL)

training_console.TrainingBar.step = step
sys.argv = ["midreel", *sys.argv[1:]]
cli.main()
"""


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_bits(
    midreel: Command, dataset_folder: Path, run_folder: Path, tmp_path: Path
) -> None:
    """Kill in the second epoch; tests/training/test_fit.py kills at any time."""
    run = tmp_path / "run"
    words = ["train", "--dataset", str(dataset_folder), "--out", str(run), *as_options()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # the order of sums depends on the number of threads
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], env=environment, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert [record["epoch"] for record in read_lines(run / "metrics.jsonl")] == [0]
    ended = midreel(*words)
    assert (ended.code, "--resume" in ended.err) == (1, True)
    assert midreel(*words, "--resume").code == 0
    expect_same_run(run, run_folder)
