from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from midreel.media.packets import IDR_SLICE, LOOK_AHEAD, MAX_WAITING, SLICE, mark_needed, skip_unneeded, unit_kinds


@dataclass(frozen=True)
class Picture:
    """A packet with known references: the pictures it refers to (by pts), and whether others may refer to it."""

    pts: int | None
    refers_to: tuple[int, ...] = ()
    is_referred_to: bool = True
    kinds: frozenset[int] = frozenset({SLICE})
    is_discard: bool = False


def idr(pts: int, *more: int) -> Picture:
    return Picture(pts, kinds=frozenset({IDR_SLICE, *more}))


@st.composite
def films(draw: st.DrawFn) -> list[Picture]:
    """Groups of pictures that start with an IDR picture, are reordered, and refer to any picture before."""
    film: list[Picture] = []
    time, first, last = 0, draw(st.integers(0, 40)), draw(st.integers(300, 600))  # the others are trimmed
    for _ in range(draw(st.integers(1, 4))):
        times = []
        for _ in range(draw(st.integers(1, 25))):
            times.append(time)
            time += draw(st.integers(1, 9))
        film.append(idr(times[0], *draw(st.sampled_from([(), (7, 8)]))))
        size = draw(st.integers(1, 16))  # of the mini groups in which the decoding order is free
        for start in range(1, len(times), size):
            for pts in draw(st.permutations(times[start : start + size])):
                known = [each.pts for each in film if each.is_referred_to and (each.pts or 0) >= times[0]]
                refers_to = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
                film.append(Picture(pts, refers_to, draw(st.booleans())))
    return [replace(each, is_discard=not first <= (each.pts or 0) <= last) for each in film]


def decoded(film: list[Picture], given: Iterator[tuple[Picture | None, bool]]) -> set[int]:
    """Return the pts of the correctly decoded frames: the decoder has read all pictures they refer to."""
    right: set[int] = set()
    kept: set[int] = set()  # pictures in the decoder's buffer
    for picture, whole in given:
        if picture is None:
            kept.clear()
            continue
        if IDR_SLICE in picture.kinds:
            kept.clear()
        assert picture.pts is not None
        if (whole or picture.is_referred_to) and kept.issuperset(picture.refers_to):
            right.add(picture.pts)
            kept |= {picture.pts} if picture.is_referred_to else set()
    return right


@given(films(), st.integers(1, 80))
def test_wanted_frames_are_decoded_correctly(film: list[Picture], every: int) -> None:
    times = sorted(picture.pts for picture in film if picture.pts is not None and not picture.is_discard)
    assume(times)
    wanted = {start for start, end in pairwise(times) if -(-start // every) * every < end} | {times[0], times[-1]}
    asked: list[tuple[int, int]] = []

    def is_wanted(start: int, end: int) -> bool:
        asked.append((start, end))
        return start in wanted

    kinds_of = lambda picture: picture.kinds  # noqa: E731
    passed = list(skip_unneeded(mark_needed(film, is_wanted, kinds_of), kinds_of))
    assert asked == list(pairwise(times))[1:]  # in display order; the first is always wanted
    assert wanted <= decoded(film, iter(passed))
    places = [film.index(picture) for picture, _ in passed if picture is not None]
    assert places == sorted(places)  # in decoding order


def kept(film: list[Picture], wanted: set[int]) -> list[tuple[int | None, bool]]:
    kinds_of = lambda picture: picture.kinds  # noqa: E731
    passed = skip_unneeded(mark_needed(film, lambda start, end: start in wanted, kinds_of), kinds_of)
    return [(picture and picture.pts, whole) for picture, whole in passed]


def test_pictures_after_the_last_wanted_one_of_a_group_are_skipped() -> None:
    film = [
        idr(0),
        *(Picture(k, (k - 1,)) for k in range(1, 10)),
        idr(10),
        *(Picture(k, (k - 1,)) for k in range(11, 20)),
    ]
    film += [idr(20), Picture(21, (20,))]
    assert kept(film, {12}) == [
        (0, True),
        (1, True),  # the neighbour of the first
        (None, False),
        (10, False),
        (11, True),
        (12, True),
        (13, True),
        (None, False),
        (20, True),
        (21, True),
    ]


def test_a_group_with_new_parameters_is_not_skipped() -> None:
    film = [idr(0), Picture(1, (0,)), idr(10, 7, 8), Picture(11, (10,)), idr(20), Picture(21, (20,))]
    assert (10, False) in kept(film, set())
    assert (11, False) not in kept(film, set())


def test_everything_after_an_invalid_time_is_decoded() -> None:
    group = [idr(0), *(Picture(k, (k - 1,)) for k in range(1, 200))]
    sound = len([1 for _, whole in kept(group, set()) if whole])
    assert sound == 4  # the first, the last, and their neighbours
    missing = [*group[:100], Picture(None), *group[101:]]
    twice = [*group[:100], group[99], *group[101:]]
    for film in (missing, twice):
        passed = kept(film, set())
        assert [pts for pts, _ in passed] == [picture.pts for picture in film]
        assert sum(whole for _, whole in passed) >= 100
        assert all(whole for _, whole in passed[100:])


def test_the_number_of_waiting_packets_is_limited() -> None:
    """A picture is coded long before it is shown, or one frame is wanted in an hour."""
    early = [idr(0), Picture(10**6, (0,)), *(Picture(k, (0,)) for k in range(1, 3 * MAX_WAITING))]
    rare = [idr(0), *(Picture(k, (k - 1,)) for k in range(1, 5 * MAX_WAITING))]
    for film in (early, rare):
        taken = 0

        def source(film: list[Picture] = film) -> Iterator[Picture]:
            nonlocal taken
            for picture in film:
                taken += 1
                yield picture

        kinds_of = lambda picture: picture.kinds  # noqa: E731
        given = 0
        for _ in skip_unneeded(mark_needed(source(), lambda start, end: False, kinds_of), kinds_of):
            given += 1
            assert taken - given <= MAX_WAITING + LOOK_AHEAD + 3
        assert given >= 2 * MAX_WAITING


def test_unit_kinds() -> None:
    packet = bytes([0, 0, 0, 2, 9, 240, 0, 0, 0, 1, 101, 0, 0, 0, 3, 65, 1, 2])
    assert unit_kinds(memoryview(packet), 4) == {9, 5, 1}
    assert unit_kinds(memoryview(bytes([2, 0x67, 0])), 1) == {7}
    for damaged in (packet[:-1], packet + b"\0", bytes(20), b"\xff" * 9):
        assert not unit_kinds(memoryview(damaged), 4) <= {1, 5, 6, 9, 12}
