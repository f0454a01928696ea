"""Of a broker of ours nothing is inferred: its own story lies beside the groups' log, and is believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import coterie.testing
from coterie.cli.history import histories_in

pytestmark = pytest.mark.slow
POLL_S = 0.05


def a_member(bootstrap: str, name: str) -> Consumer:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "told",
        "client.id": name,
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 6_000,
        "partition.assignment.strategy": "range",
    }
    member = Consumer(settings)
    member.subscribe(["t"])
    return member


def polled_until_they_own(*wanted: tuple[Consumer, int]) -> None:
    """Poll members until each has so many partitions."""
    while not all(len(member.assignment()) == count for member, count in wanted):
        for member, _ in wanted:
            member.poll(POLL_S)


def test_causes_are_exact_where_the_brokers_own_story_is_there(tmp_path: Path):
    with coterie.testing.broker(data=tmp_path) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("t", 4)])["t"].result(20)
        first = a_member(kafka.bootstrap, "first")
        polled_until_they_own((first, 4))
        second = a_member(kafka.bootstrap, "second")
        polled_until_they_own((first, 2), (second, 2))
        second.close()
        polled_until_they_own((first, 4))
        first.close()

    (told,) = (one for one in histories_in(tmp_path) if one.group_id == "told")

    assert [one.causes for one in told.generations] == [
        ("member-joined",),
        ("member-joined",),
        ("member-left",),
        ("member-left",),
    ]
    assert {one.confidence for one in told.generations} == {1.0}
    assert all(one.evidence[0].startswith("told by the coordinator") for one in told.generations)
    assert [len(one.members) for one in told.generations] == [1, 2, 1, 0]
