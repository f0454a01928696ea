"""A live cluster's groups: their history and lag as tables."""

from __future__ import annotations

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
