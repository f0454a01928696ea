"""The life of one broker, event by event: what it wants done, when it serves, and what ends it."""

from __future__ import annotations

from uuid import UUID

import pytest

from coterie.base.ids import ZERO_UUID
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
    Changed,
    LeaveCluster,
    NotChanged,
    RegisterBroker,
    StartLeaving,
    TakeOver,
    Why,
)
from coterie.broker.cluster.image import BrokerRow, BrokerState, Delta, PartitionRow, TopicRow
from coterie.broker.cluster.lifecycle import BrokerLifecycle, Phase
from coterie.broker.cluster.statements import BrokerHeartbeat, Counted, HeartbeatAnswer, ReadDelta
from coterie.broker.cluster.terms import (
    AWAY_WITHIN_MS,
    DRAIN_WITHIN_MS,
    HAND_OVER_WITHIN_MS,
    LEAVE_WITHIN_MS,
    READS_ANEW,
    SILENT,
    UNCONNECTED,
    UNGIVEN,
    UNREACHED,
    UNWRITTEN,
    LifecycleTerms,
)

ME, EPOCH = 1, 7
US, THEM = UUID(int=7), UUID(int=8)
ROW = BrokerRow(ME, EPOCH, US, BrokerState.LIVE, (), None, 0, "", EPOCH)


def whole(version: int, *brokers: BrokerRow, level: int = 0) -> Delta:
    return Delta(above=0, version=version, level=level, brokers=brokers)


class Rig:
    """A broker's life, the time, and everything that it wanted done."""

    def __init__(self, **terms: object) -> None:
        self.now = 100_000
        self.life = BrokerLifecycle(ME, LifecycleTerms(**terms), incarnation=US)
        self.wanted: list[Action] = []

    def do(self, event: str, *arguments: object, **more: object) -> list[Action]:
        """Have an event come, and return what it leads to."""
        actions = getattr(self.life, event)(*arguments, self.now, **more)
        self.wanted += actions
        return actions

    def last(self, kind: type) -> object:
        return next(one for one in reversed(self.wanted) if isinstance(one, kind))

    @property
    def kinds(self) -> list[type[Action]]:
        """The kinds of all that it wanted done: those without fields are alike as values."""
        return [type(one) for one in self.wanted]

    def wait(self, ms: int) -> list[Action]:
        """Let time pass, with each tick that is due."""
        until, done = self.now + ms, []
        while self.life.next_ms is not None and self.life.next_ms <= until:
            self.now = max(self.life.next_ms, self.now)
            done += self.do("tick")
        self.now = until
        return done

    def start(self, *, serving: bool = True) -> None:
        assert self.do("tick") == [Connect()]
        assert self.do("connected", "h") == [ReadDelta(0)]
        assert self.do("delta_read", self.last(ReadDelta), whole(4)) == [RegisterBroker(ME, US, 0)]
        registered = self.do("change_answered", self.last(RegisterBroker), Changed(EPOCH))
        assert registered == [BrokerHeartbeat(ME, EPOCH, 4), ReadDelta(4)]
        if serving:
            delta = Delta(above=4, version=EPOCH, brokers=[ROW])
            assert self.do("delta_read", self.last(ReadDelta), delta) == [Serve(EPOCH)]

    def answer(
        self, *others: Counted, counted: bool = True, version: int = EPOCH, epoch: int = EPOCH
    ) -> list[Action]:
        """Have the heartbeat that is under way be answered."""
        mine = Counted(ME, epoch, 1, True, 5)
        return self.do(
            "heartbeat_answered",
            self.last(BrokerHeartbeat),
            HeartbeatAnswer(counted, version, (mine, *others)),
        )

    def serves(self) -> bool:
        return self.life.serves(self.now)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


# -- starting


def test_a_broker_serves_once_it_is_registered_and_its_image_has_what_was_decided_with_it():
    rig = Rig()
    rig.start(serving=False)
    assert (rig.life.phase, rig.serves()) == (Phase.STARTING, False)

    older = Delta(above=4, version=6)
    assert rig.do("delta_read", rig.last(ReadDelta), older) == []
    rig.answer()  # says that there is more
    assert rig.last(ReadDelta) == ReadDelta(6)
    assert rig.do("delta_read", rig.last(ReadDelta), Delta(above=6, version=7, brokers=[ROW])) == [
        Serve(EPOCH)
    ]

    assert (rig.life.phase, rig.serves()) == (Phase.LIVE, True)


