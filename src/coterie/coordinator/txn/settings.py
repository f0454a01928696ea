"""What a shard lets itself be told: the broker's settings that the transaction core reads."""

from dataclasses import dataclass

RETRY_MS = 50  # how long what a transaction needs to end, and failed, waits before it is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Kafka's `transaction.*` settings, by what they limit, with Kafka's defaults."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 7 * 86_400_000
    timeouts_interval_ms: int = 10_000  # how often transactions are looked through for those that hang
    ids_interval_ms: int = 3_600_000  # and transactional ids for those that nobody uses any more
