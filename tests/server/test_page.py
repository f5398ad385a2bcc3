"""The page in a real browser: what a person would see, click and type."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

from midreel.library.filters import span
from midreel.server.app import create_app
from tests.server.chromium import axe_source, find_chromium
from tests.server.conftest import Serving, World, running, wait_for

SECRET = "a-token-of-some-length"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def site(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server with a library of its own, and another folder that may be indexed."""
    folder = tmp_path_factory.mktemp("site")
    own, inbox = world.copied(folder), folder / "inbox"
    inbox.mkdir()
    for number in range(3):
        source = own.videos / f"playhouse-test-0000{number}.mp4"
        (inbox / f"new {number}.mp4").write_bytes(source.read_bytes() + b"another")
    with own.searcher() as searcher, running(create_app(searcher, roots=[inbox])) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    axe_source()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    yield from a_page(browser, site)


@pytest.fixture
def phone(browser: Browser, site: str) -> Iterator[Page]:
    yield from a_page(browser, site, **PHONE)


def a_page(browser: Browser, site: str, **options: Any) -> Iterator[Page]:
    """A page on which no script fails, and nothing is fetched from elsewhere."""
    context: BrowserContext = browser.new_context(base_url=site, **options)
    page, wrong = context.new_page(), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if is_bad(said) else None)
    page.on("request", lambda asked: None if asked.url.startswith((site, "data:")) else wrong.append(asked.url))
    yield page
    context.close()
    assert not wrong


def is_bad(said: Any) -> bool:
    # That an answer was an error is said by the browser itself, and shown by the page.
    return said.type == "error" and "Failed to load resource" not in said.text


def search(page: Page, text: str) -> None:
    page.get_by_role("searchbox").first.fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".hit").first).to_be_visible()


def seconds(page: Page) -> float:
    return float(page.evaluate("document.querySelector('.stage video').currentTime"))


def moment(page: Page, number: int = 0) -> tuple[float, float]:
    """Of a card, from the server's own answer."""
    answer = page.evaluate(
        """async () => {
            const query = new URLSearchParams(location.search).get("q");
            const answer = await fetch("/v1/search", {method: "POST", headers: {"Content-Type": "application/json"},
                body: JSON.stringify({query, top: 12})});
            return answer.json();
        }"""
    )
    hit = answer["hits"][number]
    return hit["start"], hit["end"]


def num_frames(page: Page) -> int:
    return int(page.evaluate("document.querySelector('.stage video').getVideoPlaybackQuality().totalVideoFrames"))


# ---------------------------------------------------------------- search and play


def test_a_first_visit_shows_examples_that_find_something(page: Page, world: World) -> None:
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


