"""One row a key in a ledger's table: of a key's rows the newest stays, and one without a value deletes.

A batch's rows are written to files as ever. The driver then reads their keys, some rows after the others,
and holds where the newest row of each key of the batch is: the key's bytes, and about 50 bytes beside. Tasks
write each of the table's files anew that has one of these keys, without its rows, and each file of the batch
without rows that are not the newest. One commit takes the old files out and the new ones in, and moves the
account.
"""

import json
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.account import Account, number_of, overlaps, values_in
from coterie.spark.ledger.batch import Batch, Remaining
from coterie.spark.ledger.files import Offsets, TableFiles, WrittenFile, batches_in, rows_where, tag_of
from coterie.spark.ledger.layout import Layout, text_of
from coterie.spark.ledger.location import TableLocation, deltalake
from coterie.spark.ledger.tables import RECORD_COLUMNS, LedgerError
from coterie.spark.ledger.tasks import Tasks

HELD_AT_LEAST = 100_000
"""So many rows are held before all but the newest of each key are let go."""
PLACE = ("offset", "partition", "topic")
"""By these one row of a key is newer than another, behind the ordering column if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """By which columns rows have one key, which of them is newer, and which deletes."""

    key: tuple[str, ...]
    order_by: str | None
    value: str | None

    @classmethod
    def of(cls, *, key: Sequence[str], order_by: str | None, value: str | None) -> "KeyRule":
        """Return the rule, or raise LedgerError for what cannot be meant."""
        if isinstance(key, str) or not key:
            raise LedgerError(f"key takes a list of columns, not {key!r}")
        return cls(key=(*key,), order_by=order_by, value=value)

    @property
    def number(self) -> int:
        """A number of key and order: never 0."""
        return number_of(json.dumps([self.key, self.order_by]))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read to tell rows apart."""
        more = {self.order_by, self.value} - {None}
        return tuple(dict.fromkeys([*self.key, *RECORD_COLUMNS, *sorted(map(str, more))]))

    def refuse_columns(self, schema: pa.Schema) -> None:
        """Raise LedgerError if rows with these columns have no key, or do not say what is deleted."""
        for name in self.key:
            if name not in schema.names:
                raise LedgerError(f"rows have no column {name}, which is of their key")
            if not tells_apart(schema.field(name).type):
                raise LedgerError(
                    f"{name} is {schema.field(name).type}, and no part of a key: take a text, bytes, a whole"
                    " number, a date, a time or a boolean"
                )
        if self.order_by is not None and self.order_by not in schema.names:
            raise LedgerError(f"rows have no column {self.order_by}, by which the newest of a key is told")
        if self.order_by is not None and not orders_rows(schema.field(self.order_by).type):
            raise LedgerError(
                f"{self.order_by} is {schema.field(self.order_by).type}, by which no row is newer: take a"
                " number, a date, a time, a text or bytes"
            )
        if self.value is not None and self.value not in schema.names:
            raise LedgerError(
                f"rows have no column {self.value}, whose null deletes a key: name the one that is, or say"
                " that none does: Ledger(…, value=None)"
            )


def tells_apart(kind: pa.DataType) -> bool:
    """Return whether a key may have a column of this type."""
    types = pa.types
    known = (types.is_integer, types.is_string, types.is_binary, types.is_boolean, types.is_temporal)
    return any(one(kind) for one in known)