def test_a_broker_that_starts_replaces_the_registration_that_it_finds():
    rig = Rig()
    rig.do("tick")
    rig.do("connected", "h")

    assert rig.do("delta_read", rig.last(ReadDelta), whole(9, ROW)) == [RegisterBroker(ME, US, EPOCH)]
    again = rig.do("change_answered", rig.last(RegisterBroker), NotChanged(Why.OTHER_EPOCH, 9))
    assert again == [RegisterBroker(ME, US, 9)]


def test_a_broker_does_not_join_a_cluster_whose_level_is_above_its_own():
    rig = Rig()
    rig.do("tick")
    rig.do("connected", "h")

    (end,) = rig.do("delta_read", rig.last(ReadDelta), whole(4, level=1))

    assert end == Exit("the cluster is at level 1, and this software at 0")
    assert rig.life.phase is Phase.ENDED
    assert rig.life.next_ms is None


def test_whose_software_was_refused_reads_why_and_does_not_ask_without_a_pause():
    rig = Rig()
    rig.do("tick")
    rig.do("connected", "h")
    rig.do("delta_read", rig.last(ReadDelta), whole(4))

    wanted = rig.do("change_answered", rig.last(RegisterBroker), NotChanged(Why.OLDER_SOFTWARE, 0))

    assert wanted == [ReadDelta(4)]
    (end,) = rig.do("delta_read", rig.last(ReadDelta), Delta(above=4, version=5, level=1))
    assert end == Exit("the cluster is at level 1, and this software at 0")


def test_metadata_that_do_not_follow_though_they_are_whole_are_read_again_after_a_pause():
    rig = Rig()
    rig.do("tick")
    rig.do("connected", "h")
    for _ in range(3):
        assert rig.do("delta_read", rig.last(ReadDelta), Delta(above=3, version=4)) == []
        (again,) = rig.wait(1_000)
        assert again == ReadDelta(0)


def test_a_connection_is_tried_again_later_each_time_and_by_itself_if_nothing_comes():
    rig = Rig()
    rig.do("tick")
    waits = []
    for _ in range(5):
        assert rig.do("disconnected") == []
        waits.append(rig.life.next_ms - rig.now)
        assert rig.wait(waits[-1]) == [Connect()]
    assert waits == [5, 20, 100, 300, 300]

    assert rig.wait(1_499) == []
    assert rig.wait(1) == [Connect()]


# -- heartbeats, and being suspended


def test_heartbeats_leave_every_interval_and_one_at_a_time(rig: Rig):
    assert rig.answer() == []
    assert rig.wait(299) == []
    assert rig.wait(1) == [BrokerHeartbeat(ME, EPOCH, EPOCH)]
    assert rig.wait(400) == []
    assert rig.answer() == [BrokerHeartbeat(ME, EPOCH, EPOCH)]


def test_a_broker_is_suspended_so_long_after_the_sending_of_its_last_heartbeat_that_was_answered(rig: Rig):
    rig.answer()
    rig.wait(300)
    sent = rig.now
    rig.wait(200)
    rig.answer()  # which is late, and counts as of its sending

    assert rig.life.serves_until_ms == sent + 1_200
    rig.now = sent + 1_199
    assert rig.serves()
    rig.now = sent + 1_200
    assert not rig.serves()
    assert Suspend(SILENT % 1.2) in rig.do("tick")
    assert rig.life.phase is Phase.SUSPENDED


def test_a_broker_whose_connection_is_gone_is_suspended_for_that(rig: Rig):
    rig.answer()
    rig.do("disconnected")

    assert Suspend(UNCONNECTED) in rig.wait(150)


def test_a_heartbeat_that_is_answered_in_the_epoch_ends_the_suspension(rig: Rig):
    rig.answer()
    rig.now += 1_300
    assert rig.do("tick") == [Suspend(SILENT % 1.3), BrokerHeartbeat(ME, EPOCH, EPOCH)]

    rig.now += 10
    assert rig.answer() == [Resume(False)]

    assert (rig.life.phase, rig.serves()) == (Phase.LIVE, True)


def test_who_was_stopped_serves_nobody_before_it_has_looked_at_the_clock(rig: Rig):
    rig.answer()
    rig.wait(300)
    rig.now += 10_000  # stopped with a heartbeat under way

    assert not rig.serves()
    actions = rig.answer()  # the answer has waited all the time: of a heartbeat sent long ago

    assert actions == [Suspend(SILENT % 10.3), BrokerHeartbeat(ME, EPOCH, EPOCH)]
    assert not rig.serves()


