"""The life of an Apache Kafka before it is taken over: restarts, a crash, settings, transactions, groups."""

from __future__ import annotations

from pathlib import Path

from bench.brokers import BROKERS, Broker

from interop.takeover.java import Java

__all__ = ["OLD", "SETTINGS", "TOPICS", "first_life", "last_days", "new_kafka", "second_life"]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "3",
    "log.retention.hours": "-1",  # which only this broker's properties say
    "auto.create.topics.enable": "false",  # or a producer that lives has a topic of ours made anew
    "broker.session.timeout.ms": "3000",  # so long a broker that was killed may not come back
    "broker.heartbeat.interval.ms": "500",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
}
OLD = 10  # days: beyond the default retention
TOPICS = {
    "plain": (2, ()),
    "forever": (1, ("retention.ms=-1",)),
    "short": (1, ("retention.ms=86400000",)),
    "table": (1, ("cleanup.policy=compact", "min.cleanable.dirty.ratio=1.0")),
    "both": (1, ("cleanup.policy=compact,delete", "retention.ms=-1", "min.cleanable.dirty.ratio=1.0")),
    "grown": (1, ()),
    "again": (1, ("retention.ms=1",)),
}


def new_kafka(work: Path) -> Broker:
    """Return an Apache Kafka that has not lived yet; its logs will lie in `log` of its directory."""
    kafka = BROKERS["kafka"](work / "kafka", SETTINGS)
    kafka.prepare()
    return kafka


def first_life(java: Java) -> None:
    """Make topics, change them, and have them written to and read by both protocols."""
    for name, (partitions, settings) in TOPICS.items():
        java.ask("create", name, partitions, *settings)
    java.ask("grow", "grown", 3)
    java.ask("delete", "again")
    java.ask("create", "again", 2, "retention.ms=-1")
    java.ask("brokers", "log.segment.bytes=10485760")
    java.ask("set", "plain", "segment.ms=1")
    java.ask("set", "plain", "segment.ms=")
    for name in TOPICS:
        java.ask("write", "p", name, 12, OLD, "a")
    java.ask("transaction", "tx", "plain", 4, "t", "commit")
    java.ask("transaction", "tx", "plain", 4, "u", "abort")
    java.ask("open", "classic", "classic", "classic", "plain")
    java.ask("read", "classic", 16)
    java.ask("open", "next", "next", "consumer", "plain")
    java.ask("read", "next", 16)


def second_life(java: Java) -> None:
    """Go on after a restart, in a later epoch."""
    java.ask("write", "p", "plain", 4, 0, "b")
    java.ask("read", "classic", 4)
    java.ask("read", "next", 4)
    java.ask("close", "next")
    java.ask("open", "rest", "rest", "classic", "plain")
    java.ask("read", "rest", 20)
    java.ask("close", "rest")


def last_days(java: Java) -> None:
    """Go on after a crash; some records are left unread, and a transaction open."""
    java.ask("write", "p", "plain", 4, 0, "c")
    java.ask("read", "classic", 4)
    java.ask("write", "p", "plain", 2, 0, "d")
    java.ask("transaction", "tx", "forever", 3, "o", "leave")
