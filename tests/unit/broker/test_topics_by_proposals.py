"""Topics of a cluster are changed by proposals: what clients are answered, whatever others do meanwhile.

The metadata is in memory, and the broker's image is as old as a test wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest

from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.cluster.changes import (
    AddPartitions,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    SetConfigs,
    StartLeaving,
    TakeOver,
)
from coterie.broker.topics.cluster_topics import ClusterTopics
from coterie.broker.topics.proposals import TopicProposals
from unit.broker.admin_rig import part
from unit.broker.cluster_rig import Asked, ClusterRig

METADATA, FIND_COORDINATOR, JOIN = 3, 10, 11
CREATE, DELETE, INIT_PRODUCER_ID, ADD_OFFSETS = 19, 20, 22, 25
ALTER, GROW, INCREMENTAL, DESCRIBE_CLUSTER, DESCRIBE_PARTITIONS = 33, 37, 44, 60, 75
TOPIC = 2
SET, REMOVE, APPEND = 0, 1, 2
THEIRS = UUID(int=99)
TIMED_OUT = "The request timed out: the database of the cluster's metadata has not answered."

Promise = Callable[[], None]


@pytest.fixture
def rig() -> ClusterRig:
    return ClusterRig()


def a_topic(
    name: str, partitions: int = 1, replicas: int = 1, *, assigned: Mapping[int, tuple[int, ...]] = {}
) -> Any:
    by_hand = tuple(
        part(CREATE, 7, "CreatableReplicaAssignment", partition_index=index, broker_ids=brokers)
        for index, brokers in assigned.items()
    )
    counts = (-1, -1) if by_hand else (partitions, replicas)
    terms = {"num_partitions": counts[0], "replication_factor": counts[1]}
    return part(CREATE, 7, "CreatableTopic", name=name, **terms, assignments=by_hand, configs=())


def create(rig: ClusterRig, *topics: Any, validate_only: bool = False) -> dict[str, Any]:
    answer = rig.ask(CREATE, 7, topics=topics, validate_only=validate_only)
    return {one.name: one for one in answer.topics}


def code_and_words(answer: Any) -> tuple[str, str | None]:
    return answer.error_code.name, answer.error_message


def grow(rig: ClusterRig, name: str, count: int, assigned: tuple[tuple[int, ...], ...] | None = None) -> Any:
    by_hand = assigned and tuple(
        part(GROW, 3, "CreatePartitionsAssignment", broker_ids=brokers) for brokers in assigned
    )
    topics = (part(GROW, 3, "CreatePartitionsTopic", name=name, count=count, assignments=by_hand),)
    return rig.begin(GROW, 3, topics=topics, validate_only=False)


def delete(rig: ClusterRig, *names: str) -> dict[str, Any]:
    topics = tuple(part(DELETE, 6, "DeleteTopicState", name=name, topic_id=None) for name in names)
    return {one.name: one for one in rig.ask(DELETE, 6, topics=topics).responses}


def incremental(rig: ClusterRig, name: str, *changes: tuple[str, int, str | None]) -> Asked:
    configs = tuple(
        part(INCREMENTAL, 1, "AlterableConfig", name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    )
    resource = part(
        INCREMENTAL, 1, "AlterConfigsResource", resource_type=TOPIC, resource_name=name, configs=configs
    )
    return rig.begin(INCREMENTAL, 1, resources=(resource,), validate_only=False)


def metadata(rig: ClusterRig, *names: str) -> dict[str, Any]:
    topics = tuple(part(METADATA, 12, "MetadataRequestTopic", name=name) for name in names)
    return {one.name: one for one in rig.ask(METADATA, 12, topics=topics).topics}


def make(rig: ClusterRig, name: str, *replicas: tuple[int, ...], configs: Mapping[str, str] = {}) -> UUID:
    """Make a topic as another broker would, and have the rig's hear of it."""
    topic_id = UUID(int=1000 + len(rig.topics))
    rig.change(CreateTopics((NewTopic(topic_id, name, replicas or ((1,),), configs),)))
    rig.hear()
    return topic_id


def settings_of(rig: ClusterRig, name: str) -> Mapping[str, str]:
    row = rig.engine.image.topic(name)
    assert row is not None
    return row.configs


