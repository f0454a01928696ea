"""Which replicas go where when brokers are to have none any more, or all are to have their share. Pure.

A replica is replaced in its place, so the order in which replicas are preferred stays; the new one is where
fewest are, on a rack that the partition has no replica on if there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    leaving: Collection[int], partitions: Iterable[PlacedPartition], brokers: Sequence[Broker]
) -> list[ReplicaMove] | Problem:
    """Return the moves after which brokers are no replicas, and lead nothing that others may lead; or why
    there are none: no other broker lives. Where too few do, partitions have fewer replicas afterwards.
    """
    placed = list(partitions)
    others = [one for one in brokers if not one.fenced and one.broker_id not in leaving]
    live = {one.broker_id for one in others}
    room = _Room(others, placed)
    moves = []
    for name, replicas, leader in placed:
        stuck = leader in leaving and live.isdisjoint(replicas)
        if not stuck and not any(one in leaving for one in replicas):
            continue
        if not others:
            ids = ", ".join(map(str, sorted(leaving)))
            return Problem(Code.INVALID_REPLICA_ASSIGNMENT, f"no broker but {ids} lives")
        replaced = [place for place, one in enumerate(replicas) if one in leaving] or [0]
        moves.append(ReplicaMove(name, replicas, room.replace(replicas, replaced)))
    return moves


def moves_to_more(
    least: int,
    partitions: Iterable[PlacedPartition],
    brokers: Sequence[Broker],
    topics: Collection[str] = (),
) -> list[ReplicaMove] | Problem:
    """Return the moves after which no partition, or none of these topics, has fewer replicas than `least`,
    each behind those that it had; or why there are none: fewer brokers live.
    """
    placed = list(partitions)
    live = [one for one in brokers if not one.fenced]
    if least > len(live):
        text = f"{least} replicas of a partition need as many brokers that live, and there are {len(live)}"
        return Problem(Code.INVALID_REPLICATION_FACTOR, text)
    room = _Room(live, placed)
    moves = []
    for name, replicas, _ in placed:
        if topics and name.topic not in topics:
            continue
        after = replicas
        while len(after) < least and (chosen := room.take(after, first=not after)) is not None:
            after = (*after, chosen)
        if after != replicas:
            moves.append(ReplicaMove(name, replicas, after))
    return moves


def joined(moves: Iterable[ReplicaMove], later: Iterable[ReplicaMove]) -> list[ReplicaMove]:
    """Return moves with others made behind them as one of each partition, where anything changes at all."""
    before: dict[TopicPartition, Replicas] = {}
    after: dict[TopicPartition, Replicas] = {}
    for one in (*moves, *later):
        before.setdefault(one.name, one.before)
        after[one.name] = one.after
    both = (ReplicaMove(name, before[name], after[name]) for name in sorted(after))
    return [one for one in both if one.before != one.after]


def moved(partitions: Iterable[PlacedPartition], moves: Iterable[ReplicaMove]) -> list[PlacedPartition]:
    """Return partitions as they are placed after moves."""
    after = {one.name: one.after for one in moves}
    return [one._replace(replicas=after.get(one.name, one.replicas)) for one in partitions]


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

    def replace(self, replicas: Replicas, places: Collection[int]) -> Replicas:
        """Return the replicas with others in some places; fewer, where too few brokers are there."""
        after = {place: one for place, one in enumerate(replicas) if place not in places}
        for place in places:
            chosen = self.take(tuple(after.values()), first=place == 0)
            if chosen is not None:
                after[place] = chosen
        return tuple(after[place] for place in sorted(after))

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
