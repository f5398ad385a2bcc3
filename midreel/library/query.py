"""The query language: plain sentences, and operators that combine them.

An operator is one of the words AND, OR, NOT and THEN in capitals. A query without one is a plain sentence, with all its
characters. Text in double quotes contains no operators.

    A OR B      the better one of A and B: synonyms, or alternatives
    A NOT B     A in a moment that does not show B
    A THEN B    A in one moment of a video and B in a later one
    A AND B     A and B in the same video, at any time
    A said:"B"  A in a video in which B is said, by its subtitles; A may be empty

OR binds first, then NOT, then THEN, then AND: `a dog OR a puppy NOT at night THEN a cat AND snow` has two parts that a
video must have, and the first is a sequence. So there are no parentheses.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from midreel.errors import BadQuery

OPERATORS = ("OR", "NOT", "THEN", "AND")  # the first binds first
MOST_PARTS = 8  # each costs a search
_SAID = re.compile(r'(?<!\S)said:(?:"(?P<phrase>[^"]*)"|(?P<word>\S*))')
_SHOWN = 60  # characters of a query in an error
_OPERATOR = re.compile(rf'(?<![^\s"])(?:{"|".join(OPERATORS)})(?![^\s"])')


@dataclass(frozen=True)
class Part:
    """A sentence, an image, or both: a moment like the image that the sentence describes.

    Attributes:
        text: The sentence, or "" if there is an image.
        like: An image, or a video.
        at: The time in the video in seconds; None for an image.

    Raises:
        BadQuery: There is neither a sentence nor an image.
    """

    text: str = ""
    like: Path | None = None
    at: float | None = None

    def __post_init__(self) -> None:
        if not self.text.strip() and self.like is None:
            raise BadQuery(f"the query is {self.text!r}, expected some words. Describe what can be seen.")

    def __str__(self) -> str:
        text = f'"{self.text}"' if _OPERATOR.search(self.text) else self.text
        return " + ".join(filter(None, (self.like.name if self.like else "", text)))


@dataclass(frozen=True)
class Or:
    """The best of several parts: synonyms, or alternatives."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        _check(self, self.parts, Part)

    def __str__(self) -> str:
        return " OR ".join(map(str, self.parts))


@dataclass(frozen=True)
class Not:
    """A part in a moment that does not show another one."""

    part: Part | Or
    without: Part | Or

    def __post_init__(self) -> None:
        _check(self, (self.part, self.without), Part, Or)

    def __str__(self) -> str:
        return f"{self.part} NOT {self.without}"


@dataclass(frozen=True)
class Then:
    """Parts in several moments of a video, in order of time."""

    parts: tuple[Part | Or | Not, ...]

    def __post_init__(self) -> None:
        _check(self, self.parts, Part, Or, Not)

    def __str__(self) -> str:
        return " THEN ".join(map(str, self.parts))


@dataclass(frozen=True)
class And:
    """Parts that all occur in a video, at any time."""

    parts: tuple[Part | Or | Not | Then, ...]

    def __post_init__(self) -> None:
        _check(self, self.parts, Part, Or, Not, Then)

    def __str__(self) -> str:
        return " AND ".join(map(str, self.parts))


Seen: TypeAlias = Part | Or | Not | Then | And


@dataclass(frozen=True)
class Said:
    """Words that are said in the video, and optionally what is seen in it.

    Attributes:
        words: Phrases that are all said, by the subtitles of the video.
        seen: What is seen, or None.
    """

    words: tuple[str, ...]
    seen: Seen | None = None

    def __post_init__(self) -> None:
        if not self.words or not all(re.search(r"\w", phrase) for phrase in self.words):
            raise BadQuery(f'the words after said: are {self.words}, expected some. Write said:"words".')
        if isinstance(self.seen, Said):
            raise BadQuery('said:"…" contains another one, expected what is seen.')

    def __str__(self) -> str:
        return " ".join([*([str(self.seen)] if self.seen else []), *(f'said:"{phrase}"' for phrase in self.words)])


Query: TypeAlias = Seen | Said


def _check(query: Seen, parts: object, *kinds: type) -> None:
    """Raise BadQuery unless the parts are a tuple of these kinds, at least one and not too many."""
    name, names = type(query).__name__, " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(parts, tuple) or not parts or not all(isinstance(part, kinds) for part in parts):
        raise BadQuery(f"the parts of {name} are {parts!r}, expected a tuple of {names}, with at least one.")
    number = sum(1 for _ in leaves(query))
    if number > MOST_PARTS:
        raise BadQuery(f"the query has {number} parts, expected at most {MOST_PARTS}. Search for fewer at a time.")


