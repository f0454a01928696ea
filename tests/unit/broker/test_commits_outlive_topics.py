"""What groups have committed for a topic that is gone, where the log says late that it is dropped, or where
the news of it comes late: it does not count for the next topic of the name.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coterie.base.codes import Code
from coterie.base.topic_names import TRANSACTIONS_TOPIC
from coterie.broker.runtime.forgetting import AGAIN_MS
from coterie.broker.runtime.pieces import straight_on
from coterie.storage.log.contract import StorageFailed
from unit.broker.group_api_rig import ask_fetch, fetch_topic
from unit.broker.late_rig import LateRig
from unit.broker.member_rig import GROUPS, ME, OTHER, MemberRig
from unit.broker.test_txn_offset_commit import Producer

DELETE_TOPICS = 20
row = pytest.mark.row


def committed_of(rig: LateRig, *, version: int = 7, every: bool = False) -> list[int]:
    """Return what the group has committed for the first partition of the topic, if that is told."""
    topics = None if every else (fetch_topic(rig, version, "orders", 0),)
    answer = ask_fetch(rig.client(), version, "g", topics)
    assert answer.error_code == Code.NONE
    return [one.committed_offset for topic in answer.topics for one in topic.partitions]


def land_all(rig: LateRig) -> None:
    while rig.rounds:
        rig.land()


# -- a broker alone


@pytest.fixture
def rig() -> LateRig:
    rig = LateRig()
    rig.by_hand = False
    rig.committed("g", ("orders", 0, 5))
    rig.by_hand = True
    return rig


def delete(rig: LateRig) -> Any:
    client = rig.client()
    client.send(DELETE_TOPICS, 5, topic_names=("orders",), timeout=1_000)
    return client


def create(rig: LateRig) -> list[dict[str, StorageFailed]]:
    """Make the topic anew; what is returned gets what has failed, once that is known."""
    known: list[dict[str, StorageFailed]] = []

    def pieces() -> Any:
        manager = rig.node.topic_manager
        known.append((yield from manager.create_topics([rig.node.topics.new("orders", replicas=[(1,)])])))

    straight_on(pieces())
    rig.settle()
    return known


@row("OM-7")
def test_a_deletion_is_answered_when_it_has_landed_that_commits_are_dropped(rig: LateRig):
    client = delete(rig)

    assert client.answers() == []
    rig.land()
    assert [answer.responses[0].error_code for answer in client.answers()] == [Code.NONE]


@row("OM-7")
def test_a_topic_begins_without_the_commits_whose_dropping_was_refused_late(rig: LateRig):
    """They are back then, until a topic of the name is made."""
    client = delete(rig)
    rig.refuse()
    assert [answer.responses[0].error_code for answer in client.answers()] == [Code.NONE]
    assert committed_of(rig) == [5]

    failed = create(rig)
    assert failed == []
    land_all(rig)

    assert failed == [{}]
    assert committed_of(rig) == [-1]


@row("OM-7")
def test_a_topic_whose_name_has_commits_that_are_kept_by_a_late_refusal_is_not_made(rig: LateRig):
    delete(rig)
    rig.refuse()
    failed = create(rig)

    rig.refuse()

    assert "an earlier topic" in str(failed[0]["orders"])
    assert rig.node.topics.get("orders") is None
    failed = create(rig)
    land_all(rig)
    assert failed == [{}]
    assert committed_of(rig) == [-1]


@row("OM-7")
def test_a_commit_that_is_in_flight_when_its_topic_goes_is_dropped_behind_it(rig: LateRig):
    rig.commit(rig.client(), 6)
    client = delete(rig)

    land_all(rig)

    assert [answer.responses[0].error_code for answer in client.answers()] == [Code.NONE]
    assert committed_of(rig) == [-1]


def test_an_internal_topic_is_made_at_once_whatever_is_in_flight(rig: LateRig):
    """Found by the swarm: whoever needs it cannot wait."""
    rig.commit(rig.client(), 6)

    assert rig.node.topic_manager.ensure_internal(TRANSACTIONS_TOPIC) is not None


# -- one of several, which hears of topics by an image


class Cluster(MemberRig):
    """A group has committed for `orders`, which goes, and is made anew with another id."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.committed("g", ("orders", 0, 5))
        self.gone = {self.topic_id("orders"): "orders"}

    def anew(self) -> None:
        """Have the topic deleted and another made, without a word to the groups."""
        epoch = self.leaders.leader_epoch(*GROUPS)
        self.elect(GROUPS, OTHER, epoch + 1)
        self.node.topics.delete(["orders"])
        self.node.topics.gone("orders")
        for partition in range(2):
            self.store.delete_log("orders", partition, now_ms=self.now_ms)
        self.node.topic_manager.create_topic("orders", partitions=2)
        assert self.topic_id("orders") not in self.gone
        self.elect(GROUPS, ME, epoch + 2)
        self.open(GROUPS)

    def stored(self) -> dict[int, int]:
        """Return what the shard holds for the topic, by partition."""
        table = self.host.shard.offsets.get("g", {}).get("orders", {})
        return {partition: stored.offset for partition, stored in table.items()}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@row("OM-7")
def test_the_news_that_a_topic_is_gone_drops_what_was_committed_for_it(cluster: Cluster):
    end = cluster.host.log.end_offset

    cluster.node.coordinator.topics_gone(cluster.gone)
    cluster.settle()

    assert cluster.stored() == {}
    assert cluster.host.log.end_offset == end + 1


