"""A cluster grows and shrinks by the commands of docs/cluster.md, and by the requests of Kafka's clients."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from bench.brokers import SETTINGS
from bench.postgres import Server
from bench.store_cluster import StoreBroker, StoreCluster
from confluent_kafka import ElectionType
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from clients.adapters.confluent import Confluent, ConfluentAdmin
from clients.adapters.model import Membership, Message
from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.base.plain import counted
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC
from coterie.broker.placement.model import Broker
from coterie.broker.placement.moving import moves_away
from coterie.cli.cluster import NOTHING_MOVED
from coterie.cli.moves import carry_out, placed, until_away
from coterie.cli.options import AskCluster
from coterie.client.admin.admin import Admin

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
COMMANDS = re.compile(r"<!-- tests/store_cluster/test_growing.py runs these -->\n\n```\n(.*?)```", re.DOTALL)
FROM_ONE = re.compile(r"test_growing.py runs this, too -->\n\n```\n(.*?)\n```")
CLIENT = Confluent()
PARTITIONS = 8


class Operator:
    """Types the commands of the page, with the cluster's addresses."""

    def __init__(self, cluster: StoreCluster) -> None:
        match = COMMANDS.search(PAGE.read_text(encoding="utf-8"))
        assert match is not None
        self.serve, *self.commands = match[1].splitlines()
        self.environment = {**os.environ, "COTERIE_BOOTSTRAP": cluster.bootstrap}

    def types(self, words: str) -> subprocess.CompletedProcess[str]:
        """Return what came of a command."""
        program, *rest = shlex.split(words)
        assert program == "coterie"
        return subprocess.run(
            [sys.executable, "-m", "coterie", *rest],
            capture_output=True,
            text=True,
            env=self.environment,
            check=False,
        )

    def does(self, words: str) -> str:
        """Return what a command prints that succeeds."""
        ended = self.types(words)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def sees(self) -> dict[int, dict[str, Any]]:
        """Return the brokers, by their ids."""
        found = json.loads(self.does("coterie cluster --output json"))
        return {one["broker"]: one for one in found["brokers"]}


@pytest.fixture
def operator(cluster: StoreCluster) -> Operator:
    return Operator(cluster)


@contextmanager
def fourth_broker(cluster: StoreCluster, operator: Operator, folder: Path) -> Iterator[StoreBroker]:
    """Start the broker that the page starts, with the settings of the test's others."""
    given = dict(word.split("=") for word in shlex.split(operator.serve) if word.startswith("node.id="))
    url = cluster.server.url(cluster.database)
    assert "--store postgresql://localhost/coterie" in operator.serve
    broker = StoreBroker(int(given["node.id"]), url, folder / "broker-4.log", SETTINGS)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def knows(address: str, broker_id: int) -> bool:
    """Return whether the broker at an address names another to clients."""
    with ConfluentAdmin(address) as admin:
        return broker_id in admin.inner.list_topics().brokers


def make(cluster: StoreCluster, topic: str) -> None:
    with ConfluentAdmin(cluster.bootstrap) as admin:
        admin.create(topic, partitions=PARTITIONS)


def test_balance_gives_more_replicas_to_the_topics_alone_that_are_named(
    cluster: StoreCluster, operator: Operator
) -> None:
    for topic in ("raised", "raised-as-well", "left"):
        operator.does(f"coterie topics create {topic} --partitions 2 --replication-factor 1")
    balance = "coterie cluster balance --replicas 2 --topic raised"

    refused = operator.types(f"{balance} --topic unheard-of")
    before = replicas_of(cluster)
    said = json.loads(operator.does(f"{balance} --topic raised-as-well --output json"))

    assert refused.returncode == 1
    assert "there is no topic unheard-of" in refused.stderr
    assert {count for name, count in before if name in ("raised", "raised-as-well", "left")} == {1}
    assert replicas_of(cluster) - before == {("raised", 2), ("raised-as-well", 2)}
    assert ("left", 1) in replicas_of(cluster)
    assert sorted(said) == ["away", "dry_run", "elected", "moved"]
    more = [one for one in said["moved"] if len(one["after"]) > len(one["before"])]
    assert sorted((one["topic"], one["partition"]) for one in more) == [
        (topic, partition) for topic in ("raised", "raised-as-well") for partition in range(2)
    ]


