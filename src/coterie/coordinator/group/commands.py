"""What may be asked of a group, a time-out included, and what it answers. Both are data; nobody changes them.

They are not frozen for the reason that facts are not: a frozen join takes 3 us longer to make.

`call` is a number of the shell's making for one request that wants an answer; the core only hands it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias
from uuid import UUID

from coterie.base.codes import Code


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

    `topics` None asks for all. What is committed for a topic of another id than `topic_ids` has, if any, does
    not count (OF-6).
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


# -- answers; the shell turns them into responses of the version that was asked


@dataclass(slots=True)
class JoinAnswer:
    """The defaults are those of a refusal (1.3).

    `members` is filled for the leader: id, instance id, metadata.
    """

    code: Code
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None  # None is "" before version 7
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(slots=True)
class SyncAnswer:
    """A member's assignment, empty with an error (SG-16)."""

    code: Code
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(slots=True)
class HeartbeatAnswer:
    """Whether the member may go on."""

    code: Code


@dataclass(slots=True)
class LeaveAnswer:
    """The top level's code, and (member id, instance id, code) as each was asked for."""

    code: Code
    members: tuple[tuple[str, str | None, Code], ...] = ()


@dataclass(slots=True)
class CommitAnswer:
    """A code for each offset of the command, in its order."""

    codes: tuple[Code, ...]


class FetchedOffset(NamedTuple):
    """One partition's committed offset, -1 if there is none (OF-5, OF-6)."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    code: Code = Code.NONE


@dataclass(slots=True)
class FetchAnswer:
    """Every partition that was asked for, or every one there is; none with an error."""

    code: Code
    partitions: tuple[FetchedOffset, ...] = ()


@dataclass(slots=True)
class DeleteOffsetsAnswer:
    """The top level's code; without an error a code for each partition of the command, in its order."""

    code: Code
    codes: tuple[Code, ...] = ()


class DescribedMember(NamedTuple):
    """A member as DescribeGroups shows it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True)
class DescribeAnswer:
    """A group as DescribeGroups shows it. GROUP_ID_NOT_FOUND is no error before version 6 (DG-2)."""

    code: Code
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(slots=True)
class DeleteGroupAnswer:
    """Whether the group is gone; `more` says that a part of its offsets is, and to ask again for the rest."""

    code: Code
    more: bool = False


Answer: TypeAlias = (
    JoinAnswer
    | SyncAnswer
    | HeartbeatAnswer
    | LeaveAnswer
    | CommitAnswer
    | FetchAnswer
    | DeleteOffsetsAnswer
    | DescribeAnswer
    | DeleteGroupAnswer
)
