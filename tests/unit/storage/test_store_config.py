"""Topic settings by Kafka's names."""

import pytest

from coterie.broker.config.settings import KNOWN
from coterie.storage.config import (
    BadSetting,
    LogConfig,
)


def test_the_defaults_are_kafka_s():
    config = LogConfig.of({})

    assert (config.segment_bytes, config.segment_ms) == (1_073_741_824, 604_800_000)
    assert (config.retention_ms, config.retention_bytes) == (604_800_000, -1)
    assert (config.max_message_bytes, config.index_interval_bytes) == (1_048_588, 4096)
    assert config.message_timestamp_after_max_ms == 3_600_000
    assert (config.deleted, config.compacted, config.append_time) == (True, False, False)


def test_the_default_of_what_only_a_broker_can_set_is_the_broker_s():
    default = KNOWN["producer.id.expiration.ms"].default

    assert default is not None
    assert LogConfig.of({}).producer_id_expiration_ms == int(default)


def test_settings_are_read_by_kafka_s_names():
    config = LogConfig.of(
        {
            "cleanup.policy": "compact, delete",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.1",
            "message.timestamp.type": "LogAppendTime",
            "compression.type": "zstd",
            "min.insync.replicas": "1",
        }
    )

    assert config.cleanup_policy == {"compact", "delete"}
    assert (config.segment_bytes, config.min_cleanable_dirty_ratio) == (1_048_576, 0.1)
    assert (config.append_time, config.compression_type) == (True, "zstd")


def test_settings_build_on_a_base():
    base = LogConfig.of({"retention.ms": "5"})

    assert LogConfig.of({"segment.ms": "7"}, base).retention_ms == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "x"),
        ("min.cleanable.dirty.ratio", "half"),
        ("cleanup.policy", "shred"),
        ("message.timestamp.type", "now"),
        ("compression.type", "brotli"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_name(name: str, value: str):
    with pytest.raises(BadSetting, match=name):
        LogConfig.of({name: value})


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(
        BadSetting, match=r"retention\.byte is not a setting of a topic; did you mean retention\.bytes\?"
    ):
        LogConfig.of({"retention.byte": "1"})


def test_a_compacted_log_rolls_in_time_for_its_compaction_lag():
    assert LogConfig.of({"max.compaction.lag.ms": "5"}).roll_ms == 604_800_000
    assert LogConfig.of({"max.compaction.lag.ms": "5", "cleanup.policy": "compact"}).roll_ms == 5