# -- CreateTopics


def test_a_topic_is_placed_over_the_brokers_that_live_and_answered_when_the_own_image_has_it(rig: ClusterRig):
    answer = create(rig, a_topic("flights", 6, 2))["flights"]

    topic = rig.topics.get("flights")
    assert topic is not None
    assert code_and_words(answer) == ("none", None)
    assert (answer.topic_id, answer.num_partitions, answer.replication_factor) == (topic.topic_id, 6, 2)
    assert sorted(one[0] for one in topic.replicas) == [1, 1, 2, 2, 3, 3]
    assert {len(set(one)) for one in topic.replicas} == {2}
    row = rig.engine.image.topic("flights")
    assert row is not None
    assert row.created_ms > 0
    leaders = [one.leader for one in rig.engine.image.partitions(row.topic_id)]
    assert leaders == [one[0] for one in topic.replicas]


def test_replicas_are_in_different_racks_where_they_can_be():
    rig = ClusterRig("a", "a", "b", "b")

    create(rig, a_topic("flights", 8, 2))

    topic = rig.topics.get("flights")
    assert topic is not None
    assert all({"a", "b"} == {"aabb"[one - 1] for one in replicas} for replicas in topic.replicas)


def test_who_is_dead_or_about_to_stop_gets_no_replica(rig: ClusterRig):
    rig.change(TakeOver(3, rig.epochs[3], 0))
    rig.change(StartLeaving(2, rig.epochs[2]))
    rig.hear()

    create(rig, a_topic("flights", 4))

    topic = rig.topics.get("flights")
    assert topic is not None
    assert topic.replicas == ((1,),) * 4
    code, words = code_and_words(create(rig, a_topic("other", 1, 2))["other"])
    assert code == "invalid_replication_factor"
    assert words is not None
    assert words.startswith("Unable to replicate the partition 2 time(s): The target replication factor of 2")
    because = (
        "because only 1 broker(s) are live: 2 more are registered, and fenced or in controlled shutdown."
    )
    assert words.endswith(because)


def test_a_topic_has_as_many_replicas_as_the_brokers_setting_says_where_the_client_does_not():
    rig = ClusterRig(default_replication_factor=3, num_partitions=2)

    answer = create(rig, a_topic("flights", -1, -1))["flights"]

    assert (answer.num_partitions, answer.replication_factor) == (2, 3)


@pytest.mark.parametrize(
    ("assigned", "words"),
    [
        ({0: (1, 9)}, "includes broker 9, but no such broker is registered."),
        ({0: (1, 1)}, "includes the broker 1 more than once."),
        ({0: ()}, "includes an empty replica list."),
        ({0: (1, 2), 1: (1,)}, "not consistent with previous partitions, which have 2 replica(s)."),
        ({1: (1,)}, "partitions should be a consecutive 0-based integer sequence"),
        ({0: (3,)}, "for partition 0 are fenced or in controlled shutdown."),
    ],
)
def test_replicas_that_are_assigned_are_refused_in_kafkas_words(
    assigned: dict[int, tuple[int, ...]], words: str, rig: ClusterRig
):
    rig.change(TakeOver(3, rig.epochs[3], 0))
    rig.hear()

    code, said = code_and_words(create(rig, a_topic("flights", assigned=assigned))["flights"])

    assert code == "invalid_replica_assignment"
    assert said is not None
    assert said.endswith(words)
    assert rig.proposed == []


def test_replicas_that_are_assigned_are_taken_as_they_are(rig: ClusterRig):
    create(rig, a_topic("flights", assigned={1: (2, 1), 0: (3, 2)}))

    topic = rig.topics.get("flights")
    assert topic is not None
    assert topic.replicas == ((3, 2), (2, 1))


def test_validation_proposes_nothing(rig: ClusterRig):
    answers = create(rig, a_topic("flights", 6, 2), a_topic("wide", 1, 9), validate_only=True)

    assert [code_and_words(one)[0] for one in answers.values()] == ["none", "invalid_replication_factor"]
    assert rig.proposed == []


