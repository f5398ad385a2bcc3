"""docs/settings.md lists every setting, with the default that it has."""

import json
import re
from dataclasses import MISSING, fields

from midreel.methods.msc import MSCConfig
from midreel.recipes import LISTED
from midreel.recipes.recipe import Recipe
from tests import ROOT

PAGE = ROOT / "docs/settings.md"


def test_every_setting_is_there_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    expected = [
        (field.name, "of the recipe" if field.default is MISSING else f"`{_written(field.default)}`")
        for part in (MSCConfig, Recipe)
        for field in fields(part)
        if field.name != "config"
    ]
    assert rows == expected
    assert LISTED.startswith("docs/settings.md")


def _written(value: object) -> str:
    """As a command line takes it."""
    return value if isinstance(value, str) else json.dumps(value)