def test_a_click_plays_the_video_at_the_moment(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    page.locator(".hit-main").nth(1).click()
    start, end = moment(page, 1)
    shown = [span(*moment(page, number)) for number in range(5)]  # as the command line shows them
    assert page.locator(".hit .when").all_inner_texts() == shown
    wait_for(lambda: bool(page.evaluate("!document.querySelector('.stage video').paused")))
    wait_for(lambda: num_frames(page) > 3)
    before = seconds(page)
    assert start - 0.3 <= before <= end
    page.wait_for_timeout(400)
    assert seconds(page) > before
    expect(page.locator(".hit-main").nth(1)).to_have_attribute("aria-current", "true")


def test_the_timeline_leads_to_any_second(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    line = page.get_by_role("slider", name="Position in the video")
    box = line.bounding_box()
    assert box is not None
    line.click(position={"x": box["width"] * 0.8, "y": box["height"] / 2})
    duration = float(line.get_attribute("aria-valuemax") or 0)
    wait_for(lambda: seconds(page) >= duration * 0.79)
    assert seconds(page) < duration * 0.8 + 2
    page.locator(".hit").nth(2).locator(".timeline").click(position={"x": 5, "y": 5})
    expect(page.locator(".hit-main").nth(2)).to_have_attribute("aria-current", "true")
    wait_for(lambda: num_frames(page) > 0)
    assert seconds(page) < 4
    page.keyboard.press("Escape")
    line.focus()
    for key in ("ArrowRight", "ArrowUp"):
        at = seconds(page)
        page.keyboard.press(key)
        wait_for(lambda at=at: seconds(page) >= at + 0.9)  # type: ignore[misc]
        expect(line).to_be_focused()
    page.keyboard.press("Home")
    wait_for(lambda: seconds(page) < 1)
    page.keyboard.press("End")
    wait_for(lambda: seconds(page) > float(line.get_attribute("aria-valuemax") or 0) - 1)


def test_a_moment_is_looped_on_request(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    start, end = moment(page)
    loop = page.get_by_role("button", name="Loop")
    loop.click()
    expect(loop).to_have_attribute("aria-pressed", "true")
    wait_for(lambda: num_frames(page) > 0)
    page.evaluate("(time) => { document.querySelector('.stage video').currentTime = time }", end - 0.2)
    wait_for(lambda: start - 0.3 <= seconds(page) < end - 0.4)


def test_a_moment_at_the_very_end_is_looped_as_well(page: Page, world: World) -> None:
    def at_the_end(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        for hit in found["hits"]:
            hit |= {"start": hit["video"]["duration"] - 1, "end": hit["video"]["duration"]}
        route.fulfill(response=answer, json=found)

    page.route("**/v1/search", at_the_end)
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    page.evaluate("document.querySelector('.stage video').addEventListener('ended', () => (window.ends = true))")
    page.get_by_role("button", name="Loop").click()
    wait_for(lambda: bool(page.evaluate("window.ends")))
    wait_for(lambda: bool(page.evaluate("!document.querySelector('.stage video').ended")))
    assert not page.evaluate("document.querySelector('.stage video').paused")


def test_the_players_own_button_plays_the_moment_too(page: Page, world: World) -> None:
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    late = next(number for number in range(5) if moment(page, number)[0] > 5)
    for _ in range(late):
        page.keyboard.press("ArrowDown")
    page.evaluate("document.querySelector('.stage video').play()")  # as its button does
    wait_for(lambda: num_frames(page) > 0)
    start, end = moment(page, late)
    assert start - 0.3 <= seconds(page) <= end


def test_of_two_videos_that_come_slowly_the_one_chosen_last_plays_at_its_own_moment(page: Page, world: World) -> None:
    held: list[Route] = []
    page.route("**/stream", lambda route: held.append(route) if len(held) < 2 else route.continue_())
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    moments = [moment(page, number) for number in range(5)]
    first = next(k for k in range(4) if not moments[k + 1][0] - 1 <= moments[k][0] <= moments[k + 1][1] + 1)
    page.locator(".hit-main").nth(first).click()
    wait_for(lambda: page.wait_for_timeout(20) or len(held) == 1)
    page.keyboard.press("ArrowDown")
    wait_for(lambda: page.wait_for_timeout(20) or len(held) == 2)
    held[1].continue_()
    wait_for(lambda: num_frames(page) > 0)
    start, end = moments[first + 1]
    assert start - 0.3 <= seconds(page) <= end


def test_several_moments_of_a_video_can_be_played(page: Page, world: World) -> None:
    page.goto("/")
    for query in world.queries:
        search(page, query.text)
        if page.locator(".hit .also button").count():
            break
    else:
        pytest.fail("no query has several moments in a video")
    card = page.locator(".hit", has=page.locator(".also button")).first
    words = card.locator(".also button").first.inner_text()
    minutes, rest = re.match(r"(\d+):(\d+)", words).groups()  # type: ignore[union-attr]
    card.locator(".also button").first.click()
    wait_for(lambda: num_frames(page) > 0)
    assert int(minutes) * 60 + int(rest) - 0.5 <= seconds(page) < int(minutes) * 60 + int(rest) + 20
    expect(page.get_by_role("group", name="Moments in this video").locator("[aria-pressed=true]")).to_contain_text(
        words
    )


def test_the_address_can_be_shared(page: Page, world: World, site: str) -> None:
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


def test_back_and_forward_go_from_search_to_search(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    search(page, world.queries[5].text)
    page.go_back()
    expect(page.get_by_role("searchbox").first).to_have_value(world.queries[0].text)
    page.go_back()
    expect(page.get_by_role("heading", name="What do you remember?")).to_be_visible()
    page.go_forward()
    expect(page.locator(".hit").first).to_be_visible()


# ---------------------------------------------------------------- keys


def test_everything_can_be_done_with_keys(page: Page, world: World) -> None:
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hit-main").nth(0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hit-main").nth(2)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator(".hit-main").nth(1)).to_be_focused()
    expect(page.locator(".hit-main").nth(1)).to_have_attribute("aria-current", "true")
    page.keyboard.press("Enter")
    wait_for(lambda: num_frames(page) > 0)
    start, end = moment(page, 1)
    assert start - 0.3 <= seconds(page) <= end
    page.keyboard.press("Escape")
    assert page.evaluate("document.querySelector('.stage video').paused")
    page.keyboard.press("/")
    page.keyboard.type("/")
    assert page.get_by_role("searchbox").first.input_value() == "/"
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox").first).not_to_be_focused()


def test_keys_that_are_also_typed_can_be_turned_off(page: Page, world: World) -> None:
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    box, loop = page.get_by_role("searchbox").first, page.get_by_role("button", name="Loop")
    for pressed in ("Shift+L", "Control+l", "Alt+l"):
        page.keyboard.press(pressed)
    expect(loop).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("l")
    expect(loop).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Single-key shortcuts: / and L").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    expect(page.locator(".hit").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.press("l")
    expect(box).not_to_be_focused()
    expect(loop).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".slash")).to_be_hidden()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hit-main").nth(1)).to_be_focused()


# ---------------------------------------------------------------- when there is nothing to show


def test_a_search_that_was_left_before_its_answer_is_asked_again(page: Page, world: World) -> None:
    page.goto("/")
    page.locator(".example").first.wait_for()
    page.evaluate(
        """() => { document.querySelector(".example").click(); document.querySelector("#library-link").click(); }"""
    )
    expect(page.locator(".tile").first).to_be_visible()
    page.go_back()
    expect(page.locator(".hit")).to_have_count(5)


def test_no_match_above_the_threshold_offers_the_weaker_ones(page: Page, world: World) -> None:
    page.goto(f"/?q={world.queries[0].text}&min=0.95")
    expect(page.get_by_role("heading", name="No match above 0.95")).to_be_visible()
    page.get_by_role("button", name="Show weaker matches").click()
    expect(page.locator(".hit")).to_have_count(5)
    assert "min=" not in page.url
    page.get_by_label("Score at least").fill("0.95")
    expect(page.locator(".hit")).to_have_count(0)
    page.locator(".notice h2").click()
    for key in ("Space", "l", "Enter", "ArrowDown"):
        page.keyboard.press(key)  # nothing that is not shown is played
    assert page.evaluate("document.querySelector('.stage video').paused")


def test_a_folder_restricts_the_search(page: Page, world: World) -> None:
    page.goto(f"/?q={world.queries[0].text}")
    page.get_by_label("Folder").select_option("Videos/holidays")
    expect(page.locator(".hit")).to_have_count(1)
    expect(page.locator(".summary")).to_contain_text("1 of 1 video ·")
    assert "folder=Videos%2Fholidays" in page.url
    page.reload()
    expect(page.locator(".hit")).to_have_count(1)
    expect(page.get_by_label("Folder")).to_have_value("Videos/holidays")


def answered(status: int, **problem: str) -> Any:
    def answer(route: Route) -> None:
        body = {"type": "about:blank", "status": status, "title": "", "detail": ""} | problem
        route.fulfill(status=status, json=body, content_type="application/problem+json")

    return answer


def test_an_error_is_told_and_can_be_tried_again(page: Page, world: World) -> None:
    page.route("**/v1/search", answered(500, title="Internal Server Error", detail="something went wrong"))
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.get_by_role("alert")).to_contain_text("Something went wrong")
    page.unroute("**/v1/search")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".hit").first).to_be_visible()


