"""A member of a cluster does what its life wants done: in order, once, and never by an older image."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.engine_kit import BROKERS, changes
from cluster.members import Broker, Members, RecordingHosting
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.cluster.applying import contradicts, differences
from coterie.broker.cluster.changes import (
    Changed,
    CreateTopics,
    DeleteTopics,
    LeaveCluster,
    NewTopic,
    NotChanged,
    PartitionKey,
    Reassignment,
    ReassignPartitions,
    SetSetting,
    StartLeaving,
    TakeOver,
    UnregisterBroker,
    Why,
)
from coterie.broker.cluster.giving_back import AT_ONCE, HANDED_BYTES
from coterie.broker.cluster.image import Image
from coterie.broker.cluster.lifecycle import Phase
from coterie.broker.cluster.made import SEEN_WITHIN_MS
from coterie.broker.cluster.member import AWAY, DEAD, FAULT
from coterie.broker.cluster.pretended import Fate, PretendedEngine
from coterie.broker.cluster.statements import Refused
from coterie.broker.cluster.terms import HAND_OVER_WITHIN_MS, UNREACHED

ORDERS = CreateTopics((NewTopic(UUID(int=1), "orders", ((1, 2), (2, 3), (3, 1))),))
SWALLOWED = Fate(None, None, 60_000)


@pytest.fixture
def cluster() -> Members:
    """Three brokers that serve, and a topic of which each is to lead a partition."""
    members = Members()
    members.run(200)
    members.change(ORDERS)
    members.run(2_000)
    return members


# -- serving


def test_a_broker_serves_in_the_epoch_of_its_registration_by_an_image_that_has_it():
    cluster = Members(1)
    cluster.run(100)
    assert cluster.brokers[0].hosting.calls == ["apply 0", "apply 1", "serve 1"]


@pytest.mark.parametrize("connect_ms", [1_400, 1_600, 2_400])
def test_a_broker_serves_however_long_the_engine_takes_to_let_it_in(connect_ms: int):
    cluster = Members(1)
    (broker,) = cluster.brokers
    broker.connect_ms = connect_ms
    cluster.run(60_000)
    assert [told.split()[0] for told in broker.hosting.told] == ["serve"]
    sessions = cluster.database.metadata._sessions
    assert len(sessions) <= 3, "one for heartbeats, one for readings, one for changes"


def test_the_time_to_connect_is_not_taken_from_a_statements(cluster: Members):
    broker = cluster.brokers[0]
    broker.member._changes.close()
    broker.connect_ms = 2_000
    broker.fates = [Fate(600, 2)]
    answers: list[object] = []
    broker.member.propose(SetSetting("", "x", "1", 0), answers.append)
    cluster.run(3_000)
    assert [type(answer) for answer in answers] == [Changed]


def test_all_images_end_up_alike_and_every_election_is_applied(cluster: Members):
    image = cluster.database.metadata.image
    assert [broker.hosting.image for broker in cluster.brokers] == [image] * 3
    led = {("orders", row.number): (row.leader, row.leader_epoch) for row in image.all_partitions()}
    assert [broker.hosting.led for broker in cluster.brokers] == [led] * 3


def test_a_broker_that_was_stopped_looks_at_the_clock_before_anything_else(cluster: Members):
    broker = cluster.brokers[0]
    cluster.now = broker.lifecycle.serves_until_ms - 1  # nothing of the process runs
    broker.member.look_at_clock()
    assert broker.hosting.told[-1] != "suspend"
    cluster.now += 1
    broker.member.look_at_clock()
    assert broker.hosting.told[-1] == "suspend"
    broker.member.look_at_clock()
    assert broker.hosting.told.count("suspend") == 1


def test_a_broker_goes_on_where_it_was_when_the_engine_is_back(cluster: Members):
    cluster.database.go_away()
    cluster.run(5_000)
    cluster.database.come_back()
    cluster.run(500)
    for broker in cluster.brokers:
        assert broker.hosting.told[-2:] == ["suspend", "resume"]


def test_a_broker_reads_all_anew_before_it_goes_on_at_an_engine_that_went_back(cluster: Members):
    moment = cluster.database.moment()
    cluster.change(DeleteTopics((UUID(int=1),)))
    cluster.run(100)
    assert not cluster.brokers[0].hosting.led

    cluster.database.fall_back(moment, "1")
    cluster.run(1_000)

    for broker in cluster.brokers:
        version = cluster.database.metadata.image.version
        calls = broker.hosting.calls
        at = calls.index("suspend")
        assert calls[at : at + 3] == ["suspend", f"apply {version}", "resume anew"]
        assert broker.member.history == "1"
        assert len(broker.hosting.led) == 3


def test_a_broker_ends_where_another_clusters_engine_takes_the_place_of_its_own(cluster: Members):
    engine = cluster.database.metadata
    cluster.change(SetSetting("", "x", "1", 0))
    cluster.run(400)
    moment, images = cluster.database.moment(), [broker.hosting.image for broker in cluster.brokers]

    engine.cluster_id = "another"
    cluster.database.fall_back(moment, "1")
    cluster.run(5_000)

    for broker, image in zip(cluster.brokers, images, strict=True):
        assert broker.hosting.told[-1] == "exit"
        sentence = broker.hosting.sentence or ""
        assert "that of cluster another now, and this broker is of cluster simulated" in sentence
        assert broker.hosting.image is image
        assert broker.member.history == "0"
    assert cluster.database.moment().metadata == moment.metadata
    assert not engine._sessions


def test_a_broker_that_was_told_its_cluster_joins_no_other(cluster: Members):
    cluster.database.metadata.cluster_id = "another"
    stranger = Broker(cluster, 9, cluster_id="simulated")
    cluster.brokers.append(stranger)
    cluster.run(1_000)

    assert stranger.hosting.told == ["exit"]
    assert 9 not in cluster.database.metadata.image.brokers


def test_a_broker_serves_by_a_version_of_an_engine_that_went_back_once_it_has_loaded_what_that_says(
    cluster: Members,
):
    broker, metadata = cluster.brokers[0], cluster.database.metadata
    moment = cluster.database.moment()
    version = cluster.change(SetSetting("", "x", "1", 0))
    cluster.run(400)
    assert metadata.tables.beats[1][1] == version

    cluster.database.fall_back(moment, "1")
    assert cluster.change(GROUPS) == version
    broker.hosting.loads = True
    cluster.run(1_000)
    assert metadata.tables.beats[1][1] == -version
    load(broker)
    cluster.run(400)

    assert metadata.tables.beats[1][1] == version


def test_what_a_dead_broker_led_others_lead(cluster: Members):
    cluster.brokers[0].kill()
    cluster.until(lambda: cluster.database.metadata.image.live == (2, 3), within_ms=900)
    cluster.run(10)
    for broker in cluster.brokers[1:]:
        assert broker.hosting.led["orders", 0] == (2, 1)


def test_of_a_death_one_of_the_others_warns_and_of_a_planned_stop_nobody(
    cluster: Members, caplog: pytest.LogCaptureFixture
):
    cluster.brokers[1].member.terminate()
    cluster.until(lambda: cluster.database.metadata.image.live == (1, 3))
    cluster.run(1_000)
    assert caplog.messages == []

    cluster.brokers[0].kill()
    cluster.run(3_000)

    assert caplog.messages == [DEAD % 1]


def test_a_broker_whose_append_was_refused_registers_anew(cluster: Members):
    broker = cluster.brokers[1]
    before = broker.lifecycle.broker_epoch
    broker.member.refused(before - 1)
    assert "fence" not in broker.hosting.told
    broker.member.refused(before)
    assert broker.hosting.told[-1] == "fence"
    cluster.run(200)
    assert broker.hosting.told[-1] == f"serve {broker.lifecycle.broker_epoch}"
    assert broker.lifecycle.broker_epoch > before
    assert broker.hosting.led["orders", 1] == (2, 1)


# -- leaving


def test_a_broker_that_is_asked_to_stop_leaves_when_all_it_decided_has_landed(cluster: Members):
    broker = cluster.brokers[0]
    broker.hosting.held = []
    broker.member.terminate()
    cluster.run(2_000)
    assert broker.hosting.told[-1] == "drain"
    assert cluster.database.metadata.image.unfenced == (1, 2, 3)
    assert cluster.brokers[1].hosting.led["orders", 0] == (1, 0)

    (landed,) = broker.hosting.held
    landed()
    cluster.run(20)
    assert cluster.brokers[1].hosting.led["orders", 0] == (2, 1)
    assert broker.hosting.told[-1] == "fence"
    cluster.run(600)
    assert broker.hosting.sentence == ""
    assert not any(one.broker_id == 1 for one in cluster.database.metadata._sessions)


GROUPS = CreateTopics((NewTopic(UUID(int=9), OFFSETS_TOPIC, ((1,),) * 6),))


def led_groups(cluster: Members) -> list[int | None]:
    """The leaders of the partitions of groups, by the engine."""
    return [row.leader for row in cluster.database.metadata.image.partitions(UUID(int=9))]


@pytest.fixture
def leaving(cluster: Members) -> Members:
    """The first broker leads all partitions of groups, and is asked to stop; two of them hold nothing. What
    the others are given is not loaded yet.
    """
    cluster.change(GROUPS)
    cluster.run(100)
    leaver, *others = cluster.brokers
    leaver.hosting.empty = {(UUID(int=9), 0), (UUID(int=9), 3)}
    for other in others:
        other.hosting.loads = True
    leaver.member.terminate()
    return cluster


def load(broker: Broker) -> None:
    """Have a broker have loaded what it was given; the next is to be loaded again."""
    broker.hosting.loads = False
    broker.member.act(lambda: None)
    broker.hosting.loads = True


def test_who_leaves_hands_over_one_partition_to_each_other_broker_at_a_time(leaving: Members):
    leaver, second, third = leaving.brokers
    leaving.run(600)
    assert leaving.database.metadata.image.live == (2, 3)
    assert led_groups(leaving) == [1, 2, 3, 1, 1, 1] or led_groups(leaving) == [1, 3, 2, 1, 1, 1]
    assert leaver.hosting.told[1:] == ["release", "release"]
    assert leaver.lifecycle.serves(leaving.now)

    load(second)
    took_ms = leaving.until(lambda: len(leaver.hosting.released) == 3)
    assert took_ms < 50  # it says so at once, and is looked at soon
    leaving.run(600)
    assert led_groups(leaving).count(2) == 2

    load(third)
    leaving.until(lambda: len(leaver.hosting.released) == 4)
    assert sorted(key.number for key in leaver.hosting.released) == [1, 2, 4, 5]
    assert "drain" not in leaver.hosting.told


def test_of_partitions_with_little_in_them_several_are_handed_over_at_a_time(leaving: Members):
    leaver, *_ = leaving.brokers
    leaver.hosting.weight = HANDED_BYTES // 2
    leaving.run(600)
    assert sorted(key.number for key in leaver.hosting.released) == [1, 2, 4, 5]
    assert leaver.hosting.told[1:] == ["release", "release"]
    assert led_groups(leaving).count(1) == 2


def test_who_has_handed_over_and_is_served_gives_away_the_rest(leaving: Members):
    leaver, *others = leaving.brokers
    for other in others:
        other.hosting.loads = False
    took_ms = leaving.until(lambda: "fence" in leaver.hosting.told)
    assert took_ms < 200
    assert leaver.hosting.told[1:] == ["release"] * 4 + ["drain", "fence"]
    assert {*led_groups(leaving)} == {2, 3}
    leaving.run(600)
    assert leaver.hosting.sentence == ""


def test_what_is_not_handed_over_in_time_is_given_away_with_the_rest(leaving: Members):
    leaver = leaving.brokers[0]
    took_ms = leaving.until(lambda: "drain" in leaver.hosting.told)
    assert HAND_OVER_WITHIN_MS <= took_ms < HAND_OVER_WITHIN_MS + 20
    leaving.run(20)
    assert {*led_groups(leaving)} == {2, 3}
    assert leaver.hosting.told[-1] == "fence"


def test_what_is_offered_to_a_broker_that_leaves_itself_goes_to_another(leaving: Members):
    leaver, second, third = leaving.brokers
    leaving.until(lambda: len(leaver.hosting.released) == 2)
    leaving.change(StartLeaving(2, second.lifecycle.broker_epoch))  # before what was offered has come
    third.hosting.loads = False
    leaving.until(lambda: "drain" in leaver.hosting.told)
    leaving.run(20)
    moved = [row for row in leaving.database.metadata.image.partitions(UUID(int=9)) if row.leader == 3]
    assert {row.leader_epoch for row in moved} == {1}, "nothing is taken back in between"
    assert len(moved) == 6


def test_a_broker_that_dies_while_it_is_handed_something_is_given_nothing_more(leaving: Members):
    leaver, second, third = leaving.brokers
    third.hosting.loads = False
    leaving.until(lambda: 2 in led_groups(leaving))
    second.kill()
    leaving.until(lambda: "drain" in leaver.hosting.told)
    assert led_groups(leaving).count(2) == 0
    assert led_groups(leaving).count(3) > 1


def test_brokers_that_leave_together_end_at_once(leaving: Members):
    for broker in leaving.brokers[1:]:
        broker.member.terminate()
    took_ms = leaving.until(lambda: all(one.hosting.sentence == "" for one in leaving.brokers))
    assert took_ms < 600 + 500, "half a second of it they say that they have left"


def test_a_broker_that_comes_while_another_leaves_is_handed_something(leaving: Members):
    leaver = leaving.brokers[0]
    leaving.run(300)
    leaving.brokers.append(Broker(leaving, 4))
    leaving.until(lambda: 4 in led_groups(leaving))
    leaving.until(lambda: "drain" in leaver.hosting.told)
    assert led_groups(leaving).count(4) == 2


def test_an_offer_of_who_leaves_that_was_not_answered_is_offered_again(leaving: Members):
    leaver, *others = leaving.brokers
    for other in others:
        other.hosting.loads = False
    leaver.fates = [Fate(1, 2), Fate(None, None, 30), Fate(1, None, 30)]  # made; never; made, not known
    leaving.until(lambda: "drain" in leaver.hosting.told)
    leaving.run(20)
    rows = leaving.database.metadata.image.partitions(UUID(int=9))
    assert {(row.leader_epoch, row.leader == 1) for row in rows} == {(1, False)}


def test_a_broker_whose_epoch_is_gone_while_it_hands_over_ends_with_a_sentence(leaving: Members):
    leaver = leaving.brokers[0]
    leaving.until(lambda: leaver.hosting.released)
    leaving.change(LeaveCluster(1, leaver.lifecycle.broker_epoch))
    leaving.until(lambda: leaver.hosting.sentence is not None)
    assert leaver.hosting.sentence == "fenced before it had given away what it led"


def test_who_leaves_while_the_engine_goes_back_leads_nothing_by_what_is_no_more(leaving: Members):
    leaver = leaving.brokers[0]
    moment = leaving.database.moment()
    leaving.until(lambda: led_groups(leaving).count(1) < 6)
    leaving.database.fall_back(moment, "1")
    leaving.until(lambda: leaver.hosting.sentence is not None)
    leaving.run(2_000)
    assert {*led_groups(leaving)} == {2, 3}


def test_a_broker_whose_id_another_process_has_taken_exits_with_a_sentence(cluster: Members):
    first = cluster.brokers[0]
    second = type(first)(cluster, 1)
    cluster.run(1_000)
    assert first.hosting.sentence is not None
    assert "another process has registered as broker 1" in first.hosting.sentence
    assert second.hosting.told == [f"serve {second.lifecycle.broker_epoch}"]


@pytest.mark.parametrize("late_ms", range(6))
def test_of_two_processes_of_one_id_that_begin_at_once_one_stays_and_serves(late_ms: int):
    cluster = Members(2)
    cluster.run(1_000)
    for connect_ms in ((1, 1), (1, 2), (5, 1), (1, 20)):
        both = []
        for wait_ms in connect_ms:
            cluster.run(late_ms if both else 0)
            both.append(Broker(cluster, 3))
            both[-1].connect_ms = wait_ms
        cluster.run(1_000)
        (stays,) = [one for one in both if one.hosting.sentence is None]
        assert stays.lifecycle.phase is Phase.LIVE
        (goes,) = [one for one in both if one is not stays]
        assert "another process has registered as broker 3" in (goes.hosting.sentence or "")
        goes.kill()
        stays.kill()


# -- changes for clients


def test_a_change_is_answered_once_the_own_image_shows_it(cluster: Members):
    broker = cluster.brokers[0]
    answers = cluster.propose(broker, SetSetting("", "x", "1", 0))
    cluster.until(lambda: answers, within_ms=10)
    (answer,) = answers
    assert isinstance(answer, Changed)
    assert broker.hosting.image.version == answer.version
    assert broker.hosting.image.setting("", "x") == "1"


def test_a_topic_is_made_once_all_brokers_know_of_it(cluster: Members):
    answers = cluster.propose(cluster.brokers[0], CreateTopics((NewTopic(UUID(int=2), "new", ((1,),)),)))
    assert cluster.until(lambda: answers) < 50  # soon after they do: heartbeats are sent every 300 ms else
    assert isinstance(answers[0], Changed)
    assert all(("new", 0) in broker.hosting.led for broker in cluster.brokers)


def test_a_broker_is_said_to_serve_once_all_others_know_of_it():
    cluster = Members(2)
    cluster.run(1_000)
    late = Broker(cluster, 3)
    cluster.brokers.append(late)
    took_ms = cluster.until(lambda: late.known)
    assert late.known == [[(1, 2, 3)] * 3]
    assert took_ms < 60


def test_a_topic_is_made_though_a_broker_does_not_hear_of_it(cluster: Members):
    silent = cluster.brokers[2]
    silent.fate = SWALLOWED
    cluster.run(20)
    answers = cluster.propose(cluster.brokers[0], CreateTopics((NewTopic(UUID(int=2), "new", ((1,),)),)))
    took_ms = cluster.until(lambda: answers)
    assert isinstance(answers[0], Changed)
    assert ("new", 0) not in silent.hosting.led
    assert SEEN_WITHIN_MS <= took_ms <= SEEN_WITHIN_MS + 20


def test_a_topic_is_made_without_waiting_for_a_broker_that_knows_of_it_and_loads_what_it_took_over(
    cluster: Members,
):
    loading = cluster.brokers[2]
    loading.hosting.loads = True
    cluster.brokers[1].kill()
    cluster.until(lambda: loading.hosting.led["orders", 1] == (3, 1))
    cluster.run(300)
    answers = cluster.propose(cluster.brokers[0], CreateTopics((NewTopic(UUID(int=2), "new", ((1,),)),)))
    took_ms = cluster.until(lambda: answers)
    assert isinstance(answers[0], Changed)
    assert ("new", 0) in loading.hosting.led
    assert took_ms < 60


def test_a_change_that_is_refused_is_answered_with_the_reason(cluster: Members):
    answers = cluster.propose(cluster.brokers[0], ORDERS)
    cluster.run(10)
    assert answers == [NotChanged(Why.NAME_TAKEN, names=("orders",))]


def test_a_change_that_the_engine_refuses_by_itself_is_told_from_one_of_which_nothing_is_known(
    cluster: Members, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(PretendedEngine, "execute", lambda *_: Refused("no room"))
        answers = cluster.propose(cluster.brokers[0], ORDERS)
        cluster.run(10)
    assert answers == [NotChanged(Why.REFUSED, reason="no room")]


def test_a_change_that_is_not_answered_in_time_is_not_known_of_and_the_next_is_made(cluster: Members):
    broker = cluster.brokers[0]
    broker.fates = [SWALLOWED]
    lost = cluster.propose(broker, SetSetting("", "x", "1", 0))
    behind = cluster.propose(broker, SetSetting("", "y", "1", 0))
    cluster.run(2_600)
    assert lost == [None]
    assert len(behind) == 1
    after = cluster.propose(broker, SetSetting("", "z", "1", 0))
    cluster.run(20)
    assert isinstance(after[0], Changed)
    assert broker.hosting.told == [f"serve {broker.lifecycle.broker_epoch}"]  # heartbeats went on


def test_a_change_is_not_known_of_where_the_engine_is_not_reached(cluster: Members):
    broker = cluster.brokers[0]
    cluster.database.go_away()
    answers = cluster.propose(broker, SetSetting("", "x", "1", 0))
    cluster.run(20)
    assert answers == [None]


def test_a_change_is_not_known_of_once_the_engine_went_back(cluster: Members):
    broker = cluster.brokers[0]
    moment = cluster.database.moment()
    cluster.brokers[2].fate = SWALLOWED  # so that not all hear of it
    answers = cluster.propose(broker, CreateTopics((NewTopic(UUID(int=2), "new", ((1,),)),)))
    cluster.run(20)
    cluster.database.fall_back(moment, "1")
    cluster.run(100)
    assert answers == [None]


def test_two_brokers_never_have_the_same_producer_ids(cluster: Members):
    blocks: list[object] = []
    for broker in cluster.brokers:
        broker.member.reserve_producer_ids(blocks.append)
    cluster.run(20)
    assert [block for block in blocks if block is not None] == [*dict.fromkeys(blocks)]
    assert len(blocks) == 3


def test_a_burst_of_changes_is_made_however_long_it_takes_as_long_as_each_is_answered_in_time(
    cluster: Members,
):
    broker = cluster.brokers[0]
    broker.fates = [Fate(at_ms - 1, at_ms) for at_ms in (2_000, 4_000, 6_000)]
    answers = [cluster.propose(broker, SetSetting("", name, "1", 0)) for name in "xyz"]
    cluster.run(6_100)
    assert [type(answer) for (answer,) in answers] == [Changed] * 3


def test_a_client_that_is_answered_has_nobody_else_answered_twice(cluster: Members):
    broker = cluster.brokers[0]
    cluster.brokers[2].fate = SWALLOWED  # so that the topic waits for it
    cluster.run(20)
    answers: list[str] = []

    def first(_: object) -> None:
        answers.append("first")
        cluster.now += SEEN_WITHIN_MS
        broker.member.tick()

    broker.member.propose(SetSetting("", "x", "1", 0), first)
    new = CreateTopics((NewTopic(UUID(int=2), "new", ((1,),)),))
    broker.member.propose(new, lambda _: answers.append("second"))
    cluster.run(1_000)
    assert answers == ["first", "second"]


@pytest.mark.parametrize("signal_first", [True, False])
def test_the_log_of_a_broker_that_leaves_says_what_it_waits_for_whether_the_database_goes_before_or_after(
    cluster: Members, signal_first: bool, caplog: pytest.LogCaptureFixture
):
    broker = cluster.brokers[0]
    broker.hosting.held = []  # what it has decided is still to be written
    steps = [broker.member.terminate, cluster.database.go_away]
    for step in steps if signal_first else reversed(steps):
        step()
        cluster.run(40)
    assert AWAY % 3 not in caplog.messages

    cluster.run(4_000)

    assert caplog.messages.count(AWAY % 3) == 1
    assert broker.hosting.sentence == UNREACHED % 3


# -- faults


def test_a_fault_in_what_a_broker_is_told_to_do_ends_its_process(
    cluster: Members, caplog: pytest.LogCaptureFixture
):
    broker = cluster.brokers[0]
    broker.hosting.may_fail = True
    broker.hosting.image = Image()  # so that it does not take the next

    cluster.change(SetSetting("", "x", "1", 0))
    cluster.run(100)

    assert broker.hosting.told[-1] == "exit"
    assert broker.hosting.sentence == FAULT
    assert caplog.messages == ["the broker's membership has failed"]
    cluster.until(lambda: cluster.database.metadata.image.live == (2, 3), within_ms=3_000)
    assert broker.hosting.told.count("exit") == 1


# -- giving back


def return_of_first(cluster: Members) -> None:
    """Have broker 1 die, and another process of its come when all is led by others."""
    cluster.brokers[0].kill()
    cluster.until(lambda: cluster.brokers[1].hosting.led["orders", 0] == (2, 1))
    cluster.brokers[0] = type(cluster.brokers[0])(cluster, 1)


def test_a_preferred_leader_that_is_back_is_given_its_partitions(cluster: Members):
    return_of_first(cluster)
    cluster.run(9_000)
    assert not cluster.brokers[1].hosting.released
    cluster.run(1_500)
    assert [key.number for key in cluster.brokers[1].hosting.released] == [0]
    assert all(broker.hosting.led["orders", 0] == (1, 2) for broker in cluster.brokers)


def test_a_partition_is_given_back_when_what_was_decided_there_has_landed(cluster: Members):
    return_of_first(cluster)
    cluster.brokers[1].hosting.held = []
    cluster.run(15_000)
    assert cluster.brokers[0].hosting.led["orders", 0] == (2, 1)
    (landed,) = cluster.brokers[1].hosting.held
    landed()
    cluster.run(20)
    assert cluster.brokers[0].hosting.led["orders", 0] == (1, 2)


def test_an_offer_that_was_not_answered_is_decided_by_another(cluster: Members):
    return_of_first(cluster)
    giver = cluster.brokers[1]
    giver.fates = [Fate(None, None, 30)]
    cluster.run(10_000)
    # to itself, where the first can happen no more
    cluster.until(lambda: giver.hosting.led["orders", 0] == (2, 2))
    cluster.run(20)
    assert giver.hosting.led["orders", 0] == (1, 3)


def test_who_gives_partitions_away_says_how_many_and_to_whom_and_not_what_it_takes_back(
    cluster: Members, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "coterie.broker")
    return_of_first(cluster)
    cluster.brokers[1].fates = [Fate(None, None, 30)]

    cluster.run(12_000)

    assert [line for line in caplog.messages if line.startswith("gave ")] == ["gave 1 partition to broker 1"]


def test_of_many_partitions_that_are_given_away_a_few_at_a_time_there_is_one_line(
    cluster: Members, caplog: pytest.LogCaptureFixture
):
    """It was one for each offer: five hundred of five thousand partitions that `balance` moved."""
    caplog.set_level("INFO", "coterie.broker")
    many, of_groups = ((1, 2),) * (3 * AT_ONCE), ((1, 2),) * 4
    cluster.change(CreateTopics((NewTopic(UUID(int=2), "many", many),)))
    cluster.change(CreateTopics((NewTopic(UUID(int=9), OFFSETS_TOPIC, of_groups),)))
    cluster.run(1_000)
    return_of_first(cluster)

    cluster.run(15_000)

    assert {row.leader for row in cluster.database.metadata.image.partitions(UUID(int=2))} == {1}
    assert led_groups(cluster) == [1] * 4
    gave = [line for line in caplog.messages if line.startswith("gave ")]
    assert gave == [f"gave {len(many) + 5} partitions to broker 1"]


def test_what_has_landed_while_its_leader_was_suspended_is_given_back_all_the_same(cluster: Members):
    return_of_first(cluster)
    giver = cluster.brokers[1]
    giver.hosting.held = []
    cluster.run(11_000)
    (landed,) = giver.hosting.held
    giver.hosting.held = None
    cluster.database.go_away()
    cluster.run(2_000)
    assert giver.hosting.told[-1] == "suspend"
    landed()
    cluster.database.come_back()
    cluster.run(2_000)
    assert cluster.brokers[0].hosting.led["orders", 0][0] == 1


def test_what_was_about_to_be_given_back_when_its_leader_was_asked_to_stop_is(cluster: Members):
    return_of_first(cluster)
    giver = cluster.brokers[1]
    giver.hosting.held = []
    cluster.run(11_000)
    giver.member.terminate()
    (landed,) = giver.hosting.held
    giver.hosting.held = None
    landed()
    took_ms = cluster.until(lambda: "fence" in giver.hosting.told)
    assert took_ms < 200
    assert giver.hosting.told[1:] == ["release", "drain", "fence"]
    assert cluster.brokers[0].hosting.led["orders", 0] == (1, 2)


def test_of_what_groups_are_in_one_partition_at_a_time_is_given_back(cluster: Members):
    cluster.change(GROUPS)
    return_of_first(cluster)
    cluster.run(200)
    (back, *givers) = cluster.brokers
    back.hosting.loads = True
    cluster.run(11_000)
    assert led_groups(cluster).count(1) == len(givers)

    counts = [len(givers)]
    while counts[-1] < 6:
        load(back)
        cluster.run(700)
        counts.append(led_groups(cluster).count(1))
    assert all(before < after <= before + len(givers) for before, after in pairwise(counts))


# -- from one image to another


@settings(max_examples=40)
@given(data=st.data())
def test_whoever_applies_all_differences_knows_who_leads_and_which_topics_there_are(data: st.DataObject):
    engine = PretendedEngine()
    hosting, topics, before = RecordingHosting(), {}, engine.image
    for _ in range(data.draw(st.integers(1, 15), "changes")):
        engine.execute(data.draw(changes(engine.image), "change"))
        if data.draw(st.booleans(), "is read"):
            continue  # with the next
        after = engine.image
        found = differences(before, after)
        for topic, _ in found.deleted:
            assert topics.pop(topic.topic_id).name == topic.name
        topics |= {topic.topic_id: topic for topic in (*found.made, *found.changed)}
        hosting.apply(before, after)
        assert sorted(topics.values()) == sorted(after.topics())
        names = {row.topic_id: row.name for row in topics.values()}
        assert hosting.led == {
            (names[row.topic_id], row.number): (row.leader, row.leader_epoch)
            for row in after.all_partitions()
        }
        assert not any(contradicts(before, after, me) for me in BROKERS)
        before = after


def test_an_image_contradicts_what_was_led_in_the_same_epoch_or_a_later_one():
    cluster = Members(2)
    cluster.run(100)
    cluster.change(ORDERS)
    engine = cluster.database.metadata
    before, other = engine.image, engine.tables.copy()
    cluster.change(TakeOver(1, before.brokers[1].broker_epoch, engine.tables.beats[1][0]))
    taken_over = engine.image

    assert not contradicts(before, taken_over, 2)
    assert contradicts(taken_over, before, 2)
    assert contradicts(taken_over, before, 1)
    assert contradicts(before, Image(), 1)
    assert not contradicts(Image(), before, 1)
    assert not contradicts(before, other.image, 1)


# -- what an operator asks for


def leader_of(cluster: Members, number: int) -> int | None:
    row = cluster.database.metadata.image.partition(UUID(int=1), number)
    assert row is not None
    return row.leader


def test_a_partition_that_is_moved_is_given_away_at_once_by_its_leader(cluster: Members):
    row = cluster.database.metadata.image.partition(UUID(int=1), 0)
    assert row is not None
    assert row.leader == 1

    cluster.change(ReassignPartitions((Reassignment(row.topic_id, 0, row.version, (3,)),)))
    took_ms = cluster.until(lambda: leader_of(cluster, 0) == 3)

    assert took_ms < 200
    assert [*cluster.brokers[0].hosting.released] == [PartitionKey(row.topic_id, 0, row.leader_epoch)]
    cluster.run(100)
    assert cluster.brokers[2].hosting.led["orders", 0] == (3, row.leader_epoch + 1)


def test_a_broker_that_dies_before_it_has_given_a_partition_away_leaves_it_to_whom_it_was_to_go(
    cluster: Members,
):
    row = cluster.database.metadata.image.partition(UUID(int=1), 0)
    assert row is not None
    cluster.brokers[0].kill()

    cluster.change(ReassignPartitions((Reassignment(row.topic_id, 0, row.version, (3, 2)),)))
    cluster.until(lambda: leader_of(cluster, 0) != 1)

    assert leader_of(cluster, 0) == 3


def test_a_broker_that_was_unregistered_ends_when_it_comes_back_and_nobody_misses_it(cluster: Members):
    broker = cluster.brokers[2]
    epoch = cluster.database.metadata.image.brokers[3].broker_epoch
    broker.reaches = False
    for session in [*cluster.database.metadata._sessions]:
        if session.broker_id == 3:
            session.end()
    cluster.until(lambda: 3 not in cluster.database.metadata.image.live)
    cluster.change(UnregisterBroker(3, epoch))

    broker.reaches = True
    cluster.until(lambda: broker.hosting.sentence is not None)

    assert broker.hosting.sentence == "broker 3 was removed from the cluster"
    assert not cluster.database.metadata.image.brokers[3].is_registered


def test_a_broker_that_is_unregistered_while_it_runs_ends_and_others_lead_what_it_led(cluster: Members):
    broker = cluster.brokers[2]
    epoch = cluster.database.metadata.image.brokers[3].broker_epoch
    assert 3 in {leader_of(cluster, number) for number in range(3)}

    cluster.change(UnregisterBroker(3, epoch))
    cluster.until(lambda: broker.hosting.sentence is not None)

    assert broker.hosting.sentence == "broker 3 was removed from the cluster"
    assert not cluster.database.takes_appends(3, epoch)
    assert {leader_of(cluster, number) for number in range(3)} == {1, 2}


@pytest.mark.parametrize("went_back", [False, True])
def test_who_gives_a_partition_away_looks_soon_whether_it_is_served_also_where_the_engine_went_back(
    cluster: Members, went_back: bool
):
    """Versions are numbered from an older one then: what it had waited for before is none of them."""
    giver, taker, _ = cluster.brokers
    cluster.change(GROUPS)
    moment = cluster.database.moment()
    for number in range(60):
        cluster.change(SetSetting("", f"x{number}", "1", 0))
    taker.hosting.loads = True
    ask_for(cluster, 0)
    cluster.until(lambda: led_groups(cluster)[0] == 2)
    cluster.run(400)
    if went_back:
        cluster.database.fall_back(moment, "1")
        cluster.until(lambda: giver.hosting.told[-1] == "resume anew")
    load(taker)
    cluster.run(1_000)

    ask_for(cluster, 1)
    cluster.until(lambda: led_groups(cluster)[1] == 2)
    beats = cluster.database.metadata.tables.beats
    before, _ = beats[1]
    cluster.run(100)
    assert beats[1][0] - before >= 4


def ask_for(cluster: Members, *numbers: int) -> None:
    """Have the second broker be asked for, to lead partitions of groups."""
    rows = cluster.database.metadata.image.partitions(UUID(int=9))
    wanted = tuple(Reassignment(row.topic_id, row.number, row.version, (2,)) for row in rows)
    cluster.change(ReassignPartitions(tuple(one for one in wanted if one.number in numbers)))
