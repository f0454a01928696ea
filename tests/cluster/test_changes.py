"""Changes of metadata: what each writes, and that one which was overtaken, or is late, writes nothing."""

from __future__ import annotations

from uuid import UUID

import pytest

from coterie.base.ids import ZERO_UUID
from coterie.broker.cluster.changes import (
    AddPartitions,
    Change,
    Changed,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    GiveLeadership,
    LeaveCluster,
    NewTopic,
    NotChanged,
    PartitionKey,
    RaiseLevel,
    Reassignment,
    ReassignPartitions,
    RegisterBroker,
    SetConfigs,
    SetSetting,
    StartLeaving,
    TakeOver,
    UnregisterBroker,
    Why,
)
from coterie.broker.cluster.image import BrokerState, Endpoint, LeaderAndEpoch, PartitionRow
from coterie.broker.cluster.pretended import PretendedEngine
from coterie.broker.cluster.statements import BrokerHeartbeat, ProducerIds, ReadDelta, ReserveProducerIds

ORDERS = UUID(int=1)
US, THEM = UUID(int=7), UUID(int=8)
AT = (Endpoint("PLAINTEXT", "b1", 9092),)


class Cluster:
    """Three brokers and a topic, whose partitions prefer them in turn."""

    def __init__(self) -> None:
        self.fenced: list[int] = []
        self.registered: list[tuple[int, int]] = []
        self.engine = PretendedEngine(
            fenced=self.fenced.append, registered=lambda *one: self.registered.append(one)
        )
        self.epochs = {one: self.change(RegisterBroker(one, US, 0, AT, "r1", 0, "test")) for one in (1, 2, 3)}
        self.change(CreateTopics((NewTopic(ORDERS, "orders", ((1, 2), (2, 3), (3, 1))),)))

    def change(self, change: Change) -> int:
        answer = self.engine.execute(change)
        assert isinstance(answer, Changed), answer
        return answer.version

    def refused(self, change: Change) -> NotChanged:
        before = self.engine.image
        answer = self.engine.execute(change)
        assert isinstance(answer, NotChanged)
        assert self.engine.image is before
        return answer

    def beat(self, broker_id: int, seen: int = 0) -> bool:
        answer = self.engine.execute(BrokerHeartbeat(broker_id, self.epochs[broker_id], seen))
        return answer.counted

    def take_over(self, broker_id: int, beats: int = 0) -> TakeOver:
        return TakeOver(broker_id, self.epochs[broker_id], beats)

    def leaders(self) -> list[tuple[int | None, int]]:
        return [(row.leader, row.leader_epoch) for row in self.engine.image.partitions(ORDERS)]

    def key(self, number: int) -> PartitionKey:
        leader = self.engine.image.leader(ORDERS, number)
        assert leader is not None
        return PartitionKey(ORDERS, number, leader.leader_epoch)

    def row(self, number: int) -> PartitionRow:
        row = self.engine.image.partition(ORDERS, number)
        assert row is not None
        return row

    def moved(self, number: int, *replicas: int) -> ReassignPartitions:
        return ReassignPartitions((Reassignment(ORDERS, number, self.row(number).version, replicas),))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_broker_that_registers_has_the_version_as_its_epoch(cluster: Cluster):
    assert cluster.epochs == {1: 1, 2: 2, 3: 3}
    assert cluster.registered == [(1, 1), (2, 2), (3, 3)]
    assert cluster.engine.image.live == (1, 2, 3)
    assert cluster.engine.image.brokers[1].listeners == AT
    assert cluster.leaders() == [(1, 0), (2, 0), (3, 0)]


def test_a_registration_replaces_the_one_that_it_names_and_no_later_one(cluster: Cluster):
    assert cluster.refused(RegisterBroker(1, US, 0)) == NotChanged(
        Why.OTHER_EPOCH, 1, US, names=("b1:9092",)
    ), "who is refused is told where the other is"

    epoch = cluster.change(RegisterBroker(1, THEM, 1))

    assert cluster.refused(RegisterBroker(1, THEM, 1)) == NotChanged(Why.OTHER_EPOCH, epoch, THEM)
    assert cluster.refused(RegisterBroker(9, US, 1)) == NotChanged(Why.OTHER_EPOCH)
    assert cluster.leaders()[0] == (1, 1)  # what its earlier registration led, in the next leader epoch
    assert not cluster.beat(1)  # in the earlier epoch


def test_who_is_taken_over_is_fenced_and_its_appends_in_the_same_moment(cluster: Cluster):
    cluster.fenced.clear()

    cluster.change(cluster.take_over(2))

    assert cluster.fenced == [2]
    assert cluster.leaders() == [(1, 0), (3, 1), (3, 0)]
    assert cluster.engine.image.live == (1, 3)
    assert not cluster.beat(2)


