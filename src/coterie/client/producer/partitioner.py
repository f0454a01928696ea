"""Which partition a record goes to, in agreement with Kafka's producer (6.1). Pure: chance is passed in.

The producer asks for each record that names no partition, and tells what became of it:

    number = partitioner.partition(topic, key, partitions=6, available=[0, 1, 2, 4, 5])
    ...  # the record is appended to the last batch that waits for partition `number`
    partitioner.appended(topic, key, number, size, full=every_batch_of_the_partition_is_full)

`available` are the partitions that have a leader, in order. `size` is what the record added to its batch.
If the batches are filled later, by a record with a key or a partition given, `filled(topic, number)` tells.
The sender tells an adaptive partitioner how long the queues are: `measured`. Only "builtin" heeds these.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Generic, NamedTuple, SupportsIndex, TypeAlias, TypeVar

from coterie.assign.chance import Chance
from coterie.base.errors import CoterieError
from coterie.base.hashes import murmur2, to_positive

Choose: TypeAlias = Callable[[str, bytes | None, int, Sequence[int]], int]

B = TypeVar("B")
BATCH_SIZE = 16_384  # Kafka's batch.size


def partition_for_key(key: bytes, count: int) -> int:
    """Return the partition of a key among `count` (PT-2). An empty key is a key (PT-4)."""
    assert count > 0
    return to_positive(murmur2(key)) % count


def explicit_partition(topic: str, partition: int, *, partitions: int) -> int:
    """Return the partition that a record names, if there is such a one; no partitioner is asked (PT-1)."""
    if not isinstance(partition, SupportsIndex) or not 0 <= partition < partitions:
        raise CoterieError(no_such_partition(topic, partition, count=partitions))
    return partition


def no_such_partition(topic: str, partition: object, *, count: int) -> str:
    """Return the words for a partition that a topic of so many does not have."""
    there = "0" if count == 1 else f"0 to {count - 1}"
    return f"topic {topic} has no partition {partition!r}, only {there}"


class Partitioner:
    """Chooses partitions. All but `partition` is for those that keep books."""

    def partition(self, topic: str, key: bytes | None, *, partitions: int, available: Sequence[int]) -> int:
        """Return the partition of the next record."""
        raise NotImplementedError

    def appended(self, topic: str, key: bytes | None, partition: int, size: int, *, full: bool) -> None:
        """Hear that a record lies in its batch, and whether all batches of the partition are full now."""

    def filled(self, topic: str, partition: int) -> None:
        """Hear that all batches of the partition are full now."""

    def measured(
        self,
        topic: str,
        queues: Mapping[int, int],
        *,
        partitions: int,
        available: Collection[int],
        slow: Collection[int] = (),
    ) -> None:
        """Hear how many batches wait for each partition that ever had one; `slow`: their brokers lag."""


class Builtin(Partitioner):
    """Kafka's own: keys by their hash; what has no key sticks to a partition for a batch's worth of bytes.

    Which is next is drawn evenly, or in favour of short queues where they are known (KIP-480, KIP-794).
    """

    def __init__(
        self,
        *,
        random: Chance,
        batch_size: int = BATCH_SIZE,
        ignore_keys: bool = False,
        adaptive: bool = True,
    ) -> None:
        assert batch_size > 0
        self._random, self._batch_size = random, batch_size
        self._ignore_keys, self._adaptive = ignore_keys, adaptive
        self._current: dict[str, _Sticky] = {}
        self._loads: dict[str, _Loads] = {}

    def partition(self, topic: str, key: bytes | None, *, partitions: int, available: Sequence[int]) -> int:
        """Return the key's partition (PT-1), or the topic's current one, chosen when it is needed (PT-9)."""
        if key is not None and not self._ignore_keys:
            return partition_for_key(key, partitions)
        current = self._current.get(topic)
        if current is None or current.partition >= partitions:
            current = self._current[topic] = _Sticky(self._next(topic, partitions, available))
        return current.partition

    def appended(self, topic: str, key: bytes | None, partition: int, size: int, *, full: bool) -> None:
        """Count the bytes; leave the partition after a batch of them, two if the last is not full (PT-5)."""
        current = self._current.get(topic)
        if current is None or current.partition != partition or (key is not None and not self._ignore_keys):
            return
        current.size += size
        if current.size >= 2 * self._batch_size or (full and current.size >= self._batch_size):
            del self._current[topic]

    def filled(self, topic: str, partition: int) -> None:
        """Leave the partition if that only waited for full batches (PT-5)."""
        current = self._current.get(topic)
        if current is not None and current.partition == partition and current.size >= self._batch_size:
            del self._current[topic]

    def measured(
        self,
        topic: str,
        queues: Mapping[int, int],
        *,
        partitions: int,
        available: Collection[int],
        slow: Collection[int] = (),
    ) -> None:
        """Weigh the partitions: the shorter the queue, the likelier; slow ones that have work, not at all.

        Nothing is weighed until each has had a batch, nor where nothing tells them apart (PT-7, PT-8).
        """
        self._loads.pop(topic, None)
        if not self._adaptive or len(queues) < max(2, partitions):
            return
        counted = [one for one in queues if one in available and not (queues[one] and one in slow)]
        lengths = [queues[one] for one in counted]
        if lengths and not (len(set(lengths)) == 1 and len(counted) == len(queues)):
            longest = max(lengths)
            self._loads[topic] = _Loads(counted, list(accumulate(longest + 1 - one for one in lengths)))

    def _next(self, topic: str, partitions: int, available: Sequence[int]) -> int:
        """Return the next sticky partition (PT-6, PT-7)."""
        loads = self._loads.get(topic)
        if loads is not None:
            drawn = self._random.randrange(loads.sums[-1])
            return loads.partitions[bisect_right(loads.sums, drawn)]
        if available:
            return available[self._random.randrange(len(available))]
        return self._random.randrange(partitions)


class _Sticky:
    """Where records without a key go now, and how many bytes of them have."""

    __slots__ = ("partition", "size")

    def __init__(self, partition: int) -> None:
        self.partition, self.size = partition, 0


class _Loads(NamedTuple):
    """Partitions and the running sums of their weights."""

    partitions: list[int]
    sums: list[int]


class BrokerWaits(Generic[B]):
    """Which brokers lag: had data to be sent and took none for longer than a time (PT-8); 0 is never."""

    def __init__(self, *, availability_timeout_ms: int) -> None:
        self._timeout_ms = availability_timeout_ms
        self._ready_ms: dict[B, float] = {}
        self._drained_ms: dict[B, float] = {}

    def had_data(self, broker: B, now_ms: float, *, drained: bool) -> None:
        """Note that there was something to send to a broker, and whether it could be sent."""
        self._ready_ms[broker] = now_ms
        if drained or broker not in self._drained_ms:
            self._drained_ms[broker] = now_ms

    def slow(self, broker: B) -> bool:
        """Return whether partitions that this broker leads should be left out."""
        waited = self._ready_ms.get(broker, 0) - self._drained_ms.get(broker, 0)
        return 0 < self._timeout_ms < waited


class Classic(Partitioner):
    """As clients did before KIP-480: keys by their hash, the rest in turn from a random start."""

    def __init__(self, *, random: Chance) -> None:
        self._random = random
        self._counts: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, *, partitions: int, available: Sequence[int]) -> int:
        """Return the key's partition, or the next that is available, of all if none is."""
        if key is not None:
            return partition_for_key(key, partitions)
        count = self._counts.get(topic)
        if count is None:
            count = self._random.randrange(1 << 31)
        self._counts[topic] = count + 1
        return _in_turn(count, partitions, available)


