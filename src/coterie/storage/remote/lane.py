"""A lane: a broker's appends to the database, one statement under way at a time.

What logs have placed goes out in rounds. A round has an outcome, always: all of it has landed, or none of it
ever will, and nobody is answered before that is known. A lane that has lost its connection begins a new life:
from then on nothing that was sent before can happen, and it looks whether it had. docs/lanes.md has the table
of states and why it holds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Set
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from coterie.base.codes import Code
from coterie.storage.log.contract import AppendRefused
from coterie.storage.remote.chunk import Chunk, PendingAppend, RowIdentity, chunks_of
from coterie.storage.remote.session import (
    Broken,
    Failed,
    Fenced,
    Inserted,
    LaneAnswer,
    Look,
    Reopened,
    Session,
    Verdict,
    verdict_of,
)

log = logging.getLogger("coterie.storage")

ROUND_BYTES = 4 << 20
HELD_BYTES_MAX = 20 << 20
"""What a lane may hold before clients are to wait: five rounds. Three lanes hold 60 MiB."""
SILENCE_MS = 10_000
"""So long a lane waits for an answer, before it gives up the connection."""
PAUSES_MS = (5, 20, 100, 500, 1_000)
"""Before each attempt to reopen, until a round has landed; the last goes on for the others."""


def pause_ms(attempts: int) -> int:
    """Return the pause before the next attempt, behind so many."""
    return PAUSES_MS[min(attempts, len(PAUSES_MS) - 1)]


HandOver: TypeAlias = Callable[[], None]
Callback: TypeAlias = Callable[[], None]


class LaneListener(Protocol):
    """Hears what a lane cannot settle by itself, before what it held is answered."""

    def fenced(self) -> None:
        """Another broker has taken over: nothing will be appended here in this broker epoch."""
        ...

    def lost(self, partitions: frozenset[int]) -> None:
        """The database lacks what it had confirmed; any of these partitions may have lost some.

        They are those that the lane has written and not forgotten. One that was written by an earlier leader
        alone, or whose newest row was deleted, may have lost some, too: whoever leads looks at all of its
        logs. Puts are refused until `go_on`: lead on before that, in new leader epochs, from the ends that
        the database has.
        """
        ...

    def conflicted(self, partitions: frozenset[int]) -> None:
        """In one of these partitions another leader's row is where ours should be: resign, and load anew."""
        ...


class _Round(NamedTuple):
    appends: list[PendingAppend]
    chunks: list[Chunk]
    size: int


