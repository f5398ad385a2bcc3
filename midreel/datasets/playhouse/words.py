"""The playhouse's language: words for things, colours, backdrops and actions, and the sentences made of them.

Each word for a thing or a colour has only one meaning, so that tests can check a sentence against its scene. In the
templates, `{a}` and `{b}` are the first and the second actor, and `{side}` is left or right.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")

THING_WORDS: dict[str, tuple[str, ...]] = {
    "ball": ("ball",),
    "balloon": ("balloon",),
    "bell": ("bell",),
    "bird": ("bird",),
    "boat": ("boat", "sailboat"),
    "butterfly": ("butterfly",),
    "car": ("car", "automobile"),
    "cat": ("cat", "kitten"),
    "cup": ("cup", "mug"),
    "fish": ("fish",),
    "flower": ("flower", "blossom"),
    "hat": ("hat",),
    "heart": ("heart",),
    "house": ("house", "cottage"),
    "kite": ("kite",),
    "mushroom": ("mushroom", "toadstool"),
    "plane": ("plane", "airplane"),
    "rabbit": ("rabbit", "bunny"),
    "robot": ("robot",),
    "rocket": ("rocket", "spaceship"),
    "snail": ("snail",),
    "star": ("star",),
    "tree": ("tree",),
    "umbrella": ("umbrella", "parasol"),
}

COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "scarlet"),
    "orange": ("orange",),
    "yellow": ("yellow", "golden"),
    "green": ("green", "emerald"),
    "blue": ("blue",),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rosy"),
    "white": ("white",),
    "black": ("black",),
}

BACKDROP_WORDS: dict[str, tuple[str, ...]] = {
    "desert": ("in the desert", "among the dunes", "on hot sand"),
    "meadow": ("in a meadow", "on the grass", "in the countryside"),
    "night": ("at night", "in the moonlight", "after dark"),
    "room": ("in a room", "indoors", "inside a home"),
    "sea": ("at sea", "on the ocean", "by the sea"),
    "seabed": ("under water", "deep in the sea", "on the seabed"),
    "snow": ("in the snow", "on a winter day", "in a snowy land"),
    "stage": ("on a stage", "in the theatre", "between the curtains"),
    "street": ("in the street", "in town", "in the city"),
}

CLAUSES: dict[str, tuple[str, ...]] = {
    "enters": (
        "{a} enters from the {side}",
        "{a} comes in from the {side}",
        "{a} arrives from the {side}",
        "{a} moves into the picture from the {side}",
        "{a} shows up on the {side} and moves in",
        "in from the {side} comes {a}",
        "from the {side}, {a} comes into view",
    ),
    "leaves": (
        "{a} leaves to the {side}",
        "{a} goes away to the {side}",
        "{a} exits on the {side}",
        "{a} departs towards the {side}",
        "{a} moves out of the picture on the {side}",
        "off to the {side} goes {a}",
        "{a} disappears past the {side} edge",
    ),
    "rises": (
        "{a} rises",
        "{a} goes up",
        "{a} climbs higher and higher",
        "{a} ascends",
        "{a} floats upwards",
        "{a} moves from the bottom to the top",
        "up goes {a}",
    ),
    "falls": (
        "{a} falls",
        "{a} drops down",
        "{a} sinks lower and lower",
        "{a} descends",
        "{a} floats downwards",
        "{a} moves from the top to the bottom",
        "down goes {a}",
    ),
    "spins": (
        "{a} spins",
        "{a} turns round and round",
        "{a} rotates",
        "{a} twirls on the spot",
        "{a} turns like a wheel",
        "{a} keeps spinning",
        "{a} goes head over heels",
        "round and round turns {a}",
    ),
    "grows": (
        "{a} grows",
        "{a} gets bigger",
        "{a} becomes larger and larger",
        "{a} swells up",
        "{a} expands",
        "{a} is tiny at first and huge in the end",
    ),
    "shrinks": (
        "{a} shrinks",
        "{a} gets smaller",
        "{a} becomes smaller and smaller",
        "{a} dwindles",
        "{a} contracts",
        "{a} is huge at first and tiny in the end",
    ),
    "bounces": (
        "{a} bounces up and down",
        "{a} hops",
        "{a} jumps up and down",
        "{a} keeps bouncing",
        "{a} leaps again and again",
        "up and down bounces {a}",
    ),
    "blinks": (
        "{a} blinks on and off",
        "{a} flashes",
        "{a} keeps vanishing and coming back",
        "{a} disappears and reappears",
        "{a} flickers",
        "now we see {a}, now we do not",
    ),
    "sways": (
        "{a} sways from side to side",
        "{a} rocks back and forth",
        "{a} swings like a pendulum",
        "{a} tilts one way and then the other",
        "{a} wobbles",
    ),
    "chases": (
        "{a} chases {b}",
        "{a} runs after {b}",
        "{a} pursues {b}",
        "{a} hurries after {b}",
        "{b} is chased by {a}",
        "{b} flees from {a}",
        "{b} runs away from {a}",
        "{b} is followed by {a}",
    ),
    "hides_behind": (
        "{a} hides behind {b}",
        "{a} slips behind {b}",
        "{a} goes behind {b} and stays there",
        "{a} takes cover behind {b}",
        "{a} vanishes behind {b}",
        "behind {b} hides {a}",
    ),
    "comes_out_from_behind": (
        "{a} comes out from behind {b}",
        "{a} emerges from behind {b}",
        "{a} steps out from behind {b}",
        "{a} appears from behind {b}",
        "{a} no longer hides behind {b}",
        "from behind {b} comes {a}",
    ),
    "circles": (
        "{a} circles around {b}",
        "{a} goes around {b}",
        "{a} orbits {b}",
        "{a} travels around {b} in rings",
        "{a} revolves around {b}",
        "{b} is circled by {a}",
        "around {b} flies {a}",
    ),
    "meet_and_part": (
        "{a} and {b} meet and part again",
        "{a} meets {b}, then they separate",
        "{a} and {b} come together and go apart",
        "{a} and {b} bump into each other and back off",
        "{a} and {b} approach each other, touch and move apart",
        "{a} visits {b} and they say goodbye",
    ),
    "jumps_over": (
        "{a} jumps over {b}",
        "{a} leaps over {b}",
        "{a} hops across {b}",
        "{a} vaults over {b}",
        "{a} flies over {b} in an arc",
        "over {b} jumps {a}",
    ),
    "above": (
        "{a} is above {b}",
        "{a} hovers above {b}",
        "{a} hangs over {b}",
        "{a} stays high over {b}",
        "above {b} there is {a}",
    ),
    "below": (
        "{a} is below {b}",
        "{a} stays under {b}",
        "{a} rests beneath {b}",
        "{a} waits below {b}",
        "underneath {b} there is {a}",
    ),
    "beside": (
        "{a} is beside {b}",
        "{a} stands next to {b}",
        "{a} and {b} are side by side",
        "{a} waits beside {b}",
        "{a} keeps {b} company",
        "next to {b} there is {a}",
    ),
    "in_front_of": (
        "{a} is in front of {b}",
        "{a} stands in front of {b}",
        "{a} partly covers {b}",
        "{a} blocks the view of {b}",
        "in front of {b} there is {a}",
        "{b} stands behind {a}",
    ),
}

# The same actions in the style of a caption, with a participle instead of a verb.
SHOTS: dict[str, tuple[str, ...]] = {
    "enters": (
        "{a} entering from the {side} side",
        "{a} coming in from the {side}",
    ),
    "leaves": (
        "{a} leaving to the {side} side",
        "{a} going off to the {side}",
    ),
    "rises": (
        "{a} rising higher",
        "{a} going up",
    ),
    "falls": (
        "{a} falling lower",
        "{a} dropping down",
    ),
    "spins": (
        "{a} spinning",
        "{a} turning round and round",
    ),
    "grows": (
        "{a} growing in size",
        "{a} becoming bigger",
    ),
    "shrinks": (
        "{a} shrinking in size",
        "{a} becoming smaller",
    ),
    "bounces": (
        "{a} bouncing off the ground",
        "{a} hopping up and down",
    ),
    "blinks": (
        "{a} blinking",
        "{a} flashing on and off",
    ),
    "sways": (
        "{a} swaying to and fro",
        "{a} rocking from side to side",
    ),
    "chases": (
        "{a} chasing {b}",
        "{b} running away from {a}",
    ),
    "hides_behind": (
        "{a} hiding behind {b}",
        "{a} slipping behind {b}",
    ),
    "comes_out_from_behind": (
        "{a} coming out from behind {b}",
        "{a} emerging from behind {b}",
    ),
    "circles": (
        "{a} circling {b}",
        "{a} going around {b}",
    ),
    "meet_and_part": (
        "{b} and {a} meeting and parting",
        "{a} and {b} coming together and going apart",
    ),
    "jumps_over": (
        "{a} jumping over {b}",
        "{a} leaping over {b}",
    ),
    "above": (
        "{a} with {b} below it",
        "{a} hovering over {b}",
    ),
    "below": (
        "{a} with {b} above it",
        "{a} resting beneath {b}",
    ),
    "beside": (
        "{b} and {a} standing together",
        "{a} standing next to {b}",
        "{a} beside {b}",
    ),
    "in_front_of": (
        "{a} with {b} behind it",
        "{a} standing in front of {b}",
    ),
}

# Phrases for an actor who only watches.
BYSTANDER = (
    "near {b}",
    "not far from {b}",
    "close to {b}",
    "with {b} close by",
    "while {b} looks on",
    "as {b} watches",
)

CLAUSE_OPENINGS = ("the moment when", "the part where", "the scene in which", "at some point", "look how", "then")
SHOT_OPENINGS = ("a scene with", "a shot of", "a clip of", "footage of")

STILL_RELATIONS: dict[str, tuple[str, ...]] = {
    "above": ("{a} above {b}", "{a} over {b}", "{b} below {a}", "{b} under {a}", "{b} beneath {a}"),
    "left_of": (
        "{a} to the left of {b}",
        "{b} to the right of {a}",
        "{a} beside {b}",
        "{b} next to {a}",
        "{a} and {b} side by side",
        "{a} on the left and {b} on the right",
    ),
    "in_front_of": ("{a} in front of {b}", "{b} behind {a}", "{a} partly covering {b}"),
}
PLACES = {
    "left": ("on the left", "at the left side"),
    "right": ("on the right", "at the right side"),
    "top": ("at the top", "high up"),
    "bottom": ("at the bottom", "low down"),
    "middle": ("in the middle", "in the centre"),
}
SIZES = {"big": ("big", "large", "huge"), "small": ("small", "little", "tiny")}
TURNS = {
    "tilted": ("tilted", "at an angle"),
    "sideways": ("lying on its side", "turned sideways"),
    "upside_down": ("upside down", "standing on its head"),
}
STILL_OPENINGS = ("a picture of", "an image of", "we see", "here is", "there is", "look at")
EMPTY = ("an empty scene", "nothing", "nobody", "no one to be seen")


@dataclass(frozen=True)
class Actor:
    """A coloured thing in a scene."""

    thing: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An actor in a still.

    `place` is a key of PLACES. `size` and `turn` are keys of SIZES and TURNS, or empty if unremarkable.
    """

    actor: Actor
    place: str
    size: str = ""
    turn: str = ""