def test_a_server_that_is_gone_is_told(page: Page, world: World) -> None:
    page.goto("/")
    page.route("**/v1/search", lambda route: route.abort())
    page.get_by_role("searchbox").fill("a ball")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")


def test_a_busy_server_is_asked_again(page: Page, world: World) -> None:
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
    page.goto("/?q=a hat")  # nobody waits so long without a word
    expect(page.get_by_role("heading", name="The server is busy")).to_be_visible()


def test_a_missing_library_is_not_called_a_busy_server(browser: Browser, own: World, served: Serving) -> None:
    site = served(own)
    shutil.rmtree(own.library)
    with closing(browser.new_context(base_url=site)) as context:
        page = context.new_page()
        for address in ("/", "/library", "/?q=a ball"):
            page.goto(address)
            expect(page.get_by_role("alert")).to_contain_text("library is missing")
            expect(page.get_by_role("heading", name="The library cannot be used")).to_be_visible()


def test_waiting_shows_cards_to_come_and_shifts_nothing(page: Page, world: World) -> None:
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


def test_a_file_that_is_gone_is_told_on_the_stage(page: Page, world: World) -> None:
    page.route("**/stream", answered(410, title="Gone"))
    page.route("**/thumbnail*", answered(410, title="Gone"))
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit")).to_have_count(5)
    expect(page.locator(".hit img")).to_have_count(0)  # rather than a broken one
    page.locator(".hit-main").first.click()
    expect(page.locator(".screen .failure")).to_contain_text("has changed since it was indexed, or is gone")
    page.unroute("**/stream")
    page.locator(".hit-main").first.click()
    wait_for(lambda: num_frames(page) > 0)
    expect(page.locator(".screen .failure")).to_be_hidden()


