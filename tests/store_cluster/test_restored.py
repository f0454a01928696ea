"""A backup that is brought back beneath brokers and clients that run, by docs/cluster.md's commands; another
cluster's, by mistake; or none.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench.postgres import Server
from bench.store_cluster import StoreCluster
from confluent_kafka import Consumer, TopicPartition

from clients.adapters import Membership, Message
from clients.adapters.confluent import Confluent, ConfluentAdmin
from clients.running import wait_until
from coterie.storage.postgres.advice import NOT_RESTORED

pytestmark = pytest.mark.interop  # half a minute of processes that wait

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
COMMANDS = re.compile(r"<!-- tests/store_cluster/test_restored.py runs these -->\n\n```\n(.*?)```", re.DOTALL)
NAMES = re.compile(
    r"(?<=localhost/)coterie\b|(?<=[ /])coterie(?=_restored)|(?<= )coterie(?=$|')", re.MULTILINE
)
CLIENT = Confluent()
TOPIC = "flights"
CLUSTER_ID = "SELECT cluster_id FROM coterie.cluster"


def run(script: str, server: Server, database: str, folder: Path) -> None:
    """Run commands of the page in a folder, with the test's server and its names of databases."""
    text = NAMES.sub(database, script)
    text = text.replace("localhost/", f"127.0.0.1:{server.port}/")
    environment = {
        **os.environ,
        "PATH": f"{server.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
        "PGUSER": "postgres",
        "PGSSLMODE": "disable",
    }
    subprocess.run(["sh", "-ec", text], cwd=folder, env=environment, check=True)


def produce(cluster: StoreCluster, topic: str, *values: str) -> None:
    CLIENT.produce(
        cluster.bootstrap,
        [Message(topic=topic, partition=0, value=value.encode()) for value in values],
        idempotent=True,
    )


@pytest.fixture
def pair(server: Server, tmp_path: Path) -> Iterator[StoreCluster]:
    """Two brokers over a database of their own, with a topic."""
    with StoreCluster(server, tmp_path, count=2) as brokers:
        brokers.until("both are live", lambda: brokers.live() == [1, 2])
        produce(brokers, TOPIC, "ours")
        yield brokers
        for broker in brokers.brokers.values():
            print(f"== broker {broker.node_id}\n{broker.log[-4000:]}")


def test_brokers_and_clients_that_run_go_by_what_was_brought_back(
    cluster: StoreCluster, server: Server, tmp_path: Path
) -> None:
    topic, group = f"flights-{uuid.uuid4()}", f"group-{uuid.uuid4()}"
    back_up, bring_back, take_its_place, _ = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    database = cluster.database
    with ConfluentAdmin(cluster.bootstrap) as admin:
        admin.create(topic)
    produce(cluster, topic, "a", "b")
    with CLIENT.member(cluster.bootstrap, Membership(topics=(topic,), group=group)) as member:
        assert [one.value for one in member.take(2)] == [b"a", b"b"]
        member.commit()
    run(back_up, server, database, tmp_path)

    produce(cluster, topic, "c", "d", "e")
    with ConfluentAdmin(cluster.bootstrap) as admin:
        admin.create(f"{topic}-later")
    reader = reader_of(cluster, topic)
    assert [reader.poll(30).value() for _ in "abcde"] == [b"a", b"b", b"c", b"d", b"e"]
    with CLIENT.member(cluster.bootstrap, Membership(topics=(topic,), group=group)) as member:
        assert len(member.take(3)) == 3
        member.commit()
    run(bring_back, server, database, tmp_path)
    run(take_its_place, server, database, tmp_path)

    until_served(cluster, topic)
    for broker in cluster.brokers.values():
        _, *later = broker.log.split("the database is of another history")
        assert len(later) == 1, "it is said once"
        assert re.search(r"nothing is led any more: .* broker epoch 1\d{12} begins", later[0], re.DOTALL)
        assert "is gone" not in later[0].partition("begins")[0], "all begin anew"
    with ConfluentAdmin(cluster.bootstrap) as admin:
        wait_until(lambda: admin.partition_count(f"{topic}-later") is None)
        assert admin.partition_count(topic) == 1
    produce(cluster, topic, "f", "g", "h")
    with CLIENT.reader(cluster.bootstrap, (topic, 0)) as again:
        found = [(one.offset, one.value) for one in again.take(5)]
    with CLIENT.member(cluster.bootstrap, Membership(topics=(topic,), group=group)) as member:
        committed = member.committed((topic, 0))
        behind = [one.value for one in member.take(3)]

    assert found == [*enumerate([b"a", b"b", b"f", b"g", b"h"])]
    assert committed == 2
    assert behind == [b"f", b"g", b"h"]
    wait_until(lambda: passes_on(reader, cluster, topic))
    reader.close()


