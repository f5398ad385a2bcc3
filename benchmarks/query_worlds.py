"""Queries with operators whose answers are known: made from the descriptions of playhouse videos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from midreel.datasets import playhouse
from midreel.datasets.playhouse import Event, PlayhouseVideo, words
from midreel.datasets.playhouse.words import Actor

MOST_RELEVANT = 0.2  # of all videos: a query that more videos answer says little
_TRIES = 400  # draws of a query before giving up

Answers = frozenset[str]  # the ids of the relevant videos


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something that can be seen in an event. What is "" may be anything."""

    thing: str = ""
    colour: str = ""
    backdrop: str = ""

    def holds(self, event: Event) -> bool:
        """Return whether the fact is true of an event."""
        seen = any(self.thing in ("", each.thing) and self.colour in ("", each.colour) for each in event.actors)
        return seen and self.backdrop in ("", event.backdrop)

    def text(self, rng: np.random.Generator) -> str:
        """Return the fact as a phrase."""
        place = words.pick(rng, words.BACKDROP_WORDS[self.backdrop]) if self.backdrop else ""
        if not self.thing:
            return place
        name = words.noun_phrase(rng, Actor(self.thing, self.colour or "red"), coloured=bool(self.colour))
        return f"{name} {place}".strip()


@dataclass(frozen=True, kw_only=True)
class MadeQuery:
    """A query, other ways to ask it, and the videos that answer it.

    Attributes:
        kind: The operator.
        text: The query with its operator.
        others: The same question without the operator, by name: as one plain sentence, and the parts alone.
        relevant: The ids of the videos that answer it.
        image: A frame to search with: a video that is not in the library, and a time.
    """

    kind: str
    text: str
    others: dict[str, str]
    relevant: Answers
    image: tuple[PlayhouseVideo, float] | None = None


@dataclass(frozen=True, kw_only=True)
class World:
    """The videos of a library, and videos of the same troupe that are not in it."""

    seed: int
    videos: tuple[PlayhouseVideo, ...]
    strangers: tuple[PlayhouseVideo, ...]

    @classmethod
    def make(cls, seed: int, num_videos: int) -> "World":
        """Return the world of a seed."""
        return cls(
            seed=seed,
            videos=playhouse.make_split(seed, "test", num_videos),
            strangers=playhouse.make_split(seed, "train", num_videos),
        )

    def having(self, is_answer: Callable[[Sequence[Event]], bool]) -> Answers:
        """Return the videos whose events pass a test."""
        return frozenset(video.id for video in self.videos if is_answer(video.events))


def write_library(folder: Path, world: World) -> None:
    """Write the videos of a world as files and index them, unless that is done."""
    from midreel import Searcher

    done = folder / "done"
    if done.exists():
        return
    playhouse.write_dataset(folder / "videos", seed=world.seed, num_test=len(world.videos), rate=4)
    with Searcher.create(folder / "library") as searcher:
        searcher.add(folder / "videos")
    done.touch()


# ---------------------------------------------------------------- queries


def make_queries(world: World, kind: str, number: int) -> list[MadeQuery]:
    """Return different queries of one kind.

    Args:
        world: The videos.
        kind: A key of MAKERS.
        number: How many, at most: fewer if the world has too few.
    """
    rng = np.random.default_rng([world.seed, list(MAKERS).index(kind)])
    found: dict[str, MadeQuery] = {}
    for _ in range(_TRIES * number):
        if len(found) == number:
            break
        made = MAKERS[kind](world, rng)
        if made is not None and 0 < len(made.relevant) <= MOST_RELEVANT * len(world.videos):
            found.setdefault(made.text + str(made.image and made.image[0].id), made)
    return list(found.values())


def _fact(event: Event, rng: np.random.Generator) -> Fact:
    actor = words.pick(rng, event.actors)
    coloured, placed = words.pick(rng, ((True, False), (True, False), (False, True), (True, True)))
    return Fact(thing=actor.thing, colour=actor.colour * coloured, backdrop=event.backdrop * placed)


def _two_facts(world: World, rng: np.random.Generator) -> tuple[Fact, Fact] | None:
    """Return facts about two events of a video, in order of time. Neither holds in the other's event."""
    events = words.pick(rng, world.videos).events
    first, second = sorted(rng.permutation(len(events))[:2].tolist())
    a, b = _fact(events[first], rng), _fact(events[second], rng)
    return None if a.holds(events[second]) or b.holds(events[first]) else (a, b)


def _both(world: World, rng: np.random.Generator) -> MadeQuery | None:
    facts = _two_facts(world, rng)
    if facts is None:
        return None
    a, b = (fact.text(rng) for fact in facts)
    return MadeQuery(
        kind="AND",
        text=f"{a} AND {b}",
        others={"one sentence": f"{a} and {b}", "first part": a, "second part": b},
        relevant=world.having(lambda events: all(any(map(fact.holds, events)) for fact in facts)),
    )


