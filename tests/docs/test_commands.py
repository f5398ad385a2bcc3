"""The commands that the README and the pages show exist, with their options."""

import re
import shlex
from typing import Any

import pytest
import typer

from midreel.cli import app
from tests import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]


def commands(text: str) -> list[list[str]]:
    """Return the arguments of each `midreel` command in the code blocks of a page."""
    blocks = re.findall(r"^```(?:sh|text|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^(?:\$ )?midreel (.*)$", "\n".join(blocks).replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts} | {"--help"}


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    for words in commands((ROOT / page).read_text(encoding="utf-8")):
        command: Any = typer.main.get_command(app)
        for word in words:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
            elif word.startswith("-"):
                assert word in options(command), f"{page}: midreel {shlex.join(words)}"
        assert not hasattr(command, "commands") or "--help" in words, f"{page}: midreel {shlex.join(words)}"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE):
            assert f"\n{target}:" in makefile, f"{page}: make {target}"