def taken_meanwhile() -> None:
    rig = ClusterRig()
    rig.meanwhile = lambda: rig.change(CreateTopics((NewTopic(THEIRS, "b", ((2,),)),)))

    answers = create(rig, a_topic("a"), a_topic("b"), a_topic("c"))

    assert {name: code_and_words(one) for name, one in answers.items()} == {
        "a": ("none", None),
        "b": ("topic_already_exists", "Topic 'b' already exists."),
        "c": ("none", None),
    }
    theirs = rig.topics.get("b")
    assert theirs is not None
    assert theirs.topic_id == THEIRS


def collides_meanwhile() -> None:
    rig = ClusterRig()
    rig.meanwhile = lambda: rig.change(CreateTopics((NewTopic(THEIRS, "a.b", ((2,),)),)))

    answers = create(rig, a_topic("a_b"), a_topic("c"))

    code, words = code_and_words(answers["a_b"])
    assert code == "invalid_topic_exception"
    assert words is not None
    assert words.startswith("Topic 'a_b' collides with existing topic: ")
    assert code_and_words(answers["c"])[0] == "none"
    assert not rig.topics.claimed


def unknown_outcome() -> None:
    rig = ClusterRig()
    rig.fate = rig.lose

    answer = create(rig, a_topic("flights"))["flights"]

    assert code_and_words(answer) == ("request_timed_out", TIMED_OUT)
    assert rig.topics.is_free("flights")
    assert code_and_words(create(rig, a_topic("flights"))["flights"])[0] == "none"


def lost_answer() -> None:
    rig = ClusterRig()

    def late(change: Any, answered: Any) -> None:
        rig.engine.execute(change)
        rig.hear()
        answered(None)

    rig.fate = late
    answer = create(rig, a_topic("flights"))["flights"]
    topic = rig.topics.get("flights")
    assert topic is not None
    assert (code_and_words(answer)[0], answer.topic_id) == ("none", topic.topic_id)


def name_is_taken_while_it_is_proposed() -> None:
    rig, held = ClusterRig(), []
    rig.fate = lambda *proposal: held.append(proposal)
    first = rig.begin(CREATE, 7, topics=(a_topic("flights"),))

    second = create(rig, a_topic("flights"))["flights"]
    meanwhile = metadata(rig, "flights")["flights"]
    assert first.answer is None
    rig.carry_out(*held[0])

    assert code_and_words(second) == ("topic_already_exists", "Topic 'flights' already exists.")
    assert meanwhile.error_code.name == "unknown_topic_or_partition"
    assert len(rig.proposed) == 1
    assert code_and_words(first.answer.topics[0])[0] == "none"


# -- CreatePartitions


def test_new_partitions_have_as_many_replicas_as_the_others_and_those_that_were_stay(rig: ClusterRig):
    make(rig, "flights", (1, 2))

    [result] = grow(rig, "flights", 4).answer.results

    topic = rig.topics.get("flights")
    assert topic is not None
    assert code_and_words(result) == ("none", None)
    assert topic.replicas[0] == (1, 2)
    assert [len(set(one)) for one in topic.replicas] == [2] * 4


def test_new_partitions_are_where_they_are_assigned_to(rig: ClusterRig):
    make(rig, "flights", (1, 2))

    [result] = grow(rig, "flights", 3, ((3, 1), (2, 3))).answer.results

    topic = rig.topics.get("flights")
    assert topic is not None
    assert code_and_words(result) == ("none", None)
    assert topic.replicas == ((1, 2), (3, 1), (2, 3))


@pytest.mark.parametrize("assigned", [((9,),), ((1, 2),), ((1,), (2,))])
def test_new_partitions_that_are_assigned_wrongly_are_refused(
    assigned: tuple[tuple[int, ...], ...], rig: ClusterRig
):
    make(rig, "flights", (1,))

    [result] = grow(rig, "flights", 2, assigned).answer.results

    assert code_and_words(result)[0] == "invalid_replica_assignment"
    assert rig.proposed == []


