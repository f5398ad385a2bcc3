import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

import midreel as package
from midreel import cli
from midreel.datasets import annotated
from midreel.errors import BadSetting
from midreel.experiments import demo
from tests.conftest import Command
from tests.experiments.small import as_options

COMMANDS = ("demo", "playhouse", "extract", "train", "evaluate", "import-checkpoint", "experiment")
HEAVY = ("torch", "transformers", "h5py", "matplotlib", "scipy", "numpy", "av", "huggingface_hub")


def midreel_alone(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    environment = os.environ | {"COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "midreel.cli", *words], capture_output=True, text=True, env=environment, timeout=120
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
            assert (parameter.help or "").endswith((".", "…")), (command.name, parameter.name)
    assert {*COMMANDS, "ablation"} <= set(seen)


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
    ended = midreel_alone("train", "--root", "library", "--out", "run", "--set", "width", "--json")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "midreel: --set width sets nothing, expected SETTING=VALUE, such as width=64\n"
    ended = midreel_alone("train")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Missing option '--root'" in ended.stderr


def test_a_mistake_is_told_in_a_sentence_on_stderr(midreel: Command, tmp_path: Path) -> None:
    ended = midreel("evaluate", "zero-shot", "--root", tmp_path, "--json")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        f"midreel: {tmp_path} has no annotations.jsonl, expected a line for each query; make a library "
        f"(midreel playhouse {tmp_path}) or write the file\n"
    )


def test_a_folder_that_cannot_be_made(midreel: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = midreel("playhouse", tmp_path / "file/folder", "--train", 1, "--val", 0, "--test", 0, "--files", "")
    assert ended.code == 1
    assert ended.err.startswith("midreel: [Errno 20] Not a directory")
    assert "Traceback" not in ended.err


def test_interrupted(midreel: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("midreel.datasets.playhouse.write_library", interrupt)
    ended = midreel("playhouse", tmp_path / "folder")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.strip() == "midreel: interrupted; what was finished is kept"


@pytest.mark.parametrize("change", ["width", "=64", "width=", ""])
def test_a_setting_that_sets_nothing(midreel: Command, change: str) -> None:
    ended = midreel("train", "--root", "library", "--out", "run", "--set", change)
    assert ended.code == 1
    assert ended.err == f"midreel: --set {change} sets nothing, expected SETTING=VALUE, such as width=64\n"


def test_settings_are_words_or_values() -> None:
    changes = ["width=64", "lr=1e-3", "tcpl=false", "clips=uniform", "text=a=b"]
    expected = {"width": 64, "lr": 1e-3, "tcpl": False, "clips": "uniform", "text": "a=b"}
    assert cli._settings(changes) == expected
    with pytest.raises(BadSetting):
        cli._settings(["width"])


def test_json_says_null_where_there_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    cli._print(True, {"a": [float("nan"), (1.5, float("inf"))], "b": {"c": "NaN"}}, "text")
    assert json.loads(capsys.readouterr().out) == {"a": [None, [1.5, None]], "b": {"c": "NaN"}}
    cli._print(False, {}, "a table\n")
    assert capsys.readouterr().out == "a table\n"


# ---------------------------------------------------------------- the commands


def test_playhouse(midreel: Command, tmp_path: Path) -> None:
    words = ("playhouse", tmp_path, "--train", 2, "--val", 1, "--test", 0, "--seed", 3, "--files", "")
    ended = midreel(*words)
    assert (ended.code, ended.err) == (0, "")
    splits = annotated.read(tmp_path)
    assert ended.out.splitlines() == [
        f"train: 2 videos, {len(splits['train'].queries)} queries",
        f"val: 1 videos, {len(splits['val'].queries)} queries",
        f"written to {tmp_path}",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"annotations.jsonl", "playhouse.json", "contact-sheet.png"}
    result = json.loads(midreel(*words, "--json").out)
    assert result["splits"]["val"] == {"videos": 1, "queries": len(splits["val"].queries)}


def test_from_videos_to_figures(midreel: Command, tiny_clip: Path, library_folder: Path, tmp_path: Path) -> None:
    root, run = tmp_path / "library", tmp_path / "run"
    root.mkdir()
    for name in ("annotations.jsonl", "playhouse.json"):
        shutil.copy(library_folder / name, root)
    extract = ("extract", root, "--backbone", f"local-dir:{tiny_clip}", "--rate", 0.25)
    ended = midreel(*extract)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == "videos: 12 encoded, 0 were there, 0 left out"
    assert json.loads(midreel(*extract, "--json").out)["videos"] == {"done": 0, "skipped": 12, "failed": {}}

    train = ("train", "--root", root, "--out", run, *as_options(epochs=1))
    ended = midreel(*train, "--json")
    assert (ended.code, ended.err) == (0, "")
    result = json.loads(ended.out)
    assert (result["model"], result["epoch"]) == (str(run / "best"), 0)
    assert (
        midreel(*train).err
        == f"midreel: {run} holds a run already; go on with it by --resume, or choose another folder\n"
    )
    ended = midreel(*train, "--resume")
    assert ended.out.splitlines() == [
        "best epoch 0: " + "  ".join(f"{name} {value:.1f}" for name, value in result["metrics"].items()),
        f"model: {run / 'best'}",
    ]
    other = midreel(*train, "--resume", "--seed", 7)
    assert (other.code, "seed: 1, 7" in other.err) == (1, True)


def test_evaluate(midreel: Command, library_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    words = ("evaluate", run_folder, "--root", library_folder)
    ended = midreel(*words)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("|  | R@1 | R@5 |")
    figures = json.loads(midreel(*words, "--json", "--trec", tmp_path / "run.txt").out)["figures"]
    assert f"| {figures['SumR']:.1f} |" in ended.out
    assert {path.name for path in tmp_path.iterdir()} == {"run.txt", "run.txt.qrels"}
    header = midreel(*words, "--format", "csv").out.splitlines()[0]
    assert header.split(",")[1:] == list(figures)
    on_val = json.loads(midreel("evaluate", "zero-shot", "--root", library_folder, "--split", "val", "--json").out)
    assert (on_val["model"], on_val["split"]) == ("zero-shot", "val")
    ended = midreel(*words, "--format", "html")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "midreel: no format 'html'; choose one of: markdown, latex, csv\n"


def test_ablation(midreel: Command, library_folder: Path, tmp_path: Path) -> None:
    words = ("experiment", "ablation", "--root", library_folder, "--out", tmp_path, "--seeds", 1, "--rows", "base")
    ended = midreel(*words, *as_options(epochs=1))
    assert (ended.code, ended.err) == (0, "")
    assert [line.split(" | ")[0] for line in ended.out.splitlines()[2:]] == ["| CLIP zero-shot", "| (a) base"]
    assert list(json.loads(midreel(*words, *as_options(epochs=1), "--json").out)) == ["zero-shot", "base"]


def test_demo(midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is called, and what is made of its result; tests/experiments/test_demo.py runs it."""
    asked: list[object] = []

    def run(folder: Path, *, seed: int, audience: object) -> demo.Demo:
        asked.extend((folder, seed))
        audience.say("a step begins")
        return demo.Demo(report=folder / "report.md", contenders=[], searches=[], seconds={"all": 1.0})

    monkeypatch.setattr(demo, "run", run)
    ended = midreel("demo", "--out", tmp_path, "--seed", 5, "--json")
    assert asked == [tmp_path, 5]
    assert (ended.code, ended.err) == (0, "a step begins\n")
    assert json.loads(ended.out)["report"] == str(tmp_path / "report.md")
