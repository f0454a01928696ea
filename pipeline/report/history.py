"""What happened to the group, from its history: the rebalances of the summary, and who owned what when.

`read_history` reads the broker's log of groups; everything else is pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from coterie.base.hashes import coordinator_partition
from coterie.history.from_story import overlaid, read_stories
from coterie.history.group import history_of
from coterie.history.log.layout import OFFSETS, STORY
from coterie.history.log.records import read_entry
from coterie.history.log.segments import groups_of
from coterie.history.tables import Generation, History, Ownership, Stall
from pipeline.processes.children import JobError
from pipeline.report.scene import Death, Kind, Span
from pipeline.watch.story import Rebalance

PATIENCE_S = 20
SILENT = "no-progress"


def read_history(bootstrap: str, group: str) -> History:
    """Return a group's history from the log of a running broker, with what its story tells more exactly."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "history",
            "log_level": 2,
            "group.id": "history",  # librdkafka wants one; it is never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        topics = consumer.list_topics(timeout=PATIENCE_S).topics
        number = coordinator_partition(group, partition_count=len(topics[OFFSETS].partitions))
        entries = [
            read_entry(one.key() or b"", one.value(), place=one.offset(), at_ms=one.timestamp()[1])
            for one in all_of(consumer, OFFSETS, number)
        ]
        written = topics[STORY].partitions if STORY in topics else []  # one by each of several brokers
        story = [[one.value() for one in all_of(consumer, STORY, place)] for place in written]
    finally:
        consumer.close()
    found = next((log for log in groups_of(entries) if log.group_id == group), None)
    inferred = History(group) if found is None else history_of(*found)
    return overlaid(inferred, read_stories(story).get(group, []))


def all_of(consumer: Any, topic: str, number: int) -> list[Any]:
    """Return every record that a partition holds now."""
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
    found: list[Any] = []
    while (one := consumer.poll(PATIENCE_S)) is not None:
        if one.error() is None:
            found.append(one)
        elif one.error().code() == KafkaError._PARTITION_EOF:
            return found
        else:
            raise KafkaException(one.error())
    raise JobError(f"{topic}-{number} could not be read to its end within {PATIENCE_S} s")


def rebalances_of(history: History, topic: str) -> list[Rebalance]:
    """Return the rebalances of a group, with members called by their client ids."""
    names = {one.member_id: one.client_id for one in history.assignments}
    shares: dict[tuple[int, int], dict[str, tuple[int, ...]]] = defaultdict(dict)
    for one in history.assignments:
        mine = one.partitions if one.topic == topic else ()
        given = shares[one.generation, one.formed_at]
        given[one.client_id] = tuple(sorted({*given.get(one.client_id, ()), *mine}))
    moved = Counter((one.generation, one.at) for one in history.moves)
    return [
        Rebalance(
            at_ms=min([one.formed_at, *(stop.from_ms for stop in stops)]),
            formed_at_ms=one.formed_at,
            generation=one.generation,
            why=one.causes,
            members=dict(sorted(shares[one.generation, one.formed_at].items())),
            joined=tuple(sorted(names.get(each, each) for each in one.joined)),
            left=tuple(sorted(names.get(each, each) for each in one.left)),
            stopped_ms=max((stop.to_ms - stop.from_ms for stop in stops), default=0),
            moved=moved[one.generation, one.formed_at],
            new=not place or not history.generations[place - 1].members,
            longest_ms=max((stop.to_ms - stood_still_since(history, stop) for stop in stops), default=0),
        )
        for place, one in enumerate(history.generations)
        for stops in [without_owner(history.stalls, one)]
    ]


def stood_still_since(history: History, stop: Stall) -> int:
    """Return since when a partition stood still that waits for a generation: its owner may have been dead."""
    where = stop.topic, stop.partition
    return min(
        (
            one.from_ms
            for one in history.stalls
            if one.kind == SILENT and (one.topic, one.partition) == where
            if one.from_ms < stop.from_ms <= one.to_ms
        ),
        default=stop.from_ms,
    )


def without_owner(stalls: Iterable[Stall], formed: Generation) -> list[Stall]:
    """Return the times in which partitions waited for a generation to be formed."""
    place = formed.generation, formed.formed_at
    return [one for one in stalls if one.kind == "no-owner" and (one.generation, one.to_ms) == place]


def spans_of(history: History, topic: str, *, until_ms: int, deaths: Sequence[Death] = ()) -> list[Span]:
    """Return the spans of a topic's partitions, with their owner at work, dead or none, without overlap.

    Members get nowhere where the history says so, and from their deaths on, which it may not be able to tell.
    """
    owned: dict[int, list[Ownership]] = defaultdict(list)
    for tenure in history.ownership:
        if tenure.topic == topic and tenure.from_ms < until_ms:
            owned[tenure.partition].append(tenure)
    silent: dict[int, list[Stall]] = defaultdict(list)
    for stall in history.stalls:
        if stall.topic == topic and stall.kind == SILENT:
            silent[stall.partition].append(stall)
    found: list[Span] = []
    for partition, tenures in sorted(owned.items()):
        over_ms: int | None = None
        for one in sorted(tenures, key=lambda one: one.from_ms):
            if over_ms is not None and over_ms < one.from_ms:
                found.append(span_of(one, "stopped", over_ms, one.from_ms))
            over_ms = until_ms if one.to_ms is None else min(one.to_ms, until_ms)
            still = [(stall.from_ms, stall.to_ms) for stall in silent[partition]]
            still += [(death.at_ms, over_ms) for death in deaths if death.member == one.client_id]
            found += tenure_of(one, sorted(still), over_ms)
    return found


def tenure_of(one: Ownership, silent: Iterable[tuple[int, int]], over_ms: int) -> Iterator[Span]:
    """Yield the spans of one owner: at work, and dead or stuck where it got nowhere."""
    at_ms = one.from_ms
    for silent_ms, moved_ms in silent:
        from_ms, to_ms = max(silent_ms, at_ms), min(moved_ms, over_ms)
        if silent_ms < over_ms and one.from_ms <= silent_ms and from_ms < to_ms:
            if at_ms < from_ms:
                yield span_of(one, "works", at_ms, from_ms)
            yield span_of(one, "dead", from_ms, to_ms)
            at_ms = to_ms
    if at_ms < over_ms:
        yield span_of(one, "works", at_ms, over_ms)


def span_of(one: Ownership, kind: Kind, from_ms: int, to_ms: int) -> Span:
    return Span(
        partition=one.partition,
        kind=kind,
        owner="" if kind == "stopped" else one.client_id,
        generation=one.generation,
        from_ms=from_ms,
        to_ms=to_ms,
    )
