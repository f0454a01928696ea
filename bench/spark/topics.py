"""Topics for Spark to read, filled in seconds: record batches are made once and produced many times.

The batches are as large as those of Kafka's producers at their defaults: 16 KiB on the wire.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

from bench import tools
from bench.figures import Plan
from bench.kafka import SetupError
from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.blocking.admin import BlockingAdmin
from coterie.client.net.addresses import address_of
from coterie.client.net.plain_socket import BlockingConnection
from coterie.client.producer.messages import produce, read_produce
from coterie.wire.api.apis import ApiKey
from coterie.wire.records.batches import Record, build_batch

__all__ = ["MIXED", "PARTITIONS", "Records", "fill"]

PARTITIONS = 4
BATCH_BYTES = 16_384
SAMPLE = 200
DIFFERENT = 32
"""So many batches of each kind are different; more would be made to no end, as nobody compares them."""
IN_FLIGHT = 5
BEGAN_MS = int(time.time() * 1000)  # older records might be deleted before they are read
TIMEOUT_S = 60.0
WORDS = ("delayed", "boarding", "departed", "cancelled", "diverted", "landed", "scheduled", "at the gate")


class Records(NamedTuple):
    """What a topic holds: so many records of each of these sizes, in turn, spread over the partitions."""

    counts: Sequence[tuple[int, int]]
    """How many, of how many bytes of value."""
    codec: str = "none"
    rich: bool = False
    """Whether they have keys and headers."""

    def scaled(self, plan: Plan) -> Records:
        """Return the same, or a fifth of it for a quick look."""
        return self._replace(counts=tuple((plan.scaled(count), size) for count, size in self.counts))

    @property
    def total(self) -> int:
        """How many records there are."""
        return sum(count for count, _ in self.counts)


MIXED = Records(((4_000_000, 100), (500_000, 1_000)))


def fill(address: str, topic: str, records: Records) -> None:
    """Create the topic and produce the records to it."""
    tools.create_topic(address, topic, partitions=PARTITIONS)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with BlockingAdmin(address) as admin:
        admin.list_offsets(places)  # which asks until the partitions have leaders
    connection = BlockingConnection(address_of(address), client_id="bench", timeout_s=TIMEOUT_S)
    try:
        for count, size in records.counts:
            for batch in batches(count // PARTITIONS, size, records):
                send(connection, places, batch)
        while connection.awaited:
            accept(connection)
    finally:
        connection.close()


def send(connection: BlockingConnection, places: Sequence[TopicPartition], batch: bytes) -> None:
    """Produce a batch to each of the partitions; some requests may be under way at once."""
    if connection.awaited == IN_FLIGHT:
        accept(connection)
    connection.send(
        ApiKey.PRODUCE,
        lambda version: produce(
            version, [(place, batch) for place in places], transactional_id=None, acks=1, timeout_ms=30_000
        ),
    )


def accept(connection: BlockingConnection) -> None:
    """Take the answer to the oldest request."""
    for place, answer in read_produce(connection.receive()).items():
        if answer.code is not Code.NONE:
            raise SetupError(f"{place} was not filled: {answer.code.name} {answer.said or ''}")


def batches(count: int, size: int, records: Records) -> Iterator[bytes]:
    """Yield batches that hold `count` records."""
    each = max(1, BATCH_BYTES * SAMPLE // len(batch_of(SAMPLE, size, 0, records)))
    made = [batch_of(each, size, seed, records) for seed in range(DIFFERENT)]
    whole, rest = divmod(count, each)
    yield from islice(cycle(made), whole)
    if rest:
        yield batch_of(rest, size, DIFFERENT, records)


def batch_of(count: int, size: int, seed: int, records: Records) -> bytes:
    """Return a batch of records, the same for the same seed."""
    chance = random.Random(seed)
    made = [
        Record(
            number,
            BEGAN_MS + number,
            b"flight-%06d" % chance.randrange(10**6) if records.rich else None,
            value_of(size, number, chance),
            (("trace", chance.randbytes(8)), ("source", b"bench")) if records.rich else (),
        )
        for number in range(count)
    ]
    return build_batch(made, codec=records.codec)


def value_of(size: int, number: int, chance: random.Random) -> bytes:
    """Return a value of so many bytes, which compresses as logs do."""
    text = f'{{"number":{number},"minutes":{chance.randrange(1000)},"said":"'
    while len(text) < size:
        text += f"{chance.choice(WORDS)} {chance.randrange(10**6):x} "
    return (text[: size - 2] + '"}').encode()
