"""Feedback on the page: two buttons on each hit and beside the player."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from midreel.library.feedback import FeedbackLog
from tests.server.conftest import Serving, World
from tests.server.page.browsing import answer_problem, open_page, search
from tests.server.page.test_accessibility import violations

pytestmark = pytest.mark.slow


@pytest.fixture
def address(own: World, served: Serving) -> str:
    return served(own)


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with open_page(browser, address) as page:
        page.goto("/")
        yield page


def given(world: World) -> list[tuple[str, bool]]:
    return [(each.query, each.match) for each in FeedbackLog(world.library).all()]


def test_feedback_is_given_changed_shown_again_and_undone(page: Page, own: World) -> None:
    query = own.queries[0].text
    search(page, query)
    card = page.locator(".hit").first
    yes, no = card.get_by_role("button", name="This is it"), card.get_by_role("button", name="Not this")
    expect(yes).to_have_attribute("aria-pressed", "false")
    yes.click()
    expect(yes).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#status")).to_contain_text("Marked")
    assert given(own) == [(query, True)]
    # The player shows the same moment.
    expect(page.locator(".stage .verdict.yes")).to_have_attribute("aria-pressed", "true")
    no.click()
    expect(no).to_have_attribute("aria-pressed", "true")
    expect(yes).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#status")).to_contain_text("wrong")
    assert given(own) == [(query, False)]
    page.reload()
    expect(page.locator(".hit .verdict.no").first).to_have_attribute("aria-pressed", "true")
    page.locator(".hit .verdict.no").first.click()
    expect(page.locator("#status")).to_contain_text("removed")
    expect(page.locator(".hit .verdict.no").first).to_have_attribute("aria-pressed", "false")
    assert given(own) == []


def test_the_keyboard_gives_feedback_without_playing(page: Page, own: World) -> None:
    search(page, own.queries[0].text)
    page.locator(".hit .verdict.yes").first.focus()
    page.keyboard.press("Space")
    expect(page.locator(".hit .verdict.yes").first).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#status")).to_contain_text("Marked")
    assert page.evaluate("document.querySelector('.stage video').paused")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("wrong")
    assert given(own) == [(own.queries[0].text, False)]


def test_fast_clicks_are_sent_in_order(page: Page, own: World) -> None:
    search(page, own.queries[0].text)
    button = page.locator(".hit .verdict.yes").first
    for _ in range(3):
        button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    page.locator(".hit .verdict.no").nth(1).click()
    expect(page.locator("#status")).to_contain_text("wrong")
    assert sorted(match for _, match in given(own)) == [False, True]


def test_feedback_beside_the_player_is_about_the_chosen_moment(page: Page, own: World) -> None:
    for query in own.queries:
        search(page, query.text)
        if page.locator(".stage .moments .chip").count() > 1:
            break
    page.locator(".stage .moments .chip").nth(1).click()
    page.locator(".stage .verdict.no").click()
    expect(page.locator("#status")).to_contain_text("wrong")
    expect(page.locator(".hit .verdict.no").first).to_have_attribute("aria-pressed", "false")
    [piece] = FeedbackLog(own.library).all()
    start = page.locator(".stage .moments .chip").nth(1).inner_text().partition("–")[0].strip()  # noqa: RUF001
    assert f"{int(piece.start) // 60}:{int(piece.start) % 60:02}" == start


def test_a_failure_is_shown_and_nothing_stays_marked(page: Page, own: World) -> None:
    search(page, own.queries[0].text)
    page.route("**/v1/feedback", answer_problem(507, title="Insufficient Storage", detail="The disk is full."))
    page.locator(".hit .verdict.yes").first.click()
    expect(page.get_by_role("alert")).to_contain_text("disk")
    expect(page.locator(".hit .verdict.yes").first).to_have_attribute("aria-pressed", "false")
    assert given(own) == []


def test_queries_with_operators_and_read_only_libraries_have_no_buttons(page: Page, own: World) -> None:
    search(page, f"{own.queries[0].text} OR {own.queries[1].text}")
    expect(page.locator(".verdict")).to_have_count(0)

    def read_only(route: object) -> None:
        answer = route.fetch()  # type: ignore[attr-defined]
        route.fulfill(json=answer.json() | {"writable": False})  # type: ignore[attr-defined]

    page.route("**/v1/library", read_only)
    page.goto(f"/?q={own.queries[0].text}")
    expect(page.locator(".hit").first).to_be_visible()
    expect(page.locator(".verdict")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violations(browser: Browser, address: str, own: World, scheme: str) -> None:
    context = browser.new_context(base_url=address, color_scheme=scheme, bypass_csp=True)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"/?q={own.queries[0].text}")
    page.locator(".hit .verdict.no").first.click()
    page.locator(".hit .verdict.yes").nth(1).click()
    expect(page.locator("#status")).to_contain_text("right")
    assert violations(page) == []
    context.close()
