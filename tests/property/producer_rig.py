"""A log that knows Kafka's rules about producers, and connections to it that lose what they please."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.net.addresses import Address
from coterie.client.producer.accumulator import BatchAnswer
from coterie.client.producer.batcher import Batch, Identity
from coterie.wire.records.batches import BatchHeader, read_header, records_of

REMEMBERED = 5
OFFSETS_UNKNOWN = -1


@dataclass
class KnownProducer:
    """What a partition remembers of a producer."""

    epoch: int
    last_sequence: int = -1
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """First and last sequence number, and the offset they went to."""


class ModelLog:
    """One partition: values, and the producers that wrote them."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.producers: dict[int, KnownProducer] = {}

    def append(self, data: bytes) -> BatchAnswer:
        """Append a batch as Kafka's log does, or say why not."""
        header = read_header(data)
        values = [record.value or b"" for record in records_of(data)]
        if header.producer_id < 0:
            return self._added(values)
        known = self.producers.setdefault(header.producer_id, KnownProducer(header.producer_epoch))
        if header.producer_epoch < known.epoch:
            return BatchAnswer(Code.INVALID_PRODUCER_EPOCH)
        if header.producer_epoch > known.epoch:
            if header.base_sequence != 0:
                return BatchAnswer(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
            known = self.producers[header.producer_id] = KnownProducer(header.producer_epoch)
        return self._in_order(known, header, values)

    def _in_order(self, known: KnownProducer, header: BatchHeader, values: list[bytes]) -> BatchAnswer:
        first, last = header.base_sequence, header.base_sequence + len(values) - 1
        for was_first, was_last, offset in known.batches:
            if (was_first, was_last) == (first, last):
                return BatchAnswer(Code.NONE, offset)
        if first != known.last_sequence + 1:
            late = last <= known.last_sequence
            return BatchAnswer(Code.DUPLICATE_SEQUENCE_NUMBER if late else Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        known.batches.append((first, last, len(self.values)))
        known.last_sequence = last
        return self._added(values)

    def _added(self, values: list[bytes]) -> BatchAnswer:
        self.values += values
        return BatchAnswer(Code.NONE, len(self.values) - len(values))


@dataclass(eq=False)
class Request:
    """Batches on their way to a leader, as bytes; later, the answer on its way back."""

    batches: list[tuple[Batch, bytes]]
    answers: dict[TopicPartition, BatchAnswer] | None = None


class ModelBroker:
    """A leader: it takes the requests of a connection in order, and answers in order."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.logs: dict[TopicPartition, ModelLog] = defaultdict(ModelLog)
        self.requests: deque[Request] = deque()

    def work(self, code: Code = Code.NONE) -> bool:
        """Take the oldest request that was not taken; a code refuses all of it. False if there is none."""
        waiting = next((request for request in self.requests if request.answers is None), None)
        if waiting is None:
            return False
        waiting.answers = {
            batch.place: BatchAnswer(code) if code else self.logs[batch.place].append(data)
            for batch, data in waiting.batches
        }
        return True


def next_identity(before: Identity, *, number: int) -> Identity:
    """Return what a broker gives to a producer that needs an identity."""
    return Identity(before.producer_id + 1 + number, 0)
