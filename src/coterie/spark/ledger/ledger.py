"""Exactly once into a Delta Lake table that is its own ledger: rows, and how far they go, are one commit.

    ledger = Ledger("/tables/delays", group="delays")
    flights.writeStream.foreachBatch(ledger.write).option("checkpointLocation", …).start()

Each task writes one Parquet file, or in a partitioned table one for each value. One commit adds them, and
holds for each Kafka partition an application transaction `group/topic/partition` whose version is the offset
after the last in the table. Whoever writes looks there first: what the table has is cut away, so that a batch
that another member, or the same one before a crash, has written in whole or in part is not there twice. What
lies below and is not in the table is no replay: the batch fails, unless the ledger was told to write it.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.batch import Batch, Rules, TableMemory
from coterie.spark.ledger.files import (
    DEAD_LETTER,
    WrittenFile,
    deltas,
    letters_schema,
    refuse_without_place,
    tag_of,
    writer_to,
    writer_to_both,
)
from coterie.spark.ledger.layout import Layout
from coterie.spark.ledger.location import TableLocation
from coterie.spark.ledger.outcome import LedgerProgress, Outcome, note_batch
from coterie.spark.ledger.tables import LedgerError
from coterie.spark.ledger.tasks import OwnTasks, SparkTasks, Tasks
from coterie.spark.ledger.upkeep import Upkeep
from coterie.spark.ledger.upserts import KeyedBatch, KeyRule

logger = logging.getLogger("coterie.spark")

QUERY = "sql.streaming.queryId"
STATE = "StateStore"


class Ledger:
    """A Delta Lake table that a group's members write.

    `once`: each `record` once, by its offset, whatever query brings it; or each `batch` of a query once, for
    queries whose rows come late or several times of one record (joins, state that is emitted later).
    `late`: what becomes of rows below what is accounted for that the table does not have: `refuse`, which
    fails the batch, or `write`.
    `dead_letters`: another table, which gets the rows that the column `deadLetter` has a reason for
    (`deadLetterColumn`), in a commit of its own before that of the others.
    `partition_by`: columns by which the table is partitioned, if it is made; one that is there is as it is.
    `merge_schema`: whether columns of the rows that the table lacks are added to it.
    `compact_every`: after so many commits to the table, whoever's, its small files are merged.
    `key`: columns by which rows have a key, of which the table has one row: the newest. That is the one with
    the greatest offset; or, for keys that are in several partitions, with the greatest value of the column
    `order_by`. A row whose column `value` is null deletes its key.
    `other_writers`: engines that may commit to a table on S3, too, by the beginning of the names that they
    give themselves in its log, such as `Apache-Spark`.
    """

    def __init__(
        self,
        table: str,
        *,
        group: str,
        once: str = "record",
        late: str = "refuse",
        dead_letters: str | None = None,
        partition_by: Sequence[str] | None = None,
        merge_schema: bool = False,
        compact_every: int | None = None,
        key: Sequence[str] | None = None,
        order_by: str | None = None,
        value: str | None = "value",
        other_writers: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.group = group
        self._key = None if key is None else KeyRule.of(key=key, order_by=order_by, value=value)
        if self._key is not None and (once != "record" or late != "refuse" or dead_letters is not None):
            raise LedgerError(
                "with a key there are no once='batch', late='write' and dead_letters: of a row that was"
                " replaced or deleted it cannot be known that it was there"
            )
        self._place = TableLocation.of(table, storage_options)
        self._rules = Rules.of(
            once=once,
            late=late,
            merge_schema=merge_schema,
            other_writers=other_writers,
            key_number=0 if self._key is None else self._key.number,
        )
        if isinstance(partition_by, str):
            raise LedgerError(f"partition_by takes a list of columns, not {partition_by!r}")
        self._partition_by = None if partition_by is None else (*partition_by,)
        if compact_every is not None and compact_every < 1:
            raise LedgerError(f"compact_every is a number of commits, not {compact_every}")
        self._compact_every = compact_every
        self._known = TableMemory()
        self._watched = False
        self.dead_letters: Ledger | None = None
        """The ledger of what has no value, with an account of its own."""
        if dead_letters is not None:
            if once == "batch":
                raise LedgerError(
                    "dead_letters needs once='record': by batches it cannot be told which of two tables has"
                    " a record whose schema was registered before its batch was run again"
                )
            more: dict[str, Any] = {"once": once, "late": late, "merge_schema": merge_schema}
            more |= {"other_writers": other_writers, "compact_every": compact_every}
            self.dead_letters = Ledger(dead_letters, group=group, storage_options=storage_options, **more)
            if self._place.overlaps(self.dead_letters._place):
                raise LedgerError(
                    "dead_letters needs a table of its own, and neither may lie in the folder of the other"
                )
        self.outcome = Outcome(0, 0, 0)
        """What became of all the rows that this object was given."""

    def write(self, batch: Any, batch_id: int) -> Any:
        """Write a batch, for `foreachBatch`, and return its Outcome (Spark's types ask for a function that
        returns nothing). Its rows must have the columns topic, partition and offset.

        The first has the batches of its session committed as soon as they are done (`coterie.spark.watch`).
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        from coterie.spark.asked_progress import ask_for_progress
        from coterie.spark.listener import over_connect, watch_query

        schema = deltas(to_arrow_schema(batch.schema, timezone="UTC"))
        refuse_without_place(schema.names)
        query, keeps_state = query_of(batch), partial(from_state, batch)
        if not self._watched:
            watch_query(batch, query, stateful=keeps_state)
            self._watched = True
        self._rules.refuse_query(query)

        tasks = SparkTasks(batch)
        outcome = self._write(tasks, schema, query=query, number=batch_id, from_state=keeps_state)
        if over_connect(batch.sparkSession):
            ask_for_progress(batch.sparkSession, batch_id)
        return outcome

    def append(self, rows: pa.Table) -> Outcome:
        """Write rows that come from elsewhere than Spark, by the same account; return what became of them."""
        if not isinstance(rows, pa.Table):
            raise LedgerError(
                f"append takes a pyarrow Table, not {type(rows).__name__}; a batch of Spark's is for `write`"
            )
        schema = deltas(rows.schema)
        refuse_without_place(schema.names)
        self._rules.refuse_query(None)

        return self._write(OwnTasks(rows), schema)

    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return up to which offset the table has each partition's rows; 0 where it has none."""
        asked = [*partitions]
        account = self._batch(None).account(asked)
        return {one: account.reached(one) for one in asked}

    def _write(self, tasks: Tasks, schema: pa.Schema, **more: Any) -> Outcome:
        """Have rows with this schema written by tasks; `more` is of what queries and numbers them."""
        self._place.make()
        if self.dead_letters is not None:
            return self._write_both(tasks, schema, self.dead_letters, **more)
        if self._key is not None:
            self._key.refuse_columns(schema)
        layout = self._layout(schema)
        ours = self._batch(layout, **more)
        files = tasks.write(writer_to(self._place, tag_of(self.group), layout))
        return self._commit(ours, files, tasks, **more)

    def _write_both(self, tasks: Tasks, schema: pa.Schema, dead: "Ledger", **more: Any) -> Outcome:
        """Write rows to two tables, in one pass and two commits: first what is dead, then all else."""
        if DEAD_LETTER not in schema.names:
            raise LedgerError(
                "dead_letters needs the column deadLetter: read with deadLetterColumn=true, and keep it"
            )
        dead._place.make()
        letters = dead._layout(letters_schema(schema))
        rest = self._layout(schema.remove(schema.get_field_index(DEAD_LETTER)))
        ours, theirs = self._batch(rest, **more), dead._batch(letters, **more, of_letters=True)
        ours.other, theirs.other = theirs, ours
        files = tasks.write(writer_to_both(self._place, rest, dead._place, letters, tag_of(self.group)))
        dead._commit(theirs, [one for one in files if one.dead], tasks)
        return self._commit(ours, [one for one in files if not one.dead], tasks, **more)

    def _commit(
        self,
        batch: Batch,
        files: Sequence[WrittenFile],
        tasks: Tasks,
        *,
        query: str | None = None,
        number: int = -1,
        **_: Any,
    ) -> Outcome:
        """Commit a batch, and tell whoever watches its query; then compact the table, if it is time to."""
        outcome = self._counted(batch.commit(files, tasks))
        if self._compact_every is not None and batch.since_compaction >= self._compact_every:
            self._compact(self._compact_every)
        if query is not None:
            note_batch(query, number, LedgerProgress(outcome, self._known.leftovers))
        return outcome

    def _compact(self, every: int) -> None:
        """Merge small files if it is time to; where that fails the batch is in the table all the same."""
        upkeep = self._upkeep()
        try:
            if upkeep.compact_if_due(every):
                self._known.leftovers = upkeep.leftovers()
        except Exception as error:  # noqa: BLE001  whatever it is, the batch is not to be run again for it
            logger.warning("ledger %s is not compacted; it will be tried again: %s", self._place.uri, error)

    def optimize(self, *, sort_by: Sequence[str] = (), target_size: int | None = None) -> dict[str, Any]:
        """Merge small files, up to a size in bytes; return the library's figures.

        With `sort_by` all rows are sorted by these columns, so that whoever filters by them reads few files.
        The account stays as it is, and so do rows: others may write meanwhile.
        """
        return self._upkeep().optimize(sort_by, target_size)

    def clean(self, older_than: timedelta = timedelta(days=7)) -> int:
        """Remove files of failed tasks and batches that are older; return their number.

        A batch that takes longer than this fails, and is to be run again; less than a batch has taken is
        refused.
        """
        removed = self._upkeep().clean(older_than)
        self._known.leftovers = self._upkeep().leftovers()
        return removed

    def _upkeep(self) -> Upkeep:
        return Upkeep(self._place, self.group)

    def _layout(self, schema: pa.Schema) -> Layout:
        """Return the layout of rows of this schema: the table's, if it is there."""
        table = self._place.table() if self._known.table is None else self._known.table
        if table is None:
            return Layout.of(schema, self._partition_by or (), {})
        metadata = table.metadata()
        there = tuple(metadata.partition_columns)
        if self._partition_by is not None and there != self._partition_by:
            raise LedgerError(
                f"table {self._place.uri} is partitioned by {', '.join(there) or 'nothing'}, and not by"
                f" {', '.join(self._partition_by) or 'nothing'}: leave partition_by out, or use another"
            )
        return Layout.of(schema, there, metadata.configuration)

    def _counted(self, outcome: Outcome) -> Outcome:
        self.outcome = self.outcome.plus(outcome)
        return outcome

    def _batch(self, layout: Layout | None, **more: Any) -> Batch:
        given = (self._place, self.group, self._rules, layout)
        if self._key is None:
            return Batch(*given, known=self._known, **more)
        return KeyedBatch(*given, known=self._known, rule=self._key, **more)


def query_of(batch: Any) -> str | None:
    """Return the id of the streaming query that a batch is of; None if Spark does not say."""
    try:
        found: str | None = batch.sparkSession.sparkContext.getLocalProperty(QUERY)
    except AttributeError:  # over Spark Connect
        return None
    return found


def from_state(batch: Any) -> bool:
    """Return whether a batch comes out of state, so that its rows may be of earlier records."""
    try:
        plan = batch._jdf.queryExecution()
    except AttributeError:  # over Spark Connect
        return False
    return STATE in plan.toRdd().toDebugString()
