"""What a query's rows look like: which columns, and the one that says where a row came from. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from coterie.spark.source.datasource import SOURCE

SOURCE_FIELDS = tuple(to_arrow_schema(SOURCE, timezone="UTC"))
"""The fields of the column `source`, as Arrow has them."""


class SourceMember(NamedTuple):
    """Who reads: the member of a group in one generation, or nobody of any."""

    group: str | None = None
    member: str | None = None
    instance: str | None = None
    generation: int = -1


NO_MEMBER = SourceMember()
MADE_OF = {"source": ("topic", "partition", "offset"), "deadLetter": ("value",)}
"""The columns that no record has, and what they are made of."""


class TaskRange(NamedTuple):
    """What one task reads of a partition: offsets [first, until), and whether no other task reads of it."""

    first: int
    until: int
    whole: bool
    task: int = -1
    """Spark's number of this attempt at a task: what comes by a shuffle has another than who gets it."""


def columns_to_decode(columns: Sequence[str]) -> set[str]:
    """Return the columns to decode for these: `source` is made of three others, `deadLetter` of the value."""
    made_of = [one for name, others in MADE_OF.items() if name in columns for one in others]
    return {*columns, *made_of} - MADE_OF.keys()


def select_columns(
    batch: pa.RecordBatch, columns: Sequence[str], source: SourceMember, piece: TaskRange
) -> pa.RecordBatch:
    """Return a decoded batch in these columns."""
    if tuple(batch.schema.names) == tuple(columns):
        return batch
    made = [
        source_column(batch, source, piece) if name == "source" else batch.column(name) for name in columns
    ]
    return pa.RecordBatch.from_arrays(made, names=list(columns))


def source_column(batch: pa.RecordBatch, source: SourceMember, piece: TaskRange) -> pa.StructArray:
    """Return the column `source`: where each row came from, and who read it."""
    constants: dict[str, object] = {**source._asdict(), **piece._asdict()}
    columns = [
        pa.repeat(pa.scalar(constants[one.name], one.type), batch.num_rows)
        if one.name in constants
        else batch.column(one.name)
        for one in SOURCE_FIELDS
    ]
    return pa.StructArray.from_arrays(columns, fields=[*SOURCE_FIELDS])
