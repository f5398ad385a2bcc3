"""Skip the packets that a decoder does not need for a given set of frames.

H.264 allows two kinds of packets to be skipped without changing the other frames:

- A picture that no other picture refers to. The decoder recognises it by its nal_ref_idc, and skips it on request.
- All pictures from the last needed one up to the next IDR picture. An IDR picture refers to nothing before it, and
  nothing after it refers to anything before it.

Other codecs are less clear. In HEVC, a higher layer may need a picture that nothing in its own layer refers to. In
VP9, such a picture may change how later ones are coded.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from heapq import heappop, heappush
from itertools import chain
from typing import Protocol, TypeVar, runtime_checkable

# H.264 buffers 16 pictures of two fields each, so at most 32 packets are coded before one that is shown earlier.
LOOK_AHEAD = 32
MAX_WAITING = 1024  # packets; if they are not enough, everything is decoded

# Types of the NAL units in a packet.
SLICE, IDR_SLICE, SEI, DELIMITER, FILLER = 1, 5, 6, 9, 12
PICTURE = frozenset({SLICE, IDR_SLICE, SEI, DELIMITER, FILLER})  # units that can be skipped together with their picture


@runtime_checkable
class Packet(Protocol):
    """A coded picture."""

    @property
    def pts(self) -> int | None:
        """The time at which the picture is shown, in the time base of its stream."""

    @property
    def is_discard(self) -> bool:
        """Whether the picture is decoded but never shown, as in trimmed videos."""


P = TypeVar("P", bound=Packet)


def mark_needed(
    packets: Iterable[P], is_wanted: Callable[[int, int], bool], kinds_of: Callable[[P], Set[int]]
) -> Iterator[tuple[P, bool]]:
    """Yield the packets in their order, each with whether its frame is needed.

    A frame is needed if it or a neighbour is wanted: two packets may be the two fields of one frame. The first and the
    last frame are always needed. If a timestamp is missing or not increasing, all frames from there on are needed.

    Args:
        packets: Packets in decoding order.
        is_wanted: Tells from the pts of a frame and the pts of the next frame whether the caller wants it.
        kinds_of: Returns the unit types in a packet, such as `unit_kinds`.
    """
    packets = iter(packets)
    schedule = _Schedule(is_wanted)
    waiting: deque[P] = deque()  # in decoding order, until the schedule has decided on them
    times: list[tuple[int, bool]] = []  # a heap: sorts their timestamps into display order
    for packet in packets:
        waiting.append(packet)
        is_sound = (packet.pts is not None or packet.is_discard) and len(waiting) <= MAX_WAITING
        if packet.pts is not None and not packet.is_discard:
            heappush(times, (packet.pts, IDR_SLICE in kinds_of(packet)))
        if is_sound and len(times) > LOOK_AHEAD:
            is_sound = schedule.show(*heappop(times))
        if not is_sound:
            yield from ((each, True) for each in chain(waiting, packets))
            return
        while waiting and schedule.has_decided(waiting[0]):
            yield waiting[0], schedule.needs(waiting.popleft())
    is_sound = all(schedule.show(*heappop(times)) for _ in range(len(times)))
    schedule.end()
    yield from ((each, not is_sound or schedule.needs(each)) for each in waiting)


def skip_unneeded(
    packets: Iterable[tuple[P, bool]], kinds_of: Callable[[P], Set[int]]
) -> Iterator[tuple[P | None, bool]]:
    """Yield the packets that the decoder must read to decode the needed frames.

    Args:
        packets: The result of `mark_needed`.
        kinds_of: Returns the unit types in a packet, such as `unit_kinds`.

    Returns:
        Pairs of a packet, and whether its frame is needed. If not, the decoder may skip the frame if no other refers to
        it. A None in place of a packet marks skipped packets: the decoder must be flushed and start again.
    """
    # Packets that are skipped at the next IDR picture, unless a packet before it is needed.
    held: list[P] = []
    has_frames = False  # whether the decoder may still hold frames since the last flush
    for packet, is_needed in packets:
        kinds = kinds_of(packet)
        if IDR_SLICE in kinds and held:
            held.clear()
            if has_frames:
                yield None, False
            has_frames = False
        if is_needed or not kinds <= PICTURE or len(held) == MAX_WAITING:
            yield from ((each, False) for each in held)
            held.clear()
            yield packet, is_needed
            has_frames = True
        else:
            held.append(packet)


def unit_kinds(data: memoryview, length_size: int) -> Set[int]:
    """Return the types of the NAL units in an H.264 packet, or {0} if the packet is damaged.

    Args:
        data: The packet: units, each with its length before it.
        length_size: The number of bytes of such a length.
    """
    kinds, start = set(), 0
    while start + length_size < len(data):
        kinds.add(data[start + length_size] & 31)
        start += length_size + int.from_bytes(data[start : start + length_size], "big")
    return kinds if start == len(data) else {0}


class _Schedule:
    """Decide which frames are needed, from their timestamps in display order.

    A frame is decided when the second frame after it is known, because the neighbours of a wanted frame are needed too.
    """

    def __init__(self, is_wanted: Callable[[int, int], bool]) -> None:
        self._is_wanted = is_wanted
        self._before: int | None = None  # the timestamp before the last
        self._last: int | None = None
        self._is_last_idr = False  # an IDR picture is never the second field of a frame
        self._needed: set[int | None] = set()
        self._decided = float("-inf")  # frames up to this timestamp are decided

    def show(self, time: int, is_idr: bool) -> bool:
        """Add the next timestamp. Return False if it is not after the last."""
        if self._last is not None:
            if time <= self._last:
                return False
            if self._before is None or self._is_wanted(self._last, time):
                self._needed.add(self._last)
                self._needed.add(None if self._is_last_idr else self._before)
                self._needed.add(None if is_idr else time)
        if self._before is not None:
            self._decided = self._before
        self._before, self._last, self._is_last_idr = self._last, time, is_idr
        return True

    def end(self) -> None:
        """Mark the last frame and its neighbour as needed."""
        self._needed.add(self._last)
        self._needed.add(None if self._is_last_idr else self._before)
        self._decided = float("inf")

    def has_decided(self, packet: Packet) -> bool:
        """Return whether `needs` can be called for a packet."""
        return packet.is_discard or (packet.pts is not None and packet.pts <= self._decided)

    def needs(self, packet: Packet) -> bool:
        """Return whether the frame of a packet is needed. Call this once per packet."""
        if packet.is_discard:
            return False
        is_needed = packet.pts in self._needed
        self._needed.discard(packet.pts)
        return is_needed