def describe(rng: np.random.Generator, action: str, side: str, actors: Sequence[Actor], backdrop: str) -> str:
    """Return a true sentence about an event, in one of thousands of wordings.

    The sentence always names the main actor and the action, and at least one colour. This usually suffices to tell the
    event from those of other videos.

    Args:
        rng: Chooses the wording.
        action: A key of CLAUSES.
        side: left or right.
        actors: One or two actors.
        backdrop: A key of BACKDROP_WORDS.
    """
    openings, phrases = (SHOT_OPENINGS, SHOTS) if rng.random() < 0.25 else (CLAUSE_OPENINGS, CLAUSES)
    phrase = pick(rng, phrases[action])
    # One of two actors may have no colour word. The other's colour and the action still identify the event.
    bare = int(rng.integers(2)) if len(actors) == 2 and rng.random() < 0.2 else None
    names = [noun_phrase(rng, actor, coloured=number != bare) for number, actor in enumerate(actors)]
    if len(actors) == 2 and "{b}" not in phrase and (bare == 0 or rng.random() < 0.85):
        clause = pick(rng, BYSTANDER)
        in_front = clause in BYSTANDER[:3] and rng.random() < 0.3
        phrase = f"{clause}, {phrase}" if in_front else f"{phrase} {clause}"
    if rng.random() < (0.35 if "{b}" in phrase else 0.6):
        place = pick(rng, BACKDROP_WORDS[backdrop])
        phrase = f"{place}, {phrase}" if rng.random() < 0.4 else f"{phrase} {place}"
    if phrase.startswith("{") and rng.random() < 0.3:
        phrase = f"{pick(rng, openings)} {phrase}"
    return phrase.format(a=names[0], b=names[-1], side=side)


