"""What the shells around both cores have in common: a partition is loaded, written and given away. Which
partitions of a topic there are here is in `topic_shards`.

What comes in while the event loop answers one round of requests goes out as one batch (P-9, RT-5), and
replies wait for it. When the append fails, the facts of the batch are undone, newest first, and the core says
what everybody is answered.

A log may take a batch now and say later whether it lasts: until then the batch is in flight, and the next are
gathered and appended behind it. They land in order, or none of them does: then all are undone, newest first,
and the core is asked about their commands in the order in which they came.

Whoever is answered may have sent the next request already, and it is answered within the answering. So
nobody is told anything between a decision and the gathering of its records, nor between the append of a batch
and the beginning of the next: what may go waits until then (`_let_go`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.base.reasons import mark
from coterie.broker.runtime.pieces import Until
from coterie.storage.log.contract import AppendRefused, StorageFailed
from coterie.wire.records.batches import GrowingBatch, weight_of

if TYPE_CHECKING:
    from coterie.broker.runtime.pieces import Pieces
    from coterie.broker.runtime.purgatory import Ring
    from coterie.broker.runtime.topic_shards import ShardsOfTopic
    from coterie.coordinator.machine import Core, Decision, Reply
    from coterie.storage.kind import Log, Readable
    from coterie.storage.log.contract import Appended

log = logging.getLogger("coterie.broker")

LOAD_READ_BYTES = 1 << 20
READ_AGAIN_MS = 500
BATCH_OVERHEAD_BYTES = 1 << 10

# Takes a core's answer, or the code that sends who waited for it elsewhere.
Deliver = Callable[[Any], None]


C = TypeVar("C")


class Tried(NamedTuple):
    """A decision whose facts are applied, the time by which its records are dated, and, of groups, those that
    it moves as they were before it.
    """

    decision: Decision
    wall_ms: int
    observer: Any = None


@dataclass(slots=True, eq=False)
class PendingBatch(Generic[C]):
    """What is decided and waits for the append of its records, or for that of those before it."""

    commands: list[C] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    held: list[Callable[[], None]] = field(default_factory=list)
    """What is asked again once this lasts."""
    appended: bool = False
    mark: int = 0
    """The place in the core's journal behind it."""


P = TypeVar("P", bound=PendingBatch[Any])


