"""A Kafka client: connections, the cluster's metadata, and a member of a group.

messages     pure  requests made, answers read
member       pure  one member of a group: events in, requests out
settings     pure  what a client may be told, by Kafka's names
records      pure  the records a consumer hands out, read from batches as they are taken
intake       pure  one partition on its way through a consumer
sessions     pure  fetch sessions (KIP-227)
connection         one asyncio connection, several requests in flight; TLS and SASL
blocking           one plain socket, for the Spark workers
cluster            metadata, leaders, coordinators, offsets, with retries
consumer           the consumer: groups or chosen partitions, positions, commits
fetcher            fetches ahead for a consumer, so many bytes at most
truncation         whether a new leader's log has what was read (KIP-320)
blocking_face      what the faces for scripts that block share
blocking_consumer  the consumer, blocking_producer the producer, blocking_admin the administrator of those
chance             the little chance that a client needs
membership         runs a member on a loop
admin              the administrator's face: topics, settings, groups, offsets, transactions, the cluster
admin_messages pure  its requests and answers
resets       pure  where a group's offsets can be set to
groups             what an administrator asks of groups, and does to them
producer           the producer's face: records in, deliveries out, transactions around them
batcher      pure  batches that fill column by column
lane         pure  one partition's batches until each is known to be written or not
producing    pure  what a producer has to send, when, and what follows from each answer
sender             carries that out: requests, answers, timers
transacting  pure  the state of a producer's transactions; a table that runs
transactions       carries that out: asks coordinators
story              reads the story of a group from the topic `__group_story`
loop               a loop in a thread of its own, for callers that block

Its faces (Consumer, Producer, Admin, the same with Blocking before it, RebalanceListener) can be imported
from here; each is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.client.admin import Admin
    from coterie.client.blocking_admin import BlockingAdmin
    from coterie.client.blocking_consumer import BlockingConsumer
    from coterie.client.blocking_producer import BlockingProducer
    from coterie.client.consumer import Consumer
    from coterie.client.listener import RebalanceListener
    from coterie.client.producer import Producer

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
    "Admin": "admin",
    "BlockingAdmin": "blocking_admin",
    "BlockingConsumer": "blocking_consumer",
    "BlockingProducer": "blocking_producer",
    "Consumer": "consumer",
    "Producer": "producer",
    "RebalanceListener": "listener",
}


def __getattr__(name: str) -> Any:
    """Return a face by its name: a broker's member needs none of them, and they need time to load."""
    place = PLACES.get(name)
    if place is None:
        raise AttributeError(f"coterie.client has no {name}")
    return getattr(import_module(f"coterie.client.{place}"), name)
