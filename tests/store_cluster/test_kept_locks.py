"""Somebody keeps a lock on the metadata's tables, and brokers and administrators wait for it."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from bench.postgres import Server
from bench.store_cluster import StoreCluster

from clients.adapters.confluent import Confluent
from clients.adapters.model import Message
from coterie.cli import main
from postgres.rigs.keeping import kept

pytestmark = pytest.mark.interop

CLIENT = Confluent()


def test_an_administrator_whom_a_lock_keeps_from_a_change_is_told_that_nothing_was_changed(
    server: Server, cluster: StoreCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by a reviewer: behind that reason stood that nobody knew whether it had been done."""
    with (
        kept(server, cluster, "LOCK TABLE coterie.topics IN SHARE MODE") as pid,
        pytest.raises(SystemExit) as ended,
    ):
        main(["topics", "create", "kept", "-b", cluster.bootstrap, "--set", "default.api.timeout.ms=1000"])
    said = capsys.readouterr().err

    assert ended.value.code == 1
    assert "Nothing was changed: the database of the cluster's metadata waited for a lock on" in said
    assert f"coterie.topics that somebody keeps: process {pid} (psql, user postgres, active, for " in said
    assert said.endswith("; the broker's log says more\n")
    assert "not known" not in said
    assert "may have been done" not in said


@pytest.mark.parametrize("table", ["cluster", "brokers"])
def test_a_lock_that_looks_as_if_the_database_was_away_is_told_of_with_who_keeps_it(
    table: str, server: Server, cluster: StoreCluster
) -> None:
    """Found by a reviewer: brokers were suspended, and no log said why."""
    with kept(server, cluster, f"LOCK TABLE coterie.{table}") as pid:
        said = (
            f"a statement waits for a lock on coterie.{table} that somebody keeps: process {pid} (psql, user"
        )
        for broker in cluster.brokers.values():
            cluster.until("it is said", lambda broker=broker: said in broker.log)
            cluster.until("it is suspended", lambda broker=broker: "suspended" in broker.log)
            assert "is not reached" not in broker.log
    for broker in cluster.brokers.values():
        cluster.until("it goes on", lambda broker=broker: "resumed" in broker.log)


@pytest.mark.parametrize("lock", ["IN SHARE MODE", ""])
def test_a_lock_that_keeps_records_from_being_written_is_told_of_with_who_keeps_it(
    lock: str, server: Server, cluster: StoreCluster
) -> None:
    """Found by a reviewer: it is the one that clients feel most, and the log named neither it nor who."""
    topic = f"kept-{len(lock)}"
    with pytest.raises(SystemExit):
        main(["topics", "create", topic, "-b", cluster.bootstrap, "--partitions", "1"])
    (leading,) = cluster.leaders(topic)
    assert leading is not None
    leader = cluster[leading]
    with (
        kept(server, cluster, f"LOCK TABLE coterie.chunks_keep {lock}") as pid,
        ThreadPoolExecutor(1) as beside,
    ):
        sent = beside.submit(
            CLIENT.produce, cluster.bootstrap, [Message(topic=topic, partition=0, value=b"v")]
        )
        said = f"a statement waits for a lock on coterie.chunks_keep that somebody keeps: process {pid} (psql"
        cluster.until("it is said", lambda: said in leader.log)
        assert not sent.done()
        server.sql(cluster.database, f"SELECT pg_terminate_backend({pid})")
        sent.result()


def test_a_broker_that_is_stopped_while_a_lock_is_kept_ends_within_twenty_seconds_and_the_others_take_over(
    server: Server, cluster: StoreCluster
) -> None:
    with kept(server, cluster, "SELECT FROM coterie.cluster FOR UPDATE"):
        stopping = cluster[3].process
        assert stopping is not None
        began_s = time.monotonic()
        cluster[3].send(signal.SIGTERM)
        stopping.wait(60)
        took_s = time.monotonic() - began_s
        assert cluster[3].wait() == 1
        assert took_s >= 19, "it has tried as long as it may"
        assert "could not be given away within 20 s" in cluster[3].log
        assert cluster.live() == [1, 2, 3]
    cluster.until("the others know", lambda: cluster.live() == [1, 2])


def test_a_broker_that_starts_while_a_lock_is_kept_says_what_it_waits_for(
    server: Server, cluster: StoreCluster
) -> None:
    cluster[3].send(signal.SIGTERM)
    cluster[3].wait()
    cluster.until("it is gone", lambda: cluster.live() == [1, 2])
    cluster[3].mark()
    with kept(server, cluster, "SELECT FROM coterie.cluster FOR UPDATE") as pid:
        cluster[3].begin()
        said = (
            f"a statement waits for a lock on coterie.cluster that somebody keeps: process {pid} (psql, user"
        )
        cluster.until("it is said", lambda: said in cluster[3].log)
    cluster.until("it has joined", lambda: cluster.live() == [1, 2, 3])
