"""The numbers of segments after each merge, Eq. (9) of the MSC paper and Algorithm 2. No torch."""

import math

from midreel.errors import BadSetting


def levels(length: int, rate: float = 0.75, minimum: int = 5) -> list[int]:
    """Return the numbers of clips after 0, 1, 2, … merges, Eq. (9) and Algorithm 2.

    L_c^1 = L_c, L_c^{i+1} = max(2 ⌊(L_c^i - (L_c^i / 2)(N / 100) + 1) / 2⌋, C_min).

    Args:
        length: L_c, the number of clips before merging.
        rate: N / 100, the merge rate.
        minimum: C_min, the smallest number of clips.

    Raises:
        BadSetting: an argument is out of range.

    >>> levels(32)
    [32, 20, 12, 8, 6, 5]
    >>> levels(128, minimum=32)
    [128, 80, 50, 32]
    """
    expect_at_least("length", length, 1)
    expect_at_least("minimum", minimum, 1)
    expect_rate(rate)
    lengths = [length]
    while lengths[-1] > minimum:
        following = max(2 * math.floor((lengths[-1] - lengths[-1] / 2 * rate + 1) / 2), minimum)
        if following == lengths[-1]:
            break
        lengths.append(following)
    return lengths


def merge_schedule(length: int, target: int, rate: float = 0.75) -> list[int]:
    """Return the numbers of tokens after each step of Algorithm 1, from `length` to exactly `target`.

    These are the levels of Eq. (9), with two corrections. A step joins tokens in pairs, so it at most halves their
    number. Where Eq. (9) stops above the target (at small rates, or at two tokens), a step joins one pair.

    Args:
        length: the number of tokens before merging.
        target: the number of tokens after the last step.
        rate: N / 100, the merge rate.

    Raises:
        BadSetting: an argument is out of range.

    >>> merge_schedule(128, 32)
    [128, 80, 50, 32]
    """
    expect_at_least("length", length, 1)
    expect_at_least("target", target, 1)
    expect_rate(rate)
    lengths = [length]
    while lengths[-1] > target:
        before = lengths[-1]
        at_rate = [*levels(before, rate, target), before][1]
        lengths.append(min(max(at_rate, (before + 1) // 2), before - 1))
    return lengths


def expect_at_least(name: str, value: int, least: int, remedy: str = "Use a larger one.") -> None:
    """Raise BadSetting unless a value is a whole number and at least `least`.

    Args:
        name: the name of the value, for the message.
        value: the value.
        least: the smallest allowed value.
        remedy: what to do about a smaller one.
    """
    if isinstance(value, float):
        raise BadSetting(f"{name} is {value!r}, expected a whole number. Round it.")
    if value < least:
        raise BadSetting(f"{name} is {value}, expected at least {least}. {remedy}")


def expect_rate(rate: float) -> None:
    """Raise BadSetting unless a merge rate is a share above 0."""
    if not 0 < rate <= 1:
        raise BadSetting(f"rate is {rate}, expected a share above 0 and at most 1. Try 0.75.")
