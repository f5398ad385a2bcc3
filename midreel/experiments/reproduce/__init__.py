"""Every table and figure of the paper, by name: `midreel reproduce 1`.

specs         what an experiment is
paper_tables  Tables 1 to 5, 8, 9 and A1 with the printed numbers
rows          train the rows of a table, and test their differences
sources       Table 3c: text encoders of other backbones
efficiency    Tables 6 and 7: time, memory and size
outcomes      Table A2: query by query against CLIP
transfer      train on one dataset, test on another
collapse_figure, examples_figure  Figures 1 and 3
result, page  our figures beside the paper's, as Markdown, LaTeX, CSV, JSON and HTML
card          what is needed to run an experiment again
running       run an experiment and write its result
"""

from typing import Any

from midreel.errors import UnknownName
from midreel.experiments.reproduce import collapse_figure, efficiency, examples_figure, outcomes, transfer
from midreel.experiments.reproduce.paper_tables import TABLES
from midreel.experiments.reproduce.specs import Experiment

COST = "For scale: midreel demo takes about 10 minutes on two cores, with two runs on 1,000 videos."
MEASURED = (
    Experiment(
        name="6",
        title="Table 6: time and memory of a search by the number of videos",
        make=efficiency.make_search_table,
        rows={"qvhighlights": efficiency.ROWS},
        is_timed=True,
        is_trained=False,
    ),
    Experiment(
        name="7",
        title="Table 7: cost of training, and size of the models",
        make=efficiency.make_training_table,
        rows={"qvhighlights": efficiency.ROWS},
        is_timed=True,
        is_trained=False,
    ),
    Experiment(
        name="A2",
        title="Table A2: MSC against zero-shot CLIP, query by query",
        make=outcomes.make,
        rows={"tvr": outcomes.ROWS},
        needs="a dataset with the features of a CLIP",
    ),
)
FIGURES = (
    Experiment(
        name="fig1",
        title="Figure 1: semantic collapse in two videos",
        make=collapse_figure.make,
        rows={"": collapse_figure.ROWS},
    ),
    Experiment(
        name="fig3",
        title="Figure 3: retrieval examples",
        make=examples_figure.make,
        rows={"": examples_figure.ROWS},
    ),
)
TRANSFER = Experiment(
    name="transfer",
    title="Transfer: trained on one dataset, tested on another",
    make=transfer.make,
    rows={"": transfer.ROWS},
    needs="two or more datasets with features of one backbone",
)
EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for each in (*sorted((*TABLES, *MEASURED), key=lambda table: table.name), *FIGURES, TRANSFER)
}
"""All tables in the order of the paper, then the figures, then what the field reports since."""


def find(name: str) -> Experiment:
    """Return an experiment by name, such as "1", "A2" or "fig1".

    Raises:
        UnknownName: There is no such table or figure.
    """
    for each in EXPERIMENTS.values():
        if name.lower() in (each.name.lower(), each.folder.lower()):
            return each
    raise UnknownName.among("table or figure", name, EXPERIMENTS)


def listed() -> dict[str, dict[str, Any]]:
    """Return what each experiment makes, needs and costs, as JSON values."""
    return {
        name: {
            "title": each.title,
            "needs": each.needs or "a dataset with features",
            "runs per seed": each.num_trained,
            "rows": [row.key for row in each.rows_for("")],
        }
        for name, each in EXPERIMENTS.items()
    }


def list_text() -> str:
    """Return the list of all experiments for a terminal."""
    lines = []
    for name, each in listed().items():
        cost = f"{each['runs per seed']} runs per seed" if each["runs per seed"] else "no training"
        lines += [f"{name:<9} {each['title']}", f"{'':<9} {cost}; needs {each['needs']}"]
    return "\n".join([*lines, "", COST])
