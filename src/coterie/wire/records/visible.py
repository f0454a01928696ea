"""Which batches of a Fetch a read_committed reader sees: all but those of transactions that were aborted."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coterie.wire.records.batches import BatchHeader


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read_committed reader must not see, as Fetch lists it."""

    producer_id: int
    first_offset: int


def without_aborted(
    whole: Sequence[tuple[int, BatchHeader]], aborted: Iterable[AbortedTransaction]
) -> list[tuple[int, BatchHeader]]:
    """Return the batches that a read_committed reader sees.

    A producer's transactional batches are hidden from an aborted transaction's first offset to the abort
    marker that ends it. Fetch lists the transactions that overlap what it returns, in any order.
    """
    ahead = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    hidden: set[int] = set()
    seen = []
    for at, header in whole:
        while ahead and ahead[-1].first_offset <= header.last_offset:
            hidden.add(ahead.pop().producer_id)
        if header.control:
            # An abort ends here; a commit's producer is not hidden, so discarding it changes nothing.
            hidden.discard(header.producer_id)
        elif header.transactional and header.producer_id in hidden:
            continue
        seen.append((at, header))
    return seen
