"""Replicas and leaders of a cluster are moved by proposals, and brokers removed: what operators are answered.

The metadata is in memory, and the broker's image is as old as a test wants it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from coterie.broker.api import replicas
from coterie.broker.cluster.changes import (
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    GiveLeadership,
    LeaveCluster,
    NewTopic,
    PartitionKey,
    Reassignment,
    ReassignPartitions,
    RegisterBroker,
    SetConfigs,
    StartLeaving,
    TakeOver,
)
from coterie.broker.net.context import Hangup
from coterie.broker.node import Node
from unit.broker.admin_rig import Rig, part
from unit.broker.cluster_rig import PROCESS, Asked, ClusterRig

API_VERSIONS, ELECT, REASSIGN, LIST, QUORUM, DESCRIBE_CLUSTER, UNREGISTER = 18, 43, 45, 46, 55, 60, 64
METADATA, UPDATE = 3, 57
PREFERRED, UNCLEAN = 0, 1
FLIGHTS = UUID(int=1)
Said = tuple[str, str | None]
NONE: Said = ("none", None)


@pytest.fixture
def rig() -> ClusterRig:
    """Broker 1 of three, and a topic whose partitions prefer them in turn."""
    rig = ClusterRig()
    rig.change(CreateTopics((NewTopic(FLIGHTS, "flights", ((1, 2), (2, 3), (3, 1))),)))
    rig.hear()
    return rig


def said(answer: Any) -> Said:
    return answer.error_code.name, answer.error_message


def row(rig: ClusterRig, number: int) -> Any:
    return rig.engine.image.partition(FLIGHTS, number)


def give(rig: ClusterRig, number: int, to: int) -> None:
    """Have the leader of a partition give it to another."""
    led = row(rig, number)
    key = PartitionKey(FLIGHTS, number, led.leader_epoch)
    rig.change(GiveLeadership(led.leader, rig.epochs[led.leader], (key,), to))
    rig.hear()


def reassign(
    rig: Any, *wanted: tuple[str, int, tuple[int, ...] | None], version: int = 1, **fields: Any
) -> dict[tuple[str, int], Said]:
    topics = tuple(
        part(
            REASSIGN,
            version,
            "ReassignableTopic",
            name=topic,
            partitions=(
                part(REASSIGN, version, "ReassignablePartition", partition_index=number, replicas=replicas),
            ),
        )
        for topic, number, replicas in wanted
    )
    answer = rig.ask(REASSIGN, version, topics=topics, timeout=timedelta(seconds=1), **fields)
    assert answer.error_code.name == "none"
    return {
        (topic.name, one.partition_index): said(one) for topic in answer.responses for one in topic.partitions
    }


def begin_election(
    rig: ClusterRig, wanted: dict[str, tuple[int, ...]] | None, kind: int = PREFERRED, version: int = 2
) -> Asked:
    topics = wanted and tuple(
        part(ELECT, version, "TopicPartitions", topic=topic, partitions=numbers)
        for topic, numbers in wanted.items()
    )
    patience = timedelta(seconds=1)
    return rig.begin(ELECT, version, topic_partitions=topics, election_type=kind, timeout=patience)


def elected(asked: Asked) -> dict[tuple[str, int], Said]:
    assert asked.answer is not None, "it waits"
    return {
        (topic.topic, one.partition_id): said(one)
        for topic in asked.answer.replica_election_results
        for one in topic.partition_result
    }


# -- AlterPartitionReassignments


def test_a_reassignment_is_done_when_it_is_answered_and_none_is_on_its_way(rig: ClusterRig):
    assert reassign(rig, ("flights", 0, (3, 2))) == {("flights", 0): NONE}

    topic = rig.topics.get("flights")
    assert topic is not None
    assert topic.replicas[0] == (3, 2)
    assert row(rig, 0).next_leader == 3
    assert rig.ask(LIST, 0, topics=None, timeout=timedelta(seconds=1)).topics == ()


def test_partitions_are_moved_together_and_what_stays_is_not_proposed(rig: ClusterRig):
    answers = reassign(rig, ("flights", 0, (2,)), ("flights", 1, (2, 3)), ("flights", 2, (1, 2, 3)))

    assert set(answers.values()) == {NONE}
    [change] = rig.proposed
    assert isinstance(change, ReassignPartitions)
    assert [one.number for one in change.reassignments] == [0, 2]
    assert reassign(rig, ("flights", 0, (2,))) == {("flights", 0): NONE}
    assert len(rig.proposed) == 1


def test_what_cannot_be_is_refused_in_kafkas_words_and_the_rest_is_done(rig: ClusterRig):
    assigned = "The manual partition assignment includes"
    invalid = "invalid_replica_assignment"
    answers = reassign(
        rig,
        ("nobody", 0, (1,)),
        ("flights", 3, (1,)),
        ("flights", 0, None),
        ("flights", 1, ()),
        ("flights", 2, (2,)),
    )
    assert answers == {
        ("nobody", 0): ("unknown_topic_or_partition", "Unable to find a topic named nobody."),
        ("flights", 3): ("unknown_topic_or_partition", "Unable to find partition flights:3."),
        ("flights", 0): ("no_reassignment_in_progress", None),
        ("flights", 1): (invalid, f"{assigned} an empty replica list."),
        ("flights", 2): NONE,
    }
    answers = reassign(rig, ("flights", 0, (1, 9)), ("flights", 1, (2, 2)))
    assert answers == {
        ("flights", 0): (invalid, f"{assigned} broker 9, but no such broker is registered."),
        ("flights", 1): (invalid, f"{assigned} the broker 2 more than once."),
    }


def test_the_number_of_replicas_stays_for_whoever_asks_for_that(rig: ClusterRig):
    answers = reassign(rig, ("flights", 0, (3,)), allow_replication_factor_change=False)
    text = "The replication factor is changed from 2 to 1"
    assert answers == {("flights", 0): ("invalid_replication_factor", text)}

    assert reassign(rig, ("flights", 0, (3,)), version=0) == {("flights", 0): NONE}


def test_replicas_may_be_brokers_that_do_not_live_and_the_leader_leads_on(rig: ClusterRig):
    rig.change(TakeOver(3, rig.epochs[3], 0))
    rig.hear()

    assert reassign(rig, ("flights", 0, (3,))) == {("flights", 0): NONE}

    assert (row(rig, 0).leader, row(rig, 0).next_leader) == (1, None)


def test_a_partition_that_has_changed_meanwhile_is_moved_by_what_it_is_then(rig: ClusterRig):
    rig.meanwhile = lambda: give_unheard(rig)

    assert reassign(rig, ("flights", 0, (3,))) == {("flights", 0): NONE}

    assert len(rig.proposed) == 2
    assert row(rig, 0).replicas == (3,)


def give_unheard(rig: ClusterRig) -> None:
    """Move a partition, and have the rig's broker hear of it when it has been refused."""
    rig.change(GiveLeadership(1, rig.epochs[1], (PartitionKey(FLIGHTS, 0, 0),), 2))
    carry_out = rig.carry_out

    def refused_and_then_heard(change: Any, answered: Any) -> None:
        carry_out(change, answered)
        rig.hear()

    rig.fate = refused_and_then_heard


