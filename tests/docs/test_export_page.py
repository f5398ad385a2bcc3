"""docs/export.md shows what is really printed; its programs are run by test_onnx_export.py, on every kind of graph."""

import re

from tests import ROOT
from tests.conftest import ExportedRun

PAGE = (ROOT / "docs/export.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d\.\de-\d\d")


def test_the_command(exported_run: ExportedRun) -> None:
    (shown,) = re.findall(r"```console\n\$ midreel export-model runs/mine exported --onnx\n(.*?)```", PAGE, re.DOTALL)
    ended = exported_run.ended
    assert (ended.code, NUMBER.sub("#", ended.out), ended.err) == (0, NUMBER.sub("#", shown), "")


def test_every_file_is_explained(exported_run: ExportedRun) -> None:
    for path in exported_run.folder.iterdir():
        assert f"`{path.name}`" in PAGE