# ---------------------------------------------------------------- the library


def test_the_library_shows_videos_and_what_was_left_out(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Library").click()
    expect(page.get_by_role("heading", name="Library")).to_be_visible()
    assert page.url.endswith("/library")
    expect(page.locator(".tile").first).to_be_visible()
    expect(page.get_by_role("list", name="Left out")).to_contain_text("Videos/broken.mp4")
    expect(page.locator(".unsearchable")).to_be_hidden()
    page.get_by_label("Filter videos by name").fill("beach")
    expect(page.locator(".tile")).to_have_count(1)
    page.locator(".tile").click()
    expect(page.get_by_role("dialog")).to_contain_text("the beach, 2024 ä")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_label("Filter videos by name").fill("nothing of the kind")
    expect(page.get_by_role("heading", name="No video of that name")).to_be_visible()


def many(route: Route) -> None:
    """As if the library held more videos than it does."""
    answer = route.fetch()
    told = answer.json()
    route.fulfill(response=answer, json=told | {"folders": [each | {"videos": 40} for each in told["folders"]]})


def test_where_all_are_shown_there_are_no_more(page: Page) -> None:
    page.goto("/?q=a+ball")
    expect(page.locator(".summary")).to_contain_text(re.compile(r"^5 of 5 videos"))
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()


def test_more_videos_are_shown_below_the_best(page: Page) -> None:
    page.route("**/v1/library", many)
    page.route("**/v1/search", lambda route: route.fulfill(json=padded(route)))
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


def test_more_videos_and_another_question_at_once(page: Page) -> None:
    held: list[Route] = []

    def answer(route: Route) -> None:
        asked = route.request.post_data_json
        is_slow = asked["query"] == "slow" or (asked["query"] == "first" and asked["top"] > 12)
        held.append(route) if is_slow else route.fulfill(json=padded(route))

    page.route("**/v1/library", many)
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
    expect(more).to_be_hidden()  # for what is still there was found for another question


def test_more_videos_that_cannot_be_had_are_told_and_tried_again(page: Page) -> None:
    failing = [True]

    def answer(route: Route) -> None:
        if route.request.post_data_json["top"] > 12 and failing:
            failing.clear()
            route.fulfill(status=400, json={"title": "Bad", "detail": "out of order", "status": 400, "type": "x"})
        else:
            route.fulfill(json=padded(route))

    page.route("**/v1/library", many)
    page.route("**/v1/search", answer)
    page.goto("/?q=a+rocket")
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".found").get_by_role("alert")).to_contain_text("Out of order")
    page.locator(".found").get_by_role("button", name=re.compile("again", re.IGNORECASE)).click()
    expect(page.locator(".hit")).to_have_count(24)
    expect(page.locator(".found").get_by_role("alert")).to_have_count(0)


