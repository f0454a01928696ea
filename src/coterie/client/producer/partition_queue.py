"""A partition's batches: they fill, wait, are sent, and come back until they are known to be written or not.

An idempotent producer numbers its records in each partition, and the broker takes only the number that comes
next. So whatever has a number and is not settled is sent again as it was, lowest first, one at a time, until
there is a definite answer. When one has failed for good there is a gap that nothing behind it can pass: once
all of those are known not to be written, they begin again under the producer's next epoch, in their order.
"""

from collections import deque
from collections.abc import Iterator
from math import inf

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.producer.batcher import NO_IDENTITY, Batch, Identity, sequence_after

LAST_EPOCH = 32_767


class PartitionQueue:
    """A partition's queue, and what is known of the batches that were sent."""

    __slots__ = (
        "_sequence",
        "gap",
        "identity",
        "in_flight",
        "outstanding",
        "place",
        "used_ms",
        "waiting",
        "written_ms",
    )

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.waiting: deque[Batch] = deque()
        """Batches that were never sent, or begin again. Only the last one may be open."""
        self.outstanding: list[Batch] = []
        """Batches that were sent and are not settled, in the order of their numbers."""
        self.used_ms = 0.0
        """When its last batch was made."""
        self.written_ms = -inf
        """When it was known last that one was written."""
        self.in_flight = 0
        """How many of the outstanding are on their way now."""
        self.identity = NO_IDENTITY
        self.gap = False
        self._sequence = 0

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.waiting or self.outstanding)

    def batches(self) -> Iterator[Batch]:
        """Yield all batches, oldest first."""
        yield from self.outstanding
        yield from self.waiting

    @property
    def open_batch(self) -> Batch | None:
        """Return the batch that takes records, if there is one."""
        return self.waiting[-1] if self.waiting and self.waiting[-1].room >= 0 else None

    def again(self, now_ms: float) -> Batch | None:
        """Return the lowest batch that is to be sent again, once nothing is in flight."""
        if self.in_flight or not self.outstanding:
            return None
        lowest = next((batch for batch in self.outstanding if batch.maybe_written or not self.gap), None)
        return lowest if lowest is not None and lowest.retry_at_ms <= now_ms else None

    @property
    def all_in_flight(self) -> bool:
        """Return whether nothing waits for being sent again, so that a new batch may follow."""
        return not self.gap and self.in_flight == len(self.outstanding)

    @property
    def resolved(self) -> bool:
        """Return whether all that is behind a gap is known not to be written."""
        return self.gap and not self.in_flight and not any(batch.maybe_written for batch in self.outstanding)

    def mark_sent(self, batch: Batch) -> None:
        """Take note that a batch is on its way."""
        batch.in_flight = True
        batch.tries += 1
        self.in_flight += 1

    def mark_returned(self, batch: Batch) -> None:
        """Take note that there is an answer for a batch, or that there will be none."""
        batch.in_flight = False
        self.in_flight -= 1

    def begin_again(self, identity: Identity) -> None:
        """Let what is behind the gap go first under this identity; its numbers begin at 0."""
        assert not self.in_flight
        for batch in reversed(self.outstanding):
            batch.identity, batch.base_sequence = NO_IDENTITY, -1
            self.waiting.appendleft(batch)
        self.outstanding.clear()
        self.gap = False
        self.identity, self._sequence = identity, 0

    def number(self, batch: Batch) -> None:
        """Give the batch that is next in the queue its identity and number, and count it as sent."""
        assert self.waiting[0] is batch
        self.waiting.popleft()
        if self.identity is not NO_IDENTITY:
            batch.identity, batch.base_sequence = self.identity, self._sequence
            self._sequence = sequence_after(self._sequence, len(batch))
        self.outstanding.append(batch)

    def is_next(self, batch: Batch) -> bool:
        """Return whether everything before the batch is known to be written."""
        return not self.gap and self.outstanding[0] is batch

    def drop(self, batch: Batch) -> None:
        """Take out a batch that is settled; a number that nobody will use leaves a gap."""
        if batch in self.waiting:
            self.waiting.remove(batch)
        else:
            self.outstanding.remove(batch)

    def failed(self, batch: Batch) -> None:
        """Take out a batch that will not be written, or of which that will never be known."""
        self.drop(batch)
        if batch.base_sequence >= 0:
            self.gap = True

    def replace(self, batch: Batch, halves: tuple[Batch, Batch]) -> None:
        """Put two batches where one was."""
        at = self.outstanding.index(batch)
        self.outstanding[at : at + 1] = halves

    def refused(self, batch: Batch, code: Code) -> None:
        """Take note of a refusal after which the batch is sent again: some say that it was never written."""
        if code in NEVER_WRITTEN:
            batch.maybe_written = False
        elif code in PERHAPS_WRITTEN:
            batch.maybe_written = True


# The broker has no such numbers in its log.
NEVER_WRITTEN = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID})
# The leader may have appended it before it gave up on the other replicas.
PERHAPS_WRITTEN = frozenset({Code.REQUEST_TIMED_OUT, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