def test_nobody_is_taken_over_who_has_sent_a_heartbeat_meanwhile(cluster: Cluster):
    late = cluster.take_over(2, beats=0)
    assert cluster.beat(2)

    assert cluster.refused(late) == NotChanged(Why.BEATS_ON)
    assert cluster.change(cluster.take_over(2, beats=1))


def test_a_takeover_happens_once_and_never_to_a_later_registration(cluster: Cluster):
    cluster.change(cluster.take_over(2))
    assert cluster.refused(cluster.take_over(2)).why is Why.FENCED

    cluster.change(RegisterBroker(2, US, cluster.epochs[2]))
    assert cluster.refused(cluster.take_over(2)).why is Why.OTHER_EPOCH
    assert cluster.refused(TakeOver(9, 1, 0)) == NotChanged(Why.OTHER_EPOCH, 0)


def test_what_nobody_leads_is_led_by_whoever_registers_first(cluster: Cluster):
    for one in (1, 2, 3):
        cluster.change(cluster.take_over(one))
    assert [leader for leader, _ in cluster.leaders()] == [None, None, None]

    cluster.change(RegisterBroker(3, US, cluster.epochs[3]))

    assert {leader for leader, _ in cluster.leaders()} == {3}


def test_who_is_leaving_leads_on_and_is_given_nothing_more(cluster: Cluster):
    cluster.change(StartLeaving(3, cluster.epochs[3]))
    assert cluster.engine.image.leader(ORDERS, 2) == LeaderAndEpoch(3, 0)

    cluster.change(cluster.take_over(2))
    assert cluster.leaders() == [(1, 0), (1, 1), (3, 0)]
    cluster.change(LeaveCluster(3, cluster.epochs[3]))

    assert cluster.leaders() == [(1, 0), (1, 1), (1, 1)]
    assert cluster.refused(LeaveCluster(3, cluster.epochs[3])).why is Why.FENCED
    assert cluster.refused(StartLeaving(3, cluster.epochs[3])).why is Why.FENCED


def test_a_leader_gives_away_what_it_leads_to_one_that_is_live(cluster: Cluster):
    given = GiveLeadership(1, cluster.epochs[1], (cluster.key(0),), 2)

    cluster.change(given)

    assert cluster.leaders()[0] == (2, 1)
    assert cluster.refused(given).why is Why.CHANGED
    cluster.change(cluster.take_over(3))
    assert cluster.refused(GiveLeadership(2, cluster.epochs[2], (cluster.key(0),), 3)).why is Why.NOT_LIVE


def test_once_a_leader_has_kept_a_partition_an_earlier_offer_of_it_comes_to_nothing(cluster: Cluster):
    late = GiveLeadership(1, cluster.epochs[1], (cluster.key(0),), 2)

    cluster.change(late._replace(to=1))

    assert cluster.leaders()[0] == (1, 1)
    assert cluster.refused(late).why is Why.CHANGED


def test_whoever_is_asked_for_leads_next_and_not_the_first_replica(cluster: Cluster):
    cluster.change(cluster.moved(0, 3, 2))
    assert cluster.leaders()[0] == (1, 0)  # until it gives the partition away
    assert cluster.row(0).next_leader == 3

    cluster.change(cluster.moved(0, 2, 3))  # who is about to lead is one of them
    cluster.change(LeaveCluster(1, cluster.epochs[1]))

    assert cluster.leaders()[0] == (3, 1)
    assert cluster.row(0).next_leader is None


def test_replicas_are_others_at_once_and_a_leader_that_is_one_of_them_leads_on(cluster: Cluster):
    cluster.change(cluster.moved(0, 3, 1))

    assert cluster.row(0).replicas == (3, 1)
    assert cluster.leaders()[0] == (1, 0)
    assert cluster.row(0).next_leader is None


def test_a_partition_is_not_given_to_replicas_none_of_which_lives(cluster: Cluster):
    cluster.change(cluster.take_over(3))

    cluster.change(cluster.moved(0, 3))

    assert cluster.leaders()[0] == (1, 0)
    assert cluster.row(0).next_leader is None


def test_a_partition_that_nobody_leads_is_led_by_a_replica_that_lives_at_once(cluster: Cluster):
    for one in (1, 2, 3):
        cluster.change(cluster.take_over(one))
    cluster.change(CreateTopics((NewTopic(UUID(int=2), "other", ((1,),)),)))
    other = cluster.engine.image.partition(UUID(int=2), 0)
    assert other is not None
    assert other.leader is None
    late = ElectLeaders((PartitionKey(UUID(int=2), 0, 0),))
    assert cluster.refused(late).why is Why.NOT_LIVE

    cluster.change(RegisterBroker(2, US, cluster.epochs[2]))

    assert cluster.engine.image.leader(UUID(int=2), 0) == LeaderAndEpoch(2, 1)
    assert cluster.refused(late).why is Why.CHANGED


