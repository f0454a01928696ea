"""`python -m interop.own_tests.clients_on_kafka [WORD ...]`: tests/clients on Apache Kafka.

The words go to pytest.
"""

from __future__ import annotations

from bench.kafka import KAFKA_VERSION, classpath

import coterie
from interop.own_tests.running import exits, run_tests

KIND = "COTERIE_TEST_BROKER"


def main() -> int:
    """Run the tests; returns pytest's exit code."""
    classpath()  # fetches what is missing, before any test's time runs
    print(f"client Coterie {coterie.__version__} as a client of Apache Kafka {KAFKA_VERSION}", flush=True)
    return run_tests("tests/clients", environment={KIND: "kafka"})


if __name__ == "__main__":
    exits(main)
