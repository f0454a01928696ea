"""What a shard lets itself be told: the broker's settings that the coordinator core reads."""

from dataclasses import dataclass

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # a constant in Kafka too (JG-23)
RETRY_MS = 500  # how long a time-out whose append failed waits before it is tried again (EX-8)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Kafka's `group.*` and `offsets.*` settings, by what they limit, with Kafka's defaults."""

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096  # compared with the UTF-16 length, whatever its name says
    offsets_retention_ms: int = 7 * 86_400_000
    keeps_ids_in_transactions: bool = False
    """Whether offsets committed in a transaction are stored with their topics' ids, which Apache Kafka leaves
    out. Brokers that hear of a topic's deletion at different times know by them what is left of it."""

    def allows_session(self, timeout_ms: int) -> bool:
        """Return whether a member may have this session timeout (JG-4)."""
        return self.min_session_timeout_ms <= timeout_ms <= self.max_session_timeout_ms
