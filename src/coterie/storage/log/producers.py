"""What a log remembers of its idempotent and transactional producers: epochs, batches, open transactions.

No input or output: `check` says whether a batch follows, `record` takes it in, `snapshot` and `restore` turn
the whole into Kafka's .snapshot file (version 1) and back.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.storage.log.contract import AppendRefused
from coterie.wire.records.batches import BatchHeader, Marker, read_marker
from coterie.wire.records.checksum import crc32c

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


class Completed(NamedTuple):
    """A transaction that has ended, and what is stable now."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    aborted: bool


class ActiveProducer(NamedTuple):
    """What a partition tells about one of its producers."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_since: int


class Verification:
    """That the coordinator is being asked whether a producer's transaction covers the partition (KIP-890).

    The append that follows shows it. A marker that comes in between takes it away, so that no answer about
    an earlier transaction lets a batch in; it also remembers the first sequence that was sent, so that a
    later batch cannot overtake it.
    """

    __slots__ = ("epoch", "joins", "lowest_sequence", "timestamp")

    def __init__(self, *, epoch: int, sequence: int, joins: bool, now_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        # Whether partitions join by being written to, and the epoch grows with each transaction.
        self.joins = joins
        self.timestamp = now_ms

    def asked_again(self, *, epoch: int, sequence: int) -> None:
        """Take another batch into account that waits for the same answer."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


ONGOING: Final = Verification(epoch=-1, sequence=-1, joins=False, now_ms=0)
"""Shown where nobody needed to be asked, the transaction being open: an append much later looks again."""


