"""What a command leads to: the facts, the answers, the deadlines, and why.

And the draft in which it is made. Answers, like facts and commands, are made once and never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.base.codes import Code
from coterie.coordinator.group.reasons import WHYS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie.coordinator.group.facts import Fact
    from coterie.coordinator.group.model import Group, Member
    from coterie.coordinator.group.records import RawRecord
    from coterie.coordinator.group.shard import Shard

WakeKey: TypeAlias = tuple[str, ...]


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


# -- the decision


class Reply(NamedTuple):
    """Who is answered, and what."""

    call: int
    answer: Answer


class Wake(NamedTuple):
    """A deadline to arm, or to clear with None. When it is due the shell asks `Expire(key)`."""

    key: WakeKey
    at_ms: int | None


class Decision(NamedTuple):
    """What one command has led to: its facts are applied. The shell appends, arms and replies; nothing else.

    `why` is the test's handle, the metric's label, the story's line; `steps` are what else happened on the
    way, in order. Both are slugs of `whys.py`. `waits` says that the call which asked is parked. `dropped`
    are parked calls that nobody will ever answer: a newer request took their place (JG-21). `more` says that
    this is a part of what was asked for: the same command, asked again, decides the next. `records` are
    those of the durable facts, each as the state was right after its fact.
    """

    why: str
    facts: tuple[Fact, ...] = ()
    replies: tuple[Reply, ...] = ()
    wakes: tuple[Wake, ...] = ()
    waits: bool = False
    dropped: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()
    more: bool = False
    records: Sequence[RawRecord] = ()


class Draft:
    """A decision in the making.

    What Kafka does to a group it does step by step, each step reading what the one before changed. A draft
    does the same: a fact is applied as it is drafted. A draft that comes to nothing, and one whose records
    the log refuses, is rolled back by the journal.
    """

    __slots__ = (
        "_answered",
        "_before",
        "call",
        "dropped",
        "facts",
        "more",
        "now_ms",
        "records",
        "replies",
        "shard",
        "steps",
        "wakes",
        "wall_ms",
    )

    def __init__(
        self,
        shard: Shard,
        now_ms: int,
        call: int | None,
        before: Callable[[Fact], None] | None = None,
        *,
        wall_ms: int | None = None,
    ) -> None:
        """Deadlines go by `now_ms`, and what is written is dated by `wall_ms`, without it by `now_ms` too.

        `before` is shown each fact before it is applied.
        """
        self.shard = shard
        self.now_ms = now_ms
        self.wall_ms = now_ms if wall_ms is None else wall_ms
        self.call = call
        self.facts: list[Fact] = []
        self.records: list[RawRecord] = []
        self.replies: list[Reply] = []
        self.wakes: list[Wake] = []
        self.dropped: list[int] = []
        self.steps: tuple[str, ...] = ()
        self.more = False
        self._before = before
        self._answered = call is None

    def apply(self, fact: Fact) -> None:
        """Apply a fact: the steps that follow read the state that it leaves."""
        if self._before is not None:
            self._before(fact)
        self.shard.apply(fact)
        self.facts.append(fact)
        if fact.durable:
            self.records += self.shard.records(fact)

    def then(self, step: str) -> None:
        """Name what else happens on the way to the decision."""
        assert step in WHYS, step
        self.steps += (step,)

    def reply(self, call: int, answer: Answer) -> None:
        """Answer a call, the asking one or a parked one."""
        self.replies.append(Reply(call, answer))
        if call == self.call:
            self._answered = True

    def drop(self, call: int | None) -> None:
        """Forget a parked call whose place a newer one takes."""
        if call is not None:
            self.dropped.append(call)

    def arm(self, key: WakeKey, at_ms: int) -> None:
        """Set a deadline, or move it."""
        self.wakes.append(Wake(key, at_ms))

    def clear(self, key: WakeKey) -> None:
        """Take a deadline off."""
        self.wakes.append(Wake(key, None))

    def restart_session(self, member: Member) -> None:
        """Give a member its whole session timeout again."""
        self.wakes.append(Wake(member.session_key, self.now_ms + member.session_timeout_ms))

    def group(self, group_id: str) -> Group:
        """Return a group as the facts so far leave it."""
        return self.shard.groups[group_id]

    def decision(self, why: str) -> Decision:
        """Return what has been drafted."""
        assert why in WHYS, why
        return Decision(
            why,
            tuple(self.facts),
            tuple(self.replies),
            tuple(self.wakes),
            not self._answered,
            tuple(self.dropped),
            self.steps,
            self.more,
            self.records,
        )
