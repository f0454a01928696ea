"""Where an append goes: batches are checked, and get their offsets, epoch and times. No input or output.

Placing is at once; that what is placed lasts (it has *landed*) may come later, or never: `contract.Appended`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple, Protocol

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.storage.config import LogConfig
from coterie.storage.disk import Buffer
from coterie.storage.epochs import Epochs, end_of
from coterie.storage.log.contract import Appended, AppendRefused, Landed, OffsetAt, StorageFailed
from coterie.storage.log.producers import (
    ActiveProducer,
    Completed,
    ProducerState,
    Verification,
    marker_of,
)
from coterie.storage.log.searching import first_from, youngest_of
from coterie.storage.log.validate import (
    Batch,
    Prepared,
    coordinator_batches,
    headed,
    prepared,
    prepared_promptly,
)
from coterie.wire.records.batches import BatchHeader, read_header, restamp

STAMP = Struct(">qii")

Span = tuple[BatchHeader, int, int]
"""A batch as it goes into the log: its header as it came, its base offset, the last of its timestamps."""


class Placed(NamedTuple):
    """Batches with their place in the log: what to write, and where the log goes on behind them."""

    records: bytes | bytearray
    parts: Sequence[Buffer]
    spans: Sequence[Span]
    base_offset: int
    next_offset: int
    append_time_ms: int

    @property
    def has_producers(self) -> bool:
        """Whether `learn` has anything to do; of several batches any may be a producer's."""
        return self.spans[0][0].producer_id >= 0 or len(self.spans) > 1


def made_ready(
    records: bytes | bytearray | Prepared, config: LogConfig, now_ms: int, *, promptly: bool
) -> Batch:
    """Return the one batch that a client may send at a time. Raises `AppendRefused`, and `TakesLong` where it
    is wanted `promptly`.
    """
    if isinstance(records, Prepared):
        return records
    batch = headed(records, config)
    return prepared_promptly(batch, config, now_ms) if promptly else prepared(batch, config, now_ms)


def check_producers(
    producers: ProducerState,
    records: bytes | bytearray,
    headers: Sequence[BatchHeader],
    *,
    verified: Verification | None,
    transaction_version: int,
) -> None:
    """Raise `AppendRefused` for what a coordinator writes for a producer that has been overtaken."""
    at = 0
    for header in headers:
        if header.producer_id >= 0:
            marker = marker_of(records, at, header) if header.control else None
            if marker is None:
                producers.check(header, sequenced=False, verified=verified)
            else:
                producers.check_marker(header, marker, transaction_version=transaction_version)
        at += header.size


def placed(
    records: bytes | bytearray,
    headers: Sequence[BatchHeader],
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int,
) -> Placed:
    """Return batches as they stand from `base_offset` on, with the leader's epoch. An `append_time_ms` of at
    least 0 dates them.
    """
    spans, next_offset = [], base_offset
    for header in headers:
        spans.append((header, next_offset, header.max_timestamp if append_time_ms < 0 else append_time_ms))
        next_offset += header.last_offset_delta + 1
    parts = _stamped(records, spans, leader_epoch, append_time_ms)
    return Placed(records, parts, spans, base_offset, next_offset, append_time_ms)


def learn(producers: ProducerState, place: Placed) -> list[Completed]:
    """Let producers know of what is placed, and return the transactions that it ends."""
    at, ended = 0, []
    for header, base_offset, timestamp in place.spans:
        if header.producer_id >= 0:
            if not header.control:
                producers.record(header, base_offset=base_offset, timestamp=timestamp)
            elif (marker := marker_of(place.records, at, header)) is not None:
                completed = producers.end_transaction(header, marker, offset=base_offset, timestamp=timestamp)
                if completed is not None:
                    ended.append(completed)
        at += header.size
    return ended


def _stamped(
    records: bytes | bytearray, spans: Sequence[Span], leader_epoch: int, append_time_ms: int
) -> list[Buffer]:
    """Return the batches with their offsets and epoch, as pieces to write; append times need a copy."""
    at = 0
    if append_time_ms >= 0:
        copy = bytearray(records)
        for header, base_offset, _ in spans:
            restamp(
                copy, at, base_offset=base_offset, leader_epoch=leader_epoch, append_time_ms=append_time_ms
            )
            at += header.size
        return [copy]
    view = memoryview(records)
    parts: list[Buffer] = []
    for header, base_offset, _ in spans:
        end = at + header.size
        parts += STAMP.pack(base_offset, header.length, leader_epoch), view[at + STAMP.size : end]
        at = end
    return parts


class AppendState(Protocol):
    """What an append goes by."""

    config: LogConfig
    start_offset: int
    epochs: Epochs


