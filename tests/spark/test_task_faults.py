"""What a task hands out while brokers hang up, refuse and have deleted what it should read: without Spark."""

from __future__ import annotations

import socket
from itertools import count
from random import Random

import pytest

from coterie.base.codes import Code
from coterie.base.errors import Corrupt, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.net.addresses import Address
from coterie.client.settings import ClientSettings
from coterie.spark.source import tasks
from coterie.spark.source.columns import NO_MEMBER
from coterie.spark.source.offsets import Range
from coterie.wire.api.apis import ApiKey

from .small_leaders import TOPIC, SmallLeaders

P0, P1, P2 = (TopicPartition(TOPIC, number) for number in range(3))


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Nothing is waited for."""
    monkeypatch.setattr(tasks, "BACKOFF_S", 0)


def settings_for(*addresses, **more):
    """How to fetch, asking these first where leaders are."""
    named = {"fail_on_data_loss": False, "poll_timeout_ms": 60_000, **more}
    return tasks.FetchSettings(
        client=ClientSettings.of(
            bootstrap_servers=",".join(map(str, addresses)),
            request_timeout_ms=named.pop("timeout_ms", 20_000),
        ),
        columns=("partition", "offset"),
        source=NO_MEMBER,
        isolation=0,
        rack="",
        fetch_max_bytes=1 << 20,
        partition_max_bytes=1 << 20,
        **named,
    )


def rows_of(ranges, leaders, settings):
    task = tasks.TaskPartition(ranges, leaders, settings)
    batches = tasks.Reader(task).batches()
    return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]


def always(cluster):
    """The cluster's leaders as the driver has seen them."""
    return {one: cluster.leader_of(one) for one in (P0, P1, P2)}


def once(key):
    """Whether this request is the first of its kind."""
    number = count()
    return lambda asked: asked == key and next(number) == 0


@pytest.mark.parametrize("seed", range(40))
def test_every_row_that_is_there_is_handed_out_once_whatever_fails_in_between(seed):
    random = Random(seed)
    end = 24
    starts = [random.choice([0, 0, 0, 7, 12, 20]) for _ in range(3)]
    left = [0] if seed % 6 == 0 else list(range(30))
    often = random.choice([0.1, 0.3, 0.5])

    def stumble(_):
        return bool(left) and random.random() < often and left.pop() is not None

    cluster = SmallLeaders(starts, end, stumble=stumble, seed=seed)
    ranges = [Range(TOPIC, number, random.choice([0, 1, 5]), random.randint(6, end)) for number in range(3)]
    with cluster.running():
        seen = always(cluster) if seed % 2 else {P0: cluster.brokers[1]}
        rows = rows_of(ranges, seen, settings_for(*cluster.brokers))

    there = [
        (one.partition, offset)
        for one in ranges
        for offset in range(max(one.first, starts[one.partition]), one.until)
    ]
    assert sorted(rows) == there


def test_rows_that_came_with_a_part_out_of_range_are_handed_out_when_its_start_cannot_be_asked():
    cluster = SmallLeaders([0, 0, 5], 9, stumble=once(ApiKey.LIST_OFFSETS))
    with cluster.running():
        rows = rows_of(
            [Range(TOPIC, 0, 0, 3), Range(TOPIC, 2, 0, 9)], always(cluster), settings_for(*cluster.brokers)
        )

    assert rows == [(0, 0), (0, 1), (0, 2), (2, 5), (2, 6), (2, 7), (2, 8)]


@pytest.mark.parametrize("code", [Code.TOPIC_AUTHORIZATION_FAILED, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT])
def test_a_refusal_to_say_where_a_log_starts_is_raised_and_nothing_counts_as_read(monkeypatch, code):
    cluster = SmallLeaders([5], 9, stumble=lambda _: False)
    listed = cluster.list_offsets
    monkeypatch.setattr(cluster, "list_offsets", lambda version, request, _: listed(version, request, code))
    with cluster.running(), pytest.raises(RefusedBy, match=f"ListOffsets of {P0}") as refused:
        rows_of([Range(TOPIC, 0, 0, 9)], always(cluster), settings_for(*cluster.brokers))

    assert refused.value.code is code


def test_leaders_are_asked_of_another_broker_when_the_first_hangs():
    cluster = SmallLeaders([0], 9, stumble=lambda _: False)
    with socket.create_server(("127.0.0.1", 0)) as hanging, cluster.running():
        hangs = Address(*hanging.getsockname())
        rows = rows_of([Range(TOPIC, 0, 0, 9)], {}, settings_for(hangs, cluster.brokers[1], timeout_ms=100))

    assert rows == [(0, offset) for offset in range(9)]


def test_leaders_are_asked_of_brokers_that_led_when_nobody_else_is_there():
    """The bootstrap servers may be gone by the time a task runs."""
    cluster = SmallLeaders([0, 0], 9, stumble=lambda _: False)
    with socket.create_server(("127.0.0.1", 0)) as once_there:
        gone = Address(*once_there.getsockname())
    with cluster.running():
        rows = rows_of(
            [Range(TOPIC, 0, 0, 3), Range(TOPIC, 1, 0, 3)], {P1: cluster.brokers[1]}, settings_for(gone)
        )

    assert sorted(rows) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_connection_whose_answers_are_out_of_step_serves_no_other_task(monkeypatch):
    cluster = SmallLeaders([0], 9, stumble=lambda _: False)
    react, doubled = cluster.react, iter((2,))
    monkeypatch.setattr(cluster, "react", lambda *asked: react(*asked) * next(doubled, 1))
    task = [Range(TOPIC, 0, 0, 3)]
    with cluster.running():
        settings = settings_for(*cluster.brokers)
        assert len(rows_of(task, always(cluster), settings)) == 3  # of which the last answer came twice
        with pytest.raises(Corrupt, match="correlation id"):
            rows_of(task, always(cluster), settings)
        assert len(rows_of(task, always(cluster), settings)) == 3
