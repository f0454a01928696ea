"""The producer for scripts that block: the asyncio one on a loop in a thread of its own.

with BlockingProducer("localhost:9092") as producer:
    delivery = producer.send("orders", b"one book")
    print(delivery.result().offset)

Batches go out in that thread while the script works. However the block is left, what was sent is written
first: by sys.exit and Ctrl-C, too, where a second Ctrl-C gives up.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from coterie.client.blocking.face import BlockingFace, waiting
from coterie.client.documented import lists_settings
from coterie.client.options import ProducerOptions
from coterie.client.other_clients import BLOCKING_PRODUCER_METHODS, DELIVERY_METHODS, HintsAtMethods
from coterie.client.partitions import checked_timeout_s
from coterie.client.producer.delivery import Delivery, RecordMetadata
from coterie.client.producer.producer import Producer
from coterie.client.producer.settings import ProducerSettings
from coterie.wire.records.columns import Headers


class BlockingProducer(BlockingFace[Producer]):
    """A producer whose calls return when they are done."""

    _called_here = BLOCKING_PRODUCER_METHODS

    @lists_settings(ProducerSettings)
    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ProducerOptions]) -> None:
        """Make a producer; it connects in `start` or `with`."""
        super().__init__(Producer(bootstrap_servers, **settings), name="producer")

    def close(self, *, timeout_ms: float | None = None) -> None:
        """Send what is left, for at most so long, close, and end the thread; see Producer.close."""
        if timeout_ms is not None:
            checked_timeout_s(timeout_ms)  # before the thread ends with nothing sent
        self._end(lambda: self._inner.close(timeout_ms=timeout_ms))

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: Headers | Mapping[str, bytes | None] | None = None,
        timestamp: int | None = None,
    ) -> "BlockingDelivery":
        """Hand over a record and return its delivery; waits for the topic to be known and for room."""
        sending = self._inner.send(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        )
        return BlockingDelivery(self, self._run(sending))

    flush = waiting(Producer.flush)
    partitions_for = waiting(Producer.partitions_for)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose records and offsets are read all or, if an exception leaves it, not at all."""
        block, begun = self._inner.transaction(), False

        async def begin() -> None:
            nonlocal begun
            await block.__aenter__()
            begun = True

        try:
            self._run(begin())
            yield
        except BaseException as error:
            if begun:  # though the script may have been interrupted before it heard of that
                self._run(leave(block, error))
            raise
        self._run(leave(block, None))

    send_offsets = waiting(Producer.send_offsets)


class BlockingDelivery(HintsAtMethods):
    """One record on its way."""

    __slots__ = ("_delivery", "_producer")
    _called_here = DELIVERY_METHODS

    def __init__(self, producer: BlockingProducer, delivery: Delivery) -> None:
        self._producer, self._delivery = producer, delivery

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._delivery.done()

    def result(self) -> RecordMetadata:
        """Wait until the outcome is known; return where the record is, or raise why it was not written."""
        if not self._delivery.done():
            self._producer._run(outcome_of(self._delivery))
        return self._delivery.result()


async def outcome_of(delivery: Delivery) -> RecordMetadata:
    """Return the record's partition and offset, once it is written."""
    return await delivery


async def leave(block: Any, error: BaseException | None) -> None:
    """End an asynchronous block as this exception, or none, would."""
    kind = None if error is None else type(error)
    await block.__aexit__(kind, error, None if error is None else error.__traceback__)
