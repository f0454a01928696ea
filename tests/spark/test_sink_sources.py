"""Topic to topic: rows and the offsets that they were read up to are there together, once, or not at all."""

from __future__ import annotations

import asyncio
import random
import threading

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StringType, StructField, StructType

from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.producer.errors import TransactionAborted
from coterie.spark.options import BadOption
from coterie.spark.sink.copying import NotOurs, PartitionsLost, write_with_offsets
from coterie.spark.sink.options import parse_sink
from coterie.spark.sink.sink import refuse_columns
from coterie.spark.source.columns import SOURCE_FIELDS
from coterie.spark.source.datasource import SOURCE
from coterie.spark.source.group.session import GroupSession
from coterie.spark.source.offsets import GroupDocument

from .test_group_session import options_of, until
from .test_sink import forget_last_batch, values_of
from .test_stream import begin

SHAPE = pa.struct(list(SOURCE_FIELDS))
LONG = (pytest.mark.interop, pytest.mark.timeout(900))
TASK = 5
"""Spark's number of the attempt that runs."""


@pytest.fixture
def source(new_topic):
    return new_topic(partitions=2)


@pytest.fixture
def target(new_topic):
    return new_topic(partitions=2)


def sink(target, **more):
    given = {
        "kafka.bootstrap.servers": target.bootstrap,
        "topic": target.name,
        "semantics": "exactly-once",
        "commitSourceOffsets": "true",
        "kafka.retry.backoff.ms": "10",
        **more,
    }
    return parse_sink(given, streaming=True)


def rows(source, offsets, *, group, partition=0, first=0, stop=10, **more):
    """Rows as a task reads them, by a group without members unless `more` says by whom."""
    stamp = {
        "group": group,
        "member": None,
        "instance": None,
        "generation": -1,
        "topic": source.name,
        "partition": partition,
        "first": first,
        "until": stop,
        "whole": True,
        "task": TASK,
        **more,
    }
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f"{partition}-{offset}" for offset in offsets], pa.string()),
            pa.array([{**stamp, "offset": offset} for offset in offsets], SHAPE),
        ],
        names=["value", "source"],
    )


async def write(target, *batches, name="q-0", attempt=TASK):
    return await write_with_offsets(sink(target), batches, name=name, attempt=attempt)


def columns_by_name(partition, *offsets):
    return [f"{partition}-{offset}" for offset in offsets]


def test_rows_and_the_offsets_behind_them_are_one_transaction(source, target, group, run):
    """Offsets that no row is left of count as well: a filter may have dropped them."""
    source.commit(group, {0: 0, 1: 4})
    one = rows(source, [0, 3, 7], group=group)
    other = rows(source, [4, 5], group=group, partition=1, first=4, stop=6)

    assert run(write(target, one, other)) == 5

    assert values_of(target) == sorted([*columns_by_name(0, 0, 3, 7), *columns_by_name(1, 4, 5)])
    assert source.committed(group) == {0: 10, 1: 6}


def test_a_task_that_is_tried_again_writes_only_what_is_not_there(source, target, group, run):
    source.commit(group, {0: 0})
    run(write(target, rows(source, range(6), group=group, stop=6)))

    again = run(write(target, rows(source, range(6), group=group, stop=6)))
    longer = run(write(target, rows(source, range(10), group=group)))

    assert (again, longer) == (0, 4)
    assert values_of(target) == columns_by_name(0, *range(10))
    assert source.committed(group) == {0: 10}


def test_a_task_without_rows_writes_nothing_and_still_fences_who_was_it_before(source, target, group, run):
    """A zombie waits with its rows in its hands while the task is run again."""
    source.commit(group, {0: 0})
    begun, over = threading.Event(), threading.Event()

    def slowly():
        yield rows(source, [0, 1], group=group)
        begun.set()
        assert over.wait(60)

    async def scenario():
        zombie = asyncio.create_task(write_with_offsets(sink(target), slowly(), name="q-0", attempt=TASK))
        await asyncio.to_thread(begun.wait, 60)
        wrote = await write(target)
        over.set()
        # Whoever hears of it first says so: the partition's leader or the coordinator.
        with pytest.raises((RefusedBy, TransactionAborted)):
            await zombie
        return wrote

    assert run(scenario()) == 0
    assert values_of(target) == []
    assert source.committed(group) == {0: 0}


