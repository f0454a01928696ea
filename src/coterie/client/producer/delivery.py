"""What `send` hands back: a record's delivery, to be awaited or looked at later, or never."""

import asyncio
from collections.abc import Generator
from typing import Any, NamedTuple

from coterie.client.producer.batcher import Batch


class RecordMetadata(NamedTuple):
    """Where a record is. The offset is -1 where the broker did not say: without acknowledgements."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Delivery:
    """One record on its way. A few bytes: what it is about is known to its batch.

    Awaiting it gives its RecordMetadata, or raises why it was not written. Who waits may be cancelled: the
    record goes its way.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __repr__(self) -> str:
        state = "done" if self.done() else "on its way"
        return f"<Delivery to {self._batch.place}, {state}>"

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._batch.holding(self._index)[0].outcome is not None

    def result(self) -> RecordMetadata:
        """Return the record's place, or raise why it was not written (InvalidStateError: too early)."""
        batch, index = self._batch.holding(self._index)
        outcome = batch.outcome
        if outcome is None:
            raise asyncio.InvalidStateError("the record is on its way: await it, or producer.flush()")
        if outcome.error is not None:
            raise outcome.error
        offset = outcome.base_offset + index if outcome.base_offset >= 0 else -1
        appended_ms = outcome.append_time_ms
        timestamp = appended_ms if appended_ms >= 0 else batch.timestamp_of(index)
        return RecordMetadata(*batch.place, offset, timestamp)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        while not self.done():
            yield from settled(self._batch.holding(self._index)[0])
        return self.result()


def settled(batch: Batch) -> "asyncio.Future[None]":
    """Return a future that is done once the batch is settled, and that is the caller's to cancel."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    if batch.outcome is None:
        batch.waiters.append(wake)
    else:
        wake()
    return waiter


async def written(batch: Batch) -> None:
    """Wait until all of a batch is written, or raise the reason why it is not."""
    await settled(batch)
    for half in batch.halves or ():
        await written(half)
    if batch.outcome is not None and batch.outcome.error is not None:
        raise batch.outcome.error
