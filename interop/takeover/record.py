"""`python -m interop.takeover.record CLASSES:JARS` lives a life on Apache Kafka and writes down its files.

`tests/data/kafka_directory.zip` is what comes of it, for tests that need no Kafka. `run.sh` shows how the
program `Lives` is compiled.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from bench.kafka import REPOSITORY

from interop.takeover.java import Java
from interop.takeover.life import first_life, last_days, new_kafka, second_life

UNTRIMMED = 1 << 20  # an index that the broker has not closed: ten megabytes of nothing
WRITTEN = REPOSITORY / "tests" / "data" / "kafka_directory.zip"


def main() -> int:
    """Write the directory; returns 0."""
    with tempfile.TemporaryDirectory(prefix="takeover-") as work:
        kafka = new_kafka(Path(work))
        kafka.start()
        with Java(kafka.address, sys.argv[1]) as java:
            try:
                first_life(java)
                kafka.stop()
                kafka.start()
                second_life(java)
                kafka.crash()
                kafka.start()
                last_days(java)
            finally:
                kafka.stop()
        keep(kafka.directory / "log")
    return 0


def keep(directory: Path) -> None:
    """Write a directory's files down, whoever may read them."""
    with zipfile.ZipFile(WRITTEN, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as into:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name != ".lock" and path.stat().st_size < UNTRIMMED:
                name = zipfile.ZipInfo(str(path.relative_to(directory)))
                name.compress_type = zipfile.ZIP_DEFLATED
                into.writestr(name, path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
