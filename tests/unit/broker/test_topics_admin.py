"""CreateTopics, DeleteTopics, CreatePartitions, DescribeCluster: codes and words as Apache Kafka 4.3.1's.

The expected answers were taken from its broker, asked the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from admin_rig import Rig, part

from coterie.base.ids import TopicPartition

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, DESCRIBE_CLUSTER = 19, 20, 37, 60
BY_DEFAULT = -1

Brokers = Mapping[int, tuple[int, ...]] | tuple[tuple[int, tuple[int, ...]], ...]


def a_topic(
    name: str,
    partitions: int = BY_DEFAULT,
    replicas: int = BY_DEFAULT,
    *,
    configs: Mapping[str, str | None] | None = None,
    assignments: Brokers = (),
    version: int = 7,
) -> Any:
    placed = assignments.items() if isinstance(assignments, Mapping) else assignments
    return part(
        CREATE_TOPICS,
        version,
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=tuple(
            part(
                CREATE_TOPICS,
                version,
                "CreatableReplicaAssignment",
                partition_index=index,
                broker_ids=brokers,
            )
            for index, brokers in placed
        ),
        configs=tuple(
            part(CREATE_TOPICS, version, "CreatableTopicConfig", name=name, value=value)
            for name, value in (configs or {}).items()
        ),
    )


def create(rig: Rig, *topics: Any, validate_only: bool = False, version: int = 7) -> list[Any]:
    response = rig.ask(CREATE_TOPICS, version, topics=topics, validate_only=validate_only)
    return list(response.topics)


def refusal(rig: Rig, topic: Any) -> tuple[str, str | None]:
    [answer] = create(rig, topic)
    assert rig.topics.get(answer.name) is None or answer.error_code.name == "topic_already_exists"
    return answer.error_code.name, answer.error_message


# -- CreateTopics


def test_a_topic_is_created_with_its_logs_and_told_in_full():
    rig = Rig()

    [answer] = create(rig, a_topic("flights", 6, 1, configs={"retention.ms": "5000"}))

    topic = rig.topics.get("flights")
    assert topic is not None
    assert (answer.error_code.name, answer.error_message) == ("none", None)
    assert (answer.topic_id, answer.num_partitions, answer.replication_factor) == (topic.topic_id, 6, 1)
    assert [name for name in rig.store.logs if name.topic == "flights"] == [
        TopicPartition("flights", partition) for partition in range(6)
    ]
    told = {config.name: (config.value, config.config_source) for config in answer.configs}
    assert len(told) == 33
    assert told["retention.ms"] == ("5000", 1)
    assert told["cleanup.policy"] == ("delete", 5)


def test_a_topic_takes_the_brokers_defaults_where_none_are_given():
    rig = Rig(num_partitions=4)

    [answer] = create(rig, a_topic("flights"))

    assert (answer.num_partitions, answer.replication_factor) == (4, 1)


def test_a_created_topic_survives_kill_9():
    rig = Rig()
    [answer] = create(rig, a_topic("flights", 2, configs={"cleanup.policy": "compact"}))

    rig.crash()

    topic = rig.topics.get("flights")
    assert topic is not None
    assert (topic.topic_id, topic.partitions) == (answer.topic_id, 2)
    assert rig.store.logs[TopicPartition("flights", 1)].config.compacted


def test_validation_alone_creates_nothing_and_answers_the_same():
    rig = Rig()

    [answer] = create(rig, a_topic("flights", 2), validate_only=True)

    assert (answer.error_code.name, answer.num_partitions, len(answer.configs)) == ("none", 2, 33)
    assert rig.topics.get("flights") is None


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_creates(version: int):
    rig = Rig()

    [answer] = create(rig, a_topic("flights", 2, version=version), version=version)

    assert (answer.name, answer.error_code.name) == ("flights", "none")
    assert rig.topics.get("flights") is not None


def test_a_negative_number_of_partitions_makes_no_room_for_too_many():
    rig = Rig()

    answers = create(rig, a_topic("wide", 10_001), a_topic("less", -5_000))

    assert {answer.error_code.name for answer in answers} == {"policy_violation"}
    assert len(rig.topics) == 0


def test_a_name_given_twice_is_refused_once_and_the_others_are_created():
    rig = Rig()

    answers = create(rig, a_topic("twice", 1), a_topic("twice", 2), a_topic("once", 1))

    assert [(answer.name, answer.error_code.name) for answer in answers] == [
        ("once", "none"),
        ("twice", "invalid_request"),
    ]
    assert answers[1].error_message == "Duplicate topic name."
    assert rig.topics.get("twice") is None


def test_an_existing_name_is_refused():
    rig = Rig()
    create(rig, a_topic("flights", 1))

    words = "Topic 'flights' already exists."
    assert refusal(rig, a_topic("flights", 1)) == ("topic_already_exists", words)


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        (
            a_topic("", 0, 2, configs={"foo": "1"}),
            "invalid_topic_exception",
            "Topic name is invalid: the empty string is not allowed",
        ),
        (
            a_topic("t", 0, 2, configs={"foo": "1"}),
            "invalid_config",
            "Unknown topic config name: foo",
        ),
        (
            a_topic("t", configs={"retention.ms": None}),
            "invalid_config",
            "Null value not supported for topic configs: retention.ms",
        ),
        (
            a_topic("t", configs={"retention.ms": "x"}),
            "invalid_config",
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            a_topic("t", 0),
            "invalid_partitions",
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            a_topic("t", 0, 0),
            "invalid_replication_factor",
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            a_topic("t", 1, 2),
            "invalid_replication_factor",
            "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be "
            "reached because only 1 broker(s) are registered or some brokers have all their log directories "
            "cordoned.",
        ),
        (
            a_topic("t", 10_001),
            "policy_violation",
            "Excessively large number of partitions per request.",
        ),
        (
            a_topic("t", -1, 1, assignments={0: (1,)}),
            "invalid_request",
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            a_topic("t", 1, assignments={0: (1,)}),
            "invalid_request",
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            a_topic("t", assignments={0: (1,), 2: (1,)}),
            "invalid_replica_assignment",
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            a_topic("t", assignments={0: (2,)}),
            "invalid_replica_assignment",
            "The manual partition assignment includes broker 2, but no such broker is registered.",
        ),
        (
            a_topic("t", assignments={0: (1, 1)}),
            "invalid_replica_assignment",
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            a_topic("t", assignments={0: (1, 1, 2)}),
            "invalid_replica_assignment",
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            a_topic("t", assignments={0: ()}),
            "invalid_replica_assignment",
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            a_topic("t", assignments=((0, (1,)), (0, (1,)))),
            "invalid_replica_assignment",
            "Found multiple manual partition assignments for partition 0",
        ),
        (
            a_topic("__cluster_metadata", 1),
            "invalid_request",
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
    ],
)
def test_what_kafka_refuses_is_refused_in_its_words(topic: Any, code: str, words: str):
    assert refusal(Rig(), topic) == (code, words)


def test_a_topic_is_placed_by_hand_on_the_one_broker():
    rig = Rig()

    [answer] = create(rig, a_topic("flights", assignments={1: (1,), 0: (1,)}))

    assert (answer.error_code.name, answer.num_partitions) == ("none", 2)


def test_a_name_that_metrics_cannot_tell_from_another_is_refused():
    rig = Rig()
    create(rig, a_topic("a.b", 1))

    words = "Topic 'a_b' collides with existing topic: a.b"
    assert refusal(rig, a_topic("a_b", 1)) == ("invalid_topic_exception", words)


def test_the_brokers_own_topics_are_not_for_clients_to_shape():
    rig = Rig()

    code, _ = refusal(rig, a_topic("__consumer_offsets", 1))

    assert code == "invalid_request"


def test_a_disk_that_takes_nothing_is_answered_as_such():
    rig = Rig()
    rig.disk.faults.refuse.add("save")

    [answer] = create(rig, a_topic("flights", 1))

    assert answer.error_code.name == "kafka_storage_error"
    assert rig.topics.get("flights") is None


# -- DeleteTopics


def delete(rig: Rig, *named: str | UUID | tuple[str | None, UUID | None]) -> list[tuple[Any, ...]]:
    pairs = [
        one if isinstance(one, tuple) else (one, None) if isinstance(one, str) else (None, one)
        for one in named
    ]
    states = tuple(part(DELETE_TOPICS, 6, "DeleteTopicState", name=name, topic_id=key) for name, key in pairs)
    response = rig.ask(DELETE_TOPICS, 6, topics=states)
    return [(one.name, one.topic_id, one.error_code.name, one.error_message) for one in response.responses]


def created(rig: Rig, name: str) -> UUID:
    [answer] = create(rig, a_topic(name, 2))
    topic_id: UUID = answer.topic_id
    return topic_id


def test_a_topic_is_deleted_by_name_with_its_logs():
    rig = Rig()
    topic_id = created(rig, "flights")

    assert delete(rig, "flights") == [("flights", topic_id, "none", None)]

    assert rig.topics.get("flights") is None
    assert not any(name.topic == "flights" for name in rig.store.logs)


def test_a_topic_is_deleted_by_id():
    rig = Rig()
    topic_id = created(rig, "flights")

    assert delete(rig, topic_id) == [("flights", topic_id, "none", None)]


def test_a_deleted_topic_stays_deleted_after_kill_9():
    rig = Rig()
    created(rig, "flights")
    delete(rig, "flights")

    rig.crash()

    assert rig.topics.get("flights") is None
    assert not any(name.topic == "flights" for name in rig.store.logs)


def test_what_is_not_there_cannot_be_deleted():
    stranger = UUID(int=7)

    assert delete(Rig(), "nope", stranger) == [
        ("nope", None, "unknown_topic_or_partition", "This server does not host this topic-partition."),
        (None, stranger, "unknown_topic_id", "This server does not host this topic ID."),
    ]


def test_a_topic_named_twice_in_whatever_way_stays():
    rig = Rig()
    topic_id = created(rig, "flights")

    assert delete(rig, "flights", "flights") == [
        ("flights", None, "invalid_request", "Duplicate topic name.")
    ]
    assert delete(rig, topic_id, topic_id) == [(None, topic_id, "invalid_request", "Duplicate topic id.")]
    words = "The provided topic name maps to an ID that was already supplied."
    assert delete(rig, "flights", topic_id) == [("flights", topic_id, "invalid_request", words)]
    assert rig.topics.get("flights") is not None


def test_a_topic_is_named_by_name_or_id_not_both_and_not_neither():
    rig = Rig()
    topic_id = created(rig, "flights")

    assert delete(rig, ("flights", topic_id), (None, None)) == [
        ("flights", topic_id, "invalid_request", "You may not specify both topic name and topic id."),
        (None, None, "invalid_request", "Neither topic name nor id were specified."),
    ]


def test_the_brokers_own_topics_cannot_be_deleted():
    rig = Rig()
    rig.node.topic_manager.ensure_internal("__consumer_offsets")

    [(_, _, code, _)] = delete(rig, "__consumer_offsets")

    assert code == "invalid_request"
    assert rig.topics.get("__consumer_offsets") is not None


@pytest.mark.parametrize("version", range(1, 6))
def test_older_versions_delete_by_name(version: int):
    rig = Rig()
    created(rig, "flights")

    response = rig.ask(DELETE_TOPICS, version, topic_names=("flights", "nope"))

    assert [(one.name, one.error_code.name) for one in response.responses] == [
        ("flights", "none"),
        ("nope", "unknown_topic_or_partition"),
    ]


@pytest.mark.parametrize(("version", "code"), [(2, "invalid_request"), (3, "topic_deletion_disabled")])
def test_deletion_can_be_switched_off(version: int, code: str):
    rig = Rig(delete_topic_enable=False)
    created(rig, "flights")

    response = rig.ask(DELETE_TOPICS, version, topic_names=("flights",))

    assert response.responses[0].error_code.name == code
    assert rig.topics.get("flights") is not None


# -- CreatePartitions


def grow(
    rig: Rig, *wanted: tuple[str, int, tuple[tuple[int, ...], ...] | None], validate_only: bool = False
) -> list[tuple[str, str, str | None]]:
    def placed(brokers: tuple[tuple[int, ...], ...] | None) -> tuple[Any, ...] | None:
        if brokers is None:
            return None
        name = "CreatePartitionsAssignment"
        return tuple(part(CREATE_PARTITIONS, 3, name, broker_ids=ids) for ids in brokers)

    topics = tuple(
        part(
            CREATE_PARTITIONS, 3, "CreatePartitionsTopic", name=name, count=count, assignments=placed(brokers)
        )
        for name, count, brokers in wanted
    )
    response = rig.ask(CREATE_PARTITIONS, 3, topics=topics, validate_only=validate_only)
    return [(one.name, one.error_code.name, one.error_message) for one in response.results]


def test_a_topic_grows_and_its_new_logs_are_there():
    rig = Rig()
    created(rig, "flights")

    assert grow(rig, ("flights", 4, None)) == [("flights", "none", None)]

    assert TopicPartition("flights", 3) in rig.store.logs
    rig.crash()
    topic = rig.topics.get("flights")
    assert topic is not None
    assert topic.partitions == 4


@pytest.mark.parametrize(
    ("count", "brokers", "code", "words"),
    [
        (2, None, "invalid_partitions", "Topic already has 2 partition(s)."),
        (
            1,
            None,
            "invalid_partitions",
            "The topic flights currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            4,
            ((1,),),
            "invalid_replica_assignment",
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            3,
            ((2,),),
            "invalid_replica_assignment",
            "The manual partition assignment includes broker 2, but no such broker is registered.",
        ),
        (
            3,
            ((),),
            "invalid_replica_assignment",
            "The manual partition assignment includes an empty replica list.",
        ),
        (20_000, None, "policy_violation", "Excessively large number of partitions per request."),
    ],
)
def test_growth_that_kafka_refuses_is_refused(
    count: int, brokers: tuple[tuple[int, ...], ...] | None, code: str, words: str
):
    rig = Rig()
    created(rig, "flights")

    assert grow(rig, ("flights", count, brokers)) == [("flights", code, words)]


def test_topics_that_grow_in_one_request_grow_by_as_many_partitions_together_as_one_may():
    rig = Rig()
    for name in ("a", "b", "c"):
        created(rig, name)

    grown = grow(rig, ("a", 7_002, None), ("b", 7_002, None), ("c", 3_002, None), validate_only=True)

    assert [code for _, code, _ in grown] == ["none", "policy_violation", "none"]


def test_growth_by_hand_validation_strangers_and_doubles():
    rig = Rig()
    created(rig, "flights")

    assert grow(rig, ("flights", 4, ((1,), (1,))), validate_only=True) == [("flights", "none", None)]
    assert rig.topics.get("flights") is not None
    assert TopicPartition("flights", 2) not in rig.store.logs
    assert grow(rig, ("flights", 4, ((1,), (1,)))) == [("flights", "none", None)]
    assert grow(rig, ("nope", 4, None)) == [("nope", "unknown_topic_or_partition", None)]
    assert grow(rig, ("flights", 5, None), ("flights", 6, None)) == [
        ("flights", "invalid_request", "Duplicate topic name.")
    ]


# -- DescribeCluster


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_one_broker(version: int):
    rig = Rig(node_id=7, broker_rack="r-1", listeners="PLAINTEXT://127.0.0.1:19")

    answer = rig.ask(DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)

    [broker] = answer.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (7, "127.0.0.1", 19, "r-1")
    assert (answer.cluster_id, answer.controller_id) == (rig.topics.cluster_id, 7)
    assert answer.cluster_authorized_operations == 8096  # as Apache Kafka without an authorizer


def test_operations_are_told_only_when_asked():
    answer = Rig().ask(DESCRIBE_CLUSTER, include_cluster_authorized_operations=False)

    assert answer.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        (
            2,
            "mismatched_endpoint_type",
            "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER",
        ),
        (7, "unsupported_endpoint_type", "Unsupported endpoint type 7"),
    ],
)
def test_whoever_looks_for_a_controller_is_turned_away(kind: int, code: str, words: str):
    answer = Rig().ask(DESCRIBE_CLUSTER, endpoint_type=kind)

    assert (answer.error_code.name, answer.error_message, answer.brokers) == (code, words, ())
