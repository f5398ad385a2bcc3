"""Every table and figure runs on a tiny dataset."""

import csv
import io
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from midreel.datasets import dataset, open_annotations, playhouse
from midreel.errors import BadRun, BadSetting, MissingFeatures
from midreel.experiments import runs, trainings
from midreel.experiments.reproduce import EXPERIMENTS, running
from midreel.experiments.reproduce.card import CARD, Card, digest
from midreel.experiments.reproduce.result import Result
from midreel.experiments.reproduce.specs import Context
from midreel.experiments.trainings import Place
from midreel.features import Backbone
from tests.experiments.small import SETTINGS, as_options
from tests.experiments.test_trainings import write_teacher

FILES = {"table.md", "table.json", "index.html", CARD}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper")


@pytest.fixture
def context(dataset_folder: Path, out: Path) -> Context:
    # The words of the tiny CLIP are wider than its frames and sentences.
    changes = SETTINGS | {"epochs": 1, "vcpl_teacher": "all", "query": "words", "joint_width": 24}
    return Context(place=Place(folder=dataset_folder), out=out, seeds=1, changes=changes)


class Page(HTMLParser):
    """Collects the tags of a page, and fails if they are not balanced."""

    VOID = ("meta", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def expect_page(folder: Path) -> None:
    """The page is whole, has no link to elsewhere, and describes its pictures."""
    page = Page((folder / "index.html").read_text(encoding="utf-8"))
    for tag, attributes in page.seen:
        assert tag not in ("script", "link")
        assert "href" not in attributes
        if tag == "img":
            assert (attributes["src"] or "").startswith("data:")
            assert attributes["alt"]
        if tag == "th":
            assert attributes["scope"] in ("col", "row")


def test_a_table(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    given = replace(context, rows=["base", "msc"], seeds=2)
    result = running.run(EXPERIMENTS["1"], given)
    folder = given.out / "table-1"
    assert {path.name for path in folder.iterdir()} == {*FILES, "table.csv", "table.tex"}
    assert list(result.rows) == ["(a) base", "(e) + adaptive = MSC"]
    assert result.rows["(a) base"]["SumR"].num == 2
    (compared,) = result.differences
    values = [result.rows[label]["SumR"].mean for label in (compared.row, compared.other)]
    assert compared.value == pytest.approx(values[0] - values[1])
    assert compared.low <= compared.value <= compared.high
    assert compared.paper == pytest.approx(9.1)
    assert compared.p == compared.p_holm
    assert any("10 seeds" in note for note in result.notes)
    rows = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text().split("\n\n")[0])))
    assert float(rows[0]["SumR, paper"]) == 225.5
    assert "225.5" in (folder / "table.tex").read_text()
    assert "| 225.5 |" in (folder / "table.md").read_text()
    expect_page(folder)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(runs, "train_or_resume", refuse)
    again = running.run(EXPERIMENTS["1"], given)
    assert again == result
    card = Card.read(folder / CARD)
    assert (card.result, digest(again)) == (digest(result), card.result)
    assert replace(card.context, out=given.out) == replace(given, place=card.context.place)
    other = running.run(EXPERIMENTS["3d"], replace(context, rows=["0.1"], seeds=2))  # the same runs as MSC
    assert other.rows["0.1, default"]["SumR"] == result.rows["(e) + adaptive = MSC"]["SumR"]


def test_one_seed_is_never_significant(context: Context) -> None:
    """The spread over seeds is unknown, so that neither a p-value nor a star may appear."""
    result = running.run(EXPERIMENTS["1"], replace(context, rows=["base", "msc"]))
    (compared,) = result.differences
    assert math.isnan(compared.p)
    assert math.isnan(compared.p_holm)
    assert 0 < compared.p_videos <= 1
    assert "*" not in compared.label
    assert any("--seeds" in remark for remark in result.remarks())


