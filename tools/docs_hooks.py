"""MkDocs hooks: add generated pages to the site, and pages of the source files that other pages link to."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import docs_reference

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

# Files outside docs/ that are part of the site, by their place in it.
COPIED = {"changelog.md": ROOT / "CHANGELOG.md", "pictures/icon.svg": ROOT / "midreel/server/page/icon.svg"}

_INLINE = re.compile(r"(?<=\]\()(?P<path>[^)#\s]+)")
_REFERENCE = re.compile(r"(?<=\]: )(?P<path>[^#\s]+)")
_LANGUAGES = {".c": "c", ".md": "markdown", ".py": "python", ".toml": "toml"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, the copied files and the source pages. MkDocs calls this before it reads any page."""
    for place, path in COPIED.items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for name, make in docs_reference.PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    linked = {
        path
        for file in files.documentation_pages()
        for path in _linked_paths(file.content_string, _origin(file.src_uri))
        if not path.is_relative_to(DOCS) and path != COPIED["changelog.md"]
    }
    for path in sorted(linked):
        files.append(File.generated(config, _source_page(path), content=_source_text(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the pages that `on_files` added. MkDocs calls this for each page."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    origin = _origin(page.file.src_uri)

    def place(match: re.Match[str]) -> str:
        path = _local_path(match["path"], origin)
        if path is None or (path.is_relative_to(DOCS) and origin.is_relative_to(DOCS)):
            return match["path"]
        target = path.relative_to(DOCS) if path.is_relative_to(DOCS) else _source_page(path)
        return Path(os.path.relpath(target, Path(page.file.src_uri).parent)).as_posix()

    return _REFERENCE.sub(place, _INLINE.sub(place, markdown))


def _origin(place: str) -> Path:
    """Return the file that a page of the site is made from, so that its relative links can be followed."""
    return COPIED.get(place, DOCS / place)


def _linked_paths(markdown: str, origin: Path) -> Iterator[Path]:
    for pattern in (_INLINE, _REFERENCE):
        for match in pattern.finditer(markdown):
            path = _local_path(match["path"], origin)
            if path is not None:
                yield path


def _local_path(target: str, origin: Path) -> Path | None:
    """Return the existing file or folder that a link leads to, or None if it leads elsewhere."""
    if "://" in target:
        return None
    path = (origin.parent / target).resolve()
    return path if path.exists() and path.is_relative_to(ROOT) else None


def _source_page(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def _source_text(path: Path) -> str:
    """Return a page that shows a source file, or each source file of a folder."""
    files = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if each.suffix in _LANGUAGES]
    parts = ["---\nsearch:\n  exclude: true\n---", f"# {path.relative_to(ROOT).as_posix()}"]
    for file in files:
        if file != path:
            parts.append(f"## {file.relative_to(path).as_posix()}")
        # A fence of ten characters: sources contain shorter ones.
        fence = "`" * 10
        language = _LANGUAGES.get(file.suffix, "text")
        parts.append(f'{fence} {{ .{language} linenums="1" }}\n{file.read_text(encoding="utf-8")}\n{fence}')
    return "\n\n".join(parts) + "\n"
