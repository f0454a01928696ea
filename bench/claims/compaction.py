"""Claim: while `__consumer_offsets` is compacted, the p99 of heartbeats is at most twice what it is without.

Both are measured beside the same stream of commits, which is what fills the segments.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from bench import tools
from bench.brokers import SETTINGS, Broker, data_directory
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

SECONDS, QUICK_SECONDS = 10, 4
OFFSETS = 1_000_000
GROUPS = 20
TOPIC, PARTITIONS = "bench", 100
# Segments that fill in seconds and a cleaner that looks every second, against a cleaner that sleeps.
SMALL = {"offsets.topic.segment.bytes": "1048576", "log.cleaner.min.cleanable.ratio": "0.1"}
AT_WORK = {**SETTINGS, **SMALL, "log.cleaner.backoff.ms": "1000"}
ASLEEP = {**SETTINGS, **SMALL, "log.cleaner.backoff.ms": "3600000"}


def measure(plan: Plan) -> list[Figure]:
    """Return the p99 of heartbeats with the cleaner at work, as a multiple of the p99 without."""
    what = "99th percentile of heartbeats during compaction, as a multiple of that without"
    figure = Figure("compaction", what, "x", Goal(2.0, "own", at_most=True))
    for name, broker in plan.rounds("compaction"):
        asleep, at_work = (_p99(type(broker), settings, plan) for settings in (ASLEEP, AT_WORK))
        figure.add(name, at_work / asleep)
    return [figure]


def _p99(kind: type[Broker], settings: Mapping[str, str], plan: Plan) -> float:
    """Return what the slowest hundredth of the heartbeats waited for at least, in milliseconds."""
    data_directory().mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=data_directory()) as directory,
        kind(data_directory() / directory, settings) as broker,
        ThreadPoolExecutor() as pool,
    ):
        tools.create_topic(broker.address, TOPIC, partitions=PARTITIONS)
        load = {"groups": GROUPS, "partitions": PARTITIONS, "offsets": plan.scaled(OFFSETS)}
        pool.submit(tools.group_load, broker.address, "history", **load)
        seconds = QUICK_SECONDS if plan.quick else SECONDS
        return float(tools.group_load(broker.address, "beats", seconds=seconds)["p99_ms"])
