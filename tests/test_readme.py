"""The README's Python runs as it is written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert "'tcpl_angle'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)|^\[[^]]+\]: (\S+)", text, re.MULTILINE)
    for target in (inline or reference for inline, reference in targets):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target.split("#")[0]).exists(), f"{page} links to {target}"


def test_the_paper_page_cites_tests_that_exist() -> None:
    page = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"::(?:Test\w+::)?(test_\w+)`", page))
    written = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 80
    assert cited <= written, f"docs/paper.md cites {sorted(cited - written)}"
