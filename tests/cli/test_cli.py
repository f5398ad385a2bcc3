import json
import os
import re
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
from midreel.errors import BadSetting
from midreel.experiments import demo
from midreel.features.stores.store import FeatureStore
from tests.conftest import Command
from tests.datasets import trees
from tests.datasets.real import real_file
from tests.experiments.small import as_options

COMMANDS = (
    *("demo", "playhouse", "data", "extract", "join"),
    *("index", "reindex", "search", "export", "info", "serve"),
    *("train", "methods", "evaluate", "import-checkpoint", "export-model", "doctor", "experiment"),
)
HEAVY = ("torch", "transformers", "h5py", "matplotlib", "scipy", "numpy", "av", "huggingface_hub")


def midreel_alone(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
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


def test_every_command_and_option_is_explained() -> None:
    waiting, seen = [typer.main.get_command(cli.app)], []
    while waiting:
        command = waiting.pop()
        seen.append(command.name)
        waiting.extend(getattr(command, "commands", {}).values())
        assert (command.help or "").strip().endswith("."), command.name
        for parameter in command.params:
            assert (parameter.help or "").endswith((".", "…", "]")), (command.name, parameter.name)
    assert {*COMMANDS, "ablation", "verify", "new"} <= set(seen)


@pytest.mark.parametrize("words", [(), ("index",), ("data",), ("data", "verify")])
def test_flags_are_not_said_to_take_a_value(midreel: Command, words: tuple[str, ...]) -> None:
    shown = midreel(*words, "--help").out
    assert "--help" in shown
    assert "bool" not in shown.lower()


def test_alone_it_shows_help(midreel: Command) -> None:
    assert "Usage: midreel" in midreel().out
    assert "ablation" in midreel("experiment").out


def test_the_version(midreel: Command) -> None:
    ended = midreel("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"midreel {package.__version__}\n", "")


def test_a_command_line_that_cannot_be_understood(midreel: Command) -> None:
    for words in (["search"], ["train"], ["playhouse", "x", "--train", "-1"], ["evaluate", "--wrong"]):
        ended = midreel(*words)
        assert (ended.code, ended.out) == (2, "")
        assert "Usage: midreel" in ended.err


def test_in_a_process_of_its_own() -> None:
    """So that nothing of pytest is between the command and the user."""
    ended = midreel_alone("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"midreel {package.__version__}\n", "")
    ended = midreel_alone("train", "--dataset", "library", "--out", "run", "--set", "width", "--json")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "midreel: --set width sets nothing, expected SETTING=VALUE, such as width=64\n"
    ended = midreel_alone("train")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Missing option '--dataset'" in ended.stderr


def test_a_mistake_is_told_in_a_sentence_on_stderr(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("evaluate", "zero-shot", "--dataset", tmp_path, "--json")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"midreel: {tmp_path} contains no dataset")
    assert ended.err.endswith(f"midreel data new {tmp_path}\n")


def break_doctor(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def examine(library: Path | None) -> None:
        raise error

    monkeypatch.setattr("midreel.cli.doctor.examine", examine)


class RustPanic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("kind", [OverflowError, RustPanic])
def test_an_unexpected_error_is_one_line_and_a_file(
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


def test_a_traceback_can_be_seen_at_once(midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("MIDREEL_TRACEBACK", "1")
    for error in (OverflowError("too large"), BadSetting("no")):
        break_doctor(monkeypatch, error)
        ended = midreel("doctor")
        assert (ended.code, ended.err.startswith("Traceback")) == (1, True)
        assert ended.err.splitlines()[-1].startswith("midreel: ")
    assert "MIDREEL_TRACEBACK" in midreel("--help").out


def test_an_unexpected_error_where_nothing_can_be_written(
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


def test_an_unexpected_error_in_a_thread_is_a_line(
    midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_thread(library: Path | None) -> None:
        thread = threading.Thread(target=lambda: 1 // 0)
        thread.start()
        thread.join()
        raise BadSetting("ended")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("midreel.cli.doctor.examine", run_thread)
    lines = midreel("doctor").err.splitlines()
    assert ["ZeroDivisionError" in line for line in lines] == [True, False]


def test_a_folder_that_cannot_be_made(midreel: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = midreel("playhouse", tmp_path / "file/folder", "--train", 1, "--val", 0, "--test", 0, "--files", "")
    assert ended.code == 1
    assert ended.err.startswith("midreel: [Errno 20] Not a directory")
    assert "Traceback" not in ended.err


def test_interrupted(midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("midreel.datasets.playhouse.write_dataset", interrupt)
    ended = midreel("playhouse", tmp_path / "folder")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.strip() == "midreel: interrupted; what was finished is kept"
    monkeypatch.setattr("midreel.server.runner.serve", interrupt)  # which is how it is to end
    ended = midreel("serve", tmp_path)
    assert (ended.code, ended.out, ended.err) == (0, "", "the server has stopped\n")


@pytest.mark.parametrize("change", ["width", "=64", "width=", ""])
def test_a_setting_that_sets_nothing(midreel: Command, change: str) -> None:
    ended = midreel("train", "--dataset", "library", "--out", "run", "--set", change)
    assert ended.code == 1
    assert ended.err == f"midreel: --set {change} sets nothing, expected SETTING=VALUE, such as width=64\n"


def test_settings_are_words_or_values() -> None:
    changes = ["width=64", "lr=1e-3", "tcpl=false", "clips=uniform", "text=a=b"]
    expected = {"width": 64, "lr": 1e-3, "tcpl": False, "clips": "uniform", "text": "a=b"}
    assert research._settings(changes) == expected
    with pytest.raises(BadSetting):
        research._settings(["width"])


def test_json_says_null_where_there_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_own_data_from_a_folder_of_videos(midreel: Command, tmp_path: Path) -> None:
    """Begun, filled in, verified: what is missing, what is off, nothing overwritten."""
    for name in ("beach.mp4", "pool.mp4"):
        (tmp_path / name).touch()
    ended = midreel("data", "new", tmp_path)
    path = tmp_path / "annotations.csv"
    about = f"{path}: 2 videos wait for a sentence\n{own.ABOUT_SPLITS}\n"
    assert (ended.code, ended.out, ended.err) == (0, about, "")
    assert midreel("data", "new", tmp_path, "--format", "jsonl").err.startswith(f"midreel: {path} exists")
    unwritten = midreel("data", "verify", tmp_path)
    assert (unwritten.code, unwritten.out) == (1, "")
    assert unwritten.err.startswith(f"midreel: {path} has no sentence yet")
    path.write_text("video,query,start,end\nbeach.mp4,a dog jumps,0:01,0:03\npool.mp4,,,\n")
    ended = midreel("data", "verify", tmp_path)
    assert (ended.code, "remark: lines without a sentence, skipped: 1" in ended.out) == (0, True)

    path.write_text("video,query,start,end\nbeach.mp4,a dog jumps,0:01,0:03\npool.mp4,a cat,,\n")
    ended = midreel("data", "verify", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == f"own in {tmp_path}, from annotations of your own"
    found = json.loads(midreel("data", "verify", tmp_path, "--json").out)["datasets"][0]
    assert {name: split["videos"] for name, split in found["splits"].items()} == {"train": 1, "val": 1}

    (tmp_path / "pool.mp4").unlink()
    ended = midreel("data", "verify", tmp_path)
    assert ended.code == 3
    assert ended.out.splitlines()[-2] == "off: videos without a file: 1, such as pool.mp4"


def test_a_template_as_json(midreel: Command, tmp_path: Path) -> None:
    (tmp_path / "beach.mp4").touch()
    ended = midreel("data", "new", tmp_path, "--format", "jsonl", "--json")
    assert json.loads(ended.out) == {"file": str(tmp_path / "annotations.jsonl"), "videos": 1}
    ended = midreel("data", "new", tmp_path / "nowhere", "--format", "xlsx")
    assert (ended.code, ended.err) == (1, "midreel: no format 'xlsx'; choose one of: jsonl, csv\n")


def test_benchmarks_are_verified(midreel: Command, tmp_path: Path) -> None:
    trees.write_captions(tmp_path / "tvr", "tvr", trees.TVR)
    trees.write_charades(tmp_path / "charades")
    ended = midreel("data", "verify", tmp_path)
    assert (ended.code, ended.err) == (3, "")
    charades, tvr = ended.out.split("\n\n")
    assert charades.startswith(f"charades in {tmp_path / 'charades'}, from its original annotations\nsplit ")
    assert "off: val is no known variant: 2,178 videos fewer and 10,894 queries fewer than TVR, val" in tvr
    only = json.loads(midreel("data", "verify", tmp_path, "--name", "tvr", "--json").out)["datasets"]
    assert [(each["name"], each["layout"]) for each in only] == [("tvr", "release")]
    ended = midreel("data", "verify", tmp_path, "--name", "own")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"midreel: {tmp_path} contains charades, tvr, expected own")


def test_the_real_annotation_files_are_what_they_should_be(midreel: Command) -> None:
    root = real_file("qvhighlights", "highlight_val_release.jsonl").parent.parent
    ended = midreel("data", "verify", root)
    assert (ended.code, ended.err) == (0, "")
    assert "val is QVHighlights by YouTube video, val (474 videos, 1,550 queries)" in ended.out
    assert "test is Charades-STA, test (1,334 videos, 3,720 queries)" in ended.out


def test_from_videos_to_figures(midreel: Command, tiny_clip: Path, dataset_folder: Path, tmp_path: Path) -> None:
    root, run = tmp_path / "library", tmp_path / "run"
    root.mkdir()
    for name in ("annotations.jsonl", "playhouse.json"):
        shutil.copy(dataset_folder / name, root)
    extract = ("extract", root, "--backbone", f"local-dir:{tiny_clip}", "--rate", 0.25)
    ended = midreel(*extract)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == "videos: 12 encoded, 0 were there, 0 left out"
    assert json.loads(midreel(*extract, "--json").out)["videos"] == {"done": 0, "skipped": 12, "failed": {}}

    train = ("train", "--dataset", root, "--out", run, *as_options(epochs=1))
    ended = midreel(*train, "--json")
    assert (ended.code, ended.err) == (0, "")
    result = json.loads(ended.out)
    assert (result["model"], result["epoch"]) == (str(run / "best"), 0)
    assert (
        midreel(*train).err
        == f"midreel: {run} holds a run already; go on with it by --resume, or choose another folder\n"
    )
    assert result["had_finished"] is False
    ended = midreel(*train, "--resume")
    assert ended.out.splitlines() == [
        "the run had finished: nothing was left to do",
        "best epoch 1 of 1: " + "  ".join(f"{name} {value:.1f}" for name, value in result["metrics"].items()),
        f"model: {run / 'best'}",
    ]
    assert json.loads(midreel(*train, "--resume", "--json").out)["had_finished"] is True
    other = midreel(*train, "--resume", "--seed", 7)
    assert (other.code, "seed: 1, 7" in other.err) == (1, True)


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
    assert ended.out.splitlines() == [
        f"videos: {count} joined, 0 unchanged, 0 failed",
        f"texts: {num_texts} joined, 0 unchanged, 0 failed",
        "times: joined frames differ by at most 0.000 s, durations by at most 0.000 s",
    ]
    assert json.loads(midreel("join", motion, clip, "--out", out, "--json").out)["videos"]["skipped"] == count

    with FeatureStore.open(motion) as store:
        store.add_video("more", store.video(store.video_ids()[0]))
    ended = midreel("join", motion, clip, "--out", out, "--texts", clip, "--tolerance", 1.5)
    assert ended.code == 3
    assert ended.out.splitlines()[-1].startswith(f"failed more: it is not in {clip}")
    ended = midreel("join", motion, "--out", out)
    assert (ended.code, ended.out) == (1, "")
    assert str(motion) in ended.err


def test_evaluate(midreel: Command, dataset_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    words = ("evaluate", run_folder, "--dataset", dataset_folder)
    ended = midreel(*words)
    assert (ended.code, ended.err) == (0, "")
    num_queries = len(own.read(dataset_folder)["test"].queries)
    remark = "with 3 videos, R@5, R@10, R@100 are 100 whatever the model does"
    head = [f"test: 3 videos, {num_queries} queries", f"remark: {remark}"]
    assert ended.out.splitlines()[:3] == [*head, ""]
    assert max(map(len, ended.out.splitlines())) <= max(80, 20 + len(str(run_folder)))
    found = json.loads(midreel(*words, "--json", "--trec", tmp_path / "run.txt").out)
    assert (found["split"], found["videos"], found["queries"]) == ("test", 3, num_queries)
    assert found["remarks"] == [remark]
    figures = found["figures"]
    assert ["SumR", f"{figures['SumR']:.1f}"] in [line.split() for line in ended.out.splitlines()]
    assert f"| {figures['SumR']:.1f} |" in midreel(*words, "--format", "markdown").out
    assert {path.name for path in tmp_path.iterdir()} == {"run.txt", "run.txt.qrels"}
    ended = midreel(*words, "--format", "csv")  # which has no place for words
    assert ended.out.splitlines()[0].split(",")[1:] == list(figures)
    assert ended.err.splitlines() == head
    on_val = json.loads(midreel("evaluate", "zero-shot", "--dataset", dataset_folder, "--split", "val", "--json").out)
    assert (on_val["model"], on_val["split"]) == ("zero-shot", "val")
    assert on_val["remarks"] == found["remarks"]  # val was asked for
    ended = midreel(*words, "--format", "html")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "midreel: no format 'html'; choose one of: text, markdown, latex, csv\n"


def test_where_there_is_no_test_val_is_taken_and_that_is_said(
    midreel: Command, dataset_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(dataset_folder, tmp_path / "library")
    splits = own.read(dataset_folder)
    own.write(tmp_path / "library", {name: splits[name] for name in ("train", "val")})
    ended = midreel("evaluate", "zero-shot", "--dataset", tmp_path / "library")
    why = "there is no split test, so val was taken, which flatters a model whose epoch it chose"
    assert ended.out.splitlines()[:2] == [f"val: 3 videos, {len(splits['val'].queries)} queries", f"remark: {why}"]
    found = json.loads(midreel("evaluate", "zero-shot", "--dataset", tmp_path / "library", "--json").out)
    assert (found["split"], found["remarks"][0]) == ("val", why)


def test_a_setting_or_a_backbone_that_was_misspelt(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("train", "--dataset", tmp_path, "--out", tmp_path / "run", "--set", "epoch=1")
    assert (ended.code, ended.err) == (
        1,
        "midreel: no setting 'epoch'; did you mean 'epochs'? All 42 are listed in docs/settings.md, and with their "
        "values in the recipe.json of any run\n",
    )
    (tmp_path / "beach.mp4").touch()
    ended = midreel("extract", tmp_path, "--backbone", "tinyclip")
    assert ended.code == 1
    assert ended.err.startswith("midreel: no backbone 'tinyclip'; did you mean 'tiny-clip'? Choose one of: tiny-clip,")


def test_a_recipe_for_other_features(midreel: Command, dataset_folder: Path, tmp_path: Path) -> None:
    ended = midreel("train", "--recipe", "tvr", "--dataset", dataset_folder, "--out", tmp_path / "run")
    assert ended.code == 1
    assert ended.err.startswith(
        f"midreel: the recipe tvr of msc is for features of video_width 768, text_width 768, but {dataset_folder} "
        f"holds annotations of your own with features of video_width 24, text_width 32 ("
    )
    assert "add --set video_width=24 --set text_width=32, or choose a recipe" in ended.err


def test_ablation(midreel: Command, dataset_folder: Path, tmp_path: Path) -> None:
    words = ("experiment", "ablation", "--dataset", dataset_folder, "--out", tmp_path, "--seeds", 1, "--rows", "base")
    ended = midreel(*words, *as_options(epochs=1))
    assert (ended.code, ended.err) == (0, "")
    head = ended.out.splitlines()[0]
    assert re.split(" {2,}", head.strip()) == ["CLIP zero-shot", "CLIP zero-shot, with OP-ToMe clips", "(a) base"]
    assert list(json.loads(midreel(*words, *as_options(epochs=1), "--json").out)) == [
        "zero-shot",
        "zero-shot-clips",
        "base",
    ]


def test_demo(midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is called, and what is made of its result; tests/experiments/test_demo.py runs it."""
    asked: list[object] = []

    def run(folder: Path, *, seed: int, audience: object) -> demo.Demo:
        asked.extend((folder, seed))
        audience.say("a step begins")
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
    assert (ended.code, ended.err) == (0, "a step begins\n")
    assert json.loads(ended.out)["report"] == str(tmp_path / "report.md")
    assert json.loads(ended.out)["library"] == str(tmp_path / "search")