@pytest.mark.parametrize(
    ("stamp", "why"),
    [
        ({"group": None}, "without group.id"),
        ({"task": TASK + 1}, "a shuffle lies between"),
        ({"whole": False}, "read by more than one task: by minPartitions"),
        ({"stop": 3}, "outside of what its task has read"),
        ({"partition": 1}, "no committed offset here"),
        ({"first": 5}, "committed offset is 2, below 5"),
        ({"first": 0}, "offsets 0 to 1 of this batch were committed by a member and not by this task"),
    ],
)
def test_rows_that_a_task_can_not_account_for_are_refused(source, target, group, run, stamp, why):
    source.commit(group, {0: 2})
    kept = rows(source, [6, 7], **{"group": group, "first": 2, **stamp})

    with pytest.raises(NotOurs, match=why):
        run(write(target, kept))

    assert values_of(target) == []
    assert source.committed(group) == {0: 2}


def test_rows_without_a_source_are_refused(source, target, group, run):
    source.commit(group, {0: 0})
    kept = rows(source, [1], group=group)
    joined = pa.RecordBatch.from_arrays([kept["value"], pa.nulls(1, SHAPE)], names=["value", "source"])

    with pytest.raises(NotOurs, match="source is null"):
        run(write(target, kept, joined))

    assert values_of(target) == []


def test_a_partition_that_one_task_reads_twice_is_refused(source, target, group, run):
    source.commit(group, {0: 0})

    with pytest.raises(NotOurs, match="read twice into one task"):
        run(write(target, *(rows(source, [1], group=group, stop=stop) for stop in (5, 6))))


def test_two_tasks_that_read_one_partition_are_refused(source, target, group, run):
    source.commit(group, {0: 0})
    run(write(target, rows(source, [1], group=group)))

    with pytest.raises(NotOurs, match="committed by q-0 and not by this task, q-1"):
        run(write(target, rows(source, [1], group=group), name="q-1"))

    assert values_of(target) == columns_by_name(0, 1)


def test_a_member_of_a_generation_that_has_passed_writes_nothing(source, target, group, run, patient_session):
    source.produce([b"v"] * 4)

    async def scenario():
        session = GroupSession(options_of(source, group, **patient_session), alive=lambda: True)
        document = None
        while document is None:
            document = await session.plan(GroupDocument(group=group), None)
        stamp = {"group": group, "member": document.member, "stop": 2}
        late = rows(source, [0, 1], generation=document.generation - 1, **stamp)
        with pytest.raises(PartitionsLost, match="ILLEGAL_GENERATION"):
            await write(target, late)
        wrote = await write(target, rows(source, [0, 1], generation=document.generation, **stamp))
        await session.close()
        return wrote

    assert run(scenario()) == 2
    assert values_of(target) == columns_by_name(0, 0, 1)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_while_others_join_a_batch_may_still_be_committed_in_its_generation(
    source, target, group, run, patient_session, assignor
):
    """Even a cooperative member, which would join again at once, waits for the batch under way."""
    source.produce([b"v"] * 4)
    options = options_of(
        source,
        group,
        includeSource="true",
        **patient_session,
        **{"partition.assignment.strategy": assignor},
    )

    async def scenario():
        one, other = (GroupSession(options, alive=lambda: True) for _ in range(2))
        log = GroupDocument(group=group)
        documents = []

        async def plan():
            documents.extend(filter(None, [await one.plan(log, None)]))

        await until(lambda: documents, plan)
        (document,) = documents
        await other.membership()
        member = one._membership.member
        await until(lambda: member.rejoin_why is not None, lambda: other._membership.moved(0.1))
        reader = {"member": one.reader.member, "generation": one.reader.generation}
        batches = [rows(source, [0, 1], group=group, partition=number, stop=2, **reader) for number in (0, 1)]
        wrote = await write(target, *batches)
        log = document
        await until(
            lambda: one._membership.generation.id > document.generation, plan, lambda: other.plan(log, None)
        )
        await asyncio.gather(one.close(), other.close())
        return wrote

    assert run(scenario()) == 4
    assert values_of(target) == sorted([*columns_by_name(0, 0, 1), *columns_by_name(1, 0, 1)])
    assert source.committed(group) == {0: 2, 1: 2}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"semantics": "at-least-once"}, "needs semantics=exactly-once"),
        ({"commitSourceOffsets": "perhaps"}, "must be true or false"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given, why):
    with pytest.raises(BadOption, match=why):
        parse_sink(
            {
                "kafka.bootstrap.servers": "b:1",
                "topic": "t",
                "semantics": "exactly-once",
                "commitSourceOffsets": "true",
                **given,
            },
            streaming=True,
        )


