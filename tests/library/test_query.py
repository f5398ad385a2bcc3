from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midreel.errors import BadQuery
from midreel.library.query import MOST_PARTS, OPERATORS, And, Not, Or, Part, Then, leaves, parse, with_image

A, B, C, D = map(Part, ("a", "b", "c", "d"))

sentences = st.text(st.sampled_from("abc xyz,."), min_size=1).map(lambda text: " ".join(text.split())).filter(bool)
pieces = st.sampled_from([*OPERATORS, *(f'"{name}"' for name in OPERATORS), "and", "not", '"', "a dog", " ", "\n", "ä"])


@pytest.mark.parametrize(
    "text",
    [
        "a dog and a cat",
        "a dog and then a cat without a hat, not a ball or a bell",
        'a man says "hello',
        'he said "no" and left',
        "  two  spaces ",
        "BAND ANDES AND, THENCE Not ORB (AND)",
    ],
)
def test_a_plain_sentence_stays_as_it_is(text: str) -> None:
    assert parse(text) == Part(text)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("a AND b", And((A, B))),
        ("a OR b OR c", Or((A, B, C))),
        ("a NOT b", Not(A, B)),
        ("a NOT b NOT c", Not(A, Or((B, C)))),
        ("a THEN b THEN c", Then((A, B, C))),
        ("a OR b NOT c OR d", Not(Or((A, B)), Or((C, D)))),
        ("a THEN b NOT c AND d", And((Then((A, Not(B, C))), D))),
        ("a  AND\tb", And((A, B))),
        ('"a AND b"', Part("a AND b")),
        ('"a AND b" AND c', And((Part("a AND b"), C))),
        ('"NOT" NOT b', Not(Part("NOT"), B)),
        ('a "THEN" b OR c', Or((Part("a THEN b"), C))),
        ('a 5" pipe AND b', And((Part('a 5" pipe'), B))),
    ],
)
def test_operators(text: str, query: object) -> None:
    assert parse(text) == query


@pytest.mark.parametrize(
    "text",
    ["", " ", "a NOT", "THEN b", "a AND AND b", "AND", "a AND NOT b", '"" OR b', 'a AND "b', "NOT a", 'a OR " "'],
)
def test_a_misplaced_operator_is_named(text: str) -> None:
    with pytest.raises(BadQuery) as raised:
        parse(text)
    assert repr(text) in str(raised.value)


def test_the_number_of_parts_is_bounded() -> None:
    assert len(list(leaves(parse(" OR ".join("a" * MOST_PARTS))))) == MOST_PARTS
    for operator in OPERATORS:
        with pytest.raises(BadQuery, match=str(MOST_PARTS + 1)):
            parse(f" {operator} ".join("a" * (MOST_PARTS + 1)))


def test_a_value_without_parts_is_refused() -> None:
    for kind in (Or, Then, And):
        with pytest.raises(BadQuery):
            kind(())


def test_the_parts_of_a_query() -> None:
    query = parse("a OR b NOT c THEN d")
    assert list(leaves(query)) == [A, B, C, D]
    assert list(leaves(query, wanted=True)) == [A, B, D]


def test_an_image_joins_every_part_but_the_unwanted_ones() -> None:
    query = with_image(parse("a OR b NOT c THEN d"), Path("x.mp4"), 3.0)
    assert {part.text: part.at for part in leaves(query)} == {"a": 3.0, "b": 3.0, "c": None, "d": 3.0}
    assert with_image(A, Path("x.jpg")) == Part("a", Path("x.jpg"))


@given(st.lists(pieces, max_size=14).map(" ".join) | st.lists(pieces, max_size=14).map("".join) | st.text())
@example("\x1cAND\x1c")
@example("a\u2003AND\u2003b")
def test_any_text_is_a_query_or_a_named_error(text: str) -> None:
    try:
        query = parse(text)
    except BadQuery:
        return
    assert 1 <= len(list(leaves(query))) <= MOST_PARTS
    assert all(part.text.strip() for part in leaves(query))


@given(st.lists(st.lists(sentences, min_size=1, max_size=2), min_size=1, max_size=4), st.sampled_from(["AND", "THEN"]))
def test_a_printed_query_can_be_parsed(groups: list[list[str]], operator: str) -> None:
    query = parse(f" {operator} ".join(" OR ".join(group) for group in groups))
    assert parse(str(query)) == query
