"""One batch on its way into a table: what is left to write of it, and a commit whose answer may be lost."""

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.client.member.backoff import Backoff
from coterie.client.net.jitter import jitter
from coterie.spark.ledger.account import Account
from coterie.spark.ledger.files import (
    ByPartition,
    Offsets,
    WrittenFile,
    action,
    offsets_in,
    refuse_missing,
    tag_of,
    together,
)
from coterie.spark.ledger.layout import Layout
from coterie.spark.ledger.location import TableLocation, deltalake
from coterie.spark.ledger.outcome import Outcome
from coterie.spark.ledger.tables import LedgerError, refuse_other_writers, refuse_table
from coterie.spark.ledger.tasks import CutOrder, Cutter, OffsetRuns, Tasks, cut

logger = logging.getLogger("coterie.spark")

# Each failed commit is another writer's success: so many in a row mean that something else is wrong.
MOST_TRIES = 50
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 10, 1000
MARK = "coterie.commit"
"""What the log says of a commit of ours: which it is."""
NAMED_MOST = 5
LATEST = 10
"""How many commits are looked at by a ledger that has looked at none."""


@dataclass(slots=True, kw_only=True)
class TableMemory:
    """What a ledger knows of its table, from batch to batch."""

    reached: dict[TopicPartition, int] = field(default_factory=dict)
    """What we have committed: a table that has less has lost it."""
    version: int | None = None
    """Up to which version of the table we know who has committed."""
    leftovers: int | None = None
    """How many there were when they were counted last."""
    table: Any = None
    """The table as it was opened last: how it is partitioned need not be asked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is to be there once, and what becomes of rows below the account that are not in the table."""

    by_batch: bool
    write_late: bool
    merge_schema: bool
    """Whether columns that the table lacks are added to it."""
    other_writers: tuple[str, ...]
    """Engines whose commits are allowed on S3."""
    key_number: int = 0
    """A number of the key by which rows replace others, 0 if none do."""

    @classmethod
    def of(
        cls,
        *,
        once: str,
        late: str,
        merge_schema: bool,
        other_writers: Sequence[str],
        key_number: int = 0,
    ) -> "Rules":
        """Return them, or raise LedgerError for what cannot be meant."""
        if once not in ("record", "batch"):
            raise LedgerError(f"once must be 'record' or 'batch', not {once!r}")
        if late not in ("refuse", "write"):
            raise LedgerError(f"late must be 'refuse' or 'write', not {late!r}")
        if isinstance(other_writers, str) or not all(other_writers):
            raise LedgerError(f"other_writers takes a list of names, not {other_writers!r}")
        writers = tuple(other_writers)
        return cls(
            by_batch=once == "batch",
            write_late=late == "write",
            merge_schema=merge_schema,
            other_writers=writers,
            key_number=key_number,
        )

    def refuse_query(self, query: str | None) -> None:
        """Raise LedgerError if batches are to be told apart and there is no query that numbers them."""
        if self.by_batch and query is None:
            raise LedgerError(
                "once='batch' needs a streaming query's foreachBatch, which numbers its batches (over Spark"
                " Connect it does not tell the query's id): use once='record'"
            )


class Remaining(NamedTuple):
    """What is left to write of a file, and how many rows of it were there already or are late."""

    file: WrittenFile | None
    replayed: int = 0
    late: int = 0


class BelowAccount(NamedTuple):
    """The offsets of a file's rows that lie below the account: those that the table has, and the others."""

    there: ByPartition
    late: ByPartition


class Limits(NamedTuple):
    """Below which offsets of a partition rows may be there, and below which those that are not are late."""

    asked: int
    late: int