def test_a_heartbeat_that_is_not_answered_ends_the_connection_soon_enough_for_another(rig: Rig):
    rig.answer()
    rig.wait(300)

    assert rig.wait(749) == []
    assert rig.wait(1) == [Connect()]
    given_up = rig.last(BrokerHeartbeat)
    rig.do("connected", "h")
    assert rig.last(BrokerHeartbeat) is not given_up
    assert rig.do("heartbeat_answered", given_up, HeartbeatAnswer(True, EPOCH, ())) == []
    rig.answer()
    assert rig.serves()


def test_without_its_session_a_broker_serves_for_less_than_two_polls_of_the_others(rig: Rig):
    rig.answer()
    rig.do("disconnected")
    cut = rig.now

    assert rig.life.serves_until_ms == cut + 150
    rig.now = cut + 100
    rig.do("connected", "h")  # which is a session, but nobody has seen a heartbeat through it
    assert rig.life.serves_until_ms == cut + 150
    rig.answer()
    assert rig.life.serves_until_ms == rig.now + 1_200


def test_where_sessions_are_not_known_the_end_of_a_connection_changes_nothing_yet():
    rig = Rig(presence=False)
    rig.start()
    rig.answer()
    until = rig.life.serves_until_ms

    rig.do("disconnected")

    assert rig.life.serves_until_ms == until


# -- being fenced, and registering anew


def test_a_broker_whose_epoch_is_gone_is_fenced_and_registers_anew(rig: Rig):
    assert rig.answer(counted=False) == [Fence(), RegisterBroker(ME, US, EPOCH)]
    assert (rig.life.phase, rig.serves(), rig.life.broker_epoch) == (Phase.FENCED, False, 0)

    rig.do("change_answered", rig.last(RegisterBroker), Changed(12))
    assert not rig.serves()  # its image is of a time when it led what others lead now
    row = ROW._replace(broker_epoch=12, version=12)
    actions = rig.do("delta_read", rig.last(ReadDelta), Delta(above=7, version=12, brokers=[row]))

    assert actions == [Serve(12)]
    assert rig.serves()


def test_an_append_that_was_refused_fences_and_one_of_an_earlier_epoch_does_not(rig: Rig):
    assert rig.do("refused", EPOCH - 1) == []
    assert rig.do("refused", EPOCH)[0] == Fence()
    assert rig.do("refused", EPOCH) == []


def test_an_image_in_which_it_is_fenced_fences(rig: Rig):
    rig.do("notified", 9)
    fenced = ROW._replace(state=BrokerState.FENCED, version=9)

    actions = rig.do("delta_read", rig.last(ReadDelta), Delta(above=7, version=9, brokers=[fenced]))

    assert actions[0] == Fence()


def test_who_was_removed_from_the_cluster_ends_with_a_sentence(rig: Rig):
    rig.answer(counted=False, epoch=9)

    end = rig.do("change_answered", rig.last(RegisterBroker), NotChanged(Why.OTHER_EPOCH, 9, ZERO_UUID))

    assert end == [Exit("broker 1 was removed from the cluster")]


def test_who_finds_a_later_registration_of_its_id_ends_with_a_sentence(rig: Rig):
    assert rig.answer(counted=False, epoch=9) == [Fence(), RegisterBroker(ME, US, EPOCH)]

    refused = NotChanged(Why.OTHER_EPOCH, 9, THEM, names=("kafka-5:9092",))
    end = rig.do("change_answered", rig.last(RegisterBroker), refused)

    assert end == [
        Exit(
            "another process has registered as broker 1, and is at kafka-5:9092: give each its own node.id,"
            " or stop one of them; where both are started again they end each other for ever (broker epoch 9,"
            " this one's was 7)"
        )
    ]
    assert rig.do("tick") == []


def test_a_later_registration_of_its_own_that_was_not_answered_is_replaced(rig: Rig):
    rig.answer(counted=False)
    rig.do("unanswered", rig.last(RegisterBroker))
    assert rig.wait(5) == [RegisterBroker(ME, US, EPOCH)]

    again = rig.do("change_answered", rig.last(RegisterBroker), NotChanged(Why.OTHER_EPOCH, 9, US))

    assert again == [RegisterBroker(ME, US, 9)]


def test_an_earlier_registration_is_replaced_though_it_is_of_another_process(rig: Rig):
    """The engine is at an older state."""
    rig.answer(counted=False)

    again = rig.do("change_answered", rig.last(RegisterBroker), NotChanged(Why.OTHER_EPOCH, 3, THEM))

    assert again == [RegisterBroker(ME, US, 3)]


# -- the others


def other(beats: int, *, present: bool = True) -> Counted:
    return Counted(2, 3, beats, present, EPOCH)