def test_a_reassignment_that_was_overtaken_by_any_change_of_the_partition_does_nothing(cluster: Cluster):
    late = cluster.moved(0, 3)
    cluster.change(cluster.moved(0, 2))
    cluster.change(cluster.moved(0, 1, 2))

    assert cluster.refused(late).why is Why.CHANGED
    gone = UUID(int=9)
    assert cluster.refused(ReassignPartitions((Reassignment(gone, 0, 1, (1,)),))).why is Why.NO_TOPIC
    assert cluster.refused(ElectLeaders((PartitionKey(gone, 0, 0),))).why is Why.NO_TOPIC


def test_an_election_has_the_leader_give_the_partition_to_the_first_replica(cluster: Cluster):
    cluster.change(GiveLeadership(1, cluster.epochs[1], (cluster.key(0),), 2))
    asked = ElectLeaders((cluster.key(0), cluster.key(1)))

    cluster.change(asked)

    assert [cluster.row(number).next_leader for number in range(3)] == [1, None, None]
    cluster.change(GiveLeadership(2, cluster.epochs[2], (cluster.key(0),), 1))
    assert cluster.leaders()[0] == (1, 2)
    assert cluster.refused(asked).why is Why.CHANGED


@pytest.mark.parametrize("before", [None, StartLeaving, LeaveCluster])
def test_a_broker_that_is_unregistered_is_gone_whether_it_runs_or_not_and_may_come_again(
    cluster: Cluster, before: type[StartLeaving | LeaveCluster] | None
):
    if before is not None:
        cluster.change(before(3, cluster.epochs[3]))
    gone = UnregisterBroker(3, cluster.epochs[3])
    assert cluster.refused(gone._replace(broker_epoch=1)) == NotChanged(Why.OTHER_EPOCH, 3, US)

    cluster.change(gone)

    row = cluster.engine.image.brokers[3]
    assert (row.is_registered, row.incarnation, row.listeners) == (False, ZERO_UUID, ())
    assert row.state is BrokerState.FENCED
    assert 3 not in {leader for leader, _ in cluster.leaders()}
    assert cluster.refused(gone).why is Why.NOT_REGISTERED
    assert cluster.refused(UnregisterBroker(9, 1)).why is Why.NOT_REGISTERED
    late = RegisterBroker(3, US, cluster.epochs[3], AT)  # of the process that was there
    assert cluster.refused(late) == NotChanged(Why.OTHER_EPOCH, row.version, ZERO_UUID)
    cluster.change(RegisterBroker(3, THEM, row.broker_epoch, AT))
    assert cluster.engine.image.brokers[3].is_registered


def test_a_partition_whose_topic_was_deleted_is_no_obstacle(cluster: Cluster):
    key = cluster.key(0)
    cluster.change(DeleteTopics((ORDERS,)))

    cluster.change(GiveLeadership(1, cluster.epochs[1], (key,), 2))


def test_a_topic_whose_name_was_taken_meanwhile_is_refused_with_the_name(cluster: Cluster):
    new = (NewTopic(UUID(int=2), "other", ((1,),)), NewTopic(UUID(int=3), "orders", ((1,),)))

    assert cluster.refused(CreateTopics(new)) == NotChanged(Why.NAME_TAKEN, names=("orders",))
    assert cluster.engine.image.topic("other") is None


def test_a_topic_whose_name_differs_only_in_dots_from_one_that_was_made_meanwhile_is_refused(
    cluster: Cluster,
):
    cluster.change(CreateTopics((NewTopic(UUID(int=2), "a.b", ((1,),)),)))
    new = (NewTopic(UUID(int=3), "a_b", ((1,),)), NewTopic(UUID(int=4), "c", ((1,),)))

    assert cluster.refused(CreateTopics(new)) == NotChanged(Why.NAME_COLLIDES, names=("a_b",))
    cluster.change(CreateTopics(new[1:]))


def test_a_topic_that_was_deleted_does_not_come_back_by_a_late_change(cluster: Cluster):
    cluster.change(DeleteTopics((ORDERS,)))

    late = CreateTopics((NewTopic(ORDERS, "orders", ((1,),)),))
    assert cluster.refused(late).why is Why.ID_TAKEN
    assert cluster.refused(DeleteTopics((ORDERS,))).why is Why.NO_TOPIC
    cluster.change(CreateTopics((NewTopic(UUID(int=2), "orders", ((1,),)),)))