def padded(route: Route) -> dict[str, Any]:
    """An answer with as many hits as are asked for, whatever the library holds: the first, under other names."""
    answer = route.fetch().json()
    hit, top = answer["hits"][0], route.request.post_data_json["top"]
    others = [hit | {"video": hit["video"] | {"id": f"{k:032x}", "title": f"copy {k}"}} for k in range(top - 1)]
    return answer | {"hits": [hit, *others]}


def unsearchable(route: Route) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, json=answer.json() | {"unsearchable": 2, "unsearchable_files": ["Videos/a.mp4"]})


def test_videos_that_are_damaged_are_named_with_the_remedy(page: Page) -> None:
    page.route("**/v1/library", unsearchable)
    page.goto("/")
    page.get_by_role("link", name="2 videos are damaged").click()
    expect(page.locator(".unsearchable")).to_contain_text("Videos/a.mp4")
    expect(page.locator(".unsearchable")).to_contain_text("midreel index --library LIBRARY --retry")


def test_jobs_that_were_listed_before_one_was_begun_do_not_hide_it(page: Page) -> None:
    held: list[Route] = []
    page.route("**/v1/jobs", lambda route: route.continue_() if held else held.append(route))
    page.goto("/library")
    wait_for(lambda: bool(held) or page.wait_for_timeout(20))
    page.get_by_role("button", name="Look through Videos").click()
    expect(page.locator(".job").first).to_contain_text("Videos")
    held[0].fulfill(json={"jobs": []})
    page.wait_for_timeout(300)
    expect(page.locator(".job").first).to_contain_text("Videos")


def test_a_folder_is_indexed_with_progress_and_a_video_is_forgotten(page: Page) -> None:
    page.goto("/library")
    page.get_by_role("button", name="Look through inbox").click()
    expect(page.locator(".job").first).to_contain_text("inbox")
    expect(page.locator(".job").first).to_contain_text("3 new", timeout=30_000)
    expect(page.locator(".tile", has_text="new 1")).to_be_visible()
    page.locator(".tile", has_text="new 1").click()
    page.get_by_role("button", name="Forget this video").click()
    page.get_by_role("button", name="Forget it? The file stays").click()
    expect(page.locator(".tile", has_text="new 1")).to_have_count(0)
    expect(page.locator(".tile", has_text="new 2")).to_be_visible()


JOB = {
    "id": "j1", "path": "inbox", "state": "running", "done": 1, "total": 9, "latest": "inbox/a.mp4", "added": 0,
    "left_out": [], "seconds": 1, "seconds_left": 3, "message": "",
}  # fmt: skip


OVER = [
    JOB | {"id": "j2", "state": "failed"},
    JOB | {"id": "j3", "state": "done", "left_out": [{"file": "inbox/a.mp4", "reason": "it is empty"}]},
]


def test_the_button_that_cancels_stays_under_the_finger_and_a_lost_job_is_told(page: Page) -> None:
    told = iter(range(2, 5))

    def event(route: Route) -> None:
        done = next(told, None)
        if done is None:  # a server that was started anew knows nothing of it
            page.unroute("**/v1/jobs")
            return route.fulfill(status=404, json={})
        body = f"retry: 100\n\ndata: {json.dumps(JOB | {'done': done})}\n\n"
        return route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": [JOB]}))
    page.route("**/events", event)
    page.goto("/library")
    cancel = page.get_by_role("button", name="Cancel indexing inbox")
    cancel.focus()
    expect(page.locator(".job")).to_contain_text("4 of 9 files")
    expect(page.get_by_role("heading", name="Cut short")).to_be_visible()
    expect(page.locator(".job", has_text="indexing")).to_have_count(0)


