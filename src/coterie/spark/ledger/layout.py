"""How rows lie in a table's files: by which columns they are parted, and what its log says of the others."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.parquet import FileMetaData, Statistics

from coterie.base.whole import whole_number
from coterie.spark.ledger.tables import RECORD_COLUMNS, LedgerError

STATISTICS, MOST_STATISTICS = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
DEFAULT_MOST = 32
LONGEST_TEXT = 32
"""Of so many characters at most are the texts in statistics."""
LONGEST_FOLDER = 80
"""Of so many characters at most are a column's name and value in the name of a folder."""
BEHIND_ALL = "\U0010ffff"
EMPTY_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of the rows that are written, and how they lie in files. It travels to the tasks."""

    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    """Columns whose least and greatest values the log has, besides those of the records."""

    @classmethod
    def of(cls, schema: pa.Schema, partition_by: Sequence[str], settings: Mapping[str, str]) -> "Layout":
        """Return the layout of rows in a table with these properties, or raise LedgerError."""
        for name in partition_by:
            if name not in schema.names:
                raise LedgerError(f"rows have no column {name}, by which the table is partitioned: add it")
            if not parts_tables(schema.field(name).type):
                raise LedgerError(
                    f"a table cannot be partitioned by {name}, which is {schema.field(name).type}: take a"
                    " text, a whole number, a date or a boolean"
                )
        chosen = measured(schema.names, settings)
        return cls(schema=schema, partition_by=(*partition_by,), statistics=chosen)

    @property
    def in_files(self) -> pa.Schema:
        """The columns that files have: those by which a table is partitioned are in its log alone."""
        return pa.schema(one for one in self.schema if one.name not in self.partition_by)


def parts_tables(kind: pa.DataType) -> bool:
    """Return whether a table may be partitioned by a column of this type."""
    types = pa.types
    known = (types.is_integer, types.is_string, types.is_large_string, types.is_date, types.is_boolean)
    return any(one(kind) for one in known)


def measured(names: Sequence[str], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return of which columns there are statistics, by the table's properties; else of the first 32."""
    if (chosen := settings.get(STATISTICS)) is not None:
        asked = {one.strip().strip("`") for one in chosen.split(",")}
        return tuple(name for name in names if name in asked)
    most = whole_number(settings.get(MOST_STATISTICS, f"{DEFAULT_MOST}"))
    if most is None:
        raise LedgerError(
            f"the table's property {MOST_STATISTICS} is {settings[MOST_STATISTICS]!r}, no number"
        )
    return tuple(names if most < 0 else names[:most])


def folder_of(values: Mapping[str, str | None]) -> str:
    """Return the folder of files with these values. It is for people: which they are, the log says."""
    each = ((name, EMPTY_FOLDER if value is None else value) for name, value in values.items())
    return "".join(f"{plain(name)}={plain(value)}/" for name, value in each)


def plain(text: str) -> str:
    """Return the beginning of a text, in characters that no store and no URL gives a meaning to."""
    kept = (one if one.isascii() and (one.isalnum() or one in "-_.") else "_" for one in text)
    return "".join(islice(kept, LONGEST_FOLDER))


def text_of(value: Any) -> str | None:
    """Return a partition column's value as the log has it; Delta Lake has no empty text."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def column_of(value: Any, field: pa.Field, length: int) -> pa.Array:
    """Return a partition column of rows that have this value, as the log or a reader of it has that."""
    return pa.repeat(pa.scalar(value).cast(field.type), length)


def grouped(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each combination of values of some columns, and the places of its rows; None for all of them."""
    columns = {str(place): batch.column(name) for place, name in enumerate(names)}
    table = pa.table({**columns, "row": np.arange(batch.num_rows)})
    found = table.group_by([*columns], use_threads=False).aggregate([("row", "list")])
    for values in zip(*(found[one] for one in (*columns, "row_list")), strict=True):
        rows = None if found.num_rows == 1 else values[-1].values
        try:
            found_values = tuple(one.as_py() for one in values[:-1])
        except (OverflowError, ValueError) as error:
            raise LedgerError(
                f"of a row's {', '.join(names)} one is no value that a table can be parted by: {error}"
            ) from None
        yield found_values, rows


def statistics_of(footer: FileMetaData, layout: Layout, unordered: Collection[str]) -> dict[str, Any]:
    """Return the log's statistics of a file's columns, by the file's end; `unordered` have NaN among them."""
    wanted = ({*layout.statistics} | {*RECORD_COLUMNS}) & {*layout.schema.names}
    found = {name: each for name, each in columns_in(footer) if name in wanted}
    counted = {name: each for name, each in found.items() if all(one.has_null_count for one in each)}
    ordered = {name: bounds_of(each) for name, each in counted.items() if name not in unordered}
    bounds = {name: bound for name, bound in ordered.items() if None not in bound}
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
        "nullCount": {name: sum(one.null_count for one in each) for name, each in counted.items()},
    }


def columns_in(footer: FileMetaData) -> Iterator[tuple[str, list[Statistics]]]:
    """Yield the statistics of each column that is no part of another, row group by row group."""
    groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
    for place in range(footer.num_columns):
        name = footer.schema.column(place).path
        found = [one.column(place).statistics for one in groups]
        if "." not in name and all(one is not None for one in found):
            yield name, found


def bounds_of(found: Sequence[Statistics]) -> tuple[Any, Any]:
    """Return a column's least and greatest value as the log has them; None where it has none."""
    filled = [one for one in found if one.num_values]
    if not filled or not all(one.has_min_max for one in filled):
        return None, None
    try:
        return noted_least(min(one.min for one in filled)), noted_greatest(max(one.max for one in filled))
    except (OverflowError, ValueError):  # a time beyond the year 9999: producers write what they like
        return None, None


def noted_least(value: Any) -> Any:
    """Return a least value as the log has it, None if it has none of its type."""
    return value[:LONGEST_TEXT] if isinstance(value, str) else noted(value)


def noted_greatest(value: Any) -> Any:
    """Return a greatest value as the log has it: that of a text that was cut is behind the whole."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + BEHIND_ALL
    return noted(value)


def noted(value: Any) -> Any:
    """Return a number or a time as the log has it, None for values of other types."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    return value.isoformat() if isinstance(value, date) else None
