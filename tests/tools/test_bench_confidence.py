"""The measurement of confidence: the truth of its queries, its schemes, and a run on a tiny budget."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import confidence as tool
from benchmarks.absent_queries import SENTENCES, is_absent, is_present, make_queries
from midreel.datasets import playhouse
from midreel.datasets.playhouse import words
from midreel.errors import BadRun

pytestmark = pytest.mark.slow

TINY = ["--train", "6", "--val", "3", "--test", "3", "--epochs", "1", "--batch-size", "3", "--rounds", "1"]
WORLDS = ["--chosen-on", "1", "--chosen-on-trained", "1", "--tested-on", "2", "--tested-on-trained", "2"]


def named(text: str, table: dict[str, tuple[str, ...]]) -> set[str]:
    """Return the keys of a table of words that a text names."""
    plain = f" {text.replace(',', '').replace('?', '')} "
    return {key for key, phrases in table.items() if any(f" {phrase} " in plain for phrase in phrases)}


@pytest.fixture(scope="module", params=[3, 4])
def world(request: pytest.FixtureRequest) -> tuple[int, tuple[playhouse.PlayhouseVideo, ...], dict[str, list[str]]]:
    videos = playhouse.make_split(request.param, "test", 30)
    return request.param, videos, make_queries(request.param, videos)


def test_absent_queries_name_what_no_video_has(
    world: tuple[int, tuple[playhouse.PlayhouseVideo, ...], dict[str, list[str]]],
) -> None:
    _, videos, queries = world
    events = [event for video in videos for event in video.events]
    things = {actor.thing for event in events for actor in event.actors}
    colours = {actor.colour for event in events for actor in event.actors}
    backdrops = {event.backdrop for event in events}
    for kind in ("other thing", "phrase, other thing", "one word, other thing"):
        assert queries[kind]
        assert all(named(text, words.THING_WORDS) - things for text in queries[kind]), kind
    assert all(named(text, words.COLOUR_WORDS) - colours for text in queries["other colour"])
    assert all(named(text, words.BACKDROP_WORDS) - backdrops for text in queries["other backdrop"])
    together = [{actor.thing for actor in event.actors} for event in events]
    for text in queries["other pair"]:
        pair = named(text, words.THING_WORDS)
        assert len(pair) == 2
        assert pair <= things
        assert not any(pair <= each for each in together)


def test_other_actions_are_of_actors_that_do_something_else(
    world: tuple[int, tuple[playhouse.PlayhouseVideo, ...], dict[str, list[str]]],
) -> None:
    _, videos, queries = world
    events = [event for video in videos for event in video.events]
    for text in queries["other action"]:
        (thing,), (colour,) = named(text, words.THING_WORDS), named(text, words.COLOUR_WORDS)
        actor = words.Actor(thing, colour)
        mine = {event.action for event in events if actor in event.actors}
        assert mine, "the actor is present"
        own = {event.action for event in events if event.actors[0] == actor}
        for action in own & set(playhouse.SOLO_ACTIONS):
            forms = (*words.CLAUSES[action], *words.SHOTS[action])
            said = [form.replace("{a}", "").strip() for form in forms if "{side}" not in form]
            assert not any(f" {form} " in f" {text.replace(',', '')} " for form in said), (text, action)


def test_present_queries_name_what_a_video_has(
    world: tuple[int, tuple[playhouse.PlayhouseVideo, ...], dict[str, list[str]]],
) -> None:
    _, videos, queries = world
    actors = {actor for video in videos for event in video.events for actor in event.actors}
    for text in queries["present: phrase"]:
        (thing,), (colour,) = named(text, words.THING_WORDS), named(text, words.COLOUR_WORDS)
        assert words.Actor(thing, colour) in actors
    assert set(queries["present: one word"]).isdisjoint(queries["one word, other thing"])
    assert queries[SENTENCES] == [query.text for video in videos for query in video.queries]


def test_kinds_are_present_absent_or_neither() -> None:
    assert is_present("present: question")
    assert not is_present("question")
    assert is_absent("question")
    assert not is_absent("shuffled words")
    assert not is_absent("present: question")


def test_the_same_seed_gives_the_same_queries() -> None:
    videos = playhouse.make_split(5, "test", 10)
    assert make_queries(5, videos) == make_queries(5, videos)


# ---------------------------------------------------------------- schemes and figures


def scores(rng: np.random.Generator, num_videos: int = 40) -> tool.Scores:
    """Sentences that score high in their own video, and absent queries that do not."""
    owners = np.arange(num_videos)
    kinds = np.array([SENTENCES] * num_videos + ["gibberish"] * 30 + ["question"] * 10)
    queries = rng.normal(0.2, 0.02, (len(kinds), num_videos))
    queries[owners, owners] += 0.3
    return tool.Scores(
        queries=queries,
        background=rng.normal(0.2, 0.02, (60, num_videos)),
        kinds=kinds,
        owners=owners,
        held_out=rng.normal(0.5, 0.02, 20),
        held_out_background=rng.normal(0.25, 0.02, 60),
    )


@pytest.mark.parametrize("scheme", tool.SCHEMES)
def test_every_scheme_separates_what_is_clearly_different(scheme: str) -> None:
    (sample,) = tool.libraries(scores(np.random.default_rng(0)), scheme, 40)
    assert sample.auroc() == 1.0
    slope, midpoint = tool.fit([sample])
    assert slope > 0
    assert sample.false_alarms(midpoint) == 0
    assert (sample.of(SENTENCES) >= midpoint).all()


def test_the_chosen_scheme_does_not_depend_on_the_unit_of_scores() -> None:
    found = scores(np.random.default_rng(1))
    values = tool.SCHEMES[tool.CHOSEN](found.queries, found.background)
    assert tool.SCHEMES[tool.CHOSEN](3 * found.queries + 1, 3 * found.background + 1) == pytest.approx(values)


def test_a_sentence_needs_its_own_video_in_a_small_library() -> None:
    found = scores(np.random.default_rng(2))
    small = list(tool.libraries(found, tool.CHOSEN, 2))
    assert [len(sample.of(SENTENCES)) for sample in small] == [2, 2]
    assert all(len(sample.of("gibberish")) == 30 for sample in small)
    assert small[0].weights[small[0].is_match].sum() == pytest.approx(0.5)
    assert small[0].weights.sum() == pytest.approx(1)


def test_a_log_loss_by_hand() -> None:
    """Odds of 3 : 1 for a match cost log(4/3), against one log(4)."""
    logits = np.log([3.0, 3.0])
    found = tool.log_loss(logits, np.array([True, False]), np.array([1.0, 1.0]))
    assert found == pytest.approx((np.log(4 / 3) + np.log(4)) / 2)


@pytest.mark.slow
def test_a_tiny_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "docs/report.md"
    path.parent.mkdir()
    tool.main([*TINY, *WORLDS, "--out", str(tmp_path / "out"), "--write", str(path)])
    report = path.read_text(encoding="utf-8")
    for name in (*tool.SCHEMES, tool.REFITTED, "gibberish", "MSC, 2 videos"):
        assert name in report
    for picture in re.findall(r"\]\(([a-z-]+\.png)\)", report):
        assert (path.parent / picture).stat().st_size > 10_000
    states = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("*.npz")}
    assert len(states) == 4
    tool.main([*TINY, *WORLDS, "--out", str(tmp_path / "out")])
    assert {file: file.stat().st_mtime_ns for file in states} == states, "finished parts are not repeated"
    with pytest.raises(BadRun):
        tool.main([*TINY, *WORLDS, "--epochs", "2", "--out", str(tmp_path / "out")])
    capsys.readouterr()
