"""The benchmark of the operators: its queries, its measures and its report."""

import numpy as np
import pytest

from benchmarks import queries as tool
from benchmarks.query_worlds import MAKERS, Fact, World, make_queries
from midreel.datasets.playhouse import words

NAMES = {word: name for table in (words.THING_WORDS, words.COLOUR_WORDS) for name, of in table.items() for word in of}


@pytest.fixture(scope="module")
def world() -> World:
    return World.make(7, 40)


def seen(text: str) -> set[str]:
    """Return the things and colours that a text names, and its backdrop."""
    places = {name for name, of in words.BACKDROP_WORDS.items() if any(place in text for place in of)}
    return {NAMES[word] for word in words.words_of(text) if word in NAMES} | places


def shows(event: object, text: str) -> bool:
    wanted = seen(text)
    return any(wanted <= {actor.thing, actor.colour, event.backdrop} for actor in event.actors)  # type: ignore[attr-defined]


def test_the_answers_follow_from_the_words(world: World) -> None:
    """Read each query as a person would, and compare with the answers that come with it."""
    for kind, operator, is_answer in (
        ("AND", " AND ", lambda events, a, b: any(shows(e, a) for e in events) and any(shows(e, b) for e in events)),
        ("NOT", " NOT ", lambda events, a, b: any(shows(e, a) and not shows(e, b) for e in events)),
        ("OR, alternatives", " OR ", lambda events, a, b: any(shows(e, a) or shows(e, b) for e in events)),
        (
            "THEN",
            " THEN ",
            lambda events, a, b: any(
                shows(e, a) and shows(f, b) for k, e in enumerate(events) for f in events[k + 1 :]
            ),
        ),
    ):
        made = make_queries(world, kind, 6)
        assert len({each.text for each in made}) == 6
        for each in made:
            a, b = each.text.split(operator)
            assert each.relevant == {video.id for video in world.videos if is_answer(video.events, a, b)}


def test_every_kind_has_queries(world: World) -> None:
    for kind in MAKERS:
        assert len(make_queries(world, kind, 3)) == 3
        assert make_queries(world, kind, 2)[0].text == make_queries(world, kind, 2)[0].text


def test_a_fact() -> None:
    rng = np.random.default_rng(0)
    assert seen(Fact(thing="cat", colour="red", backdrop="sea").text(rng)) == {"cat", "red", "sea"}
    assert seen(Fact(backdrop="sea").text(rng)) == {"sea"}


def test_measures() -> None:
    answer = tool.Answer.of(["a", "b", "c", "d"], frozenset("bd"))
    assert (answer.precision, answer.first, answer.recall) == (pytest.approx(50), 0, 100)
    found = tool.interval([0.0, 100.0] * 50)
    assert (found.mean, found.spread) == (50, pytest.approx(9.8, abs=1))


def test_the_report() -> None:
    answers = {"AND": {"AND": [tool.Answer(precision=50, first=0, recall=100)] * 2, "first part": []}}
    answers["AND"]["first part"] = [tool.Answer(precision=20, first=0, recall=50)] * 2
    spread = tool.interval([90.0, 100.0])
    shares = {"50 candidates": {"AND": spread}}
    text = tool.report(answers, {"slope 1": {"AND": 47.0}}, shares, shares, {"x": {"AND": 2.5}}, 99)
    assert "| first part | 20.0" in text
    assert "| 30.0" in text
    assert "| x | 2.5 |" in text
