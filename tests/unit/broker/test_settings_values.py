"""Texts to values, and the words of Apache Kafka 4.3.1 where a text does not fit (taken from its answers)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.settings import Setting, WrongValue, join_words, read, what_it_takes
from coterie.base.settings.topic import SYNONYMS, TOPIC
from coterie.broker.config.known_settings import BROKER
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.config.topic_settings import in_kafkas_words, refusal_of

TAKEN = [
    ("retention.ms", " 500 ", 500),
    ("retention.ms", "-1", -1),
    ("segment.bytes", "+1048577", 1_048_577),
    ("preallocate", "TRUE", True),
    ("preallocate", " true ", True),
    ("min.cleanable.dirty.ratio", "1e-1", 0.1),
    ("min.cleanable.dirty.ratio", ".5f", 0.5),
    ("compression.type", " gzip", "gzip"),
    ("cleanup.policy", " compact , delete ", ["compact", "delete"]),
    ("cleanup.policy", "", []),
    ("cleanup.policy", "compact,compact", ["compact", "compact"]),
    ("compression.gzip.level", "-1", -1),
    ("leader.replication.throttled.replicas", "*", ["*"]),
    ("leader.replication.throttled.replicas", "1:1,2:2", ["1:1", "2:2"]),
    ("compression.zstd.level", "-131072", -131_072),
]

NO_LONG = "Not a number of type LONG"
NO_INT = "Not a number of type INT"
REFUSED = [
    ("retention.ms", "x", f"Invalid value x for configuration retention.ms: {NO_LONG}"),
    ("retention.ms", "", f"Invalid value  for configuration retention.ms: {NO_LONG}"),
    ("retention.ms", "1_000", f"Invalid value 1_000 for configuration retention.ms: {NO_LONG}"),
    ("retention.ms", "9223372036854775808", None),
    ("retention.ms", "-5", "Invalid value -5 for configuration retention.ms: Value must be at least -1"),
    ("segment.bytes", "99999999999", f"Invalid value 99999999999 for configuration segment.bytes: {NO_INT}"),
    ("segment.bytes", "0x100000", f"Invalid value 0x100000 for configuration segment.bytes: {NO_INT}"),
    (
        "segment.bytes",
        "100",
        "Invalid value 100 for configuration segment.bytes: Value must be at least 1048576",
    ),
    (
        "min.cleanable.dirty.ratio",
        "2",
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    (
        "min.cleanable.dirty.ratio",
        "x",
        "Invalid value x for configuration min.cleanable.dirty.ratio: Not a number of type DOUBLE",
    ),
    ("min.cleanable.dirty.ratio", "1_0", None),
    ("min.cleanable.dirty.ratio", "inf", None),
    (
        "preallocate",
        "maybe",
        "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
    ),
    (
        "compression.type",
        "GZIP",
        "Invalid value GZIP for configuration compression.type: "
        "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
    ),
    (
        "compression.type",
        "",
        "Invalid value  for configuration compression.type: "
        "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
    ),
    (
        "cleanup.policy",
        "foo",
        "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    ("cleanup.policy", "compact,", "Configuration 'cleanup.policy' values must not be empty."),
    (
        "compression.gzip.level",
        "0",
        "Invalid value 0 for configuration compression.gzip.level: "
        "Value must be between 1 and 9 or equal to -1",
    ),
    (
        "compression.zstd.level",
        "23",
        "Invalid value 23 for configuration compression.zstd.level: Value must be no more than 22",
    ),
    (
        "leader.replication.throttled.replicas",
        "x",
        "Invalid value [x] for configuration leader.replication.throttled.replicas: "
        "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the "
        "following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
    (
        "leader.replication.throttled.replicas",
        "1:\u00b2",
        "Invalid value [1:\u00b2] for configuration leader.replication.throttled.replicas: "
        "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the "
        "following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
]


@pytest.mark.parametrize(("name", "text", "value"), TAKEN)
def test_a_text_that_kafka_takes_is_taken(name: str, text: str, value: object):
    assert read(TOPIC[name], text) == value


@pytest.mark.parametrize(("name", "text", "words"), REFUSED)
def test_a_text_that_kafka_refuses_is_refused_in_its_words(name: str, text: str, words: str | None):
    with pytest.raises(WrongValue) as refused:
        read(TOPIC[name], text)

    assert words is None or in_kafkas_words(refused.value) == words


def test_case_is_ignored_where_kafka_ignores_it():
    assert read(BROKER["group.consumer.migration.policy"], "upgrade") == "UPGRADE"
    with pytest.raises(WrongValue):
        read(BROKER["group.consumer.migration.policy"], "sideways")


@given(st.sampled_from(sorted(TOPIC.values()) + sorted(BROKER.values(), key=lambda k: k.name)), st.text())
def test_any_text_is_read_or_refused(known: Setting, text: str):
    with suppress(WrongValue):
        read(known, text)


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_every_long_is_read(number: int):
    assert read(TOPIC["retention.bytes"], str(number)) == number


def test_a_sentence_says_what_a_setting_takes():
    assert what_it_takes(TOPIC["retention.ms"]) == "a whole number of at least -1"
    assert what_it_takes(TOPIC["cleanup.policy"]) == "a list with commas of compact or delete"
    assert what_it_takes(TOPIC["preallocate"]) == "true or false"
    assert what_it_takes(BROKER["broker.rack"]) == "a text"
    assert join_words(["a"]) == "a"


# -- topics


def test_the_first_unknown_name_is_refused_before_any_value():
    assert refusal_of({"retention.ms": "x", "foo": "1"}) == "Unknown topic config name: foo"


def test_settings_that_contradict_each_other_are_refused():
    assert refusal_of({"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "50"}) == (
        "conflict topic config setting min.compaction.lag.ms (100) > max.compaction.lag.ms (50)"
    )
    assert refusal_of({"remote.storage.enable": "true"}) == (
        "Tiered Storage functionality is disabled in the broker. "
        "Topic cannot be configured with remote log storage."
    )
    assert refusal_of({"remote.storage.enable": "false", "local.retention.bytes": "5"}) is None


def test_a_setting_makes_the_same_log_however_it_is_written():
    settings = BrokerSettings.of({})

    assert settings.log_config({"cleanup.policy": " compact , delete "}).cleanup_policy == {
        "compact",
        "delete",
    }
    assert settings.log_config({"min.cleanable.dirty.ratio": ".5f"}).min_cleanable_dirty_ratio == 0.5
    assert settings.log_config({"compression.type": " gzip "}).compression_type == "gzip"
    assert settings.log_config({"retention.ms": " +500 "}).retention_ms == 500


def test_synonyms_are_settings_of_brokers():
    assert SYNONYMS.keys() <= TOPIC.keys()
    assert {synonym for synonyms in SYNONYMS.values() for synonym, _ in synonyms} <= BROKER.keys()
