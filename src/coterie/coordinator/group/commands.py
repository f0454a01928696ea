"""What may be asked of a group, a time-out included. A command is data; nobody changes it.

They are not frozen for the reason that facts are not: a frozen join takes 3 us longer to make.

`call` is a number of the shell's making for one request that wants an answer; the core only hands it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import UUID


@dataclass(slots=True, kw_only=True)
class Join:
    """JoinGroup: become a member, or say again what one can do (1.3). `member_id` "" asks for a new one."""

    group_id: str
    call: int
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    version: int
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class Sync:
    """SyncGroup: the leader hands in what everybody gets, the others wait for theirs (1.4)."""

    group_id: str
    call: int
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]
    version: int


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """Heartbeat: a member of `generation` lives (1.5)."""

    group_id: str
    call: int
    member_id: str
    instance_id: str | None
    generation: int


class Leaver(NamedTuple):
    """Who is to leave. `member_id` "" with an instance id is an administrator's removal (LG-4)."""

    member_id: str
    instance_id: str | None
    reason: str | None


@dataclass(slots=True, kw_only=True)
class Leave:
    """LeaveGroup: take these out, each for itself (1.6)."""

    group_id: str
    call: int
    members: tuple[Leaver, ...]
    version: int


class OffsetToCommit(NamedTuple):
    """One partition of an OffsetCommit that has passed the broker's checks of topic and partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""
    topic_id: UUID | None = None


@dataclass(slots=True, kw_only=True)
class CommitOffsets:
    """OffsetCommit: remember how far a group has come (1.7). `retention_ms` is -1 but in versions 2 to 4."""

    group_id: str
    call: int
    member_id: str
    instance_id: str | None
    generation: int
    version: int
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = -1


@dataclass(slots=True, kw_only=True)
class TxnCommitOffsets:
    """TxnOffsetCommit: remember how far a group has come, once the producer's transaction commits (1.9).

    The shell has asked the transaction's coordinator first (TX-3), and appends what this leads to in a
    transactional batch of its own under (producer_id, producer_epoch) (TX-7).
    """

    group_id: str
    call: int
    member_id: str
    instance_id: str | None
    generation: int
    producer_id: int
    producer_epoch: int
    offsets: tuple[OffsetToCommit, ...]


@dataclass(slots=True, kw_only=True)
class EndTransaction:
    """A transaction's end reached this partition (OM-3). The shell writes the marker, whatever follows."""

    producer_id: int
    commit: bool


@dataclass(slots=True, kw_only=True)
class FetchOffsets:
    """OffsetFetch for one group (1.8).

    `topics` None asks for all; `topic_ids` are those asked with (OF-6).
    """

    group_id: str
    call: int
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None
    require_stable: bool = False
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DeleteOffsets:
    """OffsetDelete: forget these partitions, (topic, partition) each (1.10)."""

    group_id: str
    call: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(slots=True, kw_only=True)
class Describe:
    """DescribeGroups for one group (1.11)."""

    group_id: str
    call: int


@dataclass(slots=True, kw_only=True)
class DeleteGroup:
    """DeleteGroups for one group (1.11). `most_bytes` is that of `CleanOffsets`."""

    group_id: str
    call: int
    most_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class Expire:
    """A deadline that a `Wake` of this key set is due (2.7)."""

    key: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class CleanOffsets:
    """Drop what has expired, and groups that nothing holds (3.4, DE-2). `group_ids` takes a slice of them.

    `most_bytes` are the bytes that its records may have: of what would have more a part is decided (XP-10).
    """

    group_ids: tuple[str, ...] | None = None
    most_bytes: int | None = None


@dataclass(slots=True, kw_only=True)
class TopicsDeleted:
    """Topics are gone, and what groups committed for them goes too (OM-7): of all groups, or of some.

    `most_bytes` is that of `CleanOffsets`.
    """

    topics: tuple[str, ...]
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    group_ids: tuple[str, ...] | None = None
    most_bytes: int | None = None


Command: TypeAlias = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | CommitOffsets
    | TxnCommitOffsets
    | EndTransaction
    | FetchOffsets
    | DeleteOffsets
    | Describe
    | DeleteGroup
    | Expire
    | CleanOffsets
    | TopicsDeleted
)
