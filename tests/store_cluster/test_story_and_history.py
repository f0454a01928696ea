"""A group that several brokers have coordinated: story and history say the same of it, in one order."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from bench.postgres import Server
from bench.store_cluster import StoreCluster
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from clients.soon import soon
from coterie.base.hashes import coordinator_partition
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC
from coterie.client.admin.admin import Admin
from coterie.story import reader as story_reader
from coterie.story.reader import StoryReader

GROUP, TOPIC, PARTITIONS = "told-by-several", "told-by-several", 4
POLL_S = 0.05
SAME = ("partitions", "moved", "empty_ms")


def coterie(*words: str) -> str:
    """Return what a command prints that succeeds."""
    ended = run(*words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coterie", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def a_member(bootstrap: str, name: str, group: str = GROUP) -> Consumer:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": name,
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 30_000,
        "partition.assignment.strategy": "range",
        "log_level": 0,
    }
    member = Consumer(settings)
    member.subscribe([TOPIC])
    return member


def polled_until(holds: Callable[[], bool], *members: Consumer) -> None:
    """Poll members until something is so."""

    def polled() -> bool:
        for member in members:
            member.poll(POLL_S)
        return holds()

    soon(polled)


def polled_until_they_own(*wanted: tuple[Consumer, int]) -> None:
    """Poll members until each has so many partitions."""
    polled_until(
        lambda: all(len(member.assignment()) == count for member, count in wanted),
        *(member for member, _ in wanted),
    )


def has_committed(member: Consumer) -> bool:
    """Return whether a coordinator takes a commit of all that a member has."""
    try:
        member.commit(offsets=[Place(*one, 0) for one in owned_by(member)], asynchronous=False)
    except KafkaException:
        return False
    return True


def owned_by(member: Consumer) -> list[tuple[str, int]]:
    return [(one.topic, one.partition) for one in member.assignment()]


class Told:
    """The story of the group as the command has it, record by record."""

    def __init__(self, bootstrap: str) -> None:
        self._words = ("groups", "story", GROUP, "--bootstrap", bootstrap)

    def text(self) -> str:
        return coterie(*self._words)

    def rebalances(self) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in coterie(*self._words, "--output", "json").splitlines()]
        return [one for one in records if one["kind"] == "rebalance"]

    def has(self, generation: int) -> bool:
        return f"  generation {generation} with " in run(*self._words).stdout  # which may be nothing yet


def make_topic(cluster: StoreCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(20)


def live_through(cluster: StoreCluster, told: Told) -> None:
    """Have members come and go, the coordinator die, all leave, and one come back."""
    make_topic(cluster)
    first = a_member(cluster.bootstrap, "first")
    polled_until_they_own((first, 4))
    second = a_member(cluster.bootstrap, "second")
    polled_until_they_own((first, 2), (second, 2))
    soon(lambda: told.has(2))
    dead = cluster.leader_of(OFFSETS_TOPIC, GROUP)
    cluster[dead].kill()
    polled_until(lambda: cluster.led_by(OFFSETS_TOPIC, GROUP) not in (dead, None), first, second)
    polled_until(lambda: has_committed(second), first)  # which has found the next coordinator then, to leave
    second.close()
    polled_until_they_own((first, 4))
    first.close()
    soon(lambda: told.has(4))
    last = a_member(cluster.bootstrap, "last")
    polled_until_they_own((last, 4))
    last.close()
    soon(lambda: told.has(6))


def test_story_and_history_say_the_same_of_a_group_that_several_brokers_have_coordinated(
    cluster: StoreCluster,
) -> None:
    told = Told(cluster.bootstrap)
    live_through(cluster, told)
    assert len(set(cluster.leaders(STORY_TOPIC))) > 1

    database = cluster.server.url(cluster.database)
    history = json.loads(coterie("history", database, "--group", GROUP, "--output", "json"))
    rebalances = told.rebalances()

    assert [(one["generation"], one["formed_at"], one["why"]) for one in rebalances] == [
        (one["generation"], one["formed_at"], one["causes"]) for one in history["generations"]
    ]
    costs = {(one["generation"], one["formed_at"]): one for one in history["costs"]}
    for one in rebalances:
        mine, other = one["cost"], costs.get((one["generation"], one["formed_at"]), {})
        assert {name: mine[name] for name in SAME} == {name: other.get(name, 0) for name in SAME}, one
        assert mine["longest_ms"] == other.get("longest_ms", 0) - other.get("silent_ms", 0), one
    assert rebalances[4]["cost"]["empty_ms"] > 0 == rebalances[4]["cost"]["missing"]
    stamps = [line[:24] for line in told.text().splitlines() if not line.startswith(" ")]
    assert all(one <= after for one, after in pairwise(stamps))
    assert "the group was empty for " in told.text()
    assert "the group was empty for " in coterie("history", database, "--group", GROUP)


def a_group_of(cluster: StoreCluster, broker_id: int) -> str:
    """Return a group that a broker coordinates."""
    leaders = cluster.leaders(OFFSETS_TOPIC)
    names = (f"latecomers-{number}" for number in count())
    return next(
        one for one in names if leaders[coordinator_partition(one, partition_count=len(leaders))] == broker_id
    )


def has_been_led(bootstrap: str, group: str) -> None:
    """Have a member come to a group and leave it."""
    member = a_member(bootstrap, "only", group)
    polled_until_they_own((member, PARTITIONS))
    member.close()


def test_a_broker_that_came_later_writes_the_story_of_the_groups_that_it_coordinates(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was made by a broker that was alone, with one partition."""
    monkeypatch.setattr(story_reader, "LOOK_EVERY_S", 0.1)
    with StoreCluster(server, tmp_path, count=1) as alone:
        make_topic(alone)
        has_been_led(alone.bootstrap, GROUP)
        soon(lambda: Told(alone.bootstrap).has(1))
        with StoreCluster(server, tmp_path, count=1, first=2, database=alone.database) as later:
            coterie("cluster", "balance", "--bootstrap", alone.bootstrap)
            group = a_group_of(alone, 2)
            before = run("groups", "story", group, "--bootstrap", alone.bootstrap)
            followed = asyncio.run(followed_while(alone.bootstrap, group, has_been_led))
            told = ("groups", "story", group, "--bootstrap", alone.bootstrap)

            assert alone.leaders(STORY_TOPIC) == [1, 2]
            assert before.stderr.startswith(f"coterie: there is no story of a group {group}")
            assert "  generation 1 with 1 member because member-joined\n" in coterie(*told)
            assert [one["why"] for one in followed] == [["member-joined"], ["member-left"]]
            assert "is not written" not in later[2].log


async def followed_while(bootstrap: str, group: str, act: Callable[[str, str], None]) -> list[dict[str, Any]]:
    """Return what the story has of two rebalances for who followed it before its partition was there."""
    async with Admin(bootstrap) as admin:
        reader = await StoryReader.open(admin.cluster, group)
        await asyncio.to_thread(act, bootstrap, group)
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(30):
            while len(found) < 2:
                found += [one for one in await reader.more() if one["kind"] == "rebalance"]
        return found
