"""The data source that Spark finds by the name `coterie`.

Spark starts a process to look sources up and another to ask for the schema: neither needs more than this
module, so the readers are imported where they are made.
"""

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coterie.spark.options import BadOption, Options
from coterie.spark.source.option_names import SOURCE_OPTIONS, columns_of

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
SOURCE = StructType(
    [
        StructField("group", StringType()),
        StructField("member", StringType()),
        StructField("instance", StringType()),
        StructField("generation", IntegerType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("first", LongType()),
        StructField("until", LongType()),
        StructField("whole", BooleanType()),
        StructField("task", LongType()),
    ]
)
TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
    "source": SOURCE,
}


def value_metadata(schema: StructType) -> dict[str, Any]:
    """Return the metadata of the column `value`, where there is one."""
    return next((dict(one.metadata) for one in schema.fields if one.name == "value"), {})


class CoterieDataSource(DataSource):
    """Kafka topics in the columns of Spark's own source, and a streaming query as a member of its group."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "coterie"

    def schema(self) -> StructType:
        """Return the columns that the options ask for."""
        options = Options(SOURCE_OPTIONS, dict(self.options))
        columns = columns_of(options)
        types = TYPES
        metadata: dict[str, Any] = {}
        if options["value.format"] is not None or options["deadLetterColumn"]:
            from coterie.spark.values.columns import DEAD_LETTER, value_column

            value_type, metadata = value_column(options)
            types = {**TYPES, "value": value_type, "deadLetter": DEAD_LETTER}
        return StructType(
            [
                StructField(name, types[name], metadata=metadata if name == "value" else None)
                for name in columns
            ]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from coterie.spark.source.batch import BatchReader, FilteringReader
        from coterie.spark.source.options import parse

        options = parse(dict(self.options), streaming=False, value_metadata=value_metadata(schema))
        return FilteringReader(options) if options.pushdown else BatchReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        from coterie.spark.sink.options import parse_sink
        from coterie.spark.sink.sink import BatchSink, refuse_columns

        if overwrite:
            raise BadOption("a topic is not overwritten; write with mode append")
        options = parse_sink(dict(self.options), streaming=False)
        refuse_columns(schema, options)
        return BatchSink(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming query."""
        from coterie.spark.sink.options import parse_sink
        from coterie.spark.sink.sink import StreamSink, refuse_columns

        options = parse_sink(dict(self.options), streaming=True)
        refuse_columns(schema, options)
        return StreamSink(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query: a member of a group if the options name one."""
        from coterie.spark.source.options import parse
        from coterie.spark.source.stream import MemberReader, PlainReader

        options = parse(dict(self.options), streaming=True, value_metadata=value_metadata(schema))
        return PlainReader(options) if options.member is None else MemberReader(options)
