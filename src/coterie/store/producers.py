"""What a log remembers of its idempotent and transactional producers: epochs, batches, open transactions.

No input or output: `check` says whether a batch follows, `record` takes it in, `snapshot` and `restore` turn
the whole into Kafka's .snapshot file (version 1) and back.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.store.log import AppendRefused
from coterie.wire.batches import BatchHeader

__all__ = ["Completed", "Marker", "Producer", "ProducerState", "Written", "sequence_after"]

KEPT = 5
SEQUENCES = 2**31
HEAD = Struct(">hIi")
ENTRY = Struct(">qhiqiqiq")


class Written(NamedTuple):
    """A batch of a producer, as far as a repeat of it must be told from a new one."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Marker(NamedTuple):
    """What a control batch says: how a transaction ended, and in which epoch of its coordinator."""

    commit: bool
    coordinator_epoch: int


class Completed(NamedTuple):
    """A transaction that has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Producer:
    """What is known of one producer id in one partition."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "open_since", "timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.timestamp = -1
        self.open_since = -1
        self.batches: list[Written] = []

    @property
    def last(self) -> Written | None:
        """The newest batch of its epoch."""
        return self.batches[-1] if self.batches else None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerState:
    """The producers of one partition."""

    __slots__ = ("_first_open", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self._first_open: int | None = None

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction starts."""
        return self._first_open

    def duplicate_of(self, header: BatchHeader) -> Written | None:
        """Return the batch that `header` repeats: one of the last five of its producer's epoch."""
        known = self.producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            return None
        first, last = header.base_sequence, _last_sequence(header)
        for written in known.batches:
            if written.first_sequence == first and written.last_sequence == last:
                return written
        return None

    def check(self, header: BatchHeader, *, sequenced: bool) -> None:
        """Raise AppendRefused for a fenced epoch or, if `sequenced`, for a sequence that does not follow.

        A producer that is not known here may start anywhere: what it wrote before may have been deleted.
        """
        known = self.producers.get(header.producer_id)
        if known is None:
            return
        if header.producer_epoch < known.epoch:
            raise _refused(
                header,
                Code.INVALID_PRODUCER_EPOCH,
                f"has epoch {header.producer_epoch}, but {known.epoch} was seen",
            )
        if sequenced and not _follows(known, header):
            raise _refused(
                header,
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sent sequence {header.base_sequence} in epoch {header.producer_epoch}; "
                f"the last was {known.last_sequence} in epoch {known.epoch}",
            )
        if known.open_since >= 0 and not (header.transactional or header.control):
            raise _refused(header, Code.INVALID_TXN_STATE, "has a transaction open and wrote outside of it")

    def record(self, header: BatchHeader, *, base_offset: int, timestamp: int) -> None:
        """Take in a data batch that was written at `base_offset`."""
        last_offset = base_offset + header.last_offset_delta
        known = self._of_epoch(header.producer_id, header.producer_epoch)
        written = Written(header.base_sequence, _last_sequence(header), base_offset, last_offset, timestamp)
        known.batches.append(written)
        del known.batches[:-KEPT]
        known.timestamp = timestamp
        if header.transactional and known.open_since < 0:
            known.open_since = base_offset
            self._first_open = self._oldest()

    def end_transaction(
        self, header: BatchHeader, marker: Marker, *, offset: int, timestamp: int
    ) -> Completed | None:
        """Take in a control batch that was written at `offset`; return the transaction that it ended."""
        known = self._of_epoch(header.producer_id, header.producer_epoch)
        began, known.open_since = known.open_since, -1
        known.coordinator_epoch = marker.coordinator_epoch
        known.timestamp = timestamp
        if began < 0:
            return None
        self._first_open = self._oldest()
        return Completed(header.producer_id, began, offset, not marker.commit)

    def expire(self, *, before_ms: int) -> None:
        """Forget producers that wrote nothing since `before_ms` and have no transaction open."""
        idle = [
            key for key, one in self.producers.items() if one.timestamp <= before_ms and one.open_since < 0
        ]
        for key in idle:
            del self.producers[key]

    def clear(self) -> None:
        """Forget everything."""
        self.producers.clear()
        self._first_open = None

    def snapshot(self, checksum: Callable[[bytes], int]) -> bytes:
        """Return Kafka's producer snapshot. It holds but the last batch of each producer."""
        rows = [len(self.producers).to_bytes(4)]
        for producer_id, one in self.producers.items():
            last = one.last or Written(-1, -1, -1, -1, -1)
            delta = last.last_offset - last.base_offset
            row = (producer_id, one.epoch, last.last_sequence, last.last_offset, delta)
            rows.append(ENTRY.pack(*row, one.timestamp, one.coordinator_epoch, one.open_since))
        body = b"".join(rows)
        return (1).to_bytes(2) + checksum(body).to_bytes(4) + body

    def restore(self, data: bytes, checksum: Callable[[bytes], int]) -> None:
        """Become what a snapshot says, or raise Corrupt and stay as it is."""
        if len(data) < HEAD.size or (len(data) - HEAD.size) % ENTRY.size:
            raise Corrupt("a producer snapshot cut short", at=len(data))
        version, crc, count = HEAD.unpack_from(data)
        if version != 1 or crc != checksum(data[6:]) or count != (len(data) - HEAD.size) // ENTRY.size:
            raise Corrupt("a producer snapshot that was damaged", at=0, expected="version 1 and its CRC")
        self.producers = {row[0]: _restored(row) for row in ENTRY.iter_unpack(data[HEAD.size :])}
        self._first_open = self._oldest()

    def _of_epoch(self, producer_id: int, epoch: int) -> Producer:
        known = self.producers.get(producer_id)
        if known is None:
            known = self.producers[producer_id] = Producer(epoch)
        elif known.epoch != epoch:
            known.epoch = epoch
            known.batches.clear()
        return known

    def _oldest(self) -> int | None:
        return min((one.open_since for one in self.producers.values() if one.open_since >= 0), default=None)


def sequence_after(sequence: int, steps: int) -> int:
    """Return the sequence number `steps` later: after 2^31 - 1 comes 0."""
    return (sequence + steps) % SEQUENCES


def _last_sequence(header: BatchHeader) -> int:
    """Return the sequence of the last record; offset commits in transactions have none."""
    return sequence_after(header.base_sequence, header.last_offset_delta) if header.base_sequence >= 0 else -1


def _follows(known: Producer, header: BatchHeader) -> bool:
    if header.producer_epoch != known.epoch:
        return header.base_sequence == 0 or known.epoch < 0
    return known.epoch < 0 or header.base_sequence == sequence_after(known.last_sequence, 1)


def _restored(row: tuple[int, ...]) -> Producer:
    _, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, open_since = row
    one = Producer(epoch)
    one.timestamp, one.coordinator_epoch, one.open_since = timestamp, coordinator_epoch, open_since
    if last_offset >= 0:
        first = (last_sequence - delta) % SEQUENCES if last_sequence >= 0 else last_sequence
        one.batches.append(Written(first, last_sequence, last_offset - delta, last_offset, timestamp))
    return one


def _refused(header: BatchHeader, code: Code, what: str) -> AppendRefused:
    return AppendRefused(code, f"producer {header.producer_id} {what}")