def grown_meanwhile() -> None:
    """Who was overtaken looks at what the other has left, once this broker has heard of it."""
    rig = ClusterRig()
    topic_id = make(rig, "flights", (1,))
    rig.meanwhile = lambda: rig.change(AddPartitions(topic_id, 1, ((2,), (3,))))

    asked = grow(rig, "flights", 3)
    assert asked.answer is None
    rig.hear()

    [result] = asked.answer.results
    assert code_and_words(result) == ("invalid_partitions", "Topic already has 3 partition(s).")
    topic = rig.topics.get("flights")
    assert topic is not None
    assert topic.replicas == ((1,), (2,), (3,))


def test_growth_that_was_overtaken_goes_on_from_there(rig: ClusterRig):
    topic_id = make(rig, "flights", (1,))
    rig.meanwhile = lambda: rig.change(AddPartitions(topic_id, 1, ((2,),)))

    asked = grow(rig, "flights", 4)
    rig.hear()

    [result] = asked.answer.results
    topic = rig.topics.get("flights")
    assert topic is not None
    assert code_and_words(result) == ("none", None)
    assert (topic.partitions, topic.replicas[:2]) == (4, ((1,), (2,)))


# -- AlterConfigs, IncrementalAlterConfigs


def overtaken_settings() -> None:
    """Of two that change different settings at once neither is lost."""
    rig = ClusterRig()
    topic_id = make(rig, "flights", configs={"cleanup.policy": "delete"})
    row = rig.engine.image.topic("flights")
    assert row is not None
    theirs = {"cleanup.policy": "delete", "retention.ms": "7"}
    rig.meanwhile = lambda: rig.change(SetConfigs(topic_id, row.version, theirs))

    asked = incremental(rig, "flights", ("cleanup.policy", APPEND, "compact"))
    rig.hear()

    [response] = asked.answer.responses
    assert code_and_words(response) == ("none", None)
    assert settings_of(rig, "flights") == {"cleanup.policy": "delete,compact", "retention.ms": "7"}


def test_settings_are_changed_and_unset_over_a_cluster(rig: ClusterRig):
    make(rig, "flights", configs={"retention.ms": "7", "retention.bytes": "8"})

    asked = incremental(rig, "flights", ("retention.ms", SET, "9"), ("retention.bytes", REMOVE, None))

    assert code_and_words(asked.answer.responses[0]) == ("none", None)
    assert settings_of(rig, "flights") == {"retention.ms": "9"}
    topic = rig.topics.get("flights")
    assert topic is not None
    assert topic.configs == {"retention.ms": "9"}


def test_settings_of_several_topics_are_changed_each_for_itself(rig: ClusterRig):
    topic_id = make(rig, "a")
    make(rig, "b")
    rig.meanwhile = lambda: rig.change(DeleteTopics((topic_id,)))
    config = (part(ALTER, 2, "AlterableConfig", name="retention.ms", value="5"),)
    resources = tuple(
        part(ALTER, 2, "AlterConfigsResource", resource_type=TOPIC, resource_name=name, configs=config)
        for name in "ab"
    )

    a, b = rig.ask(ALTER, 2, resources=resources, validate_only=False).responses

    assert (a.error_code.name, b.error_code.name) == ("unknown_topic_or_partition", "none")
    assert settings_of(rig, "b") == {"retention.ms": "5"}


def settings_unknown() -> None:
    rig = ClusterRig()
    make(rig, "flights")
    rig.fate = rig.lose

    asked = incremental(rig, "flights", ("retention.ms", SET, "9"))

    assert code_and_words(asked.answer.responses[0]) == ("request_timed_out", TIMED_OUT)


# -- DeleteTopics


def test_topics_are_deleted_together(rig: ClusterRig):
    make(rig, "a")
    make(rig, "b")

    answers = delete(rig, "a", "b", "c")

    assert {name: one.error_code.name for name, one in answers.items()} == {
        "a": "none",
        "b": "none",
        "c": "unknown_topic_or_partition",
    }
    assert len(rig.proposed) == 1
    assert len(rig.topics) == 0


def deleted_meanwhile() -> None:
    rig = ClusterRig()
    topic_id = make(rig, "a")
    make(rig, "b")
    rig.meanwhile = lambda: rig.change(DeleteTopics((topic_id,)))

    answers = delete(rig, "a", "b")

    assert {name: one.error_code.name for name, one in answers.items()} == {
        "a": "unknown_topic_or_partition",
        "b": "none",
    }
    assert len(rig.topics) == 0