def test_a_partition_whose_topic_is_deleted_meanwhile_is_not_there(rig: ClusterRig):
    def delete() -> None:
        rig.change(DeleteTopics((FLIGHTS,)))
        rig.hear()

    rig.meanwhile = delete

    [(code, _)] = reassign(rig, ("flights", 0, (3,))).values()
    assert code == "unknown_topic_or_partition"


def test_where_nobody_knows_what_became_of_a_reassignment_that_is_said(rig: ClusterRig):
    rig.fate = rig.lose
    [(code, sentence)] = reassign(rig, ("flights", 0, (3,))).values()
    assert (code, "the database of the cluster's metadata has not answered" in sentence) == (
        "request_timed_out",
        True,
    )


@pytest.mark.parametrize(
    ("fate", "expected", "words"),
    [
        ("refuse", "unknown_server_error", "has refused the change: permission denied (42501)"),
        ("keep_locked", "kafka_storage_error", "waited for a lock that somebody keeps: process 4711."),
    ],
)
def test_what_the_engine_refuses_is_not_tried_again(fate: str, expected: str, words: str, rig: ClusterRig):
    rig.fate = getattr(rig, fate)
    [(code, sentence)] = reassign(rig, ("flights", 0, (3,))).values()
    assert (code, words in sentence) == (expected, True)
    assert len(rig.proposed) == 1


