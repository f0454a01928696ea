"""Brokers drawn for the tests of placement, and Java's generator of random numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import strategies as st

from coterie.broker.placement.model import Broker, Layout

__all__ = ["JavaRandom", "Zero", "clusters", "held", "led"]

RACKS = ("a", "b", "c", "d")


class JavaRandom:
    """What `java.util.Random` of the same seed returns (its documentation gives the formula)."""

    def __init__(self, seed: int) -> None:
        self.state = (seed ^ 0x5DEECE66D) & ((1 << 48) - 1)

    def bits(self, count: int) -> int:
        self.state = (self.state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        return self.state >> (48 - count)

    def randrange(self, stop: int, /) -> int:
        drawn = self.bits(31)
        if stop & (stop - 1) == 0:
            return stop * drawn >> 31
        while drawn - drawn % stop + stop - 1 >= 1 << 31:
            drawn = self.bits(31)
        return drawn % stop


class Zero:
    """Chance that always falls the same way."""

    def randrange(self, stop: int, /) -> int:
        return 0


@st.composite
def clusters(draw: st.DrawFn, *, racks: bool = True, fenced: bool = False) -> list[Broker]:
    """One to nine brokers with ids that are not in a row; one at least is not fenced."""
    ids = draw(st.lists(st.integers(0, 40), min_size=1, max_size=9, unique=True))
    return [
        Broker(
            broker_id,
            draw(st.sampled_from(RACKS)) if racks else None,
            fenced=fenced and at > 0 and draw(st.booleans()),
        )
        for at, broker_id in enumerate(ids)
    ]


def led(layout: Layout, brokers: Sequence[Broker]) -> list[int]:
    """Return how many partitions each broker leads."""
    counts = Counter(replicas[0] for replicas in layout)
    return [counts[broker.broker_id] for broker in brokers]


def held(layout: Layout, brokers: Sequence[Broker]) -> list[int]:
    """Return how many replicas each broker has."""
    counts = Counter(broker_id for replicas in layout for broker_id in replicas)
    return [counts[broker.broker_id] for broker in brokers]