def test_a_backup_that_is_brought_back_again_is_beyond_what_was_before_that(
    cluster: StoreCluster, server: Server, tmp_path: Path
) -> None:
    topic = f"flights-{uuid.uuid4()}"
    back_up, bring_back, take_its_place, _ = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    database = cluster.database
    with ConfluentAdmin(cluster.bootstrap) as admin:
        admin.create(topic)
    produce(cluster, topic, "a")
    reader = reader_of(cluster, topic)
    assert reader.poll(30).value() == b"a"
    run(back_up, server, database, tmp_path)
    run(bring_back, server, database, tmp_path)
    run(take_its_place, server, database, tmp_path)
    until_served(cluster, topic)
    wait_until(lambda: passes_on(reader, cluster, topic))
    leader = cluster[cluster.leader_of(topic, "0")]
    leader.kill()
    leader.start()
    until_served(cluster, topic)
    wait_until(lambda: passes_on(reader, cluster, topic))
    known = counts(server, database, "max")

    run(bring_back, server, database, tmp_path)
    run(take_its_place, server, database, tmp_path)
    until_served(cluster, topic)

    assert all(now > before for now, before in zip(counts(server, database, "min"), known, strict=True))
    wait_until(lambda: passes_on(reader, cluster, topic))
    reader.close()


def test_from_a_backup_that_is_brought_back_in_its_own_place_nobody_is_served_before_that_is_said(
    cluster: StoreCluster, server: Server, tmp_path: Path
) -> None:
    """Found by newcomers: no broker noticed, and what was written afterwards stood behind a gap; and then
    brokers served from it, and acknowledged what the next line made void.
    """
    topic = f"flights-{uuid.uuid4()}"
    back_up, *_, in_its_place = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    database = cluster.database
    with ConfluentAdmin(cluster.bootstrap) as admin:
        admin.create(topic)
    produce(cluster, topic, "a", "b")
    run(back_up, server, database, tmp_path)
    produce(cluster, topic, "c", "d", "e")

    restored, confirmed = in_its_place.strip().split(" && ")
    run(restored, server, database, tmp_path)
    for broker in cluster.brokers.values():
        cluster.until("it waits", lambda broker=broker: NOT_RESTORED in broker.log)  # type: ignore[misc]
    before = dumped(server, database)
    with ThreadPoolExecutor(1) as beside:
        acknowledged = beside.submit(produce, cluster, topic, "f")
        with pytest.raises(TimeoutError):
            acknowledged.result(3)
        assert dumped(server, database) == before, "nobody has said yet that it is a backup"
        run(confirmed, server, database, tmp_path)
        acknowledged.result(60)
    until_served(cluster, topic)
    produce(cluster, topic, "g")

    for broker in cluster.brokers.values():
        assert broker.log.count(NOT_RESTORED) == 1
        _, later = broker.log.split("the database is of another history")
        assert re.search(r"^.*? broker epoch 1\d{12} begins", later, re.DOTALL)
        assert "is gone" not in later.partition("begins")[0]
        broker.stop()
        broker.start()
    until_served(cluster, topic)
    with CLIENT.reader(cluster.bootstrap, (topic, 0)) as again:
        found = [(one.offset, one.value) for one in again.take(4)]
    assert found == [*enumerate([b"a", b"b", b"f", b"g"])]


def dumped(server: Server, database: str) -> str:
    """Return all that is in the tables of a cluster, and how they are."""
    command = [str(server.programs / "pg_dump"), "--inserts", "-d", server.url(database)]
    environment = {**os.environ, "PGSSLMODE": "disable"}
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return "\n".join(line for line in found.stdout.splitlines() if "restrict" not in line)


def test_brokers_end_where_the_database_of_another_cluster_takes_the_place_of_theirs(
    server: Server, pair: StoreCluster, tmp_path: Path
) -> None:
    """Found by a newcomer, who had brought back the wrong backup: they served what the other had."""
    (tmp_path / "other").mkdir()
    with StoreCluster(server, tmp_path / "other", count=2) as others:
        produce(others, TOPIC, "theirs")
    other, database = others.database, pair.database
    found, own = server.sql(other, CLUSTER_ID), server.sql(database, CLUSTER_ID)
    before = dumped(server, other)

    server.sql("postgres", f"DROP DATABASE {database} WITH (FORCE)")
    server.sql("postgres", f"ALTER DATABASE {other} RENAME TO {database}")

    for broker in pair.brokers.values():
        assert broker.wait() == 1
        last = broker.log.splitlines()[-1]
        assert f"that of cluster {found} now, and this broker is of cluster {own}" in last
        assert last.endswith("(exit code 1)")
    assert dumped(server, database) == before


