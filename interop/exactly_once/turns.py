"""Who dies next, and how: the roles in their order, each by whoever has it then."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.store_cluster import StoreCluster
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from interop.consistency.schedule import Kind

__all__ = ["HOWS", "Cast", "Role", "cast_of", "die", "lead_as_preferred"]

HOWS = (Kind.KILL, Kind.PAUSE)
GONE_S, PAUSED_S = 0.5, 3.0
"""How long a broker is away: one that stands still is taken over from, and then goes on."""
BACK_WITHIN_S = 60.0
CANDIDATES = 100


class Role(NamedTuple):
    """A part that a broker plays, and who plays it."""

    name: str
    player: Callable[[StoreCluster], int | None]


class Cast(NamedTuple):
    """A transactional id, a group and a partition of a topic, each of another broker."""

    transactional_id: str
    group: str
    topic: str
    partition: int

    @property
    def roles(self) -> tuple[Role, ...]:
        """The three."""
        return (
            Role("transaction coordinator", lambda on: on.led_by(TRANSACTIONS_TOPIC, self.transactional_id)),
            Role("group coordinator", lambda on: on.led_by(OFFSETS_TOPIC, self.group)),
            Role("partition leader", lambda on: on.leaders(self.topic)[self.partition]),
        )


def cast_of(cluster: StoreCluster, topic: str) -> Cast:
    """Return names whose roles are three brokers'. The internal topics are there. Raises `SetupError` where
    a broker leads nothing of one for long: on a busy machine one is taken for dead now and then.
    """
    found: list[Cast] = []

    def are_three() -> bool:
        lead_as_preferred(cluster.bootstrap)
        cast = _cast(cluster, topic)
        found.extend([cast] if cast else [])
        return cast is not None

    cluster.until("three brokers have the three roles", are_three, BACK_WITHIN_S)
    return found[0]


def _cast(cluster: StoreCluster, topic: str) -> Cast | None:
    leaders = cluster.leaders(topic)
    partition = next((at for at, one in enumerate(leaders) if one is not None), 0)
    taken = {leaders[partition]}

    def name(stem: str, internal: str) -> str | None:
        for number in range(CANDIDATES):
            broker = cluster.led_by(internal, f"{stem}-{number}")
            if broker is not None and broker not in taken:
                taken.add(broker)
                return f"{stem}-{number}"
        return None

    transactional_id, group = name("copier", TRANSACTIONS_TOPIC), name("copying", OFFSETS_TOPIC)
    return Cast(transactional_id, group, topic, partition) if transactional_id and group else None


def die(cluster: StoreCluster, broker_id: int, how: Kind) -> None:
    """Have a broker be gone for a while, and live again."""
    broker = cluster[broker_id]
    if how is Kind.PAUSE:
        broker.send(signal.SIGSTOP)
        time.sleep(PAUSED_S)
        broker.send(signal.SIGCONT)
    else:
        broker.kill()
        time.sleep(GONE_S)
        broker.start()
    everybody = sorted(cluster.brokers)
    cluster.until("all brokers are live", lambda: cluster.live() == everybody, BACK_WITHIN_S)


def lead_as_preferred(bootstrap: str) -> None:
    """Have everybody lead again what they led at first, so that the roles are three brokers'."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.elect_leaders(ElectionType.PREFERRED, None).result()