class Batch:
    """A batch of rows, in files that tasks have written and no commit names yet."""

    def __init__(
        self,
        place: TableLocation,
        group: str,
        rules: Rules,
        layout: Layout | None,
        *,
        known: TableMemory,
        query: str | None = None,
        number: int = -1,
        from_state: Callable[[], bool] = lambda: False,
        of_letters: bool = False,
    ) -> None:
        self.begun_ms = int(time.time() * 1000)
        self._begun_s = time.monotonic()
        self._place, self._group, self._rules, self._layout = place, group, rules, layout
        self._known, self._query, self._number = known, query, number
        self._from_state = from_state
        self._of_letters = of_letters
        self.other: Batch | None = None
        """The batch's part in another table, if it has one: dead letters, or beside those all else."""
        self._mark = uuid.uuid4().hex
        self._made: set[str] = set()
        self._named: set[str] = set()
        """Files that a commit has named. It may be in the log, whatever was heard: they are never deleted."""
        self._rewritten: list[WrittenFile] = []
        """Files of the table that are written anew, and files that the commit takes out of it."""
        self._removed: list[Any] = []
        self.since_compaction = 0
        """How many commits there were since the last compaction, if there was something to commit."""

    def account(self, partitions: Iterable[TopicPartition]) -> Account:
        """Return the table's account as of now; raise LedgerError if it has lost what we have committed."""
        account = Account(self._place, self._opened(), self._group)
        for at in partitions:
            had, there = self._known.reached.get(at, 0), account.reached(at)
            if there < had:
                raise LedgerError(
                    f"table {self._place.uri} has lost a commit: it had {at} up to offset {had}, and now up"
                    f" to {there}. Either it was made anew, or another writer overwrites entries of its log:"
                    " on S3, Spark's Delta Lake does that beside others. When that is over, set the group's"
                    " offsets back to what the table has, and start the query again"
                )
        return account

    def commit(self, written: Sequence[WrittenFile], tasks: Tasks) -> Outcome:
        """Add the files to the table in one commit, without what the table has already: tasks cut it away."""
        given = [one for one in written if one.rows]
        if not given:
            return Outcome(0, 0, 0)
        refuse_missing(self._place, given)
        self._made |= {one.path for one in given}
        left, refused = [Remaining(one) for one in given], None
        assert self._layout is not None
        backoff = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS, jitter=jitter)
        for _ in range(MOST_TRIES):
            account = self.account(partitions_of(given))
            if self._rules.merge_schema and widened(account.table, self._layout.schema):
                continue
            refuse_table(self._place.uri, account.table, self._layout.schema, self._layout.partition_by)
            self._refuse_other_writers(account)
            account.refuse_other_key(self._rules.key_number)
            # They were looked at before the first try; since then time has passed.
            self._refuse_cleaned(account, () if refused is None else left)
            left = self._left(account, left, tasks)
            files = [*(one.file for one in left if one.file is not None), *self._rewritten]
            is_news = self._is_news(account, files)
            refused = self._refused(account, files) if is_news else None
            if refused is None:
                if is_news:
                    self.since_compaction = account.table.version() + 1 - account.compacted()
                self._tidy(files)
                return self._outcome(left)
            time.sleep(backoff.next_ms() / 1000)
        raise LedgerError(
            f"table {self._place.uri}: {MOST_TRIES} commits were refused one after the other, the last with:"
            f" {refused}"
        ) from refused

    def _refuse_other_writers(self, account: Account) -> None:
        """Raise LedgerError if another engine has committed to a table on S3 since we looked last."""
        if self._place.local:
            return
        known, now = self._known, account.table.version()
        latest = LATEST if known.version is None else now - known.version
        if latest > 0:
            found = account.table.history(latest)
            options = self._place.options or {}
            refuse_other_writers(self._place.uri, options, found, self._rules.other_writers)
        known.version = now

    def _accounted(self, files: Sequence[WrittenFile]) -> Sequence[WrittenFile]:
        """Return the files of which the account tells."""
        return files

    def _is_news(self, account: Account, files: Sequence[WrittenFile]) -> bool:
        """Return whether there is something to commit."""
        return bool(files)

    def _refuse_cleaned(self, account: Account, left: Iterable[Remaining]) -> None:
        """Raise LedgerError if files of ours may have been taken for leftovers, or these were."""
        if account.cleaned_ms() >= self.begun_ms:
            raise LedgerError(
                f"table {self._place.uri}: what was written before this batch had taken so long was removed"
                " (Ledger.clean noted that all from before its time may be gone): give clean a greater"
                " older_than, and run it where the clock is right. Nothing of this batch is written; it can"
                " be run again"
            )
        if files := [one.file for one in left if one.file is not None]:
            refuse_missing(self._place, files)

    def _opened(self) -> Any:
        """Return the table as it is now; made first, if it is to be."""
        if (table := self._place.table()) is not None:
            self._known.table = table
            return table
        library, uri, layout = deltalake(), self._place.uri, self._layout
        if layout is None:
            raise LedgerError(f"there is no Delta Lake table at {uri} yet")
        with suppress(library.exceptions.CommitFailedError):  # another writer makes it at the same time
            library.DeltaTable.create(
                uri,
                schema=layout.schema,
                mode="ignore",
                partition_by=[*layout.partition_by],
                storage_options=self._place.options,
            )
        return self._place.table()

    def _left(self, account: Account, before: Sequence[Remaining], tasks: Tasks) -> list[Remaining]:
        """Return the rest of each file to be written, or raise LedgerError for rows that cannot be judged."""
        if self._rules.by_batch:
            return self._all_or_nothing(account, before)
        files = [one.file for one in before if one.file is not None]
        looked = self._looked(account, files)
        self._refuse(account, looked.values())
        return self._without(before, looked, tasks)

    def _all_or_nothing(self, account: Account, before: Sequence[Remaining]) -> list[Remaining]:
        """Return all of a batch that the table does not have, and nothing of one that it has."""
        query, rows = str(self._query), sum(one.file.rows for one in before if one.file is not None)
        noted = account.batch(query)
        if noted is None or noted < self._number:
            return list(before)
        where = f"table {self._place.uri}: batch {self._number} of query {query}"
        if noted > self._number:
            raise LedgerError(
                f"{where} comes after batch {noted} is in the table: its checkpoint was set back. Start with"
                " a new checkpoint, or give it back the newest"
            )
        if account.batch_rows(query) != rows:
            raise LedgerError(
                f"{where} is in the table with {account.batch_rows(query)} rows, and a replay has {rows}: the"
                " query is not deterministic, or shares its topics with others of its group. once='batch'"
                " needs a query that reads alone (a static member, or one without group.id)"
            )
        return [Remaining(None, one.file.rows) for one in before if one.file is not None]

    def _looked(self, account: Account, files: Sequence[WrittenFile]) -> dict[str, BelowAccount]:
        """Return of each file with rows below the account those that the table has, and those that it lacks.

        What the other table has is there, too: a value that once was none may be one when its batch is run
        again. The other table is opened once, and not for each file.
        """
        partitions = partitions_of(files)
        other = None if self.other is None else self.other.account(partitions)
        limits = {at: self._limits(account, other, at) for at in partitions}
        below = {one.path: together(self._rows_below(one, limits)) for one in files}
        below = {path: offsets for path, offsets in below.items() if offsets}
        asked = together(each for offsets in below.values() for each in offsets.items())
        there = account.there(asked) if asked else {}
        if other is not None and asked:
            others = other.there(asked)
            there = {at: np.union1d(offsets, others[at]) for at, offsets in there.items()}
        return {path: split_by_presence(offsets, there, limits) for path, offsets in below.items()}

    def _limits(self, account: Account, other: Account | None, at: TopicPartition) -> Limits:
        """Return below which offsets of a partition rows are looked for, and are late if they are missed.

        Below the other table's account alone dead letters are not late: between its commit and ours all may
        have ended.
        """
        own = account.reached(at)
        others = 0 if other is None else other.reached(at)
        return Limits(max(own, others), min(own, others) if self._of_letters else own)

    def _rows_below(
        self, one: WrittenFile, limits: Mapping[TopicPartition, Limits]
    ) -> Iterator[tuple[TopicPartition, Offsets]]:
        """Yield the offsets of a file's rows below `asked`; the file is read only if it may have some."""
        if any(span.first < limits[span.at].asked for span in one.spans):
            for at, offsets in offsets_in(self._place.store(), one.path, one.values):
                yield at, offsets[offsets < limits[at].asked]

    def _refuse(self, account: Account, looked: Collection[BelowAccount]) -> None:
        """Raise LedgerError for rows below the account of which it cannot be said that they are a replay."""
        late = together(each for one in looked for each in one.late.items())
        there = together(each for one in looked for each in one.there.items())
        if late and not self._rules.write_late:
            raise LedgerError(self._why_late(account, late))
        if there and account.batch(str(self._query)) != self._number and self._from_state():
            raise LedgerError(self._why_state(there))

    def _without(
        self, before: Sequence[Remaining], looked: Mapping[str, BelowAccount], tasks: Tasks
    ) -> list[Remaining]:
        """Return the rest of each file: the rows that the table does not have. Tasks cut it."""
        assert self._layout is not None
        spare = {path: each for path, below in looked.items() if (each := below.there)}
        orders = [
            CutOrder(one.file, {at: OffsetRuns.of(each) for at, each in spare[one.file.path].items()})
            for one in before
            if one.file is not None and 0 < rows_of(spare.get(one.file.path, {})) < one.file.rows
        ]
        cutter = Cutter(place=self._place, tag=tag_of(self._group), layout=self._layout)
        rest = cut(tasks, cutter, orders)
        self._made |= {one.path for one in rest.values() if one is not None}
        return [remaining(one, looked, rest) for one in before]

    def _why_late(self, account: Account, late: ByPartition) -> str:
        at, offsets = next(iter(late.items()))
        more = f" (and of {counted(len(late) - 1, 'more partition')})" if late.keys() - {at} else ""
        return (
            f"table {self._place.uri} has {at} up to offset {account.reached(at) - 1} from group"
            f" {self._group}, and of this batch's rows below that it does not have offsets {ranges(offsets)}"
            f"{more}: they are no replay. If they were left out before and shall be in the table now (offsets"
            " set back to fill in, rows deleted from the table or lost by RESTORE), use Ledger(…,"
            " late='write'). If the query keeps rows back (a join of streams, state that is emitted later),"
            " use Ledger(…, once='batch'). If the topic was made anew, use another group. Nothing of this"
            " batch is written"
        )

    def _why_state(self, there: ByPartition) -> str:
        at, offsets = next(iter(there.items()))
        return (
            f"table {self._place.uri} has offsets {ranges(offsets)} of {at} from group {self._group}, and"
            " this batch brings them again out of a query that keeps state: whether they are a replay, or"
            " further rows of the same records (a join of streams), cannot be known. Use Ledger(…,"
            " once='batch'), for a query that reads alone. Nothing of this batch is written"
        )

    def _refused(self, account: Account, files: Sequence[WrittenFile]) -> Exception | None:
        """Commit; return the conflict if somebody else has meanwhile: what the table has must be asked again.

        A commit whose answer was lost is told apart from a conflict by what the log says, which has its mark.
        """
        assert self._layout is not None
        library, now_ms = deltalake(), int(time.time() * 1000)
        notes = self._notes(account, files)
        self._named |= {one.path for one in files}
        try:
            account.table.create_write_transaction(
                [*(action(library, one, now_ms) for one in files), *self._removed],
                mode="append",
                schema=self._layout.schema,
                partition_by=[*self._layout.partition_by],
                commit_properties=library.CommitProperties(
                    # Retried by itself, a commit would not look at what the other one wrote.
                    max_commit_retries=0,
                    custom_metadata={MARK: self._mark},
                    app_transactions=[library.Transaction(app, at, now_ms) for app, at in notes.items()],
                ),
            )
        except (library.exceptions.DeltaError, OSError) as error:
            if not self._took_effect(since=account.table.version()):
                if not isinstance(error, library.exceptions.CommitFailedError):
                    raise
                conflict: Exception = error
                return conflict
        else:
            if self._known.version is not None:  # the next is ours: who has made it need not be read
                self._known.version = account.table.version() + 1
        for at in partitions_of(self._accounted(files)):
            self._known.reached[at] = notes[account.app_id(at)]
        return None

    def _notes(self, account: Account, files: Sequence[WrittenFile]) -> dict[str, int]:
        """Return the commit's transactions: how far the table has each partition, and the batch's number."""
        notes = account.claim(self._rules.key_number) | account.longest_note(
            int((time.monotonic() - self._begun_s) * 1000)
        )
        for span in (each for one in self._accounted(files) for each in one.spans):
            app = account.app_id(span.at)
            notes[app] = max(notes.get(app, 0), account.reached(span.at), span.last + 1)
        if self._query is not None:
            notes[account.query_id(self._query)] = self._number
            if self._rules.by_batch:
                notes[account.rows_id(self._query)] = sum(one.rows for one in files)
        return notes

    def _took_effect(self, *, since: int) -> bool:
        """Return whether the log has this batch's commit behind a version."""
        table = self._opened()
        later = table.version() - since
        return later > 0 and any(one.get(MARK) == self._mark for one in table.history(later))

    def _tidy(self, files: Sequence[WrittenFile]) -> None:
        """Delete files that no commit has named: a log entry can name none of them."""
        spare = sorted(self._made - self._named - {one.path for one in files})
        for path in spare:
            try:
                self._place.store().delete_file(path)
            except OSError as error:
                logger.warning("ledger %s: %s is left to Ledger.clean: %s", self._place.uri, path, error)

    def _outcome(self, left: Sequence[Remaining]) -> Outcome:
        """Return the outcome of the batch, and log it where rows were left out or were late."""
        outcome = Outcome(
            written=sum(one.file.rows for one in left if one.file is not None),
            replayed=sum(one.replayed for one in left),
            late=sum(one.late for one in left),
        )
        if outcome.replayed or outcome.late:
            logger.warning(
                "ledger %s, group %s: %d rows written, %d left out that the table had already (a replay),"
                " %d late ones among the written",
                self._place.uri, self._group, outcome.written, outcome.replayed, outcome.late,
            )  # fmt: skip
        return outcome


