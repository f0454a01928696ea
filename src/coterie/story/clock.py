"""Times in the order of the log: clocks are set back, and coordinators' clocks differ, but time goes on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise


def in_order(times_ms: Sequence[int]) -> Sequence[int]:
    """Return times none of which lies before the one before it.

    As few as can be are changed: one wild time is put between its neighbours, and moves none of the others.
    """
    if all(one <= after for one, after in pairwise(times_ms)):
        return times_ms
    kept = longest_rise(times_ms)
    found = list(times_ms)
    most = found[max(kept)]
    for place in range(max(kept), -1, -1):
        if place in kept:
            most = found[place]
        found[place] = min(found[place], most)
    return list(accumulate(found, max))


def longest_rise(times_ms: Sequence[int]) -> frozenset[int]:
    """Return the places of as many times as can be of which none lies before the one before it."""
    # Of the rises of each length, the earliest time that one ends with, where that is, and what is before it.
    least: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for place, at_ms in enumerate(times_ms):
        length = bisect_right(least, at_ms)
        before.append(ends[length - 1] if length else -1)
        least[length : length + 1] = [at_ms]
        ends[length : length + 1] = [place]
    found: set[int] = set()
    place = ends[-1]
    while place >= 0:
        found.add(place)
        place = before[place]
    return frozenset(found)
