"""One partition of `__transaction_state`: its transactional ids, and the door in."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coterie.base.codes import Code
from coterie.base.reasons import TRANSACTION, names
from coterie.coordinator import machine
from coterie.coordinator.machine import Core, Decision, Markers, RawRecord
from coterie.coordinator.txn import table
from coterie.coordinator.txn.apply import apply_fact
from coterie.coordinator.txn.commands import Command, Describe, EndTransaction, Expire, VerifyPartitions
from coterie.coordinator.txn.end import EndTransactionBeforeV5
from coterie.coordinator.txn.expiry import IDS, TIMEOUTS
from coterie.coordinator.txn.facts import EndPrepared, Fact, TransactionLoaded
from coterie.coordinator.txn.failures import NoProducerId, after_failure, refusal
from coterie.coordinator.txn.model import BUMPS_EPOCH_SINCE, Producer, State, Transaction
from coterie.coordinator.txn.records import facts_of, record_of, snapshot_of
from coterie.coordinator.txn.settings import TransactionSettings

ENDING = {State.PREPARE_COMMIT: True, State.PREPARE_ABORT: False}


class Draft(machine.Draft):
    """A decision about a transactional id in the making."""

    __slots__ = ()

    shard: Shard
    reasons = names(TRANSACTION)

    def settle(self, txn: Transaction, fact: EndPrepared) -> None:
        """Settle how a transaction ends, and have its markers written."""
        producer = Producer(txn.producer_id, fact.epoch)
        partitions = tuple(txn.partitions)
        self.apply(fact)
        self.markers += (
            Markers(txn.transactional_id, producer, fact.commit, partitions, fact.client_version),
        )


class Shard(Core[Command, Fact]):
    """The transactional ids that hash to one partition. It knows no clock, socket or thread."""

    drafts = Draft

    def __init__(self, *, settings: TransactionSettings, new_producer_id: Callable[[], int]) -> None:
        """`new_producer_id` returns one that was never given out, or raises `NoProducerId`."""
        super().__init__()
        self.settings = settings
        self.new_producer_id = new_producer_id
        self.transactions: dict[str, Transaction] = {}
        self.ongoing: dict[str, None] = {}
        self.skipped = 0  # records of a time to come, passed over while loading
        # How far the wall's clock is ahead of the one that never jumps, by which this shard decides. Times
        # that others see, in records and in what is described, are the wall's.
        self.wall_ahead_ms = 0

    # -- deciding

    def _only_reads(self, command: Command) -> bool:
        return isinstance(command, Describe | VerifyPartitions)

    def _after_failure(self, draft: Draft, command: Command, code: Code) -> None:
        after_failure(draft, command, code)

    def _answer(self, draft: Draft, command: Command) -> Decision:
        """Return the Decision of the table for the state that the transactional id of the command is in."""
        kind: type = type(command)
        if isinstance(command, Expire):
            if command.key in table.DUE:
                return table.SHARD_WIDE[table.DUE[command.key]](draft, None, command)
            kind, transactional_id = table.DUE_OF_ONE[command.key[0]], command.key[1]
        else:
            transactional_id = command.transactional_id
        if isinstance(command, EndTransaction) and command.client_version < BUMPS_EPOCH_SINCE:
            kind = EndTransactionBeforeV5
        txn = self.transactions.get(transactional_id)
        row = table.ABSENT if txn is None else table.ANSWERS[txn.state]
        try:
            return row[kind](draft, txn, command)
        except NoProducerId:
            assert not draft.facts, "it is the first thing that is asked for"
            if draft.call is not None:  # else a look finds it again
                draft.reply(draft.call, refusal(command, Code.COORDINATOR_LOAD_IN_PROGRESS))
            return draft.decision("no-producer-id")

    # -- the one door

    def apply(self, fact: Fact) -> None:
        """Change the state as the fact says."""
        apply_fact(self, fact)

    def records(self, fact: Fact) -> tuple[RawRecord, ...]:
        """Return the record of a durable fact, asked for right after its `apply`; () for a volatile one."""
        return record_of(self.transactions, fact, wall_ahead_ms=self.wall_ahead_ms)

    # -- coming and going

    def load(self, records: Iterable[RawRecord], now_ms: int) -> None:
        """Replay a piece of the log, oldest piece first. Raises Corrupt where it cannot be read.

        What began later than now was dated by a clock that was wrong: it must not hang until then.
        """
        for fact in facts_of(self, records, now_ms):
            self.load_fact(fact)

    def recall(self, transaction: Transaction) -> None:
        """Know a transactional id as `recalled` has it, after the last piece."""
        self.load_fact(TransactionLoaded(transaction))

    def snapshot(self, transactional_id: str) -> RawRecord:
        """Return the record of what is known of a transactional id now, its end if there is none."""
        return snapshot_of(self.transactions, transactional_id, wall_ahead_ms=self.wall_ahead_ms)

    def loaded(self, now_ms: int) -> Decision:
        """Return the Decision at the end of loading: whatever was about to end gets its markers again."""
        draft = Draft(self, None, now_ms)
        draft.arm(TIMEOUTS, now_ms + self.settings.timeouts_interval_ms)
        draft.arm(IDS, now_ms + self.settings.ids_interval_ms)
        draft.markers = tuple(
            Markers(
                txn.transactional_id,
                Producer(txn.producer_id, txn.epoch),
                ENDING[txn.state],
                tuple(txn.partitions),
                txn.client_version,
            )
            for txn in self.transactions.values()
            if txn.state in ENDING
        )
        return draft.decision("loaded")