def test_who_shows_the_same_count_for_the_session_is_taken_over_at_that_count(rig: Rig):
    rig.answer(other(40))
    taken = []
    for _ in range(9):
        rig.wait(300)
        taken += rig.answer(other(41))

    first = [one for one in taken if isinstance(one, TakeOver)]
    assert first == [TakeOver(2, 3, 41)]  # one at a time

    rig.do("unanswered", first[0])
    rig.wait(300)
    assert TakeOver(2, 3, 41) in rig.answer(other(41))


def test_a_broker_that_is_suspended_takes_nobody_over(rig: Rig):
    rig.answer(other(40))
    for _ in range(4):
        rig.wait(300)
        rig.answer(other(41))
    rig.wait(300)
    rig.now += 1_300

    assert TakeOver(2, 3, 41) not in rig.answer(other(41))


# -- the metadata


def test_a_delta_is_read_when_somebody_says_that_there_is_one(rig: Rig):
    rig.answer()
    assert rig.do("notified", EPOCH) == []
    assert rig.do("notified", 8) == [ReadDelta(EPOCH)]
    assert rig.do("notified", 9) == []
    assert rig.do("delta_read", rig.last(ReadDelta), Delta(above=7, version=8)) == [ReadDelta(8)]
    assert rig.do("delta_read", rig.last(ReadDelta), Delta(above=8, version=9)) == []
    assert rig.life.image.version == 9


def test_a_reading_that_was_not_answered_is_repeated(rig: Rig):
    rig.answer()
    rig.do("notified", 8)
    assert rig.do("unanswered", rig.last(ReadDelta)) == []
    assert rig.wait(5) == [ReadDelta(EPOCH)]


def test_an_engine_that_has_gone_back_is_believed_and_nobody_served_until_all_is_read(rig: Rig):
    rig.answer()
    rig.do("disconnected")
    rig.wait(5)

    actions = rig.do("connected", "another history")

    assert actions == [Suspend(READS_ANEW), BrokerHeartbeat(ME, EPOCH, 0), ReadDelta(0)]
    assert rig.answer(version=7) == []
    assert not rig.serves()
    assert rig.do("delta_read", rig.last(ReadDelta), whole(7, ROW)) == [Resume(True)]
    assert rig.serves()


def test_who_waits_for_a_version_of_an_engine_that_has_gone_back_has_it_looked_for_soon(rig: Rig):
    rig.do("await_seen", 50)
    rig.answer(Counted(2, 3, 1, True, EPOCH), version=50)
    rig.do("disconnected")
    rig.wait(5)
    rig.do("connected", "another history")
    rig.do("delta_read", rig.last(ReadDelta), whole(7, ROW))
    rig.answer(Counted(2, 3, 1, True, EPOCH), version=8)

    rig.do("await_seen", 8)

    assert BrokerHeartbeat(ME, EPOCH, EPOCH) in rig.wait(5)


def test_a_version_below_that_of_the_image_says_the_same(rig: Rig):
    assert rig.answer(version=6) == [Suspend(READS_ANEW), ReadDelta(0)]


def test_what_was_read_while_a_heartbeat_was_under_way_says_nothing_of_an_engine_that_has_gone_back(
    rig: Rig,
):
    """It is counted by the metadata of its sending, and may wait for the disk while others are read."""
    rig.answer()
    rig.wait(300)
    rig.do("notified", 9)
    rig.do("delta_read", rig.last(ReadDelta), Delta(above=EPOCH, version=9))

    assert rig.answer(version=8) == []
    assert rig.serves()

    rig.wait(300)
    assert rig.answer(version=8) == [Suspend(READS_ANEW), ReadDelta(0)]


def test_an_epoch_that_another_process_has_in_an_engine_that_went_back_is_gone(rig: Rig):
    rig.answer()
    rig.do("disconnected")
    rig.wait(300)
    rig.do("connected", "another history")

    rig.do("delta_read", rig.last(ReadDelta), whole(EPOCH, ROW._replace(incarnation=THEM)))

    assert rig.kinds[-2:] == [Fence, RegisterBroker]
    assert rig.last(RegisterBroker) == RegisterBroker(ME, US, EPOCH)


def test_a_delta_that_does_not_follow_has_all_be_read_anew(rig: Rig):
    rig.answer()
    rig.do("notified", 9)

    torn = Delta(above=7, version=8, partitions=[PartitionRow(1, UUID(int=1), 0, (1,), 1, 0, None, 8)])
    assert rig.do("delta_read", rig.last(ReadDelta), torn) == [Suspend(READS_ANEW), ReadDelta(0)]

    topic = TopicRow(UUID(int=1), "orders", 1, {}, 0, False, 8)
    rows = Delta(above=0, version=8, brokers=[ROW], topics=[topic], partitions=torn.partitions)
    assert rig.do("delta_read", rig.last(ReadDelta), rows) == [Resume(True)]


