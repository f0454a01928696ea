"""The protocol between a query and its group, without Spark: sessions in one process against a real broker.

A session that is let die here is cancelled without a word, as `kill -9` would end it.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from coterie.base.ids import TopicPartition
from coterie.spark.options import BadOption
from coterie.spark.source.group.pacing import waited_for
from coterie.spark.source.group.session import GroupSession
from coterie.spark.source.offsets import DataLoss, GroupDocument
from coterie.spark.source.options import (
    parse,
)
from coterie.spark.source.topics import cluster_for
from coterie.spark.source.ungrouped import AllPartitions


def options_of(topic, group, **more):
    given = {
        "kafka.bootstrap.servers": topic.bootstrap,
        "subscribe": topic.name,
        "group.id": group,
        "startingOffsets": "earliest",
        **more,
    }
    return parse(given, streaming=True)


@pytest.fixture
def query(group, patient_session):
    """A function that makes queries of one group."""

    def make(topic, **more):
        return Query(topic, group, **{**patient_session, **more})

    return make


@pytest.fixture
def mortal(group, quick_session):
    """A function that makes queries of one group that may die: the others soon notice."""

    def make(topic, **more):
        return Query(topic, group, **{**quick_session, **more})

    return make


class Query:
    """A query as Spark drives it: a document in the log, and whether its batch was finished."""

    def __init__(self, topic, group, *, most=None, **more):
        self.options, self.most = options_of(topic, group, **more), most
        self.log = GroupDocument(group=group)
        self.session = None
        self.read = []
        self.replays = 0

    def start(self):
        self.alive = True
        self.session = GroupSession(self.options, alive=lambda: self.alive)

    async def plan(self):
        """Have the next batch planned and logged; False if there is none just now."""
        planned = await self.session.plan(self.log, self.most)
        self.log = planned or self.log
        return planned is not None

    async def finish(self):
        """Read the batch that was logged last."""
        left = await self.session.left_to_read(self.log, self.log.ranges)
        self.read += [(one.at, offset) for one in left if one for offset in range(one.first, one.until)]

    async def batch(self):
        """One batch, if there is one."""
        if await self.plan():
            await self.finish()
            return True
        return False

    async def die(self):
        """End without a word: neither commits nor leaves."""
        membership = self.session._membership
        if membership is not None:
            await membership.abandon()
        await self.session.cluster.close()

    async def stop(self):
        await self.session.close()

    @property
    def owned(self):
        return self.session._membership.owned


async def until(condition, *steps, limit_s=60):
    """Take the steps until the condition holds."""
    clock = asyncio.get_running_loop()
    end = clock.time() + limit_s
    while not condition():
        assert clock.time() < end, "it does not come to pass"
        for step in steps:
            await step()


def values(count):
    return [b"%d" % number for number in range(count)]


def test_a_query_reads_everything_and_commits_it(new_topic, query, group, run):
    topic = new_topic(partitions=3)
    topic.produce(values(100))

    async def scenario():
        one = query(topic, most=40)
        one.start()
        await until(lambda: len(one.read) == 100, one.batch)
        while await one.plan():
            pass
        await one.stop()
        return one.read

    read = run(scenario())

    assert sorted(read) == [
        (TopicPartition(topic.name, one.partition), one.offset) for one in sorted(topic.sent)
    ]
    assert topic.committed(group) == topic.ends()


def test_the_last_batch_is_committed_by_the_idle_call_that_follows(new_topic, query, group, run):
    """Spark tells of a batch's end only when the next is planned."""
    topic = new_topic()
    topic.produce(values(10))
    seen = {}

    async def scenario():
        one = query(topic)
        one.start()
        await until(lambda: len(one.read) == 10, one.batch)
        seen["during"] = await one.session.cluster.committed(group, [TopicPartition(topic.name, 0)])
        assert not await one.plan()
        await one.stop()

    run(scenario())

    assert seen["during"] == {TopicPartition(topic.name, 0): 0}
    assert topic.committed(group) == {0: 10}


