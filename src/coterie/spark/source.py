"""The data source that Spark finds by the name `coterie`.

Spark starts a process to look sources up and another to ask for the schema: neither needs more than this
module, so the readers are imported where they are made.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["CoterieDataSource"]

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)


class CoterieDataSource(DataSource):
    """Kafka topics in the columns of Spark's own source, and a streaming query as a member of its group."""

    @classmethod
    def name(cls) -> str:
        """Return what `format` takes."""
        return "coterie"

    def schema(self) -> StructType:
        """Return the columns; headers are one of them if they are asked for."""
        wanted = str(self.options.get("includeHeaders") or "").strip().lower() == "true"
        headers = (StructField("headers", HEADERS),) if wanted else ()
        return StructType([*COLUMNS, *headers])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from coterie.spark.batch import BatchReader
        from coterie.spark.options import parse

        return BatchReader(parse(dict(self.options), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query: a member of a group if the options name one."""
        from coterie.spark.options import parse
        from coterie.spark.stream import MemberReader, PlainReader

        options = parse(dict(self.options), streaming=True)
        return PlainReader(options) if options.member is None else MemberReader(options)