def widened(table: Any, schema: pa.Schema) -> bool:
    """Add the columns to a table that it lacks; return whether it had to be looked at anew."""
    library = deltalake()
    there = {one.name for one in table.schema().fields}
    missing = [one for one in library.Schema.from_arrow(schema).fields if one.name not in there]
    if missing:
        with suppress(library.exceptions.CommitFailedError):  # another has committed at the same time
            table.alter.add_columns(missing)
    return bool(missing)


def partitions_of(files: Iterable[WrittenFile]) -> set[TopicPartition]:
    """Return the Kafka partitions of which files have rows."""
    return {span.at for one in files for span in one.spans}


def rows_of(some: ByPartition) -> int:
    """Return the number of these rows."""
    return sum(map(len, some.values()))


def split_by_presence(
    below: ByPartition, there: ByPartition, limits: Mapping[TopicPartition, Limits]
) -> BelowAccount:
    """Return the rows of a file below the account that are there, and those that are late."""
    marks = {at: np.isin(offsets, there[at]) for at, offsets in below.items()}
    late = {at: offsets[~marks[at] & (offsets < limits[at].late)] for at, offsets in below.items()}
    return BelowAccount(
        there=together((at, offsets[marks[at]]) for at, offsets in below.items()),
        late=together(late.items()),
    )


def remaining(
    before: Remaining, looked: Mapping[str, BelowAccount], rest: Mapping[str, WrittenFile | None]
) -> Remaining:
    """Return the rest of a file, by the rows of it that are there, and by the files that tasks have cut."""
    one = before.file
    if one is None or one.path not in looked:
        return before._replace(late=0)
    spare, late = rows_of(looked[one.path].there), rows_of(looked[one.path].late)
    left = None if spare == one.rows else rest.get(one.path, one)
    return Remaining(left, before.replayed + spare, late)


def ranges(offsets: Offsets) -> str:
    """Return offsets as people write them: 3 to 7, 9, and how many more there are."""
    runs = [(int(first), int(last)) for first, last in zip(*OffsetRuns.of(offsets), strict=True)]
    named = [str(first) if first == last else f"{first} to {last}" for first, last in runs[:NAMED_MOST]]
    return ", ".join(named) + (f" and {len(runs) - NAMED_MOST} ranges more" if runs[NAMED_MOST:] else "")
