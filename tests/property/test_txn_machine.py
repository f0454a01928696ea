"""Any sequence of requests, time-outs, failing appends and failovers, and what must hold after each step."""

from __future__ import annotations

from copy import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from txn_rig import TIMEOUT_MS, Rig

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.coordinator.machine import Decision
from coterie.coordinator.txn.apply import IDLE
from coterie.coordinator.txn.commands import (
    NO_PRODUCER,
    AddPartitions,
    Command,
    EndTransaction,
    InitProducerId,
)
from coterie.coordinator.txn.facts import Fact, TransactionLoaded
from coterie.coordinator.txn.model import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    Producer,
    State,
    Transaction,
)
from coterie.coordinator.txn.records import value_of
from coterie.coordinator.txn.shard import ENDING, Shard
from coterie.wire.payloads.transaction_state import transaction_record
from examples import drawn

IDS = ("tid", "tid", "tid", "other")
PARTITIONS = tuple(TopicPartition(topic, number) for topic in ("flights", "towers") for number in range(3))
FAILURES = (Code.KAFKA_STORAGE_ERROR, Code.NOT_ENOUGH_REPLICAS, Code.MESSAGE_TOO_LARGE)
LONG_MS = 20_000_000

some_id = st.sampled_from(IDS)
some_partitions = st.lists(st.sampled_from(PARTITIONS), max_size=4).map(tuple)


def snapshot(shard: Shard) -> tuple[Any, Any]:
    return dict(shard.transactions), set(shard.ongoing)


def durable(txn: Transaction) -> Transaction:
    """A transactional id as a record keeps it."""
    return txn._replace(last_epoch=NO_PRODUCER_EPOCH)


class CheckedRig(Rig):
    """A rig that holds every decision against what a decision may do."""

    def __init__(self, **terms: Any) -> None:
        super().__init__(**terms)
        self.given: dict[str, list[Producer]] = {}

    def ask(self, command: Command) -> Any:
        asked = super().ask(command)
        self.remember(command, asked.decision)
        return asked

    def perform(self, command: Command) -> Decision:
        ids = copy(self.ids)
        tried = self.tried(command)
        if hasattr(command, "call"):
            assert [reply.call for reply in tried.replies] == [command.call], "each call once, and at once"
        self.check(command, tried)
        self.ids = ids  # the same for one command, however often
        decision = super().perform(command)
        assert decision == tried
        return decision

    def tried(self, command: Command) -> Decision:
        """Return a decision that is taken back."""
        before, mark = snapshot(self.shard), self.shard.journal.mark()
        decision = self.shard.perform(command, self.now_ms)
        self.shard.take_back(mark)
        assert snapshot(self.shard) == before, "a decision that is taken back was nothing"
        return decision

    def check(self, command: Command, decision: Decision) -> None:
        for reply in decision.replies:
            if isinstance(command, InitProducerId | EndTransaction) and reply.answer.code is not Code.NONE:
                assert reply.answer.producer == NO_PRODUCER
        if isinstance(command, AddPartitions | EndTransaction) and decision.facts:
            txn = self.shard.transactions[command.transactional_id]
            assert command.producer == (txn.producer_id, txn.epoch), "only the owner changes anything"
        for markers in decision.markers:
            txn = self.shard.transactions[markers.transactional_id]
            assert set(markers.partitions) == set(txn.partitions), "every partition gets its marker"
            assert markers.producer.producer_id == txn.producer_id
            assert markers.producer.epoch - txn.epoch in ({1} if markers.client_version == 2 else {0})

    def remember(self, command: Command, decision: Decision) -> None:
        """Keep who was told to be the owner of what."""
        for reply in decision.replies:
            producer = getattr(reply.answer, "producer", None)
            if isinstance(command, InitProducerId | EndTransaction) and producer != NO_PRODUCER:
                assert producer is not None
                self.given.setdefault(command.transactional_id, []).append(producer)

    def carried(self, fact: Fact) -> None:
        txn = self.shard.transactions.get(fact.transactional_id)
        if txn is not None and txn.state is not State.EMPTY:
            assert txn.started_ms != NO_TIME


