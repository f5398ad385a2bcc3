"""The start page, the results of a search, and errors."""

import re
import shutil

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.server.conftest import Serving, World, wait_for
from tests.server.page.browsing import answer_many_videos, answer_problem, open_page, padded_hits, search

pytestmark = pytest.mark.slow


def test_the_start_page_shows_examples_that_work(page: Page, world: World) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", name="What do you remember?")).to_be_visible()
    expect(page.get_by_role("searchbox")).to_be_focused()
    example = page.get_by_role("list", name="Examples").get_by_role("button").first
    text = example.inner_text()
    assert text in {query.text for query in world.queries}
    example.click()
    expect(page.locator(".hit")).to_have_count(5)
    expect(page.locator(".summary")).to_contain_text("5 of 5 videos")
    expect(page.get_by_role("searchbox")).to_have_value(text)
    expect(page).to_have_title(f"{text} · midreel")


def test_the_url_can_be_shared(page: Page, world: World, site: str) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    page.locator(".hit-main").nth(2).click()
    title = page.locator(".hit").nth(2).locator(".title").inner_text()
    shared = page.url
    other = page.context.new_page()
    other.goto(shared)
    expect(other.get_by_role("searchbox").first).to_have_value(world.queries[0].text)
    expect(other.locator(".stage .title")).to_have_text(title)
    assert other.evaluate("document.querySelector('.stage video').paused")
    other.close()


def test_back_and_forward_restore_searches(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    search(page, world.queries[5].text)
    page.go_back()
    expect(page.get_by_role("searchbox").first).to_have_value(world.queries[0].text)
    page.go_back()
    expect(page.get_by_role("heading", name="What do you remember?")).to_be_visible()
    page.go_forward()
    expect(page.locator(".hit").first).to_be_visible()


def test_an_interrupted_search_runs_again(page: Page, world: World) -> None:
    page.goto("/")
    page.locator(".example").first.wait_for()
    page.evaluate(
        """() => { document.querySelector(".example").click(); document.querySelector("#library-link").click(); }"""
    )
    expect(page.locator(".tile").first).to_be_visible()
    page.go_back()
    expect(page.locator(".hit")).to_have_count(5)


def test_a_search_without_a_confident_match_says_so_before_the_best_guesses(page: Page, world: World) -> None:
    doubt = page.get_by_text("No confident match.", exact=True)
    page.goto(f"/?q={world.queries[0].text}&threshold=1")
    expect(page.locator(".hit")).to_have_count(5)
    expect(doubt).to_be_visible()
    assert page.evaluate(
        """() => Boolean(document.querySelector(".doubt").compareDocumentPosition(document.querySelector(".hit"))
            & Node.DOCUMENT_POSITION_FOLLOWING)"""
    )
    page.get_by_label("Confident from").fill("0")
    expect(doubt).to_have_count(0)
    expect(page.locator(".hit")).to_have_count(5)
    assert "threshold=0" in page.url
    page.reload()
    expect(page.get_by_label("Confident from")).to_have_value("0")
    expect(page.locator(".hit .score").first).to_have_text(re.compile(r"^\d+ % likely$"))


def test_a_folder_restricts_the_search(page: Page, world: World) -> None:
    page.goto(f"/?q={world.queries[0].text}")
    page.get_by_label("Folder").select_option("Videos/holidays")
    expect(page.locator(".hit")).to_have_count(1)
    expect(page.locator(".summary")).to_contain_text("1 of 1 video ·")
    assert "folder=Videos%2Fholidays" in page.url
    page.reload()
    expect(page.locator(".hit")).to_have_count(1)
    expect(page.get_by_label("Folder")).to_have_value("Videos/holidays")


def test_an_error_is_shown_and_can_be_retried(page: Page, world: World) -> None:
    page.route("**/v1/search", answer_problem(500, title="Internal Server Error", detail="something went wrong"))
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.get_by_role("alert")).to_contain_text("Something went wrong")
    page.unroute("**/v1/search")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".hit").first).to_be_visible()


def test_an_unreachable_server_is_reported(page: Page, world: World) -> None:
    page.goto("/")
    page.route("**/v1/search", lambda route: route.abort())
    page.get_by_role("searchbox").fill("a ball")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Cannot reach the server")


def test_a_busy_server_is_retried(page: Page, world: World) -> None:
    asked = []

    def busy_once(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            return route.continue_()
        return route.fulfill(status=503, headers={"Retry-After": "0.1"}, json={"title": "busy", "status": 503})

    page.route("**/v1/search", busy_once)
    page.goto("/?q=a ball")
    expect(page.locator(".hit").first).to_be_visible()
    assert len(asked) == 2
    page.route("**/v1/search", lambda route: route.fulfill(status=503, headers={"Retry-After": "30"}, json={}))
    page.goto("/?q=a hat")  # too long to wait without a message
    expect(page.get_by_role("heading", name="The server is busy")).to_be_visible()


def test_a_missing_library_is_reported(browser: Browser, own: World, served: Serving) -> None:
    site = served(own)
    shutil.rmtree(own.library)
    with open_page(browser, site) as page:
        for address in ("/", "/library", "/?q=a ball"):
            page.goto(address)
            expect(page.get_by_role("alert")).to_contain_text("library is missing")
            expect(page.get_by_role("heading", name="Library unavailable")).to_be_visible()


def test_placeholders_do_not_shift_the_layout(page: Page, world: World) -> None:
    held: list[Route] = []
    page.add_init_script(
        """window.shift = 0; new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
        }).observe({type: "layout-shift", buffered: true});"""
    )
    page.route("**/v1/search", lambda route: held.append(route))
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".ghost")).to_have_count(6)
    held[0].continue_()
    expect(page.locator(".hit")).to_have_count(5)
    page.wait_for_timeout(300)
    assert float(page.evaluate("window.shift")) < 0.05


