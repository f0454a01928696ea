"""What the suites of others run against: one broker, or three of ours over PostgreSQL that look like one."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from bench.brokers import BROKERS, Broker
from bench.kafka import REPOSITORY
from bench.postgres import Server, ensure_installed
from bench.store_cluster import StoreCluster

from interop.workers import Worker

__all__ = ["PLACES", "SETTINGS", "KilledBrokers", "Place", "ThreeBrokers"]

# rust-rdkafka's tests ask for broker 0 and topics of three partitions; transactions are looked through
# more often than by default, so that a timed-out one need not be waited for.
SETTINGS = {
    "node.id": "0",
    "num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
COORDINATING = ("__consumer_offsets", "__transaction_state")
PATIENT = {"broker.session.timeout.ms": "9000"}
"""Kafka's: on a busy machine none that works is to be taken for dead. Of one that is the database tells."""
ALL_LIVE_WITHIN_S = 60.0
EVERY_S = 5.0
DOWN_S = 1.0
KEPT = REPOSITORY / ".cache" / "three_brokers"


class ThreeBrokers:
    """Brokers 0 to 2 and their database, whose logs are files of the folder. A context manager: on the way
    out all processes have ended.
    """

    name = "cluster"

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self._settings = {**settings, **PATIENT}
        self._settings.pop("node.id", None)

    @property
    def address(self) -> str:
        """The addresses of all brokers, for `bootstrap.servers`."""
        return self.cluster.bootstrap

    def prepare(self) -> None:
        """Make the database."""
        ensure_installed()
        self.directory.mkdir(parents=True)
        self.server = Server()
        self.server.__enter__()
        self.cluster = StoreCluster(self.server, self.directory, settings=self._settings, first=0)

    def start(self) -> None:
        """Start the brokers that do not run, and wait until all live."""
        self.cluster.start()
        everybody = [*self.cluster.brokers]
        self.cluster.until("all brokers live", lambda: self.cluster.live() == everybody, ALL_LIVE_WITHIN_S)

    def busiest_coordinator(self) -> int | None:
        """Return who leads most partitions of the internal topics, of those that run; None before there are
        any.
        """
        running = [number for number, one in self.cluster.brokers.items() if one.process is not None]
        led = Counter(leader for topic in COORDINATING for leader in self.cluster.leaders(topic))
        leaders = [number for number in running if led[number]]
        return max(leaders, key=lambda number: led[number], default=None)

    def crash(self) -> int | None:
        """Kill a broker that is a coordinator, and return which; `start` starts it again."""
        victim = self.busiest_coordinator()
        if victim is not None:
            self.cluster[victim].kill()
        return victim

    def died(self) -> str | None:
        """What a broker wrote last that has ended by itself; None if none has."""
        for broker in self.cluster.brokers.values():
            if broker.process is not None and (code := broker.process.poll()) is not None:
                return f"broker {broker.node_id}, exit code {code}:\n{broker.log}"
        return None

    def stop(self) -> None:
        """End the brokers and the database at once. The brokers' logs are kept, those of the last run."""
        self.cluster.stop()
        self.server.__exit__(None, None, None)
        shutil.rmtree(KEPT, ignore_errors=True)
        shutil.copytree(self.directory, KEPT)

    def __enter__(self) -> ThreeBrokers:
        self.prepare()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class KilledBrokers(ThreeBrokers):
    """The same, and a coordinator is killed every five seconds, and started again."""

    name = "killed-cluster"

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(directory, settings)
        self._killing: _Killing | None = None

    def start(self) -> None:
        super().start()
        self._killing = _Killing(self)
        self._killing.start()

    def died(self) -> str | None:
        self._end_killing()
        return super().died()

    def stop(self) -> None:
        try:
            self._end_killing()
        finally:
            super().stop()

    def _end_killing(self) -> None:
        killing, self._killing = self._killing, None
        if killing is not None:
            killing.stop()
            print(f"{killing.done} times a coordinator was killed", flush=True)


class _Killing(Worker):
    """Kills and starts brokers; `done` counts the kills."""

    def __init__(self, brokers: ThreeBrokers) -> None:
        super().__init__("killing", brokers.address)
        self._brokers = brokers

    def work(self) -> None:
        begun = time.monotonic()
        while self.pause(max(0.0, begun + EVERY_S - time.monotonic())):
            begun = time.monotonic()
            victim = self._brokers.crash()
            if victim is not None:
                self.done += 1
                time.sleep(DOWN_S)
                ThreeBrokers.start(self._brokers)


Place: TypeAlias = Broker | ThreeBrokers
"""What a suite's clients are given the addresses of."""
PLACES: Mapping[str, type[Place]] = {
    **BROKERS,
    **{place.name: place for place in (ThreeBrokers, KilledBrokers)},
}
