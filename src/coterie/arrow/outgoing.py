"""The face of writing: rows in Arrow columns in, the records of whole batches out, to be sent as they are.

batches = pack(rows, partitions=3, most_bytes=16_384, now_ms=now_ms, codec="lz4")

Rows of a partition stay in their order. What has neither a partition nor a key may go anywhere: it lies in
batches of its own, and who sends them chooses.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from coterie.base.errors import CoterieError
from coterie.wire.records.columns import Packed
from coterie.wire.records.compression import compress

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# What a record takes beside its key and value, and a header beside its own, in round numbers: batches end by
# what they hold in these.
ROUND_BYTES, ROUND_HEADER_BYTES = 12, 4


class Rows(NamedTuple):
    """Columns of as many rows each; None where there is no such column."""

    value: pa.Array
    """Binary, as the keys are."""
    key: pa.Array | None = None
    headers: pa.Array | None = None
    """Of type HEADERS."""
    stamps: pa.Array | None = None
    """Milliseconds since 1970 as 64 bits; null: now."""
    partition: pa.Array | None = None
    """32 bits; null: by the key."""


Packer = Callable[..., list[Packed]]


@cache
def packer() -> Packer:
    """Return `outgoing_compiled.pack`, half a second to load. ImportError where numba is missing."""
    from coterie.arrow import outgoing_compiled

    return outgoing_compiled.pack


def pack(
    rows: Rows,
    *,
    partitions: int,
    most_bytes: int,
    now_ms: int,
    codec: str = "none",
) -> list[Packed]:
    """Return the rows as batches of about `most_bytes` at most, in none of which there is more than one
    record if that is larger.

    A key's partition, among so many, is that of Kafka's own producers (PT-2).
    """
    assert partitions > 0
    refuse(rows, partitions)
    made = packer()(rows, partitions=partitions, most_bytes=most_bytes, now_ms=now_ms)
    if codec == "none":
        return made
    return [one._replace(body=compress(codec, one.body)) for one in made]


def refuse(rows: Rows, partitions: int) -> None:
    """Raise CoterieError for what cannot be written."""
    if rows.headers is not None:
        names = rows.headers.flatten().flatten()[0]
        if names.null_count:
            raise CoterieError("a header has no key; every element of the column headers needs one")
    if rows.partition is not None and len(rows.partition):
        bounds = pc.min_max(rows.partition).as_py()
        for number in (bounds["min"], bounds["max"]):
            if number is not None and not 0 <= number < partitions:
                raise CoterieError(f"a row names partition {number}; the topic has 0 to {partitions - 1}")