@row("OM-7", "OM-6")
def test_late_news_leaves_what_was_committed_for_the_next_topic_of_the_name(cluster: Cluster):
    cluster.anew()
    cluster.committed("g", ("orders", 1, 7))
    assert cluster.stored() == {0: 5, 1: 7}

    cluster.node.coordinator.topics_gone(cluster.gone)
    cluster.settle()

    assert cluster.stored() == {1: 7}


@row("OM-7")
def test_what_a_late_refusal_brings_back_is_dropped_again(cluster: Cluster):
    cluster.by_hand = True
    cluster.node.coordinator.topics_gone(cluster.gone)
    cluster.settle()
    for _ in range(3):
        assert cluster.stored() == {}
        cluster.refuse()
        cluster.pass_ms(AGAIN_MS)

    land_all(cluster)
    cluster.pass_ms(AGAIN_MS)

    assert cluster.stored() == {}
    assert cluster.rounds == []
    assert len(cluster.node.purgatory) == len(MemberRig().node.purgatory), "nothing is tried for ever"


@row("OM-7")
def test_two_topics_of_one_name_that_are_gone_are_both_dropped(cluster: Cluster):
    cluster.anew()
    cluster.committed("g", ("orders", 1, 7))
    gone = cluster.gone | {cluster.topic_id("orders"): "orders"}

    cluster.node.coordinator.topics_gone(gone)
    cluster.settle()

    assert cluster.stored() == {}


@row("OM-7")
@pytest.mark.parametrize("state", ["loading", "suspended", "draining", "refused"])
def test_news_that_comes_while_nothing_is_decided_counts_afterwards(cluster: Cluster, state: str):
    if state == "loading":
        cluster.elect(GROUPS, ME, 2)
    elif state == "suspended":
        cluster.elections.suspend()
    elif state == "draining":
        cluster.drained(GROUPS)
    else:
        cluster.by_hand = True

    cluster.node.coordinator.topics_gone(cluster.gone)
    cluster.settle()

    if state == "loading":
        cluster.open(GROUPS)
    elif state == "suspended":
        cluster.elections.resume()
    elif state == "draining":
        cluster.elections.heard(GROUPS, ME, cluster.leaders.leader_epoch(*GROUPS) + 1)
    else:  # what is refused is tried again after the suspension that came meanwhile
        cluster.elections.suspend()
        cluster.refuse()
        cluster.pass_ms(10 * AGAIN_MS)
        assert cluster.stored() == {0: 5}
        cluster.elections.resume()
        cluster.by_hand = False
    cluster.settle()
    assert cluster.stored() == {}


@row("OM-7")
@pytest.mark.parametrize("suspended", [False, True])
def test_news_is_not_lost_with_a_shard_that_is_elected_anew_or_suspended_while_it_loads(
    cluster: Cluster, suspended: bool
):
    cluster.elect(GROUPS, ME, 2)
    cluster.node.coordinator.topics_gone(cluster.gone)

    if suspended:
        cluster.elections.suspend()
        cluster.elections.resume()
    else:
        cluster.elect(GROUPS, ME, 3)
    cluster.open(GROUPS)

    assert cluster.stored() == {}


@row("OF-6")
@pytest.mark.parametrize("version", [7, 9, 10])
@pytest.mark.parametrize("every", [False, True])
def test_commits_that_nobody_has_dropped_do_not_count_for_the_next_topic_of_the_name(
    cluster: Cluster, version: int, every: bool
):
    """The shard was elsewhere when the topic went, and whoever led it did not drop them."""
    cluster.anew()
    assert cluster.stored() == {0: 5}

    assert committed_of(cluster, version=version, every=every) == ([] if every else [-1])
    cluster.committed("g", ("orders", 0, 0))
    assert committed_of(cluster, version=version, every=every) == [0]


def test_a_broker_alone_tells_commits_by_name_as_apache_kafka_does():
    rig = LateRig()
    rig.by_hand = False
    rig.committed("g", ("orders", 0, 5))
    by_partition = rig.node.coordinator.host_of("g").shard.offsets["g"]["orders"]
    by_partition[0] = by_partition[0]._replace(topic_id=UUID(int=1))

    assert committed_of(rig) == [5]
    assert committed_of(rig, version=10) == [-1]


@row("OM-3", "OF-6")
def test_offsets_that_a_transaction_has_committed_for_a_topic_do_not_count_for_the_next(cluster: Cluster):
    """Apache Kafka does not know then for which topic they were: it stores no id with them."""
    producer = Producer(cluster)
    assert producer.commit(("orders", 0, 6)) == [Code.NONE]
    cluster.anew()

    producer.end()

    assert cluster.stored() == {0: 6}
    assert committed_of(cluster) == [-1]


@row("OM-7", "OM-3")
def test_late_news_leaves_what_a_transaction_has_committed_for_the_next_topic(cluster: Cluster):
    cluster.anew()
    producer = Producer(cluster)
    assert producer.commit(("orders", 0, 6)) == [Code.NONE]

    cluster.node.coordinator.topics_gone(cluster.gone)
    cluster.settle()
    producer.end()

    assert committed_of(cluster) == [6]


@row("OM-7", "OM-3")
def test_the_news_that_a_topic_is_gone_drops_what_transactions_have_committed_for_it(cluster: Cluster):
    producer = Producer(cluster)
    assert producer.commit(("orders", 0, 6)) == [Code.NONE]

    cluster.node.coordinator.topics_gone(cluster.gone)
    cluster.settle()
    producer.end()

    assert cluster.stored() == {}
