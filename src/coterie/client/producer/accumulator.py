"""What a producer has to send, when, and what follows from each answer: events in, batches out. Pure.

Every record is in a batch of a queue until that is settled. An idempotent producer's records end up in the
log once and in the order they were handed over, whatever is lost or refused on the way; a batch that the
sender is told has failed may be missing.
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.client.errors import RETRIABLE
from coterie.client.member.backoff import steady
from coterie.client.net.addresses import Address
from coterie.client.producer.batcher import NO_IDENTITY, Batch, BatchResult, Identity, Memory
from coterie.client.producer.errors import DeliveryTimeout, refusal
from coterie.client.producer.partition_queue import LAST_EPOCH, PartitionQueue
from coterie.client.producer.partitioner import BrokerWaits
from coterie.client.producer.reports import LossReport, WaitReport
from coterie.client.producer.settings import ProducerSettings

WRITTEN = frozenset({Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER})
WORTH_ANOTHER_TRY = RETRIABLE | {
    Code.CORRUPT_MESSAGE,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.CONCURRENT_TRANSACTIONS,  # the end of the last transaction is under way
}
# Where the leader is looked for anew.
WRONG_LEADER = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
    }
)


class BatchAnswer(NamedTuple):
    """What a broker says about one batch."""

    code: Code
    base_offset: int = -1
    append_time_ms: int = -1
    said: str | None = None


class Collected(NamedTuple):
    """What is to be sent where, by leader; topics without a known one; whether there may be more."""

    batches: dict[Address, list[Batch]]
    lost: set[str]
    more: bool


class Accumulator:
    """The queues of all partitions that a producer writes to, under one identity."""

    def __init__(self, settings: ProducerSettings, *, jitter: Callable[[], float] = steady) -> None:
        self.settings = settings
        self._jitter = jitter
        self.waits = BrokerWaits[Address](
            availability_timeout_ms=settings.partitioner_availability_timeout_ms
        )
        """Which brokers take nothing, though there is something for them (PT-8)."""
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.memory = Memory(settings.buffer_memory)
        self.identity = NO_IDENTITY
        """What the broker gave the producer, once it has."""
        self.urgent = 0
        """How many wait for everything to be sent: batches do not linger then."""
        self.abandoned: CoterieError | None = None
        """Why nothing is sent any more, or not until the transaction is aborted."""
        self.failed: Callable[[CoterieError], object] = bool
        """Is told of each batch that fails."""
        self.may_go: Callable[[TopicPartition], bool] = lambda place: True
        """Whether a partition may be written to now; in a transaction it may have to be added before."""
        self._busy: dict[TopicPartition, PartitionQueue] = {}
        self._troubles: dict[TopicPartition, tuple[float, str]] = {}
        """When the last try was no success, and what came of it."""
        self._losses = LossReport()
        self._waiting = WaitReport(settings.delivery_timeout_ms)
        self._now_ms = 0.0

    # -- records in

    def queue(self, place: TopicPartition) -> PartitionQueue:
        """Return the partition's queue."""
        queue = self.queues.get(place)
        if queue is None:
            queue = self.queues[place] = PartitionQueue(place)
        return queue

    def opened(self, queue: PartitionQueue, *, size: int, now_ms: float) -> Batch | None:
        """Return a batch with room for such a record, the open one or a new one; None: memory is full."""
        held = queue.open_batch
        if held is not None:
            if held.room >= size:
                return held
            held.room = -1
        room = max(size, self.settings.batch_size)
        if not self.memory.take(room):
            return None
        batch = Batch(queue.place, size=room, now_ms=now_ms)
        self._queue(queue, batch, room)
        return batch

    def accepted(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Queue a batch that is whole already; False: memory is full."""
        if not self.memory.take(batch.size):
            return False
        held = queue.open_batch
        if held is not None:
            held.room = -1
        self._queue(queue, batch, batch.size)
        return True

    def _queue(self, queue: PartitionQueue, batch: Batch, reserved: int) -> None:
        batch.waiters.append(lambda: self.memory.give_back(reserved))
        queue.waiting.append(batch)
        queue.used_ms = batch.created_ms
        self._busy[queue.place] = queue

    def batches(self) -> Iterator[Batch]:
        """Yield all batches that are not settled."""
        for queue in self._busy.values():
            yield from queue.batches()

    @property
    def needs_identity(self) -> bool:
        """Return whether there is something to send for which a producer id has to be asked for first."""
        return self.settings.idempotent and self.identity is NO_IDENTITY and any(self._busy.values())

    # -- batches out

    def collect(
        self,
        now_ms: float,
        *,
        leader_of: Callable[[TopicPartition], Address | None],
        most: Callable[[Address], int],
    ) -> Collected:
        """Return a request's worth of batches for each leader that takes one, and settle what is too old.

        `most` says how many bytes may go to a leader now. The batches count as in flight from now on.
        """
        going: dict[Address, list[Batch]] = {}
        room: dict[Address, int] = {}
        lost: set[str] = set()
        more = False
        self._now_ms = now_ms
        for place, queue in list(self._busy.items()):
            self._expire(queue, now_ms)
            if queue and self._word_ms(queue) <= now_ms:
                self._say_waiting(queue, now_ms, leader_of(place))
            batch = self._due(queue, now_ms)
            if batch is None:
                if not queue:
                    del self._busy[place]
                continue
            leader = leader_of(place)
            if leader is None:
                lost.add(place.topic)
                continue
            if leader not in room:
                room[leader] = most(leader)
                self.waits.had_data(leader, now_ms, drained=room[leader] > 0)
            left = room[leader]
            fits = left > 0 and (batch.filled <= left or leader not in going)
            if fits and self.may_go(place):
                self._send(queue, batch)
                room[leader] -= batch.filled
                going.setdefault(leader, []).append(batch)
                self._busy[place] = self._busy.pop(place)  # the others come first next time
            more = more or bool(queue.waiting)
        self._losses.say_due(now_ms)
        return Collected(going, lost, more and bool(going))

    def next_ms(self, now_ms: float) -> float:
        """Return the time (ms) at which something is due if nothing happens before, infinity for never.

        What was due at `now_ms` counts as done: it is the time of the last `collect`.
        """
        next_ms = min((self._next_ms(queue, now_ms) for queue in self._busy.values()), default=inf)
        return min(next_ms, self._losses.due_ms)

    def _due(self, queue: PartitionQueue, now_ms: float) -> Batch | None:
        """Return the batch that the queue may send now."""
        if self.abandoned is not None or (queue.resolved and not self._begun_again(queue)):
            return None
        again = queue.again(now_ms)
        if again is not None:
            return again
        most = self.settings.max_in_flight_requests_per_connection
        if not queue.waiting or not queue.all_in_flight or len(queue.outstanding) >= most:
            return None
        if self.settings.idempotent and self.identity is NO_IDENTITY:
            return None
        head = queue.waiting[0]
        ripe = head.room < 0 or len(queue.waiting) > 1 or self.urgent > 0 or now_ms >= self._ripe_ms(head)
        return head if ripe else None

    def _ripe_ms(self, batch: Batch) -> float:
        return batch.created_ms + self.settings.linger_ms

    def _waits_since_ms(self, queue: PartitionQueue) -> float:
        """Return the time (ms) since which a partition could have been written to, and was not."""
        return max(self._ripe_ms(next(queue.batches())), queue.written_ms)

    def _word_ms(self, queue: PartitionQueue) -> float:
        """Return the time (ms) at which a partition is said to wait, infinity where all is given up."""
        return inf if self.abandoned is not None else self._waiting.due_ms(self._waits_since_ms(queue))

    def _say_waiting(self, queue: PartitionQueue, now_ms: float, leader: Address | None) -> None:
        since_ms = self._waits_since_ms(queue)
        tried_ms, trouble = self._troubles.get(queue.place, (-inf, ""))
        silent = "its leader is not known" if leader is None else f"no answer from {leader}"
        self._waiting.waits(queue.place, since_ms, now_ms, trouble if tried_ms >= since_ms else silent)

    def _next_ms(self, queue: PartitionQueue, now_ms: float) -> float:
        """Return the time (ms) at which something may be due in one queue, infinity for never."""
        next_ms = inf
        for batch in queue.outstanding:
            if not batch.in_flight:
                next_ms = later(now_ms, next_ms, batch.retry_at_ms)
            if self._may_expire(batch):
                next_ms = later(now_ms, next_ms, batch.created_ms + self.settings.delivery_timeout_ms)
        if queue:
            next_ms = later(now_ms, next_ms, self._word_ms(queue))
        if queue.waiting:
            oldest = queue.waiting[0]
            next_ms = later(now_ms, next_ms, self._ripe_ms(oldest))
            next_ms = later(now_ms, next_ms, oldest.created_ms + self.settings.delivery_timeout_ms)
        return next_ms

    def _send(self, queue: PartitionQueue, batch: Batch) -> None:
        if queue.waiting and queue.waiting[0] is batch:
            if not queue.outstanding:
                self._adopt_identity(queue)
            batch.room = -1
            queue.number(batch)
        queue.mark_sent(batch)

    def _adopt_identity(self, queue: PartitionQueue) -> None:
        """Let the queue number from 0 if the producer has another identity than when it last sent.

        Without transactions the epochs are the queue's own: only the producer id is common.
        """
        held, ours = queue.identity, self.identity
        same = held == ours if self.settings.transactional_id else held.producer_id == ours.producer_id
        if not same:
            queue.begin_again(ours)

    def _begun_again(self, queue: PartitionQueue) -> bool:
        """Let what is behind a gap go under the next epoch; False while there is none to have."""
        if self.settings.transactional_id:
            return False
        producer_id, epoch = queue.identity
        if epoch < LAST_EPOCH:
            queue.begin_again(Identity(producer_id, epoch + 1))
        elif self.identity.producer_id not in (producer_id, NO_IDENTITY.producer_id):
            queue.begin_again(self.identity)
        else:
            self.identity = NO_IDENTITY
            return False
        return True

    # -- answers in

    def answered(self, batch: Batch, answer: BatchAnswer, *, now_ms: float) -> None:
        """Carry on from a broker's word about the batch."""
        queue, code = self.queues[batch.place], answer.code
        queue.mark_returned(batch)
        self._now_ms = now_ms
        if batch.outcome is not None:
            return
        if code in WRITTEN:
            queue.drop(batch)
            batch.settle(BatchResult(answer.base_offset, answer.append_time_ms))
            queue.written_ms = now_ms
            self._waiting.moved(batch.place, now_ms, written=True)
            if self._troubles:
                self._troubles.pop(batch.place, None)
        elif code == Code.MESSAGE_TOO_LARGE and self._may_split(batch):
            queue.replace(batch, batch.split())
        elif self._may_retry(queue, batch, code):
            queue.refused(batch, code)
            if code is not Code.OUT_OF_ORDER_SEQUENCE_NUMBER:  # which follows from what came of one before
                self._troubles[batch.place] = now_ms, str(RefusedBy(code, answer.said or ""))
            self._retry_later(batch, now_ms)
        else:
            what = f"{counted(len(batch), 'record')} for {batch.place}"
            self.fail(batch, refusal(code, what, answer.said, doubtful=batch.maybe_written))

    def lost(self, batch: Batch, error: CoterieError, *, now_ms: float) -> None:
        """Carry on without an answer: the batch was written, or it was not."""
        self.queues[batch.place].mark_returned(batch)
        if batch.outcome is not None:
            return
        batch.maybe_written = True
        self._now_ms = now_ms
        self._troubles[batch.place] = now_ms, str(error)
        if self.abandoned is None and batch.tries <= self.settings.retries:
            self._retry_later(batch, now_ms)
        else:
            self.fail(batch, error)

    def hindered(self, error: CoterieError, *, now_ms: float) -> None:
        """Note what keeps everything from being sent, for whose time is over meanwhile."""
        for place in self._busy:
            self._troubles[place] = (now_ms, str(error))

    def _may_split(self, batch: Batch) -> bool:
        """Return whether halves of the batch may go in its stead: not if the whole may be there already."""
        return len(batch) > 1 and not batch.maybe_written and self.abandoned is None

    def _may_retry(self, queue: PartitionQueue, batch: Batch, code: Code) -> bool:
        if self.abandoned is not None:
            return False
        if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.base_sequence >= 0:
            if queue.is_next(batch) and self._came_too_late(batch):
                queue.gap = True
                return True
            # If all before it is written, the log has lost some of that, and the sender is to hear of it.
            return not queue.is_next(batch)
        if code == Code.UNKNOWN_PRODUCER_ID and not self.settings.transactional_id:
            queue.gap = True
            return True
        return code in WORTH_ANOTHER_TRY and batch.tries <= self.settings.retries

    def _came_too_late(self, batch: Batch) -> bool:
        """Return whether there was nothing before a batch that could be lost: one behind it came first.

        A partition that is about to be led refuses the first batch, and takes the second of a producer that
        it does not know by any number. As Java's producer, both go on under the next epoch.
        """
        return batch.base_sequence == 0 and not batch.maybe_written and not self.settings.transactional_id

    def _retry_later(self, batch: Batch, now_ms: float) -> None:
        """Let the batch wait: twice as long each time, a fifth more or less by chance (KIP-580)."""
        grown = self.settings.retry_backoff_ms * 2 ** min(batch.tries - 1, 20) * self._jitter()
        batch.retry_at_ms = now_ms + min(grown, self.settings.retry_backoff_max_ms)

    def fail(self, batch: Batch, error: CoterieError) -> None:
        """Give the batch up, and say so."""
        self._losses.add(len(batch), batch.place, error, self._now_ms)
        self._give_up(batch, error)
        self.failed(error)

    def _give_up(self, batch: Batch, error: CoterieError) -> None:
        batch.room = -1
        queue = self.queues[batch.place]
        queue.failed(batch)
        if not queue:
            self._waiting.moved(batch.place, self._now_ms, written=False)
        batch.settle(BatchResult(error=error))

    def _expire(self, queue: PartitionQueue, now_ms: float) -> None:
        """Fail what is too old. Batches are in the order of their age."""
        limit_ms = self.settings.delivery_timeout_ms
        oldest = next(queue.batches(), None)
        if oldest is None or now_ms < oldest.created_ms + limit_ms:
            return
        tried_ms, trouble = self._troubles.get(queue.place, (-inf, ""))
        for batch in list(queue.batches()):
            if now_ms >= batch.created_ms + limit_ms and self._may_expire(batch):
                why = f"; the last try: {trouble}" if tried_ms >= batch.created_ms else ""
                self.fail(
                    batch, DeliveryTimeout(f"{batch.place}: not acknowledged within {limit_ms} ms{why}")
                )

    def _may_expire(self, batch: Batch) -> bool:
        """Return whether the batch's time may run out now.

        What is in flight then is settled, and its answer says nothing any more; but the end of a transaction
        waits for that.
        """
        return not batch.in_flight or self.settings.transactional_id is None

    def say_all(self) -> None:
        """Say what was given up and not told of yet."""
        self._losses.say_rest()

    def abandon(self, error: CoterieError) -> None:
        """Give up everything that is not in flight, and from now on whatever comes back without success."""
        self.abandoned = error
        for batch in list(self.batches()):
            if not batch.in_flight:
                self._give_up(batch, error)

    @property
    def has_gaps(self) -> bool:
        """Return whether numbers were used that the broker may not have seen: none can follow them."""
        return any(queue.gap for queue in self.queues.values())

    def begin_anew(self, identity: Identity) -> None:
        """Go on after a transaction under this identity; nothing is left of it."""
        self.abandoned = None
        self.identity = identity
        for queue in self.queues.values():
            if queue.gap:
                queue.begin_again(identity)


def later(now_ms: float, one_ms: float, other_ms: float) -> float:
    """Return the earlier of two times, or the first if the other is over."""
    return other_ms if now_ms < other_ms < one_ms else one_ms
