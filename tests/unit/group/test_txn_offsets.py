"""Offsets committed in transactions: held back, read, ended, expired, deleted, loaded (1.9, 3.3, 3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from group_rig import (
    Asked,
    Rig,
    a_completing_group,
    a_preparing_group,
    a_stable_group,
    session_of,
)

from coterie.base.codes import Code
from coterie.coordinator.group.commands import (
    Command,
    EndTransaction,
    OffsetToCommit,
    TopicsDeleted,
    TxnCommitOffsets,
)
from coterie.coordinator.group.facts import (
    GroupDied,
    GroupRemoved,
    OffsetsPending,
    OffsetsRemoved,
    TransactionEnded,
)
from coterie.coordinator.group.model import State
from coterie.coordinator.group.settings import GroupSettings
from coterie.coordinator.group.shard import Shard
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, read_key, read_offset_value

WEEK = 7 * 86_400_000
OK, UNKNOWN, FENCED = Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID
STALE, ELSEWHERE, UNSTABLE = (
    Code.ILLEGAL_GENERATION,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.UNSTABLE_OFFSET_COMMIT,
)
STATES = (State.EMPTY, State.PREPARING, State.COMPLETING, State.STABLE, State.DEAD)


@dataclass
class Written:
    """A batch of the log: whose records, or whose marker."""

    producer_id: int
    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    commit: bool | None = None


class TxnRig(Rig):
    """A rig whose log also knows batches of transactions, and their ends."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings)
        self.batches: list[Written] = []

    def ask(self, command: Command) -> Asked:
        before = len(self.log)
        asked = super().ask(command)
        producer_id = command.producer_id if isinstance(command, TxnCommitOffsets) else -1
        if len(self.log) > before:
            self.batches.append(Written(producer_id, self.log[before:]))
        if isinstance(command, EndTransaction):
            self.batches.append(Written(command.producer_id, commit=command.commit))
        return asked

    def pend(self, offset: int, producer_id: int = 7, **terms: Any) -> Asked:
        """Commit flights-0, or what `offsets` says, in a producer's transaction."""
        defaults: dict[str, Any] = {
            "group_id": "g",
            "call": self.call(),
            "member_id": "",
            "instance_id": None,
            "generation": -1,
            "producer_id": producer_id,
            "producer_epoch": 0,
            "offsets": (OffsetToCommit("flights", 0, offset),),
        }
        return self.ask(TxnCommitOffsets(**(defaults | terms)))

    def end(self, producer_id: int = 7, *, commit: bool = True) -> Asked:
        return self.ask(EndTransaction(producer_id=producer_id, commit=commit))

    def put(self, offset: int) -> Asked:
        return self.commit(offsets=(OffsetToCommit("flights", 0, offset),))

    def stable(self, topic: str = "flights", partition: int = 0) -> Any:
        (found,) = self.fetch((topic, partition), require_stable=True).partitions
        return found.code if found.code else found.offset

    def reloaded(self) -> Shard:
        """Return a shard that has read this one's log."""
        shard = Shard(settings=GroupSettings(), new_id=lambda: "")
        for batch in self.batches:
            if batch.commit is None:
                shard.load(batch.records, self.now_ms, producer_id=batch.producer_id)
            else:
                shard.end_transaction(batch.producer_id, commit=batch.commit)
        return shard


@pytest.fixture
def rig() -> Iterator[TxnRig]:
    """A rig; what a failover would find is what it holds, at the end of each test."""
    rig = TxnRig()
    yield rig
    again = rig.reloaded()
    assert again.offsets == rig.shard.offsets
    assert again.pending == rig.shard.pending


# -- who may commit


@pytest.mark.row("TX-4", "TX-7", "OM-2")
def test_a_transactional_commit_without_a_group_makes_a_simple_one(rig):
    asked = rig.pend(5)

    assert asked.why == "pending-alone"
    assert rig.answer(asked).codes == (OK,)
    assert rig.group.protocol_type is None
    assert rig.committed() == -1
    assert [read_key(key) for key, _ in rig.log] == [OffsetCommitKey("g", "flights", 0)]


