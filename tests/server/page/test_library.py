"""The library page: videos, index jobs and unreadable files."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.server.conftest import Serving, World, wait_for
from tests.server.page.browsing import JOB, answer_damaged_videos, answer_problem, open_page

pytestmark = pytest.mark.slow


def test_the_library_shows_videos_and_unreadable_files(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Library").click()
    expect(page.get_by_role("heading", name="Library")).to_be_visible()
    assert page.url.endswith("/library")
    expect(page.locator(".tile").first).to_be_visible()
    expect(page.get_by_role("list", name="Unreadable files")).to_contain_text("Videos/broken.mp4")
    expect(page.locator(".unsearchable")).to_be_hidden()
    page.get_by_label("Filter videos by name").fill("beach")
    expect(page.locator(".tile")).to_have_count(1)
    page.locator(".tile").click()
    expect(page.get_by_role("dialog")).to_contain_text("the beach, 2024 ä")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_label("Filter videos by name").fill("nothing of the kind")
    expect(page.get_by_role("heading", name="No matching videos")).to_be_visible()


def test_damaged_videos_are_listed_with_the_repair(page: Page) -> None:
    page.route("**/v1/library", answer_damaged_videos)
    page.goto("/")
    page.get_by_role("link", name="2 damaged videos").click()
    expect(page.locator(".unsearchable")).to_contain_text("Videos/a.mp4")
    expect(page.locator(".unsearchable")).to_contain_text("midreel index --library LIBRARY --retry")


def test_an_outdated_list_of_jobs_does_not_hide_a_new_job(page: Page) -> None:
    held: list[Route] = []
    page.route("**/v1/jobs", lambda route: route.continue_() if held else held.append(route))
    page.goto("/library")
    wait_for(lambda: bool(held) or page.wait_for_timeout(20))
    page.get_by_role("button", name="Index Videos").click()
    expect(page.locator(".job").first).to_contain_text("Videos")
    held[0].fulfill(json={"jobs": []})
    page.wait_for_timeout(300)
    expect(page.locator(".job").first).to_contain_text("Videos")


def test_a_folder_is_indexed_and_a_video_removed(browser: Browser, own: World, served: Serving, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number in range(3):
        source = own.videos / f"playhouse-test-0000{number}.mp4"
        (inbox / f"new {number}.mp4").write_bytes(source.read_bytes() + b"another")
    with open_page(browser, served(own, roots=[inbox])) as page:
        index_inbox_and_remove_a_video(page)


def index_inbox_and_remove_a_video(page: Page) -> None:
    page.goto("/library")
    page.get_by_role("button", name="Index inbox").click()
    expect(page.locator(".job").first).to_contain_text("inbox")
    expect(page.locator(".job").first).to_contain_text("3 new", timeout=30_000)
    expect(page.locator(".tile", has_text="new 1")).to_be_visible()
    page.locator(".tile", has_text="new 1").click()
    page.get_by_role("button", name="Remove from library").click()
    page.get_by_role("button", name="Confirm: remove from library (the file stays)").click()
    expect(page.locator(".tile", has_text="new 1")).to_have_count(0)
    expect(page.locator(".tile", has_text="new 2")).to_be_visible()


def test_the_cancel_button_keeps_its_place_and_a_lost_job_is_reported(page: Page) -> None:
    counts = iter(range(2, 5))

    def event(route: Route) -> None:
        done = next(counts, None)
        if done is None:  # a restarted server does not know the job
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
    expect(page.get_by_role("heading", name="interrupted")).to_be_visible()
    expect(page.locator(".job", has_text="indexing")).to_have_count(0)


def test_a_lost_connection_is_reported_and_recovers(page: Page) -> None:
    body = f"retry: 100\n\ndata: {json.dumps(JOB)}\n\n"
    left = [1]  # successful answers

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
    expect(job).to_contain_text("Cannot reach the server")
    expect(page.locator("#status")).to_contain_text("Cannot reach the server")
    left[0] = 1000
    expect(job).to_contain_text("inbox/a.mp4")
    expect(job).not_to_contain_text("Cannot reach")


def test_cancelling_keeps_the_focus_and_reports_failures(page: Page) -> None:
    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": [JOB]}))
    page.route("**/events", lambda route: None)
    page.route("**/v1/jobs/j1", answer_problem(500, detail="it does not work"))
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


def test_all_unfinished_jobs_are_shown_and_one_is_followed(page: Page) -> None:
    """A browser has only six connections to a server. Each followed job takes one."""
    waiting = [JOB | {"id": f"w{k}", "path": f"queued {k}", "state": "queued", "total": None} for k in range(7)]
    left_out = [{"file": "inbox/a.mp4", "reason": "inbox/a.mp4 cannot be read"}]
    ended = [JOB | {"id": f"o{k}", "state": "done", "message": "1 left out", "left_out": left_out} for k in range(3)]
    jobs, watched = [*waiting, JOB, *ended], list[str]()
    page.route("**/v1/jobs", lambda route: route.fulfill(json={"jobs": jobs}))
    page.route("**/events", lambda route: watched.append(route.request.url))
    page.route("**/v1/jobs/w3", lambda route: route.fulfill(status=202, json=waiting[3] | {"state": "cancelled"}))
    page.goto("/library")
    expect(page.locator(".job")).to_have_count(8)
    expect(page.locator(".job.running")).to_contain_text("1 of 9 files")
    page.get_by_role("button", name="Cancel indexing queued 3").click()
    expect(page.locator(".job.cancelled")).to_contain_text("queued 3")
    assert [address.split("/")[-2] for address in watched] == ["j1"]
    del jobs[:]
    jobs += ended
    page.reload()
    expect(page.locator(".job")).to_have_count(3)
    page.get_by_text("Skipped files", exact=True).first.click()
    expect(page.get_by_role("list", name="Skipped files of inbox").first).to_contain_text("Cannot be read")


def test_unreadable_files_are_paginated(page: Page) -> None:
    def files(route: Route) -> None:
        start = int(re.search(r"offset=(\d+)", route.request.url)[1])  # type: ignore[index]
        listed = [{"file": f"Videos/{k}.mp4", "reason": "it is empty"} for k in range(start, min(start + 50, 70))]
        route.fulfill(json={"files": listed, "total": 70, "offset": start, "limit": 50})

    page.route("**/v1/quarantine*", files)
    page.goto("/library")
    expect(page.locator(".reasons[aria-labelledby=quarantine-title] li")).to_have_count(50)
    page.get_by_role("button", name="Show more (20 left)").click()
    expect(page.locator(".reasons[aria-labelledby=quarantine-title] li")).to_have_count(70)
