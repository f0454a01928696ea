"""Settings and the cluster, seen and changed by other administrators; topics that outlive `kill -9`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import KafkaAdminClient

from .brokers import broker
from .soon import soon

CALL_S = 20.0
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST = 38, 39, 40, 42


def done(futures: dict[Any, Any]) -> Any:
    """Return the only answer of an administrator's call, or raise what the broker said."""
    [future] = futures.values()
    return future.result(CALL_S)


def refusal(futures: dict[Any, Any]) -> tuple[int, str]:
    with pytest.raises(KafkaException) as refused:
        done(futures)
    error = refused.value.args[0]
    return error.code(), error.str()


def a_topic(admin: AdminClient, **options: Any) -> str:
    name = f"admin-{uuid.uuid4()}"
    done(admin.create_topics([NewTopic(name, **{"num_partitions": 2, "replication_factor": 1, **options})]))
    soon(lambda: name in admin.list_topics(timeout=CALL_S).topics)
    return name


def settings_with(admin: AdminClient, topic: str, **wanted: str) -> Any:
    """Return a topic's settings once they are as wanted: Apache Kafka's brokers hear of them later."""

    def found() -> bool:
        settings.update(done(admin.describe_configs([of_topic(topic)])))
        return all(settings[name.replace("_", ".")].value == value for name, value in wanted.items())

    settings: dict[str, Any] = {}
    soon(found)
    return settings


def of_topic(name: str, *changes: ConfigEntry) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=list(changes))


def a_change(name: str, value: str, operation: AlterConfigOpType = AlterConfigOpType.SET) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})


@pytest.fixture
def kafka_python(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_a_topics_settings_are_described_with_their_sources(admin: AdminClient) -> None:
    name = a_topic(admin, config={"retention.ms": "600000"})

    settings = done(admin.describe_configs([of_topic(name)]))

    assert settings["retention.ms"].value == "600000"
    assert settings["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert settings["cleanup.policy"].value == "delete"
    assert settings["cleanup.policy"].is_default
    assert "log.cleanup.policy" in settings["cleanup.policy"].synonyms


def test_settings_are_set_appended_to_and_deleted(admin: AdminClient) -> None:
    name = a_topic(admin, config={"retention.ms": "600000"})

    done(
        admin.incremental_alter_configs(
            [
                of_topic(
                    name,
                    a_change("segment.ms", "90000"),
                    a_change("cleanup.policy", "compact", AlterConfigOpType.APPEND),
                    a_change("retention.ms", "", AlterConfigOpType.DELETE),
                )
            ]
        )
    )

    settings = settings_with(admin, name, segment_ms="90000", cleanup_policy="delete,compact")
    assert settings["retention.ms"].is_default


def test_a_setting_that_cannot_be_is_refused_with_kafkas_words(admin: AdminClient) -> None:
    name = a_topic(admin)

    assert refusal(admin.incremental_alter_configs([of_topic(name, a_change("segment.ms", "soon"))])) == (
        INVALID_CONFIG,
        "Invalid value soon for configuration segment.ms: Not a number of type LONG",
    )


def test_replicas_that_are_not_there_are_refused(admin: AdminClient) -> None:
    topic = NewTopic(f"admin-{uuid.uuid4()}", 1, 2)
    placed = NewTopic(f"admin-{uuid.uuid4()}", 1, replica_assignment=[[77]])

    assert refusal(admin.create_topics([topic]))[0] == INVALID_REPLICATION_FACTOR
    assert refusal(admin.create_topics([placed]))[0] == INVALID_REPLICA_ASSIGNMENT


def test_validation_alone_creates_nothing(admin: AdminClient) -> None:
    name = f"admin-{uuid.uuid4()}"

    done(admin.create_topics([NewTopic(name, 1, 1)], validate_only=True))
    grown = a_topic(admin)
    done(admin.create_partitions([NewPartitions(grown, 7)], validate_only=True))

    topics = admin.list_topics(timeout=CALL_S).topics
    assert name not in topics
    assert len(topics[grown].partitions) == 2


def test_the_cluster_is_one_broker_that_is_also_its_controller(admin: AdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster(request_timeout=CALL_S).result(CALL_S)

    [node] = cluster.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert cluster.controller.id == node.id
    assert len(cluster.cluster_id) == 22


def test_the_brokers_settings_are_described_and_fixed(admin: AdminClient) -> None:
    broker = str(admin.describe_cluster().result(CALL_S).controller.id)
    resource = ConfigResource(ResourceType.BROKER, broker)

    settings = done(admin.describe_configs([resource]))

    assert settings["num.partitions"].value.isdigit()
    assert settings["ssl.key.password"].is_sensitive
    change = ConfigResource(
        ResourceType.BROKER, broker, incremental_configs=[a_change("num.partitions", "9")]
    )
    assert refusal(admin.incremental_alter_configs([change])) == (
        INVALID_REQUEST,
        "Cannot update these configs dynamically: [num.partitions]",
    )


def test_kafka_python_describes_and_changes_settings(
    admin: AdminClient, kafka_python: KafkaAdminClient
) -> None:
    name = a_topic(admin)

    kafka_python.alter_configs([KafkaPythonResource("TOPIC", name, {"retention.ms": "7000"})])
    settings_with(admin, name, retention_ms="7000")
    found = kafka_python.describe_configs([KafkaPythonResource("TOPIC", name)], config_filter="all")

    assert "7000" in str(found)


def test_kafka_python_describes_the_cluster(kafka_python: KafkaAdminClient, bootstrap: str) -> None:
    cluster = kafka_python.describe_cluster()

    [broker] = cluster["brokers"]
    assert f"{broker['host']}:{broker['port']}" == bootstrap


def test_topics_ids_settings_and_the_cluster_survive_a_kill() -> None:
    with broker() as running:
        before = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 3})
        kept = a_topic(before, config={"retention.ms": "600000"})
        gone = a_topic(before)
        done(before.delete_topics([gone]))
        known = described(before, kept)

        running.kill()
        running.restart()

        after = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 3})
        assert described(after, kept) == known
        assert gone not in after.list_topics(timeout=CALL_S).topics
        assert done(after.describe_configs([of_topic(kept)]))["retention.ms"].value == "600000"


def described(admin: AdminClient, name: str) -> tuple[str, str, int]:
    """Return the cluster's id, and the topic's id and number of partitions."""
    import confluent_kafka

    topics = confluent_kafka.TopicCollection([name])
    topic = done(admin.describe_topics(topics))
    cluster = admin.describe_cluster().result(CALL_S)
    return cluster.cluster_id, str(topic.topic_id), len(topic.partitions)
