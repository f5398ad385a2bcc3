"""Accessibility: axe, phones, reduced motion, themes and screen readers."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.chromium import axe_source
from tests.server.conftest import World, wait_for
from tests.server.page.browsing import JOB, PHONE, answer_damaged_videos, answer_problem, num_frames, search

pytestmark = pytest.mark.slow

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
ENDED = [
    JOB | {"id": "j2", "state": "failed"},
    JOB | {"id": "j3", "state": "done", "left_out": [{"file": "inbox/a.mp4", "reason": "it is empty"}]},
]


def violations(page: Page) -> list[str]:
    page.evaluate(axe_source())
    # Only violations are reported, which is several times faster than the full report.
    found = page.evaluate(
        """async (rules) => (await axe.run(document, {runOnly: rules, resultTypes: ["violations"]})).violations""",
        RULES,
    )
    return [f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}" for each in found]


@pytest.mark.parametrize(("scheme", "size"), [("light", "desktop"), ("dark", "phone")])
def test_axe_finds_no_violations(browser: Browser, site: str, world: World, scheme: str, size: str) -> None:
    options = PHONE if size == "phone" else {}
    # The content security policy of the page would block axe.
    context = browser.new_context(base_url=site, color_scheme=scheme, bypass_csp=True, **options)  # type: ignore[arg-type]
    page, found = context.new_page(), dict[str, list[str]]()

    def examine(state: str, selector: str, address: str | None = None) -> None:
        if address is not None:
            page.goto(address)
        page.locator(selector).first.wait_for()
        found[state] = violations(page)

    results = f"/?q={world.queries[0].text}"
    examine("start", ".example", "/")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    examine("keys", "dialog[open]")
    examine("results", ".hit img", results)
    page.locator(".hit-main").first.click()
    wait_for(lambda: num_frames(page) > 0)
    examine("playing", ".stage video")
    examine("no confident match", ".doubt", f"{results}&threshold=1")
    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": [JOB, *ENDED]}))
    page.route("**/events", lambda route: None)
    page.route("**/v1/library", answer_damaged_videos)
    page.goto("/library")
    page.get_by_text("Skipped files", exact=True).click()
    examine("library, quarantine and jobs", "details[open] .reasons")
    page.locator(".tile").first.click()
    examine("one video", "dialog[open] video")
    page.route("**/stream", answer_problem(410, title="Gone"))
    page.goto(results)
    page.locator(".hit-main").first.click()
    examine("unplayable", ".screen .failure:not([hidden])")
    page.route("**/v1/search", answer_problem(500, title="Internal Server Error", detail="something went wrong"))
    examine("error", "[role=alert]", "/?q=error")
    page.route("**/v1/library", answer_problem(401, title="Unauthorized"))
    examine("token", "#token", "/")
    empty = {"videos": 0, "seconds": 0, "quarantined": 0, "unsearchable": 0, "unsearchable_files": [], "folders": [],
             "roots": [], "writable": True, "model": "m", "backbone": "b", "examples": []}  # fmt: skip
    page.route("**/v1/library", lambda route: route.fulfill(json=empty))
    examine("empty", ".notice", "/")
    context.close()
    assert found == {state: [] for state in found}


def test_the_page_fits_a_phone_and_the_player_stays_visible(phone: Page, world: World) -> None:
    for address in ("/", f"/?q={world.queries[0].text}", "/library"):
        for width in (390, 320):
            phone.set_viewport_size({"width": width, "height": 844})
            phone.goto(address)
            phone.locator(".example, .hit, .tile").first.wait_for()
            assert phone.evaluate("document.documentElement.scrollWidth") <= width
    phone.set_viewport_size({"width": 390, "height": 844})
    phone.goto(f"/?q={world.queries[0].text}")
    last = phone.locator(".hit-main").nth(4)
    last.scroll_into_view_if_needed()
    last.tap()
    wait_for(lambda: num_frames(phone) > 0)
    expect(phone.locator(".screen")).to_be_in_viewport(ratio=0.9)


def test_reduced_motion_disables_animations(browser: Browser, site: str) -> None:
    context = browser.new_context(base_url=site, reduced_motion="reduce")
    page = context.new_page()
    page.route("**/v1/search", lambda route: None)
    page.goto("/?q=a ball")
    expect(page.locator(".ghost").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.ghost .thumb')).animationName") == "none"
    context.close()


def test_the_theme_is_remembered(page: Page) -> None:
    page.goto("/")
    button = page.get_by_role("button", name=re.compile("Theme"))
    expect(button).to_have_accessible_name("Theme: system")
    button.click()
    button.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_status_is_announced_to_screen_readers(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    expect(page.locator("#status")).to_have_text(re.compile(r"^\d of \d videos found$"))
    page.locator(".hit-main").first.click()
    expect(page.locator("#status")).to_contain_text("Playing")
