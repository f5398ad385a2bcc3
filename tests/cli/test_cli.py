import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

import midreel as package
from midreel import cli
from midreel.cli import research
from midreel.cli.commands import print_result
from midreel.datasets import own
from midreel.datasets.dataset import Dataset
from midreel.errors import BadSetting
from midreel.experiments import demo
from midreel.features.stores.store import FeatureStore
from midreel.methods import METHODS
from midreel.recipes.published import RESULTS
from tests.conftest import Command
from tests.datasets import trees
from tests.datasets.real import real_file
from tests.experiments.small import as_options

COMMANDS = (
    *("demo", "playhouse", "data", "extract", "join"),
    *("index", "reindex", "search", "export", "info", "serve", "feedback", "adapt"),
    *("train", "methods", "backbones", "evaluate", "import-checkpoint", "export-model", "doctor"),
    *("reproduce", "compare"),
)
HEAVY = ("torch", "transformers", "h5py", "matplotlib", "scipy", "numpy", "av", "huggingface_hub")


def run_in_process(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    environment = os.environ | {"COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "midreel", *words], capture_output=True, text=True, env=environment, timeout=120
    )


# ---------------------------------------------------------------- help, versions, mistakes


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from midreel import cli
sys.argv = ["midreel", "--help"]
try:
    cli.main()
finally:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (shown.returncode, shown.stderr.strip()) == (0, "[]")
    assert all(f" {command} " in shown.stdout for command in COMMANDS)


def test_every_command_and_option_has_help() -> None:
    waiting, seen = [typer.main.get_command(cli.app)], []
    while waiting:
        command = waiting.pop()
        seen.append(command.name)
        waiting.extend(getattr(command, "commands", {}).values())
        assert (command.help or "").strip().endswith("."), command.name
        for parameter in command.params:
            text = parameter.help or ""
            assert text.endswith((".", "…")), (command.name, parameter.name)
            assert len(text) <= 80, (command.name, parameter.name)
    assert {*COMMANDS, "verify", "new"} <= set(seen)


def test_panels_list_every_command() -> None:
    listed = [name for names in cli.PANELS.values() for name in names]
    assert sorted(listed) == sorted(typer.main.get_command(cli.app).commands)


def test_help_fits_a_terminal(midreel: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples and the paragraphs contain line breaks, so they must not be wrapped again."""
    monkeypatch.setenv("COLUMNS", "80")
    for command in typer.main.get_command(cli.app).commands.values():
        shown = midreel(command.name, "--help").out
        for line in inspect.cleandoc(f"{command.help}\n\n{command.epilog or ''}").splitlines():
            assert line in shown


@pytest.mark.parametrize("words", [(), ("index",), ("data",), ("data", "verify")])
def test_help_shows_no_type_names(midreel: Command, words: tuple[str, ...]) -> None:
    shown = midreel(*words, "--help").out
    assert "--help" in shown
    assert "bool" not in shown.lower()
    assert "<" not in shown


def test_no_arguments_show_help(midreel: Command) -> None:
    assert "Usage: midreel" in midreel().out


def test_version(midreel: Command) -> None:
    ended = midreel("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"midreel {package.__version__}\n", "")


def test_methods_say_which_are_reconstructions(midreel: Command) -> None:
    found = json.loads(midreel("methods", "--json").out)
    assert {name for name, each in found.items() if each["reconstruction"]} == {"arl", "proto_prvr"}
    lines = {line.split()[0]: line for line in midreel("methods", "--long").out.splitlines()}
    assert "reconstruction" in lines["arl"]
    assert "reconstruction" not in lines["msc"]


def test_bad_command_line(midreel: Command) -> None:
    for words in (["search"], ["train"], ["playhouse", "x", "--train", "-1"], ["evaluate", "--wrong"]):
        ended = midreel(*words)
        assert (ended.code, ended.out) == (2, "")
        assert "Usage: midreel" in ended.err


@pytest.mark.parametrize(
    "words", [("train", "my clips"), ("train", "my clips", "--out", "run"), ("evaluate", "zero-shot", "my clips")]
)
def test_a_dataset_without_its_option(midreel: Command, words: tuple[str, ...]) -> None:
    ended = midreel(*words)
    assert (ended.code, ended.out) == (2, "")
    assert "--dataset 'my clips'?" in " ".join(ended.err.replace("│", "").split())
    assert midreel(*words, "--help").code == 0


def test_separate_process() -> None:
    """Exit codes and streams as a shell sees them, without pytest in between."""
    ended = run_in_process("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"midreel {package.__version__}\n", "")
    ended = run_in_process("train", "--dataset", "library", "--out", "run", "--set", "width", "--json")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("midreel: --set width ")
    ended = run_in_process("train")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Missing option '--dataset'" in ended.stderr


def test_error_is_one_line_on_stderr(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("evaluate", "zero-shot", "--dataset", tmp_path, "--json")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"midreel: {tmp_path} ")
    assert f"midreel data new {tmp_path}" in ended.err
    assert len(ended.err.splitlines()) == 1


def break_doctor(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def examine(library: Path | None) -> None:
        raise error

    monkeypatch.setattr("midreel.cli.doctor.examine", examine)


class RustPanic(BaseException):
    """An exception as Rust libraries raise it, which is not an Exception."""


@pytest.mark.parametrize("kind", [OverflowError, RustPanic])
def test_unexpected_error_is_one_line_and_a_file(
    midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[BaseException]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    break_doctor(monkeypatch, kind("too\nlarge \udcff"))
    ended = midreel("doctor", "\udcff")
    (path,) = (tmp_path / "midreel").iterdir()
    assert (ended.code, ended.out) == (1, "")
    assert len(ended.err.splitlines()) == 1
    assert kind.__name__ in ended.err
    assert str(path) in ended.err
    details = path.read_text()
    assert "Traceback" in details
    assert "examine" in details
    assert package.__version__ in details


def test_traceback_on_request(midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("MIDREEL_TRACEBACK", "1")
    for error in (OverflowError("too large"), BadSetting("no")):
        break_doctor(monkeypatch, error)
        ended = midreel("doctor")
        assert (ended.code, ended.err.startswith("Traceback")) == (1, True)
        assert ended.err.splitlines()[-1].startswith("midreel: ")
    assert "MIDREEL_TRACEBACK" in midreel("--help").out


def test_unexpected_error_without_a_writable_folder(
    midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    break_doctor(monkeypatch, OverflowError("too large"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = midreel("doctor")
    (path,) = tmp_path.glob("midreel-error-*")
    assert str(path) in ended.err
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    ended = midreel("doctor")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1)
    assert "MIDREEL_TRACEBACK=1" in ended.err


def test_unexpected_error_in_a_thread(midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_thread(library: Path | None) -> None:
        thread = threading.Thread(target=lambda: 1 // 0)
        thread.start()
        thread.join()
        raise BadSetting("ended")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("midreel.cli.doctor.examine", run_thread)
    lines = midreel("doctor").err.splitlines()
    assert ["ZeroDivisionError" in line for line in lines] == [True, False]


def test_folder_that_cannot_be_created(midreel: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = midreel("playhouse", tmp_path / "file/folder", "--train", 1, "--val", 0, "--test", 0, "--files", "")
    assert ended.code == 1
    assert ended.err.startswith("midreel: [Errno 20] Not a directory")
    assert "Traceback" not in ended.err


def test_interrupt(midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("midreel.datasets.playhouse.write_dataset", interrupt)
    ended = midreel("playhouse", tmp_path / "folder")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.startswith("midreel: interrupted")
    monkeypatch.setattr("midreel.server.runner.serve", interrupt)  # Ctrl-C is the normal end of a server
    ended = midreel("serve", tmp_path)
    assert (ended.code, ended.out, "stopped" in ended.err) == (0, "", True)


@pytest.mark.parametrize("change", ["width", "=64", "width=", ""])
def test_incomplete_setting(midreel: Command, change: str) -> None:
    ended = midreel("train", "--dataset", "library", "--out", "run", "--set", change)
    assert ended.code == 1
    assert ended.err.startswith(f"midreel: --set {change} ")


def test_settings_are_parsed_as_json_or_text() -> None:
    changes = ["width=64", "lr=1e-3", "tcpl=false", "clips=uniform", "text=a=b"]
    expected = {"width": 64, "lr": 1e-3, "tcpl": False, "clips": "uniform", "text": "a=b"}
    assert research.parse_settings(changes) == expected
    with pytest.raises(BadSetting):
        research.parse_settings(["width"])


def test_nan_becomes_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(True, {"a": [float("nan"), (1.5, float("inf"))], "b": {"c": "NaN"}}, "text")
    assert json.loads(capsys.readouterr().out) == {"a": [None, [1.5, None]], "b": {"c": "NaN"}}
    print_result(False, {}, "a table\n")
    assert capsys.readouterr().out == "a table\n"


# ---------------------------------------------------------------- the commands


def test_playhouse(midreel: Command, tmp_path: Path) -> None:
    words = ("playhouse", tmp_path, "--train", 2, "--val", 1, "--test", 0, "--seed", 3, "--files", "")
    ended = midreel(*words)
    assert (ended.code, ended.err) == (0, "")
    splits = own.read(tmp_path)
    assert ended.out.splitlines() == [
        f"train: 2 videos, {len(splits['train'].queries)} queries",
        f"val: 1 video, {len(splits['val'].queries)} queries",
        f"written to {tmp_path}",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"annotations.jsonl", "playhouse.json", "contact-sheet.png"}
    result = json.loads(midreel(*words, "--json").out)
    assert result["splits"]["val"] == {"videos": 1, "queries": len(splits["val"].queries)}


def test_annotate_and_verify_a_folder(midreel: Command, tmp_path: Path) -> None:
    """A new file is filled in and verified; missing sentences and files are reported, nothing is overwritten."""
    for name in ("beach.mp4", "pool.mp4"):
        (tmp_path / name).touch()
    ended = midreel("data", "new", tmp_path)
    path = tmp_path / "annotations.csv"
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{path}: 2 videos")
    assert ended.out.endswith(f"{own.ABOUT_SPLITS}\n")
    assert midreel("data", "new", tmp_path, "--format", "jsonl").err.startswith(f"midreel: {path} ")
    empty = midreel("data", "verify", tmp_path)
    assert (empty.code, empty.out) == (1, "")
    assert empty.err.startswith(f"midreel: {path} ")
    path.write_text("video,query,start,end\nbeach.mp4,a dog jumps,0:01,0:03\npool.mp4,,,\n")
    ended = midreel("data", "verify", tmp_path)
    assert (ended.code, "note: " in ended.out) == (0, True)

    path.write_text("video,query,start,end\nbeach.mp4,a dog jumps,0:01,0:03\npool.mp4,a cat,,\n")
    ended = midreel("data", "verify", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"own in {tmp_path}, ")
    found = json.loads(midreel("data", "verify", tmp_path, "--json").out)["datasets"][0]
    assert {name: split["videos"] for name, split in found["splits"].items()} == {"train": 1, "val": 1}

    (tmp_path / "pool.mp4").unlink()
    ended = midreel("data", "verify", tmp_path)
    assert ended.code == 3
    assert "pool.mp4" in ended.out.splitlines()[-2]


def test_new_annotations_as_json(midreel: Command, tmp_path: Path) -> None:
    (tmp_path / "beach.mp4").touch()
    ended = midreel("data", "new", tmp_path, "--format", "jsonl", "--json")
    assert json.loads(ended.out) == {"file": str(tmp_path / "annotations.jsonl"), "videos": 1}
    ended = midreel("data", "new", tmp_path / "nowhere", "--format", "xlsx")
    assert ended.code == 1
    for word in ("'xlsx'", "jsonl", "csv"):
        assert word in ended.err


def test_verify_benchmarks(midreel: Command, tmp_path: Path) -> None:
    trees.write_captions(tmp_path / "tvr", "tvr", trees.TVR)
    trees.write_charades(tmp_path / "charades")
    ended = midreel("data", "verify", tmp_path)
    assert (ended.code, ended.err) == (3, "")
    charades, tvr = ended.out.split("\n\n")
    assert charades.startswith(f"charades in {tmp_path / 'charades'}, ")
    assert "2,178" in tvr
    assert "10,894" in tvr
    only = json.loads(midreel("data", "verify", tmp_path, "--name", "tvr", "--json").out)["datasets"]
    assert [(each["name"], each["layout"]) for each in only] == [("tvr", "release")]
    ended = midreel("data", "verify", tmp_path, "--name", "own")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"midreel: {tmp_path} ")
    assert "charades, tvr" in ended.err


def test_verify_real_annotation_files(midreel: Command) -> None:
    root = real_file("qvhighlights", "highlight_val_release.jsonl").parent.parent
    ended = midreel("data", "verify", root)
    assert (ended.code, ended.err) == (0, "")
    assert "val is QVHighlights by YouTube video, val (474 videos, 1,550 queries)" in ended.out
    assert "test is Charades-STA, test (1,334 videos, 3,720 queries)" in ended.out


def test_extract_and_train(midreel: Command, tiny_clip: Path, dataset_folder: Path, tmp_path: Path) -> None:
    root, run = tmp_path / "library", tmp_path / "run"
    root.mkdir()
    for name in ("annotations.jsonl", "playhouse.json"):
        shutil.copy(dataset_folder / name, root)
    extract = ("extract", root, "--backbone", f"local-dir:{tiny_clip}", "--rate", 0.25)
    ended = midreel(*extract)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0].startswith("videos: 12 encoded, 0 ")
    assert ended.out.splitlines()[-1] == f"features: {root / 'features.h5'}"
    result = json.loads(midreel(*extract, "--json").out)
    assert result["videos"] == {"done": 0, "skipped": 12, "failed": {}}
    assert result["store"] == str(root / "features.h5")

    train = ("train", "--dataset", root, "--out", run, *as_options(epochs=1))
    ended = midreel(*train, "--json")
    assert (ended.code, ended.err) == (0, "")
    result = json.loads(ended.out)
    assert (result["model"], result["epoch"]) == (str(run / "best"), 0)
    ended = midreel(*train)
    assert (ended.code, ended.err.startswith(f"midreel: {run} "), "--resume" in ended.err) == (1, True, True)
    assert result["had_finished"] is False
    ended = midreel(*train, "--resume")
    assert "finished" in ended.out.splitlines()[0]
    best, compared, model = ended.out.splitlines()[1:]
    assert best == "best epoch 1 of 1: " + "  ".join(f"{name} {value:.1f}" for name, value in result["metrics"].items())
    assert f"{abs(result['zero_shot']['trained'] - result['zero_shot']['zero_shot']):.1f} SumR" in compared
    assert model == f"model: {run / 'best'}"
    assert json.loads(midreel(*train, "--resume", "--json").out)["had_finished"] is True
    other = midreel(*train, "--resume", "--seed", 7)
    assert (other.code, "seed: 1, 7" in other.err) == (1, True)


def test_without_a_joint_space_training_says_that_nothing_is_compared(
    midreel: Command, dataset_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(dataset_folder / "annotations.jsonl", tmp_path)
    with (
        FeatureStore.open(dataset_folder / "features.h5") as store,
        FeatureStore.create(tmp_path / "features.h5", replace(store.fingerprint, joint=False)) as other,
    ):
        for video_id in store.video_ids():
            other.add_video(video_id, store.video(video_id))
        for text_id in store.text_ids():
            other.add_text(text_id, store.text(text_id))
    ended = midreel("train", "--dataset", tmp_path, "--out", tmp_path / "run", *as_options(epochs=1))
    assert (ended.code, ended.err) == (0, "")
    assert "joint space" in ended.out.splitlines()[-1]


def test_join(midreel: Command, dataset_folder: Path, tmp_path: Path) -> None:
    clip, motion, out = dataset_folder / "features.h5", tmp_path / "motion.h5", tmp_path / "joined.h5"
    with FeatureStore.open(clip) as store:
        blind = replace(store.fingerprint, backbone="motion", width=3, word_width=None, vocabulary=None)
        with FeatureStore.create(motion, blind) as other:
            for video_id in store.video_ids():
                features = store.video(video_id)
                other.add_video(video_id, replace(features, frames=features.frames[:, :3]))
        count, num_texts = len(store.video_ids()), len(store.text_ids())
    ended = midreel("join", motion, clip, "--out", out)
    assert (ended.code, ended.err) == (0, "")
    videos, texts, clocks = ended.out.splitlines()
    assert videos.startswith(f"videos: {count} joined, 0 ")
    assert texts.startswith(f"texts: {num_texts} joined, 0 ")
    assert clocks.count("0.000 s") == 2
    assert json.loads(midreel("join", motion, clip, "--out", out, "--json").out)["videos"]["skipped"] == count

    with FeatureStore.open(motion) as store:
        store.add_video("more", store.video(store.video_ids()[0]))
    ended = midreel("join", motion, clip, "--out", out, "--texts", clip, "--tolerance", 1.5)
    assert ended.code == 3
    assert " more: " in ended.out.splitlines()[-1]
    assert str(clip) in ended.out.splitlines()[-1]
    ended = midreel("join", motion, "--out", out)
    assert (ended.code, ended.out) == (1, "")
    assert str(motion) in ended.err


def test_evaluate(midreel: Command, dataset_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    words = ("evaluate", run_folder, "--dataset", dataset_folder)
    ended = midreel(*words)
    assert (ended.code, ended.err) == (0, "")
    num_queries = len(own.read(dataset_folder)["test"].queries)
    head = ended.out.splitlines()[:2]
    assert head[0] == f"test: 3 videos, {num_queries} queries"
    assert ended.out.splitlines()[2] == ""
    assert max(map(len, ended.out.splitlines())) <= max(80, 20 + len(str(run_folder)))
    found = json.loads(midreel(*words, "--json", "--trec", tmp_path / "run.txt").out)
    assert (found["split"], found["videos"], found["queries"]) == ("test", 3, num_queries)
    assert [f"note: {remark}" for remark in found["remarks"]] == head[1:]
    figures = found["figures"]
    assert ["SumR", f"{figures['SumR']:.1f}"] in [line.split() for line in ended.out.splitlines()]
    assert f"| {figures['SumR']:.1f} |" in midreel(*words, "--format", "markdown").out
    assert {path.name for path in tmp_path.iterdir()} == {"run.txt", "run.txt.qrels"}
    ended = midreel(*words, "--format", "csv")  # the remarks go to stderr
    assert ended.out.splitlines()[0].split(",")[1:] == list(figures)
    assert ended.err.splitlines() == head
    on_val = json.loads(midreel("evaluate", "zero-shot", "--dataset", dataset_folder, "--split", "val", "--json").out)
    assert (on_val["model"], on_val["split"]) == ("zero-shot", "val")
    assert on_val["remarks"] == found["remarks"]  # no remark about val, because --split names it
    ended = midreel(*words, "--format", "html")
    assert (ended.code, ended.out) == (1, "")
    for word in ("'html'", "text", "markdown", "latex", "csv"):
        assert word in ended.err


def test_evaluate_falls_back_to_val(midreel: Command, dataset_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset_folder, tmp_path / "library")
    splits = own.read(dataset_folder)
    own.write(tmp_path / "library", {name: splits[name] for name in ("train", "val")})
    ended = midreel("evaluate", "zero-shot", "--dataset", tmp_path / "library")
    counts, remark = ended.out.splitlines()[:2]
    assert counts == f"val: 3 videos, {len(splits['val'].queries)} queries"
    found = json.loads(midreel("evaluate", "zero-shot", "--dataset", tmp_path / "library", "--json").out)
    assert (found["split"], f"note: {found['remarks'][0]}") == ("val", remark)
    assert "test" in remark


def test_misspelt_setting_and_backbone(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("train", "--dataset", tmp_path, "--out", tmp_path / "run", "--set", "epoch=1")
    assert ended.code == 1
    assert "'epoch'" in ended.err
    assert "did you mean 'epochs'?" in ended.err
    (tmp_path / "beach.mp4").touch()
    ended = midreel("extract", tmp_path, "--backbone", "tinyclip")
    assert ended.code == 1
    assert "did you mean 'tiny-clip'?" in ended.err


def test_recipe_for_other_features(midreel: Command, dataset_folder: Path, tmp_path: Path) -> None:
    ended = midreel("train", "--recipe", "tvr", "--dataset", dataset_folder, "--out", tmp_path / "run")
    assert ended.code == 1
    assert "video_width 768, text_width 768" in ended.err
    assert "video_width 24, text_width 32" in ended.err
    assert "--set video_width=24 --set text_width=32" in ended.err


@pytest.mark.parametrize(
    ("method", "words"),
    [("clip_zero_shot", ("no training", "midreel evaluate")), ("mcs", ("no method 'mcs'", "msc"))],
)
def test_train_with_a_wrong_method(midreel: Command, tmp_path: Path, method: str, words: tuple[str, ...]) -> None:
    ended = midreel("train", "--method", method, "--dataset", tmp_path, "--out", tmp_path / "run")
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert all(word in ended.err for word in (method, *words))
    assert not (tmp_path / "run").exists()


def test_methods(midreel: Command) -> None:
    names = midreel("methods").out.splitlines()
    assert names == sorted(METHODS)  # one name a line, and nothing else: programs read it
    assert list(json.loads(midreel("methods", "--json").out)) == names
    head, *rows = midreel("methods", "--long").out.splitlines()
    assert head.split() == ["method", "paper", "recipes"]
    assert [row.split()[0] for row in rows if row[0] != " "] == names
    assert max(map(len, rows)) <= 80


def test_expected_results(midreel: Command) -> None:
    words = ("methods", "--expected", "--method", "msc", "--dataset", "tvr")
    assert ["msc", "35.1", "61.6", "71.5", "94.9", "263.1"] in [
        row.split()[:6] for row in midreel(*words).out.splitlines()
    ]
    (result,) = json.loads(midreel(*words, "--json").out)["results"]
    assert (result["recalls"], result["sumr"], result["features"]) == ([35.1, 61.6, 71.5, 94.9], 263.1, "clip-l14")
    everything = json.loads(midreel("methods", "--expected", "--json").out)["results"]
    assert len(everything) == len(RESULTS)
    ended = midreel("methods", "--expected", "--dataset", "tv")
    assert (ended.code, "tvr" in ended.err) == (1, True)
    ended = midreel("methods", "--dataset", "tvr")
    assert (ended.code, "--expected" in ended.err) == (1, True)


def test_reproduce(midreel: Command, dataset_folder: Path, tmp_path: Path) -> None:
    words = ("reproduce", "1", "--dataset", dataset_folder, "--out", tmp_path, "--seeds", 1, "--rows", "base,zero-shot")
    ended = midreel(*words, *as_options(epochs=1))
    assert (ended.code, ended.err) == (0, "")
    assert "(a) base" in ended.out
    assert "225.5" in ended.out
    found = json.loads(midreel(*words, *as_options(epochs=1), "--json").out)
    assert list(found["rows"]) == ["CLIP zero-shot", "(a) base"]
    card = tmp_path / "table-1/card.json"
    again = json.loads(midreel("reproduce", "--card", card, "--out", tmp_path / "again", "--json").out)
    assert (again["same_as_card"], again["rows"]) == (True, found["rows"])
    changed = json.loads(card.read_text()) | {"result": "0" * 64}
    card.write_text(json.dumps(changed))
    assert midreel("reproduce", "--card", card).code == 3
    assert "width" in midreel(*words, "--set", "widt=3").err
    assert midreel("reproduce", "1").code == midreel("reproduce", "10", "--dataset", dataset_folder).code == 1


def test_list_of_experiments(midreel: Command) -> None:
    found = json.loads(midreel("reproduce", "--list", "--json").out)
    tables = ("1", "2", *(f"3{part}" for part in "abcdef"), *"456789", "A1", "A2")
    assert list(found) == [*tables, "fig1", "fig3", "transfer"]
    assert all(name in midreel("reproduce", "--list").out for name in found)
    assert (found["1"]["runs per seed"], found["6"]["runs per seed"]) == (7, 0)


def test_compare(midreel: Command, dataset_folder: Path, run_folder: Path) -> None:
    words = ("compare", f"{run_folder},{run_folder}", "zero-shot", "--dataset", dataset_folder)
    found = json.loads(midreel(*words, "--json").out)
    row = found["groups"]["all queries"]
    assert row["A - B"] == pytest.approx(row["A"] - row["B"])
    assert (found["runs"], found["split"]) == ([2, 1], "test")
    assert {"moving scenes", "still scenes"} < set(found["groups"])
    assert "A - B" in midreel(*words).out


def test_dense_labels_and_groups(midreel: Command, dataset_folder: Path, tmp_path: Path) -> None:
    words = ("evaluate", "zero-shot", "--dataset", dataset_folder)
    single = json.loads(midreel(*words, "--json").out)["figures"]
    assert "multi R@1" not in single
    assert 0 <= single["corpus R10@0.7"] <= single["corpus R10@0.3"] <= single["R@10"]
    split = Dataset.open(dataset_folder).splits["test"]
    labels = tmp_path / "labels.jsonl"
    every = [{"query_id": query.id, "gt_video_ids": list(split.video_ids)} for query in split.queries]
    labels.write_text("".join(json.dumps(line) + "\n" for line in every))
    found = json.loads(midreel(*words, "--labels", labels, "--groups", "--json").out)
    assert found["figures"]["multi R@1"] == 100
    assert sum(row["queries"] for name, row in found["groups"].items() if "scenes" in name) == len(split.queries)
    shown = midreel(*words, "--labels", labels, "--groups").out
    assert "multi SumR" in shown
    assert "still scenes" in shown
    labels.write_text(json.dumps({"query_id": "other", "gt_video_ids": []}))
    assert midreel(*words, "--labels", labels).code == 1


def test_demo(midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options and the result of a fake demo; tests/experiments/test_demo.py runs the real one."""
    asked: list[object] = []

    def run(folder: Path, *, seed: int, audience: object) -> demo.Demo:
        asked.extend((folder, seed))
        audience.say("training")
        return demo.Demo(
            report=folder / "report.md",
            contenders=[],
            searches=[],
            seconds={"all": 1.0},
            library=folder / "search",
        )

    monkeypatch.setattr(demo, "run", run)
    ended = midreel("demo", "--out", tmp_path, "--seed", 5, "--json")
    assert asked == [tmp_path, 5]
    assert (ended.code, ended.err) == (0, "training\n")
    assert json.loads(ended.out)["report"] == str(tmp_path / "report.md")
    assert json.loads(ended.out)["library"] == str(tmp_path / "search")
