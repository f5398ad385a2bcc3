"""The examples of the README and of the new pages run, and links lead to files."""

import re
from pathlib import Path

import pytest

from midreel import Searcher
from midreel.datasets import playhouse
from tests import ROOT
from tools import docs_reference

PAGES = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
GENERATED = {ROOT / f"docs/reference/{name}.md" for name in docs_reference.PAGES} | {ROOT / "docs/changelog.md"}


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small library where `make demo` writes one."""
    folder = tmp_path_factory.mktemp("demo")
    playhouse.write_dataset(folder / "videos", seed=0, num_test=2)
    with Searcher.create(folder / "runs/demo/library") as searcher:
        searcher.add(folder / "videos")
    return folder


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("README.md", "playhouse-test-00001.mp4"),
        ("docs/reference/python/index.md", "'tcpl_angle'"),
        ("docs/evaluate.md", "[1, 2]\n{'R@1': 50.0, 'R@2': 100.0, 'SumR': 150.0}\n"),
    ],
)
def test_examples_run(
    page: str,
    expected: str,
    demo_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    monkeypatch.chdir(demo_folder)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert expected in capsys.readouterr().out


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)|^\[[^]]+\]: (\S+)", text, re.MULTILINE)
    for target in (inline or reference for inline, reference in targets):
        if not target.startswith("http"):
            path = ((ROOT / page).parent / target).resolve()
            assert path.exists() or path in GENERATED, f"{page} links to {target}"


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
