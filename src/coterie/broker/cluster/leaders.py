"""Which broker leads a partition next: when its leader is gone, when a broker registers, when one is back.

Pure, and the same on every broker: whoever takes over chooses as any other would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain

from coterie.base.topic_names import INTERNAL_TOPICS
from coterie.broker.cluster.image import Image, PartitionRow

MASK = (1 << 64) - 1
SPREAD = 0x9E3779B97F4A7C15

# Past the constructor that NamedTuple writes in Python: whoever takes over makes rows by the ten thousand.
_row = partial(tuple.__new__, PartitionRow)


def led_by(image: Image, broker_id: int, *, internal: bool = False) -> list[PartitionRow]:
    """Return the partitions that a broker leads, by their ids; only those of internal topics if so asked."""
    rows = image.all_partitions()
    if internal:
        topics = (image.topic(name) for name in INTERNAL_TOPICS)
        ids = (topic.topic_id for topic in topics if topic is not None)
        rows = chain.from_iterable(map(image.partitions, ids))
    found = [row for row in rows if row.leader == broker_id]
    found.sort()
    return found


def after_departure(image: Image, gone: int, *, version: int) -> list[PartitionRow]:
    """Return the partitions that a broker leads as they stand once it leads nothing more, by their ids.

    Each goes to the broker that was made ready for it, else to the first live one of its replicas, else to
    the live broker with the fewest partitions of its kind, those of internal topics counted apart; to none if
    no other broker is live. What it does not lead stays.
    """
    moving = led_by(image, gone)
    chosen = next_leaders(image, moving, gone)
    return [moved_to(row, leader, version=version) for row, leader in zip(moving, chosen, strict=True)]


def next_leaders(image: Image, moving: Sequence[PartitionRow], gone: int) -> list[int | None]:
    """Return for each of some partitions that a broker leads who is to lead it when that one does not, as
    `after_departure` has it.
    """
    candidates = frozenset(image.live) - {gone}
    chosen: list[int | None] = [_ready(row, candidates) for row in moving]
    if candidates and None in chosen:
        _share_out(image, moving, chosen, candidates)
    return chosen


def _ready(row: PartitionRow, candidates: frozenset[int]) -> int | None:
    if row.next_leader in candidates:
        return row.next_leader
    for broker_id in row.replicas:
        if broker_id in candidates:
            return broker_id
    return None


def _share_out(
    image: Image, moving: Sequence[PartitionRow], chosen: list[int | None], candidates: frozenset[int]
) -> None:
    """Choose for the partitions that have no live replica, each in turn."""
    named = (image.topic(name) for name in INTERNAL_TOPICS)
    internal = {topic.topic_id.int for topic in named if topic is not None}
    led: tuple[list[int | None], list[int | None]] = [], []
    for topic in image.topics():
        led[topic.topic_id.int in internal].extend([row.leader for row in image.partitions(topic.topic_id)])
    of_internal = [row.topic_id.int in internal for row in moving]
    for kind, leader in zip(of_internal, chosen, strict=True):
        led[kind].append(leader)
    counts = [Counter(leaders) for leaders in led]
    fewest = [_Fewest({broker_id: count[broker_id] for broker_id in candidates}) for count in counts]
    for at, row in enumerate(moving):
        if chosen[at] is None:
            chosen[at] = fewest[of_internal[at]].take(row.partition_id)


class _Fewest:
    """How many partitions of one kind each candidate leads, and which of those with the fewest is next."""

    def __init__(self, counts: dict[int, int]) -> None:
        self._counts = counts
        self._fewest: list[tuple[int, int]] = []

    def take(self, partition_id: int) -> int:
        """Return the next, which has one more from now on; of several the partition's id decides."""
        if not self._fewest:
            low = min(self._counts.values())
            self._fewest = [(one, mixed(one)) for one, count in self._counts.items() if count == low]
        chosen = by_rendezvous(partition_id, self._fewest)
        self._fewest.remove(chosen)
        self._counts[chosen[0]] += 1
        return chosen[0]


def by_rendezvous(partition_id: int, brokers: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the one of these (broker id, that mixed) that a partition gets: as good as by chance, and the
    same everywhere, whoever else is there (a rendezvous hash). It need be none of its replicas.
    """
    if len(brokers) == 1:
        return brokers[0]
    mine = mixed(partition_id)
    best, chosen = -1, brokers[0]
    for one in brokers:
        score = ((mine ^ one[1]) * SPREAD & MASK) << 32 | one[0]
        if score > best:
            best, chosen = score, one
    return chosen


def mixed(number: int) -> int:
    """Return 64 bits that look nothing like the number (splitmix64)."""
    spread = (number * SPREAD + SPREAD) & MASK
    spread = ((spread ^ spread >> 30) * 0xBF58476D1CE4E5B9) & MASK
    spread = ((spread ^ spread >> 27) * 0x94D049BB133111EB) & MASK
    return spread ^ spread >> 31


def after_registration(image: Image, broker_id: int, *, version: int) -> list[PartitionRow]:
    """Return the partitions that a broker leads from its registration on, as they stand then: those that an
    earlier registration of its led, and those that no broker leads.
    """
    unfenced = frozenset(image.unfenced) - {broker_id}
    rows = [row for row in image.all_partitions() if row.leader not in unfenced]
    rows.sort()
    return [moved_to(row, broker_id, version=version) for row in rows]


def moved_to(row: PartitionRow, leader: int | None, *, version: int) -> PartitionRow:
    """Return a partition as it stands when another broker, or none, has become its leader."""
    partition_id, topic_id, number, replicas, _, leader_epoch, _, _ = row
    moved: PartitionRow = _row(
        (partition_id, topic_id, number, replicas, leader, leader_epoch + 1, None, version)
    )
    return moved


def to_be_led_by(row: PartitionRow, broker_id: int, *, version: int) -> PartitionRow:
    """Return a partition that a live broker is to lead: at once where nobody leads it, else its leader is to
    give it to that one.
    """
    if row.leader is None:
        return moved_to(row, broker_id, version=version)
    return row._replace(next_leader=broker_id, version=version)


def reassigned(image: Image, row: PartitionRow, replicas: tuple[int, ...], *, version: int) -> PartitionRow:
    """Return a partition with other replicas, of which the first that lives is to lead it unless one of them
    does already, or is about to.
    """
    placed = row._replace(replicas=replicas, version=version)
    if row.next_leader in replicas:
        return placed
    placed = placed._replace(next_leader=None)
    live = next((broker_id for broker_id in replicas if broker_id in image.live), None)
    if row.leader in replicas or live is None:
        return placed
    return to_be_led_by(placed, live, version=version)


def first_leader(image: Image, partition_id: int, replicas: Sequence[int]) -> int | None:
    """Return the broker that leads a new partition: the first live one of its replicas, else any live one."""
    found = next((broker_id for broker_id in replicas if broker_id in image.live), None)
    if found is None and image.live:
        found, _ = by_rendezvous(partition_id, [(broker_id, mixed(broker_id)) for broker_id in image.live])
    return found
