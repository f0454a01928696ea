"""Brokers in processes of their own, over a database that they share."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType

READY_WITHIN_S = 60.0
SOON_S = 30.0


class ServedBroker:
    """`coterie serve --store`, from its start to its end."""

    def __init__(self, url: str, node_id: int, **settings: object) -> None:
        given = {"node.id": node_id, "group.initial.rebalance.delay.ms": 0, **settings}
        words = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        self.node_id = node_id
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coterie", "serve", "--store", url, "--listen", "127.0.0.1:0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = ""

    def until_ready(self) -> str:
        """Return HOST:PORT once it serves."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), self.said()
        self.address = line.split()[1]
        return self.address

    def said(self) -> str:
        """End it, and return what it has written to standard error."""
        self.process.kill()
        return self.process.communicate()[1]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        self.process.send_signal(number)
        self.process.communicate(timeout=SOON_S)
        return self.process.returncode


class ServedCluster:
    """Some brokers that serve. A context manager: on the way out all have ended."""

    def __init__(self, url: str, count: int = 3, **settings: object) -> None:
        self.brokers = {node_id: ServedBroker(url, node_id, **settings) for node_id in range(1, count + 1)}

    def __enter__(self) -> ServedCluster:
        try:
            for broker in self.brokers.values():
                broker.until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers.values():
            broker.said()

    @property
    def bootstrap(self) -> str:
        """The addresses of all."""
        return ",".join(broker.address for broker in self.brokers.values())


def soon(holds: Callable[[], bool], *, within_s: float = SOON_S) -> float:
    """Return how long it took until something held; fail if that is too long."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < within_s
    return time.monotonic() - begun
