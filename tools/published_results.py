"""Print the published results as Markdown tables.

python -m tools.published_results --write     # update docs/methods.md
"""

import argparse
from itertools import groupby
from pathlib import Path

from midreel.evaluation.tables import NONE_SHOWN
from midreel.recipes.published import COLUMNS, FEATURES, RESULTS

PAGE = Path(__file__).parent.parent / "docs/methods.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"
TITLES = {
    "qvhighlights": "QVHighlights",
    "tvr": "TVR",
    "activitynet": "ActivityNet Captions",
    "charades": "Charades-STA",
}


def tables() -> str:
    """Return a section for each dataset, with a table for each kind of features."""
    parts = []
    for dataset, of_dataset in groupby(RESULTS, key=lambda each: each.dataset):
        parts.append(f"### {TITLES[dataset]}")
        for features, results in groupby(of_dataset, key=lambda each: each.features):
            head = f"| Method | {' | '.join(COLUMNS)} | Source |\n|---{'|---:' * len(COLUMNS)}|---|"
            lines = []
            for each in results:
                figures = each.figures()
                cells = (f"{figures[name]:.1f}" if name in figures else NONE_SHOWN for name in COLUMNS)
                lines.append(f"| `{each.method}` | {' | '.join(cells)} | {each.origin}{' †' * each.reproduced} |")
            parts += [f"`{features}`: {FEATURES[features]}.", "\n".join([head, *lines])]
    return "\n\n".join(parts)


def page(text: str) -> str:
    """Return the text of docs/methods.md with the present results."""
    start, rest = text.split(BEGIN)
    return f"{start}{BEGIN}\n{tables()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update docs/methods.md")
    if parser.parse_args().write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tables())


if __name__ == "__main__":
    main()
