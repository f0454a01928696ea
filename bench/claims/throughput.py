"""What the claims about producing and consuming share: the cells of their table, the order of the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench import tools
from bench.brokers import Broker
from bench.figures import Figure, Goal

__all__ = ["PARTITIONS", "SIZES", "Cells", "Consume", "Produce", "produced_then_consumed", "warmed_up"]

PARTITIONS = 4
SIZES = (100, 1_000)
ACKS = ("1", "all")

Produce = Callable[[Broker, str, int, int, str], float]  # broker, topic, records, size, acks
Consume = Callable[[Broker, str, int], float]  # broker, topic, records


class Cells:
    """The figures of one client: producing by size and acks, consuming by size."""

    def __init__(self, client: str) -> None:
        self.claim = client.lower()
        goal = Goal(1.0, "ratio", at_most=False)
        named = {
            **{(size, acks): f"{client}: produce {size:,} B, acks={acks}" for size in SIZES for acks in ACKS},
            **{(size, ""): f"{client}: consume {size:,} B" for size in SIZES},
        }
        self._by_cell = {cell: Figure(self.claim, what, "records/s", goal) for cell, what in named.items()}

    @property
    def figures(self) -> list[Figure]:
        """All cells, producing first."""
        return list(self._by_cell.values())

    def produced(self, broker: str, size: int, acks: str, rate: float) -> None:
        """Take a measured rate of producing."""
        self._by_cell[size, acks].add(broker, rate)

    def consumed(self, broker: str, size: int, rate: float) -> None:
        """Take a measured rate of consuming."""
        self._by_cell[size, ""].add(broker, rate)


def produced_then_consumed(
    cells: Cells, name: str, broker: Broker, records: int, size: int, produce: Produce, consume: Consume
) -> None:
    """Measure the cells of one record size: a topic for each acks; what the first holds is then consumed."""
    for acks in ACKS:
        with topic_for(broker, f"records-{size}-{acks}") as topic:
            cells.produced(name, size, acks, produce(broker, topic, records, size, acks))
            if acks == ACKS[0]:
                os.sync()  # so that consuming does not share the disk with what was produced
                cells.consumed(name, size, consume(broker, topic, records))


def warmed_up(broker: Broker, records: int, produce: Produce, consume: Consume) -> None:
    """Let the broker do each kind of work once before it counts."""
    with topic_for(broker, "warm-up") as topic:
        produce(broker, topic, records, SIZES[0], ACKS[0])
        consume(broker, topic, records)


@contextmanager
def topic_for(broker: Broker, name: str) -> Iterator[str]:
    """Yield a topic that is there for one measurement, and is deleted so that its bytes disturb no other."""
    tools.create_topic(broker.address, name, partitions=PARTITIONS)
    yield name
    tools.delete_topic(broker.address, name)
