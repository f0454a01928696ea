"""`python -m interop.spark_kills [--on BROKER] [--kills N] [--seed S]`: each record once, whatever is killed.

Two applications of one group copy a topic that is written to all the time. One line a kill.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from bench.brokers import BROKERS, SETTINGS
from bench.kafka import SetupError
from pipeline.processes.process_tree import Process, signal_all

from coterie.client.blocking.admin import BlockingAdmin
from interop.spark.applications import wait_for
from interop.spark.topics import Feeder, Topic
from interop.spark_kills.copying import Copier, insist_on_each_once, numbers_in, show_failures
from interop.spark_kills.moments import Moment, Watch, demand

GROUP = "copy"
# Of ten kills, how many take the workers, the driver and both: a driver takes seconds to come back.
KINDS = ("workers",) * 8 + ("driver", "both")
PAUSE_S = (0.1, 2.0)
# A third of the kills come at any time, the others when a task has begun or ended its transaction.
AIMS = (Moment.IDLE, Moment.OPEN, Moment.WRITTEN)
LATER_S = {Moment.IDLE: 0.2, Moment.OPEN: 0.005, Moment.WRITTEN: 0.0}
LOOKED_UP_AGAIN_S = 1.0
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
        hits = Counter[Moment]()
        with Feeder(source, count=40, every_s=0.2), BlockingAdmin(running.address) as admin:
            watch = Watch(admin, group=GROUP)
            for number in range(1, kills + 1):
                hits[kill(number, copiers, watch, chance)] += 1
        try:
            wait_for(lambda: source.committed(GROUP) == source.ends(), what="all is copied")
        except AssertionError as error:
            told = [f"{source.committed(GROUP)} of {source.ends()} is committed"]
            told += [f"{one.name}: {one.under_way()} is under way\n{one.last_words}" for one in copiers]
            raise AssertionError("\n".join([str(error), *told])) from None
        for copier in copiers:
            copier.stop()
        account(source, target, copiers)
        demand(hits)


def kill(number: int, copiers: list[Copier], watch: Watch, chance: random.Random) -> Moment:
    """Wait until an application works, a while longer, and kill some of it; return what that has hit."""
    kind, aim, pause_s = chance.choice(KINDS), AIMS[number % len(AIMS)], chance.uniform(*PAUSE_S)
    began = time.monotonic()
    time.sleep(pause_s)
    copier, victims = chosen(copiers, kind, aim, watch, chance)
    time.sleep(chance.uniform(0, LATER_S[aim]))
    signal_all(victims, signal.SIGKILL)
    hit = watch.moment(copier)
    if kind != "workers":
        copier.start_again(victims)
    took_s = time.monotonic() - began
    print(f"  {number}: {kind} of {copier.name}, {hit.value}, {took_s:.1f} s", flush=True)
    return hit


def chosen(
    copiers: list[Copier], kind: str, aim: Moment, watch: Watch, chance: random.Random
) -> tuple[Copier, list[Process]]:
    """Wait until a moment has come for an application that works; return it, and whom of it to kill."""
    until = time.monotonic() + WORKS_WITHIN_S
    while time.monotonic() < until:
        wait_for(lambda: any(one.works for one in copiers), what="somebody works", within_s=WORKS_WITHIN_S)
        # Looked up before, as a transaction may be over meanwhile.
        victims = {one: one.victims(kind) for one in copiers if one.works}
        choices = [one for one, family in victims.items() if family]
        if aim is Moment.IDLE and choices:
            copier = chance.choice(choices)
            return copier, victims[copier]
        caught = watch.caught(aim, choices, within_s=LOOKED_UP_AGAIN_S)
        if caught is not None:
            return caught, victims[caught]
    raise AssertionError("nobody writes any more")


def account(source: Topic, target: Topic, copiers: list[Copier]) -> None:
    """Raise AssertionError unless each record is there once."""
    found = numbers_in(target, isolation="read_committed")
    insist_on_each_once(source, found)
    aborted = numbers_in(target, isolation="read_uncommitted").total() - len(found)
    failed = show_failures(copiers)
    print(
        f"  {len(found)} records, each once; {aborted} more were written and aborted;"
        f" {failed} times a query failed and began again",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
