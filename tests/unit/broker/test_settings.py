"""A broker's settings: Kafka's names and defaults, and what each way to get one wrong is answered with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coterie
from coterie.base.settings.topic import TOPIC
from coterie.base.topic_names import INTERNAL_TOPICS
from coterie.broker.config.known_settings import BROKER, INTERNAL, OWN
from coterie.broker.config.settings import (
    KNOWN,
    TABLED,
    UNREAD,
    WITH_EFFECT,
    BrokerSettings,
    SettingError,
    UnknownSetting,
)
from coterie.storage.config import LogConfig


def settings_of(**given: object) -> BrokerSettings:
    return BrokerSettings.of({name.replace("_", "."): str(value) for name, value in given.items()})


def refusal_of(**given: object) -> str:
    with pytest.raises(SettingError) as refused:
        settings_of(**given)
    return str(refused.value)


def test_nothing_given_means_kafkas_defaults_on_one_broker():
    settings = BrokerSettings.of({})

    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 9092)
    assert settings.advertised_listener is None
    assert settings.node_id == 1
    assert settings.num_partitions == 1
    assert settings.offsets_topic_num_partitions == 50
    assert settings.group_initial_rebalance_delay_ms == 3000
    assert settings.socket_request_max_bytes == 104_857_600
    assert settings.auto_create_topics_enable is True
    assert settings.notes == ()


def test_every_setting_of_kafka_4_3_1_is_known():
    assert len(BROKER) == 340  # as the broker of Apache Kafka 4.3.1 describes itself
    assert len(INTERNAL) == 20
    assert len(TOPIC) == 34


def test_every_default_is_a_value_of_its_setting():
    settings = BrokerSettings.of({name: known.default for name, known in BROKER.items() if known.default})

    assert settings.num_partitions == 1


def test_what_is_given_is_read_by_its_type():
    settings = settings_of(num_partitions=6, auto_create_topics_enable="FALSE", broker_rack="r-1")

    assert settings.num_partitions == 6
    assert settings.auto_create_topics_enable is False
    assert settings.broker_rack == "r-1"


def test_a_setting_without_effect_is_taken_with_a_note():
    settings = settings_of(num_io_threads=8, offsets_topic_replication_factor=3, min_insync_replicas=2)

    assert settings.notes == (
        "min.insync.replicas has no effect here: there is one replica of everything",
        "num.io.threads is known but has no effect here",
        "offsets.topic.replication.factor has no effect here: there is one replica of everything",
    )


def test_a_setting_of_one_listener_or_plugin_is_taken_with_a_note():
    settings = BrokerSettings.of({"listener.name.internal.ssl.keystore.location": "/x"})

    assert len(settings.notes) == 1


def test_an_unknown_setting_is_refused_with_the_nearest_known_name():
    with pytest.raises(UnknownSetting) as refused:
        BrokerSettings.of({"num_partitions": "6"})

    assert str(refused.value) == (
        "num_partitions is not a setting of a Kafka broker; did you mean num.partitions?"
    )


def test_a_setting_of_topics_is_refused_with_the_brokers_name_for_its_default():
    with pytest.raises(UnknownSetting, match=r"segment.ms is not .*; topics have it, and log.roll.ms says"):
        BrokerSettings.of({"segment.ms": "1000"})


def test_a_name_far_from_all_others_is_refused_without_a_guess():
    with pytest.raises(UnknownSetting) as refused:
        BrokerSettings.of({"xyzzy": "6"})

    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("num.partitions", "0", "num.partitions is '0'; it takes a whole number of at least 1"),
        ("num.partitions", "six", "num.partitions is 'six'; it takes a whole number of at least 1"),
        (
            "log.cleaner.min.cleanable.ratio",
            "2",
            "log.cleaner.min.cleanable.ratio is '2'; it takes a number from 0 to 1",
        ),
        (
            "auto.create.topics.enable",
            "yes",
            "auto.create.topics.enable is 'yes'; it takes true or false",
        ),
        (
            "compression.gzip.level",
            "10",
            "compression.gzip.level is '10'; it takes a whole number from 1 to 9, or -1",
        ),
        (
            "log.message.timestamp.type",
            "now",
            "log.message.timestamp.type is 'now'; it takes CreateTime or LogAppendTime",
        ),
        (
            "log.retention.ms",
            "0",
            "log.retention.ms is 0; it takes -1 (for ever) or a whole number of at least 1",
        ),
        ("log.roll.ms", "0", "log.roll.ms is 0; it takes a whole number of at least 1"),
        (
            "offsets.topic.segment.bytes",
            "1048575",
            "offsets.topic.segment.bytes is 1048575; it takes a whole number of at least 1048576, "
            "as any topic's segment.bytes",
        ),
        (
            "transaction.state.log.segment.bytes",
            "1",
            "transaction.state.log.segment.bytes is 1; it takes a whole number of at least 1048576, "
            "as any topic's segment.bytes",
        ),
        ("node.id", "-2", "node.id is '-2'; it takes a whole number of at least 0"),
        ("log.dirs", "/a,/b", "log.dirs names 2 directories; give one, which holds all logs"),
    ],
)
def test_a_wrong_value_is_refused_with_what_the_setting_takes(name: str, text: str, sentence: str):
    with pytest.raises(SettingError) as refused:
        BrokerSettings.of({name: text})

    assert str(refused.value) == sentence


def test_settings_that_contradict_each_other_are_refused():
    assert "lower the one or raise the other" in refusal_of(group_min_session_timeout_ms=2_000_000)
    assert "set only node.id" in refusal_of(node_id=1, broker_id=2)


# -- addresses


def test_broker_id_is_another_name_of_node_id():
    assert settings_of(broker_id=7).node_id == 7


def test_the_listener_of_a_controller_is_passed_over():
    settings = settings_of(
        listeners="PLAINTEXT://127.0.0.1:9,CONTROLLER://127.0.0.1:10", controller_listener_names="CONTROLLER"
    )

    assert settings.listen_port == 9


def test_a_listener_may_have_any_name_that_maps_to_plaintext():
    settings = settings_of(
        listeners="INSIDE://[::1]:9", listener_security_protocol_map="inside:PLAINTEXT,CONTROLLER:PLAINTEXT"
    )

    assert (settings.listen_host, settings.listen_port) == ("::1", 9)


def test_clients_are_told_the_advertised_address():
    settings = settings_of(
        listeners="PLAINTEXT://0.0.0.0:9", advertised_listeners="PLAINTEXT://kafka.example:19"
    )

    assert settings.listen_host == "0.0.0.0"
    assert settings.advertised_listener == ("kafka.example", 19)


@pytest.mark.parametrize(
    ("listeners", "part"),
    [
        ("PLAINTEXT://0.0.0.0:9", "say what clients use with advertised.listeners=PLAINTEXT://HOST:PORT"),
        ("PLAINTEXT://:9", "say what clients use"),
        ("SSL://127.0.0.1:9", "SSL speaks SSL, which is not served; use PLAINTEXT"),
        ("INSIDE://127.0.0.1:9", "INSIDE has no protocol; add it to listener.security.protocol.map"),
        ("127.0.0.1:9", "127.0.0.1:9 is not NAME://HOST:PORT"),
        ("PLAINTEXT://127.0.0.1", "is not HOST:PORT"),
        ("PLAINTEXT://127.0.0.1:65536", "a port from 0 to 65535"),
        ("PLAINTEXT://::1:9", "write an IPv6 address as [::1]:9092"),
        ("PLAINTEXT://a:1,PLAINTEXT://b:2", "listeners names 2 addresses for clients; give exactly one"),
        ("", "listeners names 0 addresses"),
    ],
)
def test_an_address_that_cannot_be_served_is_refused(listeners: str, part: str):
    assert part in refusal_of(listeners=listeners)


def test_a_protocol_that_does_not_exist_is_refused():
    assert "INSIDE:TELNET is not NAME:PROTOCOL" in refusal_of(listener_security_protocol_map="INSIDE:TELNET")


# -- what others are given


def test_the_defaults_of_topics_come_from_the_broker():
    defaults = settings_of(
        log_segment_bytes=2_000_000, log_roll_hours=5, log_retention_minutes=7
    ).log_defaults()

    assert defaults["segment.bytes"] == "2000000"
    assert defaults["segment.ms"] == "18000000"
    assert defaults["retention.ms"] == "420000"
    assert defaults["cleanup.policy"] == "delete"
    assert defaults.keys() == TOPIC.keys() - {"internal.segment.bytes"}


def test_milliseconds_count_more_than_minutes_and_minutes_more_than_hours():
    settings = settings_of(log_retention_ms=5, log_retention_minutes=7, log_retention_hours=9)

    assert settings.log_defaults()["retention.ms"] == "5"


def test_for_ever_is_minus_one_in_every_unit():
    assert settings_of(log_retention_hours=-1).log_defaults()["retention.ms"] == "-1"


def test_a_log_goes_by_its_topic_first_then_by_the_broker():
    settings = settings_of(log_segment_bytes=2_000_000, message_max_bytes=500, producer_id_expiration_ms=9)

    config = settings.log_config({"max.message.bytes": " 700 ", "min.cleanable.dirty.ratio": ".25f"})

    assert config.segment_bytes == 2_000_000
    assert config.max_message_bytes == 700
    assert config.min_cleanable_dirty_ratio == 0.25
    assert config.producer_id_expiration_ms == 9


def test_without_settings_a_log_goes_by_kafkas_defaults():
    assert BrokerSettings.of({}).log_config({}) == LogConfig.of({})


def test_tests_may_have_smaller_segments_than_users():
    config = BrokerSettings.of({}).log_config({"internal.segment.bytes": "100", "segment.bytes": "2000000"})

    assert config.segment_bytes == 100


def test_the_coordinator_gets_its_settings():
    group = settings_of(group_max_size=5, offsets_retention_minutes=2).group_settings()

    assert group.max_size == 5
    assert group.offsets_retention_ms == 120_000
    assert group.initial_rebalance_delay_ms == 3000


def test_the_offsets_topic_is_made_as_kafka_makes_it():
    partitions, configs = settings_of(offsets_topic_num_partitions=3).internal_topic("__consumer_offsets")

    assert partitions == 3
    assert configs == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_an_internal_topic_can_be_made_by_the_least_of_every_setting_that_is_taken(topic: str):
    for name, known in KNOWN.items():
        _, span, _ = known.rule.partition("..")
        least = known.rule.removesuffix("..").rpartition("|")[2] if known.rule.endswith("..") else None
        if not span or least is None:
            continue
        try:
            settings = BrokerSettings.of({name: least})
        except SettingError:
            continue  # refused at the start, with a sentence
        partitions, configs = settings.internal_topic(topic)
        assert partitions > 0
        assert settings.log_config(configs), name


def test_housekeeping_is_as_frequent_as_the_most_frequent_duty():
    assert BrokerSettings.of({}).housekeeping_interval_ms == 15_000
    assert settings_of(log_retention_check_interval_ms=500).housekeeping_interval_ms == 500
    assert settings_of(log_flush_interval_ms=1).housekeeping_interval_ms == 100


def test_a_setting_with_an_effect_is_one_that_kafka_knows_or_our_own():
    assert {*BROKER, *INTERNAL, *OWN} >= WITH_EFFECT
    assert OWN.keys() <= WITH_EFFECT


def test_the_story_is_kept_for_a_week_and_no_larger_than_a_quarter_of_a_gigabyte():
    partitions, configs = settings_of(coterie_story_retention_ms=1000).internal_topic("__group_story")

    assert partitions == 1
    assert configs == {
        "cleanup.policy": "delete",
        "retention.bytes": str(256 << 20),
        "retention.ms": "1000",
        "segment.bytes": str(16 << 20),
    }


def test_a_setting_is_said_to_have_an_effect_just_when_somebody_goes_by_it():
    source = Path(coterie.__file__).parent.rglob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in source)

    unread = {name for name in TABLED if not re.search(rf"\.{name.replace('.', '_')}\b", text)}

    assert unread == UNREAD