def replicas_of(cluster: StoreCluster) -> set[tuple[str, int]]:
    """Return each topic with the numbers of replicas that partitions of it have."""
    with ConfluentAdmin(cluster.bootstrap) as admin:
        topics = admin.inner.list_topics(timeout=10).topics
    return {(name, len(one.replicas)) for name, topic in topics.items() for one in topic.partitions.values()}


def test_a_fourth_broker_gets_its_share_and_is_taken_out_again(
    cluster: StoreCluster, operator: Operator, tmp_path: Path
) -> None:
    make(cluster, "fleet")
    sent = [Message(topic="fleet", partition=n % PARTITIONS, value=str(n).encode()) for n in range(80)]
    CLIENT.produce(cluster.bootstrap, sent)
    with CLIENT.member(cluster.bootstrap, Membership(topics=("fleet",), group="crew")) as member:
        member.take(80)
        member.commit()
    balance, drain, remove, describe = operator.commands

    with fourth_broker(cluster, operator, tmp_path) as fourth:
        for one in cluster.brokers.values():
            cluster.until("it is known", lambda address=one.address: knows(address, 4))  # type: ignore[misc]
        make(cluster, "later")
        new = Counter(cluster.leaders("later"))
        planned, unmoved = operator.does(f"{balance} --dry-run"), operator.sees()
        said = operator.does(balance)
        old = Counter(cluster.leaders("fleet"))
        offsets = Counter(cluster.leaders(OFFSETS_TOPIC))
        fourth.kill()
        fourth.start()
        cluster.until("it is known again", lambda: knows(cluster.bootstrap, 4))
        operator.does(balance)
        offsets_again = Counter(cluster.leaders(OFFSETS_TOPIC))
        still_there = operator.types(remove)
        CLIENT.produce(cluster.bootstrap, sent)
        drain_planned, undrained = operator.does(f"{drain} --dry-run"), operator.sees()
        drained = operator.does(drain)
        left = operator.sees()[4]
        fourth.send(signal.SIGTERM)
        fourth.wait()
    checked = operator.types(f"{describe} --check")
    removed = operator.does(remove)
    again = operator.types(remove)
    cluster.until("all is well", lambda: operator.types(f"{describe} --check").returncode == 0)
    shown = operator.does(describe)

    assert new == {1: 2, 2: 2, 3: 2, 4: 2}
    assert planned == f"{NOTHING_MOVED}\n{said.replace('partitions moved', 'partitions would move')}"
    assert unmoved[4]["replicas"] == 2
    assert drain_planned == f"{NOTHING_MOVED}\n{drained.replace('4 holds', '4 would hold')}"
    assert undrained[4]["replicas"] > 4
    assert "to broker 4: " in said
    # A quarter of both topics, and one more while the story has no partition of its own.
    assert old[4] + new[4] in (4, 5)
    assert max(offsets.values()) - min(offsets.values()) <= 1
    assert offsets_again == offsets
    assert still_there.returncode == 1
    assert still_there.stderr.startswith("coterie: broker 4 runs, at ")
    assert "`coterie cluster drain 4` moves them first; stop it, and remove it then" in still_there.stderr
    assert "broker 4 holds no partitions" in drained
    assert (left["state"], left["leads"], left["replicas"]) == ("live", 0, 0)
    assert (checked.returncode, checked.stdout.split()[0]) == (1, "cluster")
    assert "broker 4 is fenced: start it, or take it out" in checked.stderr
    assert removed == "broker 4 is removed\n"
    assert again.stderr == "coterie: there is no broker 4; there are these: 1, 2, 3\n"
    assert [*operator.sees()] == [1, 2, 3]
    assert shown.startswith("cluster ")
    places = [("fleet", partition) for partition in range(PARTITIONS)]
    with CLIENT.reader(cluster.bootstrap, *places) as reader:
        assert sorted(one.value for one in reader.take(160)) == sorted([one.value for one in sent] * 2)
    with CLIENT.member(cluster.bootstrap, Membership(topics=("fleet",), group="crew")) as member:
        assert {member.committed(place) for place in places} == {10}
        assert len(member.take(80)) == 80


