"""The Arrow types of the columns of Spark's Kafka source, and how a timestamp becomes one of them."""

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
# A header's key should be UTF-8, and nobody checks; Spark, too, takes the bytes as they are.
RAW_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.binary()), ("value", pa.binary())])))

MOST_MS = (2**63 - 1) // 1000

COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
COLUMNS_AND_HEADERS = COLUMNS.append(pa.field("headers", HEADERS))


def schema_of(*, headers: bool) -> pa.Schema:
    """Return the schema of the rows, as Spark wants it to the letter."""
    return COLUMNS_AND_HEADERS if headers else COLUMNS


def micros(stamp_ms: int) -> int:
    """Return a 64-bit count of milliseconds in microseconds, held at the ends of Spark's range.

    A producer may write any number; Spark's own source fails such a query for good. The sum that gave it
    wraps at 64 bits, as Java's does.
    """
    wrapped = (stamp_ms + 2**63) % 2**64 - 2**63
    return max(-MOST_MS, min(MOST_MS, wrapped)) * 1000
