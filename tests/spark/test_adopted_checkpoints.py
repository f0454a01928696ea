"""The checkpoint of a query without a group is taken along into one: virtual time, a production broker."""

from __future__ import annotations

import asyncio

import pytest

from coterie.base.ids import TopicPartition
from coterie.spark.source.offsets import BadOffset, DataLoss, GroupDocument

from .test_group_session import Query, until
from .test_positions import TOPIC, played, read_of, settle

PLAIN = {"t": {"0": 3, "1": 5}}


def written(broker, count=8):
    for partition in (0, 1):
        broker.write("t", partition, count)


def resumed(start=PLAIN, end=None, **options):
    """Return a query whose checkpoint stands at `start`, or has a batch up to `end` that was not finished."""
    query = Query(TOPIC, "g", **options)
    query.log = (
        GroupDocument.of(start, group="g") if end is None else GroupDocument.of_batch(start, end, group="g")
    )
    query.start()
    return query


async def read_to_the_end(query, count):
    """Have a query read so many records and all that there are, commit, and stop."""
    await until(lambda: len(query.read) == count, query.batch)
    await settle(query)
    await query.stop()


def read_on_from_the_checkpoint(query, committed):
    """Expect that a query has read what lies behind PLAIN, each once, and that all is committed."""
    assert read_of(query, 0) == [3, 4, 5, 6, 7]
    assert read_of(query, 1) == [5, 6, 7]
    assert committed == {("t", 0): 8, ("t", 1): 8}


def test_the_query_goes_on_where_the_checkpoint_stands_and_the_group_knows_it():
    async def scenario(broker):
        written(broker)
        one = resumed(startingOffsets="latest")
        await read_to_the_end(one, 8)
        return one, broker.committed("g")

    one, committed = played(scenario)

    read_on_from_the_checkpoint(one, committed)


def test_what_the_group_has_committed_counts_more():
    async def scenario(broker):
        written(broker)
        other = Query(TOPIC, "g")
        other.start()
        await read_to_the_end(other, 16)
        written(broker, 1)
        one = resumed()
        await until(lambda: len(one.read) == 2, one.batch)
        await one.stop()
        return one

    assert sorted(offset for _, offset in played(scenario).read) == [8, 8]


def test_a_batch_that_was_not_finished_is_read_again_and_then_what_follows():
    async def scenario(broker):
        written(broker)
        one = resumed(end={"t": {"0": 6, "1": 5}})
        await one.finish()
        replayed = list(one.read)
        one.log = GroupDocument.of({"t": {"0": 6, "1": 5}}, group="g")
        await read_to_the_end(one, 8)
        return replayed, one, broker.committed("g")

    replayed, one, committed = played(scenario)

    assert replayed == [(TopicPartition("t", 0), offset) for offset in (3, 4, 5)]
    read_on_from_the_checkpoint(one, committed)


def test_whoever_gets_a_partition_after_the_replay_goes_on_where_the_checkpoint_stood():
    async def scenario(broker):
        written(broker)
        end = {"t": {"0": 6, "1": 5}}
        one = resumed(end=end, most=1)
        await one.finish()
        other = Query(TOPIC, "g", startingOffsets="latest", most=1)
        other.start()
        assert not await other.plan()
        await asyncio.sleep(5)  # it asks to be let in, which the first hears of with its next heartbeat
        one.log = GroupDocument.of(end, group="g")
        await until(lambda: len(one.read) + len(other.read) == 8, one.batch, other.batch)
        await settle(one)
        await settle(other)
        await one.stop()
        await other.stop()
        return one, other, broker.committed("g")

    one, other, committed = played(scenario)

    assert other.read
    assert sorted(read_of(one, 0) + read_of(other, 0)) == [3, 4, 5, 6, 7]
    assert sorted(read_of(one, 1) + read_of(other, 1)) == [5, 6, 7]
    assert committed == {("t", 0): 8, ("t", 1): 8}


def test_a_process_that_dies_in_the_replay_leaves_no_gap():
    async def scenario(broker):
        written(broker)
        end = {"t": {"0": 6, "1": 8}}
        dead = resumed(end=end)
        await dead.finish()
        await dead.die()
        one = resumed(start=end)  # Spark has noted the batch as done, and the group has not
        await read_to_the_end(one, 8)
        return one, broker.committed("g")

    one, committed = played(scenario)

    read_on_from_the_checkpoint(one, committed)


def test_a_partition_that_the_checkpoint_does_not_know_is_read_from_its_beginning():
    async def scenario(broker):
        written(broker)
        one = resumed({"t": {"0": 3}}, startingOffsets="latest")
        await until(lambda: len(one.read) == 13, one.batch)
        await one.stop()
        return one

    assert read_of(played(scenario), 1) == [*range(8)]


def test_a_topic_that_is_gone_is_left_out():
    async def scenario(broker):
        written(broker)
        one = resumed({**PLAIN, "gone": {"0": 7}})
        await until(lambda: len(one.read) == 8, one.batch)
        await one.stop()
        return broker.committed("g")

    assert {topic for topic, _ in played(scenario)} == {"t"}


def test_offsets_past_the_end_are_loss_unless_that_is_allowed():
    async def scenario(broker):
        written(broker, 2)
        strict = resumed()
        with pytest.raises(DataLoss, match=r"t-0: the checkpoint says offset 3.*ends at 2.*new checkpoint"):
            await until(lambda: False, strict.batch)
        await strict.stop()
        assert not broker.committed("g")
        lenient = resumed(failOnDataLoss="false")
        await until(lambda: len(lenient.read) == 4, lenient.batch)
        await lenient.stop()

    played(scenario)


@pytest.mark.parametrize("end", [{"t": 5}, {"t": {"0": "x"}}, {"logOffset": 3}, {"t": {"0": None}}])
def test_offsets_of_another_kind_of_source_are_refused(end):
    with pytest.raises(BadOffset, match=r"another source.*start with a new one"):
        GroupDocument.of(end, group="g")


def test_a_first_batch_of_which_nobody_knows_where_it_began_is_refused():
    with pytest.raises(BadOffset, match=r"not finished its first batch.*new checkpoint"):
        GroupDocument.of_batch(GroupDocument(group="g").to_json(), PLAIN, group="g")


def test_a_partition_that_came_in_the_unfinished_batch_began_at_its_beginning():
    document = GroupDocument.of_batch({"t": {"0": 3}}, PLAIN, group="g")

    assert [(one.partition, one.first, one.until) for one in document.ranges] == [(1, 0, 5)]
    assert document.positions == {TopicPartition("t", 0): 3, TopicPartition("t", 1): 0}