def test_a_failed_run_is_named(context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = runs.train_or_resume

    def sometimes(dataset: object, recipe: runs.Recipe, *rest: object, **options: object) -> Path:
        if not recipe.config.tcpl:
            raise BadRun("no space")
        return train(dataset, recipe, *rest, **options)

    monkeypatch.setattr(trainings.runs, "train_or_resume", sometimes)
    result = running.run(EXPERIMENTS["1"], replace(context, out=tmp_path, rows=["base", "tcpl"]))
    assert result.failures == {"(a) base, seed 1": "no space"}
    assert list(result.rows) == ["(b) + TCPL"]
    assert any("no space" in remark for remark in result.remarks())
    with pytest.raises(BadRun, match="no space"):
        running.run(EXPERIMENTS["1"], replace(context, out=tmp_path / "other", rows=["base"]))


def test_what_is_missing_is_said(context: Context, tmp_path: Path) -> None:
    with pytest.raises(MissingFeatures, match="--source"):
        running.run(EXPERIMENTS["3c"], context)
    with pytest.raises(BadSetting, match="--dataset"):
        running.run(EXPERIMENTS["transfer"], context)
    with pytest.raises(BadRun, match="card"):
        Card.read(tmp_path / "none.json")


def test_a_card_of_another_dataset(context: Context, tmp_path: Path) -> None:
    card = Card(experiment="1", context=context, result=None, dataset=context.dataset.card())
    card.expect_same_dataset(context)
    changed = replace(card, dataset=card.dataset | {"videos": {"test": 1}})
    with pytest.raises(BadRun, match="videos"):
        changed.expect_same_dataset(context)


@pytest.fixture(scope="module")
def second_dataset(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Path:
    folder = tmp_path_factory.mktemp("second")
    playhouse.write_dataset(folder, seed=5, num_train=6, num_val=3, num_test=3, files=())
    dataset.extract(open_annotations(folder), backbone, rate=0.5)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_and_figure(name: str, context: Context, second_dataset: Path, tmp_path: Path) -> None:
    if name == "3c":
        context = replace(context, sources=(write_teacher(tmp_path / "clip_l.h5", context.dataset),))
    if name == "transfer":
        context = replace(context, others=(Place(folder=second_dataset),))
    experiment = EXPERIMENTS[name]
    result = running.run(experiment, context)
    folder = context.out / experiment.folder
    assert {path.name for path in folder.iterdir()} >= FILES | set(result.pictures) | set(result.files)
    assert not result.failures
    expect_page(folder)
    card = json.loads((folder / CARD).read_text())
    assert card["command"].startswith(f"midreel reproduce {name} --dataset ")
    assert (card["result"] is None) == experiment.is_timed
    expect_content(name, result)


def expect_content(name: str, result: Result) -> None:
    match name:
        case "3c":
            assert result.paper["clip_l (other)"] == {"SumR": 235.6}
        case "6":
            assert result.rows["MSC, MB"]["474 videos"] > result.rows["MSC, MB"]["100 videos"] > 0
        case "7":
            assert result.rows["MSC"]["M parameters"] > result.rows["MS-SL"]["M parameters"] > 0
        case "A2":
            shares = [cell.mean for row in list(result.rows.values())[:2] for cell in list(row.values())[2:]]
            assert sum(shares) == pytest.approx(100)
            assert len(result.files["queries.jsonl"].splitlines()) == 14
        case "fig1" | "fig3":
            assert result.pictures
        case "transfer":
            assert len(result.rows) == 6
            assert len(result.differences) == 2
        case _:
            assert list(result.rows) == [row.label for row in EXPERIMENTS[name].rows_for("")]
            assert set(result.columns) >= set(EXPERIMENTS[name].columns)


@pytest.mark.slow
def test_a_killed_experiment_continues_to_the_same_bits(dataset_folder: Path, tmp_path: Path) -> None:
    """kill -9 in the middle of the runs, with two processes, and again from the start without a kill."""

    def start(out: str) -> subprocess.Popen[bytes]:
        words = ["reproduce", "1", "--dataset", dataset_folder, "--out", tmp_path / out, "--seeds", "2", "--jobs", "2"]
        options = [*as_options(epochs=6), "--rows", "base,msc"]
        command = [sys.executable, "-m", "midreel", *map(str, words), *options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})

    with start("killed") as killed:
        end = time.monotonic() + 240
        while not list(tmp_path.glob("killed/runs/*/last")):
            assert killed.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        killed.kill()
    finished = list(tmp_path.glob("killed/runs/*/result.json"))
    assert len(finished) < 4
    for out in ("killed", "whole"):
        with start(out) as again:
            assert again.wait(timeout=540) == 0
    cards = [json.loads((tmp_path / out / "table-1" / CARD).read_text()) for out in ("killed", "whole")]
    assert cards[0]["result"] == cards[1]["result"]
