"""Playing moments, with the mouse and the keyboard."""

import re

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from midreel.library.filters import span
from tests.server.conftest import Serving, World, wait_for
from tests.server.page.browsing import answer_problem, moments, num_frames, search, seconds

pytestmark = pytest.mark.slow

SECRET = "a-token-of-some-length"


def test_a_click_plays_the_moment(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    page.locator(".hit-main").nth(1).click()
    start, end = moments(page)[1]
    assert page.locator(".hit .when").all_inner_texts() == [span(*each) for each in moments(page)]  # as the CLI does
    wait_for(lambda: bool(page.evaluate("!document.querySelector('.stage video').paused")))
    wait_for(lambda: num_frames(page) > 3)
    before = seconds(page)
    assert start - 0.3 <= before <= end
    page.wait_for_timeout(400)
    assert seconds(page) > before
    expect(page.locator(".hit-main").nth(1)).to_have_attribute("aria-current", "true")


def test_the_timeline_seeks(page: Page, world: World) -> None:
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


def test_loop_repeats_the_moment(page: Page, world: World) -> None:
    page.goto("/")
    search(page, world.queries[0].text)
    start, end = moments(page)[0]
    loop = page.get_by_role("button", name="Loop")
    loop.click()
    expect(loop).to_have_attribute("aria-pressed", "true")
    wait_for(lambda: num_frames(page) > 0)
    page.evaluate("(time) => { document.querySelector('.stage video').currentTime = time }", end - 0.2)
    wait_for(lambda: start - 0.3 <= seconds(page) < end - 0.4)


def test_loop_repeats_a_moment_at_the_end_of_the_video(page: Page, world: World) -> None:
    def move_moments_to_the_end(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        for hit in found["hits"]:
            hit |= {"start": hit["video"]["duration"] - 1, "end": hit["video"]["duration"]}
        route.fulfill(response=answer, json=found)

    page.route("**/v1/search", move_moments_to_the_end)
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    page.evaluate("document.querySelector('.stage video').addEventListener('ended', () => (window.ends = true))")
    page.get_by_role("button", name="Loop").click()
    wait_for(lambda: bool(page.evaluate("window.ends")))
    wait_for(lambda: bool(page.evaluate("!document.querySelector('.stage video').ended")))
    assert not page.evaluate("document.querySelector('.stage video').paused")


def test_the_native_play_button_starts_at_the_moment(page: Page, world: World) -> None:
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    late = next(number for number, (start, _) in enumerate(moments(page)) if start > 5)
    for _ in range(late):
        page.keyboard.press("ArrowDown")
    page.evaluate("document.querySelector('.stage video').play()")  # as the native button does
    wait_for(lambda: num_frames(page) > 0)
    start, end = moments(page)[late]
    assert start - 0.3 <= seconds(page) <= end


def test_playback_starts_at_the_moment_even_if_events_are_late(page: Page, world: World) -> None:
    """On a busy computer, a video plays some frames before the page learns that it is loaded."""
    page.add_init_script("document.addEventListener('loadedmetadata', (event) => event.stopPropagation(), true)")
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    late = next(number for number, (start, _) in enumerate(moments(page)) if start > 5)
    page.locator(".hit-main").nth(late).click()
    wait_for(lambda: num_frames(page) > 0)
    start, end = moments(page)[late]
    assert start - 0.3 <= seconds(page) <= end


def test_the_last_of_two_slow_videos_plays_at_its_moment(page: Page, world: World) -> None:
    held: list[Route] = []
    page.route("**/stream", lambda route: held.append(route) if len(held) < 2 else route.continue_())
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    found = moments(page)
    first = next(k for k in range(4) if not found[k + 1][0] - 1 <= found[k][0] <= found[k + 1][1] + 1)
    page.locator(".hit-main").nth(first).click()
    wait_for(lambda: page.wait_for_timeout(20) or len(held) == 1)
    page.keyboard.press("ArrowDown")
    wait_for(lambda: page.wait_for_timeout(20) or len(held) == 2)
    held[1].continue_()
    wait_for(lambda: num_frames(page) > 0)
    start, end = found[first + 1]
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


def test_a_missing_file_is_reported_in_the_player(page: Page, world: World) -> None:
    page.route("**/stream", answer_problem(410, title="Gone"))
    page.route("**/thumbnail*", answer_problem(410, title="Gone"))
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit")).to_have_count(5)
    expect(page.locator(".hit img")).to_have_count(0)  # broken pictures are removed
    page.locator(".hit-main").first.click()
    expect(page.locator(".screen .failure")).to_contain_text("Index its folder again")
    page.unroute("**/stream")
    page.locator(".hit-main").first.click()
    wait_for(lambda: num_frames(page) > 0)
    expect(page.locator(".screen .failure")).to_be_hidden()


def test_results_can_be_used_with_the_keyboard(page: Page, world: World) -> None:
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
    start, end = moments(page)[1]
    assert start - 0.3 <= seconds(page) <= end
    page.keyboard.press("Escape")
    assert page.evaluate("document.querySelector('.stage video').paused")
    page.keyboard.press("/")
    page.keyboard.type("/")
    assert page.get_by_role("searchbox").first.input_value() == "/"
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox").first).not_to_be_focused()


def test_single_key_shortcuts_can_be_turned_off(page: Page, world: World) -> None:
    page.goto(f"/?q={world.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    box, loop = page.get_by_role("searchbox").first, page.get_by_role("button", name="Loop")
    for pressed in ("Shift+L", "Control+l", "Alt+l"):
        page.keyboard.press(pressed)
    expect(loop).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("l")
    expect(loop).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.get_by_label("Single-key shortcuts").uncheck()
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


def test_the_token_is_requested_once(browser: Browser, world: World, served: Serving) -> None:
    address = served(world, token=SECRET)
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.goto("/?q=a ball")
    page.get_by_label("Token").fill("not it")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("Wrong token.")
    page.get_by_label("Token").fill(SECRET)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".hit").first).to_be_visible()
    page.locator(".hit-main").first.click()
    wait_for(lambda: num_frames(page) > 0)  # the player sends the cookie, too
    context.close()
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.goto("/#token=an-old-one")
    expect(page.get_by_role("alert")).to_contain_text("wrong")
    page.goto("/library")
    page.goto(f"/#token={SECRET}")
    expect(page.locator(".example").first).to_be_visible()
    assert SECRET not in page.url
    context.close()
