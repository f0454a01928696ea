"""The rounds: let everybody work, kill the broker at a random moment, start it again, and ask."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from coterie.base.errors import CoterieError
from coterie.testing import Broker, broker
from interop.kills.actors import (
    CALL_S,
    IN_TRANSACTIONS,
    KEPT,
    PARTITIONS,
    QUIET,
    Actor,
    Committer,
    Producing,
    Transactions,
    Watcher,
    Workers,
)
from interop.kills.administrator import Administrator
from interop.kills.probe import Probe

__all__ = ["Rounds", "run"]

MOMENT_S = 0.3
PROGRESS_S = 30.0
LOG_TOLD = 4_000
SETTINGS = {
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 3,
    "log.segment.bytes": 1 << 20,  # so that segments are rolled, and recovery finds several
    "offsets.topic.segment.bytes": 1 << 20,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",  # a producer would bring back what the administrator deleted
    "log.cleaner.backoff.ms": 200,
    "log.retention.check.interval.ms": 500,
}
STOPS = 0.1  # so many ends are clean stops: the next start then goes by what they have left


def run(kills: int, *, seed: int, data: Path, say: Callable[[str], None]) -> None:
    """Kill a broker so often; raises AssertionError with the sentence that says what was lost."""
    with broker(SETTINGS, data=data) as running:
        try:
            Rounds(running, seed=seed, say=say).run(kills)
        except (AssertionError, CoterieError):
            say(running.log[-LOG_TOLD:])
            raise


class Rounds:
    """One broker, those who work with it, and the moments at which it is killed."""

    def __init__(self, running: Broker, *, seed: int, say: Callable[[str], None]) -> None:
        self._broker = running
        self._chance = Random(seed)
        self._say = say
        self._probe = Probe(running.bootstrap)
        at = running.bootstrap
        self._transactions = Transactions(at)
        self._actors: list[Actor] = [
            Producing(at),
            Committer(at, 1),
            Committer(at, 2),
            Workers(at, 1),
            Workers(at, 2),
            Watcher(at, 1),
            Watcher(at, 2),
            self._transactions,
            Administrator(at, seed),
        ]

    def run(self, kills: int) -> None:
        """Kill so often, and check after each; at the end let everybody finish and check once more."""
        create_topics(self._broker.bootstrap)
        with ExitStack() as ending:
            for actor in self._actors:
                actor.start()
                ending.callback(actor.stop)
            self._progress()
            for number in range(1, kills + 1):
                self._kill()
                self._check()
                self._say(f"kill {number}: all is there; {self._counts()}")
            self._progress()
        self._check()
        self._transactions.check_all()
        self._probe.close()

    def _kill(self) -> None:
        """Kill at a random moment: mostly under full load, now and then while the broker still starts up."""
        if self._chance.random() < 0.6:
            self._progress()
        time.sleep(self._chance.uniform(0, MOMENT_S))
        if self._chance.random() < STOPS:
            self._broker.stop()
        else:
            self._broker.kill()
        self._probe.close()
        self._broker.start()

    def _progress(self) -> None:
        """Wait until everybody was acknowledged something."""
        before = [actor.done for actor in self._actors]
        until = time.monotonic() + PROGRESS_S
        while any(actor.done == count for actor, count in zip(self._actors, before, strict=True)):
            for actor in self._actors:
                actor.raise_failure()
            idle = [a.name for a, count in zip(self._actors, before, strict=True) if a.done == count]
            assert time.monotonic() < until, f"no progress of {', '.join(idle)} within {PROGRESS_S:g} s"
            time.sleep(0.01)

    def _check(self) -> None:
        for actor in self._actors:
            actor.check(self._probe)

    def _counts(self) -> str:
        return ", ".join(f"{actor.name} {actor.done}" for actor in self._actors)


def create_topics(bootstrap: str) -> None:
    """Create the topics that are written to."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    made = admin.create_topics([NewTopic(name, PARTITIONS) for name in (KEPT, IN_TRANSACTIONS)])
    for outcome in made.values():
        outcome.result(CALL_S)
