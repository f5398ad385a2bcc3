"""Take the screenshots of the page in docs/server.md.

    python -m tools.screenshots runs/demo/library --out docs/pictures

Needs chromium and the packages of midreel[test].
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tools.serving import serving

QUERY = "an orange rocket stands in front of a black ball"  # docs/quick-start.md shows its results as text
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def start(page: Page) -> None:
    """Show the start page with its example queries."""
    page.goto("/")
    page.locator(".example").first.wait_for()


def results(page: Page) -> None:
    """Search, and play the moment of the best hit."""
    start(page)
    page.locator("input[type=search]").first.fill(QUERY)
    page.keyboard.press("Enter")
    page.locator(".hit img").first.wait_for()
    page.locator(".hit-main").first.click()
    page.wait_for_function("document.querySelector('.stage video').getVideoPlaybackQuality().totalVideoFrames > 12")
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)


def nothing(page: Page) -> None:
    """Show a search without a confident match."""
    page.goto("/?q=a dog swims in a pool")
    page.locator(".doubt").wait_for()
    page.locator(".hit img").first.wait_for()


def library(page: Page) -> None:
    """Show the library page after an indexing job."""
    page.goto("/library")
    page.locator(".tile img").first.wait_for()
    button = page.get_by_role("button", name="Index ").first
    if button.count():
        button.click()
        page.locator(".job.done, .job.failed").first.wait_for()
        page.mouse.move(0, 0)


PICTURES: dict[str, tuple[Callable[[Page], None], dict[str, Any], Literal["light", "dark"]]] = {
    "page-start": (start, DESKTOP, "light"),
    "page-results": (results, DESKTOP, "light"),
    "page-results-dark": (results, DESKTOP, "dark"),
    "page-phone": (results, PHONE, "light"),
    "page-nothing": (nothing, DESKTOP, "light"),
    "page-library": (library, DESKTOP, "light"),
}


def take(browser: Browser, address: str, out: Path) -> None:
    """Write all screenshots to a folder."""
    for name, (show, size, scheme) in PICTURES.items():
        # The content security policy of the page blocks wait_for_function, so bypass it.
        context = browser.new_context(base_url=address, color_scheme=scheme, bypass_csp=True, **size)
        page = context.new_page()
        show(page)
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(500)  # the browser may still decode images
        path = out / f"{name}.png"
        page.screenshot(path=path)
        context.close()
        # 256 colours suffice for a page, and the file is a third as large.
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
        print(path)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="the library to show, such as runs/demo/library")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed. Install it: apt-get install chromium")
    with serving(arguments.library) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take(browser, address, arguments.out)
        browser.close()


if __name__ == "__main__":
    main()