class Lane:
    """The state machine. What is put into a lane is called back once each, in order.

    `clock` returns the time in milliseconds, and never goes back; `call_soon` runs what it is given once
    whoever calls is done. The shell calls `tick` when it is time to (`next_ms`).
    """

    IDLE, SENDING, REOPENING, LOST, CLOSED = "idle", "sending", "reopening", "lost", "closed"

    def __init__(
        self,
        session: Session,
        listener: LaneListener,
        *,
        name: str,
        clock: Callable[[], int],
        call_soon: Callable[[Callback], object],
        round_bytes: int = ROUND_BYTES,
        held_bytes_max: int = HELD_BYTES_MAX,
        when_full: Callback = lambda: None,
    ) -> None:
        """`when_full` is called when more than `held_bytes_max` are held: no more is to be taken from clients
        while it `is_full`. What is put all the same is taken.
        """
        self.session = session
        self.listener = listener
        self.name = name
        self.clock = clock
        self.call_soon = call_soon
        self.round_bytes = round_bytes
        self.state = self.REOPENING
        self.closed_by = ""
        """Why it is closed: "fenced", or "stopped" by `close`."""
        self.life = 0
        """The number of the connection: what is answered in an earlier life is of no interest."""
        self.held_bytes = 0
        """The size of all that is put and not decided."""
        self.held_bytes_max = held_bytes_max
        self.is_full = False
        """Whether too much was held, and half of that is held still."""
        self._when_full = when_full
        self._asked: deque[HandOver] = deque()
        self._gathered: list[PendingAppend] = []
        self._gathered_bytes = 0
        self._round: _Round | None = None
        self._put_count = self._decided_count = 0
        self._waiting: deque[tuple[int, Callback]] = deque()  # for so many to be decided
        self._landing: deque[PendingAppend] = deque()  # what has landed and was not told
        self._taken_back: list[Callback] = []
        self._acknowledged: dict[
            int, RowIdentity
        ] = {}  # partition -> its newest row, in the order of landing
        self._look = Look(None, None)
        self._refuses = False  # the database has refused the last round, and that was told
        self._attempts = 0
        self._began_ms = 0  # of this life
        self._connecting = False
        self._run_is_due = False
        self._due_ms: int | None = None

    def __str__(self) -> str:
        return self.name

    # -- what it is

    @property
    def suspended(self) -> bool:
        """Whether nothing is sent for now, since the connection is gone or rows are lost."""
        return self.state in (self.REOPENING, self.LOST)

    @property
    def closed(self) -> bool:
        """Whether nothing will be sent any more: what is put is refused."""
        return self.state == self.CLOSED

    @property
    def refusal(self) -> AppendRefused | None:
        """What an append is refused with while nothing is taken, None otherwise."""
        return self._not_leader() if self.state in (self.LOST, self.CLOSED) else None

    @property
    def idle(self) -> bool:
        """Whether everything that was put is decided, and nobody has something to say."""
        return self._put_count == self._decided_count and not self._asked

    def next_ms(self) -> int | None:
        """Return the time at which `tick` is due, None if nothing waits for time."""
        return self._due_ms

    # -- for the logs

    def ask(self, hand_over: HandOver) -> None:
        """Have `hand_over` called, once, when the lane is free: it puts what there is to say by then.

        Those who have asked are called in their order, never from within, and as long as a round has room.
        """
        self._asked.append(hand_over)
        if self.state in (self.IDLE, self.CLOSED):
            self._run_soon()

    def put(self, append: PendingAppend) -> None:
        """Take an append, behind all that was put before; it goes out with the next round.

        `append.done` is called with None once it has landed, those of a lane in the order of their puts. What
        never will land is called back newest first; then a log takes back its newest append each time, and
        nobody puts anything before all logs have: who has something to say waits (`when_taken_back`). A lane
        that takes nothing refuses at once.
        """
        if self.state in (self.LOST, self.CLOSED):
            append.done(self._not_leader())
            return
        self._put_count += 1
        self._gathered.append(append)
        self._gathered_bytes += append.size
        self.held_bytes += append.size
        if self.held_bytes > self.held_bytes_max and not self.is_full:
            self.is_full = True
            self._when_full()
        if self.state == self.IDLE:
            self._run_soon()

    def when_taken_back(self, callback: Callback) -> None:
        """Have `callback` called, while appends are refused, once all of them are taken back."""
        self._taken_back.append(callback)

    def forget(self, partition_id: int, before_offset: int | None = None) -> None:
        """Expect no row of a partition any more, or none of those that begin before an offset.

        To be called before anybody deletes or rewrites them, and when the partition is another's.
        """
        row = self._acknowledged.get(partition_id)
        if row is not None and (before_offset is None or row[1] < before_offset):
            del self._acknowledged[partition_id]

    def when_decided(self, callback: Callback) -> None:
        """Have `callback` called, once, when all that was asked for or put so far is landed or refused."""
        self.ask(partial(self._wait_for_puts, callback))

    def _wait_for_puts(self, callback: Callback) -> None:
        self._waiting.append((self._put_count, callback))
        self._call_waiting()

    def _call_waiting(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._decided_count:
            waiting.popleft()[1]()

    # -- for the shell

    def open(self) -> None:
        """Connect for the first time; what is put meanwhile is held."""
        self.life += 1
        self._connect()

    def close(self) -> None:
        """Give up the connection; what is not decided is refused."""
        if not self.closed:
            self._close("stopped")

    def go_on(self) -> None:
        """Send again, after rows were lost: whoever was told leads on from what the database has."""
        if self.state == self.LOST:
            self._reopen("rows were lost")

    def lose(self, known: Set[int] = frozenset()) -> None:
        """Take note that the database lacks what it had confirmed, in partitions that are `known` to have
        lost rows, whoever has written them, or in any: refuse what is held, and take nothing until `go_on`.
        """
        if self.closed:
            return
        log.error("%s: the database has lost what it had confirmed", self)
        self.state = self.LOST
        self._due_ms = None
        self.session.abort()
        partitions = {*known, *self._acknowledged}
        if self._round:
            partitions.update(chunk.partition_id for chunk in self._round.chunks)
        partitions.update(append.partition_id for append in self._gathered)
        self._acknowledged.clear()
        self.listener.lost(frozenset(partitions))
        self._undo(self._not_leader())

    def look_again(self) -> None:
        """Begin the next life at once, and look whether what has landed is there: the connection may be with
        an engine that has been replaced by one that was behind.
        """
        if self.state in (self.IDLE, self.SENDING):
            self._reopen("the engine may have gone back")
        if self.state == self.REOPENING and not self._connecting:
            self._connect()

    def tick(self) -> None:
        """Do what time asks for: connect again, or give up a connection on which nothing has come."""
        if self._due_ms is None or self.clock() < self._due_ms:
            return
        if self.state == self.REOPENING and not self._connecting:
            self._connect()
        else:
            self._reopen(f"no answer in {SILENCE_MS} ms")

    def answered(self, life: int, answer: LaneAnswer) -> None:
        """Take the outcome of what was sent in a life; that of an earlier one decides nothing."""
        if life != self.life:
            return
        if self.state == self.REOPENING:
            self._take_reopening(answer)
        elif self._round is not None:
            self._take_append(self._round, answer)
        elif isinstance(answer, Broken) and self.state == self.IDLE:
            self._reopen(answer.reason)

    # -- a round

    def _run_soon(self) -> None:
        if not self._run_is_due:
            self._run_is_due = True
            self.call_soon(self._run)

    def _run(self) -> None:
        self._run_is_due = False
        if self.state == self.IDLE:
            self._next_round()
        elif self.state == self.CLOSED:
            self._pull()

    def _next_round(self) -> None:
        """Pull, and send what is gathered; be idle if that is nothing."""
        self.state = self.SENDING  # whoever puts or asks meanwhile is served here
        self._due_ms = None
        self._pull()
        if self.state != self.SENDING:
            return
        if self._gathered:
            self._round = self._cut()
            self._send(self._round)
            return
        self.state = self.IDLE
        if self._asked:  # meanwhile, and behind those that were called
            self._run_soon()

    def _pull(self) -> None:
        asked = self._asked
        for _ in range(len(asked)):
            if self._gathered_bytes >= self.round_bytes or not asked:
                break
            asked.popleft()()

    def _cut(self) -> _Round:
        """Return a round of the oldest that is gathered: as much as goes into one, at least one append."""
        appends, size = self._gathered, self._gathered_bytes
        rest: list[PendingAppend] = []
        if size > self.round_bytes:
            count, size = 1, appends[0].size
            while count < len(appends) and size + appends[count].size <= self.round_bytes:
                size += appends[count].size
                count += 1
            appends, rest = appends[:count], appends[count:]
        self._gathered = rest
        self._gathered_bytes -= size
        return _Round(appends, chunks_of(appends), size)

    def _send(self, round_: _Round) -> None:
        self.state = self.SENDING
        self._due_ms = self.clock() + SILENCE_MS
        self.session.append(self.life, round_.chunks)

    def _take_append(self, round_: _Round, answer: LaneAnswer) -> None:
        match answer:
            case Inserted(rows=0):
                self._close("fenced")
            case Inserted(rows=rows):
                assert rows == len(round_.chunks)
                self._land(round_)
                if self.state == self.SENDING:
                    self._next_round()
            case Failed():
                self._take_failure(round_, answer)
            case Broken(reason=reason):
                self._reopen(reason)

    def _take_failure(self, round_: _Round, failed: Failed) -> None:
        verdict = verdict_of(failed.sqlstate)
        sentence = f"{failed.sqlstate} {failed.message}".rstrip()
        if verdict is Verdict.RESEND:
            self._send(round_)
        elif verdict is Verdict.REOPEN:
            self._reopen(sentence)
        else:
            if not self._refuses or verdict is Verdict.CONFLICT:  # once: clients try again and again
                log.error("%s: the database refuses what is written: %s", self, sentence)
            self._refuses = True
            refusal = AppendRefused(Code.KAFKA_STORAGE_ERROR, f"the database refuses: {sentence}")
            if verdict is Verdict.CONFLICT:
                refusal = self._not_leader()
                self.listener.conflicted(frozenset(chunk.partition_id for chunk in round_.chunks))
            self._undo(refusal)
            if self.state == self.SENDING:
                self._next_round()

    def _land(self, round_: _Round) -> None:
        """Answer a round of which it is known that all of it is there."""
        self._round = None
        self._attempts = 0
        if self._refuses:
            self._refuses = False
            log.warning("%s: what is written is taken again", self)
        acknowledged = self._acknowledged
        for chunk in round_.chunks:
            acknowledged.pop(chunk.partition_id, None)
            acknowledged[chunk.partition_id] = chunk.identity
        self._hold(self.held_bytes - round_.size)
        self._decided_count += len(round_.appends)
        self._landing.extend(round_.appends)
        self._tell_landed()
        if self._waiting:
            self._call_waiting()

    def _hold(self, held_bytes: int) -> None:
        """Take note that only so much is held any more."""
        self.held_bytes = held_bytes
        if held_bytes <= self.held_bytes_max // 2:
            self.is_full = False

    def _tell_landed(self) -> None:
        while self._landing:
            self._landing.popleft().done(None)

    def _undo(self, refusal: AppendRefused) -> None:
        """Answer all that is under way and gathered, newest first. What is put meanwhile is not among it."""
        self._tell_landed()  # whoever was told may have closed the lane
        undone = [*(self._round.appends if self._round else ()), *self._gathered]
        self._round = None
        self._gathered = []
        self._gathered_bytes = 0
        self._hold(0)
        self._decided_count += len(undone)
        for append in reversed(undone):
            append.done(refusal)
        taken_back, self._taken_back = self._taken_back, []
        for callback in taken_back:
            callback()
        self._call_waiting()

    # -- lives

    def _reopen(self, reason: str) -> None:
        """Give up the connection, and begin the next life after a pause."""
        if self.state != self.REOPENING and self.clock() - self._began_ms >= PAUSES_MS[-1]:
            self._attempts = 0  # this connection was of use
        if not self._attempts:
            log.warning("%s connects to the database anew: %s", self, reason)
        self.session.abort()
        self.state = self.REOPENING
        self.life += 1
        self._connecting = False
        self._due_ms = self.clock() + pause_ms(self._attempts)
        self._attempts += 1

    def _connect(self) -> None:
        self._connecting = True
        self._due_ms = self.clock() + SILENCE_MS
        in_doubt = self._round.chunks[0].identity if self._round else None
        self._look = Look(in_doubt, self._last_acknowledged())
        self.session.reopen(self.life, self._look)

    def _take_reopening(self, answer: LaneAnswer) -> None:
        match answer:
            case Reopened():
                self._begin_life(answer)
            case Fenced():
                self._close("fenced")
            case Broken(reason=reason):
                self._reopen(reason)
            case Failed():
                self._reopen(f"{answer.sqlstate} {answer.message}")

    def _begin_life(self, answer: Reopened) -> None:
        """Go on, now that the outcome of the round in doubt is known."""
        self.state = self.SENDING
        self._began_ms = self.clock()
        lost = not answer.acknowledged_there
        looked_too_late = lost and self._look.acknowledged != self._last_acknowledged()
        if self._round is not None and answer.in_doubt_there:
            self._land(self._round)
        if self.closed:
            return
        if looked_too_late:
            self._reopen("rows were deleted meanwhile")
        elif lost:
            self.lose()
        elif self._round is not None:
            self._send(self._round)
        else:
            self._next_round()

    def _last_acknowledged(self) -> RowIdentity | None:
        """Return the row that landed last, of those that nobody may have deleted."""
        return next(reversed(self._acknowledged.values()), None)

    def _close(self, reason: str) -> None:
        self.state = self.CLOSED
        self.closed_by = reason
        self._due_ms = None
        self.session.abort()
        if reason == "fenced":
            log.warning("%s: fenced: its broker epoch is over, and others may lead what it led", self)
            self.listener.fenced()
        self._undo(self._not_leader())
        self._pull()
        if self._asked:
            self._run_soon()

    @staticmethod
    def _not_leader() -> AppendRefused:
        return AppendRefused(Code.NOT_LEADER_OR_FOLLOWER, "the broker does not lead this partition any more")