class Producer:
    """What is known of one producer id in one partition."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "open_since", "timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.timestamp = -1
        self.open_since = -1
        self.batches: list[Written] = []

    def copy(self) -> "Producer":
        """Return another of the same values."""
        copy = Producer(self.epoch)
        copy.coordinator_epoch, copy.timestamp = self.coordinator_epoch, self.timestamp
        copy.open_since, copy.batches = self.open_since, [*self.batches]
        return copy

    @property
    def last(self) -> Written | None:
        """The newest batch of its epoch."""
        return self.batches[-1] if self.batches else None

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerState:
    """The producers of one partition."""

    __slots__ = ("_open", "_verifying", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        # Where each open transaction starts, the oldest first: they begin one after the other.
        self._open: dict[int, int] = {}
        self._verifying: dict[int, Verification] = {}

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction starts."""
        return next(iter(self._open.values()), None)

    def open_since(self, producer_id: int) -> int:
        """Return the first offset of a producer's open transaction, -1 without one."""
        return self._open.get(producer_id, -1)

    def active(self) -> Iterator[ActiveProducer]:
        """Yield every producer that is known now, as DescribeProducers tells of them."""
        for key, one in tuple(self.producers.items()):
            yield ActiveProducer(
                key, one.epoch, one.last_sequence, one.timestamp, one.coordinator_epoch, one.open_since
            )

    # -- is the batch part of a transaction?

    def verification(self, header: BatchHeader, *, joins: bool, now_ms: int) -> Verification | None:
        """Return the Verification that an append of this batch needs once its coordinator has said yes.

        None: its transaction has reached this partition before, nobody needs to be asked. Raises
        AppendRefused for a fenced epoch.
        """
        key, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        known = self.producers.get(key)
        _check_epoch(known, header)
        if _ongoing(known, header):
            return None
        asked = self._verifying.get(key)
        if asked is None:
            asked = Verification(epoch=epoch, sequence=sequence, joins=joins, now_ms=now_ms)
            self._verifying[key] = asked
        else:
            asked.asked_again(epoch=epoch, sequence=sequence)
        return asked

    def _verified(self, header: BatchHeader) -> None:
        """Forget what was asked, now that a batch or a marker of the producer is in the log.

        A marker of a producer whose epoch grows with each transaction leaves a question of its own epoch
        alone: that one is about the next transaction.
        """
        asked = self._verifying.get(header.producer_id)
        if asked is None:
            return
        of_the_next = asked.joins and header.control and header.producer_epoch == asked.epoch
        if not of_the_next:
            del self._verifying[header.producer_id]

    # -- does it follow?

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

    def check(self, header: BatchHeader, *, sequenced: bool, verified: Verification | None = None) -> None:
        """Raise AppendRefused for a fenced epoch or, if `sequenced`, for a sequence that does not follow.

        A producer that is not known here may start anywhere: what it wrote before may have been deleted.
        """
        known = self.producers.get(header.producer_id)
        _check_epoch(known, header)
        asked = self._verifying.get(header.producer_id)
        if verified is not None and verified is not asked and not _ongoing(known, header):
            raise _refused(header, Code.INVALID_TXN_STATE, "wrote to a transaction that has ended")
        if sequenced:
            _check_sequence(known, asked, header)
        if known is not None and known.open_since >= 0 and not (header.transactional or header.control):
            raise _refused(header, Code.INVALID_TXN_STATE, "has a transaction open and wrote outside of it")

    def check_marker(self, header: BatchHeader, marker: Marker, *, transaction_version: int) -> None:
        """Raise AppendRefused for a marker of a producer or of a coordinator that was overtaken.

        From transaction version 2 on the epoch grows with each transaction, so a marker of an epoch that was
        seen is late, unless the transaction has ended and the coordinator says so again (KAFKA-19999).
        """
        known = self.producers.get(header.producer_id)
        if known is None:
            return
        _check_epoch(known, header)
        if transaction_version >= 2 and header.producer_epoch == known.epoch and known.open_since >= 0:
            raise _refused(
                header,
                Code.INVALID_PRODUCER_EPOCH,
                f"ends a transaction in epoch {header.producer_epoch}, in which one is open",
            )
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise _refused(
                header,
                Code.TRANSACTION_COORDINATOR_FENCED,
                f"has a marker of coordinator epoch {marker.coordinator_epoch}; "
                f"{known.coordinator_epoch} was seen",
            )

    # -- what was written

    def record(self, header: BatchHeader, *, base_offset: int, timestamp: int) -> None:
        """Take in a data batch that was written at `base_offset`."""
        last_offset = base_offset + header.last_offset_delta
        known = self._of_epoch(header.producer_id, header.producer_epoch)
        written = Written(header.base_sequence, _last_sequence(header), base_offset, last_offset, timestamp)
        known.batches.append(written)
        del known.batches[:-KEPT]
        known.timestamp = timestamp
        if header.transactional:
            self._verified(header)
            if known.open_since < 0:
                known.open_since = self._open[header.producer_id] = base_offset

    def end_transaction(
        self, header: BatchHeader, marker: Marker, *, offset: int, timestamp: int
    ) -> Completed | None:
        """Take in a control batch that was written at `offset`; return the transaction that it ended."""
        known = self._of_epoch(header.producer_id, header.producer_epoch)
        self._verified(header)
        began, known.open_since = known.open_since, -1
        known.coordinator_epoch = marker.coordinator_epoch
        known.timestamp = timestamp
        if began < 0:
            return None
        del self._open[header.producer_id]
        stable = self.first_unstable_offset
        return Completed(
            producer_id=header.producer_id,
            first_offset=began,
            last_offset=offset,
            last_stable_offset=offset + 1 if stable is None else stable,
            aborted=not marker.commit,
        )

    def record_emptied(self, header: BatchHeader) -> None:
        """Take in a marker that compaction has left without its record, for the epoch of its producer.

        Nothing else tells of a producer whose batches are gone. (Apache Kafka passes over it when it starts.)
        """
        known = self._of_epoch(header.producer_id, header.producer_epoch)
        known.timestamp = max(known.timestamp, header.max_timestamp)

    def expire(self, *, before_ms: int) -> None:
        """Forget producers that wrote nothing since `before_ms` and have no transaction open."""
        idle = [
            key for key, one in self.producers.items() if one.timestamp <= before_ms and one.open_since < 0
        ]
        for key in idle:
            del self.producers[key]
        for key in [key for key, asked in self._verifying.items() if asked.timestamp <= before_ms]:
            del self._verifying[key]

    def clear(self) -> None:
        """Forget everything."""
        self.producers.clear()
        self._open.clear()
        self._verifying.clear()

    def snapshot(self) -> bytes:
        """Return Kafka's producer snapshot. It holds but the last batch of each producer."""
        rows = [len(self.producers).to_bytes(4)]
        for producer_id, one in self.producers.items():
            last = one.last or Written(-1, -1, -1, -1, -1)
            delta = last.last_offset - last.base_offset
            row = (producer_id, one.epoch, last.last_sequence, last.last_offset, delta)
            rows.append(ENTRY.pack(*row, one.timestamp, one.coordinator_epoch, one.open_since))
        body = b"".join(rows)
        return (1).to_bytes(2) + crc32c(body).to_bytes(4) + body

    def restore(self, data: bytes) -> None:
        """Become what a snapshot says, or raise Corrupt and stay as it is."""
        if len(data) < HEAD.size or (len(data) - HEAD.size) % ENTRY.size:
            raise Corrupt("a producer snapshot cut short", at=len(data))
        version, crc, count = HEAD.unpack_from(data)
        if version != 1 or crc != crc32c(data[6:]) or count != (len(data) - HEAD.size) // ENTRY.size:
            raise Corrupt("a producer snapshot that was damaged", at=0, expected="version 1 and its CRC")
        self.producers = {row[0]: _restored(row) for row in ENTRY.iter_unpack(data[HEAD.size :])}
        opened = [(one.open_since, key) for key, one in self.producers.items() if one.open_since >= 0]
        self._open = {key: since for since, key in sorted(opened)}

    def take_over(self, other: "ProducerState") -> None:
        """Know of producers what another state knows. Coordinators that are being asked may answer still: a
        marker between question and answer has taken the question away, even if it is taken back now.
        """
        self.producers = {key: one.copy() for key, one in other.producers.items()}
        self._open = dict(other._open)

    def _of_epoch(self, producer_id: int, epoch: int) -> Producer:
        known = self.producers.get(producer_id)
        if known is None:
            known = self.producers[producer_id] = Producer(epoch)
        elif known.epoch != epoch:
            known.epoch = epoch
            known.batches.clear()
        return known


