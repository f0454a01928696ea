"""Somebody keeps a lock on the metadata's tables, and brokers and administrators wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from bench.postgres import Server
from bench.store_cluster import StoreCluster

from coterie.cli import main

pytestmark = pytest.mark.interop

SLEEPS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


@contextmanager
def kept(server: Server, cluster: StoreCluster, lock: str) -> Iterator[str]:
    """Keep a lock as long as the block lasts; yield the id of the process that does."""
    with ThreadPoolExecutor(1) as beside:
        beside.submit(server.sql, cluster.database, f"BEGIN; {lock}; SELECT pg_sleep(600)")
        cluster.until("it is held", lambda: server.sql(cluster.database, SLEEPS) != "")
        pid = server.sql(cluster.database, SLEEPS)
        try:
            yield pid
        finally:
            server.sql(cluster.database, f"SELECT pg_terminate_backend({pid})")


def test_an_administrator_whom_a_lock_keeps_from_a_change_is_told_that_nothing_was_changed(
    server: Server, cluster: StoreCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by a reviewer: behind that reason stood that nobody knew whether it had been done."""
    with (
        kept(server, cluster, "LOCK TABLE coterie.topics IN SHARE MODE"),
        pytest.raises(SystemExit) as ended,
    ):
        main(["topics", "create", "kept", "-b", cluster.bootstrap, "--set", "default.api.timeout.ms=1000"])
    said = capsys.readouterr().err

    assert ended.value.code == 1
    assert "Nothing was changed: somebody keeps a lock in the database of the cluster's metadata" in said
    assert "not known" not in said
    assert "may have been done" not in said
