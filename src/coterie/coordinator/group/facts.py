"""What happened. State moves by these and by nothing else; `apply.py` says how.

A durable fact is written to `__consumer_offsets` (`records.py` says as what); the others are soft state, as
in Kafka: a failover forgets them. Facts are made once and never changed; they are not frozen because a
frozen dataclass takes three times as long to make, and a join of 500 members makes thousands.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias
from uuid import UUID


class StoredOffset(NamedTuple):
    """What is remembered of one committed offset. -1 means none in the epoch and in the expiry."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    topic_id: UUID | None = None


# -- groups


@dataclass(slots=True)
class GroupCreated:
    """A group without members, generation 0."""

    durable: ClassVar[bool] = False
    group_id: str
    at_ms: int


@dataclass(slots=True)
class GroupStored:
    """The group as it stands goes to the log (RC-1). It changes nothing; what it stores moved before it."""

    durable: ClassVar[bool] = True
    group_id: str


@dataclass(slots=True)
class GroupRemoved:
    """The group is deleted (DE-4). Its offsets are facts of their own, and went before it."""

    durable: ClassVar[bool] = True
    group_id: str


@dataclass(slots=True)
class GroupDied:
    """The shard is unloaded; whoever waited has been told (DE-6)."""

    durable: ClassVar[bool] = False
    group_id: str
    at_ms: int


@dataclass(slots=True)
class LoadedMember:
    """A member as the log has it: it knows the chosen protocol only (LO-3)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(slots=True)
class GroupLoaded:
    """The log's last word on a group (LO-2). It replaces what was known of it."""

    durable: ClassVar[bool] = False
    group_id: str
    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int | None
    members: tuple[LoadedMember, ...]


# -- members


@dataclass(slots=True)
class MemberIdPromised:
    """An id was handed out and its JoinGroup is awaited (MEMBER_ID_REQUIRED)."""

    durable: ClassVar[bool] = False
    group_id: str
    member_id: str
    session_timeout_ms: int


@dataclass(slots=True)
class PromiseDropped:
    """A promised id will not be redeemed."""

    durable: ClassVar[bool] = False
    group_id: str
    member_id: str


@dataclass(slots=True)
class MemberJoined:
    """A new member, its JoinGroup parked under `call`."""

    durable: ClassVar[bool] = False
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    call: int


@dataclass(slots=True)
class MemberRejoined:
    """A member said again what it can do. Its JoinGroup is parked under `call`, or not at all if None."""

    durable: ClassVar[bool] = False
    group_id: str
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    call: int | None


@dataclass(slots=True)
class MemberReplaced:
    """A static member came back under a new id and is its old self but for what was parked (ST-1)."""

    durable: ClassVar[bool] = False
    group_id: str
    instance_id: str
    old_id: str
    new_id: str


@dataclass(slots=True)
class MembersLeft:
    """These are members no more, for whatever reason (CG-8). Whoever of them waited has been told."""

    durable: ClassVar[bool] = False
    group_id: str
    member_ids: tuple[str, ...]


@dataclass(slots=True)
class LeaderElected:
    """Another member leads (LD-3)."""

    durable: ClassVar[bool] = False
    group_id: str
    member_id: str


# -- rebalances


@dataclass(slots=True)
class RebalanceStarted:
    """Everybody has to join again (RB-1, RB-2). From CompletingRebalance, assignments and parked syncs go."""

    durable: ClassVar[bool] = False
    group_id: str
    at_ms: int


@dataclass(slots=True)
class JoinDeadlineSet:
    """The join phase ends at `due_ms`.

    `delay_ms`, `remaining_ms`: the initial delay's chain (ID-1 to ID-4).
    """

    durable: ClassVar[bool] = False
    group_id: str
    due_ms: int
    delay_ms: int = 0
    remaining_ms: int = 0


@dataclass(slots=True)
class GenerationStarted:
    """The join phase ended; every parked JoinGroup has been answered (RB-9)."""

    durable: ClassVar[bool] = False
    group_id: str
    generation: int
    protocol: str
    at_ms: int
    sync_due_ms: int


@dataclass(slots=True)
class GroupEmptied:
    """The join phase ended without members (RB-8)."""

    durable: ClassVar[bool] = False
    group_id: str
    generation: int
    at_ms: int


@dataclass(slots=True)
class SyncParked:
    """A follower's SyncGroup waits for the leader's (SG-10)."""

    durable: ClassVar[bool] = False
    group_id: str
    member_id: str
    call: int


@dataclass(slots=True)
class MemberSynced:
    """A member's SyncGroup came and is answered at once (SG-11, SG-14)."""

    durable: ClassVar[bool] = False
    group_id: str
    member_id: str


@dataclass(slots=True)
class Assigned:
    """What the leader gave to each member."""

    durable: ClassVar[bool] = False
    group_id: str
    assignments: Mapping[str, bytes]


@dataclass(slots=True)
class GroupStabilized:
    """The generation is at work; every parked SyncGroup has been answered (SG-11)."""

    durable: ClassVar[bool] = False
    group_id: str
    at_ms: int


# -- offsets


@dataclass(slots=True)
class OffsetsCommitted:
    """(topic, partition, offset) each, of one OffsetCommit."""

    durable: ClassVar[bool] = True
    group_id: str
    offsets: tuple[tuple[str, int, StoredOffset], ...]


@dataclass(slots=True)
class OffsetsPending:
    """(topic, partition, offset) each, of one TxnOffsetCommit; they count once its transaction commits."""

    durable: ClassVar[bool] = True
    group_id: str
    producer_id: int
    offsets: tuple[tuple[str, int, StoredOffset], ...]


@dataclass(slots=True)
class TransactionEnded:
    """A producer's pending offsets count from now on, or are dropped (OM-3).

    It lasts as a control batch, which is no record of the shard's making: the shell writes it.
    """

    durable: ClassVar[bool] = False
    producer_id: int
    commit: bool


@dataclass(slots=True)
class OffsetsRemoved:
    """(topic, partition) each: expired, deleted, or their topic is gone. Pending ones go as well (OM-4)."""

    durable: ClassVar[bool] = True
    group_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class OffsetsLoaded:
    """What a piece of the log says of a group's offsets, as it lies there.

    The end of each key with its value, None for a tombstone; the last of each key counts.
    """

    durable: ClassVar[bool] = False
    group_id: str
    packed: dict[bytes, bytes | None]


@dataclass(slots=True)
class ForeignSeen:
    """The log has a record of a kind that is not known here, or no longer: somebody else's group (LO-7)."""

    durable: ClassVar[bool] = False
    group_id: str
    key: bytes
    present: bool


@dataclass(slots=True)
class ForeignEnded:
    """Somebody else's group is no more: each of its records gets a tombstone (JG-9)."""

    durable: ClassVar[bool] = True
    group_id: str
    keys: tuple[bytes, ...]


Fact: TypeAlias = (
    GroupCreated
    | GroupStored
    | GroupRemoved
    | GroupDied
    | GroupLoaded
    | MemberIdPromised
    | PromiseDropped
    | MemberJoined
    | MemberRejoined
    | MemberReplaced
    | MembersLeft
    | LeaderElected
    | RebalanceStarted
    | JoinDeadlineSet
    | GenerationStarted
    | GroupEmptied
    | SyncParked
    | MemberSynced
    | Assigned
    | GroupStabilized
    | OffsetsCommitted
    | OffsetsPending
    | TransactionEnded
    | OffsetsRemoved
    | OffsetsLoaded
    | ForeignSeen
    | ForeignEnded
)
