"""What can be wrong with what people bring, as the commands meet it: a clear error or a named skip, nothing lost."""

import json
import os
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

from midreel.cli import console
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
    """A library with two good videos, and room for bad ones."""
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
    """A library with features, to be spoilt."""
    return Path(shutil.copytree(dataset_folder, tmp_path / "library"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "last/model.safetensors")


def expect_same_run(run: Path, whole: Path) -> None:
    assert list(read_lines(run / "metrics.jsonl")) == list(read_lines(whole / "metrics.jsonl"))
    for name, weight in weights(whole).items():
        assert weight.equal(weights(run)[name])


# ---------------------------------------------------------------- videos and queries


def test_an_unreadable_an_empty_and_a_missing_video(midreel: Command, videos: Path, tiny_clip: Path) -> None:
    describe(videos, "broken", "beach", "empty", "missing", "pool")
    (videos / "broken.mp4").write_bytes(b"not a video, whatever its name says")
    (videos / "empty.mp4").touch()
    extract = ("extract", videos, "--backbone", f"local-dir:{tiny_clip}", "--json")
    ended = midreel(*extract)
    assert ended.code == 3
    found = json.loads(ended.out)["videos"]
    assert (found["done"], found["skipped"], list(found["failed"])) == (2, 0, ["broken", "empty", "missing"])
    for name in ("broken", "empty"):
        assert f"{name}.mp4 cannot be decoded" in found["failed"][name]
        assert "expected a video that ffmpeg reads; convert it or leave it out" in found["failed"][name]
    assert "has no file missing" in found["failed"]["missing"]

    # Mended, a second run adds what was left out and nothing else.
    shutil.copy(videos / "pool.mp4", videos / "broken.mp4")
    ended = midreel(*extract[:-1], "--workers", 1)
    assert ended.code == 3
    assert ended.out.splitlines()[:2] == [
        "videos: 1 encoded, 2 were there, 2 left out",
        "queries: 0 encoded, 5 were there, 0 left out",
    ]
    assert ended.out.splitlines()[2].startswith("left out empty: ")
    assert ended.out.splitlines()[4] == (
        "1 of them could not be read by an earlier run and have not changed since; --retry tries them again"
    )
    assert sorted(FeatureStore.open(videos / "features.h5").video_ids()) == ["beach", "broken", "pool"]

    # What is left can be tried again all the same.
    assert json.loads(midreel(*extract).out)["not_retried"] == ["empty"]
    ended = midreel(*extract, "--retry")
    assert (ended.code, json.loads(ended.out)["not_retried"]) == (3, [])

    # What was encoded before its file broke stays, and this is said: training would use it.
    assert json.loads(ended.out)["outdated"] == []
    (videos / "broken.mp4").write_bytes(b"broken")
    assert json.loads(midreel(*extract).out)["outdated"] == ["broken"]
    assert midreel(*extract[:-1]).out.splitlines()[-1] == (
        "remark: the store still holds broken as it was before its file changed, and it is used like that; mend the "
        "file, or take the video out of the annotations"
    )
    assert FeatureStore.open(videos / "features.h5").has_video("broken")


def test_a_folder_of_videos_that_nobody_described(midreel: Command, videos: Path, tiny_clip: Path) -> None:
    (videos / "annotations.jsonl").unlink()
    zoo.hit_in_the_middle(videos / "hit.mp4")
    zoo.cut_short(videos / "cut.mp4")
    extract = ("extract", videos, "--backbone", f"local-dir:{tiny_clip}", "--out", videos / "out.h5")
    ended = midreel(*extract)
    assert ended.out.splitlines() == [
        "videos: 4 encoded, 0 were there, 0 left out",
        "damaged cut: 1 packet could not be decoded, it ends at 1.9 s of 5.0 s",
        "damaged hit: 12 packets could not be decoded",
    ]
    assert (ended.code, FeatureStore.open(videos / "out.h5").video_ids()) == (0, ["beach", "cut", "hit", "pool"])


def test_a_query_without_a_video(midreel: Command, videos: Path, tiny_clip: Path) -> None:
    """It is named when features are extracted; and one without a name for its video at once."""
    describe(videos, "beach", "desert")
    ended = midreel("extract", videos, "--backbone", f"local-dir:{tiny_clip}")
    assert ended.code == 3
    assert f"left out desert: {videos} has no file desert" in ended.out
    with (videos / "annotations.jsonl").open("a") as file:
        file.write('\n{"query": "a dog"}')
    ended = midreel("extract", videos)
    assert (ended.code, ended.out) == (1, "")
    assert "annotations.jsonl, line 3 is" in ended.err
    assert "expected an object with video and query" in ended.err


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_video_without_features(midreel: Command, copy: Path, command: str, tmp_path: Path) -> None:
    described = {"video": "beach", "query": "a dog", "id": "new", "split": "test" if command == "evaluate" else "train"}
    with (copy / "annotations.jsonl").open("a") as file:
        file.write(json.dumps(described))
    options = {"train": ["--out", tmp_path / "run", *as_options()], "evaluate": ["zero-shot"]}
    ended = midreel(command, "--dataset", copy, *options[command])
    assert (ended.code, ended.out) == (1, "")
    assert "such as 'beach'" in ended.err
    assert f"midreel extract {copy}" in ended.err
    assert not (tmp_path / "run").exists()


def test_features_that_are_not_numbers_are_not_stored(
    midreel: Command, videos: Path, tiny_clip: Path, tmp_path: Path
) -> None:
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
        assert f"the frames of video {name!r}" in reason
        assert "NaN or infinite in float16" in reason


def test_features_that_are_not_numbers_are_not_read(midreel: Command, copy: Path, tmp_path: Path) -> None:
    """Those that another program stored."""
    video_id = Dataset.open(copy).splits["train"].video_ids[2]
    original = HDF5Log(copy / "features.h5")
    ids = {table: original.ids(table) for table in ("videos", "texts")}
    entries = {table: {key: dict(original.read(table, key) or {}) for key in ids[table]} for table in ids}
    original.close()
    fingerprint = FeatureStore.open(copy / "features.h5").fingerprint
    (copy / "features.h5").unlink()
    FeatureStore.create(copy / "features.h5", fingerprint).close()
    entries["videos"][video_id]["frames"][1, 2] = np.nan
    spoilt = HDF5Log(copy / "features.h5", writable=True)
    for table, rows in entries.items():
        spoilt.append(table, rows)
    spoilt.close()
    ended = midreel("train", "--dataset", copy, "--out", tmp_path / "run", *as_options())
    assert ended.code == 1
    assert f"1 values of the frames of video {video_id!r}" in ended.err
    assert not (tmp_path / "run").exists()


def test_a_wrong_store(midreel: Command, copy: Path, tmp_path: Path) -> None:
    train = ("train", "--dataset", copy, "--out", tmp_path / "run", *as_options())
    whole = (copy / "features.h5").read_bytes()
    for content, message in (
        (b"no store at all", "features.h5"),
        (whole[: len(whole) // 2], "truncated"),
    ):
        (copy / "features.h5").write_bytes(content)
        ended = midreel(*train)
        assert (ended.code, ended.out) == (1, "")
        assert message in ended.err
        assert "extract" in ended.err
        assert "Traceback" not in ended.err
    (copy / "features.h5").unlink()
    assert f"has no features.h5, expected features; run: midreel extract {copy}" in midreel(*train).err
    assert not (tmp_path / "run").exists()


def test_a_store_and_a_model_of_another_backbone(
    midreel: Command, copy: Path, run_folder: Path, tiny_clip: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(tiny_clip, tmp_path / "other"))
    changed = load_file(other / "model.safetensors")
    changed["visual_projection.weight"] += 1
    save_file(changed, other / "model.safetensors", metadata={"format": "pt"})

    before = (copy / "features.h5").read_bytes()
    ended = midreel("extract", copy, "--backbone", f"local-dir:{other}", "--rate", 0.5)
    assert (ended.code, ended.out) == (1, "")
    assert "(stored != expected): weights" in ended.err
    assert f"local-dir:{tiny_clip}" in ended.err
    assert (copy / "features.h5").read_bytes() == before

    (copy / "features.h5").unlink()
    fingerprint = load_backbone(f"local-dir:{other}").fingerprint
    shutil.copy(copy / "annotations.jsonl", other)
    assert midreel("extract", copy, "--backbone", f"local-dir:{other}", "--rate", 0.1).code == 0
    ended = midreel("evaluate", run_folder, "--dataset", copy)
    assert (ended.code, ended.out) == (1, "")
    assert "best was trained on other features than those in" in ended.err
    assert f"!= {fingerprint.weights[:12]}…; frame_rate 0.5 != 0.1" in ended.err
    assert f"run: midreel extract {copy} --backbone local-dir:{tiny_clip} --rate 0.5" in ended.err


# ---------------------------------------------------------------- disks and kills


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that refuses to let a file grow further, which is what a full one does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_while_extracting(midreel: Command, videos: Path, tiny_clip: Path) -> None:
    extract = ("extract", videos, "--backbone", f"local-dir:{tiny_clip}")
    assert midreel(*extract).code == 0
    shutil.copy(videos / "pool.mp4", videos / "desert.mp4")
    describe(videos, "beach", "pool", "desert")
    with files_of_at_most((videos / "features.h5").stat().st_size // 2):
        ended = midreel(*extract)
    assert (ended.code, ended.out) == (1, "")
    assert "features.h5" in ended.err
    assert "stored entries are kept" in ended.err
    ended = midreel(*extract)
    assert ended.out.splitlines()[0] == "videos: 1 encoded, 2 were there, 0 left out"


def test_a_full_disk_while_making_videos(midreel: Command, tmp_path: Path) -> None:
    make = ("playhouse", tmp_path, "--train", 0, "--val", 0, "--seed", 3, "--test")
    assert midreel(*make, 1).code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with files_of_at_most(50_000):
        ended = midreel(*make, 2)
    assert (ended.code, ended.out) == (1, "")
    assert "playhouse-test-00001.mp4" in ended.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize("after", ["playhouse.json", "*.mp4"], ids=["as it begins", "on the way"])
def test_an_interruption_while_making_videos(tmp_path: Path, after: str) -> None:
    """Ctrl-C reaches the workers too, as all of a terminal's processes: it is told once, and no half file is left."""
    words = ["playhouse", str(tmp_path), "--train", "0", "--val", "0", "--test", "60", "--seed", "3"]
    # Whoever runs the tests in the background may have its programs ignore the signal.
    heeding = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{heeding} runpy.run_module('midreel', run_name='__main__')", *words],
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
    assert (process.returncode, out, err) == (130, "", "midreel: interrupted; what was finished is kept\n")
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".mp4"}
    for path in tmp_path.glob("*.mp4"):
        assert len(list(read_frames(path, 1.0))) > 10
    assert len(list(tmp_path.glob("*.mp4"))) < 60


def test_a_full_disk_while_training(
    midreel: Command, dataset_folder: Path, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up after the first of two epochs; that one is kept, and the run ends as if nothing had been."""
    train = ("train", "--dataset", dataset_folder, "--out", tmp_path / "run", *as_options())
    after = console.TrainingBar.epoch
    size = (run_folder / "last/optimiser.safetensors").stat().st_size // 2
    with files_of_at_most(resource.RLIM_INFINITY), monkeypatch.context() as patch:

        def fill(bar: console.TrainingBar, record: dict[str, object], best: float) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            after(bar, record, best)

        patch.setattr(console.TrainingBar, "epoch", fill)
        ended = midreel(*train)
    assert (ended.code, ended.out) == (1, "")
    assert f"{tmp_path / 'run'} cannot be written" in ended.err
    assert "make room and go on with --resume: the epochs before are kept" in ended.err
    assert json.loads((tmp_path / "run/last/trainer.json").read_text())["state"]["epoch"] == 1
    assert midreel(*train, "--resume").code == 0
    expect_same_run(tmp_path / "run", run_folder)


KILLED = """
import os, signal, sys
from midreel import cli
from midreel.cli import console

def step(bar, epoch, number, *_):
    if (epoch, number) == (1, 1):
        os.kill(os.getpid(), signal.SIGKILL)

console.TrainingBar.step = step
sys.argv = ["midreel", *sys.argv[1:]]
cli.main()
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(
    midreel: Command, dataset_folder: Path, run_folder: Path, tmp_path: Path
) -> None:
    """Killed in its second epoch; tests/training/test_fit.py kills at any time."""
    run = tmp_path / "run"
    words = ["train", "--dataset", str(dataset_folder), "--out", str(run), *as_options()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # the order of sums depends on the number of threads
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], env=environment, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert [record["epoch"] for record in read_lines(run / "metrics.jsonl")] == [0]
    ended = midreel(*words)
    assert (ended.code, "go on with it by --resume" in ended.err) == (1, True)
    assert midreel(*words, "--resume").code == 0
    expect_same_run(run, run_folder)
