"""Only listed packages and modules import torch. Everything else works on numpy arrays, and starts fast."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

HEAVY = {"torch", "transformers"}
ALLOWED_PACKAGES = {
    *("midreel.evaluation", "midreel.experiments", "midreel.losses", "midreel.methods", "midreel.nn"),
    "midreel.training",
}
ALLOWED_MODULES = {
    "midreel.cli.doctor",  # checks torch itself
    *("midreel.features.backbones.clip", "midreel.features.backbones.hugging_face"),
    *("midreel.features.backbones.metaclip_2", "midreel.features.backbones.videoprism"),
    *("midreel.features.backbones.siglip", "midreel.features.backbones.slowfast"),
    "midreel.features.backbones.slowfast_net",
    "midreel.features.backbones.slowfast_weights",
    "midreel.io.safe_pickle",
    *("midreel.ops.devices", "midreel.ops.neighbours", "midreel.ops.precision", "midreel.ops.processes"),
    *("midreel.ops.scoring", "midreel.ops.segments"),
}


def test_only_listed_modules_import_torch() -> None:
    found = {name_of(path) for path in (ROOT / "midreel").rglob("*.py") if HEAVY & imported(path)}
    outside = {name for name in found if ".".join(name.split(".")[:2]) not in ALLOWED_PACKAGES}
    assert outside - ALLOWED_MODULES == set(), "use numpy, or allow the module in this test"
    assert ALLOWED_MODULES - outside == set(), "no longer needed in this test"
    assert {".".join(name.split(".")[:2]) for name in found - outside} == ALLOWED_PACKAGES


def test_finds_imports_in_functions_and_by_name_but_not_for_type_checkers(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "import os.path\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    import torch\n"
        "else:\n"
        "    import json\n"
        "def load():\n"
        "    from safetensors.torch import load_file\n"
        "    importlib.import_module('transformers.models')\n"
        "    from . import torch\n"
    )
    assert imported(file) == {"os", "typing", "json", "safetensors", "transformers"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Return the first part of the name of each module that a file imports when it is run."""
    return {name.split(".")[0] for name in imports_below(ast.parse(path.read_text(encoding="utf-8")))}


def imports_below(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            children: list[ast.AST] = list(node.orelse)
        case _:
            children = list(ast.iter_child_nodes(node))
    match node:
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom(level=0, module=str(module)):
            yield module
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            yield module
    for child in children:
        yield from imports_below(child)
