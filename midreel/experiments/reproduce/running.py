"""Run an experiment, and write its result in all formats."""

import json
from typing import Any

from midreel.experiments.reproduce import card as cards
from midreel.experiments.reproduce.page import page
from midreel.experiments.reproduce.result import Result
from midreel.experiments.reproduce.specs import Context, Experiment
from midreel.io.files import write_durably
from midreel.io.json_values import without_nan

PAGE = "index.html"


def run(experiment: Experiment, context: Context) -> Result:
    """Run an experiment. Finished runs in `context.out` are not repeated.

    The folder of the result gets table.md, table.tex, table.csv, table.json, index.html, card.json and pictures.
    """
    folder = context.out / experiment.folder
    folder.mkdir(parents=True, exist_ok=True)
    result = experiment.make(experiment, context)
    card = cards.describe(experiment, context, result)
    for name, text in {**_files(result), **result.files}.items():
        write_durably(folder / name, text)
    write_durably(folder / PAGE, page(result, card, folder))
    write_durably(folder / cards.CARD, _json(card))  # last: it promises that the others are complete
    return result


def _files(result: Result) -> dict[str, str]:
    tables = {"table.md": result.markdown(), "table.json": _json(result.to_dict())}
    if result.rows:
        tables |= {"table.tex": result.table("latex"), "table.csv": result.table("csv")}
    return tables


def _json(values: Any) -> str:
    return json.dumps(without_nan(values), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