@pytest.mark.parametrize("kind", [None, StringType(), StructType([StructField("topic", StringType())])])
def test_rows_that_do_not_say_where_they_come_from_are_refused(kind):
    given = {"topic": "t", "semantics": "exactly-once", "commitSourceOffsets": "true"}
    options = parse_sink({"kafka.bootstrap.servers": "b:1", **given}, streaming=True)
    fields = [StructField("value", StringType())]

    refuse_columns(StructType([*fields, StructField("source", SOURCE)]), options)
    with pytest.raises(BadOption, match="includeSource=true"):
        refuse_columns(StructType([*fields, *([StructField("source", kind)] if kind else [])]), options)


class Application:
    """A query as Spark drives it: its member, its log, and tasks that may die at any moment.

    `name` is that of its tasks: one that comes back has it again, and its log.
    """

    def __init__(self, name, options, target):
        self.name, self.options, self.target = name, options, target
        self.log, self.done = GroupDocument(group=options.member.group_id), True
        self.attempts = 0

    async def live(self, chance):
        """Work until something in it is killed, or the work is cancelled."""
        self.alive = True
        session = GroupSession(self.options, alive=lambda: self.alive)
        try:
            while True:
                if self.done:
                    planned = await session.plan(self.log, 7)
                    if planned is None:
                        continue
                    self.log, self.done = planned, False
                await self.batch(session, chance)
                self.done = True
        finally:
            self.alive = False
            if session._membership is not None:
                await session._membership.abandon()
            await session.cluster.close()

    async def batch(self, session, chance):
        """Run the logged batch's tasks, one a partition; some are killed and run again, or run twice."""
        left = await session.left_to_read(self.log, self.log.ranges)
        await asyncio.gather(
            *(self.task(number, one, session.reader, chance) for number, one in enumerate(left))
        )

    async def task(self, number, one, reader, chance):
        while True:
            self.attempts += 1
            attempt, batches = self.attempts, []
            if one is not None:
                source = dict(zip(("group", "member", "instance", "generation"), reader, strict=True))
                stamp = {**source, "topic": one.topic, "partition": one.partition, "whole": True}
                stamp |= {"first": one.first, "until": one.until, "task": attempt}
                batches = [
                    pa.RecordBatch.from_arrays(
                        [
                            pa.array([f"{one.partition}-{offset}"], pa.string()),
                            pa.array([{**stamp, "offset": offset}], SHAPE),
                        ],
                        names=["value", "source"],
                    )
                    for offset in range(one.first, one.until)
                ]
            work = asyncio.create_task(
                write_with_offsets(sink(self.target), batches, name=f"{self.name}-{number}", attempt=attempt)
            )
            try:
                await asyncio.wait([work], timeout=chance.expovariate(20) if chance.random() < 0.3 else None)
            finally:
                if not work.done():
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)
            if not work.cancelled():
                await work
                return


