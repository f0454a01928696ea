"""`python -m interop.clients_on_kafka [WORD ...]`: tests/clients on Apache Kafka, a line for each test."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.kafka import KAFKA_VERSION, REPOSITORY, SetupError, classpath

import coterie

PATTERN = "CHECKS"
KIND = "COTERIE_TEST_BROKER"


def main(words: list[str]) -> int:
    """Run the tests; returns pytest's exit code."""
    classpath()  # fetches what is missing, before any test's time runs
    print(f"client Coterie {coterie.__version__} as a client of Apache Kafka {KAFKA_VERSION}", flush=True)
    chosen = ["-k", os.environ[PATTERN]] if os.environ.get(PATTERN) else []
    command = [sys.executable, "-m", "pytest", "-p", "no:terminal", "-p", "interop.clients_on_kafka.lines"]
    options = ["-o", "addopts=--strict-markers -p no:cacheprovider", "-m", "not interop", "--timeout", "300"]
    return subprocess.run(
        [*command, *options, "tests/clients", *chosen, *words],
        cwd=REPOSITORY,
        env={**os.environ, KIND: "kafka"},
        check=False,
    ).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as failure:
        sys.exit(str(failure))
