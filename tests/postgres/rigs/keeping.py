"""Somebody who keeps a lock in the database of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bench.postgres import Server
from bench.store_cluster import StoreCluster

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
