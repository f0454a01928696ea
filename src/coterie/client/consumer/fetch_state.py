"""One partition on its way through a consumer: what was fetched, handed out, and where it stands. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.consumer.records import ConsumerRecord, Decode, Rows, payload_of
from coterie.client.net.addresses import Address
from coterie.wire.records.batches import scan
from coterie.wire.records.visible import AbortedTransaction, without_aborted

Finish = Callable[[list[ConsumerRecord]], tuple[list[ConsumerRecord[Any, Any]], CoterieError | None]]
"""Deserialises; of records that it cannot finish it returns those before, and what went wrong."""


class Ends(NamedTuple):
    """What a fetch told of the log."""

    start: int
    stable: int
    high_watermark: int


class Fetched:
    """The batches of one answer for one partition, undecoded, oldest first."""

    @classmethod
    def of(cls, part: Any, *, first: int, committed: bool) -> "Fetched":
        """Return the batches of a partition's part of a Fetch response, those before `first` left out.

        `committed` leaves out the records of aborted transactions. Raises `Corrupt`.
        """
        aborted = None
        if committed:
            aborted = [
                AbortedTransaction(one.producer_id, one.first_offset)
                for one in part.aborted_transactions or ()
            ]
        return cls(part.records, first=first, aborted=aborted)

    def __init__(self, records: bytes, *, first: int, aborted: list[AbortedTransaction] | None) -> None:
        whole = scan(records)
        visible = whole if aborted is None else without_aborted(whole, aborted)
        self.records, self.aborted = records, aborted
        self.batches = deque(
            (at, header) for at, header in visible if not header.control and header.last_offset >= first
        )
        self.next_offset = max(first, whole[-1][1].last_offset + 1) if whole else first
        self.epoch = whole[-1][1].leader_epoch if whole else -1


class FetchState:
    """A partition that is assigned: `position` is the next to hand out, `fetch_at` the next to ask for."""

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.position: int | None = None
        self.fetch_at = 0
        self.jumps = 0
        """Counts the jumps: what was asked for before one is not wanted any more."""
        self.paused = False
        self.failure: CoterieError | None = None
        self.epoch = -1
        """The leader's epoch of what stands before `position`, -1 where nobody knows."""
        self.fetched_epoch = -1
        """The same of what stands before `fetch_at`."""
        self.leader_epoch = -1
        """The epoch that the leader leads in."""
        self.checked_in = -1
        """The epoch whose leader is known to have what stands before `fetch_at`."""
        self.leader: Address | None = None
        self.replica: Address | None = None
        """A follower nearer than the leader (KIP-392), until `replica_until` on the loop's clock."""
        self.replica_until = 0.0
        self.reset: str | None = None
        """Set while the position must come from the reset policy, not from what is committed."""
        self.lacking = ""
        """What the log lacks, for which the position is reset: it is told of with where reading goes on."""
        self.ends: Ends | None = None
        self.buffered = 0
        """Bytes fetched and not yet handed out, as they came."""
        self.queue: deque[Fetched] = deque()
        self.slow_records = 0
        """How many records a compiled reader would have read much faster."""
        self._rows: Rows | None = None
        """The batch that is being handed out: the first of the first in the queue."""
        self._left: list[ConsumerRecord] = []
        """Records that were made and could not be finished, or were too many."""

    @property
    def source(self) -> Address | None:
        """The broker to fetch from."""
        return self.replica or self.leader

    @property
    def waiting(self) -> bool:
        """Whether there is something to hand out, or to step over."""
        return bool(self.queue)

    @property
    def needs_epoch_check(self) -> bool:
        """Whether a new leader may lack what was read: it has to be asked before it is fetched from."""
        return self.fetched_epoch >= 0 and self.leader_epoch >= 0 and self.checked_in != self.leader_epoch

    def at_end(self, *, committed: bool) -> bool:
        """Whether there was nothing more to fetch when the broker last spoke of it."""
        if self.ends is None:
            return False
        return self.fetch_at >= (self.ends.stable if committed else self.ends.high_watermark)

    def jump(self, offset: int | None, epoch: int = -1) -> None:
        """Go on at this offset (None: where, is to be found out); what was fetched is dropped.

        `epoch` is that of the record before it, if it is known.
        """
        self.position = offset
        self.fetch_at = offset or 0
        self.epoch = self.fetched_epoch = epoch
        self.checked_in = -1
        self.lacking = ""
        self.jumps += 1
        self.failure = None
        self.buffered = 0
        self.queue.clear()
        self._forget()

    def _forget(self) -> None:
        if self._rows is not None:
            self.slow_records += self._rows.slow_records
        self._rows = None
        self._left = []

    def add(self, fetched: Fetched) -> None:
        """Queue what came."""
        self.fetch_at = fetched.next_offset
        self.fetched_epoch, self.checked_in = fetched.epoch, self.leader_epoch
        self.queue.append(fetched)
        self.buffered += len(fetched.records)

    def take(self, most: int, decode: Decode, finish: Finish, *, check: bool) -> list[Any]:
        """Return some records of one batch, or raise what is wrong with the next and stay before it."""
        rows = self._left = self._left or self._next_rows(most, decode, check=check)
        if not rows:
            return []
        done, error = finish(rows[:most])  # if it is interrupted, all of them are still there
        self._left = rows[len(done) :]
        if error is not None and not done:
            raise error
        self.position = rows[len(done) - 1].offset + 1
        self._leave_if_done()
        return done

    def _next_rows(self, most: int, decode: Decode, *, check: bool) -> list[ConsumerRecord]:
        """Return the next records from the position on, none where nothing is left."""
        while self.queue:
            if self._rows is None:
                self._begin_batch(decode, check=check)
            elif self._rows.left:
                rows = self._rows.take(most)
                position = self.position or 0
                if rows[0].offset < position:  # a batch begins before the place that was sought
                    rows = [row for row in rows if row.offset >= position]
                if rows:
                    return rows
            else:
                self._forget()
                self.queue[0].batches.popleft()
        return []

    def _begin_batch(self, decode: Decode, *, check: bool) -> None:
        """Open the next batch, or leave a fetch that has no more."""
        fetched = self.queue[0]
        if not fetched.batches:
            self.take_fetched()
            return
        at, header = fetched.batches[0]
        self.epoch = header.leader_epoch
        payload = payload_of(fetched.records, at, header, check=check)
        self._rows = decode(payload, header, self.at.topic, self.at.partition)

    def _leave_if_done(self) -> None:
        """Leave a fetch whose last record is handed out; the position steps over markers and gaps."""
        done = not self._left and (self._rows is None or not self._rows.left)
        if done and len(self.queue[0].batches) <= 1:
            self.take_fetched()

    def take_fetched(self) -> Fetched:
        """Return the whole of the oldest answer, undecoded; the position is after it."""
        fetched = self.queue.popleft()
        self._forget()
        self.position = max(self.position or 0, fetched.next_offset)
        self.epoch = fetched.epoch
        self.buffered -= len(fetched.records)
        return fetched


FetchedFrom = tuple[FetchState, int, Fetched]
"""A partition's answer, and the offset from which on it is wanted."""
