"""The generated reference names every command, route, setting and public name."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import pytest
import typer

import midreel
from midreel.cli import app
from midreel.methods import METHODS
from midreel.recipes import NOT_SETTINGS
from midreel.recipes.recipe import Recipe
from midreel.server.app import openapi_document
from tests import ROOT
from tools import docs_reference


def commands(command: Any, path: str = "midreel") -> dict[str, Any]:
    found = {path: command}
    for name, each in getattr(command, "commands", {}).items():
        found |= commands(each, f"{path} {name}")
    return found


def section(page: str, heading: str) -> str:
    """Return the text from a heading to the next heading."""
    start = re.search(rf"^#+ {re.escape(heading)}( \{{.*\}})?$", page, re.MULTILINE)
    assert start is not None, heading
    return re.split(r"^#+ ", page[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def test_cli_page_has_every_command_and_option() -> None:
    page = docs_reference.cli_page()
    for path, command in commands(typer.main.get_command(app)).items():
        text = page if path == "midreel" else section(page, path)
        for parameter in command.params:
            name = parameter.opts[-1] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
            assert name.lower() in text.lower(), f"{path} {name}"


def test_help_text_keeps_its_columns() -> None:
    text = "\nNotes:\n  a   one\n  b   two\n\nExample:\n  midreel info search\n\nThe end."
    expected = ["Notes:", "```text\na   one\nb   two\n```", "Example:", "```sh\nmidreel info search\n```", "The end."]
    assert list(docs_reference.help_parts(text)) == expected


def test_http_page_has_every_route_parameter_and_schema() -> None:
    page, document = docs_reference.http_page(), openapi_document()
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            text = section(page, f"{verb.upper()} {path}")
            for parameter in operation.get("parameters", []):
                assert f"| `{parameter['name']}`" in text
            for status in operation["responses"]:
                assert f"`{status}`" in text
    for name, schema in document["components"]["schemas"].items():
        text = section(page, name)
        for field in schema.get("properties", {}):
            assert f"| `{field}`" in text


def test_settings_page_has_every_setting_with_its_default() -> None:
    page = docs_reference.settings_page()
    configs: dict[str, Any] = {"Training": Recipe} | {each.paper.method: each.Config for each in METHODS.values()}
    for title, config in configs.items():
        text = section(page, title)
        for field in dataclasses.fields(config):
            if field.name in ("method", *NOT_SETTINGS):
                continue
            default = docs_reference.default_value(field.default)
            assert re.search(rf"^\| `{field.name}` \|.*\| {re.escape(default)} \| \S", text, re.MULTILINE), field.name


def test_python_page_has_every_public_name() -> None:
    page = (ROOT / "docs/reference/python/index.md").read_text(encoding="utf-8")
    for name in midreel.__all__:
        assert f"::: midreel.{name}\n" in page
    for name in docs_reference.PYTHON:
        assert f"({name}.md)" in page


def test_settings_need_a_description() -> None:
    @dataclass
    class Config:
        """Settings.

        Attributes:
            heads: Attention
                heads.
        """

        heads: int = 4
        width: int = 1  # Width of the vectors.
        # Depth of the network,
        # in layers.
        depth: int = 2

        # Losses
        margin: float = 0.2

    with pytest.raises(ValueError, match="margin"):
        docs_reference.settings_of(Config)
    Config.__dataclass_fields__.pop("margin")
    descriptions = [setting.description for setting in docs_reference.settings_of(Config)]
    assert descriptions == ["Attention heads.", "Width of the vectors.", "Depth of the network, in layers."]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
            "integer, at least 1, at most 100, default `10`",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        (
            {"anyOf": [{"type": "string", "maxLength": 4096}, {"type": "null"}]},
            "string, at most 4,096 characters, or null",
        ),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Hit"}}, "list of [Hit](#hit)"),
        ({"enum": ["queued", "done"]}, '`"queued"` or `"done"`'),
    ],
)
def test_types_of_schemas(schema: dict[str, Any], expected: str) -> None:
    assert docs_reference.schema_type(schema) == expected
