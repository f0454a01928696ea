"""The settings of a topic that have an effect on its log, by Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from coterie.base.errors import CoterieError
from coterie.base.settings import Setting, WrongValue, did_you_mean, read
from coterie.base.settings.topic import TOPIC

FOREVER = 2**63 - 1


class BadSetting(CoterieError):
    """A setting of a topic that is unknown, or whose value does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How one topic's logs roll, keep, compact, flush and check what they are given."""

    segment_bytes: int
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    retention_ms: int
    retention_bytes: int
    cleanup_policy: frozenset[str]
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    max_message_bytes: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    compression_type: str
    flush_messages: int
    flush_ms: int
    file_delete_delay_ms: int
    producer_id_expiration_ms: int
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
    def of(cls, settings: Mapping[str, object], base: LogConfig | None = None) -> LogConfig:
        """Return the config that `settings`, by Kafka's names, make of `base` or of Kafka's defaults.

        Names that Kafka knows and that have no effect here are passed over; others raise `BadSetting`, and so
        does a text that is no number or no word of its setting. The range of a number is not looked at here:
        whoever takes settings from users looks at Kafka's own ranges first, and those alone.
        """
        values: dict[str, Any] = {}
        defaults = {one.name: one.default for one in SETTINGS.values()} if base is None else {}
        for name, given in {**defaults, **settings}.items():
            if name in NO_EFFECT:
                continue
            if name not in SETTINGS:
                raise BadSetting(f"{name} is not a setting of a topic{did_you_mean(name, SETTINGS)}")
            try:
                value = read(SETTINGS[name], given)
            except WrongValue as wrong:
                raise BadSetting(str(wrong)) from None
            values[name.replace(".", "_")] = frozenset(value) if isinstance(value, list) else value
        return cls(**values) if base is None else replace(base, **values)


EFFECTIVE: Final = frozenset(each.name.replace("_", ".") for each in fields(LogConfig) if each.init)
NO_EFFECT: Final = TOPIC.keys() - EFFECTIVE - {"internal.segment.bytes"}
"""Settings of Kafka's topics that change nothing in a log that one broker keeps in plain files."""


def _of_any_number(setting: Setting) -> Setting:
    return setting._replace(rule="-") if ".." in setting.rule else setting


SETTINGS: Final = {name: _of_any_number(TOPIC[name]) for name in TOPIC if name in EFFECTIVE} | {
    "producer.id.expiration.ms": Setting("producer.id.expiration.ms", "int", default="86400000")
}
assert SETTINGS.keys() == EFFECTIVE