def test_what_every_broker_has_seen_is_the_least_of_them(rig: Rig):
    rig.answer(Counted(2, 3, 1, True, 4))

    assert rig.life.seen.by_all == 4


# -- leaving


def test_who_is_asked_to_stop_drains_gives_everything_away_and_says_so_for_a_while(rig: Rig):
    rig.answer()
    assert rig.do("terminate") == [Drain()]
    assert rig.serves()

    assert rig.do("drained") == [LeaveCluster(ME, EPOCH)]
    assert not rig.serves()
    assert rig.do("change_answered", rig.last(LeaveCluster), Changed(9))[0] == Fence()
    assert rig.wait(499) == []
    assert rig.wait(1) == [Exit("")]


def test_who_drains_for_long_is_given_nothing_more_meanwhile(rig: Rig):
    rig.answer()
    rig.do("terminate")

    assert rig.wait(99) == []
    assert rig.wait(1) == [StartLeaving(ME, EPOCH)]
    assert rig.wait(1) == []
    assert rig.do("drained") == [LeaveCluster(ME, EPOCH)]


def beside_another(rig: Rig, *, version: int = 8, **fields: object) -> list[Action]:
    """Have the image show another broker."""
    rig.do("notified", version)
    row = ROW._replace(broker_id=2, broker_epoch=5, version=version, **fields)
    return rig.do("delta_read", rig.last(ReadDelta), Delta(above=version - 1, version=version, brokers=[row]))


def test_who_leaves_others_says_so_first_and_hands_over_while_it_serves_all_the_rest(rig: Rig):
    rig.answer()
    beside_another(rig)
    assert rig.do("terminate") == [StartLeaving(ME, EPOCH)]
    assert not rig.life.hands_over

    rig.do("change_answered", rig.last(StartLeaving), Changed(9))
    assert HandOver in rig.kinds
    assert rig.life.hands_over
    assert rig.serves()

    rig.do("handed_over")
    assert rig.kinds[-1] is Drain
    assert not rig.life.hands_over
    assert rig.do("drained") == [LeaveCluster(ME, EPOCH)]
    assert rig.do("change_answered", rig.last(LeaveCluster), Changed(10))[0] == Fence()


def test_who_is_not_answered_that_others_know_of_its_leaving_asks_again(rig: Rig):
    rig.answer()
    beside_another(rig)
    rig.do("terminate")
    rig.do("unanswered", rig.last(StartLeaving))

    assert rig.wait(5) == [StartLeaving(ME, EPOCH)]
    rig.do("change_answered", rig.last(StartLeaving), NotChanged(Why.FENCED, EPOCH))
    assert HandOver in rig.kinds


def handing_over(rig: Rig) -> None:
    """Have the broker hand over to another."""
    rig.answer()
    beside_another(rig)
    rig.do("terminate")
    rig.do("change_answered", rig.last(StartLeaving), Changed(9))
    rig.do("delta_read", rig.last(ReadDelta), Delta(above=8, version=9))


def test_who_hands_over_for_too_long_gives_away_the_rest_at_once(rig: Rig):
    handing_over(rig)
    until = rig.now + HAND_OVER_WITHIN_MS
    while rig.now < until - 100:
        rig.wait(100)
        rig.answer(version=9)
        assert Drain not in rig.kinds

    rig.wait(100)
    assert Drain in rig.kinds
    assert not rig.life.hands_over
    assert rig.do("handed_over") == []  # it comes late
    assert (rig.kinds.count(Drain), rig.kinds.count(StartLeaving)) == (1, 1)


def test_who_is_suspended_while_it_hands_over_gives_away_the_rest_at_once(rig: Rig):
    handing_over(rig)
    rig.do("disconnected")

    rig.wait(150)

    assert [kind for kind in rig.kinds if kind in (Suspend, Drain)] == [Suspend, Drain]


@pytest.mark.parametrize("state", [BrokerState.LEAVING, BrokerState.FENCED])
def test_who_has_nobody_left_to_hand_over_to_gives_away_the_rest_at_once(rig: Rig, state: BrokerState):
    handing_over(rig)

    beside_another(rig, version=10, state=state)

    assert rig.kinds[-1] is Drain


