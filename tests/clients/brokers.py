"""The brokers that tests start for themselves: ours, or Apache Kafka where the environment says so.

`COTERIE_TEST_BROKER=kafka` makes every broker of these tests an Apache Kafka. `COTERIE_TEST_BOOTSTRAP` names
one that runs already; tests that would start, end or set up their own are skipped then.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

import coterie.testing

if TYPE_CHECKING:
    from bench.brokers import Kafka

__all__ = ["Broker", "another", "broker", "left_out"]

OTHER_BROKER = "COTERIE_TEST_BOOTSTRAP"
KIND = "COTERIE_TEST_BROKER"

Broker = coterie.testing.Broker


def another() -> str | None:
    """Return HOST:PORT of the broker that the environment names, if it names one."""
    return os.environ.get(OTHER_BROKER)


def is_kafka() -> bool:
    """Whether the brokers of the tests are to be Apache Kafka's."""
    return os.environ.get(KIND) == "kafka"


def left_out(item: pytest.Item) -> str | None:
    """Return why a test says nothing of the broker under test: it needs ours (marker `ours`), or None."""
    marker = item.get_closest_marker("ours")
    if marker is None or not (another() or is_kafka()):
        return None
    (reason,) = marker.args
    return f"needs a broker of ours: {reason}"


def broker(settings: Mapping[str, object] | None = None, **more: object) -> Broker:
    """Return a broker of the test's own, to be ended and started at will; terms of `coterie.testing`."""
    if another():
        pytest.skip(f"{OTHER_BROKER} names a broker that is not ours to start, set up or end")
    if not is_kafka():
        return coterie.testing.broker(settings, **more)  # type: ignore[arg-type]
    ours = coterie.testing.broker(settings, **more)  # type: ignore[arg-type]
    return ApacheKafka(ours._settings, data=None, start_within_s=ours._start_within_s)


class ApacheKafka(Broker):
    """One node of Apache Kafka in the place of a broker of ours."""

    _node: Kafka | None = None

    def start(self) -> Self:
        from bench.brokers import Kafka

        if self._node is None:
            self._folder = Path(tempfile.mkdtemp(prefix="coterie-test-kafka-"))
            self._node = Kafka(self._folder / "kafka", self._settings)
            self._node.prepare()
        self._node.start()
        self.port = self._node.port
        return self

    @property
    def pid(self) -> int:
        assert self._node is not None, "the broker was never started"
        return self._node.pid

    @property
    def log(self) -> str:
        if self._node is None:
            return ""
        return self._node.directory.with_suffix(".log").read_text(encoding="utf-8", errors="replace")

    def _end(self, how: signal.Signals) -> None:
        if self._node is None or self._node.process is None:
            return
        if how is signal.SIGKILL:
            self._node.process.kill()
            self._node.process.wait()
            self._node.process = None
        self._node.stop()
