"""One browser and one server for all tests of the page that run in a worker.

The fixtures have the scope of this package, not of the session: while playwright runs, its event loop keeps other tests
from calling `asyncio.run`.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from midreel.server.app import create_app
from tests.server.chromium import axe_source, find_chromium
from tests.server.conftest import World, running
from tests.server.page.browsing import PHONE, open_page


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    axe_source()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def site(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server. Tests must not change its videos."""
    own = world.copied(tmp_path_factory.mktemp("site"))
    with own.searcher() as searcher, running(create_app(searcher)) as address:
        yield address


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    with open_page(browser, site) as page:
        yield page


@pytest.fixture
def phone(browser: Browser, site: str) -> Iterator[Page]:
    with open_page(browser, site, **PHONE) as page:
        yield page
