"""What became of batches in a ledger's table, and for whoever watches a query: of its latest batches."""

from collections import OrderedDict
from typing import NamedTuple
from uuid import UUID

KEPT = 256
"""So many batches, of all queries of the process, are known."""


class Outcome(NamedTuple):
    """What became of a batch's rows."""

    written: int
    """Rows that are in the table by this call, late ones among them."""
    replayed: int
    """Rows that the table had already, and that were cut away."""
    late: int
    """Rows below what was accounted for that the table did not have, and that were written."""

    def plus(self, other: "Outcome") -> "Outcome":
        """Return both together."""
        return Outcome(*(mine + yours for mine, yours in zip(self, other, strict=True)))


class LedgerProgress(NamedTuple):
    """What a ledger has done with a batch."""

    outcome: Outcome
    leftovers: int | None
    """Files that no commit names, as counted last, by a compaction or by `clean`; None if never."""


LATEST: OrderedDict[tuple[str, int], LedgerProgress] = OrderedDict()
"""By query and batch, the newest last. Ledgers and listeners are in the application's process, both."""


def note_batch(query: str, batch: int, progress: LedgerProgress) -> None:
    """Have whoever watches the query know what became of a batch."""
    LATEST[query, batch] = progress
    while len(LATEST) > KEPT:
        LATEST.popitem(last=False)


def progress_of_batch(query: UUID, batch: int) -> LedgerProgress | None:
    """Return the progress of a batch; None if no ledger of this process has written it."""
    return LATEST.get((str(query), batch))