def test_who_leaves_together_with_all_others_hands_over_nothing(rig: Rig):
    rig.answer()
    beside_another(rig, state=BrokerState.LEAVING)

    rig.do("terminate")

    assert rig.kinds[-1] is Drain


def test_who_is_fenced_while_it_hands_over_ends_with_a_sentence(rig: Rig):
    handing_over(rig)

    assert rig.answer(counted=False, version=9)[-2:] == [
        Fence(),
        Exit("fenced before it had given away what it led"),
    ]


def test_who_is_asked_to_stop_twice_hands_over_once(rig: Rig):
    handing_over(rig)

    assert rig.do("terminate") == []


# -- how far it is


def test_a_broker_says_of_what_it_was_elected_by_whether_that_is_loaded(rig: Rig):
    rig.answer()
    rig.do("settled", all_=True)
    topic = TopicRow(UUID(int=1), "orders", 1, {}, 0, False, 8)
    row = PartitionRow(1, UUID(int=1), 0, (ME,), ME, 0, None, 8)
    rig.do("notified", 8)
    leaver = ROW._replace(broker_id=2, state=BrokerState.LEAVING, version=8)
    rows = Delta(above=7, version=8, brokers=[leaver], topics=[topic], partitions=[row])
    at_once = rig.do("delta_read", rig.last(ReadDelta), rows)
    assert at_once == [BrokerHeartbeat(ME, EPOCH, -8)]  # before anybody has looked whether it is to be loaded
    rig.do("settled", all_=False)
    rig.answer(version=8)

    assert rig.wait(300) == [BrokerHeartbeat(ME, EPOCH, -8)]
    rig.answer(version=8)
    assert rig.do("settled", all_=True) == [BrokerHeartbeat(ME, EPOCH, 8)]  # at once: the leaver may wait
    rig.answer(version=8)
    assert rig.do("settled", all_=True) == []


def test_what_each_broker_has_seen_is_known_of_it_and_whether_it_serves_by_that(rig: Rig):
    rig.answer(Counted(2, 3, 1, True, 4), Counted(3, 6, 1, True, -7))

    assert rig.life.seen.served == {2: 4, 3: 0}
    assert rig.life.seen.by_all == 4
    rig.wait(300)
    rig.answer(Counted(2, 3, 1, True, 9), Counted(3, 6, 1, True, -8))
    assert rig.life.seen.by_all == 8


# -- leaving without an answer


def test_who_leaves_without_an_answer_asks_again_and_a_refusal_is_one(rig: Rig):
    rig.answer()
    rig.do("terminate")
    rig.do("drained")
    rig.do("unanswered", rig.last(LeaveCluster))
    assert rig.wait(5) == [LeaveCluster(ME, EPOCH)]

    rig.do("change_answered", rig.last(LeaveCluster), NotChanged(Why.FENCED, EPOCH))

    assert rig.wait(500)[-1] == Exit("")


def test_who_hears_by_its_heartbeat_that_it_has_left_has_left(rig: Rig):
    rig.do("terminate")
    rig.do("drained")

    assert rig.answer(counted=False)[0] == Fence()
    assert rig.wait(500)[-1] == Exit("")


def test_who_is_fenced_while_it_drains_ends_with_a_sentence(rig: Rig):
    rig.do("terminate")

    assert rig.answer(counted=False) == [Fence(), Exit("fenced before it had given away what it led")]


def pass_unanswered(rig: Rig, ms: int) -> None:
    """Let time pass in which the engine answers heartbeats, and no change."""
    until = rig.now + ms
    while rig.now < until:
        rig.wait(100)
        rig.answer()


def test_who_cannot_leave_within_twenty_seconds_ends_with_a_sentence(rig: Rig):
    rig.answer()
    rig.do("terminate")
    rig.do("drained")

    pass_unanswered(rig, LEAVE_WITHIN_MS - 100)
    assert Exit not in rig.kinds
    rig.wait(100)
    assert rig.wanted[-1] == Exit(UNGIVEN)
    assert "within 20 s" in UNGIVEN


def test_an_engine_that_comes_and_goes_does_not_put_off_that_all_is_given_away(rig: Rig):
    rig.answer()
    rig.do("terminate")
    decided_by = rig.now + HAND_OVER_WITHIN_MS + DRAIN_WITHIN_MS

    while rig.now < decided_by - 1_000:
        rig.do("disconnected")
        rig.wait(900)
        rig.do("connected", "h")
        rig.answer()
    assert LeaveCluster not in rig.kinds
    pass_unanswered(rig, decided_by - rig.now)

    assert LeaveCluster in rig.kinds
    rig.do("change_answered", rig.last(LeaveCluster), Changed(9))
    assert rig.wait(500)[-1] == Exit(UNWRITTEN)