def test_a_starting_offset_is_committed_before_anything_is_read(new_topic, query, group, run):
    """Whoever takes over must not start at what is then the latest."""
    topic = new_topic()
    topic.produce(values(5))

    async def scenario():
        one = query(topic, startingOffsets="latest")
        one.start()
        await until(lambda: one.session.ends, one.plan)
        await one.die()

    run(scenario())
    topic.produce(values(5))

    assert topic.committed(group) == {0: 5}


def test_deleted_records_are_passed_over_once_and_not_read_again_and_again(new_topic, query, group, run):
    """With failOnDataLoss=false. A batch is committed from where the group stands: it has to stand there."""
    topic = new_topic()
    topic.produce(values(10))
    topic.commit(group, {0: 2})
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    (deleted,) = admin.delete_records([Place(topic.name, 0, 6)]).values()
    deleted.result(20)

    async def scenario():
        one = query(topic, failOnDataLoss="false")
        one.start()
        await until(lambda: one.read, one.batch)
        assert not await one.plan()
        await one.stop()
        return one.read

    read = run(scenario())

    assert [offset for _, offset in read] == [6, 7, 8, 9]
    assert topic.committed(group) == {0: 10}


def test_an_offset_behind_a_transaction_that_is_under_way_is_no_loss(new_topic, query, group, run):
    """The group was read without read_committed before: it stands behind the end that counts now. The same
    holds of a query without a group, by its checkpoint.
    """
    topic = new_topic()
    topic.produce(values(5))
    writer = Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": topic.name})
    writer.init_transactions(20)
    writer.begin_transaction()
    for value in values(5):
        writer.produce(topic.name, value, partition=0)
    writer.flush(20)
    topic.commit(group, {0: 8})

    async def scenario():
        one = query(topic, **{"kafka.isolation.level": "read_committed"})
        one.start()
        await until(lambda: one.session.ends, one.plan)
        assert not await one.plan()
        everything, place = AllPartitions(one.options, alive=lambda: True), TopicPartition(topic.name, 0)
        assert await everything.latest({place: 8}, None) == {place: 8}
        await everything.cluster.close()
        await asyncio.to_thread(writer.commit_transaction, 20)
        await until(lambda: one.read, one.batch)
        await one.stop()
        return [offset for _, offset in one.read]

    assert run(scenario()) == [8, 9, 10]  # with the marker's


def test_two_queries_share_the_partitions_and_lose_nothing(new_topic, query, group, run):
    topic = new_topic(partitions=4)
    topic.produce(values(200))

    async def scenario():
        first, second = query(topic, most=10), query(topic, most=10)
        first.start()
        await until(lambda: len(first.read) > 20, first.batch)
        second.start()
        await until(
            lambda: second.read and len(first.owned) == len(second.owned) == 2, first.batch, second.batch
        )
        await until(lambda: len(first.read) + len(second.read) >= 200, first.batch, second.batch)
        await asyncio.gather(first.plan(), second.plan())
        await asyncio.gather(first.stop(), second.stop())
        return first.read + second.read

    read = run(scenario())

    assert sorted(read) == sorted(
        (TopicPartition(topic.name, one.partition), one.offset) for one in topic.sent
    )
    assert topic.committed(group) == topic.ends()


def test_a_partition_asked_back_is_given_up_only_after_its_batch_is_committed(new_topic, query, group, run):
    topic = new_topic(partitions=2)
    topic.produce(values(40))

    async def scenario():
        first, second = query(topic, most=20), query(topic, most=20)
        first.start()
        await until(lambda: first.log.ranges, first.plan)
        second.start()
        # The first is busy; the second joins and must wait, for more than a few heartbeats.
        for _ in range(8):
            assert not await second.plan()
        assert len(first.owned) == 2
        await first.finish()
        await until(lambda: second.read, first.batch, second.batch)
        await until(lambda: len(first.read) + len(second.read) >= 40, first.batch, second.batch)
        await asyncio.gather(first.plan(), second.plan())
        await asyncio.gather(first.stop(), second.stop())
        return first.read + second.read

    read = run(scenario())

    assert len(read) == len(set(read)) == 40