def test_a_topic_made_anew_under_the_name_is_not_deleted_in_place_of_the_other(rig: ClusterRig):
    topic_id = make(rig, "a")

    def anew() -> None:
        rig.change(DeleteTopics((topic_id,)))
        rig.change(CreateTopics((NewTopic(THEIRS, "a", ((1,),)),)))

    rig.meanwhile = anew

    [answer] = delete(rig, "a").values()

    assert answer.error_code.name == "unknown_topic_or_partition"
    assert rig.engine.image.topic_by_id(THEIRS) is not None


def test_a_deletion_of_which_nobody_knows_is_timed_out_unless_the_topic_is_gone(rig: ClusterRig):
    make(rig, "a")
    rig.fate = rig.lose
    assert delete(rig, "a")["a"].error_code.name == "request_timed_out"

    def late(change: Any, answered: Any) -> None:
        rig.engine.execute(change)
        rig.hear()
        answered(None)

    rig.fate = late
    assert delete(rig, "a")["a"].error_code.name == "none"


# -- whatever is changed


def refused_by_the_engine() -> None:
    """Nothing of it is made, which is known: no client tries again until its time is over."""
    said = "The database of the cluster's metadata has refused the change: permission denied (42501)."
    refused = ("unknown_server_error", said)
    rig = ClusterRig()
    make(rig, "a")
    rig.fate = rig.refuse
    assert code_and_words(create(rig, a_topic("b"))["b"]) == refused
    rig.fate = rig.refuse
    assert code_and_words(grow(rig, "a", 3).answer.results[0]) == refused
    rig.fate = rig.refuse
    assert code_and_words(incremental(rig, "a", ("retention.ms", SET, "9")).answer.responses[0]) == refused
    rig.fate = rig.refuse
    assert code_and_words(delete(rig, "a")["a"]) == refused
    assert rig.topics.is_free("b")


def test_what_somebodys_lock_keeps_from_being_changed_is_answered_with_that():
    said = (
        "Nothing was changed: the database of the cluster's metadata waited for a lock that somebody keeps:"
        " process 4711."
    )
    rig = ClusterRig()
    make(rig, "a")
    for change in (
        lambda: create(rig, a_topic("b"))["b"],
        lambda: grow(rig, "a", 3).answer.results[0],
        lambda: incremental(rig, "a", ("retention.ms", SET, "9")).answer.responses[0],
        lambda: delete(rig, "a")["a"],
    ):
        rig.fate = rig.keep_locked
        assert code_and_words(change()) == ("kafka_storage_error", said)
    assert rig.topics.is_free("b")


@pytest.mark.parametrize("fate", ["refuse", "keep_locked"])
def test_an_internal_topic_that_the_engine_refuses_is_proposed_with_each_request_and_not_logged(
    fate: str, rig: ClusterRig, caplog: pytest.LogCaptureFixture
):
    """The engine says so itself, once."""
    for _ in range(2):
        rig.fate = getattr(rig, fate)
        assert find(rig, "g").error_code.name == "coordinator_not_available"

    assert len(rig.proposed) == 2
    assert not caplog.records


# -- Metadata


def test_metadata_names_replicas_partition_by_partition_and_who_of_them_lives(rig: ClusterRig):
    make(rig, "flights", (1, 2), (2, 3), (3, 1))
    rig.change(TakeOver(3, rig.epochs[3], 0))
    rig.change(StartLeaving(1, rig.epochs[1]))
    rig.hear()

    answer = rig.ask(METADATA, 12, topics=None)

    assert ([one.node_id for one in answer.brokers], answer.controller_id) == ([1, 2], 2)
    assert answer.cluster_id == "the-cluster"
    [topic] = answer.topics
    found = [(one.replica_nodes, one.isr_nodes, one.offline_replicas) for one in topic.partitions]
    assert found == [((1, 2), (1, 2), ()), ((2, 3), (2,), (3,)), ((3, 1), (1,), (3,))]
    assert [one.leader_id for one in topic.partitions] == [1, 2, 1]
    described = rig.ask(
        DESCRIBE_PARTITIONS, 0, topics=(part(DESCRIBE_PARTITIONS, 0, "TopicRequest", name="flights"),)
    )
    [topic] = described.topics
    assert [(one.replica_nodes, one.isr_nodes, one.offline_replicas) for one in topic.partitions] == found
    assert rig.ask(DESCRIBE_CLUSTER, 1).controller_id == 2