@pytest.mark.parametrize("drains", [True, False])
def test_who_leaves_while_the_engine_does_not_answer_ends_within_seconds_and_says_what_is_not_done(
    rig: Rig, drains: bool
):
    rig.answer()
    rig.do("disconnected")
    rig.wait(60_000)
    assert rig.life.phase is Phase.SUSPENDED
    rig.do("terminate")
    if drains:
        rig.do("drained")
        rig.do("unanswered", rig.last(LeaveCluster))

    assert Exit not in {type(one) for one in rig.wait(AWAY_WITHIN_MS - 1)}
    assert rig.wait(1)[-1] == Exit(UNREACHED % 3)


def waits(rig: Rig) -> list[AwaitEngine]:
    """Return what has been said of waiting for the engine."""
    return [one for one in rig.wanted if isinstance(one, AwaitEngine)]


@pytest.mark.parametrize("before_ms", [60_000, 150, 50, 0])
def test_who_is_asked_to_stop_just_after_the_engine_has_gone_says_for_how_long_it_waits(
    rig: Rig, before_ms: int
):
    rig.answer()
    rig.do("disconnected")
    rig.wait(before_ms)
    assert not waits(rig)

    rig.do("terminate")

    rig.wait(max(150 - before_ms, 0))
    assert waits(rig) == [AwaitEngine(AWAY_WITHIN_MS - max(150 - before_ms, 0))]
    rig.wait(waits(rig)[0].within_ms)
    assert rig.wanted[-1] == Exit(UNREACHED % 3)
    assert len(waits(rig)) == 1


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize("after_ms", [0, 50, 290])
def test_who_leaves_says_for_how_long_it_waits_for_an_engine_that_goes_only_then(
    rig: Rig, after_ms: int, drains: bool
):
    rig.answer()
    rig.do("terminate")
    if drains:
        rig.do("drained")
    rig.wait(after_ms)
    rig.do("disconnected")

    rig.wait(149)
    assert not waits(rig)
    rig.wait(1)

    assert waits(rig) == [AwaitEngine(AWAY_WITHIN_MS - after_ms - 150)]
    rig.wait(waits(rig)[0].within_ms)
    assert rig.wanted[-1] == Exit(UNREACHED % 3)


def test_who_leaves_says_so_of_an_engine_that_falls_silent_too_even_when_all_is_decided(rig: Rig):
    rig.answer()
    rig.do("terminate")
    rig.do("drained")  # from now on nothing is suspended any more

    rig.wait(300 + 750 + 149)  # the next heartbeat, which is given up
    assert not waits(rig)
    rig.wait(1)

    assert waits(rig) == [AwaitEngine(AWAY_WITHIN_MS - 1_200)]
    rig.wait(AWAY_WITHIN_MS - 1_200)
    assert rig.wanted[-1] == Exit(UNREACHED % 3)


def test_who_leaves_says_so_each_time_that_the_engine_goes_and_not_of_one_that_is_back_at_once(rig: Rig):
    rig.answer()
    rig.do("terminate")
    for away_ms, said in ((100, 0), (200, 1), (2_000, 2), (140, 2)):
        rig.do("disconnected")
        rig.wait(away_ms)
        rig.do("connected", "h")
        rig.answer()
        assert len(waits(rig)) == said


def test_who_leaves_does_not_say_that_it_waits_for_longer_than_it_stops_for_at_most(rig: Rig):
    rig.answer()
    rig.do("terminate")
    rig.do("drained")
    pass_unanswered(rig, LEAVE_WITHIN_MS - 1_000)

    rig.do("disconnected")
    rig.wait(200)

    assert waits(rig) == [AwaitEngine(850)]


def test_who_has_left_waits_for_no_engine(rig: Rig):
    rig.answer()
    rig.do("terminate")
    rig.do("drained")
    rig.do("change_answered", rig.last(LeaveCluster), Changed(9))
    rig.do("disconnected")

    assert rig.wait(500)[-1] == Exit("")
    assert not waits(rig)


def test_who_leaves_is_not_cut_off_between_two_heartbeats_however_far_they_are_apart():
    rig = Rig(heartbeat_interval_ms=4_000, session_timeout_ms=9_000)
    rig.start()
    rig.answer()
    rig.do("terminate")

    for _ in range(8):
        rig.wait(1_000)
        rig.answer()
    assert rig.kinds.count(BrokerHeartbeat) == 3
    assert Exit not in rig.kinds

    rig.do("disconnected")
    rig.wait(9_000)
    assert rig.wanted[-1] == Exit(UNREACHED % 9)


