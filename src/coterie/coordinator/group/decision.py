"""What groups answer, and the draft in which a decision about them is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.base.codes import Code
from coterie.coordinator.group.reasons import WHYS
from coterie.coordinator.machine import decision as machine

if TYPE_CHECKING:
    from coterie.coordinator.group.model import Group, Member
    from coterie.coordinator.group.shard import Shard

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


# -- the draft


class Draft(machine.Draft):
    """A decision about a group in the making."""

    __slots__ = ()

    shard: Shard
    reasons = WHYS

    def drop(self, call: int | None) -> None:
        """Forget a parked call whose place a newer one takes."""
        if call is not None:
            self.dropped.append(call)

    def restart_session(self, member: Member) -> None:
        """Give a member its whole session timeout again."""
        self.timers.append(machine.Timer(member.session_key, self.now_ms + member.session_timeout_ms))

    def group(self, group_id: str) -> Group:
        """Return a group as the facts so far leave it."""
        return self.shard.groups[group_id]