def leaves(query: Query, *, wanted: bool = False) -> Iterator[Part]:
    """Yield the parts of a query in order, those after NOT included unless only the wanted ones are."""
    match query:
        case Part():
            yield query
        case Said():
            yield from leaves(query.seen, wanted=wanted) if query.seen else ()
        case Not():
            yield from leaves(query.part)
            if not wanted:
                yield from leaves(query.without)
        case _:
            for part in query.parts:
                yield from leaves(part, wanted=wanted)


def with_image(query: Query, like: Path, at: float | None = None) -> Query:
    """Return the query with an image added to each part but those after NOT.

    Args:
        query: A query.
        like: An image, or a video.
        at: The time in the video in seconds; None for an image.

    >>> str(with_image(parse("jumps THEN sleeps NOT at night"), Path("dog.jpg")))
    'dog.jpg + jumps THEN dog.jpg + sleeps NOT at night'
    """

    def added(part: Any) -> Any:  # of the same class as the part
        match part:
            case Part():
                return replace(part, like=like, at=at)
            case Not():
                return replace(part, part=added(part.part))
            case Said():
                return replace(part, seen=added(part.seen) if part.seen else Part("", like, at))
            case _:
                return replace(part, parts=tuple(map(added, part.parts)))

    found: Query = added(query)
    return found


# ---------------------------------------------------------------- parser


def parse(text: str) -> Query:
    """Return the query that a text writes.

    >>> parse("a dog jumps and then a cat hides")
    Part(text='a dog jumps and then a cat hides', like=None, at=None)
    >>> parse("a dog OR a puppy").parts[1].text
    'a puppy'
    >>> parse('a dog said:"good boy"')
    Said(words=('good boy',), seen=Part(text='a dog', like=None, at=None))

    Raises:
        BadQuery: An operator lacks the text before or after it, a quote is not closed, or there are too many parts.
    """
    if _SAID.search(text):
        return _said(text)
    if not _OPERATOR.search(text):
        return Part(text)
    return _combined(text, _tokens(text), "AND")


def _said(text: str) -> Said:
    """Return the query of a text with said:"…". An AND beside it is what it means anyway."""
    words = tuple((match["phrase"] or match["word"] or "").strip() for match in _SAID.finditer(text))
    if any('"' in phrase for phrase in words):
        raise BadQuery(f"{_shown(text)} has a quote that is not closed, expected a second one. Add or remove it.")
    rest = re.sub(r"\s+AND\s*$|^\s*AND\s+", "", re.sub(r"(\bAND\s+)+(?=AND\b)", "", _SAID.sub(" ", text)).strip())
    rest = "" if rest == "AND" else rest
    return Said(words, parse(rest) if rest.strip() else None)  # type: ignore[arg-type]  # it has no said: left


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Split a text into words and quoted texts, each with whether it is an operator."""
    tokens, start = [], 0
    while match := re.compile(r"\s*").match(text, start):
        start = match.end()
        if start == len(text):
            break
        if text[start] == '"':
            end = text.find('"', start + 1)
            if end < 0:
                raise BadQuery(
                    f"{_shown(text)} has a quote that is not closed, expected a second one. Add or remove it."
                )
            tokens.append((text[start + 1 : end], False))
            start = end + 1
        else:
            end = min((place.start() for place in re.compile(r"\s").finditer(text, start)), default=len(text))
            tokens.append((text[start:end], text[start:end] in OPERATORS))
            start = end
    return tokens


def _combined(text: str, tokens: list[tuple[str, bool]], operator: str) -> Seen:
    """Return the query of some tokens that have no operator that binds later than this one."""
    groups: list[list[tuple[str, bool]]] = [[]]
    for token in tokens:
        if token == (operator, True):
            groups.append([])
        else:
            groups[-1].append(token)
    if operator == "OR":
        parts = [Part(_sentence(text, group)) for group in groups]
        return parts[0] if len(parts) == 1 else Or(tuple(parts))
    inner = OPERATORS[OPERATORS.index(operator) - 1]
    found = [_combined(text, group, inner) for group in groups]
    if len(found) == 1:
        return found[0]
    if operator == "NOT":
        unwanted = tuple(part for each in found[1:] for part in leaves(each))
        return Not(found[0], unwanted[0] if len(unwanted) == 1 else Or(unwanted))  # type: ignore[arg-type]
    return (Then if operator == "THEN" else And)(tuple(found))  # type: ignore[arg-type]


def _sentence(text: str, tokens: list[tuple[str, bool]]) -> str:
    sentence = " ".join(word for word, _ in tokens)
    if not sentence.strip():
        raise BadQuery(
            f"{_shown(text)} lacks words before or after an operator, expected some on both sides of "
            f"{', '.join(OPERATORS)}. To search for such a word itself, put it in double quotes."
        )
    return sentence


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
