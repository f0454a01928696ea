"""`python -m interop.spark_kills [--on BROKER] [--kills N] [--seed S]`: each record once, whatever is killed.

Two applications of one group copy a topic that is written to all the time. One line a kill.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.brokers import BROKERS, SETTINGS
from bench.kafka import SetupError

from interop.spark.applications import wait_for
from interop.spark.topics import Feeder, Topic
from interop.spark_kills.copying import Copier, numbers_in

GROUP = "copy"
# Of ten kills, how many take the workers, the driver and both: a driver takes seconds to come back.
KINDS = ("workers",) * 8 + ("driver", "both")
PAUSE_S = (0.1, 2.5)
# An application takes seconds to start; a machine that does other things, minutes.
WORKS_WITHIN_S = 600.0
# What a killed task leaves open is looked through often, so that nobody waits for it.
CLEANUP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}


def main() -> int:
    """Run the kills that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m interop.spark_kills", description=__doc__)
    parser.add_argument("--on", choices=tuple(BROKERS), default="coterie")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    asked = parser.parse_args()
    name = f"{asked.kills}-kills-on-{asked.on}"
    print(f"{name}: seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="coterie-spark-kills-") as folder:
        try:
            run(Path(folder), asked.on, kills=asked.kills, chance=random.Random(asked.seed))
        except (AssertionError, SetupError) as error:
            print(f"FAILED {name}: seed {asked.seed}: {str(error).strip()}", flush=True)
            return 1
    print(f"ok {name}", flush=True)
    return 0


def run(folder: Path, broker: str, *, kills: int, chance: random.Random) -> None:
    """Copy, kill, and account for every record."""
    with ExitStack() as undo:
        running = BROKERS[broker](folder / "broker", {**SETTINGS, **CLEANUP})
        undo.enter_context(running)
        source = Topic(running.address, "from", partitions=4)
        target = Topic(running.address, "to", partitions=2)
        copiers = [Copier(folder, name, source, target, group=GROUP) for name in ("one", "other")]
        for copier in copiers:
            undo.callback(copier.end)
            copier.start()
        with Feeder(source, count=40, every_s=0.2):
            for number in range(1, kills + 1):
                kill(number, copiers, chance)
        try:
            wait_for(lambda: source.committed(GROUP) == source.ends(), what="all is copied")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *(one.last_words for one in copiers)])) from None
        for copier in copiers:
            copier.stop()
        account(source, target, copiers)


def kill(number: int, copiers: list[Copier], chance: random.Random) -> None:
    """Wait until an application works, a while longer, and kill some of it."""
    copier, kind, pause_s = chance.choice(copiers), chance.choice(KINDS), chance.uniform(*PAUSE_S)
    began = time.monotonic()
    wait_for(lambda: any(one.works for one in copiers), what="somebody works", within_s=WORKS_WITHIN_S)
    if not copier.works:
        (copier,) = (one for one in copiers if one is not copier)
    time.sleep(pause_s)
    if copier.works:
        {"workers": copier.kill_workers, "driver": copier.kill_driver, "both": copier.kill_both}[kind]()
        after_s = time.monotonic() - began
        print(f"  {number}: {kind} of {copier.name}, {after_s:.1f} s after the last", flush=True)
    else:
        kill(number, copiers, chance)


def account(source: Topic, target: Topic, copiers: list[Copier]) -> None:
    """Raise AssertionError unless each record is there once."""
    expected = range(1, len(source.places) + 1)
    found = numbers_in(target, isolation="read_committed")
    missing = [number for number in expected if not found[number]]
    twice = [number for number, times in found.items() if times > 1]
    assert not missing, f"{len(missing)} records are lost, the first {missing[0]}"
    assert not twice, f"{len(twice)} records are there more than once, the first {min(twice)}"
    assert len(found) == len(expected), "more was written than was read"
    aborted = numbers_in(target, isolation="read_uncommitted").total() - len(found)
    failures = [line for copier in copiers for line in copier.failures()]
    for line in failures:
        print(f"  {line[:400]}", flush=True)
    print(
        f"  {len(found)} records, each once; {aborted} more were written and aborted;"
        f" {len(failures)} times a query failed and began again",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
