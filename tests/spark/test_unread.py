"""When the first records that a query has left were written: in virtual time, on a production broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from coterie.base.ids import TopicPartition
from coterie.spark.source.options import parse
from coterie.spark.source.ungrouped import AllPartitions
from coterie.spark.source.unread import (
    LEADER_BYTES,
    PARTITION_BYTES,
    PARTITIONS_AT_ONCE,
    PATIENCE_MOST_S,
    PATIENCE_S,
    PATIENCE_SHARE,
    UNKNOWN_MS,
    FirstBatch,
    first_batch,
)
from coterie.storage.rewrite import sealed
from coterie.wire.api.apis import ApiKey
from coterie.wire.records.batches import (
    HEADER_SIZE,
    HORIZON_BIT,
    Record,
    build_batch,
    build_marker,
    pieces_of,
    read_header,
    restamp,
    shifted,
)
from coterie.wire.records.compression import CODECS, compress

from .driving import instead
from .test_group_session import Query
from .virtual import HOST, PORT, Pipe, VirtualBroker, Watcher, run_virtually

TOPIC = SimpleNamespace(bootstrap=f"{HOST}:{PORT}", name="t")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HOUR_MS = 3_600_000


def batch(offset, *times, append_time=False, codec="none", value=b"v"):
    """A batch whose records were written at these times."""
    rows = [Record(number, time, None, value) for number, time in enumerate(times)]
    made = bytearray(build_batch(rows, codec=codec))
    append_ms = max(times) if append_time else None
    restamp(made, 0, base_offset=offset, leader_epoch=0, append_time_ms=append_ms)
    return bytes(made)


def marker(offset, time):
    made = bytearray(
        build_marker(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=time)
    )
    restamp(made, 0, base_offset=offset, leader_epoch=0, append_time_ms=None)
    return bytes(made)


# What a fetch brought


@given(
    some.lists(some.lists(some.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=5),
    some.booleans(),
    some.data(),
)
def test_the_time_is_that_of_the_first_record_left_or_of_one_before_it_in_its_batch(steps, append_time, data):
    now, offset, log, written = 0, 0, b"", []
    for one in steps:
        times = []
        for step in one:
            now += step
            times.append(now)
        log += batch(offset, *times, append_time=append_time)
        written += [(times[-1] if append_time else time, offset) for time in times]
        offset += len(times)
    position = data.draw(some.integers(0, offset - 1))

    found = first_batch(log, position)

    time, first_of_batch = written[position]
    assert found.first == position < found.until
    assert found.time_ms <= time
    assert found.time_ms == (time if append_time else written[first_of_batch][0])


def test_of_a_batch_that_is_cut_the_header_is_enough():
    whole = batch(0, 5, 6)

    assert first_batch(whole[:61], 1) == FirstBatch(1, 2, 5)
    assert first_batch(whole[:60], 1) is None
    assert first_batch(b"", 1) is None


def test_a_batch_before_the_position_does_not_count():
    assert first_batch(batch(0, 5, 6) + batch(2, 7), 2) == FirstBatch(2, 3, 7)
    assert first_batch(batch(0, 5, 6), 2) is None


def test_a_marker_counts_only_if_nothing_else_has_come():
    assert first_batch(marker(3, 10) + batch(4, 12), 3) == FirstBatch(3, 5, 12)
    assert first_batch(marker(3, 10), 3) == FirstBatch(3, 4, 10)


def test_a_batch_that_compaction_has_emptied_counts_only_if_nothing_else_has_come():
    header = read_header(batch(0, 5, 6))
    _, emptied = sealed(header._replace(count=0, base_timestamp=-1), b"")

    assert first_batch(emptied + batch(2, 9), 0) == FirstBatch(0, 3, 9)
    assert first_batch(emptied, 0) == FirstBatch(0, 2, 6)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_where_compaction_keeps_another_time_in_the_header_the_record_says_it(codec):
    plain, horizon_ms = batch(0, 5, 6, 8), HOUR_MS
    pieces = [shifted(piece, 5 - horizon_ms) for piece in pieces_of(plain[HEADER_SIZE:], 3)]
    header = read_header(plain)._replace(
        attributes=CODECS.index(codec) | HORIZON_BIT, base_timestamp=horizon_ms
    )
    _, dated = sealed(header, compress(codec, b"".join(pieces)))

    assert [first_batch(dated, offset).time_ms for offset in range(3)] == [5, 6, 8]
    assert first_batch(dated[:-1], 0) is None  # more of it has to come


def test_what_no_reader_of_ours_reads_has_no_time():
    assert first_batch(b"\0" * 16 + b"\1" + b"\0" * 60, 7) == FirstBatch(7, 8, UNKNOWN_MS)


def test_records_without_a_time_have_none():
    assert first_batch(batch(0, -1, -1), 0).time_ms == UNKNOWN_MS


# A query


class Fetches(Watcher):
    """Counts the fetches that clients ask for."""

    def __init__(self):
        self.count = 0

    def asked(self, process, data):
        self.count += int.from_bytes(data[4:6], "big") == ApiKey.FETCH


class Scene:
    """A query without a group that takes so many offsets a batch, on a broker with a topic."""

    def __init__(self, loop, *, most=None, partitions=1, **configs):
        self.broker = VirtualBroker(loop, seed=1)
        self.broker.watcher = self.fetches = Fetches()
        self.broker.node.topic_manager.create_topic("t", partitions=partitions, configs=configs)
        self.most = most
        given = {"kafka.bootstrap.servers": TOPIC.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
        self.query = AllPartitions(parse(given, streaming=True), alive=lambda: True)
        self.start = None

    def write(self, *values, partition=0, ago_ms=0):
        """Write a batch; return when its first record was written."""
        written = self.broker.now_ms() - ago_ms
        rows = [Record(number, written + number, None, value) for number, value in enumerate(values)]
        self.broker.node.replica_manager.append(
            "t", partition, build_batch(rows), now_ms=self.broker.now_ms()
        )
        return written

    async def plan(self):
        """Plan a batch; return when what it leaves was written."""
        self.start = self.start or await self.query.initial()
        self.start = await self.query.latest(self.start, self.most)
        return await self.query.unread_times()


def played(scenario, **more):
    async def main(loop):
        scene = Scene(loop, **more)
        try:
            return await scenario(scene)
        finally:
            await scene.query.cluster.close()

    return run_virtually(main)


def test_nothing_is_asked_where_nothing_is_left():
    async def scenario(scene):
        scene.write(b"v", b"v")
        found = [await scene.plan()]
        scene.write(b"v")
        found.append(await scene.plan())
        return found, scene.query.left, scene.fetches.count

    assert played(scenario) == ([{}, {}], {}, 0)


def test_what_is_left_was_written_when_its_first_record_was():
    async def scenario(scene):
        times = []
        for _ in range(3):
            times.append(scene.write(b"v", b"v"))
            await asyncio.sleep(60)
        found = [await scene.plan() for _ in range(3)]
        return [one.get(T0) for one in found], times

    found, times = played(scenario, most=2)
    assert found == [times[1], times[2], None]


def test_within_a_batch_it_is_at_most_as_long_ago_as_its_first_record():
    async def scenario(scene):
        written = scene.write(b"v", b"v", b"v")
        return [(await scene.plan()).get(T0) for _ in range(3)], written

    found, written = played(scenario, most=1)
    assert found == [written, written, None]


def test_where_the_broker_dates_records_it_is_exact_within_a_batch():
    async def scenario(scene):
        scene.write(b"v", b"v", b"v", ago_ms=HOUR_MS)
        appended = scene.broker.now_ms()
        await asyncio.sleep(60)
        return [(await scene.plan()).get(T0) for _ in range(2)], appended

    found, appended = played(scenario, most=1, **{"message.timestamp.type": "LogAppendTime"})
    assert found == [appended] * 2


def test_a_position_that_stands_is_not_asked_for_again_nor_one_in_the_same_batch():
    async def scenario(scene):
        scene.write(b"v", b"v", b"v")
        await scene.plan()
        asked = scene.fetches.count
        for _ in range(5):
            await scene.query.unread_times()
            await asyncio.sleep(10)
        await scene.plan()
        return asked, scene.fetches.count

    assert played(scenario, most=1) == (1, 1)


def test_a_position_that_goes_back_has_no_time_of_a_later_one():
    async def scenario(scene):
        times = [scene.write(b"v")]
        await asyncio.sleep(60)
        times += [scene.write(b"v"), scene.write(b"v")]
        await scene.plan()
        await scene.plan()
        await asyncio.sleep(60)
        scene.query.left = {T0: 0}
        return await scene.query.unread_times(), times[0]

    found, written = played(scenario, most=1)
    assert found == {T0: written}


def test_what_retention_has_taken_unread_does_not_count():
    async def scenario(scene):
        for _ in range(4):
            written = scene.write(b"v")
            await asyncio.sleep(60)
        log = scene.broker.node.replica_manager.log_of("t", 0)
        scene.start = await scene.query.initial()
        log.delete_before(3, scene.broker.now_ms())
        found = await scene.plan()
        return found or await later(scene), written

    found, written = played(scenario, most=1)
    assert found == {T0: written}


async def later(scene):
    await asyncio.sleep(5)
    return await scene.query.unread_times()


@pytest.mark.parametrize(
    ("idle_s", "waits_s"), [(0.5, PATIENCE_S), (3.0, 3.0 * PATIENCE_SHARE), (3600.0, PATIENCE_MOST_S)]
)
def test_a_plan_waits_a_moment_by_how_seldom_it_asks_and_what_comes_later_counts_the_next_time(
    idle_s, waits_s
):
    async def scenario(scene):
        times = []
        for _ in range(4):
            times.append(scene.write(b"v"))
            await asyncio.sleep(60)
        found = [await scene.plan()]  # opens the connection
        await asyncio.sleep(idle_s)
        scene.start = await scene.query.latest(scene.start, 1)
        scene.broker.delay_s = lambda: 0.5
        begun = scene.broker.loop.time()
        found.append(await scene.query.unread_times())
        waited_s = scene.broker.loop.time() - begun
        scene.broker.delay_s = lambda: 0.001
        found.append(await scene.plan())  # the answer is still on its way
        found.append(await later(scene))
        return [one.get(T0) for one in found], waited_s, times

    found, waited_s, times = played(scenario, most=1)
    assert waited_s == pytest.approx(waits_s, abs=0.005)
    assert found == [times[1], times[1], times[1], times[3]]


def test_the_answer_of_a_plan_before_is_a_time_that_is_no_later():
    async def scenario(scene):
        times = []
        for _ in range(3):
            times.append(scene.write(b"v"))
            await asyncio.sleep(60)
        scene.start = await scene.query.latest(await scene.query.initial(), 1)
        scene.broker.delay_s = lambda: 0.2
        found = [await scene.query.unread_times()]
        scene.start = await scene.query.latest(scene.start, 1)
        await asyncio.sleep(1.5)  # it has come by now
        found.append(await scene.query.unread_times())
        return [one.get(T0) for one in found], times

    found, times = played(scenario, most=1)
    assert found == [None, times[1]]  # the one of now is asked for, and comes later


def test_a_broker_that_is_away_costs_a_moment_a_second_and_fails_nothing():
    async def scenario(scene):
        scene.write(b"v", b"v")
        scene.start = await scene.query.latest(await scene.query.initial(), 1)
        scene.broker.break_chance = 1.0
        begun = scene.broker.loop.time()
        found = [await scene.query.unread_times() for _ in range(100)]
        waited_s = scene.broker.loop.time() - begun
        scene.broker.break_chance = 0.0
        await asyncio.sleep(2)
        return found, waited_s, await scene.query.unread_times()

    found, waited_s, healed = played(scenario, most=1)
    assert found == [{}] * 100
    assert waited_s < 2 * PATIENCE_S
    assert healed.keys() == {T0}


@pytest.mark.parametrize("size", [1, PARTITION_BYTES - 200, 2 * PARTITION_BYTES])
def test_of_many_partitions_all_are_known_in_time_with_few_bytes_at_a_time(size):
    partitions = 3 * PARTITIONS_AT_ONCE

    async def scenario(scene):
        times = {}
        for partition in range(partitions):
            at = TopicPartition("t", partition)
            scene.write(b"v" * size, partition=partition)
            await asyncio.sleep(1)
            times[at] = scene.write(b"v" * size, partition=partition)
        scene.query.ends = dict.fromkeys(times, 2)
        scene.query.left = dict.fromkeys(times, 1)
        await scene.query.cluster.leaders(times)
        sizes, found = [], []
        with instead(Pipe, "send", noting(sizes)):
            for _ in range(partitions):
                found.append(await scene.query.unread_times())
                await asyncio.sleep(1)
        return found, times, sizes

    found, times, sizes = played(scenario, partitions=partitions)
    assert found[-1] == times
    assert 0 < len(found[0]) <= PARTITIONS_AT_ONCE
    assert max(sizes) <= LEADER_BYTES + PARTITION_BYTES


def test_large_batches_come_in_turn_also_where_all_positions_move_on_meanwhile():
    partitions, rounds = [TopicPartition("t", number) for number in range(4)], 12

    async def scenario(scene):
        times = {}
        for offset in range(rounds + 1):
            for at in partitions:
                times[at, offset] = scene.write(b"v" * 2 * PARTITION_BYTES, partition=at.partition)
                await asyncio.sleep(1)
        scene.query.ends = dict.fromkeys(partitions, rounds + 1)
        await scene.query.cluster.leaders(partitions)
        for offset in range(rounds):
            scene.query.left = dict.fromkeys(partitions, offset)
            found = await scene.query.unread_times()
            await asyncio.sleep(1)
        return {
            at: next(offset for offset in range(rounds) if times[at, offset] == found[at]) for at in found
        }

    found = played(scenario, partitions=len(partitions))
    assert found.keys() == {*partitions}
    assert min(found.values()) >= rounds - len(partitions)


def noting(sizes):
    """Return how a pipe sends that adds the sizes of answers to the list."""
    send = Pipe.send

    def noted(pipe, data, *, to_broker):
        if not to_broker:
            sizes.append(len(data))
        send(pipe, data, to_broker=to_broker)

    return noted


def test_a_member_knows_it_of_what_it_owns():
    async def main(loop):
        broker = VirtualBroker(loop, seed=1, **{"group.initial.rebalance.delay.ms": "0"})
        broker.node.topic_manager.create_topic("t", partitions=2)
        query = Query(TOPIC, "g", most=2)
        query.start()
        for partition in (0, 1):
            broker.write("t", partition, 3)
        written = broker.now_ms()
        await asyncio.sleep(60)
        while not await query.plan():
            pass
        await query.finish()
        found = query.log.lag, await query.session.unread_times()
        await query.stop()
        return *found, written

    lag, times, written = run_virtually(main)
    assert sum(lag.values()) == 4
    assert times == dict.fromkeys((one for one in lag if lag[one]), written)
