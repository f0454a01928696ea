"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: codes and words as Apache Kafka 4.3.1's.

The expected answers were taken from its broker, asked the same.
"""

from __future__ import annotations

from typing import Any

import pytest
from admin_rig import Rig, part

from coterie.base.ids import TopicPartition
from coterie.broker.runtime.pieces import at_once

DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def a_rig(**settings: object) -> Rig:
    rig = Rig(**settings)
    rig.node.topic_manager.create_topic("flights", partitions=2, configs={"retention.ms": "5000"})
    return rig


def own_settings(rig: Rig) -> dict[str, str]:
    topic = rig.topics.get("flights")
    assert topic is not None
    return dict(topic.configs)


# -- DescribeConfigs


def describe(
    rig: Rig,
    *resources: tuple[int, str],
    keys: tuple[str, ...] | None = None,
    synonyms: bool = True,
    version: int = 4,
) -> list[Any]:
    asked = tuple(
        part(
            DESCRIBE,
            version,
            "DescribeConfigsResource",
            resource_type=kind,
            resource_name=name,
            configuration_keys=keys,
        )
        for kind, name in resources
    )
    return list(rig.ask(DESCRIBE, version, resources=asked, include_synonyms=synonyms).results)


def entries(result: Any) -> dict[str, Any]:
    assert result.error_code.name == "none"
    return {entry.name: entry for entry in result.configs}


def origins(entry: Any) -> list[tuple[str, str | None, int]]:
    return [(origin.name, origin.value, origin.source) for origin in entry.synonyms]


def test_a_topic_is_described_with_where_each_value_comes_from():
    rig = a_rig(log_segment_bytes=2_000_000)

    [result] = describe(rig, (TOPIC, "flights"))

    found = entries(result)
    assert len(found) == 33
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("5000", 1)
    assert origins(found["retention.ms"]) == [("retention.ms", "5000", 1)]
    assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == ("2000000", 4)
    assert origins(found["segment.bytes"]) == [
        ("log.segment.bytes", "2000000", 4),
        ("log.segment.bytes", "1073741824", 5),
    ]
    assert (found["segment.ms"].value, found["segment.ms"].config_source) == ("604800000", 5)
    assert origins(found["segment.ms"]) == []
    assert (found["cleanup.policy"].config_type, found["preallocate"].config_type) == (7, 1)
    assert not any(entry.read_only or entry.is_sensitive for entry in result.configs)


def test_only_the_settings_asked_for_are_told():
    [result] = describe(a_rig(), (TOPIC, "flights"), keys=("retention.ms", "foo"), synonyms=False)

    [entry] = result.configs
    assert (entry.name, entry.synonyms) == ("retention.ms", ())


def test_an_empty_list_of_names_asks_for_all_as_in_kafka():
    [result] = describe(a_rig(), (TOPIC, "flights"), keys=())

    assert len(result.configs) == 33


@pytest.mark.parametrize("version", range(1, 5))
def test_every_version_describes(version: int):
    [result] = describe(a_rig(), (TOPIC, "flights"), version=version)

    assert len(result.configs) == 33


def test_the_broker_is_described_and_keeps_its_secrets():
    rig = a_rig(num_partitions=4, ssl_key_password="hidden")

    [result] = describe(rig, (BROKER, "1"))

    found = entries(result)
    assert len(found) == 345  # Kafka's, and our own
    assert origins(found["num.partitions"]) == [("num.partitions", "4", 4), ("num.partitions", "1", 5)]
    assert (found["ssl.key.password"].value, found["ssl.key.password"].is_sensitive) == (None, True)
    assert origins(found["ssl.key.password"]) == [("ssl.key.password", None, 4)]
    assert found["broker.id"].value == "1"
    assert all(entry.read_only for entry in result.configs)


def test_what_was_changed_for_all_brokers_is_nothing():
    [result] = describe(a_rig(), (BROKER, ""))

    assert (result.error_code.name, result.configs) == ("none", ())


@pytest.mark.parametrize(
    ("resource", "code", "words"),
    [
        ((TOPIC, "nope"), "unknown_topic_or_partition", ""),
        (
            (TOPIC, ""),
            "invalid_topic_exception",
            "Topic name is invalid: the empty string is not allowed",
        ),
        (
            (BROKER, "2"),
            "invalid_request",
            "Unexpected broker id, expected 1 or empty string, but received 2",
        ),
        ((BROKER, "x"), "invalid_request", "Broker id must be an integer, but it is: x"),
        ((GROUP, "g"), "invalid_request", "Groups have no settings in this version of Coterie"),
    ],
)
def test_what_cannot_be_described_is_refused(resource: tuple[int, str], code: str, words: str):
    [result] = describe(a_rig(), resource)

    assert (result.error_code.name, result.error_message, result.configs) == (code, words, ())


def test_a_kind_of_resource_that_nobody_knows_spoils_the_whole_request_as_in_kafka():
    results = describe(a_rig(), (7, "x"), (TOPIC, "flights"))

    assert [result.error_code.name for result in results] == ["invalid_request", "invalid_request"]


# -- IncrementalAlterConfigs


def change(
    rig: Rig,
    *changes: tuple[str, int, str | None],
    resource: tuple[int, str] = (TOPIC, "flights"),
    validate_only: bool = False,
    times: int = 1,
) -> tuple[str, str | None]:
    configs = tuple(
        part(INCREMENTAL, 1, "AlterableConfig", name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    )
    kind, name = resource
    one = part(
        INCREMENTAL, 1, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs
    )
    answer = rig.ask(INCREMENTAL, 1, resources=(one,) * times, validate_only=validate_only).responses[0]
    assert (answer.resource_type, answer.resource_name) == resource
    return answer.error_code.name, answer.error_message


def test_a_setting_is_set_and_the_logs_go_by_it_at_once():
    rig = a_rig()

    assert change(rig, ("segment.ms", SET, "9000")) == ("none", None)

    assert own_settings(rig) == {"retention.ms": "5000", "segment.ms": "9000"}
    assert rig.store.logs[TopicPartition("flights", 1)].config.segment_ms == 9000
    rig.crash()
    assert own_settings(rig) == {"retention.ms": "5000", "segment.ms": "9000"}
    assert rig.store.logs[TopicPartition("flights", 1)].config.segment_ms == 9000


def test_a_deleted_setting_goes_back_to_its_default():
    rig = a_rig()

    assert change(rig, ("retention.ms", DELETE, None), ("foo", DELETE, None)) == ("none", None)

    assert own_settings(rig) == {}
    assert rig.store.logs[TopicPartition("flights", 0)].config.retention_ms == 604_800_000


def test_lists_are_appended_to_and_subtracted_from():
    rig = a_rig()
    policy: list[str] = []
    for operation, text in [
        (APPEND, "compact"),
        (APPEND, "compact"),
        (SUBTRACT, "delete"),
        (SUBTRACT, "delete"),
        (SUBTRACT, "compact"),
        (SET, "compact,delete"),
        (SUBTRACT, "compact,delete"),
    ]:
        assert change(rig, ("cleanup.policy", operation, text)) == ("none", None)
        policy.append(own_settings(rig)["cleanup.policy"])

    assert policy == ["delete,compact", "delete,compact", "compact", "compact", "", "compact,delete", ""]


def test_a_list_grows_no_longer_than_an_answer_can_tell():
    rig = a_rig()
    name = "leader.replication.throttled.replicas"
    pairs = [",".join(f"{partition}:{broker}" for partition in range(1_000, 5_000)) for broker in (1, 2)]

    first = change(rig, (name, APPEND, pairs[0]))
    second = change(rig, (name, APPEND, pairs[1]))

    assert first == ("none", None)
    assert second == ("invalid_config", f"{name} would be longer than 32767 bytes.")
    assert [entries(describe(rig, (TOPIC, "flights"), version=v)[0])[name].value for v in (1, 4)] == [
        pairs[0]
    ] * 2


class Counted(str):
    """A text that counts how often it is compared."""

    looks = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_thousands_of_names_that_are_asked_for_are_not_looked_through_for_each_setting():
    names = tuple(Counted(f"name.{n}") for n in range(2_000))
    rig = a_rig()
    Counted.looks = 0

    describe(rig, (BROKER, "1"), keys=names)

    assert Counted.looks < 10 * len(names)


def test_what_others_change_while_a_large_request_is_looked_at_stays_changed():
    rig = a_rig()
    rig.node.topic_manager.create_topic("other", partitions=1)
    one = part(INCREMENTAL, 1, "AlterableConfig", name="retention.ms", config_operation=SET, value="1")
    large = rig.begin(
        INCREMENTAL,
        1,
        validate_only=False,
        resources=tuple(
            part(
                INCREMENTAL,
                1,
                "AlterConfigsResource",
                resource_type=TOPIC,
                resource_name=name,
                configs=(one,),
            )
            for name in ("flights", "other")
        ),
    )
    next(large)

    assert change(rig, ("max.message.bytes", SET, "77")) == ("none", None)
    at_once(large)

    assert own_settings(rig) == {"retention.ms": "1", "max.message.bytes": "77"}


@pytest.mark.parametrize("number", ["1" * 5_000, "-" + "9" * 5_000])
def test_a_number_of_thousands_of_digits_is_refused_and_zeros_before_it_are_read(number: str):
    rig = a_rig()

    refused = change(rig, ("retention.ms", SET, number))
    taken = change(rig, ("retention.ms", SET, "0" * 5_000 + "7"))

    words = f"Invalid value {number} for configuration retention.ms: Not a number of type LONG"
    assert refused == ("invalid_config", words)
    assert taken == ("none", None)
    assert rig.store.logs[TopicPartition("flights", 0)].config.retention_ms == 7
    [broker] = describe(rig, (BROKER, number))
    assert broker.error_message == f"Broker id must be an integer, but it is: {number}"


def test_validation_alone_changes_nothing():
    rig = a_rig()

    assert change(rig, ("retention.ms", SET, "1"), validate_only=True) == ("none", None)

    assert own_settings(rig) == {"retention.ms": "5000"}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ([("foo", SET, "1")], "invalid_config", "Unknown topic config name: foo"),
        (
            [("retention.ms", SET, "x")],
            "invalid_config",
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            [("retention.ms", SET, None)],
            "invalid_request",
            "Null value not supported for : retention.ms",
        ),
        (
            [("retention.ms", APPEND, "1")],
            "invalid_config",
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
            "invalid_request",
            "Error due to duplicate config keys",
        ),
        ([("segment.ms", SET, "7"), ("foo", SET, "2")], "invalid_config", "Unknown topic config name: foo"),
        ([("retention.ms", 9, "1")], "invalid_request", "Unknown operation 9 for key retention.ms"),
        (
            [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")],
            "invalid_config",
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
    ],
)
def test_a_change_that_kafka_refuses_changes_nothing(
    changes: list[tuple[str, int, str | None]], code: str, words: str
):
    rig = a_rig()

    assert change(rig, *changes) == (code, words)

    assert own_settings(rig) == {"retention.ms": "5000"}


@pytest.mark.parametrize(
    ("resource", "code", "words"),
    [
        ((TOPIC, "nope"), "unknown_topic_or_partition", "The topic 'nope' does not exist."),
        ((TOPIC, ""), "invalid_request", "Default topic resources are not allowed."),
        (
            (TOPIC, "a b"),
            "invalid_topic_exception",
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
        ((7, "x"), "invalid_request", "Unknown resource type 7"),
        (
            (LOGGER, "1"),
            "invalid_request",
            "Loggers of the broker have no settings in this version of Coterie",
        ),
        ((METRICS, "m"), "invalid_request", "Client metrics have no settings in this version of Coterie"),
        (
            (BROKER, "1"),
            "invalid_request",
            "Cannot update these configs dynamically: [num.partitions]",
        ),
        ((BROKER, ""), "invalid_request", "Cannot update these configs dynamically: [num.partitions]"),
        ((BROKER, "2"), "invalid_request", "Unexpected broker id, expected 1, but received 2"),
        ((BROKER, "x"), "invalid_request", "Node id must be an integer, but it is: x"),
    ],
)
def test_what_cannot_be_changed_is_refused(resource: tuple[int, str], code: str, words: str):
    assert change(a_rig(), ("num.partitions", SET, "5"), resource=resource) == (code, words)


def test_a_broker_without_changes_is_fine():
    assert change(a_rig(), resource=(BROKER, "1")) == ("none", None)


def test_a_resource_listed_twice_is_not_touched():
    rig = a_rig()

    answer = change(rig, ("retention.ms", SET, "1"), times=2)

    assert answer == ("invalid_request", "Each resource must appear at most once.")
    assert own_settings(rig) == {"retention.ms": "5000"}


def test_a_disk_that_takes_nothing_leaves_the_settings():
    rig = a_rig()
    rig.disk.faults.refuse.add("save")

    code, _ = change(rig, ("retention.ms", SET, "1"))

    assert code == "kafka_storage_error"
    assert own_settings(rig) == {"retention.ms": "5000"}


# -- AlterConfigs


def replace(
    rig: Rig, *configs: tuple[str, str | None], validate_only: bool = False
) -> tuple[str, str | None]:
    listed = tuple(part(ALTER, 2, "AlterableConfig", name=name, value=value) for name, value in configs)
    one = part(ALTER, 2, "AlterConfigsResource", resource_type=TOPIC, resource_name="flights", configs=listed)
    [answer] = rig.ask(ALTER, 2, resources=(one,), validate_only=validate_only).responses
    return answer.error_code.name, answer.error_message


def test_a_topic_gets_exactly_the_settings_listed():
    rig = a_rig()

    assert replace(rig, ("segment.ms", "9000")) == ("none", None)
    assert own_settings(rig) == {"segment.ms": "9000"}

    assert replace(rig) == ("none", None)
    assert own_settings(rig) == {}


@pytest.mark.parametrize(
    ("configs", "code", "words"),
    [
        ([("foo", "1")], "invalid_config", "Unknown topic config name: foo"),
        ([("segment.ms", None)], "invalid_request", "Null value not supported for : segment.ms"),
        (
            [("segment.ms", "1"), ("segment.ms", "2")],
            "invalid_request",
            "Error due to duplicate config keys",
        ),
    ],
)
def test_a_replacement_that_kafka_refuses_changes_nothing(
    configs: list[tuple[str, str | None]], code: str, words: str
):
    rig = a_rig()

    assert replace(rig, *configs) == (code, words)

    assert own_settings(rig) == {"retention.ms": "5000"}


def test_settings_of_a_broker_may_be_taken_back_that_it_was_never_given():
    rig, throttle = a_rig(), "leader.replication.throttled.rate"
    assert change(rig, (throttle, DELETE, None), resource=(BROKER, "1")) == ("none", None)
    code, words = change(rig, (throttle, DELETE, None), ("num.partitions", SET, "5"), resource=(BROKER, "1"))
    assert (code, words) == ("invalid_request", "Cannot update these configs dynamically: [num.partitions]")
