"""A broker as a member of its cluster: what its life wants done, is done. Without input or output.

`BrokerLifecycle` decides; this sends its statements, feeds the answers back, keeps its sessions with the
engine and its one timer, and tells `Hosting` what it may serve. Beside that it has metadata changed on behalf
of clients, gives partitions back to their preferred leaders, and hands them over when it leaves.

One session is the broker's membership: heartbeats alone. One reads the metadata, and one is for what may have
to wait for others: the changes. What waits too long is given up with its session. An image is applied before
anything that follows from it is done.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Protocol

from coterie.base.plain import counted
from coterie.broker.cluster.actions import (
    Action,
    AwaitEngine,
    Connect,
    Drain,
    Exit,
    Fence,
    HandOver,
    Resume,
    Serve,
    Suspend,
)
from coterie.broker.cluster.changes import (
    Change,
    Changed,
    GiveLeadership,
    NotChanged,
    PartitionKey,
    Proposed,
    TakeOver,
)
from coterie.broker.cluster.engine import MetadataEngine, MetadataSession
from coterie.broker.cluster.giving_back import GivingBack
from coterie.broker.cluster.image import Delta, Image, PartitionRow
from coterie.broker.cluster.lifecycle import BrokerLifecycle, Phase
from coterie.broker.cluster.made import MadeChanges, taking_ids
from coterie.broker.cluster.statements import (
    Answer,
    BrokerHeartbeat,
    HeartbeatAnswer,
    ProducerIds,
    ReadDelta,
    ReserveProducerIds,
    Statement,
)

log = logging.getLogger("coterie.broker")

OTHER_DATABASE = (
    "the database is of another history: another server has taken over, or a backup was brought back; all"
    " metadata are read anew"
)
OTHER_CLUSTER = (
    "the database is that of cluster {found} now, and this broker is of cluster {own}: it has written nothing"
    " there. Bring the database of cluster {own} back to its address (pg_restore, ALTER DATABASE ... RENAME"
    " TO), or give the address where it is, and start this broker again; started as all stands, it joins"
    " cluster {found}"
)
DEAD = "broker %d has shown no sign of life for too long, and is taken for dead: others lead what it led"
AWAY = (
    "the database answers no heartbeat for now: for up to %d s it is waited for, since others can lead at"
    " once only then; a second signal ends this broker"
)
ANSWER_WITHIN_MS = 2_500
"""How long a statement is waited for, from when those before it are answered: longer than an engine has it
wait for one lock that somebody keeps (`LOCK_TIMEOUT_MS` of PostgreSQL's), whose refusal is an answer. One
that takes longer otherwise, as it meets several such locks, costs the session.
"""
RETRY_MS = 100
NEVER = 1 << 62
FAULT = "a fault in the broker: what it serves is not to be relied on"


class Hosting(Protocol):
    """What a broker serves, and to whom. Nothing here fails: an error is a fault, and ends the process."""

    def apply(self, before: Image, after: Image) -> None:
        """Go by another image: who leads, which topics there are."""
        ...

    def is_settled(self) -> bool:
        """Return whether all is loaded that groups and transactions wait for, by the image."""
        ...

    def weigh(self, partition: PartitionRow) -> int:
        """Return the size of all that groups or transactions have written to a partition that is led, which
        whoever leads it next has to read; 0 where they are not in it, and `GOES_LAST` for their story's.
        """
        ...

    def serve(self, broker_epoch: int) -> None:
        """Lead what the image says, in this broker epoch."""
        ...

    def suspend(self, why: str) -> None:
        """Answer that others may lead; let timers stand still."""
        ...

    def resume(self, *, anew: bool) -> None:
        """Go on where it was suspended. `anew` says that the engine may have gone back."""
        ...

    def fence(self) -> None:
        """Lead nothing any more."""
        ...

    def drain(self, done: Callable[[], None]) -> None:
        """Decide nothing more, and have `done` called once what is decided has landed."""
        ...

    def release(self, partitions: Sequence[PartitionKey], done: Callable[[], None]) -> None:
        """Decide nothing more in some partitions, until they are led in another epoch; `done` as above."""
        ...

    def exit(self, sentence: str) -> None:
        """End the process; the sentence says why, "" if it was asked to."""
        ...


@dataclass(slots=True, eq=False)
class _Sent:
    """A statement on a session."""

    statement: Statement
    answered: Callable[[Answer | None], None]


class _Statements:
    """A session for statements, opened when there is one to send; what waits too long ends it."""

    def __init__(self, engine: MetadataEngine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._session: MetadataSession | None = None
        self._attempt = 0
        self._opening = False
        self._sent: deque[_Sent] = deque()  # oldest first
        self._by_ms = NEVER  # by when the oldest has to be answered

    @property
    def next_ms(self) -> int | None:
        """When the oldest is given up."""
        return self._by_ms if self._sent else None

    def send(self, statement: Statement, answered: Callable[[Answer | None], None]) -> None:
        """Send a statement; `answered` is called once, with None if what came of it is not known."""
        sent = _Sent(statement, answered)
        if not self._sent:
            self._wait_for_oldest()
        self._sent.append(sent)
        if self._session is not None:
            self._session.send(statement, partial(self._answered, sent))
        elif not self._opening:
            self._open()

    def _open(self) -> None:
        self._attempt += 1
        self._opening = True
        attempt = self._attempt

        def opened(session: MetadataSession, _: str) -> None:
            if attempt != self._attempt:
                session.close()
                return
            self._opening, self._session = False, session
            self._wait_for_oldest()  # what it took to connect is not the statement's
            for sent in [*self._sent]:
                session.send(sent.statement, partial(self._answered, sent))

        self._engine.connect(opened=opened, ended=lambda: self._ended(attempt))

    def _answered(self, sent: _Sent, answer: Answer | None) -> None:
        if sent in self._sent:
            self._sent.remove(sent)
            self._wait_for_oldest()
            sent.answered(answer)

    def _wait_for_oldest(self) -> None:
        """Begin to wait: nothing is before the oldest any more."""
        self._by_ms = self._clock() + ANSWER_WITHIN_MS

    def _ended(self, attempt: int) -> None:
        if attempt == self._attempt:
            self.close()

    def give_up_late(self, now_ms: int) -> None:
        """End the session if the oldest statement waits for too long."""
        if self._sent and self._by_ms <= now_ms:
            self.close()

    def close(self) -> None:
        """End the session: what was sent has no answer."""
        self._attempt += 1
        self._opening = False
        session, self._session = self._session, None
        waiting, self._sent = self._sent, deque()
        if session is not None:
            session.close()
        for sent in waiting:
            sent.answered(None)


class ClusterMember:
    """One broker's part in the cluster, from its start to its exit.

    `clock` is monotonic; `arm` has `tick` called at a time, and forgets the time before. The owner calls
    `begin`, `tick` and `terminate`, and `look_at_clock` before anybody is answered and before any timer.
    """

    def __init__(
        self,
        lifecycle: BrokerLifecycle,
        engine: MetadataEngine,
        hosting: Hosting,
        *,
        clock: Callable[[], int],
        arm: Callable[[int | None], None],
        serving: Callable[[], None] = lambda: None,
        cluster_id: str | None = None,
    ) -> None:
        """`serving` is called when a broker epoch has begun and the others know of it, or some time later.
        Without a `cluster_id` the cluster is that which is found first.
        """
        self.lifecycle = lifecycle
        self.history: str | None = None
        """That of the engine whose metadata the broker goes by; None before it has connected."""
        self._cluster_id = cluster_id
        self._engine = engine
        self._hosting = hosting
        self._clock = clock
        self._arm = arm
        self._serving = serving
        self._reads = _Statements(engine, clock)
        self._changes = _Statements(engine, clock)
        self._membership: MetadataSession | None = None
        self._attempts = 0  # to connect
        self._attempt = 0  # the one that counts, 0 for none
        self._serves_until_ms = NEVER  # where it serves
        self._applied = lifecycle.image
        self.giving = GivingBack(lifecycle.broker_id, 0)
        """What the broker has offered to preferred leaders."""
        self._give = False  # whether something may have changed of what is to be given back
        self._gave_ms = -1
        self._given: Counter[int] = Counter()  # partitions by who was given them, since that was said
        self._retry_ms: int | None = None
        self._settled: tuple[Image | None, bool]  # by which it was looked at last, whether all was loaded
        self._settled = (None, False)
        self._made = MadeChanges(clock)
        self._events: deque[Callable[[int], Sequence[Action]]] = deque()
        self._acting = False
        self._failed = False

    # -- what its owner says and asks

    def begin(self) -> None:
        """Begin the broker's life."""
        self.tick()

    def tick(self) -> None:
        """Look at the clock, and do what is due."""
        now_ms = self._clock()
        self._reads.give_up_late(now_ms)
        self._changes.give_up_late(now_ms)
        self._happen(self.lifecycle.tick)

    def terminate(self) -> None:
        """Leave the cluster, and exit."""
        self._happen(self.lifecycle.terminate)

    def refused(self, broker_epoch: int) -> None:
        """Take note that an append of an epoch was refused, or that what it has led is not to be relied on:
        the broker registers anew.
        """
        self._happen(lambda now_ms: self.lifecycle.refused(broker_epoch, now_ms))

    def act(self, do: Callable[[], None]) -> None:
        """Do something that belongs to the broker's life: a fault in it ends the process."""

        def acted(_: int) -> Sequence[Action]:
            do()
            return ()

        self._happen(acted)

    def look_at_clock(self) -> None:
        """See, before anybody is answered, whether the broker may still serve: the process may have been
        stopped for a while. Of timers and sockets it does not know which come first when it goes on.
        """
        if self._clock() >= self._serves_until_ms:
            self.tick()

    @property
    def image(self) -> Image:
        """The metadata that the broker goes by."""
        return self._applied

    def propose(self, change: Change, answered: Proposed) -> None:
        """Have metadata changed; `answered` is called once the own image shows it, None if what came of it is
        not known. What makes topics is answered when all brokers know of them, or some time later.
        """
        taking = self._made.taking(change, answered, self._change_made)
        self._changes.send(change, taking)
        self._arm_next()

    def _change_made(self, version: int) -> None:
        self._happen(lambda now_ms: self.lifecycle.notified(version, now_ms))

    def reserve_producer_ids(self, answered: Callable[[ProducerIds | None], None]) -> None:
        """Have a block of producer ids that no other broker gets; None if there is none to be had now."""
        self._changes.send(ReserveProducerIds(), taking_ids(answered))
        self._arm_next()

    # -- events and what they lead to

    def _happen(self, event: Callable[[int], Sequence[Action]]) -> None:
        """Have an event come to the broker's life, behind those that are being acted on.

        A fault on the way ends the process: what was left undone may be that it stops serving.
        """
        if self._failed:
            return
        self._events.append(event)
        if self._acting:
            return
        self._acting = True
        try:
            while self._events:
                actions = self._events.popleft()(self._clock())
                self._apply_image()
                for action in actions:
                    self._carry_out(action)
            self._acting = False
            self._serves_until_ms = self.lifecycle.serves_until_ms or NEVER
            self._look_at_settled()
            self._give_back()
            if self._made:
                self._made.answer(own=self._applied.version, all_=self.lifecycle.seen.by_all)
            self._await_seen()
            self._arm_next()
        except Exception:
            self._failed = True
            log.exception("the broker's membership has failed")
            self._exit(FAULT)

    def _look_at_settled(self) -> None:
        """See whether all is loaded that it is to lead by the image."""
        image = self._applied  # and not its version: an engine that has gone back gives that once more
        if self._settled == (image, True):
            return
        before, self._settled = self._settled, (image, self._hosting.is_settled())
        if self._settled != before:
            all_ = self._settled[1]
            self._happen(lambda now_ms: self.lifecycle.settled(now_ms, all_=all_))

    def _await_seen(self) -> None:
        # Who does not give has not looked at what it gave either: the engine may have gone back meanwhile.
        awaited = max(self._made.awaited, self.giving.awaited if self._gives else 0)
        if awaited > self.lifecycle.seen.awaited:
            self._happen(lambda now_ms: self.lifecycle.await_seen(awaited, now_ms))

    def _apply_image(self) -> None:
        before, after = self._applied, self.lifecycle.image
        if after is not before:
            self._applied = after
            self._give = True
            self._hosting.apply(before, after)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Connect():
                self._connect()
            case BrokerHeartbeat():
                self._send_heartbeat(action)
            case Serve(broker_epoch):
                self.giving, self._give = GivingBack(self.lifecycle.broker_id, broker_epoch), True
                self._hosting.serve(broker_epoch)
                self._made.await_seen(broker_epoch, self._serving)
            case Suspend(why):
                self._hosting.suspend(why)
            case Resume(anew):
                self._resume(anew=anew)
            case Fence():
                self._hosting.fence()
            case HandOver():
                log.info("leaving: groups and transactions are handed over, one partition after another")
                self._give = True
            case Drain():
                self._hosting.drain(lambda: self._happen(self.lifecycle.drained))
            case AwaitEngine(within_ms):
                log.warning(AWAY, ceil(within_ms / 1_000))
            case Exit(sentence):
                self._exit(sentence)
            case _:
                self._send(action)

    def _end_for(self, sentence: str) -> None:
        self._happen(lambda now_ms: self.lifecycle.end(sentence, now_ms))

    def _resume(self, *, anew: bool) -> None:
        self._give = True
        if anew:
            self.giving.forget_answers()
        self._hosting.resume(anew=anew)

    def _exit(self, sentence: str) -> None:
        self._say_given()
        self._attempt = 0
        if self._membership is not None:
            self._membership.close()
        self._reads.close()
        self._changes.close()
        self._hosting.exit(sentence)

    # -- sessions

    def _connect(self) -> None:
        self._attempts += 1
        attempt = self._attempt = self._attempts
        before, self._membership = self._membership, None
        if before is not None:
            before.close()

        def opened(session: MetadataSession, history: str) -> None:
            if self._membership is not None or not self._attempt:
                session.close()
                return
            if self._cluster_id not in (None, session.cluster_id):
                session.close()
                self._end_for(OTHER_CLUSTER.format(found=session.cluster_id, own=self._cluster_id))
                return
            self._cluster_id = session.cluster_id
            # Of a slow database the attempt before this one may come first: thrown away, none would do.
            self._membership, self._attempt = session, attempt
            if self.history not in (None, history):
                log.warning(OTHER_DATABASE)
                self._made.give_up()  # it is not this engine that has made it
            self.history = history
            self._happen(lambda now_ms: self.lifecycle.connected(history, now_ms))

        def ended() -> None:
            if attempt == self._attempt:
                self._membership = None
                self._happen(self.lifecycle.disconnected)

        def notified(version: int) -> None:
            if attempt == self._attempt:
                self._happen(lambda now_ms: self.lifecycle.notified(version, now_ms))

        self._engine.connect(opened=opened, ended=ended, notified=notified)

    def _send_heartbeat(self, heartbeat: BrokerHeartbeat) -> None:
        def answered(answer: Answer | None) -> None:
            if isinstance(answer, HeartbeatAnswer):
                awaits = self.lifecycle.hands_over or self.giving.awaited
                if awaits and (self._retry_ms or 0) <= self._clock():
                    self._give = True  # it says who serves what it was handed over
                self._happen(lambda now_ms: self.lifecycle.heartbeat_answered(heartbeat, answer, now_ms))

        if self._membership is not None:
            self._membership.send(heartbeat, answered)

    def _send(self, statement: Change | ReadDelta) -> None:
        lifecycle = self.lifecycle
        if not isinstance(statement, ReadDelta):
            log.debug("asks the engine for %s", statement)

        def answered(answer: Answer | None) -> None:
            if not isinstance(statement, ReadDelta):
                log.debug("the engine answers %s with %s", type(statement).__name__, answer)
            if isinstance(answer, Delta) and isinstance(statement, ReadDelta):
                self._happen(lambda now_ms: lifecycle.delta_read(statement, answer, now_ms))
            elif isinstance(answer, Changed | NotChanged) and not isinstance(statement, ReadDelta):
                if isinstance(statement, TakeOver) and isinstance(answer, Changed):
                    log.warning(DEAD, statement.broker_id)  # the image may have it as one that has left
                self._happen(lambda now_ms: lifecycle.change_answered(statement, answer, now_ms))
            else:
                self._happen(lambda now_ms: lifecycle.unanswered(statement, now_ms))

        (self._reads if isinstance(statement, ReadDelta) else self._changes).send(statement, answered)

    # -- giving back

    def _give_back(self) -> None:
        """Give back what is due. It takes a look at all partitions: only when something may have changed."""
        giving, now_ms = self.giving, self._clock()
        if not self._gives or not (self._give or self._is_time_to_give(now_ms)):
            return
        self._give, self._gave_ms = False, now_ms
        if self.lifecycle.hands_over:
            offers = giving.to_hand_over(self._applied, self.lifecycle.seen.served, self._hosting.weigh)
        else:
            offers = giving.due(self._applied, now_ms, self.lifecycle.seen.served, self._hosting.weigh)
        for offer in offers:
            self._hosting.release(offer.partitions, partial(self._offer, giving, offer))
        if not giving.is_under_way:
            self._say_given()
        if giving.all_handed_over and self.lifecycle.hands_over:
            self._happen(self.lifecycle.handed_over)

    @property
    def _gives(self) -> bool:
        """Whether it gives anything away by itself."""
        return self.lifecycle.phase is Phase.LIVE or self.lifecycle.hands_over

    def _is_time_to_give(self, now_ms: int) -> bool:
        at_ms = self._give_next_ms
        return at_ms is not None and at_ms <= now_ms

    @property
    def _give_next_ms(self) -> int | None:
        """When there may be something to give back; what was due at the last look is offered in its turn."""
        times = [at_ms for at_ms in (self.giving.next_ms, self._retry_ms) if at_ms is not None]
        return min((at_ms for at_ms in times if at_ms > self._gave_ms), default=None)

    def _offer(self, giving: GivingBack, offer: GiveLeadership) -> None:
        def answered(answer: Answer | None) -> None:
            log.debug("the engine answers GiveLeadership with %s", answer)
            giving.answered(offer, answer if isinstance(answer, Changed | NotChanged) else None)
            if isinstance(answer, Changed):
                if offer.to != offer.broker_id:  # else it takes back what came to nothing
                    self._given[offer.to] += len(offer.partitions)
                self._change_made(answer.version)
            else:
                self._retry_ms = self._clock() + RETRY_MS
                self._arm_next()

        log.debug("asks the engine for %s", offer)
        self._changes.send(offer, answered)
        self._arm_next()

    def _say_given(self) -> None:
        """Say in the log what was given away, in one line for each broker: it goes a few at a time."""
        for broker_id, count in sorted(self._given.items()):
            log.info("gave %s to broker %d", counted(count, "partition"), broker_id)
        self._given.clear()

    def _arm_next(self) -> None:
        if self._acting:
            return
        times = [self.lifecycle.next_ms, self._reads.next_ms, self._changes.next_ms, self._made.next_ms]
        if self._gives:
            times.append(self._give_next_ms)
        if self.lifecycle.phase is not Phase.ENDED:
            self._arm(min((at_ms for at_ms in times if at_ms is not None), default=None))
