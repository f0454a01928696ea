"""The tables of a history and their columns, made from `coterie.history.tables`: one source for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coterie.history.tables import (
    Assignment,
    Generation,
    History,
    Move,
    Ownership,
    Replacement,
    Stall,
    Subscription,
    Wave,
)

TABLES: Mapping[str, type] = {
    "generations": Generation,
    "assignments": Assignment,
    "ownership": Ownership,
    "stalls": Stall,
    "moves": Move,
    "replacements": Replacement,
    "waves": Wave,
    "subscriptions": Subscription,
}

TIMES = {"formed_at", "at", "from_ms", "to_ms"}
RENAMED = {"from_ms": "from", "to_ms": "to"}
OWNER = {"ownership": {"member_id": "owner"}}
STAMP = pa.timestamp("us", tz="UTC")

SPARK_TYPES: Mapping[Any, DataType] = {
    str: StringType(),
    int: IntegerType(),
    float: DoubleType(),
    bool: BooleanType(),
}
ARROW_TYPES: Mapping[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int32(),
    float: pa.float64(),
    bool: pa.bool_(),
}


class Column(NamedTuple):
    """A column: its name in the table, and its type in Arrow and in Spark."""

    name: str
    arrow: pa.DataType
    spark: DataType
    nullable: bool


@cache
def columns_of(table: str) -> tuple[Column, ...]:
    """Return a table's columns."""
    renamed = RENAMED | OWNER.get(table, {})
    hints = get_type_hints(TABLES[table])
    return tuple(column(renamed.get(field, field), field, hint) for field, hint in hints.items())


def column(name: str, field: str, hint: Any) -> Column:
    """Return one column, as the type hint of its field has it."""
    inner = [one for one in get_args(hint) if one not in (type(None), Ellipsis)]
    nullable = type(None) in get_args(hint)
    if field in TIMES:
        return Column(name, STAMP, TimestampType(), nullable)
    if field.endswith("_ms"):
        return Column(name, pa.int64(), LongType(), nullable)
    if hint not in SPARK_TYPES and not nullable:
        return Column(name, pa.list_(ARROW_TYPES[inner[0]]), ArrayType(SPARK_TYPES[inner[0]]), False)
    kind = inner[0] if nullable else hint
    return Column(name, ARROW_TYPES[kind], SPARK_TYPES[kind], nullable)


COLUMNS: Mapping[str, tuple[Column, ...]] = {name: columns_of(name) for name in TABLES}


def spark_schema(table: str) -> StructType:
    """Return the schema of a table's DataFrame."""
    return StructType([StructField(one.name, one.spark, True) for one in COLUMNS[table]])


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Return the schema of a table's batches."""
    return pa.schema([(one.name, one.arrow) for one in COLUMNS[table]])


def batch_of(columns: Mapping[str, pa.Array], table: str) -> pa.RecordBatch:
    """Return columns as a batch of a table."""
    schema = arrow_schema(table)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def rows_batch(table: str, rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows as a batch of a table, made column by column."""
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS[table])
    arrays = [
        stamps(values) if one.arrow == STAMP else pa.array(values, one.arrow)
        for one, values in zip(COLUMNS[table], columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(table))


def stamps(values: Iterable[int | None]) -> pa.Array:
    """Return milliseconds as timestamps."""
    return pc.multiply(pa.array(values, pa.int64()), 1000).cast(STAMP)


def packed_schema() -> StructType:
    """Return the schema of packed histories: a row for many groups, a column a table."""
    packed = [StructField(name, BinaryType(), True) for name in TABLES]
    return StructType([StructField("groups", LongType(), True), *packed])


def packed_batch(groups: int, tables: Mapping[str, Sequence[pa.RecordBatch]]) -> pa.RecordBatch:
    """Return the tables of so many groups, packed: Spark need not look into them before somebody asks."""
    values = [groups, *(packed(name, tables[name]) for name in TABLES)]
    kinds = [pa.int64(), *[pa.binary()] * len(TABLES)]
    arrays = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["groups", *TABLES])


def packed(table: str, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return the batches of a table as a stream of Arrow's."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)  # Spark's tasks are threads enough
    with pa.ipc.new_stream(sink, arrow_schema(table), options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a table that was packed."""
    with pa.ipc.open_stream(data) as stream:
        yield from stream


def histories_in(packed_row: Mapping[str, bytes]) -> Iterator[History]:
    """Yield the histories that a packed row holds."""
    found: dict[str, dict[str, list[Any]]] = {}
    for table, kind in TABLES.items():
        for batch in unpacked(packed_row[table]):
            for row in map(kind._make, zip(*map(plainly, batch.columns), strict=True)):  # type: ignore[attr-defined]
                found.setdefault(row.group_id, {}).setdefault(table, []).append(row)
    for group_id, tables in sorted(found.items()):
        yield History(group_id, *(tuple(tables.get(table, ())) for table in TABLES))


def plainly(column: pa.Array) -> list[Any]:
    """Return a column as the rows of `coterie.history.tables` have it."""
    if column.type == STAMP:
        stamped: list[Any] = pc.divide(column.cast(pa.int64()), 1000).to_pylist()
        return stamped
    if pa.types.is_list(column.type):
        return [tuple(one) for one in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values
