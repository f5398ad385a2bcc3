"""Films that Chromium cannot play: the page plays a proxy of the moment."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from midreel.library import indexer
from midreel.library.writer import Wanted, Writer
from midreel.server.app import create_app
from tests.server.conftest import World, running, wait_for
from tests.server.page.browsing import num_frames, open_page, search, seconds
from tests.server.test_proxies import old_film

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[("walk.avi", "mpeg4"), ("city.mpg", "mpeg2video")], ids=["AVI", "MPEG-2"])
def old_page(
    request: pytest.FixtureRequest, browser: Browser, world: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("old")
    name, codec = request.param
    old_film(folder / "films" / name, codec, seconds=20)
    own = World(videos=folder, library=folder / "library", queries=world.queries, backbone=world.backbone)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        with Writer.open(own.library, Wanted(backbone="tiny-clip"), backbone=world.backbone) as writer:
            indexer.index(writer, [folder / "films"])
        with (
            own.searcher() as searcher,
            running(create_app(searcher)) as address,
            open_page(browser, address) as page,
        ):
            yield page
    assert list(Path(folder / "cache").rglob("*.mp4"))


def source(page: Page) -> str:
    return str(page.evaluate("document.querySelector('.stage video').currentSrc"))


@pytest.mark.slow
def test_an_old_film_plays(old_page: Page) -> None:
    page = old_page
    page.goto("/")
    search(page, "a white wall")
    page.locator(".hit-main").first.click()
    wait_for(lambda: "/proxy?" in source(page))
    wait_for(lambda: num_frames(page) > 3)
    expect(page.locator(".screen .failure")).to_be_hidden()
    # The slider is in the time of the film, whatever part of it is loaded.
    line = page.get_by_role("slider", name="Position in the video")
    box = line.bounding_box()
    assert box is not None
    line.click(position={"x": box["width"] * 0.75, "y": box["height"] / 2})
    wait_for(lambda: 14.5 <= float(line.get_attribute("aria-valuenow") or 0) <= 18)
    start = float(source(page).split("start=")[1].split("&")[0])
    assert 14 <= seconds(page) + start <= 18
    line.click(position={"x": box["width"] * 0.05, "y": box["height"] / 2})
    wait_for(lambda: 0.5 <= float(line.get_attribute("aria-valuenow") or 0) <= 4)
