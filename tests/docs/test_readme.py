"""The README's Python runs as it is written."""

import re
from pathlib import Path

import pytest

from midreel import Searcher
from midreel.datasets import playhouse
from tests import ROOT


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    playhouse.write_dataset(tmp_path / "videos", seed=0, num_test=2)
    with Searcher.create("runs/demo/library") as searcher:  # what make demo leaves, but smaller
        searcher.add("videos")
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    out = capsys.readouterr().out
    assert "'tcpl_angle'" in out
    assert "playhouse-test-00001.mp4" in out


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)|^\[[^]]+\]: (\S+)", text, re.MULTILINE)
    for target in (inline or reference for inline, reference in targets):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target.split("#")[0]).exists(), f"{page} links to {target}"


def paper_links() -> dict[str, str]:
    """The text of every file that docs/paper.md links to by a label."""
    page = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    targets = re.findall(r"^\[([^]]+)\]: (\S+)", page, re.MULTILINE)
    return {label: (ROOT / "docs" / target).read_text(encoding="utf-8") for label, target in targets}


def test_the_paper_page_cites_tests_that_exist() -> None:
    page, files = (ROOT / "docs/paper.md").read_text(encoding="utf-8"), paper_links()
    current, cited = "", 0
    for label, group, test in re.findall(r"\[`test_\w+\.py`\]\[([\w-]+)\]|`::(?:(Test\w+)::)?(test_\w+)`", page):
        if label:
            current = files[label]
            continue
        cited += 1
        place = current[current.index(f"class {group}") :] if group else current
        indent = "    " if group else ""
        assert f"\n{indent}def {test}(" in place, f"docs/paper.md cites {group}::{test}"
    assert cited > 150


def test_the_paper_page_cites_functions_that_exist() -> None:
    page, files = (ROOT / "docs/paper.md").read_text(encoding="utf-8"), paper_links()
    names = [
        (name, label)
        for names, label in re.findall(r"\[((?:`[\w.]+`(?:, )?)+)\]\[([\w-]+)\]", page)
        for name in re.findall(r"`[\w]+\.([\w.]+)`", names)
        if not name.endswith("py")
    ]
    assert len(names) > 60
    for name, label in names:
        last = name.split(".")[-1]
        assert re.search(rf"(def|class) {last}\b|^\s*{last}\b", files[label], re.MULTILINE), f"{name} in {label}"
    for private in set(re.findall(r"`segments\.(_\w+)`", page)):
        assert f"def {private}(" in files["segments"], f"docs/paper.md cites segments.{private}"
