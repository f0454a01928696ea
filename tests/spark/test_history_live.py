"""A live cluster's groups: their history and lag as tables, and alarms for those stuck or in a storm."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Place

from .conftest import OTHER_BROKER
from .kafka import Topic


def test_the_lag_is_what_a_live_cluster_has_and_the_group_has_not_committed(
    spark: Any, bootstrap: str, group: str, new_topic: Callable[..., Topic]
):
    from coterie.spark.history import read_cluster

    topic = new_topic(partitions=2)
    topic.produce([b"x"] * 20)
    topic.commit(group, {0: 4, 1: 10})
    batches = f"coterie-sink-{uuid4()}-3"
    topic.commit(batches, {0: 4})

    found = read_cluster(spark, bootstrap_servers=bootstrap)

    rows = found.lag.where(f"group_id in ('{group}', '{batches}')").orderBy("partition").collect()
    assert {(row.group_id, row.partition, row.committed, row.end_offset, row.lag) for row in rows} == {
        (group, 0, 4, 10, 6),
        (group, 1, 10, 10, 0),
        (batches, 0, 4, 10, None),
    }


def test_a_notebook_whose_loop_runs_can_ask_a_live_cluster(bootstrap: str, new_topic: Callable[..., Topic]):
    from coterie.spark.history.live import has_story, live_ends

    topic = new_topic(partitions=2)
    topic.produce([b"x"] * 3, partition=1)
    client = {"bootstrap_servers": bootstrap}

    async def cell() -> tuple[dict[tuple[str, int], int], bool]:
        return live_ends(client, [topic.name]), has_story(client)

    ends, told = asyncio.run(cell())
    assert ends == {(topic.name, 0): 0, (topic.name, 1): 3}
    assert told in (True, False)


@pytest.mark.skipif(OTHER_BROKER in os.environ, reason="only Coterie's broker keeps a story")
def test_the_causes_that_coteries_broker_tells_stand_in_the_history_of_a_live_cluster(
    spark: Any, bootstrap: str, group: str, new_topic: Callable[..., Topic]
):
    from coterie.spark.history import read_cluster

    topic = new_topic(partitions=2)
    one = member({"bootstrap.servers": bootstrap, "group.id": group}, topic)
    polled_until(threading.Event(), (one,), lambda: len(one.assignment()) == 2)
    one.close()
    wait_until_told(bootstrap, group, generation=2)

    found = read_cluster(spark, bootstrap_servers=bootstrap)

    rows = found.generations.where(f"group_id = '{group}'").orderBy("generation").collect()
    assert [(row.generation, row.causes, row.confidence, row.evidence) for row in rows] == [
        (1, ["member-joined"], 1.0, ["told by the coordinator: member-joined"]),
        (2, ["member-left"], 1.0, ["told by the coordinator: member-left"]),
    ]


def wait_until_told(bootstrap: str, group: str, *, generation: int) -> None:
    """Return when the story has this generation: the broker writes it half a second later than the group."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    reader.assign([Place("__group_story", 0, OFFSET_BEGINNING)])
    told: dict[str, Any] = {}
    while (told.get("kind"), told.get("group"), told.get("generation")) != ("rebalance", group, generation):
        record = reader.poll(1)
        value = None if record is None or record.error() else record.value()
        told = json.loads(value) if value else {}
    reader.close()


@pytest.mark.timeout(600)
def test_a_group_that_is_stuck_and_one_in_a_storm_are_raised_while_a_query_watches(
    spark: Any, bootstrap: str, group: str, new_topic: Callable[..., Topic], quick_session: dict[str, str]
):
    from coterie.history.watch import Alarm
    from coterie.spark.history.live import watch

    topic = new_topic(partitions=2)
    topic.produce([b"x"] * 20, partition=0)
    for offset in (4, 8, 12):
        topic.commit(group, {0: offset})
    raised: dict[tuple[str, str], Alarm] = {}
    wanted = {("stuck", group), ("storm", f"{group}-storm")}

    with a_storm(bootstrap, f"{group}-storm", topic, quick_session):
        watch(
            spark,
            {"bootstrap_servers": bootstrap},
            lambda alarm: raised.update({(alarm.kind, alarm.group_id): alarm}),
            stuck_after_ms=1_000,
            now_ms=lambda: int(time.time() * 1000),
            until=lambda: wanted <= raised.keys(),
        )

    assert raised["stuck", group].words.endswith(f"records wait in {topic.name}-0 (8)")
    assert "times a member was removed" in raised["storm", f"{group}-storm"].words


@contextmanager
def a_storm(bootstrap: str, group: str, topic: Topic, session: dict[str, str]) -> Iterator[None]:
    """Meanwhile, a member stays, and others come and fall silent one after the other: they are thrown out."""
    over = threading.Event()
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        **{name.removeprefix("kafka."): value for name, value in session.items()},
    }
    storming = threading.Thread(target=storm, args=(over, settings, topic))
    storming.start()
    try:
        yield
    finally:
        over.set()
        storming.join()


def storm(over: threading.Event, settings: dict[str, str], topic: Topic) -> None:
    """Let a static member in and close it (it does not say that it leaves), time and again."""
    staying = member(settings, topic)
    while not over.is_set():
        passing = member({**settings, "group.instance.id": "passing"}, topic)
        polled_until(over, (staying, passing), lambda one=passing: len(one.assignment()) > 0)
        passing.close()
        polled_until(over, (staying,), lambda: len(staying.assignment()) == topic.partitions)
    staying.close()


def member(settings: dict[str, str], topic: Topic) -> Consumer:
    made = Consumer(settings)
    made.subscribe([topic.name])
    return made


def polled_until(over: threading.Event, members: tuple[Consumer, ...], done: Callable[[], bool]) -> None:
    """Poll these members until it is done, or all is over."""
    while not over.is_set() and not done():
        for one in members:
            one.poll(0.05)