@pytest.mark.parametrize(
    ("assignor", "kills"),
    [
        ("range", 4),
        pytest.param("range", 50, marks=LONG),
        pytest.param("cooperative-sticky", 50, marks=LONG),
    ],
)
def test_whatever_dies_each_record_is_written_once(new_topic, group, run, quick_session, assignor, kills):
    """Applications and their tasks are ended at random; readers of committed records see each once."""
    source, target = new_topic(partitions=3), new_topic(partitions=2)
    source.produce([b"v"] * 20 * kills)
    options = options_of(
        source,
        group,
        includeSource="true",
        **quick_session,
        **{"partition.assignment.strategy": assignor, "kafka.retry.backoff.ms": "10"},
    )
    chance = random.Random(kills)

    async def lives(app):
        """One life after the other, some cut short; a fenced or lost task ends one, too."""
        while True:
            life = asyncio.create_task(app.live(chance))
            try:
                await asyncio.wait([life], timeout=chance.uniform(0.3, 4) if deaths else None)
            finally:
                life.cancel()
                await asyncio.gather(life, return_exceptions=True)
            error = None if life.cancelled() else life.exception()
            if isinstance(error, NotOurs) or not isinstance(error, CoterieError | None):
                raise error
            if deaths:
                deaths.pop()

    deaths = [None] * kills
    ends = {TopicPartition(source.name, at): end for at, end in source.ends().items()}

    async def scenario():
        running = [asyncio.create_task(lives(Application(name, options, target))) for name in "ab"]
        watcher = GroupSession(options, alive=lambda: True)

        async def look():
            await asyncio.wait(running, timeout=0.1)
            for one in running:
                if one.done():
                    await one
            reached.update(await watcher.cluster.committed(group, ends))

        reached: dict[TopicPartition, int | None] = {}
        await until(lambda: reached == ends and not deaths, look, limit_s=800)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await watcher.cluster.close()

    run(scenario())

    assert values_of(target) == sorted(f"{one.partition}-{one.offset}" for one in source.sent)


def test_what_a_task_has_committed_says_by_whom(source, target, group, run):
    """So that a second reader of the same partition is recognised."""
    source.commit(group, {0: 0})
    run(write(target, rows(source, [1], group=group)))

    async def noted():
        session = GroupSession(options_of(source, group), alive=lambda: True)
        place = TopicPartition(source.name, 0)
        found = await session.cluster.committed_notes(group, [place])
        await session.cluster.close()
        return found[place]

    assert run(noted()) == OffsetAndMetadata(10, metadata="q-0")


def copied(spark, source, target, group, checkpoint, change=None, **more):
    """Copy what is there of one topic to another, changed on the way."""
    records = (
        spark.readStream.format("coterie")
        .option("kafka.bootstrap.servers", source.bootstrap)
        .option("subscribe", source.name)
        .option("startingOffsets", "earliest")
        .option("group.id", group)
        .option("includeSource", "true")
        .option("kafka.retry.backoff.ms", "10")
        .options(**more)
        .load()
        .select("value", "source")
    )
    writer = (
        (change(records) if change else records)
        .writeStream.format("coterie")
        .option("kafka.bootstrap.servers", target.bootstrap)
        .option("topic", target.name)
        .option("semantics", "exactly-once")
        .option("commitSourceOffsets", "true")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    assert begin(writer).awaitTermination(200)


def test_a_query_copies_a_topic_once_through_a_filter_though_its_last_batch_is_replayed(
    spark, source, target, group, tmp_path
):
    source.produce([b"%d" % number for number in range(20)])
    checkpoint = tmp_path / "copy"

    def odd(records):
        return records.where("cast(cast(value as string) as int) % 2 = 1").coalesce(1)

    copied(spark, source, target, group, checkpoint, odd)
    forget_last_batch(checkpoint)
    source.produce([b"21", b"22"])
    copied(spark, source, target, group, checkpoint, odd)

    assert values_of(target) == sorted(str(number) for number in range(1, 23, 2))
    assert source.committed(group) == source.ends()


@pytest.mark.interop
@pytest.mark.parametrize(
    ("change", "options", "why"),
    [
        (lambda records: records.repartition(2), {}, "a shuffle lies between"),
        (None, {"minPartitions": "4"}, "read by more than one task"),
        (lambda records: records.unionAll(records), {}, "read by more than one task|not by this task"),
    ],
)
def test_plans_whose_tasks_can_not_account_for_their_rows_are_refused(
    spark, source, target, group, tmp_path, change, options, why
):
    source.produce([b"%d" % number for number in range(20)])

    with pytest.raises(StreamingQueryException, match=why):
        copied(spark, source, target, group, tmp_path / "copy", change, **options)
