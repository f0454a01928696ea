"""A live cluster's groups: their history and lag as tables, and an alarm for one that is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .kafka import Topic


def test_the_lag_is_what_a_live_cluster_has_and_the_group_has_not_committed(
    spark: Any, bootstrap: str, group: str, new_topic: Callable[..., Topic]
):
    from coterie.history.segments import groups_of
    from coterie.spark.history import read_cluster
    from coterie.spark.history.live import entries_in, live_records

    topic = new_topic(partitions=2)
    topic.produce([b"x"] * 20)
    topic.commit(group, {0: 4, 1: 10})

    found = read_cluster(spark, bootstrap_servers=bootstrap)

    rows = found.lag.where(f"group_id = '{group}'").orderBy("partition").collect()
    assert [(row.partition, row.committed, row.end_offset, row.lag) for row in rows] == [
        (0, 4, 10, 6),
        (1, 10, 10, 0),
    ]
    logs = groups_of(entries_in(live_records(spark, {"bootstrap_servers": bootstrap})))
    assert [len(log.runs) for log in logs if log.group_id == group] == [2]


def test_a_group_that_stops_with_records_left_is_raised_within_seconds(
    spark: Any, bootstrap: str, group: str, new_topic: Callable[..., Topic]
):
    from coterie.history.watch import Alarm
    from coterie.spark.history.live import watch

    topic = new_topic()
    topic.produce([b"x"] * 20)
    for offset in (4, 8, 12):
        topic.commit(group, {0: offset})
    raised: list[Alarm] = []

    def mine() -> list[Alarm]:
        return [alarm for alarm in raised if alarm.group_id == group]

    watch(
        spark,
        {"bootstrap_servers": bootstrap},
        raised.append,
        stuck_after_ms=1_000,
        now_ms=lambda: int(time.time() * 1000),
        until=lambda: bool(mine()),
    )

    (alarm,) = mine()
    assert alarm.kind == "stuck"
    assert alarm.words.endswith(f"records wait in {topic.name}-0 (8)")
