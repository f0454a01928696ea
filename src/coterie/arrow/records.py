"""The face of this package: a Fetch's bytes in, Arrow record batches out.

fetched = plan(records, first=10, until=500)
for batch in record_batches(fetched, topic="flights", partition=0): ...
go on at fetched.next_offset
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa

from coterie.arrow.plan import (
    CHUNK_BYTES,
    Chunk,
    Plan,
    chunks_of,
)
from coterie.arrow.types import schema_of

Decoder = Callable[..., dict[str, pa.Array]]


@cache
def decoder() -> Decoder:
    """Return `compiled.columns_of`, half a second to load. ImportError where numba is missing."""
    from coterie.arrow import compiled

    return compiled.columns_of


def record_batches(
    planned: Plan,
    *,
    topic: str,
    partition: int,
    headers: bool = False,
    columns: Collection[str] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the planned records in the columns of Spark's Kafka source, some MiB at a time, none empty.

    With `columns`, only those, and neither keys nor values are copied if they are not among them.
    """
    decode = decoder()
    schema = schema_of(headers=headers)
    if columns is not None:
        schema = pa.schema([field for field in schema if field.name in columns])
    for chunk in chunks_of(planned, chunk_bytes=chunk_bytes):
        batch = batch_of(chunk, decode, planned, schema, topic=topic, partition=partition)
        if batch.num_rows:
            yield batch


def table(batches: Iterable[pa.RecordBatch], *, headers: bool) -> pa.Table:
    """Return the record batches as one table, which may be empty."""
    return pa.Table.from_batches(batches, schema=schema_of(headers=headers))


def batch_of(
    chunk: Chunk, decode: Decoder, planned: Plan, schema: pa.Schema, *, topic: str, partition: int
) -> pa.RecordBatch:
    """Return one chunk's records as an Arrow record batch of this schema."""
    wanted = {"offset", *schema.names}
    columns = decode(
        chunk,
        first=planned.first,
        until=planned.until,
        headers="headers" in wanted,
        left_out={"key", "value"} - wanted,
    )
    rows = len(columns["offset"])
    columns["topic"] = same(topic, pa.string(), rows)
    columns["partition"] = same(partition, pa.int32(), rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def same(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """Return so many times the same value."""
    return repeated(value, kind, 1 << max(rows - 1, 0).bit_length()).slice(0, rows)


@lru_cache(maxsize=16)
def repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """Return the same for all who need no more rows: the columns that say where rows came from."""
    return pa.repeat(pa.scalar(value, kind), rows)
