"""The log of a partition whose rows lie in a database, and which is written through a lane.

What is appended is placed at once and lands later, or never: docs/decisions/0024-placed-and-landed.md. The
newest batches that have landed are in memory (`tail`); those before are read from the database (`recalled`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.storage.config import LogConfig
from coterie.storage.epochs import Epochs, begun, from_start, until_end
from coterie.storage.kind import Found, Readable
from coterie.storage.log.aborted import AbortedIndex, AbortedSpan
from coterie.storage.log.contract import Appended, AppendRefused, Landed, OffsetOutOfRange
from coterie.storage.log.placing import Placed, PlacingLog, learn
from coterie.storage.log.producers import SEQUENCES, Completed, ProducerState
from coterie.storage.log.validate import Prepared
from coterie.storage.remote.chunk import Chunk, PendingAppend
from coterie.storage.remote.compacting import LogCompaction
from coterie.storage.remote.compaction import Compacted
from coterie.storage.remote.heads import heads_of, learn_heads, scan_heads
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.reading import DeletedRow, RowHeads, RowsWanted, SizeWanted, StoredSize
from coterie.storage.remote.recalled import ReadRows, RecalledLog, find_by_time, find_youngest
from coterie.storage.remote.recalling import RecallCache, RecallReading
from coterie.storage.remote.tail import JoinedBatches, Piece, Tail, TailCache, taken
from coterie.wire.records.batches import BatchHeader, read_header, scan
from coterie.wire.records.visible import AbortedTransaction

COMES_AGAIN_MS = 5_000
"""So long after the first append that was taken a producer may be sending again what was sent away before."""


class RemoteState:
    """How far a log goes by what has landed, and its settings."""

    def __init__(self, config: LogConfig, *, epochs: Epochs, start_offset: int, end_offset: int) -> None:
        self.config = config
        self.epochs = epochs
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.producers = ProducerState()


class Flight:
    """An append that is placed and not decided."""

    __slots__ = ("data", "place", "refused")

    def __init__(self, place: Placed, data: bytes) -> None:
        self.place, self.data = place, data
        self.refused: AppendRefused | None = None


class RemoteLog(PlacingLog):
    """The log of one partition. It is led by one broker at a time, which alone appends."""

    _state: RemoteState

    def __init__(
        self,
        name: TopicPartition,
        partition_id: int,
        config: LogConfig,
        lane: Lane,
        *,
        chunks: Iterable[Chunk] = (),
        epochs: Epochs,
        start_offset: int = 0,
        end_offset: int = 0,
        compacted_to: int = 0,
        cache: TailCache | None = None,
        read_rows: ReadRows,
        recalls: RecallCache,
    ) -> None:
        """`chunks` are the rows from `start_offset` on, which are compacted up to an offset; the log goes on
        at `end_offset`, or behind them.

        Its newest batches are in the `cache`, where there is one that others share; `read_rows` reads those
        before, and `recalls` has what was read of them for consumers.
        """
        self.name = name
        self.where = str(name)
        self.partition_id = partition_id
        self.closed = False
        self.lane = lane
        self._state = RemoteState(config, epochs=epochs, start_offset=start_offset, end_offset=end_offset)
        self._aborted = AbortedIndex()
        self.tail = Tail(cache or TailCache(), start_offset)
        self.compaction = LogCompaction(self, compacted_to)
        self._read_rows, self._recalls = read_rows, recalls
        self._first_ms: int | None = None  # when something was first taken, since others were sent away,
        self._first_offset = 0  # and the offset that it got
        # Producers of which a batch was sent away since, for the one before it.
        self._lacking: set[int] = set()
        self.producers = ProducerState()
        for _ in self.take_in(chunks):
            pass
        self._flights: deque[Flight] = deque()
        self._waiting: deque[tuple[int, Landed]] = deque()  # by the offsets that they wait for

    # -- what it is

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._flights[-1].place.next_offset if self._flights else self._state.end_offset

    @property
    def high_watermark(self) -> int:
        """The end of what readers may see: of what has landed."""
        return self._state.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what a read_committed reader may see: the start of the oldest open transaction."""
        state = self._state
        unstable = state.producers.first_unstable_offset
        return state.end_offset if unstable is None else max(unstable, state.start_offset)

    @property
    def recovery_point(self) -> int:
        """The offset up to which everything lasts: all that has landed does."""
        return self._state.end_offset

    may_bring_back: Final = False
    """What was refused is in no row."""

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches that have landed."""
        return self.tail.older_bytes + self.tail.size

    def configure(self, config: LogConfig) -> None:
        """Take other settings from now on."""
        self._state.config = config

    # -- appending

    def append(self, records: bytes | bytearray | Prepared, *, now_ms: int, **terms: Any) -> Appended:
        """Place batches at the end, as `PlacingLog.append` does, unless the lane takes nothing any more.

        Nothing else is said of a batch then. What was in flight before it was taken back, but may be there:
        a producer that hears that its next batch is out of order takes the one before for one that never was,
        and sends it again as another.
        """
        refusal = self.lane.refusal
        if refusal is not None:
            self.expect_repeats()
            raise refusal
        if self._first_ms is None:
            self._first_ms, self._first_offset = now_ms, self.end_offset
        if now_ms - self._first_ms > COMES_AGAIN_MS:
            return super().append(records, now_ms=now_ms, **terms)
        self._check_first(records)
        try:
            return super().append(records, now_ms=now_ms, **terms)
        except AppendRefused as refused:
            if refused.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self._may_lack_one(records):
                self._lacking.add(_first_header(records).producer_id)
                raise AppendRefused(Code.NOT_LEADER_OR_FOLLOWER, f"{refused}; it may come yet") from None
            raise

    def expect_repeats(self) -> None:
        """Take note that batches were sent away for a while, which may come again behind others."""
        self._first_ms = None
        self._lacking.clear()

    def _check_first(self, records: bytes | bytearray | Prepared) -> None:
        """Raise AppendRefused for a batch that is not its producer's first, where none has come before.

        The first was sent away, perhaps a moment ago, and is sent again. If this one was taken before, it
        would be refused as out of order; or not be sent at all: librdkafka takes what precedes a batch that
        was written for written, too. After a while a producer may begin anywhere (KIP-360).
        """
        try:
            header = _first_header(records)
        except Corrupt:
            return  # which others refuse
        if header.base_sequence > 0 and header.producer_id not in self.producers.producers:
            raise AppendRefused(
                Code.NOT_LEADER_OR_FOLLOWER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, and those before it may"
                " come yet",
            )

    def _may_lack_one(self, records: bytes | bytearray | Prepared) -> bool:
        """Return whether a producer may have a batch before this one on its way here.

        While the log was being opened, or the broker was suspended, its batches were sent away, and it sends
        them again one by one. Told that one is out of order it would take those before it for lost, and those
        may be there; librdkafka does so in all partitions of the producer's.
        """
        header = _first_header(records)
        known = self.producers.producers.get(header.producer_id)
        if known is None or known.last is None:
            return False
        if known.last.last_offset >= self._first_offset and header.producer_id not in self._lacking:
            return False
        ahead = (header.base_sequence - known.last_sequence) % SEQUENCES
        return header.producer_epoch != known.epoch or ahead < SEQUENCES // 2

    def _put(self, place: Placed, now_ms: int, wall_ms: int) -> Appended:
        data = b"".join(place.parts)
        spans = place.spans
        ends = learn(self.producers, place) if place.has_producers else ()
        flight = Flight(place, data)
        self._flights.append(flight)
        self.lane.put(
            PendingAppend(
                self.partition_id,
                place.base_offset,
                place.next_offset - 1,
                self.latest_epoch,
                spans[0][2] if len(spans) == 1 else max([timestamp for _, _, timestamp in spans]),
                len(spans),
                len(data),
                (data,),
                heads_of(data, spans),
                partial(self._decided, flight),
                [AbortedSpan(*ended[:4]) for ended in ends if ended.aborted] if ends else (),
            )
        )
        if flight.refused is not None:  # the lane takes nothing any more
            raise flight.refused
        start = self._state.start_offset
        return Appended(place.base_offset, place.next_offset - 1, place.append_time_ms, start, landed=False)

    def when_landed(self, last_offset: int, done: Landed) -> None:
        """Have `done` called once what was appended up to an offset lasts, or never will."""
        waiting = self._waiting
        if last_offset < self._state.end_offset:
            done(None)
        elif not waiting or waiting[-1][0] <= last_offset:
            waiting.append((last_offset, done))
        else:  # of a batch that has come again
            waiting.insert(bisect_right([offset for offset, _ in waiting], last_offset), (last_offset, done))

    def _decided(self, flight: Flight, refused: AppendRefused | None) -> None:
        if refused is None:
            self._land(flight)
        else:
            self._take_back(flight, refused)

    def _land(self, flight: Flight) -> None:
        first = self._flights.popleft()
        assert first is flight, f"{self.name}: appends land in order"
        place, waiting = flight.place, self._waiting
        self.tail.keep(flight.data, place.spans)
        if place.has_producers:
            self._note_ended(learn(self._state.producers, place))
        self.compaction.take_dirty(len(place.spans), place.spans[0][2])
        end = self._state.end_offset = place.next_offset
        landed = []
        while waiting and waiting[0][0] < end:
            landed.append(waiting.popleft()[1])
        for done in landed:  # who may have the rest refused
            done(None)

    def _take_back(self, flight: Flight, refused: AppendRefused) -> None:
        """Undo an append, the newest. Once all in flight are undone, those of other logs too, tell who waits
        for them, the last first: who hears it may append anywhere.
        """
        newest = self._flights.pop()
        assert newest is flight, f"{self.name}: appends are undone newest first"
        flight.refused = refused
        if self._flights:
            return
        self.producers.take_over(self._state.producers)
        self.expect_repeats()
        self._state.epochs = until_end(self._state.epochs, self.end_offset)
        waiting, self._waiting = self._waiting, deque()
        for _, done in reversed(waiting):
            self.lane.when_taken_back(partial(done, refused))

    def lead(self, epoch: int) -> None:
        """Have what comes be written in this epoch, unless a later one is known."""
        if epoch > self.latest_epoch:
            self._state.epochs = begun(self._state.epochs, epoch, self.end_offset)
            self.expect_repeats()

    # -- what has landed

    def take_in(self, chunks: Iterable[Chunk], older: Iterable[RowHeads] = ()) -> Iterator[int]:
        """Take rows that were there when the log was opened, those that are `older` without their data; yield
        the number of batches of each.

        The log is whole once all are taken: until then nobody reads it or appends.
        """
        for row in older:
            yield self._take_heads(row)
        for chunk in chunks:
            yield self._take_row(chunk)
        self.producers.take_over(self._state.producers)

    def _take_heads(self, row: RowHeads) -> int:
        self.tail.pass_by(row.last_offset, row.size)
        self._take_in(row)
        return row.batches

    def _take_row(self, chunk: Chunk) -> int:
        data = bytes(chunk.data)
        self.tail.keep_joined(JoinedBatches(chunk.base_offset, chunk.last_offset, chunk.max_timestamp, data))
        row = RowHeads(*chunk[1:4], len(data), chunk.heads)
        ended = self._take_in(row)
        if ended is None:
            return 1
        self._note_ended(ended)
        return row.batches

    def _take_in(self, row: RowHeads) -> Sequence[Completed] | None:
        """Take note of a row, and return the transactions that it ends, as `learn_heads` does."""
        state = self._state
        if row.leader_epoch > self.latest_epoch:
            state.epochs = begun(state.epochs, row.leader_epoch, row.base_offset)
        self.compaction.take_row(row, read_header(row.heads).max_timestamp)
        state.end_offset = max(state.end_offset, row.last_offset + 1)
        return learn_heads(state.producers, row.heads)

    def _note_ended(self, transactions: Sequence[Completed]) -> None:
        for ended in transactions:
            if ended.aborted:
                self._aborted.add(AbortedSpan(*ended[:4]))

    # -- reading

    def read(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True, end_offset: int | None = None
    ) -> bytes:
        """Return whole batches from the one that holds `offset`, none that starts at or after `end_offset`.

        The first may be larger than `max_bytes` if `at_least_one`. Raises `OffsetOutOfRange`.
        """
        since = self.tail.pieces_since
        return self.read_of(
            since, offset, max_bytes=max_bytes, at_least_one=at_least_one, end_offset=end_offset
        )

    def read_of(
        self,
        since: Callable[[int], Iterator[Piece]],
        offset: int,
        *,
        max_bytes: int,
        at_least_one: bool = True,
        end_offset: int | None = None,
    ) -> bytes:
        """Return batches, as `read` does, of those that there are `since` the offset."""
        state = self._state
        if not state.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(offset=offset, start=state.start_offset, end=self.end_offset)
        end = state.end_offset if end_offset is None else min(end_offset, state.end_offset)
        pieces = since(offset) if offset < end else ()
        return taken(pieces, end, max_bytes=max_bytes, at_least_one=at_least_one)

    def read_committed(
        self, offset: int, *, max_bytes: int, at_least_one: bool = True
    ) -> tuple[bytes, tuple[AbortedTransaction, ...]]:
        """Return batches, as `read` does, up to the last stable offset, and their aborted transactions."""
        end = self.last_stable_offset
        records = self.read(offset, max_bytes=max_bytes, at_least_one=at_least_one, end_offset=end)
        return records, self.aborted_among(records, offset)

    def aborted_among(
        self, records: bytes, offset: int, older: Sequence[AbortedSpan] = ()
    ) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions of batches that were read from an offset on. Those whose markers
        were never in memory are among `older`.
        """
        if not records or not (older or len(self._aborted)):
            return ()
        *_, (_, last) = scan(records)
        end = last.last_offset + 1
        spans, _ = self._aborted.within(offset, end)
        if older:
            by_marker = {span.last_offset: span for span in (*older, *spans) if span.first_offset < end}
            spans = [by_marker[marker] for marker in sorted(by_marker)]
        return tuple(AbortedTransaction(*span[:2]) for span in spans)

    def aborted_spans(self) -> Sequence[AbortedSpan]:
        """Return the aborted transactions of which the log has something, or has had."""
        return self._aborted.within(0, self._state.end_offset)[0]

    def size_between(self, offset: int, end_offset: int) -> int:
        """Return the size in bytes of the batches from the one that holds `offset` up to `end_offset`; where
        they begin with one that is not in memory, with all that are not.
        """
        return self.tail.size_between(offset, end_offset)

    def batch_from(self, timestamp_ms: int, offset: int) -> bytes | None:
        found = self.tail.first_from(timestamp_ms, max(offset, self._state.start_offset))
        return None if found is None else found.data

    def youngest_batch(self) -> bytes | None:
        found = self.tail.youngest_from(self._state.start_offset)
        return None if found is None else found.data

    # -- reading what is not in memory

    def at_hand(self, offset: int) -> bool:
        state = self._state
        return offset >= self.tail.begins or not state.start_offset <= offset < state.end_offset

    def read_soon(
        self,
        offset: int,
        max_bytes: int,
        done: Callable[[Readable], None],
        pressed: Callable[[], None] | None = None,
    ) -> RecallReading | None:
        end = self._state.end_offset
        wanted = RowsWanted(self.partition_id, offset, end, max_bytes)
        if pressed is not None:
            return self._recalls.ask(self, wanted, done, pressed)
        self._read_rows(wanted, lambda rows: done(RecalledLog(self, rows, end)))
        return None

    def find_soon(self, timestamp_ms: int, offset: int, done: Found) -> None:
        offset = max(offset, self._state.start_offset)
        if self.at_hand(offset):
            done(self.batch_from(timestamp_ms, offset))
            return
        wanted = RowsWanted(self.partition_id, offset, self._state.end_offset, since_ms=timestamp_ms)
        find_by_time(self._read_rows, wanted, done)

    def find_youngest_soon(self, done: Found) -> None:
        state = self._state
        if self.at_hand(state.start_offset):
            done(self.youngest_batch())
            return
        wanted = RowsWanted(self.partition_id, state.start_offset, state.end_offset)
        find_youngest(self._read_rows, wanted, done)

    # -- forgetting

    def delete_before(self, offset: int, now_ms: int, *, save: bool = True) -> int:
        """Forget what lies before `offset`; return the new start. Raises `OffsetOutOfRange`.

        Nothing is saved here: who moves a start has written it down before (`RemoteStore.save_starts`). The
        rows are deleted later (`retention`).
        """
        state = self._state
        if not 0 <= offset <= state.end_offset:
            raise OffsetOutOfRange(offset=offset, start=state.start_offset, end=state.end_offset)
        if offset > state.start_offset:
            self._start_at(offset)
        return state.start_offset

    def _start_at(self, offset: int) -> None:
        self._state.start_offset = offset
        self._state.epochs = from_start(self._state.epochs, offset)
        self.tail.drop_before(offset)
        self._aborted.drop_before(offset)
        self.lane.forget(self.partition_id, offset)

    @property
    def oldest_ms(self) -> int | None:
        """The time of the youngest record in the first batch, None where that is not in memory."""
        if self.tail.begins > self._state.start_offset:
            return None
        first = next(self.tail.since(self._state.start_offset), None)
        return None if first is None else first.max_timestamp

    def take_deleted(self, rows: Iterable[DeletedRow]) -> None:
        """Take note that rows before the start were deleted."""
        for last_offset, size in rows:
            self.compaction.take_deleted(last_offset, size)
            self.tail.take_deleted(last_offset, size)

    @property
    def size_wanted(self) -> SizeWanted:
        """What is to be read where it is not known how large it is, by where its tail begins now."""
        compacted_to = self.compaction.compacted_to
        return SizeWanted(self.partition_id, self._state.start_offset, self.tail.begins, compacted_to)

    def take_size(self, asked: SizeWanted, size: StoredSize, since_bytes: int) -> None:
        """Go by the size of what is older than the tail, as it was read; so much has come to that since."""
        start, end = asked.start_offset, asked.end_offset
        further = sum(head.size for _, head in scan_heads(size.heads) if head.base_offset < end)
        older_bytes = size.older_bytes + further if start < end else 0
        self.tail.older_from, self.tail.older_bytes = start, older_bytes + since_bytes
        self.compaction.recount(start, size.clean_bytes)

    def take_compacted(self, done: Compacted) -> None:
        """Take note of a compaction: what is in memory of what was there before is read no more.

        Transactions that were aborted are known as long as there is something of them in any row, or was when
        the compaction began: who is reading may have it still.
        """
        tail = self.tail
        if not done.whole:
            tail.older_bytes = max(0, tail.older_bytes - done.removed_bytes)
            return
        self._recalls.renew(self)
        upto = max(done.upto, tail.begins)
        size, older_from = tail.size_between(self._state.start_offset, upto), tail.older_from
        tail.drop_before(upto)
        tail.older_from, tail.older_bytes = older_from, max(0, size - done.removed_bytes)
        ahead = [one for one in self.aborted_spans() if one.last_offset >= done.upto]
        self._aborted = AbortedIndex([*done.aborted, *ahead])

    # -- its end

    def flush(self) -> None:
        """Do nothing: what has landed lasts, and what is in flight is for the lane to decide."""

    def expire_producers(self, before_ms: int) -> None:
        """Forget producers that wrote nothing since then, and have no transaction open."""
        for state in (self.producers, self._state.producers):
            state.expire(before_ms=before_ms)

    def close(self) -> None:
        """Take nothing any more. What is in flight is decided all the same."""
        self.closed = True
        self.tail.leave()
        self._recalls.close(self)


def _first_header(records: bytes | bytearray | Prepared) -> BatchHeader:
    """Return the header of the first batch. Raises `Corrupt` where there is none."""
    return records.header if isinstance(records, Prepared) else read_header(records)
