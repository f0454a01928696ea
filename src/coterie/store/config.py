"""The settings of a topic that have an effect on its log, by Kafka's names and with Kafka's defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from coterie.base.errors import CoterieError
from coterie.base.nearest import nearest

__all__ = ["FOREVER", "BadSetting", "LogConfig"]

FOREVER = 2**63 - 1
DAY_MS = 86_400_000


class BadSetting(CoterieError):
    """A setting of a topic that is unknown, or whose value does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How one topic's logs roll, keep, compact, flush and check what they are given."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = FOREVER
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    flush_messages: int = FOREVER
    flush_ms: int = FOREVER
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = DAY_MS

    @property
    def compacted(self) -> bool:
        """Whether the log keeps the newest record of each key."""
        return "compact" in self.cleanup_policy

    @property
    def deleted(self) -> bool:
        """Whether old or surplus segments are dropped."""
        return "delete" in self.cleanup_policy

    @property
    def append_time(self) -> bool:
        """Whether records get the broker's time instead of their producer's."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def roll_ms(self) -> int:
        """After how long a segment is closed: a compacted log must close in time for its compaction lag."""
        if self.compacted and self.max_compaction_lag_ms > 0:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @classmethod
    def of(cls, settings: Mapping[str, str], base: "LogConfig | None" = None) -> "LogConfig":
        """Return the config that `settings`, by Kafka's names, make of `base` (Kafka's defaults).

        Names that Kafka knows and that have no effect here are passed over; others raise `BadSetting`.
        """
        values: dict[str, Any] = {}
        for name, text in settings.items():
            if name in NO_EFFECT:
                continue
            if name not in READERS:
                near = nearest(name, READERS, likeness=0.0)
                raise BadSetting(f"{name} is not a setting of a topic; the nearest is {near}")
            field, read = READERS[name]
            try:
                values[field] = read(text)
            except ValueError as error:
                raise BadSetting(f"{name} is {text!r}: {error}") from None
        return replace(base or cls(), **values)


def _whole(least: int, most: int = FOREVER) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"must lie between {least} and {most}")
        return number

    return read


def _ratio(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError("must lie between 0 and 1")
    return number


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return text

    return read


def _policy(text: str) -> frozenset[str]:
    chosen = frozenset(word.strip() for word in text.split(",") if word.strip())
    if not chosen <= {"delete", "compact"}:
        raise ValueError("must be delete, compact, or both with a comma")
    return chosen


INT32_MAX = 2**31 - 1

READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "segment.bytes": ("segment_bytes", _whole(14, INT32_MAX)),
    "segment.ms": ("segment_ms", _whole(1)),
    "segment.index.bytes": ("segment_index_bytes", _whole(4, INT32_MAX)),
    "index.interval.bytes": ("index_interval_bytes", _whole(0, INT32_MAX)),
    "retention.ms": ("retention_ms", _whole(-1)),
    "retention.bytes": ("retention_bytes", _whole(-FOREVER)),
    "cleanup.policy": ("cleanup_policy", _policy),
    "delete.retention.ms": ("delete_retention_ms", _whole(0)),
    "min.compaction.lag.ms": ("min_compaction_lag_ms", _whole(0)),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", _whole(1)),
    "min.cleanable.dirty.ratio": ("min_cleanable_dirty_ratio", _ratio),
    "max.message.bytes": ("max_message_bytes", _whole(0, INT32_MAX)),
    "message.timestamp.type": ("message_timestamp_type", _one_of("CreateTime", "LogAppendTime")),
    "message.timestamp.before.max.ms": ("message_timestamp_before_max_ms", _whole(0)),
    "message.timestamp.after.max.ms": ("message_timestamp_after_max_ms", _whole(0)),
    "compression.type": (
        "compression_type",
        _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    "flush.messages": ("flush_messages", _whole(1)),
    "flush.ms": ("flush_ms", _whole(0)),
    "file.delete.delay.ms": ("file_delete_delay_ms", _whole(0)),
    "producer.id.expiration.ms": ("producer_id_expiration_ms", _whole(1)),
}
assert {field for field, _ in READERS.values()} == {field.name for field in fields(LogConfig)}

NO_EFFECT = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "segment.jitter.ms",
        "unclean.leader.election.enable",
    }
)
"""Settings of Kafka's topics that change nothing in a log that one broker keeps in plain files."""
