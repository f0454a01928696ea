"""A task's rows on their way into topics: read, encoded and sent at the same time. Runs on executors."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coterie.arrow.outgoing import HEADERS, Rows, pack
from coterie.base.errors import CoterieError
from coterie.client.net.cluster import Cluster
from coterie.client.producer.batcher import PackedBatch
from coterie.client.producer.delivery import written
from coterie.client.producer.producer import Producer
from coterie.spark.sink.options import SinkOptions
from coterie.spark.sink.worker_loop import WORKER_LOOP

DEAD_LETTER = "deadletter"
"""The column of dead letters, in lower case."""


async def read_ahead(batches: Iterable[pa.RecordBatch]) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the batches; the next is read, in a thread, while this one is worked on."""
    loop, source = asyncio.get_running_loop(), iter(batches)
    with ThreadPoolExecutor(1) as reader:
        coming = loop.run_in_executor(reader, next, source, None)
        while (batch := await coming) is not None:
            coming = loop.run_in_executor(reader, next, source, None)
            yield batch


async def buffered(coming: AsyncGenerator[pa.RecordBatch, None], most_bytes: int) -> deque[pa.RecordBatch]:
    """Return the batches that come, up to so many bytes: what is left comes from the generator.

    A transaction that begins after this does not last as long as its rows take to be made.
    """
    held: deque[pa.RecordBatch] = deque()
    size = 0
    async for batch in coming:
        held.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            break
    return held


def columns_by_name(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return a batch's columns by their names, to which upper and lower case are the same."""
    return {name.lower(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Return the columns of records, as they are encoded."""
    columns = columns_by_name(batch)
    headers, stamps = columns.get("headers"), columns.get("timestamp")
    key = columns.get("key")
    return Rows(
        value=columns["value"].cast(pa.binary()),
        key=None if key is None else key.cast(pa.binary()),
        headers=None if headers is None else headers.cast(HEADERS),
        stamps=None if stamps is None else in_milliseconds(stamps),
        partition=columns.get("partition"),
    )


def in_milliseconds(stamps: pa.Array) -> pa.Array:
    """Return timestamps as Kafka counts them."""
    return stamps.cast(pa.timestamp("ms", stamps.type.tz), safe=False).cast(pa.int64())


def by_topic(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield a batch's rows topic by topic, dead letters to their own."""
    if options.dead_letter_topic is not None:
        are_dead = columns_by_name(batch)[DEAD_LETTER].is_valid()
        dead, batch = batch.filter(are_dead), batch.filter(pc.invert(are_dead))
        if dead.num_rows:
            yield options.dead_letter_topic, letters_of(dead)
    if options.topic is not None:
        yield options.topic, batch
        return
    column = columns_by_name(batch)["topic"]
    for topic in pc.unique(column).to_pylist():
        if topic is None:
            raise CoterieError(
                "a row's topic is null, and the option topic is not set: name a topic in every row, or set it"
            )
        yield topic, batch.filter(pc.equal(column, topic))


def letters_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records of dead letters: the bytes as they came, with their keys, and why in the headers."""
    columns = columns_by_name(batch)
    letters = columns[DEAD_LETTER].to_pylist()
    headers = columns["headers"].to_pylist() if "headers" in columns else [None] * len(letters)
    sources = columns["source"].to_pylist() if "source" in columns else [None] * len(letters)
    all_headers = [
        [*(each or ()), *({"key": name, "value": text.encode()} for name, text in why(letter, source))]
        for each, letter, source in zip(headers, letters, sources, strict=True)
    ]
    made: dict[str, pa.Array] = {name: columns[name] for name in ("key", "timestamp") if name in columns}
    made["value"] = pa.array([one["value"] for one in letters], pa.binary())
    made["headers"] = pa.array(all_headers, HEADERS)
    return pa.RecordBatch.from_pydict(made)


def why(letter: Mapping[str, Any], source: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the headers of a dead letter: why it is one, and where it was read, if that is known."""
    found = {"reason": letter.get("reason"), "schema.id": letter.get("schemaId")}
    if source is not None:
        found |= {name: source.get(name) for name in ("topic", "partition", "offset")}
    for name, one in found.items():
        if one is not None:
            yield f"coterie.{name}", str(one)


class Outbox:
    """Encodes rows and hands them to a producer, which sends them meanwhile."""

    def __init__(self, producer: Producer, options: SinkOptions) -> None:
        self.rows = 0
        self._producer, self._options = producer, options
        self._unsettled: list[PackedBatch] = []

    async def send(self, batch: pa.RecordBatch) -> None:
        """Send rows; waits for room. Raise what has become of earlier ones."""
        settings, loop = self._producer.settings, asyncio.get_running_loop()
        for topic, rows in by_topic(batch, self._options):
            work = partial(
                pack,
                rows_of(rows),
                partitions=await self._producer.partitions_for(topic),
                most_bytes=settings.batch_size,
                now_ms=int(time.time() * 1000),
                codec=settings.codec,
            )
            for packed in await loop.run_in_executor(None, work):
                self._unsettled.append(await self._producer.send_packed(topic, packed))
        self.rows += batch.num_rows
        await self._look(wait=False)

    async def finish(self) -> None:
        """Wait until everything is written, or raise the error of a batch that is not."""
        await self._producer.flush()
        await self._look(wait=True)

    async def _look(self, *, wait: bool) -> None:
        """Raise what became of a batch that was not written; forget those that were."""
        for one in self._unsettled:
            if wait or one.outcome is not None:
                await written(one)
        self._unsettled = [one for one in self._unsettled if one.outcome is None]


@asynccontextmanager
async def producer_over(
    cluster: Cluster, options: SinkOptions, name: str | None = None
) -> AsyncIterator[Producer]:
    """Have a producer over a cluster's connections. With the name of a task of a query it is the task's: to
    begin with it fences whoever had the task before.
    """
    producer = Producer(**options.settings, transactional_id=None if name is None else f"coterie-{name}")
    await producer.start_on(cluster)
    async with AsyncExitStack() as closing:
        closing.push_async_exit(producer)
        yield producer


def cluster_of(options: SinkOptions) -> AbstractAsyncContextManager[Cluster]:
    """Have connections to the cluster that is written to; kept for the next task of this process."""
    return WORKER_LOOP.cluster(options.producer())


async def send_in_transaction(
    producer: Producer,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    select: Callable[[pa.RecordBatch], Awaitable[pa.RecordBatch]],
    send_offsets: Callable[[], Awaitable[None]],
) -> int:
    """Send the rows that `select` leaves of each batch, and offsets with them, in one transaction; return the
    number of rows.
    """
    outbox = Outbox(producer, options)
    async with aclosing(read_ahead(batches)) as coming:
        held = await buffered(coming, producer.settings.buffer_memory)
        async with producer.transaction():
            while held:
                await outbox.send(await select(held.popleft()))
            async for batch in coming:
                await outbox.send(await select(batch))
            await send_offsets()
    return outbox.rows