def test_cooperative_queries_move_a_partition_only_after_its_batch_is_committed(new_topic, query, group, run):
    """CB-9: what stays is kept through the rebalances; what moves is committed, given up, and then read."""
    topic = new_topic(partitions=2)
    topic.produce(values(40))
    cooperative = {"partition.assignment.strategy": "cooperative-sticky"}

    async def scenario():
        first, second = query(topic, most=20, **cooperative), query(topic, most=20, **cooperative)
        first.start()
        await until(lambda: first.log.ranges, first.plan)
        before = first.session._membership.generation.id
        second.start()
        # The first is busy: it rejoins at once, in a newer generation, and gives nothing up.
        await until(lambda: first.session._membership.generation.id > before, second.plan)
        for _ in range(3):
            assert not await second.plan()
        assert len(first.owned) == 2
        assert not second.owned
        await first.finish()
        await until(lambda: second.owned, first.batch, second.batch)
        (moved,) = second.owned
        committed = await second.session.cluster.committed(group, [moved])
        assert committed[moved] >= 10
        assert len(first.owned) == 1
        await until(lambda: len(first.read) + len(second.read) >= 40, first.batch, second.batch)
        await asyncio.gather(first.plan(), second.plan())
        await asyncio.gather(first.stop(), second.stop())
        return first.read + second.read

    read = run(scenario())

    assert len(read) == len(set(read)) == 40
    assert topic.committed(group) == topic.ends()


@pytest.mark.interop
def test_what_a_rebalance_leaves_alone_goes_on_while_another_query_is_busy(new_topic, query, group, run):
    """Eager members would all wait for the one that works; cooperative ones go on with what they keep."""
    topic = new_topic(partitions=4)
    topic.produce(values(40))
    cooperative = {"partition.assignment.strategy": "cooperative-sticky"}

    async def scenario():
        busy, other, late = (query(topic, most=8, **cooperative) for _ in range(3))
        busy.start()
        other.start()
        await until(lambda: busy.session._membership and len(busy.owned) == 2, busy.batch, other.batch)
        await until(lambda: len(other.owned) == 2, busy.batch, other.batch)
        topic.produce(values(40))
        planned = busy.log.plan
        await until(lambda: busy.log.plan > planned, busy.plan)
        generation = other.session._membership.generation.id
        late.start()
        read = len(other.read)
        # The third has come, and the busy one has not finished: the other reads on in the new generation.
        await until(lambda: other.log.generation > generation, other.batch, late.batch)
        await until(lambda: len(other.read) > read, other.batch, late.batch)
        await busy.finish()
        everything = {(TopicPartition(topic.name, one.partition), one.offset) for one in topic.sent}
        queries = (busy, other, late)
        await until(
            lambda: everything == {place for one in queries for place in one.read},
            *(one.batch for one in queries),
        )
        await asyncio.gather(*(one.plan() for one in queries))
        await asyncio.gather(*(one.stop() for one in queries))
        return [place for one in queries for place in one.read]

    read = run(scenario())

    assert len(read) == len(set(read)) == 80


def test_a_dies_b_takes_over_a_returns_and_nothing_is_lost_nor_lowered(new_topic, mortal, group, run):
    """Rule 4: A's unfinished batch is B's by now; A replays nothing, and commits nothing old."""
    topic = new_topic(partitions=2)
    topic.produce(values(100))
    lowest = {}

    async def scenario():
        a, b = mortal(topic, most=20), mortal(topic, most=20)
        a.start()
        await until(lambda: len(a.read) >= 20, a.batch)
        await until(lambda: a.log.plan >= 2, a.plan)
        logged = a.log
        assert not set(a.read) & {(one.at, one.first) for one in logged.ranges}
        await a.die()

        b.start()
        await until(lambda: len(b.read) >= 40, b.batch)
        assert await b.session.plan(b.log, 0) is None
        before = await b.session.cluster.committed(group, b.owned)

        a.start()
        replay = asyncio.create_task(a.finish())
        await until(replay.done, b.batch, lambda: asyncio.sleep(0.01))
        replay.result()
        await until(lambda: len(set(a.read) | set(b.read)) == 100, a.batch, b.batch)
        await asyncio.gather(a.plan(), b.plan())
        after = await b.session.cluster.committed(group, before)
        lowest.update({one: (before[one], after[one]) for one in before})
        await asyncio.gather(a.stop(), b.stop())
        return a.read, b.read

    a_read, b_read = run(scenario())

    everything = {(TopicPartition(topic.name, one.partition), one.offset) for one in topic.sent}
    assert set(a_read) | set(b_read) == everything
    assert len(a_read) + len(b_read) == len(everything)
    assert all(before <= after for before, after in lowest.values())
    assert topic.committed(group) == topic.ends()


