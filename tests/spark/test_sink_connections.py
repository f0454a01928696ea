"""The sink's tasks keep their connections from one to the next, and nothing that is wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

import coterie.testing
from coterie.client.admin.admin import Admin
from coterie.client.errors import Disconnected
from coterie.client.net.connection import Connection
from coterie.spark.sink import worker_loop
from coterie.spark.sink.exactly_once import TaskAttempt, note_done, write_once
from coterie.spark.sink.options import SinkOptions, parse_sink
from coterie.spark.sink.sink import write_plainly
from coterie.spark.sink.worker_loop import WORKER_LOOP

from .kafka import Topic, create_topic

ROWS = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"], pa.string())})
run = WORKER_LOOP.run


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Connection]]:
    """The connections that are opened, in order."""
    found: list[Connection] = []
    connect = Connection._connect

    async def noted(self: Connection, *given: object) -> None:
        await connect(self, *given)
        found.append(self)

    monkeypatch.setattr(Connection, "_connect", noted)
    yield found
    WORKER_LOOP.close()
    assert all(one.closed for one in found)


def options_of(topic: Topic, **more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name, **more}
    return parse_sink(given, streaming=True)


def once(topic: Topic, **more: str) -> SinkOptions:
    return options_of(topic, semantics="exactly-once", **more)


def batch(options: SinkOptions, number: int, *, task: int = 0) -> None:
    """Write a batch of one task, and note that it is done."""
    assert run(write_once(options, [ROWS], TaskAttempt("q", number, task))) == 2
    run(note_done(options, "q", number, tasks=1))


def records_in(topic: Topic, partitions: int = 1) -> int:
    """Return the number of offsets that are taken: transactions' ends are among them."""
    consumer = Consumer({"bootstrap.servers": topic.bootstrap, "group.id": "ends"})
    places = [TopicPartition(topic.name, number) for number in range(partitions)]
    found = sum(consumer.get_watermark_offsets(one, timeout=30)[1] for one in places)
    consumer.close()
    return found


def broken_rows() -> Iterator[pa.RecordBatch]:
    yield ROWS
    raise OSError("the rows cannot be had")


def test_a_batch_after_the_first_opens_no_connection(new_topic, opened):
    options = once(new_topic())
    batch(options, 0)
    first = len(opened)

    for number in range(1, 5):
        batch(options, number, task=number)

    assert first > 0
    assert len(opened) == first


def test_a_task_of_another_query_with_the_same_settings_opens_none_either(new_topic, opened):
    topic, other = new_topic(), new_topic()
    run(write_plainly(options_of(topic), [ROWS]))
    first = len(opened)

    run(write_plainly(options_of(other), [ROWS]))

    assert len(opened) == first
    assert (records_in(topic), records_in(other)) == (2, 2)


def test_settings_that_differ_share_nothing(new_topic, opened):
    topic = new_topic()
    run(write_plainly(options_of(topic), [ROWS]))
    first = len(opened)

    run(write_plainly(options_of(topic, **{"kafka.client.id": "another"}), [ROWS]))

    assert len(opened) == 2 * first


def test_two_tasks_at_once_share_no_connection(new_topic, opened):
    """What one gives up on must not end what the other waits for."""
    topic = new_topic()

    async def both() -> None:
        await asyncio.gather(*(write_plainly(options_of(topic), [ROWS]) for _ in range(2)))

    run(both())

    assert records_in(topic) == 4
    assert len({(one.address, id(one)) for one in opened}) == 4


def test_a_task_that_fails_leaves_its_connections_to_nobody(new_topic, opened):
    options = once(new_topic())
    batch(options, 0)
    first = len(opened)
    with pytest.raises(OSError, match="cannot be had"):
        run(write_once(options, broken_rows(), TaskAttempt("q", 1, 0)))

    assert all(one.closed for one in opened)
    batch(options, 1)

    assert len(opened) == 2 * first


def test_connections_that_were_idle_for_too_long_are_opened_anew(new_topic, opened, monkeypatch):
    options = once(new_topic())
    batch(options, 0)
    first = len(opened)
    monkeypatch.setattr(worker_loop, "IDLE_S", -1.0)

    run(write_once(options, [ROWS], TaskAttempt("q", 1, 0)))

    assert len(opened) > first
    assert all(one.closed for one in opened[:first])


def test_what_other_settings_left_idle_for_too_long_is_closed_too(new_topic, opened, monkeypatch):
    topic = new_topic()
    run(write_plainly(options_of(topic), [ROWS]))
    first = len(opened)
    monkeypatch.setattr(worker_loop, "IDLE_S", -1.0)

    run(write_plainly(options_of(topic, **{"kafka.client.id": "another"}), [ROWS]))

    assert all(one.closed for one in opened[:first])


def test_connections_are_used_for_an_hour_at_most_however_busy(new_topic, opened, monkeypatch):
    """Certificates that were renewed are read with the next."""
    options = options_of(new_topic())
    run(write_plainly(options, [ROWS]))
    first = len(opened)
    monkeypatch.setattr(worker_loop, "LASTS_S", -1.0)

    run(write_plainly(options, [ROWS]))

    assert len(opened) == 2 * first


def test_nothing_is_sent_to_a_broker_over_connections_that_it_closed_meanwhile(opened, monkeypatch):
    """They are seen to be closed before: nothing is tried twice, or waited for."""
    broken, call = [], Connection.call

    async def watched(self: Connection, *given: Any, **more: Any) -> Any:
        try:
            return await call(self, *given, **more)
        except Disconnected as error:
            broken.append(error)
            raise

    monkeypatch.setattr(Connection, "call", watched)
    with coterie.testing.broker() as kafka:
        topic = create_topic(kafka.bootstrap, "t", partitions=1, config={})
        options = once(topic)
        batch(options, 0)
        first = len(opened)
        kafka.stop()
        kafka.restart()

        batch(options, 1)

        assert records_in(topic) == 2 * (2 + 1)  # and the transaction's end
        assert len(opened) == 2 * first
        assert not broken


def test_partitions_that_were_added_are_written_to_after_metadata_max_age(new_topic, opened):
    topic = new_topic()
    options = options_of(topic, **{"kafka.metadata.max.age.ms": "0"})
    run(write_plainly(options, [ROWS]))

    async def add() -> None:
        async with Admin(topic.bootstrap) as admin:
            await admin.create_partitions(topic.name, total=2)

    asyncio.run(add())
    both = ROWS.append_column("partition", pa.array([0, 1], pa.int32()))

    run(write_plainly(options, [both]))

    assert records_in(topic, 2) == 4
