"""`python -m interop.own_tests.cluster [WORD ...]`: three brokers over one PostgreSQL, and clients at work.

First tests/store_cluster, whole; then the clients' tests of groups, transactions and records on three such
brokers. The words go to pytest.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

from bench.postgres import Server, ensure_installed
from bench.store_cluster import StoreCluster

from interop.own_tests.running import exits, run_tests

BOOTSTRAP = "COTERIE_TEST_BOOTSTRAP"
ON_THREE_BROKERS = ("test_groups.py", "test_transactions.py", "test_produce_consume.py")


def main() -> int:
    """Run the tests; returns pytest's worst exit code."""
    ensure_installed()
    print(f"client confluent-kafka {version('confluent-kafka')}, aiokafka {version('aiokafka')}", flush=True)
    codes = [run_tests("tests/store_cluster", marked="")]
    with (
        tempfile.TemporaryDirectory() as folder,
        Server() as server,
        StoreCluster(server, Path(folder)) as cluster,
    ):
        for name in ON_THREE_BROKERS:
            codes.append(run_tests(f"tests/clients/{name}", environment={BOOTSTRAP: cluster.bootstrap}))
    return max(codes)


if __name__ == "__main__":
    exits(main)