class RoundRobin(Partitioner):
    """In turn from the first, whatever the key (PT-10)."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, *, partitions: int, available: Sequence[int]) -> int:
        """Return the next partition that is available, of all if none is."""
        count = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        return _in_turn(count, partitions, available)


def _in_turn(count: int, partitions: int, available: Sequence[int]) -> int:
    place = to_positive(count)
    return available[place % len(available)] if available else place % partitions


class Custom(Partitioner):
    """A function of the user's: `choose(topic, key, partitions, available)`."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def partition(self, topic: str, key: bytes | None, *, partitions: int, available: Sequence[int]) -> int:
        """Return the partition that the function chooses, if there is such a one (PT-1)."""
        chosen = self._choose(topic, key, partitions, available)
        if not isinstance(chosen, SupportsIndex) or not 0 <= chosen < partitions:
            said = f"the partitioner chose partition {chosen!r} of topic {topic}"
            raise CoterieError(f"{said}, which has only 0 to {partitions - 1}")
        return chosen


PARTITIONERS = ("builtin", "classic", "round_robin")


def partitioner_of(
    wanted: str | Choose,
    *,
    random: Chance,
    batch_size: int = BATCH_SIZE,
    ignore_keys: bool = False,
    adaptive: bool = True,
) -> Partitioner:
    """Return the partitioner of a name, or of a function. The last three are the settings of "builtin"."""
    match wanted:
        case "builtin":
            return Builtin(random=random, batch_size=batch_size, ignore_keys=ignore_keys, adaptive=adaptive)
        case "classic":
            return Classic(random=random)
        case "round_robin":
            return RoundRobin()
        case str():
            raise CoterieError(
                f"there is no partitioner {wanted!r}; take one of {', '.join(PARTITIONERS)}, or a function"
            )
    return Custom(wanted)