class TransactionMachine(RuleBasedStateMachine):
    """One shard: two transactional ids, owners who forget, zombies, and a log that fails now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = CheckedRig(slow=True, id_expiration_ms=10_000_000, max_timeout_ms=LONG_MS)
        self.held = False

    def sender(self, transactional_id: str, data: st.DataObject) -> Producer:
        """The owner, one that was the owner, or nobody at all."""
        txn = self.rig.shard.transactions.get(transactional_id)
        known = [] if txn is None else [Producer(txn.producer_id, txn.epoch)] * 6
        known += self.rig.given.get(transactional_id, [])[-4:]
        return data.draw(st.sampled_from([*known, Producer(1, 0)]))

    @rule(transactional_id=some_id, data=st.data(), believes=st.booleans())
    def init(self, transactional_id: str, data: st.DataObject, believes: bool) -> None:
        expected = self.sender(transactional_id, data) if believes else None
        self.rig.init(transactional_id, expected=expected)

    @rule(
        transactional_id=some_id,
        data=st.data(),
        partitions=some_partitions,
        client_version=st.sampled_from((0, 2)),
    )
    def add(self, transactional_id: str, data: st.DataObject, partitions: Any, client_version: int) -> None:
        sender = self.sender(transactional_id, data)
        self.rig.ask(
            AddPartitions(
                transactional_id=transactional_id,
                call=self.rig.call(),
                producer=sender,
                partitions=partitions,
                client_version=client_version,
            )
        )

    @rule(transactional_id=some_id, data=st.data(), partitions=some_partitions)
    def verify(self, transactional_id: str, data: st.DataObject, partitions: Any) -> None:
        self.rig.verify(self.sender(transactional_id, data), *partitions, transactional_id=transactional_id)

    @rule(
        transactional_id=some_id,
        data=st.data(),
        commit=st.booleans(),
        client_version=st.sampled_from((2, 2, 0)),
    )
    def end(self, transactional_id: str, data: st.DataObject, commit: bool, client_version: int) -> None:
        self.rig.end(
            self.sender(transactional_id, data),
            commit=commit,
            transactional_id=transactional_id,
            client_version=client_version,
        )

    @precondition(lambda self: self.rig.unmarked)
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        self.rig.mark(data.draw(st.sampled_from(sorted(self.rig.unmarked))))

    @rule(transactional_id=some_id)
    def describe(self, transactional_id: str) -> None:
        answer = self.rig.shard.transactions.get(transactional_id)
        decision = self.rig.describe(transactional_id).decision
        assert decision.replies[0].answer.code is (
            Code.TRANSACTIONAL_ID_NOT_FOUND if answer is None else Code.NONE
        )

    @rule(span_ms=st.sampled_from((1, 10_000, TIMEOUT_MS + 10_001, LONG_MS)))
    def wait(self, span_ms: int) -> None:
        self.rig.run_to(self.rig.now_ms + span_ms)

    @precondition(lambda self: not self.held)
    @rule(
        transactional_id=some_id,
        epoch=st.sampled_from((EPOCH_MAX - 2, EPOCH_MAX - 1)),
        ends=st.booleans(),
    )
    def wear(self, transactional_id: str, epoch: int, ends: bool) -> None:
        """Have a long time pass: the epochs of an idle producer are used up, or nearly."""
        txn = self.rig.shard.transactions.get(transactional_id)
        if txn is None or txn.state not in IDLE or txn.epoch >= epoch:
            return
        worn = txn._replace(epoch=epoch, last_epoch=NO_PRODUCER_EPOCH)
        self.rig.shard.apply(TransactionLoaded(worn))
        self.rig.shard.journal.settle(self.rig.shard.journal.mark())
        self.rig.log.append(transaction_record(transactional_id, value_of(worn, 0)))
        if ends:
            owner = Producer(txn.producer_id, epoch)
            self.rig.add(owner, transactional_id=transactional_id)
            self.rig.end(owner, transactional_id=transactional_id)

    @precondition(lambda self: not self.held)
    @rule()
    def hold(self) -> None:
        self.rig.hold()
        self.held = True
        self.before = snapshot(self.rig.shard)

    @precondition(lambda self: self.held)
    @rule()
    def append(self) -> None:
        self.held = False
        self.rig.append()

    @precondition(lambda self: self.held)
    @rule(code=st.sampled_from(FAILURES))
    def fail(self, code: Code) -> None:
        self.held = False
        self.rig.fail(code)
        assert snapshot(self.rig.shard) == self.before, "what was not appended has not happened"

    @precondition(lambda self: not self.held)
    @rule()
    def fail_over(self) -> None:
        before = {name: durable(txn) for name, txn in self.rig.shard.transactions.items()}
        ongoing = set(self.rig.shard.ongoing)
        self.rig.failover()
        assert self.rig.shard.transactions == before, "the log has all that lasts"
        assert set(self.rig.shard.ongoing) == ongoing

    # -- what holds after every step

    @invariant()
    def everybody_is_answered(self) -> None:
        assert self.held or not self.rig.waiting

    @invariant()
    def one_epoch_is_valid(self) -> None:
        """Of all who were ever told to be the owner, the last one is, or nobody while an end is under way."""
        for transactional_id, everybody in self.rig.given.items():
            told = everybody[-8:]
            txn = self.rig.shard.transactions.get(transactional_id)
            valid = {
                producer
                for producer in told
                if self.rig.tried(
                    AddPartitions(
                        transactional_id=transactional_id,
                        call=0,
                        producer=producer,
                        partitions=PARTITIONS,
                        client_version=2,
                    )
                )
                .replies[0]
                .answer.code
                is Code.NONE
            }
            owner = set() if txn is None else {Producer(txn.producer_id, txn.epoch)}
            assert valid <= owner

    @invariant()
    def the_states_make_sense(self) -> None:
        shard = self.rig.shard
        for txn in shard.transactions.values():
            assert 0 <= txn.epoch <= EPOCH_MAX
            assert (txn.transactional_id in shard.ongoing) == (txn.state is State.ONGOING)
            if txn.state not in ENDING:
                assert txn.next_id == NO_PRODUCER_ID
                assert txn.epoch < EPOCH_MAX, "the last epoch is never anybody's"
            if txn.state not in (State.ONGOING, *ENDING):
                assert not txn.partitions
        assert set(shard.ongoing) <= set(shard.transactions)

    @invariant()
    def what_is_ending_will_end(self) -> None:
        """Markers are missing, or the note that they are not is tried again."""
        if self.held:
            return
        for txn in self.rig.shard.transactions.values():
            if txn.state in ENDING:
                again = self.rig.deadlines.at(("complete", txn.transactional_id))
                assert txn.transactional_id in self.rig.unmarked or again is not None


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    max_examples=drawn(80),
    stateful_step_count=35,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
