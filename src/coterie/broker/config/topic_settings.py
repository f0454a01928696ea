"""The settings of topics: what Apache Kafka refuses, where a default comes from, what an effect has here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coterie.base.topic_settings import TOPIC_SETTINGS
from coterie.broker.config.known_settings import TOPIC
from coterie.broker.config.setting_values import InvalidValueError, read_value
from coterie.storage.config import NO_EFFECT, BadSetting

HOUR_MS = 3_600_000
MINUTE_MS = 60_000

assert TOPIC.keys() == TOPIC_SETTINGS
EFFECTIVE = TOPIC.keys() - NO_EFFECT

SYNONYMS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "preallocate": (("log.preallocate", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    ),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
}
"""Which broker settings give a topic setting its default: the first that has a value, times its factor."""


def topic_defaults(broker_text: Callable[[str], str | None]) -> dict[str, str]:
    """Return the text of every topic setting that has a default, given the text of each broker setting."""
    defaults = {name: known.default for name, known in TOPIC.items() if known.default is not None}
    for name in SYNONYMS:
        text = synonym_text(name, broker_text)
        assert text is not None, f"{name} always has a default"
        defaults[name] = text
    return defaults


def synonym_text(name: str, broker_text: Callable[[str], str | None]) -> str | None:
    """Return what a broker's settings make a topic's setting by default, None if they say nothing of it."""
    for synonym, factor in SYNONYMS.get(name, ()):
        text = broker_text(synonym)
        if text is not None:
            return text if factor == 1 and name != "retention.ms" else _times(text, factor)
    return None


def _times(text: str, factor: int) -> str:
    """Return a time as milliseconds; a negative number is Kafka's "never" whatever its unit."""
    try:
        number = int(text)
        return "-1" if number < 0 else str(number * factor)
    except ValueError:  # whoever reads the setting says so
        return text


def refusal_of(configs: Mapping[str, str | None]) -> str | None:
    """Return why a topic may not have these settings, in Apache Kafka's words; None if it may."""
    for name in configs:
        if name not in TOPIC:
            return f"Unknown topic config name: {name}"
    values: dict[str, object] = {}
    for name, text in configs.items():
        assert text is not None, "nulls are refused before, with another code"
        try:
            values[name] = read_value(TOPIC[name], text)
        except InvalidValueError as refusal:
            return str(refusal)
    return _conflict(values)


def _conflict(values: Mapping[str, object]) -> str | None:
    least, most = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms", 2**63 - 1)
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        return (
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if values.get("remote.storage.enable"):
        disabled = "Tiered Storage functionality is disabled in the broker."
        return f"{disabled} Topic cannot be configured with remote log storage."
    return None


def plain_text(name: str, text: str) -> str:
    """Return the text of a setting as any reader takes it: no spaces around it, numbers as Python's.

    Raises `BadSetting` for an unknown name, `InvalidValueError` for a text that does not fit.
    """
    if name not in TOPIC:
        raise BadSetting(f"{name} is not a setting of a topic")
    value = read_value(TOPIC[name], text)
    return ",".join(value) if isinstance(value, list) else str(value)
