"""Actions on the page, and faked answers of the server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

JOB: dict[str, Any] = {
    "id": "j1", "path": "inbox", "state": "running", "done": 1, "total": 9, "latest": "inbox/a.mp4", "added": 0,
    "left_out": [], "seconds": 1, "seconds_left": 3, "message": "",
}  # fmt: skip


@contextmanager
def open_page(browser: Browser, site: str, **options: Any) -> Iterator[Page]:
    """Yield a page, and check that no script failed and nothing was loaded from other sites."""
    context = browser.new_context(base_url=site, **options)
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
    page.on("request", lambda sent: None if sent.url.startswith((site, "data:")) else errors.append(sent.url))
    yield page
    context.close()
    assert not errors


def _is_error(message: ConsoleMessage) -> bool:
    # The browser logs every error response, which the page handles.
    return message.type == "error" and "Failed to load resource" not in message.text


# ---------------------------------------------------------------- searching and playing


def search(page: Page, text: str) -> None:
    """Search, and wait for the new results. The old ones stay on the page until the answer arrives."""
    page.locator(".hit").evaluate_all("(hits) => hits.forEach((hit) => (hit.dataset.old = 'yes'))")
    page.get_by_role("searchbox").first.fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".hit:not([data-old])").first).to_be_visible()


def seconds(page: Page) -> float:
    """Return the position of the player."""
    return float(page.evaluate("document.querySelector('.stage video').currentTime"))


def num_frames(page: Page) -> int:
    """Return the number of frames that the player has shown."""
    return int(page.evaluate("document.querySelector('.stage video').getVideoPlaybackQuality().totalVideoFrames"))


def moments(page: Page) -> list[tuple[float, float]]:
    """Return the start and end of the moment on each card, as the server answers."""
    answer = page.evaluate(
        """async () => {
            const query = new URLSearchParams(location.search).get("q");
            const answer = await fetch("/v1/search", {method: "POST", headers: {"Content-Type": "application/json"},
                body: JSON.stringify({query, top: 12})});
            return answer.json();
        }"""
    )
    return [(hit["start"], hit["end"]) for hit in answer["hits"]]


# ---------------------------------------------------------------- faked answers


def answer_problem(status: int, **problem: str) -> Callable[[Route], None]:
    """Return a route handler that answers with an error."""

    def answer(route: Route) -> None:
        body = {"type": "about:blank", "status": status, "title": "", "detail": ""} | problem
        route.fulfill(status=status, json=body, content_type="application/problem+json")

    return answer


def answer_many_videos(route: Route) -> None:
    """Answer as if each folder of the library contained 40 videos."""
    answer = route.fetch()
    body = answer.json()
    route.fulfill(response=answer, json=body | {"folders": [each | {"videos": 40} for each in body["folders"]]})


def answer_damaged_videos(route: Route) -> None:
    """Answer as if the library had two damaged videos."""
    answer = route.fetch()
    route.fulfill(response=answer, json=answer.json() | {"unsearchable": 2, "unsearchable_files": ["Videos/a.mp4"]})


def padded_hits(route: Route) -> dict[str, Any]:
    """Return an answer with as many hits as requested: copies of the first hit under other names."""
    answer = route.fetch().json()
    hit, top = answer["hits"][0], route.request.post_data_json["top"]
    others = [hit | {"video": hit["video"] | {"id": f"{k:032x}", "title": f"copy {k}"}} for k in range(top - 1)]
    return answer | {"hits": [hit, *others]}