@pytest.mark.row("TX-4")
def test_a_members_transactional_commit_to_a_group_that_is_gone_is_refused(rig):
    asked = rig.pend(5, generation=0, member_id="m")

    assert asked.why == "no-such-group"
    assert rig.answer(asked).codes == (STALE,)
    assert rig.shard.groups == {}


def a_group_in(state: State, rig: TxnRig) -> dict[str, str]:
    if state is State.COMPLETING:
        return a_completing_group(rig, "a", "s", static=("s",))
    ids = a_stable_group(rig, "a", "s", static=("s",))
    if state is State.EMPTY:
        rig.leave(*ids.values())
    if state is State.PREPARING:
        rig.join("late", version=3)
    if state is State.DEAD:
        rig.shard.apply(GroupDied("g", 0))
    return ids


MATRIX = [  # who, generation (None: the current one), instance id, and the code in each of STATES
    ("a", None, None, (UNKNOWN, OK, OK, OK, ELSEWHERE)),
    ("s", None, "i-s", (UNKNOWN, OK, OK, OK, ELSEWHERE)),
    ("a", 99, None, (UNKNOWN, STALE, STALE, STALE, ELSEWHERE)),
    ("x", None, None, (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE)),
    ("a", None, "i-none", (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE)),
    ("a", None, "i-s", (UNKNOWN, FENCED, FENCED, FENCED, ELSEWHERE)),
    ("", -1, None, (OK, OK, OK, OK, ELSEWHERE)),
    ("a", -1, None, (OK, STALE, STALE, STALE, ELSEWHERE)),
    ("x", -1, None, (OK, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE)),
    ("", -1, "i-none", (OK, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE)),
]


@pytest.mark.row("TX-5")
@pytest.mark.parametrize("at", range(len(STATES)), ids=lambda at: STATES[at].name)
@pytest.mark.parametrize(("who", "generation", "instance_id", "expected"), MATRIX)
def test_who_may_commit_in_a_transaction(at, who, generation, instance_id, expected):
    """The transactional rows of the matrix of 1.7: CompletingRebalance does not put a producer off."""
    rig = TxnRig()
    ids = a_group_in(STATES[at], rig)
    current = rig.group.generation if generation is None else generation

    asked = rig.pend(5, member_id=ids.get(who, who), generation=current, instance_id=instance_id)

    assert rig.answer(asked).codes == (expected[at],)
    assert any(isinstance(fact, OffsetsPending) for fact in asked.decision.facts) == (expected[at] is OK)


@pytest.mark.row("TX-5")
def test_a_transactional_commit_is_no_sign_of_life(rig):
    ids = a_stable_group(rig)
    before = session_of(rig, ids["a"])
    rig.now_ms += 1_000

    assert rig.pend(5, member_id=ids["a"], generation=1).why == "pending"

    assert session_of(rig, ids["a"]) == before


@pytest.mark.row("TX-7")
def test_a_topics_id_is_not_kept_with_a_pending_offset(rig):
    rig.pend(5, offsets=(OffsetToCommit("flights", 0, 5, 3, "md", UUID(int=9)),))

    stored = read_offset_value(rig.log[-1][1] or b"")

    assert (stored.leader_epoch, stored.metadata, stored.topic_id) == (3, "md", None)


def test_too_much_metadata_is_refused_in_transactions_too(rig):
    offsets = (OffsetToCommit("t", 0, 1, -1, "x" * 5_000), OffsetToCommit("t", 1, 2))

    asked = rig.pend(0, offsets=offsets)

    assert rig.answer(asked).codes == (Code.OFFSET_METADATA_TOO_LARGE, OK)
    assert rig.stable("t", 1) is UNSTABLE


