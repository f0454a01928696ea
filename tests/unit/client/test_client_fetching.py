"""A consumer whose leaders change: what it asks, whom it fetches from, what it does about lost records."""

from __future__ import annotations

import asyncio

import pytest
from hurried_loop import run_hurried
from small_cluster import SESSION_ID, Log, SmallCluster, until

from coterie.base.codes import Code
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.consumer import Consumer
from coterie.client.errors import LogTruncated

T0 = TopicPartition("t", 0)
MANY_MS = 10_000


def a_consumer(cluster, **settings):
    return Consumer(
        bootstrap_servers=cluster.bootstrap,
        **{"auto_offset_reset": "earliest", "retry_backoff_ms": 1, "fetch_max_wait_ms": 1, **settings},
    )


async def take(consumer, count):
    """The offsets of the next records, so many at least."""
    got = []
    while len(got) < count:
        for records in (await consumer.getmany(timeout_ms=MANY_MS)).values():
            got += [record.offset for record in records]
    return got


def test_a_leader_that_has_what_was_read_is_asked_once_and_fetched_from():
    async def scenario():
        async with SmallCluster(Log(1, 1, 3)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([T0])
            first = await take(consumer, 3)
            cluster.elect(2, Log(1, 1, 3, 4, 4), epoch=4)
            return first, await take(consumer, 2), cluster

    first, then, cluster = asyncio.run(scenario())

    assert (first, then) == ([0, 1, 2], [3, 4])
    assert cluster.epoch_questions == [(3, 4)]


def test_a_leader_says_itself_that_its_epoch_is_another():
    """It stays where it was; only the epoch in the request tells that something happened between."""

    async def scenario():
        async with SmallCluster(Log(3)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([T0])
            first = await take(consumer, 1)
            cluster.elect(1, Log(3, 5), epoch=5)
            return first + await take(consumer, 1), cluster

    got, cluster = asyncio.run(scenario())

    assert got == [0, 1]
    assert cluster.epoch_questions == [(3, 5)]


def test_a_log_that_was_cut_is_read_on_from_where_it_agrees():
    """Records 2 and 3 of epoch 3 are lost; the new leader took others under epoch 4."""

    async def scenario():
        async with SmallCluster(Log(1, 1, 3, 3)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([T0])
            first = await take(consumer, 4)
            cluster.elect(2, Log(1, 1, 4), epoch=4)
            return first, await take(consumer, 1), await consumer.position(T0)

    assert asyncio.run(scenario()) == ([0, 1, 2, 3], [2], 3)


def test_a_log_that_has_nothing_in_common_is_read_as_the_policy_says():
    async def scenario():
        async with SmallCluster(Log(6, 6)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([T0])
            await take(consumer, 2)
            cluster.elect(2, Log(2, 2, 2), epoch=7)
            return await take(consumer, 3)

    assert asyncio.run(scenario()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("policy", "log_then", "told"),
    [
        ("earliest", Log(1, 1, 4), "goes on at offset 2, where their logs part"),
        ("latest", Log(1, 1, 4), "goes on at offset 2, where their logs part"),
        ("earliest", Log(2, 2, 2), "goes on at offset 0, as auto_offset_reset=earliest says"),
        ("latest", Log(2, 2, 2), "goes on at offset 3, as auto_offset_reset=latest says"),
    ],
)
def test_one_line_says_from_where_to_where_reading_goes_when_what_was_read_is_lost(
    policy: str, log_then: Log, told: str, caplog: pytest.LogCaptureFixture
):
    first = Log(1, 1, 3, 3) if "part" in told else Log(6, 6, 6, 6)

    async def scenario():
        async with SmallCluster(first) as cluster, a_consumer(cluster, auto_offset_reset=policy) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            await take(consumer, 4)
            cluster.elect(2, log_then, epoch=7)
            await until(lambda: any("lacks" in line for line in caplog.messages))

    asyncio.run(scenario())

    lines = [line for line in caplog.messages if "goes on" in line or "lacks" in line]
    assert lines == [f"t-0: the new leader lacks what was read before offset 4; {told}"]


def test_a_position_that_no_log_has_is_told_of_with_where_reading_goes_on(caplog: pytest.LogCaptureFixture):
    async def scenario():
        async with SmallCluster(Log(3, 3)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 9)
            return await take(consumer, 2)

    assert asyncio.run(scenario()) == [0, 1]
    assert [line for line in caplog.messages if "goes on" in line] == [
        "t-0: its log has no offset 9; goes on at offset 0, as auto_offset_reset=earliest says"
    ]


def test_partitions_without_a_leader_are_told_of_ever_more_seldom_and_when_they_are_read_again(
    caplog: pytest.LogCaptureFixture,
):
    async def scenario():
        async with (
            SmallCluster(Log(3, 3)) as cluster,
            a_consumer(cluster, retry_backoff_max_ms=500) as consumer,
        ):
            consumer.assign([T0])
            got = await take(consumer, 2)
            cluster.elect(-1, Log(3, 3), epoch=3)
            await asyncio.sleep(55)
            cluster.elect(2, Log(3, 3, 4), epoch=4)
            return got + await take(consumer, 1)

    assert run_hurried(scenario()) == [0, 1, 2]
    *away, back = [line for line in caplog.messages if "nothing is read" in line or "again, after" in line]
    waited = [int(line.removeprefix("nothing is read for ").partition(" s of t-0 (")[0]) for line in away]
    assert waited == pytest.approx([5, 10, 20, 40], rel=0.2)
    assert away[0].endswith(
        "(LEADER_NOT_AVAILABLE: the partition has no leader just now: its broker has died, or does not reach"
        " its database); asked again and again"
    )
    assert int(back.removeprefix("all is read again, after ").removesuffix(" s")) == pytest.approx(55, abs=2)


def test_a_leader_that_is_away_for_moments_is_not_told_of(caplog: pytest.LogCaptureFixture):
    async def scenario():
        async with SmallCluster(Log(3)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([T0])
            await take(consumer, 1)
            cluster.elect(-1, Log(3), epoch=3)
            await asyncio.sleep(3)
            cluster.elect(2, Log(3, 4), epoch=4)
            return await take(consumer, 1)

    assert run_hurried(scenario()) == [1]
    assert [line for line in caplog.messages if "read" in line] == []


def test_a_partition_that_there_is_not_is_told_of_at_once(caplog: pytest.LogCaptureFixture):
    async def scenario():
        async with SmallCluster(Log(3)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([TopicPartition("t", 7)])
            await asyncio.sleep(1)

    run_hurried(scenario())

    assert [line for line in caplog.messages if "nothing is read" in line] == [
        "nothing is read of t-7 (the topic has 1 partition, from 0 on; more may be added);"
        " asked again and again"
    ]


def test_without_a_policy_the_application_decides():
    async def scenario():
        async with (
            SmallCluster(Log(1, 1, 3, 3)) as cluster,
            a_consumer(cluster, auto_offset_reset="none") as consumer,
        ):
            consumer.assign([T0])
            consumer.seek(T0, 0)
            await take(consumer, 4)
            cluster.elect(2, Log(1, 1, 4), epoch=4)
            for _ in range(2):  # until it has
                with pytest.raises(LogTruncated, match="goes along up to 2; seek") as truncated:
                    await consumer.getmany(timeout_ms=MANY_MS)
            consumer.seek(T0, OffsetAndMetadata(2, 1))
            return truncated.value, await take(consumer, 1)

    error, then = asyncio.run(scenario())

    assert (error.partition, error.position, error.end) == (T0, OffsetAndMetadata(4, 3), 2)
    assert then == [2]


def test_what_was_fetched_and_not_handed_out_is_asked_about_from_where_it_was_handed_out():
    """Two of four records are with the application; the two that wait are lost, and others are there."""

    async def scenario():
        async with SmallCluster(Log(1, 1, 3, 3)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([T0])
            first = [
                record.offset for record in (await consumer.getmany(timeout_ms=MANY_MS, max_records=2))[T0]
            ]
            cluster.elect(2, Log(1, 1, 4), epoch=4)
            await until(lambda: len(cluster.epoch_questions) == 2)
            return first, await take(consumer, 1), cluster.epoch_questions

    first, then, asked = asyncio.run(scenario())

    assert (first, then) == ([0, 1], [2])
    assert asked == [(3, 4), (1, 4)]


def test_a_refusal_that_passes_is_asked_again_after_another_look_at_the_leaders():
    async def scenario():
        async with SmallCluster(Log(3)) as cluster, a_consumer(cluster) as consumer:
            cluster.refuse_epochs = [Code.UNKNOWN_LEADER_EPOCH, Code.NOT_LEADER_OR_FOLLOWER]
            consumer.assign([T0])
            await take(consumer, 1)
            cluster.elect(2, Log(3, 4), epoch=4)
            return await take(consumer, 1), cluster.epoch_questions

    assert asyncio.run(scenario()) == ([1], [(3, 4)] * 3)


def test_a_committed_offset_is_checked_by_the_epoch_that_was_committed_with_it():
    async def scenario():
        log, committed = Log(1, 1, 3), (3, 2, "noted")
        async with (
            SmallCluster(log, committed=committed) as cluster,
            a_consumer(cluster, group_id="g", enable_auto_commit=False) as consumer,
        ):
            consumer.assign([T0])
            noted = await consumer.committed(metadata=True)
            return noted, await consumer.committed(), await take(consumer, 1), cluster.epoch_questions

    noted, plain, got, asked = asyncio.run(scenario())

    assert (noted, plain) == ({T0: OffsetAndMetadata(3, 2, "noted")}, {T0: 3})
    assert asked[0] == (2, 3)
    assert got == [2]  # the records of epoch 2 are gone: those of epoch 1 end at 2


def test_positions_are_told_with_their_epoch_and_going_back_within_a_log_asks_nobody():
    async def scenario():
        async with SmallCluster(Log(1, 1, 3)) as cluster, a_consumer(cluster) as consumer:
            consumer.assign([T0])
            await take(consumer, 3)
            stand = consumer._progress.positions(consumer.assignment())
            consumer.seek(T0, 0)
            async for record in consumer:
                if record.offset == 0:
                    break
            assert await consumer.getmany() == {}  # what is left of the walk goes back
            return stand, await take(consumer, 2), cluster.epoch_questions

    assert asyncio.run(scenario()) == ({T0: OffsetAndMetadata(3, 3)}, [1, 2], [])


def test_the_replica_that_the_leader_names_for_our_rack_is_fetched_from():
    """KIP-392: the leader is asked with client_rack, names broker 2, and that one hands out the records."""

    async def scenario():
        async with SmallCluster(Log(3, 3)) as cluster:
            cluster.preferred = 2
            async with a_consumer(cluster, client_rack="r2") as consumer:
                consumer.assign([T0])
                return await take(consumer, 2), cluster.fetches

    got, fetches = asyncio.run(scenario())

    assert got == [0, 1]
    assert [node for node, _ in fetches[:2]] == [1, 2]
    assert {request.rack_id for _, request in fetches} == {"r2"}


def test_a_replica_that_is_none_any_more_is_left_for_the_leader():
    async def scenario():
        async with SmallCluster(Log(3, 3)) as cluster:
            cluster.preferred = 2
            async with a_consumer(cluster, client_rack="r2") as consumer:
                consumer.assign([T0])
                await take(consumer, 2)
                cluster.preferred, cluster.log = -1, Log(3, 3, 3)
                cluster.fetches.clear()
                return await take(consumer, 1), cluster.fetches

    got, fetches = asyncio.run(scenario())

    assert got == [2]
    assert 1 in {node for node, _ in fetches}


def test_two_answers_for_one_place_are_taken_once():
    """The replica is of no more account while it is asked, as the time for it is over: then both answer."""

    async def scenario():
        async with SmallCluster(Log(3, 3)) as cluster:
            cluster.preferred = 2
            async with a_consumer(cluster, client_rack="r2") as consumer:
                consumer.assign([T0])
                await take(consumer, 2)
                leader, replica = cluster.brokers
                replica.may_answer.clear()
                cluster.log = Log(3, 3, 3)
                cluster.fetches.clear()
                await until(lambda: cluster.fetches)
                cluster.preferred = -1
                consumer._fetcher.states[T0].replica_until = 0.0
                consumer._fetcher._wanted(leader.address)
                got = await take(consumer, 1)
                cluster.preferred = 2  # the replica's answer shall be one
                replica.may_answer.set()
                cluster.log = Log(3, 3, 3, 3)
                return got + await take(consumer, 1)

    assert asyncio.run(scenario()) == [2, 3]


def test_closing_ends_the_fetch_sessions():
    """KIP-227: the last request of each session has the final epoch, and asks for nothing."""

    async def scenario():
        async with SmallCluster(Log(3)) as cluster:
            async with a_consumer(cluster) as consumer:
                consumer.assign([T0])
                await take(consumer, 1)
                cluster.elect(2, Log(3, 4), epoch=4)
                await take(consumer, 1)
            return cluster.fetches

    fetches = asyncio.run(scenario())

    last = {node: (request.session_id, request.session_epoch, request.topics) for node, request in fetches}
    assert last == {1: (SESSION_ID + 1, -1, ()), 2: (SESSION_ID + 2, -1, ())}


def test_a_broker_that_is_gone_does_not_hold_up_closing():
    async def scenario():
        async with SmallCluster(Log(3)) as cluster:
            consumer = a_consumer(cluster)
            await consumer.start()
            consumer.assign([T0])
            await take(consumer, 1)
        await consumer.close()

    asyncio.run(scenario())
