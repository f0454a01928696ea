"""What a member wants done, and what it is told of it. All of it is values.

Whoever runs a member asks it for its next request, carries that out, and hands the answer to the method that
the request's docstring names; or to `Member.unanswered`, if none will come. Requests of different kinds are
under way at the same time: heartbeats go on while a listener is called or a leader looks for topics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.wire.api.codec import only
from coterie.wire.payloads.consumer_protocol import Assignment


class Generation(NamedTuple):
    """The member's place in the group: what a commit must carry."""

    id: int = -1
    member_id: str = ""
    protocol: str = ""

    @property
    def valid(self) -> bool:
        """Whether it is a place at all (CB-2)."""
        return self.id >= 0 and self.member_id != ""


NO_GENERATION = Generation()


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until then, unless something happens."""

    until_ms: int | None


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Break the connections to the coordinator: what waits there is `unanswered` (CL-6). Has no answer."""


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Ask the least loaded broker who coordinates the group; `found`."""


@dataclass(frozen=True, slots=True)
class RefreshMetadata:
    """Ask the cluster for these topics (None: for all) and their partitions; `metadata_received`."""

    topics: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Join:
    """Send JoinGroup; `joined`. The answer may take until all have rejoined."""

    generation: Generation
    protocols: tuple[tuple[str, bytes], ...]
    reason: str

    @property
    def member_id(self) -> str:
        """The id of the member that joins, empty for a new one."""
        return self.generation.member_id


@dataclass(frozen=True, slots=True)
class Sync:
    """Send SyncGroup, with everybody's assignment if the member leads; `synced`."""

    generation: Generation
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send Heartbeat; `heartbeat_answered`."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit how far these partitions are consumed, once and without trying again; `committed`."""

    generation: Generation
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Call:
    """Call the application's rebalance listener; `called_back`."""

    kind: Literal["revoked", "assigned", "lost"]
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """Send LeaveGroup; `left`. The member is out whatever the answer, so it is not tried again (CV-5)."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """Send DescribeGroups for the member's own group: who has what; `group_described`."""

    generation: Generation


Coordinated = Join | Sync | Heartbeat | Leave | DescribeGroup
"""What the coordinator is asked in so many words. A commit says what the application has reached, too."""

Request = (
    Wait
    | Disconnect
    | FindCoordinator
    | RefreshMetadata
    | Join
    | Sync
    | Heartbeat
    | Commit
    | Call
    | Leave
    | DescribeGroup
)


@dataclass(frozen=True, slots=True)
class Joined:
    """What JoinGroup answered."""

    code: Code
    generation: int = -1
    member_id: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """(member id, instance id, subscription) of all, for the leader."""
    skip_assignment: bool = False
    protocol_type: str | None = None
    """None where the broker's version does not say."""

    @classmethod
    def of(cls, answer: Any) -> Self:
        """Return the content of a JoinGroup answer."""
        return cls(
            code=Code(answer.error_code),
            generation=answer.generation_id,
            member_id=answer.member_id,
            protocol=answer.protocol_name or "",
            leader=answer.leader,
            members=tuple((one.member_id, one.group_instance_id, one.metadata) for one in answer.members),
            skip_assignment=getattr(answer, "skip_assignment", False),
            protocol_type=getattr(answer, "protocol_type", None),
        )


@dataclass(frozen=True, slots=True)
class Synced:
    """What SyncGroup answered."""

    code: Code
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None

    @classmethod
    def of(cls, answer: Any) -> Self:
        """Return the content of a SyncGroup answer."""
        return cls(
            code=Code(answer.error_code),
            assignment=answer.assignment,
            protocol_type=getattr(answer, "protocol_type", None),
            protocol=getattr(answer, "protocol_name", None),
        )


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """What DescribeGroups answered."""

    code: Code
    state: str = ""
    owned: frozenset[TopicPartition] | None = None
    """What anybody was given; None where that of a member cannot be read."""

    @classmethod
    def of(cls, answer: Any) -> Self:
        """Return the state of the one group that DescribeGroups was asked for."""
        group = only(answer.groups, "groups")
        try:
            given = [Assignment.decode(one.member_assignment).partitions for one in group.members]
        except Corrupt:
            return cls(Code(group.error_code), group.group_state)
        owned = frozenset(one for share in given for one in share)
        return cls(Code(group.error_code), group.group_state, owned)