def test_partitions_have_ids_that_no_other_ever_had(cluster: Cluster):
    cluster.change(DeleteTopics((ORDERS,)))
    cluster.change(
        CreateTopics((NewTopic(UUID(int=2), "a", ((1,), (2,))), NewTopic(UUID(int=3), "b", ((3,),))))
    )
    cluster.change(AddPartitions(UUID(int=2), 2, ((1,),)))

    assert sorted(row.partition_id for row in cluster.engine.image.all_partitions()) == [4, 5, 6, 7]


def test_a_topic_grows_from_what_it_had_and_only_once(cluster: Cluster):
    grown = AddPartitions(ORDERS, 3, ((2, 1), (9, 8)))

    cluster.change(grown)

    assert cluster.refused(grown) == NotChanged(Why.CHANGED, names=("orders",))
    assert cluster.leaders()[3] == (2, 0)
    assert cluster.leaders()[4][0] in (1, 2, 3)  # none of its replicas is live
    assert cluster.refused(AddPartitions(UUID(int=9), 1, ((1,),))).why is Why.NO_TOPIC


def test_settings_of_a_topic_are_replaced_from_what_they_were(cluster: Cluster):
    version = cluster.engine.image.topic("orders").version
    first = SetConfigs(ORDERS, version, {"retention.ms": "1"})

    cluster.change(first)

    assert cluster.engine.image.topic("orders").configs == {"retention.ms": "1"}
    assert cluster.refused(first).why is Why.CHANGED
    assert cluster.refused(SetConfigs(UUID(int=9), 0, {})).why is Why.NO_TOPIC


def test_a_setting_is_changed_from_what_it_was_and_a_late_change_of_it_is_refused(cluster: Cluster):
    first = SetSetting("", "log.cleaner.threads", "2", 0)
    version = cluster.change(first)

    assert cluster.engine.image.setting("", "log.cleaner.threads") == "2"
    assert cluster.refused(first).why is Why.CHANGED
    cluster.change(SetSetting("", "log.cleaner.threads", None, version))
    assert cluster.engine.image.setting("", "log.cleaner.threads") is None
    assert cluster.refused(first).why is Why.CHANGED


def test_a_heartbeat_shows_everybody_that_is_not_fenced(cluster: Cluster):
    cluster.change(cluster.take_over(3))
    session = cluster.engine.connect(2, later=lambda *_: None, choose=lambda _: None, presence=True)
    assert session is not None

    answer = cluster.engine.execute(BrokerHeartbeat(1, cluster.epochs[1], 4))

    assert answer.version == 5
    assert [(one.broker_id, one.beats, one.present, one.seen) for one in answer.brokers] == [
        (1, 1, False, 4),
        (2, 0, True, 0),
    ]


def test_a_delta_has_what_has_changed_since(cluster: Cluster):
    image = cluster.engine.image
    cluster.change(cluster.take_over(3))
    cluster.change(DeleteTopics((ORDERS,)))
    cluster.change(SetSetting("1", "a", "b", 0))

    delta = cluster.engine.execute(ReadDelta(image.version))

    assert [row.broker_id for row in delta.brokers] == [3]
    assert [row.deleted for row in delta.topics] == [True]
    assert image.after(delta) == cluster.engine.image


def test_producer_ids_come_in_blocks_that_nobody_else_gets(cluster: Cluster):
    blocks = [cluster.engine.execute(ReserveProducerIds()) for _ in range(2)]

    assert blocks == [ProducerIds(0, 1_000), ProducerIds(1_000, 1_000)]


def test_a_server_that_was_behind_gives_no_producer_ids_out_again(cluster: Cluster):
    behind = cluster.engine.tables.copy()
    before = cluster.engine.execute(ReserveProducerIds())

    cluster.engine.fall_back(behind, "1")
    blocks = [cluster.engine.execute(ReserveProducerIds()) for _ in range(2)]

    assert before not in blocks
    assert blocks[0] != blocks[1]


def test_the_level_is_raised_when_the_software_of_all_who_are_not_fenced_has_it(cluster: Cluster):
    for one in (1, 2):
        cluster.epochs[one] = cluster.change(RegisterBroker(one, US, cluster.epochs[one], AT, level=2))
    assert cluster.refused(RaiseLevel(1)) == NotChanged(Why.OLDER_SOFTWARE, names=("3",))
    cluster.change(LeaveCluster(3, cluster.epochs[3]))

    cluster.change(RaiseLevel(1))

    assert cluster.engine.image.level == 1
    assert cluster.refused(RaiseLevel(1)).why is Why.CHANGED
    assert cluster.refused(RegisterBroker(3, US, cluster.epochs[3], AT)).why is Why.OLDER_SOFTWARE
    cluster.change(RegisterBroker(3, US, cluster.epochs[3], AT, level=1))
    assert cluster.engine.image.level == 1
