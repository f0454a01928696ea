"""What a task does when its connection breaks, without Spark: against a real broker."""

from __future__ import annotations

import time

import pytest

from coterie.base.ids import TopicPartition
from coterie.client.net.addresses import Address
from coterie.spark.source import tasks
from coterie.spark.source.offsets import Range
from coterie.spark.source.options import parse

SMALL = {"kafka.max.partition.fetch.bytes": "100000", "kafka.fetch.max.bytes": "100000"}


class Clock:
    """The machine's clock, and how much further it is."""

    def __init__(self):
        self.ahead_s = 0.0

    def monotonic(self):
        return time.monotonic() + self.ahead_s

    sleep = staticmethod(time.sleep)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(tasks, "time", made)
    return made


@pytest.fixture
def connections(monkeypatch):
    """The connections that tasks open, in their order."""
    opened = []

    class Noted(tasks.BlockingConnection):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            opened.append(self)

    monkeypatch.setattr(tasks, "BlockingConnection", Noted)
    return opened


def task_of(topic, count):
    given = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, **SMALL}
    options = parse(given, streaming=True)
    host, port = topic.bootstrap.rsplit(":", 1)
    leaders = {TopicPartition(topic.name, 0): Address(host, int(port))}
    return tasks.TaskPartition([Range(topic.name, 0, 0, count)], leaders, tasks.FetchSettings.of(options))


def test_the_time_that_spark_takes_over_rows_is_no_time_without_progress(new_topic, clock, connections):
    topic = new_topic()
    topic.produce([b"x" * 1000] * 1000, **{"batch.size": 20_000})
    rows = 0
    for number, batch in enumerate(tasks.read_task(task_of(topic, 1000))):
        rows += batch.num_rows
        if number == 1:
            clock.ahead_s += 600  # Spark works on what it has; kafkaConsumer.pollTimeoutMs is 120 s
            connections[-1]._socket.close()

    assert rows == 1000
    assert len(connections) > 1