def describe_still(
    rng: np.random.Generator, seen: Sequence[Seen], relation: tuple[str, int, int] | None, backdrop: str
) -> list[str]:
    """Return true sentences about a still: one about all actors, one about each, and one about their relation.

    Args:
        rng: Chooses the wording.
        seen: The visible actors.
        relation: A key of STILL_RELATIONS, and the positions of its {a} and {b} in `seen`.
        backdrop: A key of BACKDROP_WORDS.
    """

    def where() -> str:
        return pick(rng, BACKDROP_WORDS[backdrop])

    def open_with(text: str) -> str:
        return f"{pick(rng, STILL_OPENINGS)} {text}" if rng.random() < 0.3 else text

    if not seen:
        return [f"{pick(rng, EMPTY)} {where()}", open_with(f"an empty scene {where()}")]
    together = " and ".join(noun_phrase(rng, one.actor) for one in seen)
    captions = [open_with(f"{together} {where()}")]
    for one in seen:
        name = noun_phrase(rng, one.actor, adjective=pick(rng, SIZES[one.size]) if one.size else "")
        turned = f" {pick(rng, TURNS[one.turn])}" if one.turn else ""
        captions.append(open_with(f"{name}{turned} {pick(rng, PLACES[one.place])}"))
    if relation is not None:
        key, first, second = relation
        a, b = (noun_phrase(rng, seen[number].actor) for number in (first, second))
        related = pick(rng, STILL_RELATIONS[key]).format(a=a, b=b)
        captions.append(open_with(f"{related} {where()}" if rng.random() < 0.5 else related))
    return captions