def orders_rows(kind: pa.DataType) -> bool:
    """Return whether rows may be ordered by a column of this type."""
    return tells_apart(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def keys_of(batch: Any, key: Sequence[str]) -> pa.Array:
    """Return each row's key in bytes: two are equal if all columns are."""
    if any(batch[name].null_count for name in key):
        raise LedgerError(f"a row has no {' or '.join(key)}: without its key it replaces no other")
    columns = [as_bytes(batch[name]) for name in key]
    if len(columns) == 1:
        return columns[0]
    sized = [pc.binary_join_element_wise(as_bytes(pc.binary_length(one)), one, b":") for one in columns]
    return pc.binary_join_element_wise(*sized, b"")


def as_bytes(column: Any) -> Any:
    """Return a column's values in bytes."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = column.type
    text = column if pa.types.is_binary(kind) or pa.types.is_string(kind) else column.cast(pa.string())
    return text.cast(pa.binary())


def with_keys(batch: pa.RecordBatch, rule: KeyRule) -> pa.Table:
    """Return rows by what is looked at of them: key, place, order, and whether they delete. Raises
    LedgerError for a row of which the order is not known.
    """
    length = batch.num_rows
    order = None if rule.order_by is None else batch[rule.order_by]
    if order is not None and pa.types.is_floating(order.type) and pc.any(pc.is_nan(order)).as_py():
        raise LedgerError(f"a row's {rule.order_by} is NaN, which is neither more nor less than another")
    return pa.table(
        {
            "key": keys_of(batch, rule.key),
            **{name: batch[name] for name in PLACE},
            "order": pa.nulls(length) if order is None else order,
            "gone": pa.repeat(False, length) if rule.value is None else pc.is_null(batch[rule.value]),
        }
    )


def newest(rows: pa.Table, rule: KeyRule) -> pa.Table:
    """Return the newest row of each key, or raise LedgerError if it cannot be known."""
    rows = rows.combine_chunks()
    if not rows.num_rows:
        return rows
    codes = rows["key"].chunk(0).dictionary_encode().indices.to_numpy()
    ranks = [rank(rows[name]) for name in (*reversed(PLACE), "order")]
    ordered = np.lexsort((*ranks, codes))
    same = codes[ordered][1:] == codes[ordered][:-1]
    refuse_unordered(rows.take(ordered), same, rule)
    return rows.take(ordered[np.append(~same, True)])


def rank(column: pa.ChunkedArray) -> Any:
    """Return each value's rank; null is least."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy()
    return np.where(column.is_valid().to_numpy(), ranks, 0)


def refuse_unordered(rows: pa.Table, same: Any, rule: KeyRule) -> None:
    """Raise LedgerError if neighbours with the same key are of two partitions, or of one record."""
    offsets, numbers = (rows[name].to_numpy() for name in ("offset", "partition"))
    topics = rank(rows["topic"])
    other = (numbers[1:] != numbers[:-1]) | (topics[1:] != topics[:-1])
    if rule.order_by is None and (same & other).any():
        place = int(np.flatnonzero(same & other)[0])
        raise LedgerError(why_two_partitions(*(place_in(rows, one) for one in (place, place + 1))))
    orders = rank(rows["order"])
    twice = same & ~other & (offsets[1:] == offsets[:-1]) & (orders[1:] == orders[:-1])
    if twice.any():
        at, offset = place_in(rows, int(np.flatnonzero(twice)[0]))
        raise LedgerError(
            f"two rows of {at}, offset {offset}, have the same key: which is newer is not known"
        )


def place_in(rows: Any, place: int) -> tuple[TopicPartition, int]:
    """Return of which record a row is."""
    topic, number, offset = (rows[name][place].as_py() for name in RECORD_COLUMNS)
    return TopicPartition(topic, number), offset


def why_two_partitions(one: tuple[TopicPartition, int], other: tuple[TopicPartition, int]) -> str:
    """Return the reason why of two rows with the same key none is newer."""
    return (
        f"a key is in two partitions, in {one[0]} at offset {one[1]} and in {other[0]} at offset {other[1]}:"
        " offsets do not say which is newer. Name a column that does, Ledger(…, order_by=…), or have its"
        " producer partition by the key"
    )


class Sifted(NamedTuple):
    """What a task has made of a file of the batch's, or of the table's."""

    path: str
    rest: WrittenFile | None
    changed: bool
    lost: list[int]
    """Keys, by their places among the batch's, of which the table has a newer row."""
    problem: str | None

    @classmethod
    def read(cls, text: str) -> "Sifted":
        """Return the answer of a task."""
        path, rest, *more = json.loads(text)
        return cls(path, None if rest is None else WrittenFile.read(json.dumps(rest)), *more)

    def of(self, whole: WrittenFile) -> WrittenFile | None:
        """Return the file that is left of a whole one."""
        return self.rest if self.changed else whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Sieve:
    """Writes files anew, where a task runs, without rows that are not the newest of their key."""

    place: TableLocation
    tag: str
    layout: Layout
    rule: KeyRule
    newest: pa.Table
    """Of the keys of the batch."""
    of_batch: bool
    """Whether it is the batch's files that are written anew, and not the table's."""

    def __call__(self, asked: bytes) -> str:
        """Return a Sifted of one file, as JSON."""
        path, values = pickle.loads(asked)
        looked = pa.schema(self.layout.schema.field(name) for name in self.rule.columns)
        lost: set[int] = set()
        changed = False
        try:
            for batch in self._rows(path, values, looked):
                kept, beaten = self._kept(batch)
                lost |= {*beaten.tolist()}
                changed = changed or not kept.all()
        except LedgerError as error:
            return json.dumps(Sifted(path, None, False, [], str(error)))
        rest = self._written(path, values) if changed else None
        return json.dumps(Sifted(path, rest, changed, sorted(lost), None))

    def _rows(self, path: str, values: dict[str, Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return batches_in(self.place.store(), path, values, schema)

    def _written(self, path: str, values: dict[str, Any]) -> WrittenFile | None:
        """Return a file with the rows that are kept; None if there are none."""
        with TableFiles(self.place, self.tag, self.layout) as files:
            for batch in self._rows(path, values, self.layout.schema):
                files.add(batch.filter(pa.array(self._kept(batch)[0])))
        return next(iter(files.written()), None)

    @property
    def _distinct_in(self) -> tuple[str, ...]:
        """What is different in any two rows of a key."""
        return PLACE if self.rule.order_by is None else ("order", *PLACE)

    def _kept(self, batch: pa.RecordBatch) -> tuple[Any, Offsets]:
        """Return the rows that are kept, and the keys of the batch of which the table has a newer row."""
        rows = with_keys(batch, self.rule)
        found = pc.index_in(rows["key"].combine_chunks(), value_set=self.newest["key"].combine_chunks())
        known = found.is_valid().to_numpy(zero_copy_only=False)
        ours = self.newest.take(found.drop_null())
        theirs = rows.filter(pa.array(known))
        same = np.logical_and.reduce([is_same(ours[name], theirs[name]) for name in self._distinct_in])
        kept = np.zeros(len(known), bool) if self.of_batch else ~known
        if self.of_batch:
            kept[known] = same & ~as_mask(ours["gone"])
            return kept, np.zeros(0, np.int64)
        if self.rule.order_by is None:
            self._refuse_other_partition(ours, theirs)
            return kept, np.zeros(0, np.int64)
        newer = is_newer(theirs, ours)
        kept[known] = newer
        return kept, found.drop_null().to_numpy()[newer]

    @staticmethod
    def _refuse_other_partition(ours: pa.Table, theirs: pa.Table) -> None:
        """Raise LedgerError if the table has a key of the batch from another partition."""
        same = as_mask(pc.equal(ours["partition"], theirs["partition"])) & as_mask(
            pc.equal(ours["topic"], theirs["topic"])
        )
        if not same.all():
            place = int(np.flatnonzero(~same)[0])
            raise LedgerError(why_two_partitions(place_in(theirs, place), place_in(ours, place)))


def as_mask(column: Any) -> Any:
    """Return booleans as numpy has them; null is false."""
    return pc.fill_null(column, False).to_numpy()


def is_same(ones: Any, others: Any) -> Any:
    """Return for each of some values whether it is the other; null is itself."""
    return as_mask(pc.equal(ones, others)) | as_mask(pc.and_(ones.is_null(), others.is_null()))


def is_newer(ones: pa.Table, others: pa.Table) -> Any:
    """Return for each of some rows whether it is newer than the other of its key."""
    newer = np.zeros(len(ones), bool)
    equal = np.ones(len(ones), bool)
    for name in ("order", *PLACE):
        one, other = ones[name], others[name]
        greater = as_mask(pc.greater(one, other)) | as_mask(pc.and_(one.is_valid(), other.is_null()))
        newer |= equal & greater
        equal &= is_same(one, other)
    return newer


class KeyedBatch(Batch):
    """A batch of rows of which each replaces the row of its key."""

    def __init__(self, *given: Any, rule: KeyRule, **more: Any) -> None:
        super().__init__(*given, **more)
        self._rule = rule
        self._whole: list[WrittenFile] = []
        """The batch's files with all their rows: each attempt sifts them anew."""
        self._bounds: tuple[Any, Any] = (None, None)
        """Between which numbers the first column of the batch's keys is, if it is one of numbers."""

    def _left(self, account: Account, before: Sequence[Remaining], tasks: Tasks) -> list[Remaining]:
        """Return the batch's files with the newest rows only; the table's are written anew beside them."""
        refuse_rewriting(self._place.uri, account.table)
        self._whole = self._whole or [one.file for one in before if one.file is not None]
        rows, replayed = self._newest(account)
        if replayed and account.batch(str(self._query)) != self._number and self._from_state():
            raise LedgerError(
                f"table {self._place.uri}: {replayed} rows are below its account, and come out of a query"
                " that keeps state: whether they are a replay cannot be known. Let the query write without a"
                " key, once='batch'"
            )
        self._bounds = bounds_in(self._whole, self._rule.key[0])
        lost = self._write_table_anew(account, rows, tasks)
        kept = rows.filter(pa.array(~np.isin(np.arange(len(rows)), lost)))
        sifted = self._sifted([(one.path, one.values) for one in self._whole], kept, tasks, of_batch=True)
        left = [Remaining(sifted[one.path].of(one)) for one in self._whole]
        return [*left, Remaining(None, replayed)]

    def _newest(self, account: Account) -> tuple[pa.Table, int]:
        """Return the newest row of each key, and how many rows are below the account and left out."""
        assert self._layout is not None
        schema = pa.schema(self._layout.schema.field(name) for name in self._rule.columns)
        store, replayed = self._place.store(), 0
        found: pa.Table | None = None
        more: list[pa.Table] = []
        for one in self._whole:
            for batch in batches_in(store, one.path, one.values, schema):
                rows = batch.filter(pa.array(is_above(batch, account)))
                replayed += batch.num_rows - rows.num_rows
                more.append(with_keys(rows, self._rule))
                if found is None or sum(map(len, more)) > max(len(found), HELD_AT_LEAST):
                    found, more = (
                        newest(pa.concat_tables([*([found] if found else []), *more]), self._rule),
                        [],
                    )
        assert found is not None
        return newest(pa.concat_tables([found, *more]), self._rule), replayed

    def _write_table_anew(self, account: Account, rows: pa.Table, tasks: Tasks) -> list[int]:
        """Have the table's files with these keys written anew, without them; return the keys of which it has
        a newer row.
        """
        library, now_ms = deltalake(), int(time.time() * 1000)
        added = pa.table(account.table.get_add_actions(flatten=True)).to_pylist() if len(rows) else []
        there = [one for one in added if self._may_have(one, rows)]
        values = {unquote(one["path"]): values_in(one) for one in there}
        sifted = self._sifted(values.items(), rows, tasks, table=account.table)
        changed = [one for one in there if sifted[unquote(one["path"])].changed]
        self._removed = [
            library.transaction.RemoveAction(
                unquote(one["path"]), True, now_ms, one["size_bytes"],
                {name: text_of(value) for name, value in values_in(one).items()},
            )
            for one in changed
        ]  # fmt: skip
        rest = (sifted[unquote(one["path"])].rest for one in changed)
        self._rewritten = [one for one in rest if one is not None]
        self._made |= {one.path for one in self._rewritten}
        return sorted({place for one in sifted.values() for place in one.lost})

    def _may_have(self, added: dict[str, Any], rows: pa.Table) -> bool:
        """Return whether a file of the table may have one of the keys, by the log's statistics."""
        low, high = self._bounds
        return low is None or overlaps(added, self._rule.key[0], low, high)

    def _sifted(
        self,
        files: Iterable[tuple[str, Mapping[str, Any]]],
        rows: pa.Table,
        tasks: Tasks,
        *,
        table: Any = None,
        of_batch: bool = False,
    ) -> dict[str, Sifted]:
        """Have files sifted; return what became of each by its path, or raise LedgerError."""
        assert self._layout is not None
        layout = self._layout
        if table is not None:
            there = pa.schema(table.schema().to_arrow())
            layout = Layout.of(there, self._layout.partition_by, table.metadata().configuration)
        sieve = Sieve(
            place=self._place, tag=tag_of(self._group), layout=layout, rule=self._rule, newest=rows,
            of_batch=of_batch,
        )  # fmt: skip
        asked = [pickle.dumps(one) for one in files]
        found = [Sifted.read(one) for one in (tasks.each(sieve, asked) if asked else [])]
        if problem := next((one.problem for one in found if one.problem is not None), None):
            raise LedgerError(f"table {self._place.uri}: {problem}. Nothing of this batch is written")
        self._made |= {one.rest.path for one in found if one.rest is not None}
        return {one.path: one for one in found}

    def _accounted(self, files: Sequence[WrittenFile]) -> Sequence[WrittenFile]:
        """Return the files of which the account tells: rows that were replaced, or that delete, too."""
        return self._whole

    def _is_news(self, account: Account, files: Sequence[WrittenFile]) -> bool:
        """Return whether there is something to commit."""
        return any(span.last >= account.reached(span.at) for one in self._whole for span in one.spans)


def refuse_rewriting(uri: str, table: Any) -> None:
    """Raise LedgerError if files of a table cannot be written anew as they are, or not be taken out."""
    if "deletionVectors" in (table.protocol().writer_features or ()):
        raise LedgerError(
            f"table {uri} has deletion vectors, by which rows are deleted that its files have: written anew"
            " they would be back. Purge them and drop the feature, or take another table"
        )
    if table.metadata().configuration.get("delta.appendOnly") == "true":
        raise LedgerError(
            f"table {uri} has delta.appendOnly=true, and rows of a key replace others: unset it"
        )


def is_above(batch: pa.RecordBatch, account: Account) -> Any:
    """Return for each row whether it is not below the account."""
    return rows_where(batch, lambda at, offsets: offsets >= account.reached(at))


def bounds_in(files: Sequence[WrittenFile], name: str) -> tuple[Any, Any]:
    """Return between which numbers a column of files is; None where it has none, or is none of numbers."""
    noted = [(one.statistics["minValues"].get(name), one.statistics["maxValues"].get(name)) for one in files]
    if not all(isinstance(low, int) and isinstance(high, int) for low, high in noted):
        return None, None
    return min(low for low, _ in noted), max(high for _, high in noted)
