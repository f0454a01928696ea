"""`python -m interop.kafka_python WORK SOURCE VERSION`: a check a test of kafka-python's own."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from bench.brokers import BROKERS
from bench.kafka import SetupError

SETTINGS = {
    "node.id": "0",  # which its test of partitions assigns by hand
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
}
LEFT_OUT = ("test_sasl_integration.py", "test_ssl_integration.py")
# The source distribution leaves out the module that starts brokers; of one that runs already this is wanted.
SERVICE = """class SpawnedService: ...
class ExternalService:
    def __init__(self, host, port): ...
    def open(self): ...
    def close(self): ...
"""
KAFKAS_VERSION = "4.3"
LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED) (?:\[\d+\] )?(?:test/integration/)?(\S+?)(?: - (.*))?$")


def main() -> int:
    """Run the tests, and say of each how it ended; returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m interop.kafka_python", description="Its own tests.")
    parser.add_argument("work", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("version")
    parser.add_argument("--on", choices=list(BROKERS), default="coterie")
    asked = parser.parse_args()
    source = asked.source.resolve()  # the tests run there
    (source / "test" / "__init__.py").touch()
    (source / "test" / "service.py").write_text(SERVICE)
    broker = BROKERS[asked.on](asked.work / "broker", SETTINGS)
    broker.settings["advertised.listeners"] = f"PLAINTEXT://{broker.address}"  # a test looks for it
    with broker:
        said = run(source, broker.port)
    failed = 0
    for line in said.splitlines():
        found = LINE.match(line)
        if found is None:
            continue
        ended, name, why = found.groups()
        name = name.replace(".py::", ".")
        if ended == "PASSED":
            print(f"ok {name}", flush=True)
        elif ended != "SKIPPED":
            failed += 1
            print(f"FAILED {name}: {why}", flush=True)
    return 1 if failed else 0


def run(source: Path, port: int) -> str:
    """Return what pytest said of the tests against the broker at a port."""
    words = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "-rA"]
    words += ["--timeout", "60", "--tb=no", "test/integration"]
    words += [word for name in LEFT_OUT for word in ("--ignore", f"test/integration/{name}")]
    environment = {
        **os.environ,
        "KAFKA_URI": f"kafka://127.0.0.1:{port}",
        "KAFKA_VERSION": KAFKAS_VERSION,
        "KAFKA_ROOT": str(source),
        "PYTHONPATH": str(source),
        "COLUMNS": "300",
    }
    return subprocess.run(
        [sys.executable, *words], cwd=source, env=environment, capture_output=True, text=True, check=False
    ).stdout


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(f"interop.kafka_python: {error}")
