"""Let Apache Kafka's DumpLogSegments read and check what our store writes.

It is given what a broker left in `--data`, and logs of every kind that are written here: closed, killed,
compacted, cut and mended. Every file is printed with --deep-iteration, then checked with --index-sanity-check
and with --verify-index-only. A complaint, or a wrong number of records, fails. The records of the internal
topics are decoded besides (`decoded.py`).
"""

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

from coterie.storage.config import (
    LogConfig,
)
from coterie.storage.files import (
    FileStore,
)
from coterie.storage.log.partition import (
    PartitionLog,
)
from coterie.wire.records.batches import Record, build_batch
from interop.dumplog import decoded

NOW = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPLAINTS = re.compile(r"Mismatches|isvalid: false|corrupt|exception|could not", re.IGNORECASE)
# Release 4.3.1 says this of the first record of every segment that does not start with offset 0, its own too.
NO_FAULT = re.compile(r"^Non-consecutive offsets in .*\n(?:  -1 is followed by \d+\n)(?!  )", re.MULTILINE)
FILES_AT_ONCE = 500  # one argument names them all, and an argument has at most 128 KiB
SUFFIXES = {".log", ".index", ".timeindex", ".snapshot"}


class Tool(NamedTuple):
    """How to run it."""

    java: str
    classpath: str


def several(log: PartitionLog, *, batches: int, random: Random) -> None:
    """Append batches of several sizes, codecs and times."""
    for number in range(batches):
        count = random.randint(1, 12)
        at = NOW + number * 10
        records = [
            Record(
                place, at + random.randint(-30, 30), b"key-%d" % random.randint(0, 20), random.randbytes(80)
            )
            for place in range(count)
        ]
        log.append(build_batch(records, codec=CODECS[number % 5]), now_ms=NOW)


def closed(log: PartitionLog, random: Random) -> None:
    """Every compression, several segments."""
    several(log, batches=400, random=random)


