"""Where a query begins to read what its group has no offset of: in virtual time, on a production broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from coterie.base.ids import TopicPartition
from coterie.broker.runtime.pieces import at_once
from coterie.spark.source.offsets import BadOffset, DataLoss, GroupDocument

from .test_group_session import Query, until
from .virtual import HOST, PORT, VirtualBroker, run_virtually

TOPIC = SimpleNamespace(bootstrap=f"{HOST}:{PORT}", name="t")
RETENTION_MINUTES = 60


def played(scenario):
    """Return what the scenario returns, given a broker with the topic t of two partitions."""

    async def main(loop):
        given = {
            "group.initial.rebalance.delay.ms": "0",
            "offsets.retention.minutes": str(RETENTION_MINUTES),
        }
        broker = VirtualBroker(loop, seed=1, **given)
        broker.node.topic_manager.create_topic("t", partitions=2)
        return await scenario(broker)

    return run_virtually(main)


async def settle(query):
    """Have Spark ask until there is nothing more."""
    while await query.batch():
        pass


def read_of(query, partition):
    return [offset for at, offset in query.read if at.partition == partition]


async def resting(broker, **options):
    """Return a query whose last batch had one partition of two, after so long that its group forgot both."""
    query = Query(TOPIC, "g", startingOffsets="latest", **options)
    query.start()
    await settle(query)
    for partition in (0, 1):
        broker.write("t", partition, 5)
    await until(lambda: len(query.read) == 10, query.batch)
    broker.write("t", 0, 5)
    await until(lambda: len(query.read) == 15, query.batch)
    await settle(query)
    await query.stop()
    assert broker.committed("g") == {("t", 0): 10, ("t", 1): 5}
    await asyncio.sleep(RETENTION_MINUTES * 60 + 3600)
    assert broker.committed("g") == {}
    return query


def test_when_its_group_has_forgotten_a_query_goes_on_where_its_checkpoint_says():
    async def scenario(broker):
        query = await resting(broker)
        for partition in (0, 1):
            broker.write("t", partition, 5)
        query.start()
        await until(lambda: {*read_of(query, 0)} == {*range(15)}, query.batch)
        await settle(query)
        await query.stop()
        return read_of(query, 1), broker.committed("g")

    assert played(scenario) == ([*range(10)], {("t", 0): 15, ("t", 1): 10})


def test_a_checkpoint_of_the_version_before_has_no_positions_but_those_of_its_last_batch():
    async def scenario(broker):
        query = await resting(broker)
        broker.write("t", 0, 5)
        document = query.log.to_json()
        del document["positions"], document["query"]
        query.log = GroupDocument.of(document, group="g")
        query.start()
        await until(lambda: {*read_of(query, 0)} == {*range(15)}, query.batch)
        await query.stop()

    played(scenario)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_partition_that_is_added_later_is_read_from_its_beginning(restarted):
    """As Spark's own source does, whatever startingOffsets says, be the query there or not."""

    async def scenario(broker):
        broker.write("t", 0, 3)
        query = Query(TOPIC, "g", startingOffsets="latest", **{"kafka.metadata.max.age.ms": "2000"})
        query.start()
        await settle(query)
        broker.write("t", 0, 2)
        await until(lambda: query.read, query.batch)
        await settle(query)
        if restarted:
            await query.stop()
        broker.node.topic_manager.add_partitions("t", 3)
        broker.write("t", 2, 10)
        if restarted:
            query.start()
        await until(lambda: len(read_of(query, 2)) == 10, query.batch)
        await query.stop()
        return read_of(query, 0), read_of(query, 2)

    assert played(scenario) == ([3, 4], [*range(10)])


def test_a_topic_that_is_made_later_is_read_from_its_beginning():
    async def scenario(broker):
        topic = SimpleNamespace(bootstrap=TOPIC.bootstrap, name="later")
        query = Query(topic, "g", startingOffsets="latest", **{"kafka.metadata.max.age.ms": "2000"})
        query.start()
        for _ in range(5):
            await query.plan()
        broker.node.topic_manager.create_topic("later", partitions=1)
        broker.write("later", 0, 4)
        await until(lambda: len(query.read) == 4, query.batch)
        await query.stop()

    played(scenario)


def test_what_a_member_dies_with_before_it_has_begun_is_read_from_where_the_others_began():
    """Not from what is the latest when somebody takes it over."""

    async def scenario(broker):
        first = Query(TOPIC, "g", startingOffsets="latest")
        second = Query(TOPIC, "g", startingOffsets="latest")
        first.start()
        second.start()
        await asyncio.gather(first.session.membership(), second.session.membership())
        one = lambda: len(first.owned) == 1 and first.session._membership.member.ready  # noqa: E731
        await until(one, lambda: asyncio.sleep(0.1))
        await first.plan()
        (left,) = {0, 1} - {at.partition for at in first.owned}
        await second.die()
        broker.write("t", left, 6)
        await until(lambda: len(read_of(first, left)) == 6, first.batch)
        await first.stop()

    played(scenario)


def test_a_topic_made_anew_is_not_gone_on_with_in_the_middle():
    async def scenario(broker, **options):
        query = await resting(broker, **options)
        at_once(broker.node.topic_manager.delete_topics(["t"]))
        broker.node.topic_manager.create_topic("t", partitions=2)
        broker.write("t", 0, 4)
        query.start()
        try:
            await until(lambda: len(query.read) > 15, query.batch)
        finally:
            await query.stop()
        return query.read[15:]

    with pytest.raises(DataLoss, match="made anew"):
        played(scenario)
    found = played(lambda broker: scenario(broker, failOnDataLoss="false"))
    assert found == [(TopicPartition("t", 0), offset) for offset in range(4)]


@pytest.mark.parametrize("running", [False, True])
def test_a_topic_made_anew_is_told_by_its_id_however_long_it_is(running):
    async def scenario(broker, **options):
        query = await resting(broker, **options)
        if running:
            query.start()
            await settle(query)
        before = len(query.read)
        at_once(broker.node.topic_manager.delete_topics(["t"]))
        broker.node.topic_manager.create_topic("t", partitions=2)
        for partition in (0, 1):
            broker.write("t", partition, 100)
        if not running:
            query.start()
        try:
            await until(lambda: len(query.read) >= before + 200, query.batch)
        finally:
            await query.stop()
        return query.read[before:]

    with pytest.raises(DataLoss, match="topic t was deleted and made anew since this checkpoint"):
        played(scenario)
    found = played(lambda broker: scenario(broker, failOnDataLoss="false"))
    assert sorted(found) == [(TopicPartition("t", one), offset) for one in (0, 1) for offset in range(100)]


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_checkpoint_of_another_cluster_is_refused_with_what_to_do(unfinished):
    async def scenario(broker):
        broker.write("t", 0, 4)
        query = Query(TOPIC, "g")
        query.start()
        await until(lambda: query.read, query.batch)
        await query.stop()
        assert query.log.cluster == "virtual"
        query.log = replace(query.log, cluster="the old one")
        query.start()
        try:
            await (query.finish() if unfinished else query.plan())
        finally:
            await query.stop()

    with pytest.raises(BadOffset, match=r"of cluster the old one.* cluster virtual.*new checkpoint"):
        played(scenario)
