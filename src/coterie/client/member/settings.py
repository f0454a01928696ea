"""What a member needs to know of its configuration."""

from dataclasses import dataclass

from coterie.assign.model import Assignor


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """A member's configuration, in Kafka's names."""

    group_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """The rebalance timeout as well."""
    assignors: tuple[str | Assignor, ...] = ("range",)
    """By preference: names of those that come with Coterie, or objects."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    auto_commit_interval_ms: int = 5_000
    metadata_max_age_ms: int = 300_000
    """How often a member looks whether topics came, went or grew."""
    rack: str | None = None