def test_metadata_creates_a_topic_with_the_brokers_settings_for_it():
    rig = ClusterRig(num_partitions=3, default_replication_factor=2)

    answer = metadata(rig, "flights")["flights"]

    assert answer.error_code.name == "none"
    assert [len(one.replica_nodes) for one in answer.partitions] == [2, 2, 2]


def auto_creation_is_overtaken() -> None:
    """A client that asks for a topic which another makes at once is to ask again, and is refused nothing."""
    rig = ClusterRig()
    rig.meanwhile = lambda: rig.change(CreateTopics((NewTopic(THEIRS, "flights", ((2,),)),)))

    assert metadata(rig, "flights")["flights"].error_code.name == "unknown_topic_or_partition"
    rig.hear()
    answer = metadata(rig, "flights")["flights"]
    assert (answer.error_code.name, answer.topic_id) == ("none", THEIRS)


def test_a_client_whose_topic_may_have_been_created_is_to_ask_again(rig: ClusterRig):
    rig.fate = rig.lose_answer

    assert metadata(rig, "flights")["flights"].error_code.name == "unknown_topic_or_partition"
    rig.hear()
    assert metadata(rig, "flights")["flights"].error_code.name == "none"


def test_metadata_creates_nothing_that_cannot_be_placed():
    rig = ClusterRig(default_replication_factor=4)

    assert metadata(rig, "flights")["flights"].error_code.name == "invalid_replication_factor"
    assert rig.proposed == []


# -- internal topics


def find(rig: ClusterRig, key: str, kind: int = 0) -> Any:
    return rig.ask(FIND_COORDINATOR, 3, key=key, key_type=kind)


@pytest.mark.row("FC-5")
def test_the_topic_of_the_offsets_is_proposed_once_and_the_client_comes_back():
    internal_is_proposed_once()


def internal_is_proposed_once() -> None:
    rig, held = ClusterRig(offsets_topic_num_partitions=5), []
    rig.fate = lambda *proposal: held.append(proposal)

    answers = [find(rig, f"g{number}") for number in range(4)]

    assert {one.error_code.name for one in answers} == {"coordinator_not_available"}
    assert answers[0].error_message == f"topic {OFFSETS_TOPIC} is being created; try again"
    assert len(rig.proposed) == 1
    rig.carry_out(*held[0])
    topic = rig.topics.get(OFFSETS_TOPIC)
    assert topic is not None
    assert (topic.partitions, {len(one) for one in topic.replicas}) == (5, {3})
    assert topic.configs["cleanup.policy"] == "compact"
    assert find(rig, "g").error_code.name == "none"
    assert len(rig.proposed) == 1


def internal_is_proposed_again_where_nothing_came_of_it() -> None:
    rig = ClusterRig()
    rig.fate = rig.lose
    assert find(rig, "t", 1).error_code.name == "coordinator_not_available"

    assert find(rig, "t", 1).error_code.name == "none"  # here it is made at once
    assert rig.topics.get(TRANSACTIONS_TOPIC) is not None
    assert len(rig.proposed) == 2


def test_an_internal_topic_that_another_broker_was_faster_with_is_that_ones():
    rig = ClusterRig(offsets_topic_num_partitions=5)
    rig.meanwhile = lambda: rig.change(CreateTopics((NewTopic(THEIRS, OFFSETS_TOPIC, ((2,),)),)))

    assert find(rig, "g").error_code.name == "coordinator_not_available"
    rig.hear()

    answer = find(rig, "g")
    assert (answer.error_code.name, answer.node_id) == ("none", 2)
    assert len(rig.proposed) == 1


def test_an_internal_topic_has_fewer_replicas_where_there_are_fewer_brokers():
    rig = ClusterRig(None, None)

    find(rig, "g")

    topic = rig.topics.get(OFFSETS_TOPIC)
    assert topic is not None
    assert {len(one) for one in topic.replicas} == {2}


