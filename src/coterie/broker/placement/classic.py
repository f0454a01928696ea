"""Placement as Kafka did it before KRaft: leaders in turn from a start, followers by a growing shift.

If the racks are known, brokers take turns by rack, and followers go first to racks without a replica.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain, count, islice, zip_longest

from coterie.assign.chance import Chance
from coterie.base.codes import Code
from coterie.broker.placement.model import Broker, Layout, Problem, Replicas, in_id_order


class RackMode(StrEnum):
    """Whether racks count: always, if every broker says where it is, or never."""

    ENFORCED = "enforced"
    SAFE = "safe"
    DISABLED = "disabled"


def problem_of(
    brokers: Sequence[Broker], *, partitions: int, factor: int, racks: RackMode = RackMode.ENFORCED
) -> Problem | None:
    """Return why the partitions cannot be placed (RP-1, RP-2)."""
    if partitions <= 0:
        return Problem(Code.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if factor <= 0:
        return Problem(Code.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if factor > len(brokers):
        text = f"Replication factor: {factor} larger than available brokers: {len(brokers)}."
        return Problem(Code.INVALID_REPLICATION_FACTOR, text)
    known = sum(broker.rack is not None for broker in brokers)
    if racks is RackMode.ENFORCED and 0 < known < len(brokers):
        text = "Not all brokers have rack information; give the others a rack, or disable rack awareness."
        return Problem(Code.INVALID_REQUEST, text)
    return None


def place(
    brokers: Sequence[Broker],
    *,
    partitions: int,
    factor: int,
    chance: Chance,
    start: int | None = None,
    first_partition: int = 0,
    racks: RackMode = RackMode.ENFORCED,
) -> Layout:
    """Return the replicas of partitions `first_partition` and following; `problem_of` has been asked.

    `start` fixes start and shift, which else are drawn (RP-3); leaders take turns from there (RP-5). Unless
    all racks are known, none counts.
    """
    assert problem_of(brokers, partitions=partitions, factor=factor, racks=racks) is None
    drawn = (chance.randrange(len(brokers)), chance.randrange(len(brokers))) if start is None else None
    begin, shift = drawn or (start or 0, start or 0)
    aware = racks is not RackMode.DISABLED and all(broker.rack is not None for broker in brokers)
    ring = alternated(brokers) if aware else in_id_order(brokers)
    follow = _followers_by_rack if aware else _followers
    layout = []
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(ring) == 0:  # the ring is through: other followers now (RP-4)
            shift += 1
        leader = (partition + begin) % len(ring)
        layout.append((ring[leader].broker_id, *follow(ring, leader, shift, factor - 1)))
    return layout


def grow(
    brokers: Sequence[Broker],
    *,
    existing: Sequence[Replicas],
    total: int,
    chance: Chance,
    racks: RackMode = RackMode.ENFORCED,
) -> Layout:
    """Return the replicas of the partitions that a topic gets beside the existing ones (RP-9).

    They go on where partition 0 began, with as many replicas as it has.
    """
    leader = existing[0][0]
    ids = [broker.broker_id for broker in in_id_order(brokers)]
    start = next((at for at, broker_id in enumerate(ids) if broker_id >= leader), 0)
    return place(
        brokers,
        partitions=total - len(existing),
        factor=len(existing[0]),
        chance=chance,
        start=start,
        first_partition=len(existing),
        racks=racks,
    )


def alternated(brokers: Sequence[Broker]) -> list[Broker]:
    """Return the brokers with the racks taking turns, in the order of their names (RP-7)."""
    racks: dict[str, list[Broker]] = {}
    for broker in in_id_order(brokers):
        racks.setdefault(broker.rack or "", []).append(broker)
    rounds = zip_longest(*(racks[name] for name in sorted(racks)))
    return [broker for broker in chain.from_iterable(rounds) if broker is not None]


def _followers(ring: Sequence[Broker], leader: int, shift: int, number: int) -> list[int]:
    """Return so many followers, wherever they stand (RP-6)."""
    return [ring[at].broker_id for at in islice(_places(ring, leader, shift), number)]


def _followers_by_rack(ring: Sequence[Broker], leader: int, shift: int, number: int) -> list[int]:
    """Return so many followers: first in racks without a replica, each broker once (RP-7, RP-8)."""
    racks = {broker.rack for broker in ring}
    used, found = {ring[leader].rack}, [ring[leader].broker_id]
    places = _places(ring, leader, shift * len(racks))
    while len(found) <= number:
        broker = ring[next(places)]
        if broker.broker_id not in found and (broker.rack not in used or used == racks):
            found.append(broker.broker_id)
            used.add(broker.rack)
    return found[1:]


def _places(ring: Sequence[Broker], leader: int, shift: int) -> Iterator[int]:
    """Yield the places of the others, from the shifted one on, round and round."""
    others = len(ring) - 1
    for step in count(shift):
        yield (leader + 1 + step % others) % len(ring)
