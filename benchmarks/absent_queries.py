"""Queries for playhouse videos whose truth is known: some describe a part of a video, others describe none.

A dataset has 12 of 24 things, 4 of 9 colours and 3 of 9 backdrops (`playhouse.make_troupe`). So a sentence about
another thing is absent by construction. Combinations are checked against the descriptions of the videos.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from midreel.datasets import playhouse
from midreel.datasets.playhouse import HIDING, SOLO_ACTIONS, Event, PlayhouseVideo, words
from midreel.datasets.playhouse.words import Actor, pick

SENTENCES = "present: sentence"  # the queries of the dataset, on which thresholds are set
NUM_SENTENCES, NUM_PHRASES = 200, 100

# "bounces" also fits other actions, and every actor enters and leaves the picture.
DISTINCT_ACTIONS = tuple(action for action in SOLO_ACTIONS if action not in ("enters", "leaves", "bounces"))

GENERAL = (
    "a dog swims in a pool", "two people shake hands in an office", "a chef slices onions",
    "the president gives a speech", "a surgeon operates on a patient", "children open presents under a christmas tree",
    "a woman applies lipstick", "a man fixes a leaking pipe", "a goalkeeper saves a penalty",
    "someone types on a keyboard", "a baker kneads dough", "a crowd cheers at a concert", "a barber cuts hair",
    "a man lifts weights in a gym", "a student writes an exam", "an old couple waltzes", "a waiter pours wine",
    "a plumber crawls under the sink", "a teenager skateboards down the stairs", "a nurse takes blood pressure",
    "a bride throws her bouquet", "a mechanic changes a tyre", "a cyclist crashes on a corner", "workers lay bricks",
    "a girl braids her sister's hair", "firefighters climb a ladder", "a judge reads the verdict",
    "a tailor measures a jacket", "a toddler takes first steps", "a volcano erupts with lava",
    "an astronaut repairs a satellite", "a lawyer argues in court", "someone peels potatoes", "a fencing match",
    "the stock market report", "a man shaves in front of the mirror", "a potter shapes clay", "a soldier salutes",
    "a couple argues in a car park", "a yoga class stretches",
)  # fmt: skip
LANGUAGES = (
    "un perro nada en la piscina", "ein Hund springt ins Wasser", "un homme lit un journal dans le métro",
    "una donna cucina la pasta", "子供たちが公園で遊んでいる", "一个男人在弹钢琴",
    "мальчик катается на велосипеде",
    "en kvinna dansar på torget", "een vrouw snijdt groenten", "um barco entra no porto",
    "güneş dağların arkasından doğuyor",  # noqa: RUF001
    "강아지가 소파에서 자고 있다", "pies biegnie za samochodem",
    "μια γυναίκα τραγουδά στη σκηνή",
    "رجل يقود سيارة", "ילד אוכל גלידה", "एक आदमी क्रिकेट खेल रहा है", "muž opravuje střechu",
    "nainen juoksee metsässä", "egy lány hegedül", "un enfant souffle ses bougies", "die Köchin schneidet Zwiebeln",
    "dos amigos juegan al ajedrez", "il treno arriva in stazione", "o gato dorme na janela", "en mand maler et hus",
    "fjellet er dekket av tåke", "con mèo nằm trên ghế", "seekor burung di atas atap", "mwanamke anapika chakula",
)  # fmt: skip
QUESTIONS = (
    "what time is it", "how do I bake bread", "who won the election", "where can I park my bicycle",
    "why is the sky blue", "what is the capital of france", "how much does it cost", "when does the train leave",
    "who wrote this book", "can you recommend a restaurant", "is there a doctor here",
    "what did she say to the lawyer", "how old are you", "which team scored first", "why did the bank close early",
    "how do I reset my password", "what is the weather tomorrow", "do you speak english",
    "where did they buy the sofa", "who is playing the guitar",
)  # fmt: skip
WORDS = (
    "democracy", "invoice", "lawyer", "concert", "surgery", "pizza", "elephant", "keyboard", "wedding", "homework",
    "volcano", "dentist", "motorcycle", "spaghetti", "mountain", "newspaper", "hospital", "tennis", "passport",
    "chocolate",
)  # fmt: skip


def is_present(kind: str) -> bool:
    """Return whether the queries of a kind have a match."""
    return kind.startswith("present")


def is_absent(kind: str) -> bool:
    """Return whether the queries of a kind have no match. Shuffled words are neither: a reader may see the match."""
    return not is_present(kind) and kind != "shuffled words"


def make_queries(seed: int, videos: Sequence[PlayhouseVideo]) -> dict[str, list[str]]:
    """Return queries by kind. The first kinds are present in the videos, the others are absent.

    Args:
        seed: The seed of the playhouse.
        videos: Videos of its split test.
    """
    rng = np.random.default_rng([seed, 7])
    troupe = playhouse.make_troupe(seed, "test")
    events = [event for video in videos for event in video.events]
    cast = [thing for play in troupe.plays for thing in play]
    missing = [thing for thing in playhouse.EVERYTHING.plays[0] if thing not in cast]
    colours = [colour for colour in playhouse.EVERYTHING.colours if colour not in troupe.colours]
    backdrops = [backdrop for backdrop in playhouse.EVERYTHING.backdrops if backdrop not in troupe.backdrops]

    def say(event: Event) -> str:
        return words.describe(rng, event.action, event.side, event.actors, event.backdrop)

    def other_thing() -> str | None:
        event = pick(rng, events)
        return None if event.action in HIDING else say(_changed(event, 0, thing=pick(rng, missing)))

    def other_colour() -> str | None:
        colour = pick(rng, colours)
        return _naming(say(_changed(pick(rng, events), 0, colour=colour)), words.COLOUR_WORDS[colour])

    def other_backdrop() -> str | None:
        backdrop = pick(rng, backdrops)
        return _naming(say(replace(pick(rng, events), backdrop=backdrop)), words.BACKDROP_WORDS[backdrop])

    def other_pair() -> str | None:
        """Two things of the videos that never meet, because they are in different plays."""
        event = pick(rng, events)
        if len(event.actors) < 2 or event.action in HIDING:
            return None
        own = next(play for play in troupe.plays if event.actors[0].thing in play)
        stranger = pick(rng, [thing for thing in cast if thing not in own])
        return _naming(say(_changed(event, 1, thing=stranger)), words.THING_WORDS[stranger])

    done = {(event.action, event.actors[0]) for event in events}
    actors = sorted({actor for event in events for actor in event.actors}, key=repr)

    def other_action() -> str | None:
        """An action that this thing in this colour does in no video."""
        actor, action = pick(rng, actors), pick(rng, DISTINCT_ACTIONS)
        if (action, actor) in done:
            return None
        text = words.describe(rng, action, "left", (actor,), pick(rng, troupe.backdrops))
        return _naming(text, words.COLOUR_WORDS[actor.colour])

    sentences = [query.text for video in videos for query in video.queries]
    return {
        SENTENCES: sentences,
        "present: phrase": _many(lambda: words.noun_phrase(rng, pick(rng, pick(rng, events).actors)), NUM_PHRASES),
        "present: one word": [word for thing in cast for word in words.THING_WORDS[thing]],
        "present: question": _many(lambda: f"is there a video where {say(pick(rng, events))}?", NUM_PHRASES),
        "other thing": _many(other_thing),
        "other colour": _many(other_colour),
        "other backdrop": _many(other_backdrop),
        "other pair": _many(other_pair),
        "other action": _many(other_action),
        "phrase, other thing": _many(
            lambda: words.noun_phrase(rng, Actor(pick(rng, missing), pick(rng, troupe.colours))), NUM_PHRASES
        ),
        "one word, other thing": [word for thing in missing for word in words.THING_WORDS[thing]],
        "one word, unrelated": list(WORDS),
        "everyday sentence": list(GENERAL),
        "other language": list(LANGUAGES),
        "question": list(QUESTIONS),
        "gibberish": _many(lambda: _gibberish(rng), NUM_PHRASES),
        "shuffled words": [" ".join(rng.permutation(text.split())) for text in sentences[:NUM_SENTENCES]],
    }


def _many(make: Callable[[], str | None], number: int = NUM_SENTENCES) -> list[str]:
    """Call a function until it has returned this many sentences, or has failed too often."""
    found = (make() for _ in range(100 * number))
    return [text for text, _ in zip((text for text in found if text), range(number), strict=False)]


def _changed(event: Event, number: int, **changes: str) -> Event:
    actors = list(event.actors)
    actors[number] = replace(actors[number], **changes)
    return replace(event, actors=tuple(actors))


def _naming(text: str, phrases: Sequence[str]) -> str | None:
    """Return the text if it names one of the phrases: a description may leave out a colour or a backdrop."""
    plain = f" {text.replace(',', '')} "
    return text if any(f" {phrase} " in plain for phrase in phrases) else None


def _gibberish(rng: np.random.Generator) -> str:
    letters = list("abcdefghijklmnopqrstuvwxyz")
    return " ".join("".join(rng.choice(letters, int(rng.integers(3, 9)))) for _ in range(int(rng.integers(1, 7))))