def test_progress_that_stands_still_for_the_server_is_lost_is_said_to(page: Page) -> None:
    body = f"retry: 100\n\ndata: {json.dumps(JOB)}\n\n"
    left = [1]  # answers that the server gives

    def event(route: Route) -> None:
        left[0] -= 1
        if left[0] >= 0:
            route.fulfill(content_type="text/event-stream", body=body)
        else:
            route.abort("connectionrefused")

    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": [JOB]}))
    page.route("**/events", event)
    page.goto("/library")
    job = page.locator(".job")
    expect(job).to_contain_text("1 of 9 files")
    expect(job).to_contain_text("The server cannot be reached. Is midreel serve still running?")
    expect(page.locator("#status")).to_contain_text("The server cannot be reached")
    left[0] = 1000
    expect(job).to_contain_text("inbox/a.mp4")
    expect(job).not_to_contain_text("cannot be reached")


def test_cancelling_keeps_the_focus_and_failures_are_told(page: Page) -> None:
    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": [JOB]}))
    page.route("**/events", lambda route: None)
    page.route("**/v1/jobs/j1", answered(500, detail="it does not work"))
    page.goto("/library")
    cancel = page.get_by_role("button", name="Cancel indexing inbox")
    cancel.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("It does not work")
    expect(cancel).to_be_focused()
    page.unroute("**/v1/jobs/j1")
    page.route("**/v1/jobs/j1", lambda route: route.fulfill(status=202, json=JOB))
    page.keyboard.press("Enter")
    expect(cancel).to_have_text("Finishing…")
    expect(cancel).to_be_focused()


def test_of_many_jobs_all_are_shown_and_one_is_watched(page: Page) -> None:
    """A browser has six connections to a server: jobs that wait are not to take them all."""
    waiting = [JOB | {"id": f"w{k}", "path": f"waits {k}", "state": "queued", "total": None} for k in range(7)]
    left_out = [{"file": "inbox/a.mp4", "reason": "inbox/a.mp4 cannot be read"}]
    over = [JOB | {"id": f"o{k}", "state": "done", "message": "1 left out", "left_out": left_out} for k in range(3)]
    jobs, watched = [*waiting, JOB, *over], list[str]()
    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": jobs}))
    page.route("**/events", lambda route: watched.append(route.request.url))
    page.route("**/v1/jobs/w3", lambda route: route.fulfill(status=202, json=waiting[3] | {"state": "cancelled"}))
    page.goto("/library")
    expect(page.locator(".job")).to_have_count(8)
    expect(page.locator(".job.running")).to_contain_text("1 of 9 files")
    page.get_by_role("button", name="Cancel indexing waits 3").click()
    expect(page.locator(".job.cancelled")).to_contain_text("waits 3")
    assert [address.split("/")[-2] for address in watched] == ["j1"]
    del jobs[:]
    jobs += over
    page.reload()
    expect(page.locator(".job")).to_have_count(3)
    page.get_by_text("Why", exact=True).first.click()
    expect(page.get_by_role("list", name="Left out of inbox").first).to_contain_text("Cannot be read")


def test_what_was_left_does_not_come_back_when_it_fails(page: Page, world: World) -> None:
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


def test_a_long_quarantine_is_shown_page_after_page(page: Page) -> None:
    def files(route: Route) -> None:
        start = int(re.search(r"offset=(\d+)", route.request.url)[1])  # type: ignore[index]
        listed = [{"file": f"Videos/{k}.mp4", "reason": "it is empty"} for k in range(start, min(start + 50, 70))]
        route.fulfill(json={"files": listed, "total": 70, "offset": start, "limit": 50})

    page.route("**/v1/quarantine*", files)
    page.goto("/library")
    expect(page.locator(".reasons[aria-labelledby=quarantine-title] li")).to_have_count(50)
    page.get_by_role("button", name="Show more, of 20").click()
    expect(page.locator(".reasons[aria-labelledby=quarantine-title] li")).to_have_count(70)


# ---------------------------------------------------------------- for everybody


RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page: Page) -> list[str]:
    page.evaluate(axe_source())
    found = page.evaluate("(rules) => axe.run(document, {runOnly: rules})", RULES)
    return [f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}" for each in found["violations"]]


