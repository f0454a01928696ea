"""The rows of a history, one class a table. Times are milliseconds since 1970.

`coterie.spark.history.schemas` makes Spark's schemas from these classes; docs/history.md says what they mean.
"""

from __future__ import annotations

from typing import NamedTuple


class Generation(NamedTuple):
    """A rebalance that was stored: `generation` of a classic group, the epoch of one of KIP-848."""

    group_id: str
    generation: int
    formed_at: int
    protocol_type: str
    """`classic` groups: what their members call it, `consumer` mostly; `kip-848` for the others."""
    protocol: str | None
    leader: str | None
    members: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    causes: tuple[str, ...]
    confidence: float
    evidence: tuple[str, ...]


class Assignment(NamedTuple):
    """What a member had from a generation on."""

    group_id: str
    generation: int
    formed_at: int
    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topic: str
    partitions: tuple[int, ...]


class Ownership(NamedTuple):
    """A stretch of time in which a partition had an owner."""

    group_id: str
    topic: str
    partition: int
    member_id: str
    client_id: str
    instance_id: str | None
    generation: int
    from_ms: int
    to_ms: int | None
    """None: to the end of the log."""


class Stall(NamedTuple):
    """A time in which a partition had no owner (`no-owner`) or one that got nowhere (`no-progress`)."""

    group_id: str
    topic: str
    partition: int
    kind: str
    from_ms: int
    to_ms: int
    generation: int
    member_id: str | None


class Move(NamedTuple):
    """A partition changed hands."""

    group_id: str
    generation: int
    at: int
    topic: str
    partition: int
    from_member: str
    to_member: str
    same_client: bool
    """The same client under a new member id: it was started again, or thrown out and let in."""


class Replacement(NamedTuple):
    """A static member came back under a new member id, and no new generation was formed for it."""

    group_id: str
    generation: int
    at: int
    instance_id: str
    from_member: str
    to_member: str


class Subscription(NamedTuple):
    """What a member wants from a generation on; of groups in which one came to want other topics alone."""

    group_id: str
    generation: int
    formed_at: int
    member_id: str
    topics: tuple[str, ...]


class Wave(NamedTuple):
    """Rebalances that belong together: a `deploy`, or a `storm`."""

    group_id: str
    kind: str
    from_ms: int
    to_ms: int
    rebalances: int
    members: int
    """How many different members took part."""
    why: str


class History(NamedTuple):
    """All that is known of one group."""

    group_id: str
    generations: tuple[Generation, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    ownership: tuple[Ownership, ...] = ()
    stalls: tuple[Stall, ...] = ()
    moves: tuple[Move, ...] = ()
    replacements: tuple[Replacement, ...] = ()
    waves: tuple[Wave, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