def _in_order(world: World, rng: np.random.Generator) -> MadeQuery | None:
    facts = _two_facts(world, rng)
    if facts is None:
        return None

    def is_ordered(events: Sequence[Event], first: Fact, second: Fact) -> bool:
        times = [event.end for event in events if first.holds(event)], [e.start for e in events if second.holds(e)]
        return all(times) and min(times[0]) <= max(times[1])

    relevant = world.having(lambda events: is_ordered(events, *facts))
    # Videos that show both parts in the other order only make the order matter.
    if not world.having(lambda events: is_ordered(events, *facts[::-1])) - relevant:
        return None
    a, b = (fact.text(rng) for fact in facts)
    return MadeQuery(
        kind="THEN",
        text=f"{a} THEN {b}",
        others={
            "one sentence": f"{a} and then {b}",
            "first part": a,
            "second part": b,
            "AND": f"{a} AND {b}",
            "wrong order": f"{b} THEN {a}",
        },
        relevant=relevant,
    )


def _without(world: World, rng: np.random.Generator) -> MadeQuery | None:
    event = words.pick(rng, words.pick(rng, world.videos).events)
    actor = event.actors[0]
    wanted = Fact(thing=actor.thing, colour=actor.colour if rng.random() < 0.5 else "")
    if rng.random() < 0.5 or len(event.actors) < 2:
        unwanted, sentence = Fact(backdrop=event.backdrop), "{a}, but not {b}"
    else:
        unwanted, sentence = Fact(thing=event.actors[1].thing), "{a} without {b}"
    relevant = world.having(lambda events: any(wanted.holds(each) and not unwanted.holds(each) for each in events))
    if not world.having(lambda events: any(map(wanted.holds, events))) - relevant:
        return None
    a, b = wanted.text(rng), unwanted.text(rng)
    return MadeQuery(
        kind="NOT",
        text=f"{a} NOT {b}",
        others={"one sentence": sentence.format(a=a, b=b), "first part": a},
        relevant=relevant,
    )


def _alternatives(world: World, rng: np.random.Generator) -> MadeQuery | None:
    facts = [_fact(words.pick(rng, words.pick(rng, world.videos).events), rng) for _ in range(2)]
    if facts[0] == facts[1]:
        return None
    a, b = (fact.text(rng) for fact in facts)
    return MadeQuery(
        kind="OR, alternatives",
        text=f"{a} OR {b}",
        others={"one sentence": f"{a} or {b}", "first part": a, "second part": b},
        relevant=world.having(lambda events: any(fact.holds(event) for fact in facts for event in events)),
    )


def _synonyms(world: World, rng: np.random.Generator) -> MadeQuery | None:
    fact = _fact(words.pick(rng, words.pick(rng, world.videos).events), rng)
    a, b, c = (fact.text(rng) for _ in range(3))
    if len({a, b, c}) < 3:
        return None
    return MadeQuery(
        kind="OR, synonyms",
        text=f"{a} OR {b} OR {c}",
        others={"one sentence": f"{a} or {b} or {c}", "first part": a},
        relevant=world.having(lambda events: any(map(fact.holds, events))),
    )


def _same_moment(world: World, rng: np.random.Generator) -> MadeQuery | None:
    """Two things in one event, which is what a plain sentence describes."""
    actors = words.pick(rng, words.pick(rng, world.videos).events).actors
    if len(actors) != 2:
        return None
    facts = [Fact(thing=actor.thing, colour=actor.colour) for actor in actors]
    a, b = (fact.text(rng) for fact in facts)
    return MadeQuery(
        kind="one moment",
        text=f"{a} and {b}",
        others={"AND": f"{a} AND {b}", "first part": a, "second part": b},
        relevant=world.having(lambda events: any(all(fact.holds(event) for fact in facts) for event in events)),
    )


def _pictured(world: World, rng: np.random.Generator) -> MadeQuery | None:
    """An image of a thing, and words that name another place or a second thing."""
    stranger = words.pick(rng, world.strangers)
    event = words.pick(rng, stranger.events)
    time = (event.start + event.end) / 2
    actor = event.actors[0]
    if actor not in playhouse.in_view(stranger, time) or len(event.actors) != 1:
        return None
    seen = Fact(thing=actor.thing, colour=actor.colour)
    example = words.pick(rng, words.pick(rng, world.videos).events)
    if rng.random() < 0.5:
        said = Fact(backdrop=example.backdrop)
        if example.backdrop == event.backdrop:
            return None
    else:
        other = example.actors[-1]
        said = Fact(thing=other.thing, colour=other.colour)
        if other == actor:
            return None
    text = said.text(rng)
    return MadeQuery(
        kind="image + words",
        text=text,
        others={},
        relevant=world.having(lambda events: any(seen.holds(each) and said.holds(each) for each in events)),
        image=(stranger, time),
    )


MAKERS: dict[str, Callable[[World, np.random.Generator], MadeQuery | None]] = {
    "AND": _both,
    "NOT": _without,
    "OR, synonyms": _synonyms,
    "OR, alternatives": _alternatives,
    "THEN": _in_order,
    "image + words": _pictured,
    "one moment": _same_moment,
}
