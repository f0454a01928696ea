"""The pairs of brokers: Apache Kafka and ours over fresh directories, with the same settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.brokers import BROKERS

__all__ = ["PROFILES", "pair"]

ALWAYS = {
    "group.max.session.timeout.ms": "1800000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
}

# By name: the settings of both brokers. Sessions of less than a second let a walk see them end.
PROFILES: dict[str, dict[str, str]] = {
    "plain": {"group.initial.rebalance.delay.ms": "0"},
    "transactions": {"group.initial.rebalance.delay.ms": "0"},
    "short": {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "300"},
    "delayed": {"group.initial.rebalance.delay.ms": "500", "group.min.session.timeout.ms": "300"},
    "small": {
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "300",
        "group.max.size": "3",
    },
}


@contextmanager
def pair(profile: str, work: Path, *, ours: str = "coterie") -> Iterator[tuple[int, int]]:
    """Yield the ports of Apache Kafka and of our broker, stopped afterwards.

    `ours="kafka"` compares Apache Kafka with itself: what differs then is the walk's own fault.
    """
    settings = ALWAYS | PROFILES[profile]
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(BROKERS[name](work / f"{profile}-{place}", settings))
            for place, name in enumerate(("kafka", ours))
        ]
        yield brokers[0].port, brokers[1].port
