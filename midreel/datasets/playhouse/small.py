"""Small videos: a few events in a row, each with its own action. In repeated videos one of them happens again.

Certain things appear together, as cooks and kitchens do in real videos. Each video is one of a few plays, with only the
things of this play. This setting leads to semantic collapse: a model that learns only from pairs of sentence and video
learns to recognise the play.

The order of the calls to `rng` determines the videos of a seed. If you change it, raise files.VERSION.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np

from midreel.datasets.playhouse import words
from midreel.datasets.playhouse.motion import COVERS, HIDING, PAIR_ACTIONS, SOLO_ACTIONS
from midreel.datasets.playhouse.scenes import Event, PlayhouseVideo
from midreel.datasets.playhouse.troupe import Troupe, TroupeSize
from midreel.datasets.playhouse.words import Actor
from midreel.types import Moment, Query

SIZE = TroupeSize(plays=3, cast=4, colours=4, backdrops=3)


def make(rng: np.random.Generator, video_id: str, troupe: Troupe) -> PlayhouseVideo:
    """Return a video of three to six events.

    Args:
        rng: The random generator of this video.
        video_id: The id of the video.
        troupe: The things, colours and backdrops to choose from.
    """
    duration, spans = _timetable(rng, num_events=int(rng.integers(3, 7)))
    # Sentences about entering and leaving name the side, so these actions count twice, once for each side.
    programme = rng.permutation([*SOLO_ACTIONS, "enters", "leaves", *PAIR_ACTIONS])[: len(spans)].tolist()
    cast = rng.permutation(words.pick(rng, troupe.plays)).tolist()
    backdrops = cycle(rng.permutation(troupe.backdrops).tolist())
    backdrop = next(backdrops)
    events: list[Event] = []
    for action, (start, end) in zip(programme, spans, strict=True):
        things = _players(action, action in PAIR_ACTIONS or rng.random() < 0.55, cast)
        cast = [thing for thing in cast if thing not in things] + things  # the others are next
        if events and rng.random() < 0.6:
            backdrop = next(backdrops)
        colours = rng.permutation(troupe.colours).tolist()
        events.append(
            Event(
                action=action,
                side=words.pick(rng, ("left", "right")),
                actors=tuple(Actor(thing, colour) for thing, colour in zip(things, colours, strict=False)),
                backdrop=backdrop,
                start=start,
                end=end,
                place=rng.uniform(-1, 1),
                scale=rng.uniform(0.92, 1.08),
            )
        )
    queries, event_of_query = _queries(rng, video_id, events)
    return PlayhouseVideo(
        id=video_id, duration=duration, events=tuple(events), queries=queries, event_of_query=event_of_query
    )


def make_repeated(rng: np.random.Generator, video_id: str, troupe: Troupe) -> PlayhouseVideo:
    """Return a video in which one described event happens two or three times, with other events in between.

    The actors, the action and the backdrop of a repetition are the same, so every sentence about the event describes
    all of its moments. The other events have one moment, as in `make`.

    Args:
        rng: The random generator of this video.
        video_id: The id of the video.
        troupe: The things, colours and backdrops to choose from.
    """
    video = make(rng, video_id, troupe)
    chosen = words.pick(rng, sorted(set(video.event_of_query)))
    programme = [number for number in range(len(video.events)) if number != chosen]
    # Each repetition has its own place between, before or after the others, so no two of them are neighbours.
    places = rng.permutation(len(programme) + 1)[: int(rng.integers(2, 4))].tolist()
    for place in sorted(places, reverse=True):
        programme.insert(place, chosen)
    duration, spans = _timetable(rng, num_events=len(programme))
    events = tuple(
        replace(video.events[number], start=start, end=end, place=rng.uniform(-1, 1), scale=rng.uniform(0.92, 1.08))
        for number, (start, end) in zip(programme, spans, strict=True)
    )
    moments = [
        tuple(
            Moment(start=start, end=end) for each, (start, end) in zip(programme, spans, strict=True) if each == number
        )
        for number in video.event_of_query
    ]
    return PlayhouseVideo(
        id=video.id,
        duration=duration,
        events=events,
        queries=tuple(replace(query, moments=each) for query, each in zip(video.queries, moments, strict=True)),
        event_of_query=tuple(programme.index(number) for number in video.event_of_query),
    )


def _players(action: str, accompanied: bool, cast: Sequence[str]) -> list[str]:
    """Return the first one or two of the cast. For a hiding action, the second is a thing that can cover the first."""
    if action not in HIDING:
        return list(cast[: 2 if accompanied else 1])
    cover = next(thing for thing in cast if thing in COVERS)
    return [next(thing for thing in cast if thing != cover), cover]


def _timetable(rng: np.random.Generator, num_events: int) -> tuple[float, list[tuple[float, float]]]:
    """Return a duration of 20 to 60 s, and the start and end of each event, with pauses in between.

    All times are multiples of a quarter of a second, which is a whole number of frames.
    """
    duration = round(4 * rng.uniform(max(20.0, 6.0 * num_events), 9.5 * num_events)) / 4
    shares = np.empty(2 * num_events + 1)
    shares[1::2] = rng.uniform(0.8, 1.2, num_events)
    shares[0::2] = rng.uniform(0.05, 0.25, num_events + 1)
    bounds = np.round(4 * duration * np.cumsum(shares) / shares.sum()) / 4
    return duration, [(float(bounds[2 * k]), float(bounds[2 * k + 1])) for k in range(num_events)]


def _queries(
    rng: np.random.Generator, video_id: str, events: Sequence[Event]
) -> tuple[tuple[Query, ...], tuple[int, ...]]:
    """Return the queries of a video, and the event of each.

    Most events get one sentence, some two, and almost a third none. At least two events of a video get a sentence.
    """
    num_wordings = [0 if rng.random() < 0.5 else 2 if rng.random() < 0.3 else 1 for _ in events]
    for number in rng.permutation(len(events))[:2].tolist():
        num_wordings[number] = max(num_wordings[number], 1)
    queries: list[Query] = []
    event_of_query: list[int] = []
    for number, (event, count) in enumerate(zip(events, num_wordings, strict=True)):
        texts = [words.describe(rng, event.action, event.side, event.actors, event.backdrop) for _ in range(count)]
        for text in dict.fromkeys(texts):
            query_id = f"{video_id}#{len(queries)}"
            moment = Moment(start=event.start, end=event.end)
            queries.append(Query(id=query_id, text=text, video_id=video_id, moments=(moment,)))
            event_of_query.append(number)
    return tuple(queries), tuple(event_of_query)