def test_a_returns_alone_and_its_unfinished_batch_is_read_whole(new_topic, mortal, group, run):
    topic = new_topic()
    topic.produce(values(30))

    async def scenario():
        one = mortal(topic, most=10)
        one.start()
        await until(lambda: one.log.plan >= 1, one.plan)
        await one.die()
        one.start()
        await one.finish()
        assert [offset for _, offset in one.read] == list(range(10))
        await until(lambda: len(one.read) == 30, one.batch)
        await one.plan()
        await one.stop()

    run(scenario())

    assert topic.committed(group) == {0: 30}


def test_a_second_restart_after_a_replay_commits_nothing_that_the_replay_left_out(
    new_topic, mortal, group, run
):
    """Rule 2: Spark's log says that the batch is done; it does not say what of it was another's meanwhile."""
    topic = new_topic(partitions=2)
    topic.produce(values(60))

    async def scenario():
        a, b = mortal(topic, most=40), mortal(topic, most=40)
        a.start()
        await until(lambda: a.log.ranges, a.plan)
        await a.die()
        b.start()
        await until(lambda: b.session._membership and len(b.owned) == 2, b.session.joined)
        a.start()
        replay = asyncio.create_task(a.finish())
        await until(replay.done, lambda: b.session.plan(b.log, 0))
        replay.result()
        await a.die()
        await b.stop()
        assert not b.read
        a.start()
        await until(lambda: len(set(a.read)) == 60, a.batch)
        await a.plan()
        await a.stop()

    run(scenario())

    assert topic.committed(group) == topic.ends()


def test_a_static_member_commits_what_its_last_process_had_finished(new_topic, query, group, run):
    """Rule 2: nothing has moved in its generation, so nothing was left out, and nothing is repeated."""
    topic = new_topic(partitions=2)
    topic.produce(values(40))

    async def scenario():
        one = query(topic, most=20, **{"group.instance.id": "one"})
        one.start()
        await until(lambda: len(one.read) == 20, one.batch)
        await one.die()
        one.start()
        await until(lambda: len(one.read) == 40, one.batch)
        await one.plan()
        await one.stop()
        return one.read

    read = run(scenario())

    assert len(set(read)) == len(read) == 40
    assert topic.committed(group) == topic.ends()


def test_an_offset_set_back_by_hand_fails_the_replay_with_its_reason(new_topic, query, group, run):
    topic = new_topic()
    topic.produce(values(30))

    async def scenario(**more):
        one = query(topic, most=10, **more)
        one.start()
        await until(lambda: len(one.read) >= 10, one.batch)
        await until(lambda: one.log.plan >= 2, one.plan)
        await one.stop()
        other = cluster_for(one.options)
        try:
            await other.commit(group, {TopicPartition(topic.name, 0): 3})
        finally:
            await other.close()
        one.start()
        try:
            await one.finish()
        finally:
            await one.stop()
        return [offset for _, offset in one.read]

    with pytest.raises(DataLoss, match="set it back"):
        run(scenario())


def test_a_static_member_that_comes_back_in_time_causes_no_rebalance(new_topic, query, group, run):
    topic = new_topic(partitions=2)
    topic.produce(values(10))
    generations = []

    async def scenario():
        for _ in range(2):
            one = query(topic, **{"group.instance.id": "one"})
            one.start()
            await one.session.joined()
            generations.append(one.session._membership.generation.id)
            await one.stop()

    run(scenario())

    assert generations == [1, 1]


def test_a_reader_whose_application_is_gone_stops_to_heartbeat(new_topic, query, group, run):
    topic = new_topic()

    async def scenario():
        one = query(topic)
        one.start()
        await one.session.joined()
        one.alive = False
        task = one.session._membership._task
        await asyncio.wait_for(task, 60)
        await one.session.close()

    run(scenario())