def noun_phrase(rng: np.random.Generator, actor: Actor, coloured: bool = True, adjective: str = "") -> str:
    """Return a phrase such as "a red ball". Common words are more likely than their synonyms.

    Args:
        rng: Chooses the words and the article.
        actor: The thing and its colour.
        coloured: Whether to name the colour.
        adjective: Another adjective, such as "big". It comes first.
    """

    def word(words: Sequence[str]) -> str:
        return words[0] if rng.random() < 0.6 else pick(rng, words)

    words = [adjective] if adjective else []
    words += [word(COLOUR_WORDS[actor.colour])] if coloured else []
    words += [word(THING_WORDS[actor.thing])]
    article = "the" if rng.random() < 0.15 else "an" if words[0][0] in "aeiou" else "a"
    return " ".join([article, *words])


def vocabulary() -> tuple[str, ...]:
    """Return all words that occur in sentences, sorted."""
    tables = (THING_WORDS, COLOUR_WORDS, BACKDROP_WORDS, CLAUSES, SHOTS, STILL_RELATIONS, PLACES, SIZES, TURNS)
    texts = [text for table in tables for texts in table.values() for text in texts]
    texts += [*BYSTANDER, *CLAUSE_OPENINGS, *SHOT_OPENINGS, *STILL_OPENINGS, *EMPTY, "a an the and left right"]
    return tuple(sorted({word for text in texts for word in words_of(re.sub(r"\{\w+\}", " ", text))}))


def words_of(text: str) -> list[str]:
    """Return the words of a sentence.

    >>> words_of("a cat, then a dog")
    ['a', 'cat', 'then', 'a', 'dog']
    """
    return re.findall(r"[a-z]+", text)


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """Return a random option."""
    return options[int(rng.integers(len(options)))]
