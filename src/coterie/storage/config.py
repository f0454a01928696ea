"""The settings of a topic that have an effect on its log, by Kafka's names and with Kafka's defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from coterie.base.errors import CoterieError
from coterie.base.nearest import nearest

FOREVER = 2**63 - 1
DAY_MS = 24 * 3_600_000


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
    settled_by_walk: bool = field(init=False, repr=False, compare=False)
    """Whether a producer's records are welcome that are whole and not too far ahead of the clock."""
    plain_as_it_comes: bool = field(init=False, repr=False, compare=False)
    """The same, and whether a batch that is not compressed may then stand in the log as it is."""

    def __post_init__(self) -> None:
        # Once for each config and not for each batch: it is a tenth of what an append costs.
        aged = self.message_timestamp_before_max_ms != FOREVER and not self.append_time
        object.__setattr__(self, "settled_by_walk", not (self.compacted or aged))
        as_it_comes = self.compression_type in ("producer", "uncompressed") and not self.append_time
        object.__setattr__(self, "plain_as_it_comes", self.settled_by_walk and as_it_comes)

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

        Names that Kafka knows and that have no effect here are passed over; others raise `BadSetting`, and so
        does a text that is no number or no word of its setting. Which numbers a setting takes is not said
        here: whoever takes settings from users looks at Kafka's own ranges first, and those alone.
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


READERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "segment.bytes": ("segment_bytes", int),
    "segment.ms": ("segment_ms", int),
    "segment.index.bytes": ("segment_index_bytes", int),
    "index.interval.bytes": ("index_interval_bytes", int),
    "retention.ms": ("retention_ms", int),
    "retention.bytes": ("retention_bytes", int),
    "cleanup.policy": ("cleanup_policy", _policy),
    "delete.retention.ms": ("delete_retention_ms", int),
    "min.compaction.lag.ms": ("min_compaction_lag_ms", int),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", int),
    "min.cleanable.dirty.ratio": ("min_cleanable_dirty_ratio", float),
    "max.message.bytes": ("max_message_bytes", int),
    "message.timestamp.type": ("message_timestamp_type", _one_of("CreateTime", "LogAppendTime")),
    "message.timestamp.before.max.ms": ("message_timestamp_before_max_ms", int),
    "message.timestamp.after.max.ms": ("message_timestamp_after_max_ms", int),
    "compression.type": (
        "compression_type",
        _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    "flush.messages": ("flush_messages", int),
    "flush.ms": ("flush_ms", int),
    "file.delete.delay.ms": ("file_delete_delay_ms", int),
    "producer.id.expiration.ms": ("producer_id_expiration_ms", int),
}
assert {name for name, _ in READERS.values()} == {each.name for each in fields(LogConfig) if each.init}

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