def test_each_broker_leads_a_partition_of_the_groups_stories():
    rig = ClusterRig()

    rig.node.topic_manager.ensure_internal(STORY_TOPIC)

    topic = rig.topics.get(STORY_TOPIC)
    assert topic is not None
    assert sorted(one[0] for one in topic.replicas) == sorted(rig.topics.image.unfenced)
    assert topic.partitions > rig.node.settings.internal_topic(STORY_TOPIC)[0]


def test_a_broker_that_knows_of_none_yet_proposes_no_internal_topic():
    rig = ClusterRig()
    rig.topics.take(type(rig.topics.image)())

    assert find(rig, "g").error_code.name == "coordinator_not_available"
    assert rig.proposed == []


def test_a_member_that_joins_before_there_is_a_topic_of_the_offsets_is_to_look_for_its_coordinator():
    rig = ClusterRig()
    rig.fate = lambda *proposal: None
    protocol = part(JOIN, 5, "JoinGroupRequestProtocol", name="range", metadata=b"")
    terms: dict[str, Any] = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
    }

    answer = rig.ask(
        JOIN, 5, **terms, group_instance_id=None, protocol_type="consumer", protocols=(protocol,)
    )

    assert answer.error_code.name == "coordinator_not_available"


def test_transactions_wait_for_their_topic_and_that_of_the_offsets():
    rig = ClusterRig()
    rig.fate = lambda *proposal: None
    answer = rig.ask(ADD_OFFSETS, 3, transactional_id="t", producer_id=1, producer_epoch=0, group_id="g")
    assert answer.error_code.name == "coordinator_not_available"

    rig.fate = lambda *proposal: None
    assert init(rig, "t").answer.error_code.name == "coordinator_not_available"


# -- producer ids


def init(rig: ClusterRig, transactional_id: str | None = None) -> Asked:
    terms = {"transaction_timeout": 1_000, "producer_id": -1, "producer_epoch": -1}
    return rig.begin(INIT_PRODUCER_ID, 3, transactional_id=transactional_id, **terms)


def producer_ids_come_in_blocks() -> None:
    """Each is given out once, and nobody waits for the next block but who comes before the first."""
    rig, reserving = ClusterRig(), []
    rig.reserving = reserving
    first = [init(rig) for _ in range(3)]
    assert [one.answer for one in first] == [None] * 3
    assert len(reserving) == 1  # asked for once
    rig.bring(reserving.pop())
    given = [one.answer.producer_id for one in first]

    while not reserving and len(given) < 1_000:
        given.append(init(rig).answer.producer_id)
    assert len(given) < 1_000
    given += [init(rig).answer.producer_id for _ in range(1_000 - len(given))]
    late = init(rig)
    assert late.answer is None
    rig.bring(reserving.pop())

    given += [late.answer.producer_id, init(rig).answer.producer_id]
    assert given == [*range(1_002)]


def test_more_who_wait_than_a_block_has_wait_for_the_next():
    rig, reserving = ClusterRig(), []
    rig.reserving = reserving
    waiting = [init(rig) for _ in range(1_500)]

    rig.bring(reserving.pop())
    assert sum(one.answer is None for one in waiting) == 500
    rig.bring(reserving.pop())

    assert sorted(one.answer.producer_id for one in waiting) == [*range(1_500)]