def test_who_is_overtaken_again_and_again_gives_up(rig: ClusterRig):
    def overtaken(change: Any, answered: Any) -> None:
        topic = rig.engine.image.topic("flights")
        assert topic is not None
        rig.change(SetConfigs(FLIGHTS, topic.version, {}))
        led = row(rig, 0)
        replicas = (1, 2) if led.replicas == (2, 1) else (2, 1)
        rig.change(ReassignPartitions((Reassignment(FLIGHTS, 0, led.version, replicas),)))
        rig.fate = overtaken
        rig.engine.execute(change)
        answered(rig.engine.execute(change))
        rig.hear()

    rig.fate = overtaken
    [(code, _)] = reassign(rig, ("flights", 0, (3,))).values()
    assert code == "request_timed_out"


# -- ElectLeaders


def test_an_election_is_answered_when_the_preferred_leader_leads(rig: ClusterRig):
    give(rig, 0, 2)

    asked = begin_election(rig, {"flights": (0, 1)})
    assert asked.answer is None
    assert isinstance(rig.proposed[-1], ElectLeaders)
    assert row(rig, 0).next_leader == 1

    give(rig, 0, 1)
    not_needed = ("election_not_needed", "Leader election not needed for topic partition.")
    assert elected(asked) == {("flights", 0): NONE, ("flights", 1): not_needed}
    assert len(rig.node.purgatory) == 0


def test_of_all_partitions_those_that_need_no_election_are_left_out(rig: ClusterRig):
    assert elected(begin_election(rig, None)) == {}
    give(rig, 2, 1)

    asked = begin_election(rig, None)
    give(rig, 2, 3)

    assert elected(asked) == {("flights", 2): NONE}
    assert [topic.topic for topic in asked.answer.replica_election_results] == ["flights"]


def test_an_election_that_takes_too_long_is_answered_so(rig: ClusterRig):
    give(rig, 0, 2)
    asked = begin_election(rig, {"flights": (0,)})

    rig.now_ms += 1_000
    rig.node.purgatory.expire(rig.now_ms)

    assert elected(asked) == {("flights", 0): ("request_timed_out", "The request timed out.")}
    give(rig, 0, 1)  # and once only