def test_who_leaves_gives_all_away_if_the_engine_answers_again_in_time(rig: Rig):
    rig.answer()
    rig.do("disconnected")
    rig.do("terminate")
    rig.wait(AWAY_WITHIN_MS - 1)
    rig.do("connected", "h")
    rig.answer()

    assert LeaveCluster not in {type(one) for one in rig.wait(300)}
    rig.answer()
    assert LeaveCluster(ME, EPOCH) in rig.do("drained")
    assert rig.do("change_answered", rig.last(LeaveCluster), Changed(9))[0] == Fence()
    assert rig.wait(500)[-1] == Exit("")


def test_who_leaves_and_cannot_write_what_it_has_decided_gives_all_away_and_says_so(rig: Rig):
    rig.answer()
    rig.do("terminate")
    until = rig.now + DRAIN_WITHIN_MS
    while rig.now < until - 100:
        rig.wait(100)
        rig.answer()
        assert LeaveCluster not in rig.kinds

    assert LeaveCluster(ME, EPOCH) in rig.wait(100)
    assert not rig.serves()
    rig.answer()
    rig.do("change_answered", rig.last(LeaveCluster), Changed(9))
    assert Fence in rig.kinds
    assert rig.wait(500)[-1] == Exit(UNWRITTEN)


def registering() -> Rig:
    """Return a broker whose registration is under way."""
    rig = Rig()
    rig.do("tick")
    rig.do("connected", "h")
    assert rig.do("delta_read", rig.last(ReadDelta), whole(4)) == [RegisterBroker(ME, US, 0)]
    return rig


def test_who_stops_while_it_registers_leaves_before_it_ends():
    rig = registering()
    assert rig.do("terminate") == []

    assert LeaveCluster(ME, EPOCH) in rig.do("change_answered", rig.last(RegisterBroker), Changed(EPOCH))
    assert rig.do("delta_read", rig.last(ReadDelta), Delta(above=4, version=EPOCH, brokers=[ROW])) == []
    assert rig.do("change_answered", rig.last(LeaveCluster), Changed(EPOCH + 1)) == [Exit("")]


def test_who_stops_while_it_registers_anew_leaves_before_it_ends(rig: Rig):
    assert rig.answer(counted=False)[-1] == RegisterBroker(ME, US, EPOCH)
    assert rig.do("terminate") == []

    assert LeaveCluster(ME, 9) in rig.do("change_answered", rig.last(RegisterBroker), Changed(9))
    rig.do("unanswered", rig.last(LeaveCluster))
    assert rig.wait(5)[-1] == LeaveCluster(ME, 9)
    assert rig.do("change_answered", rig.last(LeaveCluster), NotChanged(Why.FENCED, 9)) == [Exit("")]


def test_who_is_registered_and_stops_before_it_serves_leaves():
    rig = Rig()
    rig.start(serving=False)

    assert rig.do("terminate") == [LeaveCluster(ME, EPOCH)]


@pytest.mark.parametrize("answer", [None, NotChanged(Why.OTHER_EPOCH, 6)])
def test_who_stops_while_it_registers_in_vain_ends(answer: NotChanged | None):
    rig = registering()
    rig.do("terminate")

    if answer is None:
        ended = rig.do("unanswered", rig.last(RegisterBroker))
    else:
        ended = rig.do("change_answered", rig.last(RegisterBroker), answer)

    assert ended == [Exit("")]


def test_who_stops_and_hears_that_a_registration_without_an_answer_was_made_leaves():
    rig = registering()
    rig.do("unanswered", rig.last(RegisterBroker))
    assert RegisterBroker(ME, US, 0) in rig.wait(5)
    rig.do("terminate")

    made = NotChanged(Why.OTHER_EPOCH, EPOCH, US)
    assert LeaveCluster(ME, EPOCH) in rig.do("change_answered", rig.last(RegisterBroker), made)
    assert rig.do("change_answered", rig.last(LeaveCluster), Changed(EPOCH + 1)) == [Exit("")]


def test_who_stops_while_it_registers_waits_no_longer_than_others_take_to_find_out():
    rig = registering()
    rig.do("terminate")

    session_ms = LifecycleTerms().session_timeout_ms
    assert Exit("") not in rig.wait(session_ms - 1)
    assert rig.wait(1)[-1] == Exit("")


def test_who_has_not_begun_to_serve_ends_at_once():
    rig = Rig()
    rig.do("tick")

    assert rig.do("terminate") == [Exit("")]
    assert rig.do("connected", "h") == []