def test_available_now_reads_what_was_there_and_ends(new_topic, query, group, run):
    topic = new_topic(partitions=2)
    topic.produce(values(50))

    async def scenario():
        one = query(topic, most=20)
        one.start()
        await one.session.prepare()
        topic.produce(values(50))
        while await one.batch():
            pass
        await one.stop()
        return one.read

    assert len(run(scenario())) == 50
    assert topic.committed(group) == {0: 25, 1: 25}


def test_available_now_fails_where_a_topic_that_is_named_is_not_there(new_topic, query, run):
    topic = new_topic()

    async def scenario():
        one = query(topic, subscribe=f"{topic.name},mispelt")
        one.start()
        with pytest.raises(BadOption, match="no such topic or partition: mispelt; `coterie topics list"):
            await one.session.prepare()
        await one.stop()

    run(scenario())


def test_a_query_says_of_a_topic_that_is_not_there_that_it_waits_for_it(new_topic, query, run):
    topic = new_topic()

    async def scenario():
        one = query(topic, subscribe="mispelt")
        one.start()
        membership = await one.session.joined()
        await until(lambda: membership.missing, one.plan)
        assert "topic mispelt: there is none" in waited_for(membership, servers="here:1")
        await one.stop()

    run(scenario())


@pytest.mark.parametrize("assignor", [pytest.param("range", marks=pytest.mark.interop), "cooperative-sticky"])
def test_available_now_ends_under_rebalances_and_leaves_nothing(new_topic, query, group, run, assignor):
    """What is gained later is read up to where it ended when it came; what moves is read by the other."""
    topic = new_topic(partitions=4)
    topic.produce(values(80))
    strategy = {"partition.assignment.strategy": assignor}

    async def all_of(one):
        await one.session.prepare()
        while await one.batch():
            pass
        await one.stop()

    async def scenario():
        first, second = query(topic, most=8, **strategy), query(topic, most=8, **strategy)
        first.start()
        await first.session.prepare()
        await until(lambda: first.read, first.batch)
        second.start()
        other = asyncio.create_task(second.session.joined())
        # Calls that read nothing: the first commits and takes part in the rebalance.
        await until(other.done, lambda: first.session.plan(first.log, 0))
        async with asyncio.timeout(60):
            await asyncio.gather(all_of(first), all_of(second))
        assert second.read
        return first.read + second.read

    read = run(scenario())

    assert len(read) == len(set(read)) == 80
    assert topic.committed(group) == topic.ends()