class HostedShard(ABC, Generic[C, P]):
    """One partition of an internal topic: its core, its log, and what is decided and does not last yet.

    It takes commands of the type `C`, and gathers what they lead to in a `P`.
    """

    batches: ClassVar[type[PendingBatch[Any]]]
    """The type `P`."""
    LOADING, ACTIVE, FAILED, AWAY = "loading", "active", "failed", "away"
    SUSPENDED, DRAINING = "suspended", "draining"
    HALTED = (SUSPENDED, DRAINING)
    """In which nothing is decided, and what is held stays."""

    def __init__(
        self, owner: ShardsOfTopic[Any], core: Core[Any, Any], partition: int, *, status: str, epoch: int
    ) -> None:
        self.parts = owner.parts
        self.clock = owner.parts.clock
        self.purgatory = owner.parts.purgatory
        self.scheduler = owner.parts.scheduler
        self.replica_manager = owner.parts.replica_manager
        self.topic = owner.topic
        self.partition = partition
        self.epoch = epoch  # in which this node leads the partition; markers carry it
        self.status = status
        self.opened = False  # whether its log is there, in that epoch
        self.begun = False  # whether it has been loaded
        self.shard = core
        self.calls: dict[int, Deliver] = {}
        self.records = GrowingBatch()
        self._watched = TopicPartition(owner.topic, partition)
        self.pending: P = self.batches()  # type: ignore[assignment]
        self._numbers = owner.numbers
        self._ring: Ring = self.expire  # one for all timers: there may be a hundred thousand
        self._mark = core.journal.mark()  # behind what is appended
        self._in_flight: deque[P] = deque()  # what is appended and has not landed, oldest first
        self._scheduled = False
        self._due: deque[P] = deque()  # what lasts and lets others go, oldest first
        self._letting_go = False
        self._stood_ms = 0  # for how long the core's clock has stood still
        self._halted_ms = 0
        self._put_off: list[Callable[[], None]] = []  # until something is decided again
        self._refusals = 0  # of the log, since a batch lasted
        self._last_refusal = Code.NONE

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def log(self) -> Log:
        """The log behind this shard."""
        return self.replica_manager.logs[self._watched]

    # -- live

    def unavailable(self) -> Code:
        """Return why this shard answers nobody, NONE when it does (P-7)."""
        if self.status == self.ACTIVE:
            return Code.NONE
        loading = self.status in (self.LOADING, self.DRAINING)
        return Code.COORDINATOR_LOAD_IN_PROGRESS if loading else Code.NOT_COORDINATOR

    def new_call(self, deliver: Deliver) -> int:
        """Return the number under which the core answers; `deliver` is called with the answer, once."""
        call = next(self._numbers)
        self.calls[call] = deliver
        return call

    def execute(self, command: C) -> Decision | None:
        """Decide, apply, gather; replies leave with the batch, or at once if there is nothing to wait for.

        Return the decision, None if it was a mistake.
        """
        decision = self._gather(command)
        if decision is not None:
            self._go_on()
        return decision

    def _gather(self, command: C) -> Decision | None:
        """Decide and apply, and gather the records; let nobody go. Return the decision as `execute` does."""
        try:
            return self._perform(command, self.clock.now_ms() - self._stood_ms)
        except Exception:  # our own mistake: this shard is no longer to be trusted, the others are
            log.exception("%s is taken out of service\n%s", self, self._recount(command))
            self.fence()
            return None

    def _perform(self, command: C, now_ms: int) -> Decision:
        """Decide and apply. Records for which the batch has no room fail alone, if they do (RT-5)."""
        before = self.shard.journal.mark()
        tried = self._try(command, now_ms)
        while self.records.count and not self._fits(tried.decision.records):
            self.shard.take_back(before)
            self._append_gathered()  # which may fail, and change what is to be decided
            before = self.shard.journal.mark()
            tried = self._try(command, now_ms)
        self.pending.commands.append(command)
        self._carry_out(tried, command)
        return tried.decision

    @abstractmethod
    def _try(self, command: C, now_ms: int, *, failed: Code | None = None) -> Tried:
        """Decide and apply; with the code that the log has refused the batch with, what follows from that."""

    def _carry_out(self, tried: Tried, command: C) -> None:
        """Gather the records of what was tried, and whatever else it asks for."""
        decision = tried.decision
        for key, value in decision.records:
            self.records.add(key, value, tried.wall_ms)
        self.pending.replies += decision.replies
        for call in decision.dropped:  # JG-21: a newer request took its place
            self.calls.pop(call, None)
        self._set_timers(decision)

    def _set_timers(self, decision: Decision) -> None:
        purgatory = self.purgatory
        for key, at_ms in decision.timers:
            if at_ms is None:
                purgatory.clear(key)  # no other shard has such a key: it names the group
            else:
                purgatory.arm(key, at_ms + self._stood_ms, self._ring)

    @abstractmethod
    def expire(self, key: Any, now_ms: int) -> None:
        """Have the core decide what a timer that is due asks for."""

    def _recount(self, command: C) -> str:
        """Return the last decisions about the group of a command as lines of text, "" where none are kept."""
        return ""

    @property
    def batch_bytes(self) -> int:
        """How much goes into one batch, by `weight_of`."""
        return self.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES

    def has_room(self, weight: int) -> bool:
        """Return whether so many bytes more go into the batch."""
        return self.records.size + weight <= self.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES

    def _fits(self, records: Sequence[tuple[bytes, bytes | None]]) -> bool:
        """Return whether the batch has room for these as well."""
        return not records or self.has_room(weight_of(records))

    @property
    def is_appending(self) -> bool:
        """Whether something is decided that is to last and does not yet."""
        return bool(self.records.count or self._in_flight)

    def hold(self, ask_again: Callable[[], None]) -> None:
        """Put off what may not be answered before everything that is decided lasts (P-9)."""
        waits_for = self.pending if self.records.count or not self._in_flight else self._in_flight[-1]
        waits_for.held.append(ask_again)

    def inherit(self, before: Any) -> None:
        """Go on with what the shard of an earlier term, or one that was not loaded, was still to do."""

    def when_settled(self, done: Callable[[], None]) -> None:
        """Have `done` called once all that is decided by now lasts or is undone, at once if it is."""
        if self.is_appending:
            self.hold(done)
        else:
            done()

    def until_settled(self) -> Pieces[None]:
        """Wait until all that is decided by now lasts, or is undone."""
        if self.is_appending:
            yield Until(lambda take: self.when_settled(lambda: take(None)))

    def _go_on(self) -> None:
        """Let go what waits for nothing; have the batch appended after this round of requests."""
        if not self.records.count:
            self._settle_gathered()
        elif not self.has_room(0):
            self._append_gathered()
        else:
            self._flush_soon()
        if self._due:
            self._let_go()

    def _flush_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.replica_manager.when_writable(self._watched, self.flush)

    def flush(self) -> None:
        """Append what has been gathered and let the replies go, or undo it and answer with the failure."""
        self._append_gathered()
        self._let_go()

    def _append_gathered(self, **terms: Any) -> bool:
        """Append what has been gathered, or undo it; let nobody go. Return whether the log has taken it."""
        self._scheduled = False
        if not self.records.count:
            return True
        try:
            appended = self._append(**terms)
        except AppendRefused as refused:
            self._undo(refused.code)
            return False
        self._appended(appended)
        return True

    def _append(self) -> Appended:
        return self._append_batch(self.records.build())

    def _append_batch(self, batch: bytes, **terms: Any) -> Appended:
        return self.replica_manager.append(
            *self._watched,
            batch,
            now_ms=self.clock.now_ms(),
            leader_epoch=self.epoch,
            origin="coordinator",
            wakes=False,
            **terms,
        )

    def _appended(self, appended: Appended) -> None:
        """Begin a new batch: the log has taken the last, which lasts when it has landed."""
        batch = self._take_pending()
        batch.appended = True
        if appended.landed:
            self._settle(batch)
        else:
            self._in_flight.append(batch)
            self.log.when_landed(appended.last_offset, partial(self._landed, batch))

    def _landed(self, batch: P, refused: AppendRefused | None) -> None:
        """Let go of a batch in flight, which lasts now; or undo all that are, where the log refuses them."""
        if batch not in self._in_flight:  # it is undone already, or this shard is out of service
            return
        if refused is not None:
            self._undo_in_flight(refused.code)
            self.scheduler.call_soon(self._let_go)  # other shards may have theirs undone next
            return
        first = self._in_flight.popleft()
        assert first is batch, f"{self}: batches land in order"
        self._settle(batch)
        while self._in_flight and not self._in_flight[0].appended:
            self._settle(self._in_flight.popleft())
        if not self.records.count:
            self._settle_gathered()
        self._let_go()

    def _settle_gathered(self) -> None:
        """Begin a new batch where the last has no records, unless one that has is still in flight."""
        if not self._in_flight:
            self._settle(self._take_pending())

    def _settle(self, batch: P) -> None:
        """Have a batch last: what waited for it is due to go."""
        self.shard.journal.settle(batch.mark)
        self._due.append(batch)
        if self._refusals and batch.appended:
            self._say_lasts()

    @abstractmethod
    def _hand_out(self, batch: P) -> None:
        """Let go all that waited for a batch, but for what is held."""

    def _let_go(self) -> None:
        """Let go whatever is due to, oldest first. What comes due meanwhile goes behind it: to let that go
        within would take a deeper stack for each.
        """
        if self._letting_go:
            return
        self._letting_go = True
        try:
            while self._due:
                self._hand_out_next()
        finally:
            self._letting_go = False

    def _hand_out_next(self) -> None:
        batch = self._due.popleft()
        if batch.appended:
            self.purgatory.changed(self._watched)
        self._hand_out(batch)
        for ask_again in batch.held:
            ask_again()

    def _deliver(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            deliver = self.calls.pop(reply.call, None)
            if deliver is not None:
                deliver(reply.answer)

    def _take_pending(self) -> P:
        """Begin a new batch; return the one before."""
        batch, self.pending = self.pending, self.batches()  # type: ignore[assignment]
        if self.records.count:
            self.records = GrowingBatch()
        self._mark = batch.mark = self.shard.journal.mark()
        return batch

    def _undo(self, code: Code) -> None:
        """Undo the batch that is gathered, which the log has refused with `code`."""
        self._say_refused(code)
        self.shard.undo_to(self._mark)
        self._answer_refused([self._take_pending()], code)

    def _undo_in_flight(self, code: Code) -> None:
        """Undo what is in flight, which the log has refused with `code`, and what is gathered behind it."""
        self._say_refused(code)
        batches = [*self._in_flight, self.pending]
        self._in_flight.clear()
        self.shard.undo_to(self.shard.journal.settled)
        self._take_pending()
        self._answer_refused(batches, code)

    def _say_refused(self, code: Code) -> None:
        """Say that an append has failed, of as many as fail for one reason once: on a disk that is full each
        commit does. That another leads, or that the broker ends, is no failure, and was said by whoever found
        that out.
        """
        if code is Code.NOT_LEADER_OR_FOLLOWER:
            log.info("%s: append failed with %s", self, code.name)
            return
        self._refusals += 1
        if self._refusals == 1 or code is not self._last_refusal:
            log.error("%s: append failed with %s", self, code.name)
        self._last_refusal = code

    def _say_lasts(self) -> None:
        """Say that an append lasts again, where some failed that were not told of."""
        if self._refusals > 1:
            log.warning("%s: appends last again; %d had failed", self, self._refusals)
        self._refusals = 0

    def _answer_refused(self, batches: Sequence[P], code: Code) -> None:
        """Do what the core says of each command of batches that are undone, in their order."""
        now_ms = self.clock.now_ms() - self._stood_ms
        for batch in batches:
            for command in batch.commands:
                tried = self._try(command, now_ms, failed=code)
                self._carry_out(tried, command)
                if not tried.decision.records:  # what is in flight before it may be refused as well
                    self.pending.commands.append(command)
            self.scheduler.call_soon(partial(self._give_up, batch, code))
            self.pending.held += batch.held
        if self.records.count:
            self._flush_soon()
        else:
            self._settle_gathered()

    def _give_up(self, batch: P, code: Code) -> None:
        """Answer what waited for a batch that is undone, but for its commands."""

    def fence(self) -> None:
        """Take this shard out of service: nothing more is appended, and whoever waits is sent elsewhere."""
        self.status = self.FAILED
        given_up = [*self._in_flight, self._take_pending()]
        self._in_flight.clear()
        self._put_off.clear()
        while self._due:
            self._hand_out_next()
        waiting, self.calls = self.calls, {}
        for deliver in waiting.values():
            deliver(Code.NOT_COORDINATOR)
        for batch in given_up:
            self._give_up(batch, Code.NOT_COORDINATOR)
            for ask_again in batch.held:
                ask_again()

    # -- standing still

    def halt(self, status: str) -> None:
        """Decide nothing from now on, and have deadlines wait. What is decided is appended as ever."""
        if self.status == self.ACTIVE:
            self._halted_ms = self.clock.now_ms()
        self.status = status

    def go_on(self) -> None:
        """Decide again, after a halt."""
        self.status = self.ACTIVE
        put_off, self._put_off = self._put_off, []
        for act in put_off:
            act()

    def put_off(self, act: Callable[[], None]) -> None:
        """Have `act` called when this decides again; never, if what it holds is another's by then."""
        if self.status in self.HALTED:
            self._put_off.append(act)

    def drain(self, done: Callable[[], None]) -> None:
        """Append what is gathered, and have `done` called once nothing is left that does not last; once this
        is halted nothing new comes.
        """
        self.flush()
        self.when_settled(done)

    # -- coming and going

    def load(self) -> Pieces[None]:
        """Replay the log a piece at a time (LO-1); whoever asks meanwhile is told to come back (LO-9)."""
        began_ms = self.clock.now_ms()
        try:
            yield from self._replay()
        except (Corrupt, StorageFailed):
            if self.status == self.LOADING:
                self.fail()
        if self.status == self.LOADING:
            yield from self._revive()
        if self.status != self.LOADING:
            return  # it failed, or another node leads it by now
        if self.log.start_offset < self.log.end_offset:
            log.info(
                "%s: loaded %s from offsets %d to %d in %d ms",
                self,
                self._holdings(),
                self.log.start_offset,
                self.log.end_offset,
                self.clock.now_ms() - began_ms,
            )
        self.begin()

    def fail(self) -> None:
        """Tell of the mistake that is being handled; whoever asks is told that nobody coordinates here."""
        mark("load-failed")
        log.exception("%s cannot be loaded", self)
        self.status = self.FAILED

    @abstractmethod
    def _replay(self) -> Pieces[None]:
        """Put into the core what the log holds."""

    def _read_log(self, read: Callable[[bytes], Generator[None, None, int]]) -> Pieces[None]:
        """Have the log read from start to end; `read` takes batches and returns the offset behind them."""
        log_ = self.log
        offset = log_.start_offset
        while offset < log_.end_offset and self.status == self.LOADING:
            piece = yield from self._piece_at(log_, offset)
            if not piece:
                break  # compaction has left nothing behind this
            offset = yield from read(piece)

    def _piece_at(self, log_: Log, offset: int) -> Pieces[bytes]:
        """Return a piece of the log. What is not in memory is asked for until it comes."""
        while self.status == self.LOADING and not log_.at_hand(offset):
            found: Readable = yield Until(partial(log_.read_soon, offset, LOAD_READ_BYTES))
            try:
                return found.read(offset, max_bytes=LOAD_READ_BYTES)
            except StorageFailed as failed:
                log.warning("%s waits for its log: %s", self, failed)
                yield Until(self._after_a_while)
        return log_.read(offset, max_bytes=LOAD_READ_BYTES) if self.status == self.LOADING else b""

    def _after_a_while(self, take: Callable[[None], None]) -> None:
        again_ms = self.clock.now_ms() + READ_AGAIN_MS
        self.purgatory.arm(("load", self), again_ms, lambda *_: take(None))

    def _revive(self) -> Pieces[None]:
        """Have what was loaded live on, a piece at a time."""
        yield from ()

    @abstractmethod
    def _holdings(self) -> str:
        """Return a text for the log: the number of things that the core holds."""

    def begin(self) -> None:
        """Answer from now on."""
        self.status, self.begun = self.ACTIVE, True
        self._go_on()

    def unload(self) -> None:
        """Let go of the shard: whoever waits is sent elsewhere, and what it holds is another's (DE-6)."""
        self.fence()
        self.status = self.AWAY