@pytest.mark.parametrize(("scheme", "size"), [("light", "desktop"), ("dark", "phone")])
def test_axe_finds_nothing(browser: Browser, site: str, world: World, scheme: str, size: str) -> None:
    options = PHONE if size == "phone" else {}
    # The page's policy would keep out the script that examines it.
    context = browser.new_context(base_url=site, color_scheme=scheme, bypass_csp=True, **options)  # type: ignore[arg-type]
    page, found = context.new_page(), dict[str, list[str]]()

    def examine(state: str, sign: str, address: str | None = None) -> None:
        if address is not None:
            page.goto(address)
        page.locator(sign).first.wait_for()
        found[state] = violations(page)

    results = f"/?q={world.queries[0].text}"
    examine("start", ".example", "/")
    page.get_by_role("button", name="Keys").click()
    examine("keys", "dialog[open]")
    examine("results", ".hit img", results)
    page.locator(".hit-main").first.click()
    wait_for(lambda: num_frames(page) > 0)
    examine("playing", ".stage video")
    examine("nothing", ".notice", f"{results}&min=0.95")
    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": [JOB, *OVER]}))
    page.route("**/events", lambda route: None)
    page.route("**/v1/library", unsearchable)
    page.goto("/library")
    page.get_by_text("Why", exact=True).click()
    examine("library, quarantine and jobs", "details[open] .reasons")
    page.locator(".tile").first.click()
    examine("one video", "dialog[open] video")
    page.route("**/stream", answered(410, title="Gone"))
    page.goto(results)
    page.locator(".hit-main").first.click()
    examine("unplayable", ".screen .failure:not([hidden])")
    page.route("**/v1/search", answered(500, title="Internal Server Error", detail="something went wrong"))
    examine("error", "[role=alert]", "/?q=error")
    page.route("**/v1/library", answered(401, title="Unauthorized"))
    examine("token", "#token", "/")
    empty = {"videos": 0, "seconds": 0, "quarantined": 0, "unsearchable": 0, "unsearchable_files": [], "folders": [],
             "roots": [], "writable": True, "model": "m", "backbone": "b", "examples": []}  # fmt: skip
    page.route("**/v1/library", lambda route: route.fulfill(json=empty))
    examine("empty", ".notice", "/")
    context.close()
    assert found == {state: [] for state in found}


def test_on_a_phone_nothing_sticks_out_and_the_picture_stays_in_sight(phone: Page, world: World) -> None:
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


def test_those_who_want_calm_get_no_animation(browser: Browser, site: str) -> None:
    context = browser.new_context(base_url=site, reduced_motion="reduce")
    page = context.new_page()
    page.route("**/v1/search", lambda route: None)
    page.goto("/?q=a ball")
    expect(page.locator(".ghost").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.ghost .thumb')).animationName") == "none"
    context.close()


def test_colours_are_the_systems_unless_chosen_and_the_choice_is_kept(page: Page) -> None:
    page.goto("/")
    button = page.get_by_role("button", name=re.compile("Colours"))
    expect(button).to_have_accessible_name("Colours: as the system")
    button.click()
    button.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_what_happens_is_said_to_those_who_do_not_see_it(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    expect(page.locator("#status")).to_have_text(re.compile(r"^\d of \d videos found$"))
    page.locator(".hit-main").first.click()
    expect(page.locator("#status")).to_contain_text("Playing")


def test_a_token_is_asked_for_once(browser: Browser, world: World, served: Serving) -> None:
    address = served(world, token=SECRET)
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.goto("/?q=a ball")
    page.get_by_label("Token").fill("not it")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    page.get_by_label("Token").fill(SECRET)
    page.get_by_role("button", name="Open").click()
    expect(page.locator(".hit").first).to_be_visible()
    page.locator(".hit-main").first.click()
    wait_for(lambda: num_frames(page) > 0)  # the file, too, needs the cookie
    context.close()
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.goto("/#token=an-old-one")
    expect(page.get_by_role("alert")).to_have_text("The address holds another token.")
    page.goto("/library")
    page.goto(f"/#token={SECRET}")
    expect(page.locator(".example").first).to_be_visible()
    assert SECRET not in page.url
    context.close()
