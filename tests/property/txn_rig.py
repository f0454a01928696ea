"""The smallest shell of the transaction core: it applies, logs, keeps deadlines, and writes markers at once.

A log is a list, time is a number, and `fail` is a log that refuses. Builders start with `a_`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import shard_rig
from shard_rig import Asked, ShardRig

from coterie.base.codes import Code
from coterie.base.deadlines import Deadlines
from coterie.base.ids import TopicPartition
from coterie.base.reasons import TRANSACTION, reasons
from coterie.coordinator.machine import Decision, Markers
from coterie.coordinator.txn.commands import (
    AddPartitions,
    Describe,
    EndTransaction,
    Expire,
    InitProducerId,
    MarkersWritten,
    VerifyPartitions,
)
from coterie.coordinator.txn.facts import TransactionLoaded
from coterie.coordinator.txn.failures import NoProducerId
from coterie.coordinator.txn.model import EPOCH_MAX, Producer, State, Transaction
from coterie.coordinator.txn.settings import TransactionSettings
from coterie.coordinator.txn.shard import Shard

TIMEOUT_MS = 60_000
FLIGHTS, TOWERS = TopicPartition("flights", 0), TopicPartition("towers", 3)
LAST_EPOCH = EPOCH_MAX - 1


@dataclass
class Pending(shard_rig.Pending):
    """What has been decided and not yet been appended, and the markers that wait for it."""

    markers: list[Markers] = field(default_factory=list)


class Rig(ShardRig[Decision, Pending]):
    """Drives one shard of transactional ids.

    Markers are written at once too, unless `slow`: then `mark` writes those of one transactional id.
    """

    expire = Expire
    pending = Pending
    shard: Shard

    def __init__(self, *, slow: bool = False, **settings: int) -> None:
        self.settings = TransactionSettings(**settings)
        self.ids = count(100)
        self.out_of_ids = False
        self.shard = Shard(settings=self.settings, new_producer_id=self.new_producer_id)
        self.slow = slow
        self.marked: list[Markers] = []
        self.unmarked: dict[str, Markers] = {}
        super().__init__(now_ms=1_000_000)
        self._arm(self.shard.loaded(self.now_ms))

    def new_producer_id(self) -> int:
        if self.out_of_ids:
            raise NoProducerId
        return next(self.ids)

    # -- the shell

    def ask(self, command: Any) -> Asked[Decision]:
        asked = super().ask(command)
        for transactional_id in asked.decision.overdue:
            self.ask(Expire(key=(*command.key, transactional_id)))
        return asked

    def _carry_out(self, decision: Decision, pending: Pending) -> None:
        assert decision.why in reasons(TRANSACTION)
        self.whys.append(decision.why)
        assert len(decision.records) == sum(fact.durable for fact in decision.facts)
        pending.records.extend(decision.records)
        pending.replies.extend(decision.replies)
        pending.markers.extend(decision.markers)
        self._arm(decision)

    def _arm(self, decision: Decision) -> None:
        for timer in decision.timers:
            self._set(timer)

    def _release(self, pending: Pending) -> None:
        super()._release(pending)
        for markers in pending.markers:
            self.unmarked[markers.transactional_id] = markers
            if not self.slow:
                self.mark(markers.transactional_id)

    def mark(self, transactional_id: str = "tid") -> Asked:
        """Write the markers of a transaction, and tell the core."""
        self.marked.append(self.unmarked.pop(transactional_id))
        return self.ask(MarkersWritten(transactional_id=transactional_id))

    def fail(self, code: Code) -> None:
        """Have the log refuse the batch, and carry out what the core says of each of its commands."""
        held = self._let_go()
        self.shard.undo_to(self._mark)
        after = Pending()
        for command in held.commands:
            self._carry_out(self.shard.append_failed(command, code, self.now_ms), after)
        assert not after.records
        self._release(after)

    def failover(self) -> None:
        """Lose everything but the log, and load it anew."""
        self.shard = Shard(settings=self.settings, new_producer_id=self.new_producer_id)
        self.shard.load(self.log, self.now_ms)
        self.deadlines = Deadlines()
        self.unmarked.clear()
        pending = Pending()
        self._carry_out(self.shard.loaded(self.now_ms), pending)
        self._release(pending)

    # -- requests

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
