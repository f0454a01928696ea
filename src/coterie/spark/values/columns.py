"""A batch with its values decoded, and what becomes of those that are none. Runs on executors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructField, StructType

from coterie.base.errors import CoterieError
from coterie.spark.options import BadOption, Options
from coterie.spark.values.avro_types import UnusableSchema
from coterie.spark.values.halving import Errors
from coterie.spark.values.registry import Schema, UnknownSchema, schemas_of
from coterie.spark.values.value_format import (
    READERS_SCHEMA,
    SCHEMA_KINDS,
    ValueFormat,
    check_of,
    value_format_of,
)
from coterie.spark.values.wire import NO_ID, headers_of, strange_because

DEAD_LETTER = StructType(
    [
        StructField("reason", StringType()),
        StructField("schemaId", IntegerType()),
        StructField("value", BinaryType()),
    ]
)
"""The column `deadLetter`: null, or why there is no value, and the bytes as they came."""
DEAD_LETTER_TYPE = to_arrow_type(DEAD_LETTER)
KEPT_WRITERS = 1_000
WANTED = (
    "it must return a list or an array with one entry for each value: true (or null) if it is one, false or"
    " the reason (a text) if not"
)


class BadValue(CoterieError):
    """A record whose value does not decode, or that the query's check refuses; `deadLetterColumn` lets a
    query go on beside them.
    """


class Decode(Protocol):
    """Decodes what one writer's schema wrote."""

    def decoded(self, framed: Sequence[bytes]) -> tuple[pa.Array, Errors]:
        """Return the values of what has a header, null where one is none, and why."""
        ...


class Reader(Protocol):
    """What values are decoded to: the reader's schema."""

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values; raises UnusableSchema."""
        ...

    def of(self, writer: Schema) -> Decode:
        """Return the decoder of values that a schema wrote; raises UnusableSchema."""
        ...


def reader_of(values: ValueFormat) -> Reader:
    """Return the reader of a query's values; raises UnusableSchema, and MissingLibrary without its extra."""
    if values.kind == "protobuf":
        from coterie.spark.values.protobuf import ProtobufReader

        return ProtobufReader(values.reader, values.message)
    if values.kind == "json":
        from coterie.spark.values.json_schema import JsonReader

        return JsonReader(values.reader)
    from coterie.spark.values.avro import AvroReader

    return AvroReader(values.reader)


def value_column(options: Options) -> tuple[DataType, dict[str, Any]]:
    """Return the type of the column `value` and its metadata, which has the reader's schema."""
    values = value_format_of(options)
    assert values is not None, "options without value.format are refused"
    try:
        return spark_type(reader_of(values)), {READERS_SCHEMA: values.reader.to_json()}
    except UnusableSchema as error:
        raise BadOption(f"option value.schema: {error}") from error


def spark_type(reader: Reader) -> DataType:
    """Return the type of the column `value`; raises UnusableSchema."""
    return from_arrow_type(reader.type, prefer_timestamp_ntz=True)


