"""docs/methods.md has a row for each method, with its number of parameters, and the published results."""

import re
from dataclasses import fields

import pytest
import torch

from midreel import recipes
from midreel.methods import METHODS
from midreel.recipes.published import LABELS
from tests import ROOT
from tools import published_results

PAGE = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
OVERVIEW = PAGE.partition("## Overview")[2].partition("\n## ")[0]
CHOICES, _, RECONSTRUCTIONS = PAGE.partition("## Exact, choice")[2].partition("\n## ")[0].partition("### ")
SHARED = re.compile("method|.*_width|width|num_(heads|frames|clips)|max_words|.*dropout|.*weight|.*margin|hard_.*")
ROWS = {
    cells[0].strip("`"): cells
    for line in OVERVIEW.splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}


@pytest.mark.parametrize("name", METHODS._own)
def test_the_row_of_a_method(name: str) -> None:
    _, paper, idea, how_close, features, parameters, _ = ROWS[name]
    assert paper
    assert idea
    assert features
    assert how_close in ("exact", "choice", "reconstruction", "beyond")
    assert (how_close == "reconstruction") == getattr(METHODS[name], "reconstruction", False)
    num = 0
    if name in recipes.RECIPES:
        with torch.device("meta"):
            method = METHODS[name](recipes.build(name, "tvr").config)
        num = sum(parameter.numel() for parameter in method.parameters())
    assert parameters == f"{num:,}"


def test_the_variant_of_msc() -> None:
    with torch.device("meta"):
        plain, released = (METHODS["msc"](recipes.build("msc", "tvr", changes).config) for changes in ({}, RELEASED))
    sizes = [sum(parameter.numel() for parameter in method.parameters()) for method in (plain, released)]
    assert f"{sizes[1] - sizes[0]:,} more" in PAGE


RELEASED = {"variant": "released"}


@pytest.mark.parametrize("name", METHODS._own)
def test_the_choices_of_a_method(name: str) -> None:
    """A reconstruction lists each setting of its own, because each is a choice."""
    rows = re.findall(r"^\| `(\w+)` \|", CHOICES, re.MULTILINE)
    kind = ROWS[name][3]
    assert rows.count(name) == (kind in ("exact", "choice"))
    if kind == "reconstruction":
        text = RECONSTRUCTIONS.partition(f"\n`{name}`.")[2].partition("\n`")[0]
        own = [field.name for field in fields(METHODS[name].Config) if not SHARED.fullmatch(field.name)]
        assert [setting for setting in own if f"`{setting}`" not in text] == []


def test_the_rows_are_those_of_the_results() -> None:
    assert {name for name, cells in ROWS.items() if cells[3] != "beyond"} == set(LABELS)


def test_the_rows_are_the_methods() -> None:
    assert set(ROWS) == set(METHODS._own)


def test_the_published_results() -> None:
    """If this fails, run: python -m tools.published_results --write"""
    assert published_results.page(PAGE) == PAGE


def test_the_kinds_of_features_have_a_section() -> None:
    assert re.search(r"^## Features$", (ROOT / "docs/train.md").read_text(encoding="utf-8"), re.MULTILINE)
