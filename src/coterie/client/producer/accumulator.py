"""What a producer has to send, when, and what follows from each answer: events in, batches out. Pure.

Every record is in one of its lanes' batches until that is settled. An idempotent producer's records end up in
the log once and in the order they were handed over, whatever is lost or refused on the way; a batch that the
sender is told has failed may be missing.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.errors import RETRIABLE
from coterie.client.member.backoff import steady
from coterie.client.net.addresses import Address
from coterie.client.producer.batcher import NOBODY, Batch, Identity, Memory, Outcome
from coterie.client.producer.errors import DeliveryTimeout, refusal
from coterie.client.producer.partition_queue import LAST_EPOCH, Lane
from coterie.client.producer.partitioner import BrokerWaits
from coterie.client.producer.settings import ProducerSettings

log = logging.getLogger("coterie.client")

# So long losses of one kind are counted before they are told of again.
QUIET_MS = 10_000
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


class Answer(NamedTuple):
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


class Producing:
    """All lanes of a producer, under one identity."""

    def __init__(self, settings: ProducerSettings, *, jitter: Callable[[], float] = steady) -> None:
        self.settings = settings
        self._jitter = jitter
        self.waits = BrokerWaits[Address](
            availability_timeout_ms=settings.partitioner_availability_timeout_ms
        )
        """Which brokers take nothing, though there is something for them (PT-8)."""
        self.lanes: dict[TopicPartition, Lane] = {}
        self.memory = Memory(settings.buffer_memory)
        self.identity = NOBODY
        """What the broker gave the producer, once it has."""
        self.urgent = 0
        """How many wait for everything to be sent: batches do not linger then."""
        self.abandoned: CoterieError | None = None
        """Why nothing is sent any more, or not until the transaction is aborted."""
        self.failed: Callable[[CoterieError], object] = bool
        """Is told of each batch that fails."""
        self.may_go: Callable[[TopicPartition], bool] = lambda place: True
        """Whether a partition may be written to now; in a transaction it may have to be added before."""
        self._busy: dict[TopicPartition, Lane] = {}
        self._troubles: dict[TopicPartition, tuple[float, str]] = {}
        """When the last try was no success, and what came of it."""
        self._losses = Losses()
        self._now_ms = 0.0

    # -- records in

    def lane(self, place: TopicPartition) -> Lane:
        """Return the partition's lane."""
        lane = self.lanes.get(place)
        if lane is None:
            lane = self.lanes[place] = Lane(place)
        return lane

    def opened(self, lane: Lane, *, size: int, now_ms: float) -> Batch | None:
        """Return a batch with room for such a record, the open one or a new one; None: memory is full."""
        held = lane.open_batch
        if held is not None:
            if held.room >= size:
                return held
            held.room = -1
        room = max(size, self.settings.batch_size)
        if not self.memory.take(room):
            return None
        batch = Batch(lane.place, size=room, now_ms=now_ms)
        self._queue(lane, batch, room)
        return batch

    def accepted(self, lane: Lane, batch: Batch) -> bool:
        """Queue a batch that is whole already; False: memory is full."""
        if not self.memory.take(batch.size):
            return False
        held = lane.open_batch
        if held is not None:
            held.room = -1
        self._queue(lane, batch, batch.size)
        return True

    def _queue(self, lane: Lane, batch: Batch, reserved: int) -> None:
        batch.waiters.append(lambda: self.memory.give_back(reserved))
        lane.waiting.append(batch)
        lane.used_ms = batch.created_ms
        self._busy[lane.place] = lane

    def batches(self) -> Iterator[Batch]:
        """Yield all batches that are not settled."""
        for lane in self._busy.values():
            yield from lane.batches()

    @property
    def needs_identity(self) -> bool:
        """Return whether there is something to send for which a producer id has to be asked for first."""
        return self.settings.idempotent and self.identity is NOBODY and any(self._busy.values())

    # -- batches out

    def collect(
        self,
        now_ms: float,
        *,
        leader_of: Callable[[TopicPartition], Address | None],
        most: Callable[[Address], int],
    ) -> Collected:
        """Return a request's worth of batches for each leader that takes one, and settle what is too old.

        `most` says how many bytes may go to a leader now. The batches count as flying from now on.
        """
        going: dict[Address, list[Batch]] = {}
        room: dict[Address, int] = {}
        lost: set[str] = set()
        more = False
        self._now_ms = now_ms
        for place, lane in list(self._busy.items()):
            self._expire(lane, now_ms)
            batch = self._due(lane, now_ms)
            if batch is None:
                if not lane:
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
                self._send(lane, batch)
                room[leader] -= batch.filled
                going.setdefault(leader, []).append(batch)
                self._busy[place] = self._busy.pop(place)  # the others come first next time
            more = more or bool(lane.waiting)
        self._losses.say_due(now_ms)
        return Collected(going, lost, more and bool(going))

    def next_ms(self, now_ms: float) -> float:
        """Return when something is to be done if nothing happens before, infinity for never.

        What was due at `now_ms` counts as done: it is the time of the last `collect`.
        """
        lanes = min((self._next_ms(lane, now_ms) for lane in self._busy.values()), default=inf)
        return min(lanes, self._losses.due_ms)

    def _due(self, lane: Lane, now_ms: float) -> Batch | None:
        """Return the batch that the lane may send now."""
        if self.abandoned is not None or (lane.resolved and not self._begun_again(lane)):
            return None
        again = lane.again(now_ms)
        if again is not None:
            return again
        most = self.settings.max_in_flight_requests_per_connection
        if not lane.waiting or not lane.all_fly or len(lane.outstanding) >= most:
            return None
        if self.settings.idempotent and self.identity is NOBODY:
            return None
        head = lane.waiting[0]
        ripe = head.room < 0 or len(lane.waiting) > 1 or self.urgent > 0 or now_ms >= self._ripe_ms(head)
        return head if ripe else None

    def _ripe_ms(self, batch: Batch) -> float:
        return batch.created_ms + self.settings.linger_ms

    def _next_ms(self, lane: Lane, now_ms: float) -> float:
        """Return the same for one lane."""
        next_ms = inf
        for batch in lane.outstanding:
            if not batch.flying:
                next_ms = later(now_ms, next_ms, batch.retry_at_ms)
            if self._may_expire(batch):
                next_ms = later(now_ms, next_ms, batch.created_ms + self.settings.delivery_timeout_ms)
        if lane.waiting:
            oldest = lane.waiting[0]
            next_ms = later(now_ms, next_ms, self._ripe_ms(oldest))
            next_ms = later(now_ms, next_ms, oldest.created_ms + self.settings.delivery_timeout_ms)
        return next_ms

    def _send(self, lane: Lane, batch: Batch) -> None:
        if lane.waiting and lane.waiting[0] is batch:
            if not lane.outstanding:
                self._adopt_identity(lane)
            batch.room = -1
            lane.number(batch)
        lane.departs(batch)

    def _adopt_identity(self, lane: Lane) -> None:
        """Let the lane number from 0 if the producer has another identity than when it last sent.

        Without transactions the epochs are the lane's own: only the producer id is common.
        """
        held, ours = lane.identity, self.identity
        same = held == ours if self.settings.transactional_id else held.producer_id == ours.producer_id
        if not same:
            lane.begin_again(ours)

    def _begun_again(self, lane: Lane) -> bool:
        """Let what is behind a gap go under the next epoch; False while there is none to have."""
        if self.settings.transactional_id:
            return False
        producer_id, epoch = lane.identity
        if epoch < LAST_EPOCH:
            lane.begin_again(Identity(producer_id, epoch + 1))
        elif self.identity.producer_id not in (producer_id, NOBODY.producer_id):
            lane.begin_again(self.identity)
        else:
            self.identity = NOBODY
            return False
        return True

    # -- answers in

    def answered(self, batch: Batch, answer: Answer, *, now_ms: float) -> None:
        """Carry on from a broker's word about the batch."""
        lane, code = self.lanes[batch.place], answer.code
        lane.returns(batch)
        self._now_ms = now_ms
        if batch.outcome is not None:
            return
        if code in WRITTEN:
            lane.drop(batch)
            batch.settle(Outcome(answer.base_offset, answer.append_time_ms))
            if self._troubles:
                self._troubles.pop(batch.place, None)
        elif code == Code.MESSAGE_TOO_LARGE and self._may_split(batch):
            lane.replace(batch, batch.split())
        elif self._may_retry(lane, batch, code):
            lane.refused(batch, code)
            if code is not Code.OUT_OF_ORDER_SEQUENCE_NUMBER:  # which follows from what came of one before
                self._troubles[batch.place] = now_ms, str(RefusedBy(code, answer.said or ""))
            self._retry_later(batch, now_ms)
        else:
            what = f"{len(batch)} records for {batch.place}"
            self.fail(batch, refusal(code, what, answer.said, doubtful=batch.doubt))

    def lost(self, batch: Batch, error: CoterieError, *, now_ms: float) -> None:
        """Carry on without an answer: the batch was written, or it was not."""
        self.lanes[batch.place].returns(batch)
        if batch.outcome is not None:
            return
        batch.doubt = True
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
        return len(batch) > 1 and not batch.doubt and self.abandoned is None

    def _may_retry(self, lane: Lane, batch: Batch, code: Code) -> bool:
        if self.abandoned is not None:
            return False
        if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.base_sequence >= 0:
            if lane.is_next(batch) and self._came_too_late(batch):
                lane.gap = True
                return True
            # If all before it is written, the log has lost some of that, and the sender is to hear of it.
            return not lane.is_next(batch)
        if code == Code.UNKNOWN_PRODUCER_ID and not self.settings.transactional_id:
            lane.gap = True
            return True
        return code in WORTH_ANOTHER_TRY and batch.tries <= self.settings.retries

    def _came_too_late(self, batch: Batch) -> bool:
        """Return whether there was nothing before a batch that could be lost: one behind it came first.

        A partition that is about to be led refuses the first batch, and takes the second of a producer that
        it does not know by any number. As Java's producer, both go on under the next epoch.
        """
        return batch.base_sequence == 0 and not batch.doubt and not self.settings.transactional_id

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
        self.lanes[batch.place].failed(batch)
        batch.settle(Outcome(error=error))

    def _expire(self, lane: Lane, now_ms: float) -> None:
        """Fail what is too old. Batches are in the order of their age."""
        limit_ms = self.settings.delivery_timeout_ms
        oldest = next(lane.batches(), None)
        if oldest is None or now_ms < oldest.created_ms + limit_ms:
            return
        tried_ms, trouble = self._troubles.get(lane.place, (-inf, ""))
        for batch in list(lane.batches()):
            if now_ms >= batch.created_ms + limit_ms and self._may_expire(batch):
                why = f"; the last try: {trouble}" if tried_ms >= batch.created_ms else ""
                self.fail(
                    batch, DeliveryTimeout(f"{batch.place}: not acknowledged within {limit_ms} ms{why}")
                )

    def _may_expire(self, batch: Batch) -> bool:
        """Return whether the batch's time may run out now.

        What flies then is settled, and its answer says nothing any more; but the end of a transaction waits
        for that.
        """
        return not batch.flying or self.settings.transactional_id is None

    def say_all(self) -> None:
        """Say what was given up and not told of yet."""
        self._losses.say_rest()

    def abandon(self, error: CoterieError) -> None:
        """Give up everything that does not fly, and from now on whatever comes back without success."""
        self.abandoned = error
        for batch in list(self.batches()):
            if not batch.flying:
                self._give_up(batch, error)

    @property
    def has_gaps(self) -> bool:
        """Return whether numbers were used that the broker may not have seen: none can follow them."""
        return any(lane.gap for lane in self.lanes.values())

    def begin_anew(self, identity: Identity) -> None:
        """Go on after a transaction under this identity; nothing is left of it."""
        self.abandoned = None
        self.identity = identity
        for lane in self.lanes.values():
            if lane.gap:
                lane.begin_again(identity)


