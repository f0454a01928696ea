"""A broker that leaves hands over little to each other broker at a time, and all of it in the end.

Its image lags, and so does what it knows of the others; its offers get lost, are refused, or happen when
it has given them up. Others leave meanwhile, die and come.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.cluster import giving_back
from coterie.broker.cluster.changes import (
    Changed,
    CreateTopics,
    GiveLeadership,
    LeaveCluster,
    NewTopic,
    NotChanged,
    PartitionKey,
    RegisterBroker,
    StartLeaving,
)
from coterie.broker.cluster.giving_back import HANDED_BYTES, GivingBack
from coterie.broker.cluster.image import BrokerState, Image, PartitionRow
from coterie.broker.cluster.pretended import PretendedEngine
from examples import drawn
from planting import Faults

ME = 1
OTHERS = (2, 3, 4)
STEPS_MOST = 60


class HandingOver(RuleBasedStateMachine):
    """A leaver, the engine, and what is on its way between them."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = PretendedEngine()
        self.epochs: dict[int, int] = {}
        self.image = Image()
        self.seen: dict[int, int] = {}
        self.waiting: list[GiveLeadership] = []  # that are not answered
        self.late: list[GiveLeadership] = []  # that are given up, and may happen
        self.offered: set[PartitionKey] = set()
        self.to: dict[PartitionKey, int] = {}  # to whom each was offered last
        self.giving: GivingBack

    # -- the cluster

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for broker_id in (ME, *OTHERS):
            self._register(broker_id)
        for number, (name, count) in enumerate(((OFFSETS_TOPIC, 6), (TRANSACTIONS_TOPIC, 3), ("orders", 3))):
            placed = tuple(
                (ME, *data.draw(st.sampled_from(((), (2,), (3, 2), (4,))), f"replicas of {name}"))
                for _ in range(count)
            )
            self.engine.execute(CreateTopics((NewTopic(UUID(int=number + 1), name, placed),)))
        self.engine.execute(StartLeaving(ME, self.epochs[ME]))
        self.giving = GivingBack(ME, self.epochs[ME])
        self.hear()

    def _register(self, broker_id: int) -> None:
        answer = self.engine.execute(
            RegisterBroker(broker_id, UUID(int=100 * broker_id), self.epochs.get(broker_id, 0))
        )
        assert isinstance(answer, Changed)
        self.epochs[broker_id] = answer.version

    def weigh(self, row: PartitionRow) -> int:
        """Return how much is in a partition: in some nothing, in some little, in some more than is to go at
        once.
        """
        of_shards = row.topic_id != UUID(int=3)
        return (0, 1, HANDED_BYTES // 2, HANDED_BYTES * 3)[row.partition_id % 4] if of_shards else 0

    @rule(broker_id=st.sampled_from(OTHERS), change=st.sampled_from((StartLeaving, LeaveCluster)))
    def go(self, broker_id: int, change: type[StartLeaving | LeaveCluster]) -> None:
        """Another leaves, or is gone; one stays."""
        if len({*self.engine.image.live} - {broker_id}) > 0:
            self.engine.execute(change(broker_id, self.epochs[broker_id]))

    @rule(broker_id=st.sampled_from(OTHERS))
    def come(self, broker_id: int) -> None:
        """Another that is gone comes again."""
        if self.engine.image.brokers[broker_id].state is BrokerState.FENCED:
            self._register(broker_id)

    @rule(broker_id=st.sampled_from(OTHERS))
    def load(self, broker_id: int) -> None:
        """Another serves all that it was given, and the leaver hears of it."""
        self.seen[broker_id] = self.engine.image.version

    @rule()
    def hear(self) -> None:
        """The leaver's image is the newest."""
        self.image = self.engine.image

    # -- offers

    @rule()
    def look(self) -> None:
        """The leaver looks what it has to offer."""
        busy = {one for one in OTHERS if self._is_busy(one)}
        offers = self.giving.to_hand_over(self.image, self.seen, self.weigh)
        assert len({offer.to for offer in offers}) == len(offers)
        for offer in offers:
            assert offer.to in self.image.live
            assert offer.to != ME
            new = [key for key in offer.partitions if key not in self.offered]
            assert not new or offer.to not in busy, "it is to serve first what it was given"
            weights = [self._weight_of(key) for key in new]
            assert all(weights)
            assert len(weights) < 2 or sum(weights) <= HANDED_BYTES
            for key in offer.partitions:
                self.to[key] = offer.to
                self.offered.add(key)
        self.waiting += offers

    def _weight_of(self, key: PartitionKey) -> int:
        row = self.image.partition(key.topic_id, key.number)
        assert row is not None
        assert (row.leader, row.leader_epoch) == (ME, key.leader_epoch)
        assert not self.giving.leads(row)
        return self.weigh(row)

    def _is_busy(self, broker_id: int) -> bool:
        return any(self._is_under_way(key) for key, to in self.to.items() if to == broker_id)

    def _is_under_way(self, key: PartitionKey) -> bool:
        row = self.image.partition(key.topic_id, key.number)
        assert row is not None
        if row.leader_epoch == key.leader_epoch:
            return True
        taken = (row.leader, row.leader_epoch) == (self.to[key], key.leader_epoch + 1)
        return taken and self.seen.get(self.to[key], 0) < row.version

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), fate=st.sampled_from(("made", "made", "made, not known", "lost", "late")))
    def answer(self, data: st.DataObject, fate: str) -> None:
        """Something comes of an offer."""
        offer = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1), "which"))
        made = self.engine.execute(offer) if fate.startswith("made") else None
        assert made is None or isinstance(made, Changed | NotChanged)
        if fate == "late":
            self.late.append(offer)
        self.giving.answered(offer, made if fate == "made" else None)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def happen_late(self, data: st.DataObject) -> None:
        """An offer that was given up happens."""
        self.engine.execute(self.late.pop(data.draw(st.integers(0, len(self.late) - 1), "which")))

    # -- what holds

    @invariant()
    def nothing_is_decided_where_another_leads(self) -> None:
        for row in self.image.all_partitions():
            now = self.engine.image.partition(row.topic_id, row.number)
            assert now is not None
            if now.leader != ME:
                assert not self.giving.leads(row)

    def teardown(self) -> None:
        """All goes well from now on: each partition that holds something is led by another, and served."""
        if not self.epochs:
            return
        for _ in range(STEPS_MOST):
            self.hear()
            for broker_id in OTHERS:
                self.load(broker_id)
            self.look()
            if self.giving.all_handed_over:
                break
            for offer in self.waiting:
                answer = self.engine.execute(offer)
                assert isinstance(answer, Changed | NotChanged)
                self.giving.answered(offer, answer)
            self.waiting.clear()
        assert self.giving.all_handed_over
        led = [row for row in self.engine.image.all_partitions() if row.leader == ME]
        assert not [row for row in led if self.weigh(row)]
        assert [row for row in led if not self.weigh(row)], "the rest is still led"