class PlacingLog(ABC):
    """What the logs of all stores have in common: what an append is checked for, where it goes, and finding
    records by their time. How it is written, and when that lasts, is each one's own (`_put`).
    """

    name: TopicPartition
    where: str
    """Where it lies, for messages."""
    producers: ProducerState
    """Against which the next batch is checked: with all that is placed."""
    closed: bool
    _state: AppendState

    # -- what it is

    @property
    def config(self) -> LogConfig:
        """The settings of its topic."""
        return self._state.config

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._state.start_offset

    @property
    @abstractmethod
    def end_offset(self) -> int:
        """The offset that the next record will get."""

    @property
    @abstractmethod
    def high_watermark(self) -> int:
        """The end of what readers may see: of what has landed."""

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch: what clients are told, and what batches are stamped with."""
        return self._state.epochs[-1][0]

    @property
    def earliest_epoch(self) -> int:
        """The leader epoch of the first record, -1 if that is not known."""
        epoch, start = self._state.epochs[0]
        return epoch if start <= self._state.start_offset else -1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch known up to `epoch` and the offset where it ends, or (-1, -1)."""
        return end_of(self._state.epochs, epoch, end_offset=self.end_offset)

    def open_transaction(self, producer_id: int) -> int:
        """Return the first offset of a producer's open transaction, -1 without one."""
        return self.producers.open_since(producer_id)

    def active_producers(self) -> list[ActiveProducer]:
        """Return the producers that the log remembers."""
        return [*self.producers.active()]

    # -- appending

    def verification(self, header: BatchHeader, *, joins: bool, now_ms: int) -> Verification | None:
        """Return the Verification that `append` needs with this batch once the coordinator has agreed.

        None: nobody needs to be asked. `joins`: partitions join a transaction by being written to (KIP-890).
        """
        return self.producers.verification(header, joins=joins, now_ms=now_ms)

    def append(
        self,
        records: bytes | bytearray | Prepared,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        leader_epoch: int = 0,
        origin: str = "client",
        verified: Verification | None = None,
        transaction_version: int = 0,
        promptly: bool = False,
    ) -> Appended:
        """Place whole batches at the end, or raise `AppendRefused` and leave the log as it was.

        A `client` may send one batch at a time and is checked; the `coordinator` several, markers too.
        Timestamps go by `wall_ms`, without it by `now_ms`. `verified` is what `verification` gave; the
        `transaction_version` says how strictly the epoch of a marker is looked at. Who wants it `promptly` is
        told with `TakesLong` to have a producer's batch prepared aside.
        """
        if self.closed:
            raise AppendRefused(Code.KAFKA_STORAGE_ERROR, f"{self.where} is closed")
        state = self._state
        config = state.config
        wall_ms = now_ms if wall_ms is None else wall_ms
        headers: Sequence[BatchHeader]
        if isinstance(records, Prepared) or origin == "client":
            header, records = made_ready(records, config, wall_ms, promptly=promptly)
            if header.producer_id >= 0:
                known = self.producers.duplicate_of(header)
                if known is not None:
                    landed = known.last_offset < self.high_watermark
                    return Appended(*known[2:], state.start_offset, duplicate=True, landed=landed)
                self.producers.check(header, sequenced=True, verified=verified)
            headers = (header,)
        else:
            headers = coordinator_batches(records, config)
            check_producers(
                self.producers,
                records,
                headers,
                verified=verified,
                transaction_version=transaction_version,
            )
        if leader_epoch > state.epochs[-1][0]:
            self._begin_epoch(leader_epoch)
        append_time_ms = wall_ms if config.message_timestamp_type == "LogAppendTime" else -1
        # The epoch is the newest: a directory of a cluster's may have seen later ones than ours.
        place = placed(records, headers, self.end_offset, state.epochs[-1][0], append_time_ms)
        return self._put(place, now_ms, wall_ms)

    @abstractmethod
    def _put(self, place: Placed, now_ms: int, wall_ms: int) -> Appended:
        """Write what is placed, or have it written. Raises `AppendRefused`."""

    @abstractmethod
    def when_landed(self, last_offset: int, done: Landed) -> None:
        """Have `done` called once what was appended up to an offset lasts, or never will."""

    @abstractmethod
    def lead(self, epoch: int) -> None:
        """Have what comes be written in this epoch, unless a later one is known. Raises OSError."""

    def _begin_epoch(self, epoch: int) -> None:
        """Lead in an epoch that an append comes with. Raises `AppendRefused`."""
        self.lead(epoch)

    # -- what is not at hand

    def at_hand(self, offset: int) -> bool:
        """Return whether what is there at an offset can be read at once: all of a log in files."""
        return True

    def read_soon(
        self,
        offset: int,
        max_bytes: int,
        done: Callable[[Any], None],
        pressed: Callable[[], None] | None = None,
    ) -> Any:
        """Have `done` called with what can be read at an offset: the log itself, here."""
        done(self)

    def find_soon(
        self, timestamp_ms: int, offset: int, done: Callable[[bytes | StorageFailed | None], None]
    ) -> None:
        """Have `done` called with what `batch_from` finds."""
        done(self.batch_from(timestamp_ms, offset))

    def find_youngest_soon(self, done: Callable[[bytes | StorageFailed | None], None]) -> None:
        """Have `done` called with what `youngest_batch` finds."""
        done(self.youngest_batch())

    # -- by time

    @abstractmethod
    def batch_from(self, timestamp_ms: int, offset: int) -> bytes | None:
        """Return the first batch from an offset on that says to hold a record as young as this.

        Whether it does `first_from` finds out, which may take its time, and needs nothing but the batch.
        """

    @abstractmethod
    def youngest_batch(self) -> bytes | None:
        """Return the batch that says to hold the highest timestamp, the first of several."""

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAt | None:
        """Return the first record that is as young as `timestamp_ms` or younger."""
        at = self.start_offset
        while (batch := self.batch_from(timestamp_ms, at)) is not None:
            found = first_from(batch, timestamp_ms, at)
            if found is not None:
                return found
            at = read_header(batch).last_offset + 1
        return None

    def offset_of_max_timestamp(self) -> OffsetAt | None:
        """Return the record with the highest timestamp; the first of several."""
        batch = self.youngest_batch()
        return None if batch is None else youngest_of(batch, self.start_offset)
