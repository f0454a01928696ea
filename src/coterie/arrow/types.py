"""The Arrow types of the columns of Spark's Kafka source, and the bounds of their timestamps."""

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
# A header's key should be UTF-8, and nobody checks; Spark, too, takes the bytes as they are.
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

MOST_MS = (2**63 - 1) // 1000
"""Timestamps are held at this end of Spark's range: a producer may write any number, and Spark's own source
fails such a query for good."""

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
