"""What keeps a ledger's table in shape: fewer and larger files, sorted by what people ask for, no leftovers.

A leftover is a file that a task has written and no commit names: its task or its batch has failed. Before
any is removed a commit says up to which time: a batch that has begun before it commits no more, whatever it
wrote.
"""

import re
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from coterie.spark.ledger.account import CLEANED, COMPACTED, TAGGED, Account
from coterie.spark.ledger.location import TableLocation, deltalake
from coterie.spark.ledger.tables import LedgerError

MOST_TRIES = 10
CLOCKS_DIFFER_MS = 60_000
"""By so much a driver's clock may differ from another's, or from the store's."""
MS = timedelta(milliseconds=1)
OTHER_LOG = re.compile(r"(.+?)/_delta_log(?:/|$)")
"""What is below a table and has a log of its own is another table, whose files that log names."""


class Upkeep:
    """Looks after a table, beside those who write to it."""

    def __init__(self, place: TableLocation, group: str) -> None:
        self._place, self._group = place, group

    def optimize(self, sort_by: Sequence[str] = (), target_size: int | None = None) -> dict[str, Any]:
        """Merge small files into larger ones, or have all rows sorted; return what the library says of it."""
        for _ in range(MOST_TRIES):
            account = self._account()
            if not account.alone:
                raise LedgerError(
                    f"table {self._place.uri} holds rows of several groups, whose files tell whose they are:"
                    " compaction would mix them. Let each group write to a table of its own"
                )
            found = self._optimized(account, sort_by, target_size)
            if found is not None:
                return found
        raise LedgerError(
            f"table {self._place.uri} was not optimized: {MOST_TRIES} times another has removed files"
            " meanwhile. Try again when it has less to do"
        )

    def _optimized(
        self, account: Account, sort_by: Sequence[str], target_size: int | None
    ) -> dict[str, Any] | None:
        """Return the outcome, in the library's words; None if another has removed files meanwhile."""
        optimizing = account.table.optimize
        try:
            found: dict[str, Any] = (
                optimizing.z_order([*sort_by], target_size=target_size)
                if sort_by
                else optimizing.compact(target_size=target_size)
            )
        except deltalake().exceptions.CommitFailedError:
            return None
        return found

    def compact_if_due(self, every: int) -> bool:
        """Merge small files if there were so many commits since; return whether it was done.

        A commit says so before, so that of a group's members one does it.
        """
        account = self._account()
        version = account.table.version()
        due = version - account.compacted() >= every and self._noted(account, COMPACTED, version)
        if due:
            self.optimize()
        return due

    def clean(self, older_than: timedelta) -> int:
        """Remove leftovers that are older, and return their number."""
        until_ms = int(time.time() * 1000) - older_than // MS
        self._announce(older_than, until_ms)
        store, removed = self._place.store(), 0
        for found in self._found():
            if found.mtime_ns // 1_000_000 < until_ms - CLOCKS_DIFFER_MS:
                store.delete_file(found.path)
                removed += 1
        return removed

    def _announce(self, older_than: timedelta, until_ms: int) -> None:
        """Commit up to which time files without a commit may be gone, or raise LedgerError."""
        for _ in range(MOST_TRIES):
            account = self._account()
            longest = account.longest_batch_ms() * MS
            if older_than < longest:
                raise LedgerError(
                    f"table {self._place.uri}: a batch has taken {longest}, and files that are older than"
                    f" {older_than} may be of one that is under way: keep them longer"
                )
            if self._noted(account, CLEANED, max(until_ms, account.cleaned_ms())):
                return
        raise LedgerError(
            f"table {self._place.uri} was not cleaned: {MOST_TRIES} times another has committed meanwhile"
        )

    @staticmethod
    def _noted(account: Account, app: str, version: int) -> bool:
        """Commit an application's transaction alone; return False if another has committed first."""
        library, table = deltalake(), account.table
        note = library.Transaction(app, version, int(time.time() * 1000))
        try:
            table.create_write_transaction(
                [],
                mode="append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=library.CommitProperties(max_commit_retries=0, app_transactions=[note]),
            )
        except library.exceptions.CommitFailedError:
            return False
        return True

    def leftovers(self) -> int:
        """Return the number of leftovers: some may be files of a batch under way."""
        return sum(1 for _ in self._found())

    def _found(self) -> Iterator[fs.FileInfo]:
        """Yield the files of ledgers that no commit names; what one has removed is left to VACUUM."""
        there = self._place.store().get_file_info(fs.FileSelector("", recursive=True))
        table = self._account().table  # younger than the list: what was committed meanwhile is known
        added = pa.table(table.get_add_actions())["path"].to_pylist()
        removed = table.vacuum(0, dry_run=True, enforce_retention_duration=False)
        known = {unquote(path) for path in (*added, *removed)}
        others = tuple({f"{log[1]}/" for one in there if (log := OTHER_LOG.match(one.path))})
        for found in there:
            is_ours = (
                found.is_file and TAGGED.fullmatch(found.base_name) and not found.path.startswith(others)
            )
            if is_ours and found.path not in known:
                yield found

    def _account(self) -> Account:
        """Return the table's account as of now."""
        table = self._place.table()
        if table is None:
            raise LedgerError(f"there is no Delta Lake table at {self._place.uri} yet")
        return Account(self._place, table, self._group)
