"""What is different between two images, for the broker that goes from one to the other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import INTERNAL_TOPICS
from coterie.broker.cluster.image import BrokerRow, BrokerState, Image, PartitionRow, TopicRow

ONE_ADDRESS = (
    "and clients find only one of them there: give each an address of its own, by advertised.listeners"
)


class Election(NamedTuple):
    """A partition whose leader is another, or leads it in another epoch, or which is new."""

    name: TopicPartition
    row: PartitionRow


class DeletedTopic(NamedTuple):
    """A topic that is gone, with the partitions that it had."""

    topic: TopicRow
    partitions: tuple[PartitionRow, ...]


class Differences(NamedTuple):
    """Two images, compared. A topic that was deleted and made again by name is in `deleted` and `made`."""

    deleted: Sequence[DeletedTopic]
    made: Sequence[TopicRow]
    changed: Sequence[TopicRow]
    """Topics of which the settings or the number of partitions are others, or may be."""
    elections: Iterator[Election]
    """Those of internal topics first: groups wait for these. They are found one by one, as they are taken."""


def differences(before: Image, after: Image) -> Differences:
    """Return the differences."""
    made, changed, unlike = [], [], [*after.topics_unlike(before)]
    for topic in unlike:
        was = before.topic_by_id(topic.topic_id)
        if was is None:
            made.append(topic)
        elif was is not topic and was != topic:
            changed.append(topic)
    deleted = []
    if after.topic_count < before.topic_count + len(made):
        deleted = [
            DeletedTopic(topic, before.partitions(topic.topic_id))
            for topic in before.topics_unlike(after)
            if after.topic_by_id(topic.topic_id) is None
        ]
    unlike.sort(key=lambda topic: topic.name not in INTERNAL_TOPICS)
    return Differences(deleted, made, changed, _elections(unlike, before, after))


def _elections(topics: Iterable[TopicRow], before: Image, after: Image) -> Iterator[Election]:
    for topic in topics:
        rows, were = after.partitions(topic.topic_id), before.partitions(topic.topic_id)
        if rows is were:
            continue
        for row in rows:
            was = were[row.number] if row.number < len(were) else None
            if was is None or (was.leader, was.leader_epoch) != (row.leader, row.leader_epoch):
                yield Election(TopicPartition(topic.name, row.number), row)


def contradicts(before: Image, after: Image, me: int) -> bool:
    """Return whether an image is not what another became: the engine has gone back to an older state, and
    what this broker led in an epoch there, another may lead now in the same, or it in an earlier one.

    What cannot be seen of it is in partitions that the broker leads in both, in one epoch: there the store
    looks whether that epoch has begun.
    """
    mine, now = before.brokers.get(me), after.brokers.get(me)
    if mine is not None and (now is None or now.broker_epoch < mine.broker_epoch):
        return True
    return any(_is_undone(topic, before, after, me) for topic in after.topics_unlike(before))


def _is_undone(topic: TopicRow, before: Image, after: Image, me: int) -> bool:
    rows, were = after.partitions(topic.topic_id), before.partitions(topic.topic_id)
    for row, was in zip(rows, were, strict=False):
        if row is was or row.leader_epoch > was.leader_epoch:
            continue
        if row.leader_epoch < was.leader_epoch or (
            row.leader != was.leader and me in (row.leader, was.leader)
        ):
            return True
    return len(rows) < len(were)


def _instead_of(old: BrokerRow | None, row: BrokerRow) -> str:
    """Return the end of a sentence: whose place a process has taken that was not found dead, if it was at
    another address. Where two have one id this is all that the others see of it.
    """
    if old is None or old.state is BrokerState.FENCED or old.listeners == row.listeners:
        return ""
    return f", in the place of the process at {', '.join(old.addresses)}"


class News(NamedTuple):
    """A line about a broker, and whether it is one that somebody has to do something about."""

    text: str
    warns: bool = False


RESTORED = "the database was brought back from a backup (`coterie store restored`): all brokers begin anew"


def broker_news(before: Image, after: Image, me: int) -> Iterator[News]:
    """Yield a line about each broker that has come, goes or is gone, and one about another at its address. Of
    `me` there is none where it is gone, which the log says in other words.
    """
    restored = _fenced_by_a_restore(before, after, me)
    if len(restored) > 1:
        yield News(RESTORED, warns=True)
    for broker_id, row in after.brokers.items():
        old = before.brokers.get(broker_id)
        if broker_id in restored or (
            old is not None and (old.state, old.broker_epoch) == (row.state, row.broker_epoch)
        ):
            continue
        if row.state is BrokerState.LIVE:
            yield News(f"broker {broker_id} is there, at {', '.join(row.addresses)}{_instead_of(old, row)}")
            others = sorted(
                other
                for other in after.unfenced
                if other != broker_id and {*after.brokers[other].listeners} & {*row.listeners}
            )
            if others:
                said = f"broker {broker_id} is at the address of broker {others[0]}, {ONE_ADDRESS}"
                yield News(said, warns=True)
        elif row.state is BrokerState.LEAVING:
            yield News(f"broker {broker_id} is leaving")
        elif old is not None and broker_id != me:
            yield _departure(old, row)


def _fenced_by_a_restore(before: Image, after: Image, me: int) -> frozenset[int]:
    """Return the brokers that were fenced by the change by which `me` was: whoever takes over fences one at a
    time, and `coterie store restored` all.
    """
    mine, was = after.brokers.get(me), before.brokers.get(me)
    if mine is None or was is None or mine.state is not BrokerState.FENCED:
        return frozenset()
    if was.state is BrokerState.FENCED:
        return frozenset()
    return frozenset(
        broker_id
        for broker_id, row in after.brokers.items()
        if row.state is BrokerState.FENCED and row.version == mine.version
    )


def _departure(old: BrokerRow, row: BrokerRow) -> News:
    """Return the line about a broker that is fenced now. One that has left within a moment looks as one that
    died: who takes over knows of that.
    """
    who = f"broker {row.broker_id}"
    if not row.is_registered:
        return News(f"{who} is removed from the cluster")
    return News(f"{who} {'has left' if old.state is BrokerState.LEAVING else 'is gone'}")