def test_an_election_of_many_looks_with_each_news_at_one_of_them(
    rig: ClusterRig, monkeypatch: pytest.MonkeyPatch
):
    """It looked at all: 2.5 million looks for 5,000 partitions that are given ten at a time."""
    many, numbers = UUID(int=2), range(50)
    rig.change(CreateTopics((NewTopic(many, "many", ((1, 2),) * len(numbers)),)))
    keys = tuple(PartitionKey(many, number, 0) for number in numbers)
    rig.change(GiveLeadership(1, rig.epochs[1], keys, 2))
    rig.hear()
    looks, look = 0, replicas._refuse_election

    def counted(*words: Any, **named: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(*words, **named)

    monkeypatch.setattr(replicas, "_refuse_election", counted)
    asked = begin_election(rig, {"many": tuple(numbers)})
    for number in reversed(numbers):
        rig.change(GiveLeadership(2, rig.epochs[2], (PartitionKey(many, number, 1),), 1))
        rig.hear()

    assert set(elected(asked).values()) == {NONE}
    assert looks <= 4 * len(numbers)


def test_a_preferred_leader_that_does_not_live_is_not_elected(rig: ClusterRig):
    rig.change(TakeOver(1, rig.epochs[1], 0))
    rig.hear()

    away = ("preferred_leader_not_available", "The preferred leader was not available.")
    assert elected(begin_election(rig, {"flights": (0,)})) == {("flights", 0): away}
    assert rig.proposed == []


def test_a_preferred_leader_that_dies_meanwhile_is_not_elected(rig: ClusterRig):
    give(rig, 0, 2)
    asked = begin_election(rig, {"flights": (0,)})

    rig.change(TakeOver(1, rig.epochs[1], 0))
    rig.hear()

    [(code, _)] = elected(asked).values()
    assert code == "preferred_leader_not_available"


def test_an_unclean_election_is_for_partitions_without_a_leader(rig: ClusterRig):
    give(rig, 0, 2)
    [(code, _)] = elected(begin_election(rig, {"flights": (0,)}, UNCLEAN)).values()
    assert code == "election_not_needed"

    for one in (1, 2, 3):
        rig.change(TakeOver(one, rig.epochs[one], 0))
    rig.hear()

    [(code, _)] = elected(begin_election(rig, {"flights": (0,)}, UNCLEAN)).values()
    assert code == "eligible_leaders_not_available"


def test_a_broker_that_is_cut_off_does_not_say_that_no_election_is_needed(rig: ClusterRig):
    """Found with the database away: `cluster balance` waited for a minute, and said that all went on."""
    rig.leaders.suspended = True

    [(code, why)] = elected(begin_election(rig, {"flights": (0,)})).values()

    assert code == "request_timed_out"
    assert why is not None
    assert "the database of the cluster's metadata has not answered" in why


def test_an_election_of_what_is_not_there_or_of_no_kind_is_refused(rig: ClusterRig):
    answers = elected(begin_election(rig, {"flights": (3,), "nobody": (0,)}))
    assert answers == {
        ("flights", 3): ("unknown_topic_or_partition", "No such partition as flights-3"),
        ("nobody", 0): ("unknown_topic_or_partition", "No such topic as nobody"),
    }
    asked = begin_election(rig, {"flights": (0,)}, 7)
    assert asked.answer.error_code.name == "invalid_request"
    assert elected(asked) == {("flights", 0): ("invalid_request", "Unknown election type 7")}


# -- UnregisterBroker, and who is there


def unregister(rig: ClusterRig, broker_id: int) -> Said:
    return said(rig.ask(UNREGISTER, 0, broker_id=broker_id))


def brokers(rig: ClusterRig, *, fenced: bool = True) -> dict[int, bool]:
    answer = rig.ask(DESCRIBE_CLUSTER, 2, include_fenced_brokers=fenced, endpoint_type=1)
    return {one.broker_id: one.is_fenced for one in answer.brokers}


def test_a_broker_that_is_cut_off_names_no_controller_to_who_asks_for_the_cluster(rig: ClusterRig):
    """What it knows of the others looks well. To clients, which would wait for one, it goes on naming it."""

    def controllers() -> tuple[int, int]:
        cluster = rig.ask(DESCRIBE_CLUSTER, 2, endpoint_type=1)
        return cluster.controller_id, rig.ask(METADATA, 12, topics=()).controller_id

    assert controllers() == (1, 1)
    rig.leaders.suspended = True

    assert controllers() == (-1, 1)
    assert brokers(rig) == dict.fromkeys((1, 2, 3), False)


def test_where_all_have_left_clients_are_told_of_those_that_are_registered_and_find_who_comes_back(
    rig: ClusterRig,
):
    """librdkafka 2.16 forgets all brokers when it is told of none, and asks nobody any more."""

    def named() -> list[int]:
        return [one.node_id for one in rig.ask(METADATA, 12, topics=None).brokers]

    told = [named()]
    for broker_id, epoch in rig.epochs.items():
        rig.change(LeaveCluster(broker_id, epoch))
        rig.hear()
        told.append(named())

    assert told == [[1, 2, 3], [2, 3], [3], [1, 2, 3]]


def test_a_broker_that_has_left_is_removed_and_no_replicas_are_placed_on_it(rig: ClusterRig):
    rig.change(LeaveCluster(3, rig.epochs[3]))
    rig.hear()
    assert brokers(rig) == {1: False, 2: False, 3: True}
    assert brokers(rig, fenced=False) == {1: False, 2: False}

    assert unregister(rig, 3) == NONE

    assert brokers(rig) == {1: False, 2: False}
    assert unregister(rig, 3) == ("broker_id_not_registered", "Broker ID 3 is not currently registered")
    [(code, text)] = reassign(rig, ("flights", 0, (3,))).values()
    assert code == "invalid_replica_assignment"
    assert text is not None
    assert text.endswith("broker 3, but no such broker is registered.")


@pytest.mark.parametrize("stops", [False, True])
def test_a_broker_that_runs_or_is_about_to_stop_is_removed_and_others_lead(rig: ClusterRig, *, stops: bool):
    if stops:
        rig.change(StartLeaving(3, rig.epochs[3]))

    assert unregister(rig, 3) == NONE

    rig.hear()
    assert brokers(rig) == {1: False, 2: False}
    assert 3 not in {row.leader for row in rig.engine.image.all_partitions()}
    assert unregister(rig, 9) == ("broker_id_not_registered", "Broker ID 9 is not currently registered")


def test_a_broker_that_comes_back_while_it_is_removed_is_removed(rig: ClusterRig):
    rig.change(LeaveCluster(3, rig.epochs[3]))
    rig.hear()

    def back() -> None:
        rig.change(RegisterBroker(3, PROCESS, rig.epochs[3]))
        rig.hear()

    rig.meanwhile = back

    assert unregister(rig, 3) == NONE
    assert brokers(rig) == {1: False, 2: False}


def test_a_removal_whose_answer_is_lost_is_not_known_and_is_done_if_it_was(rig: ClusterRig):
    rig.change(LeaveCluster(3, rig.epochs[3]))
    rig.hear()
    rig.fate = rig.lose_answer
    assert unregister(rig, 3)[0] == "request_timed_out"
    rig.hear()
    assert unregister(rig, 3)[0] == "broker_id_not_registered"


def test_the_brokers_that_live_are_the_quorum(rig: ClusterRig):
    topics = (
        part(
            QUORUM,
            2,
            "TopicData",
            topic_name="__cluster_metadata",
            partitions=(part(QUORUM, 2, "PartitionData", partition_index=0),),
        ),
    )
    [topic] = rig.ask(QUORUM, 2, topics=topics).topics
    [partition] = topic.partitions
    assert partition.leader_id == 1
    assert [one.replica_id for one in partition.current_voters] == [1, 2, 3]


# -- which APIs there are


def served(node: Node) -> set[int]:
    return set(node.apis)


def test_what_does_not_work_is_not_served(rig: ClusterRig):
    answer = rig.ask(API_VERSIONS, 4, client_software_name="a", client_software_version="1")
    assert {REASSIGN, UNREGISTER} < {one.api_key for one in answer.api_keys} == served(rig.node)

    alone = Rig().node
    assert REASSIGN in served(alone)
    assert UNREGISTER not in served(alone)
    with pytest.raises(Hangup):
        alone.handlers[UNREGISTER, 0]


def test_one_of_several_over_files_moves_no_replicas():
    rig = ClusterRig(moves_replicas=False)
    assert served(rig.node).isdisjoint({REASSIGN, UNREGISTER})
    assert {ELECT, LIST} < served(rig.node)
    with pytest.raises(Hangup):
        rig.node.handlers[REASSIGN, 1]


# -- the level


def update(rig: ClusterRig, name: str, level: int, *, kind: int = 1, version: int = 2) -> Any:
    one = part(UPDATE, version, "FeatureUpdateKey", feature=name, max_version_level=level, upgrade_type=kind)
    return rig.ask(UPDATE, version, feature_updates=(one,), timeout=timedelta(seconds=1))


def features(rig: ClusterRig) -> tuple[dict[str, int], dict[str, int]]:
    answer = rig.ask(API_VERSIONS, 3, client_software_name="a", client_software_version="1")
    supported = {one.name: one.max_version for one in answer.supported_features}
    return supported, {one.name: one.max_version_level for one in answer.finalized_features}


def test_the_level_is_a_feature_that_is_raised_once_all_software_has_it(rig: ClusterRig):
    assert features(rig) == ({"coterie.level": 2}, {"transaction.version": 2})
    start = "Invalid update version 2 for feature coterie.level."
    older = said(update(rig, "coterie.level", 2))
    assert older == ("invalid_update_version", f"{start} the software of broker 1 is of a lower level")

    for one, epoch in rig.epochs.items():
        rig.change(RegisterBroker(one, PROCESS, epoch, level=2))
    rig.hear()

    assert said(update(rig, "coterie.level", 2)) == NONE
    assert features(rig)[1]["coterie.level"] == 2
    assert said(update(rig, "coterie.level", 2)) == NONE
    [result] = update(rig, "coterie.level", 1, version=1).results
    assert result.error_code.name == "invalid_update_version"


def test_no_other_feature_is_raised_and_none_lowered(rig: ClusterRig):
    for name, level, kind in (("metadata.version", 20, 1), ("coterie.level", 1, 2), ("coterie.level", 0, 1)):
        code, words = said(update(rig, name, level, kind=kind))
        assert code == "invalid_update_version"
        assert words is not None
        assert words.startswith(f"Invalid update version {level} for feature {name}. ")
    code, words = said(update(rig, "coterie.level", 3))
    assert words is not None
    assert words.endswith("is of a lower level")