def test_a_batch_waits_until_it_is_worth_it_and_the_last_is_committed_meanwhile(new_topic, query, group, run):
    topic = new_topic()
    topic.produce(values(4))

    async def scenario():
        one = query(topic, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
        one.start()
        await until(lambda: len(one.read) == 4, one.batch)
        topic.produce(values(9))
        assert not await one.plan()
        assert topic.committed(group) == {0: 4}
        topic.produce(values(1))
        await until(lambda: len(one.read) == 14, one.batch)
        await one.stop()

    run(scenario())


def test_the_document_says_who_owns_what_how_far_behind_and_since_when(new_topic, query, group, run):
    topic = new_topic(partitions=2)
    topic.produce(values(40))
    documents = []

    async def scenario():
        first, second = query(topic, most=10), query(topic, most=10)
        first.start()
        await until(lambda: first.log.ranges, first.plan)
        documents.append(first.log)
        await first.finish()
        second.start()
        await until(lambda: second.log.ranges and first.log.generation > 1, first.batch, second.batch)
        documents.append(first.log)
        await asyncio.gather(first.stop(), second.stop())

    run(scenario())

    alone, shared = documents
    assert [one.partition for one in alone.owned] == [0, 1]
    assert list(alone.lag.values()) == [15, 15]
    assert alone.rebalance.why == "the query started"
    assert len(shared.owned) == 1
    assert shared.rebalance.why == "group is already rebalancing"
    assert alone.rebalance.at < shared.rebalance.at


def test_a_finished_batch_that_others_read_again_is_never_committed_over_theirs(
    new_topic, mortal, group, run
):
    """Rule 2: A's sink holds the batch, its group never heard; B repeats it and goes on; A comes back."""
    topic = new_topic()
    topic.produce(values(60))

    async def scenario():
        a, b = mortal(topic, most=20), mortal(topic, most=20)
        a.start()
        assert await wanted(a.batch)
        await a.die()
        b.start()
        await until(lambda: len(b.read) == 40, b.batch)
        assert await b.session.plan(b.log, 0) is None
        assert await b.session.cluster.committed(group, b.owned) == {TopicPartition(topic.name, 0): 40}
        await b.stop()

        a.start()
        await until(lambda: len(a.read) == 40, a.batch)
        await a.plan()
        await a.stop()
        return a.read, b.read

    a_read, b_read = run(scenario())

    # The repeats are exactly A's batch that was finished and not committed.
    assert [offset for _, offset in a_read] == [*range(20), *range(40, 60)]
    assert [offset for _, offset in b_read] == [*range(40)]
    assert topic.committed(group) == {0: 60}


def test_what_others_took_over_is_not_replayed_and_the_next_batch_goes_on_where_they_stopped(
    new_topic, mortal, group, run
):
    """Rule 4: the note beside the offset is theirs."""
    topic = new_topic()
    topic.produce(values(20))

    async def scenario():
        a, b = mortal(topic, most=20), mortal(topic, most=7)
        a.start()
        await until(lambda: a.log.ranges, a.plan)
        await a.die()
        b.start()
        assert await wanted(b.batch)
        assert await b.session.plan(b.log, 0) is None
        await b.stop()

        a.start()
        await a.finish()
        assert not a.read
        await until(lambda: a.read, a.batch)
        await a.plan()
        await a.stop()
        return a.read

    assert [offset for _, offset in run(scenario())] == [*range(7, 20)]
    assert topic.committed(group) == {0: 20}


async def wanted(step):
    """Take the step until it says that it did something."""
    done = []

    async def once():
        done.append(await step())

    await until(lambda: any(done), once)
    return True


class Foreign:
    """A confluent-kafka consumer in the same group, polled beside the queries."""

    def __init__(self, topic, group, assignor):
        self.consumer = Consumer(
            {
                "bootstrap.servers": topic.bootstrap,
                "group.id": group,
                "partition.assignment.strategy": assignor,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 200,
            }
        )
        self.read = []
        self.consumer.subscribe([topic.name])

    async def poll(self):
        messages = await asyncio.to_thread(self.consumer.consume, 100, 0.02)
        read = [TopicPartition(one.topic(), one.partition()) for one in messages if one.error() is None]
        if read:
            self.read += zip(read, (one.offset() for one in messages), strict=True)
            await asyncio.to_thread(self.consumer.commit, asynchronous=False)

    @property
    def owned(self):
        return {TopicPartition(one.topic, one.partition) for one in self.consumer.assignment()}


@pytest.mark.parametrize(
    "assignor", ["range", "roundrobin", pytest.param("cooperative-sticky", marks=pytest.mark.interop)]
)
@pytest.mark.parametrize("leader", ["ours", "theirs"])
def test_a_group_with_a_foreign_consumer_is_shared_whoever_leads(
    new_topic, query, group, run, assignor, leader
):
    topic = new_topic(partitions=5)
    everything = {TopicPartition(topic.name, number) for number in range(5)}

    async def scenario():
        one = query(topic, **{"partition.assignment.strategy": assignor})
        one.start()
        if leader == "ours":
            await one.session.joined()
        foreign = Foreign(topic, group, assignor)
        if leader == "theirs":
            await until(lambda: len(foreign.owned) == 5, foreign.poll)
        await until(
            lambda: one.session._membership and share(one.owned, foreign.owned, everything),
            one.batch,
            foreign.poll,
        )
        topic.produce(values(100))
        await until(lambda: len(one.read) + len(foreign.read) >= 100, one.batch, foreign.poll)
        await one.plan()
        await one.stop()
        await asyncio.to_thread(foreign.consumer.close)
        return one.read + foreign.read

    read = run(scenario())

    assert sorted(read) == sorted(
        (TopicPartition(topic.name, one.partition), one.offset) for one in topic.sent
    )
    assert topic.committed(group) == topic.ends()


def share(one, other, everything):
    """Whether both own something, nothing of it twice, and together everything."""
    return one and other and not one & other and one | other == everything


class Chaos:
    """Queries of one group that are started, killed and stopped at random, while commits are watched."""

    def __init__(self, topic, queries, seed):
        self.topic, self.queries, self.random = topic, queries, random.Random(seed)
        self.up, self.unfinished = set(), set()
        self.highest = {}

    async def one(self, query):
        """One random step of one query."""
        if query not in self.up:
            query.start()
            self.up.add(query)
            if query in self.unfinished:
                await self.finish(query)
            return
        roll = self.random.random()
        if roll < 0.06:
            await self.end(query, query.die)
        elif roll < 0.12:
            await self.end(query, query.stop)
        elif await query.plan():
            self.unfinished.add(query)
            if roll < 0.2:
                await self.end(query, query.die)
            else:
                await asyncio.sleep(self.random.random() / 20)
                await self.finish(query)

    async def finish(self, query):
        await query.finish()
        self.unfinished.discard(query)

    async def end(self, query, how):
        self.up.discard(query)
        await how()

    async def life(self, query, steps, done):
        """Some wild steps, then quiet ones until all is done: Spark never stops to call a query."""
        for _ in range(steps):
            await self.one(query)
        if query not in self.up:
            await self.one(query)
        while not done():
            await query.batch()

    async def watch(self, cluster, group):
        """Look that no committed offset is ever lowered."""
        places = [TopicPartition(self.topic.name, number) for number in range(self.topic.partitions)]
        while True:
            for at, offset in (await cluster.committed(group, places)).items():
                assert (offset or 0) >= self.highest.get(at, 0), f"{at} was lowered to {offset}"
                self.highest[at] = offset or 0
            await asyncio.sleep(0.02)


class Slow(Chaos):
    """The same with batches that take their time: rebalances, deaths and time-outs fall into them."""

    async def finish(self, query):
        await super().finish(query)
        await asyncio.sleep(self.random.random())


async def all_is_read(topic, group, chaos):
    """Live through it, until each record was read; no committed offset may go back meanwhile."""
    queries = chaos.queries
    everything = {(TopicPartition(topic.name, one.partition), one.offset) for one in topic.sent}
    watching = cluster_for(queries[0].options)
    watcher = asyncio.create_task(chaos.watch(watching, group))

    def done():
        return everything == {place for one in queries for place in one.read}

    await asyncio.wait_for(asyncio.gather(*(chaos.life(one, 25, done) for one in queries)), 80)
    await asyncio.gather(*(one.plan() for one in queries))
    assert not watcher.done(), watcher.exception()
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)
    await watching.close()
    await asyncio.gather(*(one.stop() for one in queries))


@pytest.mark.parametrize(("seed", "assignor"), [(1, "range"), (2, "cooperative-sticky")])
def test_whatever_is_killed_when_nothing_is_lost_and_no_offset_lowered(
    new_topic, mortal, group, run, seed, assignor
):
    topic = new_topic(partitions=5)
    topic.produce(values(1500))

    async def scenario():
        strategy = {"partition.assignment.strategy": assignor}
        queries = [mortal(topic, most=20, **strategy) for _ in range(3)]
        await all_is_read(topic, group, Chaos(topic, queries, seed))

    run(scenario())

    assert topic.committed(group) == topic.ends()


@pytest.mark.interop
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_killed_in_slow_batches_nothing_is_lost(new_topic, mortal, group, run, seed, assignor):
    topic = new_topic(partitions=5)
    topic.produce(values(1500))

    async def scenario():
        strategy = {"partition.assignment.strategy": assignor}
        queries = [mortal(topic, most=most, **strategy) for most in (40, 20, 10)]
        await all_is_read(topic, group, Slow(topic, queries, seed))

    run(scenario())

    committed = topic.committed(group)
    assert all(committed[partition] <= end for partition, end in topic.ends().items())