def test_show_more_is_hidden_if_all_videos_are_shown(page: Page) -> None:
    page.goto("/?q=a+ball")
    expect(page.locator(".summary")).to_contain_text(re.compile(r"^5 of 5 videos"))
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()


def test_show_more_appends_hits(page: Page) -> None:
    page.route("**/v1/library", answer_many_videos)
    page.route("**/v1/search", lambda route: route.fulfill(json=padded_hits(route)))
    page.goto("/?q=a+rocket")
    expect(page.locator(".hit")).to_have_count(12)
    expect(page.locator(".summary")).to_contain_text(re.compile(r"^best 12 of \d+ videos"))
    chosen = page.locator(".hit-main[aria-current=true] .title").text_content()
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".hit")).to_have_count(24)
    expect(page.locator(".hit-main").nth(12)).to_be_focused()
    assert page.locator(".hit-main[aria-current=true] .title").text_content() == chosen
    expect(page.locator(".summary")).to_contain_text(re.compile(r"^best 24 of \d+ videos"))
    page.locator(".hit-main").nth(20).click()
    page.reload()
    expect(page.locator(".hit-main[aria-current=true] .title")).to_have_text("copy 19")


def test_a_new_search_replaces_show_more(page: Page) -> None:
    held: list[Route] = []

    def answer(route: Route) -> None:
        asked = route.request.post_data_json
        is_slow = asked["query"] == "slow" or (asked["query"] == "first" and asked["top"] > 12)
        held.append(route) if is_slow else route.fulfill(json=padded_hits(route))

    page.route("**/v1/library", answer_many_videos)
    page.route("**/v1/search", answer)
    page.goto("/?q=first")
    more = page.get_by_role("button", name="Show more")
    more.click()
    page.get_by_role("searchbox").fill("second")
    page.get_by_role("searchbox").press("Enter")
    expect(page.locator(".summary")).to_contain_text("best 12 of")
    expect(more).to_be_visible()
    page.get_by_role("searchbox").fill("slow")
    page.get_by_role("searchbox").press("Enter")
    expect(more).to_be_hidden()  # the visible hits belong to the previous search


def test_a_failure_of_show_more_can_be_retried(page: Page) -> None:
    failing = [True]

    def answer(route: Route) -> None:
        if route.request.post_data_json["top"] > 12 and failing:
            failing.clear()
            route.fulfill(status=400, json={"title": "Bad", "detail": "out of order", "status": 400, "type": "x"})
        else:
            route.fulfill(json=padded_hits(route))

    page.route("**/v1/library", answer_many_videos)
    page.route("**/v1/search", answer)
    page.goto("/?q=a+rocket")
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".found").get_by_role("alert")).to_contain_text("Out of order")
    page.locator(".found").get_by_role("button", name=re.compile("again", re.IGNORECASE)).click()
    expect(page.locator(".hit")).to_have_count(24)
    expect(page.locator(".found").get_by_role("alert")).to_have_count(0)


def test_a_view_that_was_left_does_not_show_its_error(page: Page, world: World) -> None:
    held: list[Route] = []
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    page.route("**/v1/library", lambda route: held.append(route))
    page.get_by_role("link", name="Library").click()
    wait_for(lambda: page.wait_for_timeout(20) or bool(held))
    page.go_back()
    expect(page.locator(".hit").first).to_be_visible()
    held[0].abort()
    page.wait_for_timeout(200)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".hit").first).to_be_visible()


def test_moments_have_soft_edges(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    timeline = page.locator(".timeline.large")
    expect(timeline.locator("rect.shade.soft").first).to_be_attached()
    offsets = (
        timeline.locator("linearGradient")
        .first.locator("stop")
        .evaluate_all("(stops) => stops.map((stop) => Number(stop.getAttribute('offset')))")
    )
    assert offsets == sorted(offsets)
    assert (offsets[0], offsets[-1]) == (0, 1)
    paint = timeline.locator("rect.shade.soft").first.evaluate("(rect) => getComputedStyle(rect).fill")
    assert paint.startswith("url(")
    expect(page.locator(".moments .chip").first).to_have_attribute("title", re.compile("80 %"))


def test_operators_are_explained_and_label_the_moments(page: Page, world: World) -> None:
    page.goto("/")
    for operator in ("AND", "OR", "NOT", "THEN"):
        expect(page.locator(".operators")).to_contain_text(operator)
    a, b = world.queries[0].text, world.queries[5].text
    search(page, f"{a} THEN {b}")
    expect(page.locator(".stage .chip .part")).to_have_text([f"{a} THEN {b}", a, b])
    page.goto("/?q=a ball NOT")
    expect(page.get_by_role("heading", name="Check the query")).to_be_visible()