class ValueDecoder:
    """Decodes values of one query; one in a process for all its tasks."""

    def __init__(self, values: ValueFormat) -> None:
        self.values = values
        self.reader = reader_of(values)
        self.type = to_arrow_type(spark_type(self.reader), timezone="UTC")
        """The column's type to the letter, as Spark wants it."""
        self._schemas = schemas_of(values.registry)
        self._check = check_of(values.check) if values.check else None
        self._writers: dict[int, Decode | UnusableSchema] = {}
        """Who decodes what a schema wrote, or why nobody can, by its id."""

    def decoded(self, batch: pa.RecordBatch, *, wait_s: float) -> pa.RecordBatch:
        """Return the batch with its values decoded, and with the column `deadLetter` if that is wanted.

        A registry that does not answer is waited for, so long. Raises BadValue where a value is none and
        there is no such column, RegistryAway and RegistryRefused.
        """
        place = batch.schema.names.index("value")
        raw = batch.column(place)
        ids, errors = headers_of(raw), {}
        for one in np.flatnonzero(ids.strange).tolist():
            errors[one] = strange_because(raw[one].as_py())
        made = self._in_order(raw, ids.ids, errors, wait_s)
        made = self._checked(made, raw, errors)
        if errors and not self.values.dead_letters:
            self._refuse(batch, errors)
        batch = batch.set_column(place, "value", made.cast(self.type))
        if not self.values.dead_letters:
            return batch
        return batch.append_column("deadLetter", dead_letters(raw, ids.ids, errors))

    def _in_order(
        self, raw: pa.BinaryArray, ids: npt.NDArray[np.int64], errors: Errors, wait_s: float
    ) -> pa.Array:
        """Return the values in the order of their records, those of each schema decoded together."""
        pieces: list[pa.Array] = []
        order: list[npt.NDArray[np.int64]] = []
        of_one = len(ids) and bool((ids == ids[0]).all())  # as good as always, and nothing to be sorted for
        for schema_id in [int(ids[0])] if of_one else np.unique(ids).tolist():
            places = np.flatnonzero(ids == schema_id)
            order.append(places)
            if schema_id == NO_ID:
                pieces.append(pa.nulls(len(places), self.reader.type))
                continue
            some = raw if len(places) == len(raw) else raw.take(pa.array(places))
            found, reasons = self._of_one_schema(schema_id, some, wait_s)
            pieces.append(found)
            errors.update({int(places[one]): reason for one, reason in reasons.items()})
        if len(pieces) <= 1:
            return pieces[0] if pieces else pa.nulls(0, self.reader.type)
        return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(order), kind="stable")))

    def _of_one_schema(self, schema_id: int, raw: pa.BinaryArray, wait_s: float) -> tuple[pa.Array, Errors]:
        try:
            schema = self._schemas.by_id(schema_id, wait_s=wait_s)
            return self._writer(schema).decoded(raw.to_pylist())
        except (UnknownSchema, UnusableSchema) as error:
            return pa.nulls(len(raw), self.reader.type), dict.fromkeys(range(len(raw)), str(error))

    def _writer(self, schema: Schema) -> Decode:
        """Return the decoder of values that a schema wrote, understood once; raises UnusableSchema."""
        if schema.id not in self._writers:
            if len(self._writers) >= KEPT_WRITERS:
                self._writers.clear()
            try:
                self._writers[schema.id] = self._made_for(schema)
            except UnusableSchema as error:
                self._writers[schema.id] = error
        found = self._writers[schema.id]
        if isinstance(found, UnusableSchema):
            raise found
        return found

    def _made_for(self, schema: Schema) -> Decode:
        if schema.kind != SCHEMA_KINDS[self.values.kind]:
            raise UnusableSchema(
                f"schema {schema.id} is one of {schema.kind}, and value.format is {self.values.kind}"
            )
        return self.reader.of(schema)

    def _checked(self, made: pa.Array, raw: pa.BinaryArray, errors: Errors) -> pa.Array:
        """Return the values without those that the query's check refuses, whose reasons are noted."""
        if self._check is None or not len(made):
            return made
        verdict = reasons_of(self._check(made), len(made), self.values.check)
        refused = {
            place: reason for place, reason in verdict.items() if place not in errors and raw[place].is_valid
        }
        if not refused:
            return made
        errors.update(refused)
        keep = np.ones(len(made), np.bool_)
        keep[list(refused)] = False
        places = pa.array(np.arange(len(made)), mask=~keep)
        return made.take(places)

    def _refuse(self, batch: pa.RecordBatch, errors: Errors) -> None:
        place = min(errors)
        named = {name: batch.column(name)[place].as_py() for name in ("topic", "partition", "offset")}
        raise BadValue(
            f"{named['topic']}-{named['partition']}: the value at offset {named['offset']} is none:"
            f" {errors[place]}. With deadLetterColumn=true such records have null as their value, and this as"
            " the reason in the column deadLetter"
        )


def reasons_of(verdict: Any, count: int, name: str) -> Mapping[int, str]:
    """Return the places of the values that a check refuses, and why: it returns for each value whether it is
    one, or why it is not (null: it is one). Raises BadValue for anything else.
    """
    found = verdict_of(verdict, name)
    if len(found) != count:
        raise BadValue(f"{name} was given {count} values, and answers for {len(found)}: {WANTED}")
    for one in found:
        if not isinstance(one, bool | str | None):
            raise BadValue(f"{name} says {one!r} of a value, {article(one)}: {WANTED}")
    return {
        place: one if isinstance(one, str) else f"refused by {name}"
        for place, one in enumerate(found)
        if one is False or isinstance(one, str)
    }


def verdict_of(verdict: Any, name: str) -> Sequence[Any]:
    """Return the answer of a check, as Python has it, of arrays of pyarrow, numpy and pandas, too."""
    if hasattr(verdict, "to_pylist"):
        verdict = verdict.to_pylist()
    if isinstance(verdict, str | bytes) or not isinstance(verdict, Iterable):
        raise BadValue(f"{name} returns {article(verdict)}: {WANTED}")
    return [one.item() if isinstance(one, np.generic) else one for one in verdict]


def article(value: Any) -> str:
    """Return the kind of thing that this is, for a sentence."""
    return f"a {type(value).__name__}"


def dead_letters(raw: pa.BinaryArray, ids: npt.NDArray[np.int64], errors: Errors) -> pa.Array:
    """Return the column `deadLetter`."""
    if not errors:
        return pa.nulls(len(raw), DEAD_LETTER_TYPE)
    rows: list[dict[str, Any] | None] = [None] * len(raw)
    for place, reason in errors.items():
        schema_id = int(ids[place])
        rows[place] = {
            "reason": reason,
            "schemaId": None if schema_id == NO_ID else schema_id,
            "value": raw[place].as_py(),
        }
    return pa.array(rows, DEAD_LETTER_TYPE)


@lru_cache(maxsize=16)
def decoder_of(values: ValueFormat) -> ValueDecoder:
    """Return the decoder of a query's values, the same for all its tasks in this process."""
    return ValueDecoder(values)