def append_time(log: PartitionLog, random: Random) -> None:
    """The broker's own times."""
    for number in range(300):
        batch = build_batch([Record(0, 5, None, random.randbytes(300))], codec=CODECS[number % 5])
        log.append(batch, now_ms=NOW + number // 3)


def idempotent(log: PartitionLog, random: Random) -> None:
    """Producers with sequences, so that snapshots hold something."""
    for producer in range(5):
        for sequence in range(40):
            batch = build_batch(
                [Record(0, NOW + sequence, b"k", random.randbytes(100))],
                producer_id=1000 + producer,
                producer_epoch=producer,
                base_sequence=sequence,
            )
            log.append(batch, now_ms=NOW)


def several_at_once(log: PartitionLog, random: Random) -> None:
    """Appends of several batches, as a coordinator writes them."""
    for number in range(200):
        batches = [
            build_batch([Record(0, NOW + number, b"g-%d" % number, random.randbytes(200))]) for _ in range(4)
        ]
        log.append(b"".join(batches), now_ms=NOW, origin="coordinator")


def compacted(log: PartitionLog, random: Random) -> None:
    """Rewritten segments: fewer records, tombstones with their time, empty batches."""
    several(log, batches=200, random=random)
    for number in range(20):
        log.append(build_batch([Record(0, NOW + 3000, b"key-%d" % number, None)]), now_ms=NOW)
    for sequence in range(60):
        records = [Record(0, NOW + 3000, b"key-%d" % (sequence % 5), random.randbytes(200))]
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.append(batch, now_ms=NOW)
    assert log.compacting.run(NOW)
    several(log, batches=60, random=random)
    assert log.compacting.run(NOW)
    log.tick(NOW + 10**9)


def trimmed(log: PartitionLog, random: Random) -> None:
    """The start deleted, in the middle of a segment."""
    several(log, batches=300, random=random)
    log.delete_before(700, NOW)
    log.tick(NOW)


CASES: dict[str, tuple[Callable[[PartitionLog, Random], None], dict[str, str]]] = {
    "closed": (closed, {}),
    "append-time": (append_time, {"message.timestamp.type": "LogAppendTime"}),
    "idempotent": (idempotent, {}),
    "several-at-once": (several_at_once, {}),
    "compacted": (compacted, {"cleanup.policy": "compact"}),
    "trimmed": (trimmed, {}),
}


def write_cases(root: Path) -> list[Path]:
    """Write each case twice, closed and killed, and one that was cut and mended; return the directories."""
    found = []
    for ending in ("closed", "killed", "mended"):
        store = FileStore.open(root / ending, now_ms=NOW)
        for number, (name, (fill, settings)) in enumerate(CASES.items()):
            small = {"segment.bytes": "20000", "file.delete.delay.ms": "0", "min.cleanable.dirty.ratio": "0"}
            config = LogConfig.of({**small, **settings})
            log = store.create_log(name, number, UUID(int=number + 1), config)
            fill(log, Random(number))
            log.tick(NOW)
            found.append(Path(log.directory))
        if ending == "closed":
            store.close()
        else:
            store.abandon()
        if ending == "mended":
            mend(root / ending)
    return found


def mend(root: Path) -> None:
    """Tear the end off each log and open the directory again."""
    for last in {one.parent: one for one in sorted(root.glob("*/*.log"))}.values():
        os.truncate(last, max(0, last.stat().st_size - 33))
    FileStore.open(root, now_ms=NOW).abandon()


def dump(tool: Tool, files: list[Path], *options: str) -> tuple[list[str], list[str]]:
    """Run the tool over files, so many at a time; return what it printed, and what of it is a complaint."""
    printed: list[str] = []
    wrong: list[str] = []
    for first in range(0, max(1, len(files)), FILES_AT_ONCE):
        lines, complaints = dump_some(tool, files[first : first + FILES_AT_ONCE], *options)
        printed += lines
        wrong += complaints
    return printed, wrong


def dump_some(tool: Tool, files: list[Path], *options: str) -> tuple[list[str], list[str]]:
    """Run the tool once; return what it printed, and what of it is a complaint."""
    command = [
        tool.java,
        "-Xmx512m",
        "-cp",
        tool.classpath,
        "org.apache.kafka.tools.DumpLogSegments",
        *options,
    ]
    command += ["--files", ",".join(map(str, files))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = ran.stdout.splitlines()
    wrong = [line for line in NO_FAULT.sub("", ran.stderr).splitlines() if not line.startswith("SLF4J")]
    wrong += [line for line in printed if not line.startswith("|") and COMPLAINTS.search(line)]
    if ran.returncode:
        wrong.append(f"exit code {ran.returncode}")
    return printed, wrong


def report(name: str, wrong: list[str]) -> None:
    """Print a check's result, as `python -m interop` reads it."""
    print(f"FAILED {name}: {'; '.join(wrong[:5])}" if wrong else f"ok {name}", flush=True)


def check(tool: Tool, name: str, directories: list[Path], *, records: int) -> None:
    """Let the tool look at every file in some partitions' directories, which hold `records` at least."""
    every = [path for one in directories for path in sorted(one.iterdir()) if path.suffix in SUFFIXES]
    # Compaction leaves gaps between offsets, of which --deep-iteration complains in Kafka's own logs too.
    dense = [path for path in every if not path.parent.name.startswith(("__", "compacted"))]
    indexes = [path for path in every if path.suffix in (".index", ".timeindex")]

    printed, wrong = dump(tool, dense, "--deep-iteration")
    found = sum(line.startswith("| offset:") for line in printed)
    if found < records:
        wrong.append(f"{found} records, where {records} were expected")
    report(f"{name}-deep-iteration", wrong)
    report(f"{name}-headers", dump(tool, every)[1])
    report(f"{name}-index-sanity-check", dump(tool, indexes, "--index-sanity-check")[1])
    report(f"{name}-verify-index-only", dump(tool, indexes, "--verify-index-only")[1])


def check_snapshots(tool: Tool, directories: list[Path]) -> None:
    """Let the tool read producers, which it does only if the checksum is right."""
    files = [path for one in directories for path in one.glob("*.snapshot")]
    printed, wrong = dump(tool, files)
    if not any(line.startswith("producerId: 1004 producerEpoch: 4") for line in printed):
        wrong.append("producer 1004 is in no snapshot")
    report("written-snapshots", wrong)


def main() -> None:
    """Write, and check."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--java", default="java")
    options.add_argument("--classpath", required=True, help="Apache Kafka's jars, as for java -cp")
    options.add_argument("--data", type=Path, help="the data directory of a broker that has stopped")
    options.add_argument("--work", type=Path, help="where to write; else a folder that is removed again")
    chosen = options.parse_args()
    tool = Tool(chosen.java, chosen.classpath)
    with tempfile.TemporaryDirectory(prefix="coterie-dumplog-", dir=chosen.work) as work:
        directories = write_cases(Path(work))
        check(tool, "written", directories, records=10_000)
        check_snapshots(tool, directories)

        def print_decoded(files: list[Path], decoder: str) -> tuple[list[str], list[str]]:
            return dump(tool, files, decoder)

        decoded.check_done(print_decoded, report, Path(work))
        if chosen.data is not None:
            decoded.check(print_decoded, report, "broker", chosen.data)
    if chosen.data is not None:
        there = [one for one in sorted(chosen.data.iterdir()) if any(one.glob("*.log"))]
        check(tool, "broker", there, records=1)


if __name__ == "__main__":
    main()