# -- reading


@pytest.mark.row("OF-9")
def test_a_stable_read_is_put_off_while_a_transaction_is_open(rig):
    """OF-11: others see what is committed."""
    rig.put(1)
    rig.pend(5)

    answer = rig.fetch(("flights", 0), ("flights", 1), require_stable=True)

    assert [(p.offset, p.leader_epoch, p.metadata, p.code) for p in answer.partitions] == [
        (-1, -1, "", UNSTABLE),
        (-1, -1, "", OK),
    ]
    assert rig.whys[-1] == "offsets-unstable"
    assert rig.committed() == 1


@pytest.mark.row("OF-9")
def test_a_stable_read_of_everything_shows_what_has_been_committed_before(rig):
    """A partition that is only pending is not listed, as in Kafka."""
    rig.put(1)
    rig.pend(0, offsets=(OffsetToCommit("flights", 0, 5), OffsetToCommit("new", 0, 5)))

    answer = rig.fetch(require_stable=True)

    assert [(p.topic, p.offset, p.code) for p in answer.partitions] == [("flights", -1, UNSTABLE)]


# -- the end


@pytest.mark.row("OM-3")
def test_what_was_pending_counts_when_the_transaction_commits(rig):
    rig.put(1)
    rig.pend(4)
    rig.pend(5)

    asked = rig.end()

    assert asked.why == "transaction-committed"
    assert asked.decision.facts == (TransactionEnded(7, True),)
    assert rig.stable() == 5


@pytest.mark.row("OM-3")
def test_what_was_pending_is_dropped_when_the_transaction_aborts(rig):
    rig.put(1)
    rig.pend(5)

    assert rig.end(commit=False).why == "transaction-aborted"

    assert rig.stable() == 1
    assert not rig.shard.pending


@pytest.mark.row("OM-3")
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_without_anything_pending_changes_nothing(rig, commit):
    rig.put(1)

    asked = rig.end(commit=commit)

    assert asked.why == "nothing-pending"
    assert asked.decision.facts == ()


@pytest.mark.row("OM-3")
def test_a_plain_commit_made_meanwhile_is_newer_and_stays(rig):
    rig.pend(5)
    rig.put(9)
    assert rig.stable() is UNSTABLE

    asked = rig.end()

    assert asked.decision.steps == ("pending-overtaken",)
    assert rig.stable() == 9


@pytest.mark.row("OM-2")
def test_a_transaction_may_commit_again_after_it_was_overtaken(rig):
    rig.pend(5)
    rig.put(9)
    rig.pend(10)

    rig.end()

    assert rig.stable() == 10


@pytest.mark.row("OM-3")
@pytest.mark.parametrize("first", [1, 2])
def test_of_two_transactions_the_later_commit_of_an_offset_counts_whichever_ends_first(rig, first):
    """By the order of their records in the log, not of their ends."""
    rig.pend(10, producer_id=1)
    rig.pend(20, producer_id=2)

    rig.end(first)
    assert rig.stable() is UNSTABLE
    rig.end(3 - first)

    assert rig.stable() == 20


@pytest.mark.row("OM-3")
def test_a_transaction_that_aborts_does_not_overtake_another(rig):
    rig.pend(10, producer_id=1)
    rig.pend(20, producer_id=2)

    rig.end(2, commit=False)
    rig.end(1)

    assert rig.stable() == 10


# -- deleting and expiring


@pytest.mark.row("OM-4", "OD-5")
def test_deleting_an_offset_deletes_what_is_pending_for_it(rig):
    rig.pend(5)

    answer = rig.delete_offsets(("flights", 0), ("flights", 1))

    assert answer.codes == (OK, OK)
    assert [value for _, value in rig.log[1:]] == [None]
    rig.end()
    assert rig.stable() == -1


