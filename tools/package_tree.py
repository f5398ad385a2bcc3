"""Print the tree of midreel's packages, with the first line of each module's docstring.

python -m tools.package_tree --write     # update docs/architecture.md
"""

import argparse
import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- tree -->\n", "<!-- end of tree -->\n"
_WIDTH = 120


def tree(package: Path = ROOT / "midreel") -> str:
    """Return a line for each package and module, sorted by name. Packages end in a slash."""
    return "\n".join(_lines(package, 0))


def _lines(folder: Path, depth: int) -> Iterator[str]:
    yield _line(f"{folder.name}/", depth, folder / "__init__.py")
    paths = sorted(folder.iterdir())
    for path in paths:
        if path.suffix == ".py" and path.name not in ("__init__.py", "__main__.py"):
            yield _line(path.name, depth + 1, path)
    for path in paths:
        if (path / "__init__.py").is_file():
            yield from _lines(path, depth + 1)


def _line(name: str, depth: int, path: Path) -> str:
    start = f"{'  ' * depth}{name}"
    return f"{start:<32} {textwrap.shorten(_summary(path), _WIDTH - 33, placeholder=' …')}"


def _summary(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    return " ".join(text.split()).split(". ")[0].rstrip(".")


def page(text: str) -> str:
    """Return the text of docs/architecture.md with the present tree."""
    start, rest = text.split(BEGIN)
    return f"{start}{BEGIN}\n```text\n{tree()}\n```\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update docs/architecture.md")
    if parser.parse_args().write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tree())


if __name__ == "__main__":
    main()