def test_brokers_wait_for_the_tables_of_a_database_that_was_replaced_by_an_empty_one(
    server: Server, pair: StoreCluster, tmp_path: Path
) -> None:
    """Found by a newcomer: `is reached again` was the last that was said, and they stood still."""
    back_up, *_, in_its_place = COMMANDS.findall(PAGE.read_text(encoding="utf-8"))
    database, kept = pair.database, pair[1]
    run(back_up, server, database, tmp_path)

    server.sql("postgres", f"DROP DATABASE {database} WITH (FORCE)")
    server.sql("postgres", f"CREATE DATABASE {database}")

    lacking = f"{database} is reached, but has no tables of a cluster: bring the backup back"
    pair.until("both say so", lambda: all(lacking in text for text in pair.said().values()))
    assert pair[2].stop() == 1
    *_, left, end = pair[2].log.splitlines()
    assert "the database answers no heartbeat for now: for up to 3 s it is waited for" in left
    assert "the database answered no heartbeat for 3 s" in end
    run(in_its_place, server, database, tmp_path)
    until_served(pair, TOPIC, live=[1])
    assert re.search(r"can be used again, after .* broker epoch 1\d{12} begins", kept.log, re.DOTALL)
    assert kept.log.count(lacking) == 1
    with CLIENT.reader(kept.address, (TOPIC, 0)) as reader:
        assert [one.value for one in reader.take(1)] == [b"ours"]


def reader_of(cluster: StoreCluster, topic: str) -> Consumer:
    """Return a consumer that reads a topic from its beginning, and what comes next where that is gone."""
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"{topic}-none",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    return reader


def until_served(cluster: StoreCluster, topic: str, *, live: Sequence[int] = (1, 2, 3)) -> None:
    cluster.until("all are live again", lambda: cluster.live() == [*live], within_s=60)
    cluster.until("they lead again", lambda: None not in cluster.leaders(topic))


def counts(server: Server, database: str, of_all: str) -> list[int]:
    """Return the version of the metadata, the next producer id, and of all partitions one leader epoch, of
    all brokers that live one broker epoch: that of one which another test has removed stands.
    """
    found = server.sql(
        database,
        f"""SELECT version, next_producer_id, (SELECT {of_all}(leader_epoch) FROM coterie.partitions),
        (SELECT {of_all}(broker_epoch) FROM coterie.brokers WHERE state = 'live') FROM coterie.cluster""",
    )
    return [*map(int, found.split("|"))]


def passes_on(reader: Consumer, cluster: StoreCluster, topic: str) -> bool:
    """Return whether a consumer that was beyond the end of the log reads what is written now."""
    produce(cluster, topic, "now")
    message = reader.poll(1)
    return message is not None and message.error() is None and message.value() == b"now"


def test_brokers_and_commands_wait_or_say_what_to_do_where_the_tables_have_no_cluster_in_them(
    pair: StoreCluster, server: Server
) -> None:
    """Found by a breaker, midway of a pg_restore: tracebacks filled logs, and ended commands."""
    kept = "CREATE TABLE kept AS TABLE coterie.cluster; DELETE FROM coterie.cluster"
    lacking = "has tables, and no cluster in them: have the backup be brought back in all its parts"
    url = server.url(pair.database)
    pair[2].send(signal.SIGTERM)
    pair[2].wait()
    for broker in pair.brokers.values():
        broker.mark()
    server.sql(pair.database, kept)

    pair.until("it is said", lambda: f"is reached, but {lacking}: this broker waits for that" in pair[1].log)
    pair[2].begin()
    pair.until("one that starts says it, too", lambda: lacking in pair[2].log)
    for word in ("describe", "migrate", "restored"):
        command = [sys.executable, "-m", "coterie", "store", word, url]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert lacking in ended.stderr
        assert ended.stderr.count("\n") == 1
    pair.until("it is said again", lambda: " is reached, but for " in pair[1].log)
    for broker in pair.brokers.values():
        assert "Traceback" not in broker.log
        assert broker.log.count(lacking) <= 3

    server.sql(pair.database, "INSERT INTO coterie.cluster SELECT * FROM kept")
    pair[2].until_ready()
    pair.until("both are live", lambda: pair.live() == [1, 2])
    produce(pair, TOPIC, "ours again")
