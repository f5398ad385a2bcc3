"""Which packets of a film a decoder has to see so that the frames wanted of it come out as if it had seen all.

Two kinds can be left out of H.264, both by its definition: pictures that no other refers to, which a decoder knows by
their nal_ref_idc and skips when it is told to, and what follows the last wanted picture up to the next IDR picture,
which refers to nothing before it and ends all earlier references. Other codecs are not so clear: in HEVC a picture that
nothing of its layer refers to may be needed by a higher one, in VP9 it may change how later ones are coded.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from heapq import heappop, heappush
from itertools import chain
from typing import Protocol, TypeVar, runtime_checkable

# A picture, or one of its two fields, is coded before at most 32 that are shown earlier: H.264 keeps 16 pictures.
LOOK_AHEAD = 32
MOST_WAITING = 1024  # packets; a film in which they are not enough is decoded as a whole

# Kinds of the units in a packet: a slice of a picture, of an IDR picture, a remark, a delimiter, filling.
SLICE, IDR_SLICE, REMARK, DELIMITER, FILLING = 1, 5, 6, 9, 12
PICTURE = frozenset({SLICE, IDR_SLICE, REMARK, DELIMITER, FILLING})  # what can go when its picture goes


@runtime_checkable
class Packet(Protocol):
    """A coded picture, and when it is shown, in the units of its stream; or never, where a film was trimmed."""

    @property
    def pts(self) -> int | None: ...

    @property
    def is_discard(self) -> bool: ...


P = TypeVar("P", bound=Packet)


def judged(
    packets: Iterable[P], is_wanted: Callable[[int, int], bool], kinds_of: Callable[[P], Set[int]]
) -> Iterator[tuple[P, bool]]:
    """The packets, in the order in which they are coded, each with whether its frame has to come out.

    `is_wanted` says this of a frame by the pts at which it is shown and that of the next. The neighbours of a wanted
    frame come out too, for two fields of one frame may be packets of their own; so do the first and the last frame that
    are shown. Where packets have no times, or times that are none, all that follow do.
    """
    packets = iter(packets)
    schedule = _Schedule(is_wanted)
    waiting: deque[P] = deque()
    times: list[tuple[int, bool]] = []  # a heap of theirs, from which they come in the order in which they are shown
    for packet in packets:
        waiting.append(packet)
        sound = (packet.pts is not None or packet.is_discard) and len(waiting) <= MOST_WAITING
        if packet.pts is not None and not packet.is_discard:
            heappush(times, (packet.pts, IDR_SLICE in kinds_of(packet)))
        if sound and len(times) > LOOK_AHEAD:
            sound = schedule.show(*heappop(times))
        if not sound:
            yield from ((each, True) for each in chain(waiting, packets))
            return
        while waiting and schedule.knows(waiting[0]):
            yield waiting[0], schedule.needs(waiting.popleft())
    sound = all(schedule.show(*heappop(times)) for _ in range(len(times)))
    schedule.end()
    yield from ((each, not sound or schedule.needs(each)) for each in waiting)


def thrifty(packets: Iterable[tuple[P, bool]], kinds_of: Callable[[P], Set[int]]) -> Iterator[tuple[P | None, bool]]:
    """Of judged packets, those that a decoder has to see, each with whether it has to decode all of it.

    Of the others it may skip what nothing refers to. None stands where packets are left out: what the decoder still has
    must come out there, and what follows begins anew.
    """
    held: list[P] = []  # left out, unless a later one before the next IDR picture is needed
    begun = False
    for packet, needed in packets:
        kinds = kinds_of(packet)
        if IDR_SLICE in kinds and held:
            held.clear()
            if begun:
                yield None, False
            begun = False
        if needed or not kinds <= PICTURE or len(held) == MOST_WAITING:
            yield from ((each, False) for each in held)
            held.clear()
            yield packet, needed
            begun = True
        else:
            held.append(packet)


def unit_kinds(data: memoryview, length_size: int) -> Set[int]:
    """The kinds of the units in a packet of H.264, each of which follows its length, a number of so many bytes."""
    kinds, start = set(), 0
    while start + length_size < len(data):
        kinds.add(data[start + length_size] & 31)
        start += length_size + int.from_bytes(data[start : start + length_size], "big")
    return kinds if start == len(data) else {0}  # of a damaged packet nothing is known


class _Schedule:
    """Is told when frames are shown, in that order, and knows two frames later which have to come out."""

    def __init__(self, is_wanted: Callable[[int, int], bool]) -> None:
        self._is_wanted = is_wanted
        self._before: int | None = None  # two frames ago
        self._last: int | None = None
        self._anew = False  # whether the last is an IDR picture, which is no second field
        self._needed: set[int | None] = set()
        self._known = float("-inf")

    def show(self, time: int, anew: bool) -> bool:
        """Takes note of the next frame; False if it is not after the last."""
        if self._last is not None:
            if time <= self._last:
                return False
            if self._before is None or self._is_wanted(self._last, time):
                self._needed.add(self._last)
                self._needed.add(None if self._anew else self._before)
                self._needed.add(None if anew else time)
        if self._before is not None:
            self._known = self._before
        self._before, self._last, self._anew = self._last, time, anew
        return True

    def end(self) -> None:
        self._needed.add(self._last)
        self._needed.add(None if self._anew else self._before)
        self._known = float("inf")

    def knows(self, packet: Packet) -> bool:
        return packet.is_discard or (packet.pts is not None and packet.pts <= self._known)

    def needs(self, packet: Packet) -> bool:
        if packet.is_discard:
            return False
        needed = packet.pts in self._needed
        self._needed.discard(packet.pts)
        return needed
