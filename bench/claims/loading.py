"""Claim: a partition of `__consumer_offsets` loads in at most 1.5 times Kafka's time on the same file.

The time is what each broker's log says that loading took; the file is laid into a directory that the broker
has made itself.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from bench import tools
from bench.brokers import Broker
from bench.figures import Figure, Goal, Plan
from bench.kafka import SetupError
from bench.offsets_log import BIG, LIVE, Shape, groups_of, write_segment

__all__ = ["measure"]

SHAPES = {"batches of 500": BIG, "batches of 4": LIVE}
PARTITION = 0
# "Finished loading of metadata from __consumer_offsets-0 with epoch 1 in 830ms where ...", and our
# "__consumer_offsets-0: loaded 200 groups from offsets 0 to 1200000 in 700 ms".
TOLD = re.compile(r"(?:of metadata from __consumer_offsets-0\b|__consumer_offsets-0: loaded).*? in (\d+) ?ms")
LOAD_WITHIN_S = 120


def measure(plan: Plan) -> list[Figure]:
    """Return the seconds that loading took, for large batches and for small ones."""
    return [_loaded(plan, name, shape) for name, shape in SHAPES.items()]


def _loaded(plan: Plan, name: str, shape: Shape) -> Figure:
    shape = shape._replace(records=plan.scaled(shape.records))
    what = f"loading {shape.records:,} offset records in {name}"
    figure = Figure("loading", what, "s", Goal(1.5, "ratio", at_most=True))
    for kind, broker in plan.rounds(f"loading, {name}"):
        broker.prepare()
        _make_topic(broker)
        partition = next(broker.directory.rglob(f"__consumer_offsets-{PARTITION}"))
        _fill(partition, shape)
        broker.start()
        figure.add(kind, _told(broker))
        broker.stop()
    return figure


def _make_topic(broker: Broker) -> None:
    """Have the broker make `__consumer_offsets`, and end in good order."""
    broker.start()
    group = next(groups_of(1, partition=PARTITION))
    tools.create_topic(broker.address, "flights", partitions=1)
    tools.group_load(broker.address, "coordinator", name=group)
    broker.stop()


def _fill(partition: Path, shape: Shape) -> None:
    """Put the file in the place of what the broker wrote; its indexes are the broker's to make."""
    for old in (*partition.glob("0*"), *partition.parent.glob(".kafka_cleanshutdown")):
        old.unlink()
    for checkpoint in partition.parent.glob("*-checkpoint"):
        if not checkpoint.name.startswith("replication-offset"):
            checkpoint.unlink()
    write_segment(partition / f"{0:020}.log", shape, partition=PARTITION)


def _told(broker: Broker) -> float:
    """Return the seconds that the broker's log tells, once it does."""
    log = broker.directory.with_suffix(".log")
    until = time.monotonic() + LOAD_WITHIN_S
    while time.monotonic() < until:
        told = TOLD.search(log.read_text())
        if told:
            return int(told[1]) / 1000
        time.sleep(0.1)
    broker.stop()
    raise SetupError(f"{broker.name} did not load within {LOAD_WITHIN_S} s: {log.read_text()[-1000:]}")