async def drained_while_a_topic_comes(admin: Admin) -> list[str]:
    """Return what a drain of broker 3 ends with that does not wait, and one that does, while a topic is made
    on it; and how many partitions move.
    """
    before = await admin.list_topics(internal=True)
    live = [Broker(one, None) for one in (1, 2, 3)]
    moves = moves_away([3], placed(before), live)
    assert isinstance(moves, list)
    await admin.create_topic("came-later", layout=[(3,), (3,)])
    with pytest.raises(CoterieError) as too_soon:
        await until_away(admin, [3], moves, before, 0, "on broker 3")
    await carry_out(admin, moves)
    with pytest.raises(CoterieError) as in_the_end:
        await until_away(admin, [3], moves, before, 60, "on broker 3")
    await admin.delete_topic("came-later")
    return [str(too_soon.value), str(in_the_end.value), counted(len(moves), "partition")]


def test_what_comes_to_a_broker_while_it_is_drained_is_named_and_is_not_waited_for(
    cluster: StoreCluster, operator: Operator
) -> None:
    """Found by a reviewer: it was said to go on moving, and was waited for as long as a command may take."""
    operator.does("coterie topics create there-before --partitions 3 --replication-factor 1")
    began_s = time.monotonic()
    too_soon, in_the_end, count = AskCluster({"bootstrap_servers": cluster.bootstrap})(
        drained_while_a_topic_comes
    )
    took_s = time.monotonic() - began_s
    operator.does("coterie cluster balance")

    new = "new on broker 3, and not moving: came-later 0-1; run the command again to move those"
    assert too_soon == f"{count} still on broker 3 after 0 s; they go on moving; {new}"
    assert in_the_end == new
    assert took_s < 60


def test_what_began_with_one_broker_is_shared_out_and_has_more_replicas_by_the_lines_of_the_page(
    server: Server, tmp_path: Path
) -> None:
    share, raise_replicas = FROM_ONE.findall(PAGE.read_text(encoding="utf-8"))
    with StoreCluster(server, tmp_path, count=1) as alone:
        make(alone, "fleet")
        with CLIENT.member(alone.bootstrap, Membership(topics=("fleet",), group="crew")) as member:
            CLIENT.produce(alone.bootstrap, [Message(topic="fleet", partition=0, value=b"v")])
            member.take(1)
            member.commit()
        operator = Operator(alone)
        with StoreCluster(server, tmp_path, count=2, first=2, database=alone.database):
            alone.until("all are live", lambda: alone.live() == [1, 2, 3])
            before = Counter(alone.leaders(OFFSETS_TOPIC))
            operator.does(share)
            shared = Counter(alone.leaders(OFFSETS_TOPIC))
            replicas = replicas_of(alone)
            operator.does(raise_replicas)
            raised = replicas_of(alone)

    assert [*before] == [1]
    assert sorted(shared) == [1, 2, 3]
    assert max(shared.values()) - min(shared.values()) <= 1
    assert {count for _, count in replicas} == {1}
    assert {name for name, count in raised if count == 3} == {OFFSETS_TOPIC, STORY_TOPIC}
    assert ("fleet", 1) in raised


def test_kafkas_clients_move_replicas_and_leaders(cluster: StoreCluster) -> None:
    make(cluster, "moving")
    names = [TopicPartition("moving", number) for number in range(PARTITIONS)]
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        answers = admin.alter_partition_reassignments({name: [3, 1] for name in names})
        cluster.until("broker 3 leads", lambda: {*cluster.leaders("moving")} == {3})
        on_their_way = admin.list_partition_reassignments()
        admin.alter_partition_reassignments({name: [2, 3] for name in names})
        admin.elect_leaders(0, {"moving": [*range(PARTITIONS)]})
        after_election = {*cluster.leaders("moving")}
        nobody = admin.alter_partition_reassignments({names[0]: [9]})
    finally:
        admin.close()
    asked = [confluent_kafka.TopicPartition("moving", 0)]
    with ConfluentAdmin(cluster.bootstrap) as confluent:
        elected = confluent.inner.elect_leaders(ElectionType.PREFERRED, asked).result()
        described = confluent.inner.list_topics("moving").topics["moving"].partitions

    assert {*answers.values()} == {None}
    assert not on_their_way
    assert after_election == {2}
    assert [one.errno for one in nobody.values()] == [Code.INVALID_REPLICA_ASSIGNMENT]
    assert [error.name() for error in elected.values()] == ["ELECTION_NOT_NEEDED"]
    assert {(one.leader, *one.replicas) for one in described.values()} == {(2, 2, 3)}
