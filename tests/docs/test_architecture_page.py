"""docs/architecture.md shows the tree and the import rules as they are."""

import re
import tomllib

from tests import ROOT
from tools import package_tree

PAGE = package_tree.PAGE.read_text(encoding="utf-8")


def test_the_tree_is_as_the_page_shows_it() -> None:
    assert package_tree.page(PAGE) == PAGE, "run: python -m tools.package_tree --write"


def test_every_module_says_what_is_in_it() -> None:
    for line in package_tree.tree().splitlines():
        assert len(line.split(None, 1)) == 2, line


def test_the_import_rules_are_those_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (each["layers"] for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    shown = re.search(r"## Imports go down only\n\n```\n(.*?)\n```", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == [layer.replace("midreel.", "") for layer in layers]


def test_few_modules_are_loose() -> None:
    loose = {path.name for path in (ROOT / "midreel").glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "errors.py", "types.py"}
