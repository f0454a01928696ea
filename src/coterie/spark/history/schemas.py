"""The tables of a history and their columns, made from `coterie.history.tables`: one source for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, NamedTuple, get_args, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
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
    Wave,
)

__all__ = ["COLUMNS", "TABLES", "column", "rows_array", "spark_schema", "told_batch", "told_schema"]

TABLES: Mapping[str, type] = {
    "generations": Generation,
    "assignments": Assignment,
    "ownership": Ownership,
    "stalls": Stall,
    "moves": Move,
    "replacements": Replacement,
    "waves": Wave,
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
def struct_of(table: str) -> pa.StructType:
    return pa.struct([pa.field(one.name, one.arrow) for one in COLUMNS[table]])


def told_schema() -> StructType:
    """Return the schema of what is told of groups: a row a group, a column a table."""
    tables = [StructField(name, ArrayType(spark_schema(name)), True) for name in TABLES]
    return StructType([StructField("group_id", StringType(), True), *tables])


def rows_array(table: str, rows: Iterable[tuple[Any, ...]]) -> pa.StructArray:
    """Return rows as an array of structs, made column by column."""
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS[table])
    arrays = [
        stamps(values) if one.arrow == STAMP else pa.array(values, one.arrow)
        for one, values in zip(COLUMNS[table], columns, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(struct_of(table)))


def stamps(values: Iterable[int | None]) -> pa.Array:
    """Return milliseconds as timestamps."""
    return pc.multiply(pa.array(values, pa.int64()), 1000).cast(STAMP)


def told_batch(told: Sequence[History]) -> pa.RecordBatch:
    """Return what is told of some groups, a row each, as `told_schema` says."""
    arrays: list[pa.Array] = [pa.array([one.group_id for one in told], pa.string())]
    for name in TABLES:
        lists = [getattr(one, name) for one in told]
        offsets = pa.array([0, *accumulate(map(len, lists))], pa.int32())
        arrays.append(pa.ListArray.from_arrays(offsets, rows_array(name, chain.from_iterable(lists))))
    return pa.RecordBatch.from_arrays(arrays, names=["group_id", *TABLES])
