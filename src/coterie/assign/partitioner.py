"""Which partition a record goes to, in agreement with Kafka's producer (6.1)."""

from collections.abc import Callable, Sequence
from typing import Protocol

from coterie.base.hashes import murmur2, to_positive

__all__ = ["Chance", "Partitioner", "partition_for_key", "partitioner_of"]

STICKY_BYTES = 16_384


class Chance(Protocol):
    """What is asked of a source of random numbers."""

    def randrange(self, stop: int, /) -> int:
        """Return a number below `stop`."""
        ...


class Partitioner(Protocol):
    """Chooses partitions, and is told what went where."""

    def partition(self, topic: str, key: bytes | None, *, partitions: int, available: Sequence[int]) -> int:
        """Return the partition of a record; `available` are those with a leader."""
        ...

    def sent(self, topic: str, partition: int, size: int) -> None:
        """Take note that so many bytes have gone to a partition."""
        ...


def partition_for_key(key: bytes, count: int) -> int:
    """Return the partition of a key among `count` (PT-2). An empty key is a key (PT-4)."""
    assert count > 0
    return to_positive(murmur2(key)) % count


class Builtin:
    """Keys by their hash; without one, the same partition until a batch is full (PT-1, PT-5, PT-6)."""

    def __init__(self, random: Chance) -> None:
        self._random = random
        self._current: dict[str, int] = {}
        self._room: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, *, partitions: int, available: Sequence[int]) -> int:
        """Return the key's partition, or the one that is in turn."""
        if key is not None:
            return partition_for_key(key, partitions)
        current = self._current.get(topic)
        if current is None:
            choice = available or range(partitions)
            current = self._current[topic] = choice[self._random.randrange(len(choice))]
            self._room[topic] = STICKY_BYTES
        return current

    def sent(self, topic: str, partition: int, size: int) -> None:
        """Count what went to the topic's partition in turn; once it is a batch, another one's turn comes."""
        if self._current.get(topic) != partition:
            return
        self._room[topic] -= size
        if self._room[topic] <= 0:
            del self._current[topic]


class Called:
    """A function of the user's."""

    def __init__(self, choose: Callable[..., int]) -> None:
        self._choose = choose

    def partition(self, topic: str, key: bytes | None, *, partitions: int, available: Sequence[int]) -> int:
        """Return what the function says."""
        return self._choose(topic, key, partitions=partitions, available=available)

    def sent(self, topic: str, partition: int, size: int) -> None:
        """Do nothing: the function has its own ways."""


def partitioner_of(chosen: str | Callable[..., int], *, random: Chance) -> Partitioner:
    """Return the partitioner of that name, or one that asks the function."""
    if callable(chosen):
        return Called(chosen)
    return Builtin(random)