TestHandingOver = HandingOver.TestCase
TestHandingOver.settings = settings(max_examples=drawn(60), stateful_step_count=40, deadline=None)


# -- planted

FAULTS = fault = Faults()


@fault
def what_was_not_taken_waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GivingBack, "_offered_in_vain", lambda self, image: [])


@fault
def nobody_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GivingBack, "_look_at_handed", lambda self, image, seen: set())


@fault
def what_is_offered_is_decided_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GivingBack, "leads", lambda self, row: row.leader == self._broker_id)


@fault
def an_offer_without_an_answer_was_none(patch: pytest.MonkeyPatch) -> None:
    answered = GivingBack.answered

    def forgotten(self: GivingBack, offer: GiveLeadership, answer: Changed | NotChanged | None) -> None:
        answered(self, offer, answer)
        if answer is None:
            for key in offer.partitions:
                self._offered.pop(key, None)

    patch.setattr(GivingBack, "answered", forgotten)


@fault
def whoever_leaves_is_given_something(patch: pytest.MonkeyPatch) -> None:
    chosen = giving_back.next_leaders

    def anybody(image: Image, moving: Sequence[PartitionRow], gone: int) -> list[int | None]:
        return [to and max(image.unfenced) for to in chosen(image, moving, gone)]

    patch.setattr(giving_back, "next_leaders", anybody)


@pytest.mark.parametrize("name", FAULTS)
def test_the_machine_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        FAULTS.hunt(name, HandingOver, monkeypatch)