@pytest.mark.row("DL-2", "OM-8")
def test_a_group_with_an_open_transaction_can_be_deleted(rig):
    rig.put(1)
    rig.pend(0, offsets=(OffsetToCommit("flights", 0, 5), OffsetToCommit("new", 0, 5)))
    before = len(rig.log)

    assert rig.delete() is OK

    gone = [read_key(key) for key, _ in rig.log[before:-1]]
    assert gone == [OffsetCommitKey("g", "flights", 0), OffsetCommitKey("g", "new", 0)]
    rig.end()
    assert rig.shard.offsets == rig.shard.groups == {}


@pytest.mark.row("OM-7")
def test_pending_offsets_go_with_their_topic(rig):
    rig.put(1)
    rig.pend(0, offsets=(OffsetToCommit("flights", 0, 5), OffsetToCommit("flights", 1, 5)))

    asked = rig.ask(TopicsDeleted(topics=("flights",)))

    assert asked.decision.facts == (OffsetsRemoved("g", (("flights", 0), ("flights", 1))),)
    rig.end()
    assert rig.shard.offsets == {}


@pytest.mark.row("XP-7", "OM-8")
def test_an_offset_with_an_open_transaction_does_not_expire(rig):
    rig.commit(offsets=(OffsetToCommit("flights", 0, 1), OffsetToCommit("done", 0, 2)))
    rig.pend(5)
    rig.now_ms = WEEK

    asked = rig.clean()

    assert asked.decision.facts == (OffsetsRemoved("g", (("done", 0),)),)
    assert "held-by-transaction" in asked.decision.steps
    rig.end(commit=False)
    assert rig.clean().decision.facts == (OffsetsRemoved("g", (("flights", 0),)), GroupRemoved("g"))


@pytest.mark.row("DE-2", "OM-8")
def test_a_group_whose_only_offsets_are_pending_is_not_deleted(rig):
    rig.pend(5)
    rig.now_ms = WEEK

    assert rig.clean().decision.steps == ("held-by-transaction",)

    rig.end(commit=False)
    assert rig.clean().decision.steps == ("group-unused",)
    assert rig.shard.groups == {}


# -- failing and failing over


@pytest.mark.row("P-10", "RT-4")
def test_a_transactional_commit_that_cannot_be_appended_leaves_nothing(rig):
    rig.put(1)
    rig.pend(5)
    rig.hold()
    asked = rig.pend(6, group_id="new")
    rig.pend(6)

    rig.fail(Code.NOT_ENOUGH_REPLICAS)

    assert rig.answer(asked).codes == (ELSEWHERE,)
    assert "new" not in rig.shard.groups
    rig.end()
    assert rig.committed() == 5


def test_an_end_that_cannot_be_appended_leaves_the_transaction_open(rig):
    rig.put(1)
    rig.pend(5, producer_id=1)
    rig.pend(6, producer_id=2)
    before = rig.shard.pending.view()
    mark = rig.shard.journal.mark()

    rig.shard.perform(EndTransaction(producer_id=2, commit=True), rig.now_ms)
    assert rig.shard.offsets["g"]["flights"][0].offset == 6
    rig.shard.undo_to(mark)

    assert rig.shard.pending.view() == before
    assert rig.committed() == 1


@pytest.mark.row("LO-1", "OM-2")
def test_open_transactions_are_open_again_after_a_failover(rig):
    rig.put(1)
    rig.pend(5, producer_id=1)
    rig.pend(6, producer_id=2)
    rig.end(1)

    rig.shard = rig.reloaded()

    assert rig.stable() is UNSTABLE
    rig.end(2)
    assert rig.stable() == 6


@pytest.mark.parametrize("build", [a_preparing_group, a_completing_group, a_stable_group])
def test_a_transaction_survives_its_groups_rebalances(build):
    rig = TxnRig()
    build(rig)
    rig.pend(5)

    rig.run_ms(1_000_000)
    rig.end()

    assert rig.committed() == 5