def test_no_producer_waits_for_the_shards_of_others_to_be_loaded(
    rig: ClusterRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(type(rig.node.transactions), "loading", lambda _: True)

    assert init(rig).answer.error_code.name == "none"


def test_a_producer_is_to_come_back_where_there_are_no_ids_to_be_had():
    rig, reserving = ClusterRig(), []
    rig.reserving = reserving
    asked = init(rig)

    reserving.pop()(None)

    assert asked.answer.error_code.name == "coordinator_load_in_progress"
    again = init(rig)
    rig.bring(reserving.pop())
    assert again.answer.error_code.name == "none"


# -- promises that have faults planted against them


PROMISES: tuple[Promise, ...] = (
    taken_meanwhile,
    collides_meanwhile,
    unknown_outcome,
    lost_answer,
    name_is_taken_while_it_is_proposed,
    grown_meanwhile,
    overtaken_settings,
    settings_unknown,
    deleted_meanwhile,
    refused_by_the_engine,
    auto_creation_is_overtaken,
    internal_is_proposed_once,
    internal_is_proposed_again_where_nothing_came_of_it,
    producer_ids_come_in_blocks,
)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_promise_is_kept(promise: Promise):
    promise()


def refuse_all(patch: pytest.MonkeyPatch) -> None:
    """One name that is taken refuses all topics of the request."""
    patch.setattr(TopicProposals, "_left_of", lambda *_: [])


def unknown_is_made(patch: pytest.MonkeyPatch) -> None:
    """A change whose answer is lost counts as made."""
    patch.setattr("coterie.broker.topics.proposals.NOT_KNOWN", None)


def lost_is_refused(patch: pytest.MonkeyPatch) -> None:
    """A topic counts as not made where the answer is lost, though it is there."""
    patch.setattr(ClusterTopics, "by_id", lambda *_: None)


def last_writer_wins(patch: pytest.MonkeyPatch) -> None:
    """Settings are set whatever they were made from."""

    def blindly(self: SetConfigs, image: Any, new_partition_id: int) -> Any:
        topic = image.topic_by_id(self.topic_id)
        return rows(self._replace(made_from=topic.version), image, new_partition_id)

    rows = SetConfigs.rows
    patch.setattr(SetConfigs, "rows", blindly)


def tried_without_news(patch: pytest.MonkeyPatch) -> None:
    """Who was overtaken tries again by the image that was outdated."""
    until_after = ClusterTopics.until_after
    patch.setattr(ClusterTopics, "until_after", lambda self, image: until_after(self, None))


def names_not_claimed(patch: pytest.MonkeyPatch) -> None:
    """A name is free while a topic of it is proposed."""
    patch.setattr(ClusterTopics, "is_taken", lambda self, name: self.image.topic(name) is not None)


def claimed_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A proposal that came to nothing is never made again."""
    patch.setattr(TopicProposals, "_internal_answered", lambda *_: None)


def proposed_each_time(patch: pytest.MonkeyPatch) -> None:
    """Each request proposes the internal topic."""
    ensure = TopicProposals.ensure_internal

    def each_time(self: Any, name: str) -> Any:
        self._topics.claimed.discard(name)
        return ensure(self, name)

    patch.setattr(TopicProposals, "ensure_internal", each_time)


def one_gone_all_gone(patch: pytest.MonkeyPatch) -> None:
    """A topic that others have deleted keeps the rest of a request from being deleted."""
    patch.setattr(TopicProposals, "_make", lambda self, changes: _refuse_each(changes))


def _refuse_each(changes: Mapping[str, Any]) -> Any:
    from coterie.broker.topics.catalog import GONE

    yield from ()
    return dict.fromkeys(changes, GONE)


def refusals_in_metadata(patch: pytest.MonkeyPatch) -> None:
    """Metadata says of a topic that another has just made that it exists already."""
    patch.setattr("coterie.broker.api.metadata.TO_BE_FOUND", frozenset())


def blocks_asked_for_late(patch: pytest.MonkeyPatch) -> None:
    """The next block of producer ids is asked for when the last has run out."""
    patch.setattr("coterie.broker.topics.producer_ids.LOW", 0)


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], Promise] = {
    refuse_all: taken_meanwhile,
    unknown_is_made: unknown_outcome,
    lost_is_refused: lost_answer,
    last_writer_wins: overtaken_settings,
    tried_without_news: grown_meanwhile,
    names_not_claimed: name_is_taken_while_it_is_proposed,
    claimed_for_ever: internal_is_proposed_again_where_nothing_came_of_it,
    proposed_each_time: internal_is_proposed_once,
    one_gone_all_gone: deleted_meanwhile,
    refusals_in_metadata: auto_creation_is_overtaken,
    blocks_asked_for_late: producer_ids_come_in_blocks,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_breaks_its_promise(fault: Any, monkeypatch: pytest.MonkeyPatch):
    fault(monkeypatch)

    with pytest.raises((AssertionError, TypeError)):
        FAULTS[fault]()
