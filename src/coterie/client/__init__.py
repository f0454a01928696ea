"""A Kafka client: connections, the cluster's metadata, and a member of a group.

net        connections, requests and answers, the cluster as a client sees it
member     one member of a group: a pure machine, and what runs it on a loop
consumer   records of a group's or of chosen partitions: fetches ahead, positions, commits
producer   batches, idempotence, transactions
admin      topics, settings, groups and their offsets, transactions, the cluster
blocking   the three for scripts that block
settings   what a client may be told, by Kafka's names

Its faces (Consumer, Producer, Admin, the same with Blocking before it, RebalanceListener) can be imported
from here; each is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin
    from coterie.client.blocking.admin import BlockingAdmin
    from coterie.client.blocking.consumer import BlockingConsumer
    from coterie.client.blocking.producer import BlockingProducer
    from coterie.client.consumer.consumer import Consumer
    from coterie.client.consumer.listener import RebalanceListener
    from coterie.client.producer.producer import Producer

__all__ = [
    "Admin",
    "BlockingAdmin",
    "BlockingConsumer",
    "BlockingProducer",
    "Consumer",
    "Producer",
    "RebalanceListener",
]

PLACES = {
    "Admin": "admin.admin",
    "BlockingAdmin": "blocking.admin",
    "BlockingConsumer": "blocking.consumer",
    "BlockingProducer": "blocking.producer",
    "Consumer": "consumer.consumer",
    "Producer": "producer.producer",
    "RebalanceListener": "consumer.listener",
}


def __dir__() -> list[str]:
    """Return the faces: what an editor or a prompt offers."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Return a face by its name: a broker's member needs none of them, and they need time to load."""
    place = PLACES.get(name)
    if place is None:
        raise AttributeError(f"coterie.client has no {name}")
    return getattr(import_module(f"coterie.client.{place}"), name)
