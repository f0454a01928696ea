"""The smallest shell of the transaction core: it applies, logs, keeps deadlines, and writes markers at once.

A log is a list, time is a number, and `fail` is a log that refuses. Builders start with `a_`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.deadlines import Deadlines
from coterie.base.ids import TopicPartition
from coterie.txn import Shard, TransactionSettings
from coterie.txn.commands import (
    AddPartitions,
    Command,
    Describe,
    EndTransaction,
    Expire,
    InitProducerId,
    MarkersWritten,
    VerifyPartitions,
)
from coterie.txn.decision import Decision, Markers, Reply
from coterie.txn.facts import Fact, TransactionLoaded
from coterie.txn.failures import NoProducerId
from coterie.txn.model import EPOCH_MAX, Producer, State, Transaction
from coterie.txn.whys import WHYS

TIMEOUT_MS = 60_000
FLIGHTS, TOWERS = TopicPartition("flights", 0), TopicPartition("towers", 3)
LAST_EPOCH = EPOCH_MAX - 1


class Asked(NamedTuple):
    """One request: the number it waits under, and what was decided."""

    call: int
    decision: Decision

    @property
    def why(self) -> str:
        return self.decision.why


@dataclass
class Pending:
    """What has been decided and not yet been appended."""

    commands: list[Command] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    markers: list[Markers] = field(default_factory=list)


class Rig:
    """Drives one shard. Each request is appended and answered at once, unless `hold` was called before.

    Markers are written at once too, unless `slow`: then `mark` writes those of one transactional id.
    """

    def __init__(self, *, slow: bool = False, **settings: int) -> None:
        self.settings = TransactionSettings(**settings)
        self.ids = count(100)
        self.out_of_ids = False
        self.shard = Shard(settings=self.settings, new_producer_id=self.new_producer_id)
        self.now_ms = 1_000_000
        self.slow = slow
        self.log: list[tuple[bytes, bytes | None]] = []
        self.deadlines: Deadlines[Any] = Deadlines()
        self.answers: dict[int, Any] = {}
        self.waiting: set[int] = set()
        self.whys: list[str] = []
        self.marked: list[Markers] = []
        self.unmarked: dict[str, Markers] = {}
        self._calls = count(1)
        self._held: Pending | None = None
        self._mark = self.shard.mark()
        self._wake(self.shard.loaded(self.now_ms))

    def new_producer_id(self) -> int:
        if self.out_of_ids:
            raise NoProducerId
        return next(self.ids)

    # -- the shell

    def ask(self, command: Command) -> Asked:
        call = getattr(command, "call", 0)
        if call:
            assert call not in self.waiting
            assert call not in self.answers
            self.waiting.add(call)
        decision = self.shard.decide(command, self.now_ms)
        held = self._held or Pending()
        held.commands.append(command)
        self._carry_out(decision, held)
        if self._held is None:
            self._release(held)
        return Asked(call, decision)

    def _carry_out(self, decision: Decision, pending: Pending) -> None:
        assert decision.why in WHYS
        self.whys.append(decision.why)
        for fact in decision.facts:
            self.shard.apply(fact)
            records = self.shard.records(fact)
            assert len(records) == fact.durable
            pending.records.extend(records)
            self.carried(fact)
        pending.replies.extend(decision.replies)
        pending.markers.extend(decision.markers)
        self._wake(decision)

    def carried(self, fact: Fact) -> None:
        """A fact has been applied. Rigs that watch put something here."""

    def _wake(self, decision: Decision) -> None:
        for wake in decision.wakes:
            self.deadlines.arm(wake.key, wake.at_ms)

    def _release(self, pending: Pending) -> None:
        self.log.extend(pending.records)
        for reply in pending.replies:
            assert reply.call in self.waiting, f"call {reply.call} is answered twice, or never asked"
            self.waiting.remove(reply.call)
            self.answers[reply.call] = reply.answer
        self._mark = self.shard.mark()
        self.shard.settle(self._mark)
        for markers in pending.markers:
            self.unmarked[markers.transactional_id] = markers
            if not self.slow:
                self.mark(markers.transactional_id)

    def mark(self, transactional_id: str = "tid") -> Asked:
        """Write the markers of a transaction, and tell the core."""
        self.marked.append(self.unmarked.pop(transactional_id))
        return self.ask(MarkersWritten(transactional_id=transactional_id))

    def hold(self) -> None:
        """Gather what follows into one batch, until `append` or `fail`."""
        assert self._held is None
        self._mark = self.shard.mark()
        self._held = Pending()

    def append(self) -> None:
        held, self._held = self._held, None
        assert held is not None
        self._release(held)

    def fail(self, code: Code) -> None:
        """Have the log refuse the batch, and carry out what the core says of each of its commands."""
        held, self._held = self._held, None
        assert held is not None
        self.shard.undo_to(self._mark)
        after = Pending()
        for command in held.commands:
            self._carry_out(self.shard.append_failed(command, code, self.now_ms), after)
        assert not after.records
        self._release(after)

    def run_to(self, at_ms: int) -> None:
        """Let time pass, and everything that is due until then come due in its order."""
        for _ in range(100_000):
            next_ms = self.deadlines.next_ms()
            if next_ms is None or next_ms > at_ms:
                break
            self.now_ms = max(self.now_ms, next_ms)
            for key in self.deadlines.pop_due(self.now_ms):
                self.ask(Expire(key=key))
        self.now_ms = max(self.now_ms, at_ms)

    def failover(self) -> None:
        """Lose everything but the log, and load it anew."""
        self.shard = Shard(settings=self.settings, new_producer_id=self.new_producer_id)
        self.shard.load(self.log)
        self.deadlines = Deadlines()
        self.unmarked.clear()
        pending = Pending()
        self._carry_out(self.shard.loaded(self.now_ms), pending)
        self._release(pending)

    # -- requests

    def call(self) -> int:
        return next(self._calls)

    def answer(self, asked: Asked) -> Any:
        return self.answers[asked.call]

    def init(self, transactional_id: str = "tid", **terms: Any) -> Asked:
        terms = {"timeout_ms": TIMEOUT_MS} | terms
        return self.ask(InitProducerId(transactional_id=transactional_id, call=self.call(), **terms))

    def add(
        self,
        producer: Producer,
        *partitions: TopicPartition,
        transactional_id: str = "tid",
        client_version: int = 2,
    ) -> Asked:
        return self.ask(
            AddPartitions(
                transactional_id=transactional_id,
                call=self.call(),
                producer=producer,
                partitions=partitions or (FLIGHTS,),
                client_version=client_version,
            )
        )

    def verify(self, producer: Producer, *partitions: TopicPartition, transactional_id: str = "tid") -> Asked:
        return self.ask(
            VerifyPartitions(
                transactional_id=transactional_id,
                call=self.call(),
                producer=producer,
                partitions=partitions or (FLIGHTS,),
            )
        )

    def end(
        self,
        producer: Producer,
        *,
        commit: bool = True,
        transactional_id: str = "tid",
        client_version: int = 2,
    ) -> Asked:
        return self.ask(
            EndTransaction(
                transactional_id=transactional_id,
                call=self.call(),
                producer=producer,
                commit=commit,
                client_version=client_version,
            )
        )

    def old_end(self, producer: Producer, *, commit: bool = True) -> Asked:
        return self.end(producer, commit=commit, client_version=0)

    def describe(self, transactional_id: str = "tid") -> Asked:
        return self.ask(Describe(transactional_id=transactional_id, call=self.call()))

    @property
    def txn(self) -> Transaction:
        return self.shard.transactions["tid"]

    @property
    def state(self) -> State:
        return self.txn.state

    @property
    def owner(self) -> Producer:
        return Producer(self.txn.producer_id, self.txn.epoch)


# -- transactions


def a_producer(rig: Rig) -> Producer:
    """The owner of "tid", who has written nothing yet."""
    owner: Producer = rig.answer(rig.init()).producer
    return owner


def an_open_transaction(rig: Rig, *partitions: TopicPartition, client_version: int = 2) -> Producer:
    """The owner of "tid", who has written to flights-0, or to what is named."""
    owner = a_producer(rig)
    rig.add(owner, *partitions, client_version=client_version)
    return owner


def an_ended_transaction(rig: Rig, *, commit: bool = True, client_version: int = 2) -> Producer:
    """The owner of "tid", whose transaction has ended."""
    owner = an_open_transaction(rig, client_version=client_version)
    rig.end(owner, commit=commit, client_version=client_version)
    return rig.owner


def an_ending_transaction(rig: Rig, *, commit: bool = True, client_version: int = 2) -> Producer:
    """The owner of "tid" as it is after the end, whose markers are not written."""
    rig.slow = True
    return an_ended_transaction(rig, commit=commit, client_version=client_version)


def a_worn_producer(rig: Rig, epoch: int = LAST_EPOCH, **fields: Any) -> Producer:
    """The owner of "tid", whose epochs are used up."""
    rig.shard.apply(
        TransactionLoaded(
            Transaction("tid", State.EMPTY, 7, epoch, TIMEOUT_MS, rig.now_ms, previous_id=7, **fields)
        )
    )
    return rig.owner