class Losses:
    """Tells of records that were given up: of the first at once, of more of the kind together.

    What stops one batch stops those behind it, and a line for each would hide what it says.
    """

    def __init__(self) -> None:
        self._told: dict[object, Told] = {}
        """By the class of what stopped them and its code, if there is one: there are only so many."""

    def add(self, count: int, place: TopicPartition, error: CoterieError, now_ms: float) -> None:
        """Tell of so many records, or count them."""
        kind = type(error), getattr(error, "code", None)
        told = self._told.get(kind)
        if told is not None and now_ms < told.at_ms + QUIET_MS:
            told.more, told.last = told.more + count, error
            return
        if told is not None:
            told.say_rest()
        log.warning("%d records for %s were not acknowledged: %s", count, place, error)
        self._told[kind] = Told(now_ms, error)

    @property
    def due_ms(self) -> float:
        """When those that were counted are to be told of, infinity where there are none."""
        return min((told.at_ms + QUIET_MS for told in self._told.values() if told.more), default=inf)

    def say_due(self, now_ms: float) -> None:
        """Tell of those that were counted for long enough."""
        for told in self._told.values():
            if told.more and now_ms >= told.at_ms + QUIET_MS:
                told.say_rest()
                told.at_ms = now_ms

    def say_rest(self) -> None:
        """Tell of those that were counted."""
        for told in self._told.values():
            told.say_rest()


@dataclass(slots=True)
class Told:
    """When losses of one kind were told of, and how many there were since."""

    at_ms: float
    last: CoterieError
    more: int = 0

    def say_rest(self) -> None:
        """Tell of those that were counted."""
        if self.more:
            log.warning("%d more records were not acknowledged, the last: %s", self.more, self.last)
        self.more = 0


def later(now_ms: float, one_ms: float, other_ms: float) -> float:
    """Return the earlier of two times, or the first if the other is over."""
    return other_ms if now_ms < other_ms < one_ms else one_ms