def sequence_after(sequence: int, steps: int) -> int:
    """Return the sequence number `steps` later: after 2^31 - 1 comes 0."""
    return (sequence + steps) % SEQUENCES


def marker_of(batch: bytes | bytearray, at: int = 0, header: BatchHeader | None = None) -> Marker | None:
    """Return the Marker of the control batch at `at`, whose header may be known; None if it is about
    something else than a transaction.

    Compaction may have left it empty.
    """
    try:
        return read_marker(batch, at, header)
    except Corrupt:
        return None


def _last_sequence(header: BatchHeader) -> int:
    """Return the sequence of the last record; offset commits in transactions have none."""
    return sequence_after(header.base_sequence, header.last_offset_delta) if header.base_sequence >= 0 else -1


def _ongoing(known: Producer | None, header: BatchHeader) -> bool:
    """Return whether the batch's producer, in this epoch, has written to the partition in its transaction."""
    return known is not None and known.open_since >= 0 and known.epoch == header.producer_epoch


def _check_epoch(known: Producer | None, header: BatchHeader) -> None:
    if known is not None and header.producer_epoch < known.epoch:
        raise _refused(
            header,
            Code.INVALID_PRODUCER_EPOCH,
            f"has epoch {header.producer_epoch}, but {known.epoch} was seen",
        )


def _check_sequence(known: Producer | None, asked: Verification | None, header: BatchHeader) -> None:
    sequence = header.base_sequence
    if known is not None and not _follows(known, header):
        raise _refused(
            header,
            Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"sent sequence {sequence} in epoch {header.producer_epoch}; "
            f"the last was {known.last_sequence} in epoch {known.epoch}",
        )
    if asked is None:
        return
    least = 0 if asked.joins and (known is None or known.last is None) else asked.lowest_sequence
    if sequence > least:
        raise _refused(header, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sent sequence {sequence} before {least}")


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
