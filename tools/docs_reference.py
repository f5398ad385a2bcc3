"""Write reference pages from the code: commands, HTTP routes, settings and the Python API.

Each function returns one page as Markdown. tools/docs_hooks.py adds the pages to the site.
"""

import dataclasses
import inspect
import io
import json
import re
import textwrap
import tokenize
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import griffe

JSON = Mapping[str, Any]

# ---------------------------------------------------------------- Markdown


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, or an empty string if there are no rows."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines]) if lines else ""


def text_cell(text: str) -> str:
    """Return text as one line that neither ends a table cell nor starts an HTML tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def code_cell(text: str) -> str:
    return f"`{text}`"


def page(*parts: str) -> str:
    """Join the parts of a page with blank lines, without the empty ones."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


# ---------------------------------------------------------------- command line


def cli_page() -> str:
    """Return the page of all commands with their arguments and options."""
    import typer

    from midreel.cli import app

    command: Any = typer.main.get_command(app)
    return page(
        "# Command line",
        *_command_parts(command, name="midreel", parent=None),
    )


def _command_parts(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=name, parent=parent)
    path = context.command_path
    if parent is not None:
        yield f"{'#' * len(path.split())} {path}"
    yield from help_parts(command.help or "")
    yield f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```"
    shown = [each for each in command.get_params(context) if not each.hidden and each.name != "help"]
    for kind, title in (("argument", "Argument"), ("option", "Option")):
        records = [each.get_help_record(context) for each in shown if each.param_type_name == kind]
        yield table((title, "Description"), [(code_cell(written), text_cell(text)) for written, text in records])
    yield from help_parts(command.epilog or "")
    commands: Mapping[str, Any] = getattr(command, "commands", {})
    names = command.list_commands(context) if commands else ()
    visible = {key: commands[key] for key in names if not commands[key].hidden}
    rows = [
        (f"[`{path} {key}`](#{f'{path} {key}'.replace(' ', '-')})", text_cell(_first_paragraph(each.help or "")))
        for key, each in visible.items()
    ]
    yield table(("Command", "Description"), rows)
    for key, each in visible.items():
        yield from _command_parts(each, key, context)


def help_parts(text: str) -> Iterator[str]:
    """Return the paragraphs of a help text as Markdown. Indented lines, such as examples, become code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        code = [line for line in lines if line.startswith(" ")]
        yield "\n".join(line for line in lines if not line.startswith(" "))
        if code:
            block = textwrap.dedent("\n".join(code))
            yield f"```{'sh' if block.startswith('midreel') else 'text'}\n{block}\n```"


def _first_paragraph(text: str) -> str:
    return inspect.cleandoc(text).split("\n\n")[0]


# ---------------------------------------------------------------- HTTP


def http_page() -> str:
    """Return the page of all HTTP routes with their parameters, bodies and responses, and of all schemas."""
    from midreel.server.app import openapi_document

    document = openapi_document()
    parts = [
        "# HTTP API",
        inspect.cleandoc(document["info"]["description"]),
        "A running server has the same reference as an OpenAPI document at `/openapi.json`. [Server](../server.md) "
        "explains how to start one.",
        table(
            ("Route", "Description"),
            [
                (f"[`{verb.upper()} {path}`](#{_anchor(verb, path)})", text_cell(operation.get("summary", "")))
                for path, verb, operation in _operations(document)
            ],
        ),
    ]
    about_tag = {tag["name"]: tag["description"] for tag in document.get("tags", ())}
    for tag in dict.fromkeys(_tag(operation) for _, _, operation in _operations(document)):
        parts += [f"## {tag.capitalize()} {{ #routes-{tag} }}", about_tag.get(tag, "")]
        for path, verb, operation in _operations(document):
            if _tag(operation) == tag:
                parts += _operation_parts(path, verb, operation)
    parts.append("## Schemas")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += [f"### {name}", inspect.cleandoc(schema.get("description", "")), _schema_part(schema)]
    return page(*parts)


def _operations(document: JSON) -> Iterator[tuple[str, str, JSON]]:
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            yield path, verb, operation


def _tag(operation: JSON) -> str:
    return str(operation.get("tags", ["routes"])[0])


def _anchor(verb: str, path: str) -> str:
    return verb + re.sub(r"[^a-z0-9]+", "-", path.lower()).rstrip("-")


def _operation_parts(path: str, verb: str, operation: JSON) -> Iterator[str]:
    yield f"### {verb.upper()} {path} {{ #{_anchor(verb, path)} }}"
    yield f"{operation.get('summary', '').rstrip('.')}."
    yield inspect.cleandoc(operation.get("description", ""))
    yield from _request_parts(operation)
    yield from _response_parts(operation)


def _request_parts(operation: JSON) -> Iterator[str]:
    rows = [
        (
            code_cell(each["name"]) + ("" if each.get("required") else " (optional)"),
            each["in"],
            schema_type(each["schema"]),
            text_cell(each.get("description", "")),
        )
        for each in operation.get("parameters", [])
    ]
    yield table(("Parameter", "In", "Type", "Description"), rows)
    if "requestBody" in operation:
        yield f"Body: {_bodies(operation['requestBody'])}."


def _response_parts(operation: JSON) -> Iterator[str]:
    """List responses; all problem responses share one line, because they share one body."""
    problems = []
    for status, response in operation["responses"].items():
        if "application/problem+json" in response.get("content", {}):
            problems.append(f"`{status}` {response['description']}")
            continue
        meaning = "Success" if response["description"] == "Successful Response" else response["description"]
        body = _bodies(response)
        yield f"Response `{status}`: {text_cell(meaning).rstrip('.')}{f', {body}' if body else ''}."
    if problems:
        yield f"Errors, each a [Problem](#problem): {', '.join(problems)}."


def _bodies(message: JSON) -> str:
    return " or ".join(
        f"{schema_type(body['schema'])} as `{kind}`" if body.get("schema") else f"`{kind}`"
        for kind, body in message.get("content", {}).items()
    )


def _schema_part(schema: JSON) -> str:
    if "properties" not in schema:
        return schema_type(schema)
    required = schema.get("required", ())
    rows = [
        (
            code_cell(name) + ("" if name in required else " (optional)"),
            schema_type(each),
            text_cell(each.get("description", "")),
        )
        for name, each in schema["properties"].items()
    ]
    return table(("Field", "Type", "Description"), rows)


def schema_type(schema: JSON) -> str:
    """Return the type of a JSON schema in words, with its bounds and its default."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        kinds = [schema_type(each) for each in schema["anyOf"]]
        written = (", or " if any("," in kind for kind in kinds) else " or ").join(kinds)
    elif "enum" in schema or "const" in schema:
        written = " or ".join(code_cell(json.dumps(each)) for each in schema.get("enum", [schema.get("const")]))
    elif schema.get("type") == "array":
        written = f"list of {schema_type(schema.get('items', {}))}"
    else:
        written = str(schema.get("type", "any"))
    bounds = [
        f"{word} {schema[key]:,}{unit}".replace(".0", "")
        for key, word, unit in (
            ("minimum", "at least", ""),
            ("exclusiveMinimum", "more than", ""),
            ("maximum", "at most", ""),
            ("exclusiveMaximum", "less than", ""),
            ("maxLength", "at most", " characters"),
            ("maxItems", "at most", " items"),
        )
        if key in schema
    ]
    default = [f"default `{json.dumps(schema['default'])}`"] if schema.get("default") is not None else []
    return ", ".join([written, *bounds, *default])


# ---------------------------------------------------------------- settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A field of a config, as the source describes it."""

    name: str
    kind: str
    default: str
    description: str
    group: str  # the comment above a group of fields, or ""


def settings_page() -> str:
    """Return the page of all settings: those of training, and those of each method with its recipes."""
    from midreel.methods import METHODS
    from midreel.recipes.recipe import Recipe

    parts = [
        "# Settings",
        "`midreel train --set SETTING=VALUE` and `midreel reproduce TABLE --set SETTING=VALUE` change a setting:",
        "```sh\nmidreel train --dataset clips --out runs/small --set width=64 --set epochs=3 --set tcpl=false\n```",
        "A *recipe* holds the settings of one method on one dataset. A run stores all its settings in `recipe.json`. "
        "The defaults below apply where the recipe sets no other value.",
        "Settings and the files of a run count epochs from 0. Progress and tables count them from 1.",
        "## Training",
        *_settings_parts(Recipe),
    ]
    for name, method in METHODS.items():
        parts += [f"## {method.paper.method}", f"Name of the method: `{name}`.", *_settings_parts(method.Config)]
        parts += _recipes_parts(name)
    return page(*parts)


def settings_of(config: type) -> list[Setting]:
    """Return the settings of a config dataclass.

    A field is described in the `Attributes:` of the docstring, by the comment behind it, or by comment lines directly
    above it. A comment that follows a blank line is the heading of the fields below it.

    Raises:
        ValueError: A field has no description.
    """
    from midreel.recipes import NOT_SETTINGS

    comments: dict[str, str] = _attributes(config)
    headings: dict[str, str] = {}
    for base in reversed([each for each in config.__mro__ if dataclasses.is_dataclass(each)]):
        for known, own in zip((comments, headings), _comments(base), strict=True):
            known |= own
    kinds = typing.get_type_hints(config)
    fields = [field for field in dataclasses.fields(config) if field.name not in ("method", *NOT_SETTINGS)]
    missing = [field.name for field in fields if field.name not in comments]
    if missing:
        raise ValueError(
            f"{config.__module__}.{config.__name__} does not describe {', '.join(missing)}. "
            f"Add a comment behind each of these fields, or describe them under Attributes."
        )
    return [
        Setting(
            name=field.name,
            kind=_kind(kinds[field.name]),
            default=default_value(field.default),
            description=comments[field.name],
            group=headings.get(field.name, ""),
        )
        for field in fields
    ]


def _attributes(config: type) -> dict[str, str]:
    """Return the `Attributes:` of a docstring."""
    sections = griffe.Docstring(inspect.getdoc(config) or "").parse("google", warnings=False)
    return {
        attribute.name: " ".join(attribute.description.split())
        for section in sections
        if isinstance(section, griffe.DocstringSectionAttributes)
        for attribute in section.value
    }


def _comments(config: type) -> tuple[dict[str, str], dict[str, str]]:
    """Return the description of each field, and the heading of each field's group."""
    source = textwrap.dedent(inspect.getsource(config))
    comments: dict[str, str] = {}
    headings: dict[str, str] = {}
    above: list[str] = []
    heading, field, after_blank = "", "", False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        column = token.start[1]
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ")
            if column > 4 and field:
                comments[field] = text
            elif after_blank and not above:
                heading = text
            else:
                above.append(text)
        elif token.type == tokenize.NAME and column == 4:
            if token.string == "def":
                break
            field = token.string
            headings[field] = heading
            if above:
                comments[field], above = " ".join(above), []
        elif token.type == tokenize.NEWLINE:
            field = ""
        after_blank = token.type == tokenize.NL and token.line.strip() == ""
    return comments, headings


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(code_cell(str(value)) for value in typing.get_args(kind))
    return {int: "integer", float: "number", bool: "`true` or `false`", str: "text"}.get(kind, str(kind))


def default_value(value: Any) -> str:
    """Return the default of a setting as the command line takes it."""
    if value is dataclasses.MISSING:
        return "set by the recipe"
    return code_cell(value if isinstance(value, str) else json.dumps(value))


def _settings_parts(config: type) -> Iterator[str]:
    settings = settings_of(config)
    for group in dict.fromkeys(each.group for each in settings):
        rows = [
            (code_cell(each.name), each.kind, each.default, text_cell(each.description))
            for each in settings
            if each.group == group
        ]
        yield f"**{group.rstrip('.')}**" if group else ""
        yield table(("Setting", "Type", "Default", "Description"), rows)


def _recipes_parts(method: str) -> Iterator[str]:
    """Show what each recipe sets, next to the defaults."""
    from midreel import recipes

    by_dataset: Mapping[str, Callable[..., Any]] = recipes.RECIPES.get(method, {})
    if not by_dataset:
        yield "This method needs no training and has no recipes."
        return
    values = {name: _flat(build()) for name, build in by_dataset.items()}
    defaults = {
        field.name: field.default
        for recipe in [next(iter(by_dataset.values()))()]
        for part in (recipe, recipe.config)
        for field in dataclasses.fields(part)
    }
    rows = [
        (code_cell(setting), *(_value(flat[setting], default) for flat in values.values()))
        for setting, default in defaults.items()
        if setting not in recipes.NOT_SETTINGS and any(flat[setting] != default for flat in values.values())
    ]
    yield "**Recipes.** A blank means the default."
    yield table(("Setting", *map(code_cell, values)), rows)


def _flat(recipe: Any) -> dict[str, Any]:
    settings = dataclasses.asdict(recipe)
    return settings | settings["config"]


def _value(value: Any, default: Any) -> str:
    return "" if value == default else f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- Python

# Modules that users build on, by page: title, introduction, names of modules, classes or functions.
PYTHON: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "errors": ("Errors", "Every exception that midreel raises on purpose.", ["midreel.errors"]),
    "library": (
        "Library",
        "Index and search videos, and export the moments that a search finds.",
        [
            *("midreel.library.searcher", "midreel.library.hits", "midreel.library.feedback"),
            *("midreel.library.export", "midreel.library.report"),
        ],
    ),
    "client": ("HTTP client", "Call a running `midreel serve` from Python.", ["midreel.server.client"]),
    "methods": (
        "Methods",
        "The interface of a method, and the batches that it takes.",
        ["midreel.methods.base", "midreel.methods.batches"],
    ),
    "recipes": (
        "Recipes",
        "The settings of a method on a dataset.",
        ["midreel.recipes", "midreel.recipes.recipe"],
    ),
    "features": (
        "Features",
        "Backbones, feature stores and extraction.",
        [
            "midreel.features.backbones.base",
            "midreel.features.extract",
            "midreel.features.stores.base",
            "midreel.features.stores.store",
            "midreel.features.stores.published",
            "midreel.features.stores.join",
        ],
    ),
    "datasets": (
        "Datasets",
        "Annotated videos: benchmarks, your own annotations, and the generated playhouse.",
        [
            "midreel.datasets.annotations",
            "midreel.datasets.discovery",
            "midreel.datasets.dataset",
            "midreel.datasets.sources",
        ],
    ),
    "indexes": (
        "Indexes",
        "The interface of an index and its two implementations.",
        ["midreel.index.base", "midreel.index.exact", "midreel.index.embedded.index"],
    ),
    "evaluation": (
        "Evaluation",
        "Measure a method: recalls, moments and collapse.",
        [
            "midreel.evaluation.evaluate",
            "midreel.evaluation.metrics",
            "midreel.evaluation.moments",
            "midreel.evaluation.collapse",
            "midreel.evaluation.tables",
        ],
    ),
    "ops": (
        "Operations",
        "Pure functions of arrays: segments, scores, moments.",
        [
            "midreel.ops.segments",
            "midreel.ops.scoring",
            "midreel.ops.moments",
            "midreel.ops.edges",
            "midreel.ops.precision",
        ],
    ),
    "losses": (
        "Losses",
        "The terms of the training objective, one idea per module.",
        [
            "midreel.losses.contrastive",
            "midreel.losses.ranking",
            "midreel.losses.relational",
            "midreel.losses.alignment",
            "midreel.losses.diversity",
            "midreel.losses.matching",
        ],
    ),
    "types": ("Types", "Values that the packages exchange.", ["midreel.types"]),
}


def module_page(name: str) -> str:
    """Return the page of the modules that `PYTHON` lists under a name."""
    title, text, modules = PYTHON[name]
    return page(f"# {title}", text, *(f"::: {each}" for each in modules))


PAGES: Mapping[str, Callable[[], str]] = {
    "cli": cli_page,
    "http": http_page,
    "settings": settings_page,
    **{f"python/{name}": partial(module_page, name) for name in PYTHON},
}
