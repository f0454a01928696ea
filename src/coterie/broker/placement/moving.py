"""Which replicas go where when a broker is to have none any more, or all are to have their share. Pure.

A replica is replaced in its place, so the order in which replicas are preferred stays; the new one is where
fewest are, on a rack that the partition has no replica on if there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.placement.model import Broker, Problem, Replicas


class PlacedPartition(NamedTuple):
    """A partition, where its replicas are, and which broker leads it; None: none does."""

    name: TopicPartition
    replicas: Replicas
    leader: int | None


class ReplicaMove(NamedTuple):
    """The replicas of a partition before and after."""

    name: TopicPartition
    before: Replicas
    after: Replicas


def moves_away(
    broker_id: int, partitions: Iterable[PlacedPartition], brokers: Sequence[Broker]
) -> list[ReplicaMove] | Problem:
    """Return the moves after which a broker is no replica, and leads nothing that others may lead; or why
    there are none: no other broker lives. Where too few do, partitions have fewer replicas afterwards.
    """
    placed = list(partitions)
    others = [one for one in brokers if not one.fenced and one.broker_id != broker_id]
    live = {one.broker_id for one in others}
    room = _Room(others, placed)
    moves = []
    for name, replicas, leader in placed:
        stuck = leader == broker_id and live.isdisjoint(replicas)
        if broker_id not in replicas and not stuck:
            continue
        if not others:
            return Problem(Code.INVALID_REPLICA_ASSIGNMENT, f"no broker but {broker_id} lives")
        place = replicas.index(broker_id) if broker_id in replicas else 0
        rest = (*replicas[:place], *replicas[place + 1 :])
        chosen = room.take(rest, first=place == 0)
        added = () if chosen is None else (chosen,)
        moves.append(ReplicaMove(name, replicas, (*rest[:place], *added, *rest[place:])))
    return moves


def moves_to_share(partitions: Iterable[PlacedPartition], brokers: Sequence[Broker]) -> list[ReplicaMove]:
    """Return the moves after which each live broker is the preferred leader of as many partitions as any
    other, but for one. What moves is of topics of which the one has more than the other. No partition is
    moved twice, and none whose preferred leader has not too many; none is on fewer racks afterwards.
    """
    racks = {one.broker_id: one.rack for one in brokers}
    led = {one.broker_id: _Led() for one in brokers if not one.fenced}
    for one in partitions:
        if one.replicas and one.replicas[0] in led:
            led[one.replicas[0]].add(one)
    moves = []
    while led:
        most = max(led, key=lambda one: (led[one].count, -one))
        fewest = min(led, key=lambda one: (led[one].count, one))
        if led[most].count - led[fewest].count <= 1:
            break
        name, replicas, _ = led[most].give(led[fewest])
        moves.append(ReplicaMove(name, replicas, _led_by(fewest, replicas, racks)))
    return sorted(moves)


def _led_by(broker_id: int, replicas: Replicas, racks: Mapping[int, str | None]) -> Replicas:
    """Return the replicas with a broker in the place of the first. One that is a replica already changes
    places with it; where a rack would have none any more, the first takes the place of another on the new
    one's rack.
    """
    first, *rest = replicas
    if broker_id in rest:
        return tuple(broker_id if one == first else first if one == broker_id else one for one in replicas)
    beside = [racks.get(one) for one in rest]
    if racks.get(first) not in beside and racks[broker_id] in beside:
        rest[beside.index(racks[broker_id])] = first
    return (broker_id, *rest)


class _Led:
    """The partitions that one broker is to lead, by topic, and how many it has got."""

    def __init__(self) -> None:
        self.count = 0
        self._by_topic: dict[str, list[PlacedPartition]] = {}
        self._got: Counter[str] = Counter()

    def add(self, one: PlacedPartition) -> None:
        self.count += 1
        self._by_topic.setdefault(one.name.topic, []).append(one)

    def of(self, topic: str) -> int:
        return len(self._by_topic.get(topic, ())) + self._got[topic]

    def give(self, other: _Led) -> PlacedPartition:
        """Return a partition that another broker gets."""
        own = (topic for topic, some in self._by_topic.items() if some)
        topic = max(own, key=lambda topic: self.of(topic) - other.of(topic))
        self.count -= 1
        other.count += 1
        other._got[topic] += 1
        return self._by_topic[topic].pop()


class _Room:
    """How many replicas brokers have, and how many of them are the first ones."""

    def __init__(self, brokers: Sequence[Broker], partitions: Iterable[PlacedPartition]) -> None:
        self._racks = {one.broker_id: one.rack for one in brokers}
        self._replicas: Counter[int] = Counter()
        self._first: Counter[int] = Counter()
        for one in partitions:
            self._replicas.update(one.replicas)
            self._first.update(one.replicas[:1])

    def take(self, beside: Replicas, *, first: bool) -> int | None:
        """Return the broker that has room for one replica more, beside others of the partition, which it has
        from now on; None if all of them are there already.
        """
        taken = {self._racks.get(one) for one in beside} - {None}
        free = [one for one in self._racks if one not in beside]
        if not free:
            return None
        chosen = min(
            free,
            key=lambda one: (
                self._racks[one] in taken,
                self._first[one] if first else 0,
                self._replicas[one],
                one,
            ),
        )
        self._replicas[chosen] += 1
        self._first[chosen] += first
        return chosen
