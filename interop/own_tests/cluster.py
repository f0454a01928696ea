"""`python -m interop.own_tests.cluster [WORD ...]`: three brokers over one PostgreSQL, and clients at work.

First tests/store_cluster, whole; then the clients' tests of groups, transactions and records on three such
brokers. The words go to pytest. Then those suites of others that are quick, unless CHECKS asks for tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench.kafka import REPOSITORY
from bench.postgres import Server, ensure_installed
from bench.store_cluster import StoreCluster

from interop.own_tests.running import PATTERN, exits, run_tests
from interop.places import SETTINGS, ThreeBrokers

BOOTSTRAP = "COTERIE_TEST_BOOTSTRAP"
ON_THREE_BROKERS = ("test_groups.py", "test_transactions.py", "test_produce_consume.py")
OF_OTHERS = ("conformance", "transactions", "kcat")


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
    if not os.environ.get(PATTERN):
        with tempfile.TemporaryDirectory() as folder, ThreeBrokers(Path(folder) / "0", SETTINGS) as brokers:
            codes += [run_suite(name, brokers.address) for name in OF_OTHERS]
    return max(codes)


def run_suite(name: str, bootstrap: str) -> int:
    """Run a suite of others, all of whose checks must pass, and print its lines with its name; returns its
    exit code.
    """
    command = ["bash", str(REPOSITORY / "interop" / name / "run.sh")]
    environment = {**os.environ, "BOOTSTRAP": bootstrap}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(re.sub(r"^(ok|FAILED|skipped) ", rf"\1 {name}/", line), end="", flush=True)
    return running.returncode


if __name__ == "__main__":
    exits(main)
