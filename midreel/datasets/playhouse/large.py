"""Large videos: long, with many diverse events of very different lengths, as in QVHighlights.

A video has one topic, which is a play, and several contexts. A context is a backdrop and a leading actor. Its events
differ in the action and the second actor. Events of other contexts come in between, so contexts recur. Some videos
contain an interview: a still scene that fills a third to a half of the video and is interrupted by the other events.

Only a few events have a sentence, and these belong to different contexts. So the sentences of one video have little in
common, and events of other videos are similar to them.

The numbers follow the annotations of QVHighlights at half their duration, so that one frame per second gives as many
frames as the published features, which have one per two seconds. `midreel data properties` compares the two.

The order of the calls to `rng` determines the videos of a seed. If you change it, raise files.VERSION.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from midreel.datasets.playhouse import words
from midreel.datasets.playhouse.motion import COVERS, HIDING, PAIR_ACTIONS, SOLO_ACTIONS
from midreel.datasets.playhouse.scenes import Event, PlayhouseVideo
from midreel.datasets.playhouse.troupe import Troupe, TroupeSize
from midreel.datasets.playhouse.words import Actor
from midreel.types import Moment, Query

SIZE = TroupeSize(plays=4, cast=5, colours=6, backdrops=6)

# QVHighlights joins one to five segments of at most 150 s, and most segments have one query.
PART_SECONDS = 75.0
PARTS = (0.14, 0.09, 0.47, 0.10, 0.20)  # the shares of videos with 1, 2, 3, 4 and 5 parts
SECOND_QUERY = 0.1  # the share of parts with a second query
OCCURRENCES = (0.60, 0.22, 0.12, 0.06)  # the shares of events that happen 1, 2, 3 and 4 times
LENGTH, SPREAD = 6.0, 1.1  # seconds: the median of the lengths, and the standard deviation of their logarithm
SHORTEST = 0.5  # seconds
INTERVIEWS = 0.35  # the share of videos with an interview
STILL_ACTIONS = ("above", "below", "beside", "in_front_of")
# A repeated motion cannot be recognised in less than about one period.
LEAST_SECONDS = {"spins": 3.5, "bounces": 2.5, "blinks": 2.5, "sways": 2.5, "circles": 4.5}


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the events of a context have in common."""

    backdrop: str
    lead: Actor


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of event, and the length in seconds of each of its occurrences.

    The times of `event` have no meaning. `context` is the position of its context.
    """

    context: int
    event: Event
    lengths: tuple[float, ...]


def make(rng: np.random.Generator, video_id: str, troupe: Troupe) -> PlayhouseVideo:
    """Return a video of one to five parts of about 75 s, with a query for each part.

    Args:
        rng: The random generator of this video.
        video_id: The id of the video.
        troupe: The things, colours and backdrops to choose from.
    """
    num_parts = 1 + int(rng.choice(len(PARTS), p=PARTS))
    seconds = PART_SECONDS * num_parts * rng.uniform(0.9, 1.1)
    play = words.pick(rng, troupe.plays)
    contexts = _contexts(rng, troupe, play, num_parts + int(rng.integers(1, 3)))
    kinds = _kinds(rng, troupe, play, contexts, seconds)
    duration, events, spans = _timeline(rng, kinds)
    described = _described(rng, kinds, num_parts + int(rng.binomial(num_parts, SECOND_QUERY)))
    queries = tuple(
        Query(
            id=f"{video_id}#{number}",
            text=_sentence(rng, kinds[kind].event),
            video_id=video_id,
            moments=tuple(Moment(start=start, end=end) for start, end in spans[kind]),
        )
        for number, kind in enumerate(described)
    )
    starts = [event.start for event in events]
    return PlayhouseVideo(
        id=video_id,
        duration=duration,
        events=events,
        queries=queries,
        event_of_query=tuple(starts.index(spans[kind][0][0]) for kind in described),
    )


def _contexts(rng: np.random.Generator, troupe: Troupe, play: Sequence[str], count: int) -> list[Context]:
    """Return contexts with different leading actors and, as far as the troupe has enough, different backdrops."""
    leads = [Actor(thing, colour) for colour in troupe.colours for thing in play]
    # The same thing leads a second context only in another colour, and only if there are more contexts than things.
    shuffled = [leads[number] for number in rng.permutation(len(leads)).tolist()]
    ranked = sorted(
        range(len(shuffled)), key=lambda at: [lead.thing for lead in shuffled[:at]].count(shuffled[at].thing)
    )
    backdrops = rng.permutation(troupe.backdrops).tolist()
    return [
        Context(backdrop=backdrops[number % len(backdrops)], lead=shuffled[ranked[number]]) for number in range(count)
    ]


def _kinds(
    rng: np.random.Generator, troupe: Troupe, play: Sequence[str], contexts: Sequence[Context], seconds: float
) -> list[Kind]:
    """Return kinds of events that fill `seconds` together. The contexts take turns, so each has about as many."""
    kinds: list[Kind] = []
    filled = 0.0
    if rng.random() < INTERVIEWS:
        share = rng.uniform(0.3, 0.5) * rng.dirichlet(np.full(int(rng.integers(2, 6)), 4.0))
        lengths = tuple(_quarters(seconds * each) for each in share)
        event = _event(rng, troupe, play, contexts[0], STILL_ACTIONS)
        kinds.append(Kind(context=0, event=event, lengths=lengths))
        filled += sum(lengths)
    number = 0
    while filled < seconds or number < len(contexts):
        context = number % len(contexts)
        number += 1
        count = 1 + int(rng.choice(len(OCCURRENCES), p=OCCURRENCES))
        length = min(LENGTH * math.exp(rng.normal(0, SPREAD)), seconds / 2 / count)
        lengths = tuple(_quarters(length * each) for each in rng.uniform(0.8, 1.25, count))
        used = {kind.event.action for kind in kinds if kind.context == context}
        allowed = [
            action
            for action in (*SOLO_ACTIONS, *PAIR_ACTIONS)
            if action not in used and LEAST_SECONDS.get(action, 0.0) <= min(lengths)
        ]
        if not allowed:
            continue
        event = _event(rng, troupe, play, contexts[context], allowed)
        kinds.append(Kind(context=context, event=event, lengths=lengths))
        filled += sum(lengths)
    return kinds


def _event(
    rng: np.random.Generator, troupe: Troupe, play: Sequence[str], context: Context, actions: Sequence[str]
) -> Event:
    lead = context.lead
    action = words.pick(rng, [each for each in actions if each not in HIDING or lead.thing not in COVERS])
    others = [thing for thing in play if thing != lead.thing and (action not in HIDING or thing in COVERS)]
    colours = [colour for colour in troupe.colours if colour != lead.colour]
    second = Actor(words.pick(rng, others), words.pick(rng, colours))
    accompanied = action in PAIR_ACTIONS or rng.random() < 0.55
    return Event(
        action=action,
        side=words.pick(rng, ("left", "right")),
        actors=(lead, second) if accompanied else (lead,),
        backdrop=context.backdrop,
        start=0.0,
        end=0.0,
    )


def _timeline(
    rng: np.random.Generator, kinds: Sequence[Kind]
) -> tuple[float, tuple[Event, ...], list[list[tuple[float, float]]]]:
    """Return the duration, the events in order of time, and the spans of each kind.

    Two occurrences of a kind are never neighbours. A kind that has more occurrences than the others leave room for
    loses the rest.
    """
    programme: list[tuple[int, float]] = []  # the kind and the length of each event
    for number in sorted(range(len(kinds)), key=lambda at: len(kinds[at].lengths)):
        lengths = kinds[number].lengths
        places = rng.permutation(len(programme) + 1)[: len(lengths)].tolist()
        for place, length in zip(sorted(places, reverse=True), lengths, strict=False):
            programme.insert(place, (number, length))
    pauses = [float(pause) / 4 for pause in rng.integers(0, 5, len(programme) + 1)]
    ends = accumulate(pause + length for pause, (_, length) in zip(pauses, programme, strict=False))
    events: list[Event] = []
    spans: list[list[tuple[float, float]]] = [[] for _ in kinds]
    for (number, length), end in zip(programme, ends, strict=True):
        spans[number].append((end - length, end))
        place, scale = rng.uniform(-1, 1), rng.uniform(0.92, 1.08)
        events.append(replace(kinds[number].event, start=end - length, end=end, place=place, scale=scale))
    return events[-1].end + pauses[-1], tuple(events), spans


def _described(rng: np.random.Generator, kinds: Sequence[Kind], count: int) -> list[int]:
    """Return the kinds that get a sentence: one of each context in turn, until there are enough."""
    waiting = rng.permutation(len(kinds)).tolist()
    chosen: list[int] = []
    while len(chosen) < count and waiting:
        uses = [sum(kinds[each].context == kinds[kind].context for each in chosen) for kind in waiting]
        chosen.append(waiting.pop(uses.index(min(uses))))
    return chosen


def _sentence(rng: np.random.Generator, event: Event) -> str:
    return words.describe(rng, event.action, event.side, event.actors, event.backdrop)


def _quarters(seconds: float) -> float:
    """Return a length as a multiple of a quarter of a second, which is a whole number of frames."""
    return max(SHORTEST, round(4 * float(seconds)) / 4)
