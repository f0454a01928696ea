"""Where an append goes: batches are checked, and get their offsets, epoch and times. No input or output.

Placing is at once; that what is placed lasts (it has *landed*) may come later, or never: `contract.Appended`.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from coterie.storage.config import LogConfig
from coterie.storage.disk import Buffer
from coterie.storage.log.producers import Completed, ProducerState, Verification, marker_of
from coterie.storage.log.validate import (
    Batch,
    Prepared,
    headed,
    prepared,
    prepared_promptly,
)
from coterie.wire.records.batches import BatchHeader, restamp

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
            marker = marker_of(records, at) if header.control else None
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
            elif (marker := marker_of(place.records, at)) is not None:
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
