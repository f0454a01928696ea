"""The rebalance story of a group: when it was disturbed, why, who got what, how long nobody worked.

Pure bookkeeping: the shell says what it saw (`disturbed`, `settled`), times are arguments. One `Rebalance`
comes out for each generation that was formed; `Rebalance.document` is the value of a record of the topic
`__group_story`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.base.ids import TopicPartition

__all__ = ["CAUSES", "GroupStory", "MemberView", "Rebalance"]

CAUSES = frozenset(
    {
        "member-joined",
        "member-left",
        "session-expired",
        "poll-interval-exceeded",
        "static-member-replaced",
        "cooperative-follow-up",
        "subscription-changed",
        "topics-changed",
        "member-rejoined",
        "rebalance-timed-out",
        "sync-timed-out",
        "group-too-large",
        "append-failed",
        "unknown",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member as the story shows it, with what it owns from this generation on."""

    client_id: str
    host: str
    instance_id: str | None
    owned: tuple[TopicPartition, ...]

    def document(self) -> dict[str, Any]:
        """Return the member as JSON values; partitions by topic, ascending."""
        partitions: dict[str, list[int]] = {}
        for topic, partition in sorted(self.owned):
            partitions.setdefault(topic, []).append(partition)
        return {
            "client_id": self.client_id,
            "instance_id": self.instance_id,
            "host": self.host,
            "partitions": partitions,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One rebalance, over. Times in ms; `stopped_ms`: from leaving Stable to the last SyncGroup answer."""

    group: str
    at_ms: int
    formed_at_ms: int
    generation: int
    why: tuple[str, ...]
    leader: str | None
    protocol: str | None
    members: Mapping[str, MemberView]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    stopped_ms: int
    moved: int

    def document(self) -> dict[str, Any]:
        """Return the rebalance as the JSON value that `__group_story` holds."""
        return {
            "at": self.at_ms,
            "formed_at": self.formed_at_ms,
            "group": self.group,
            "generation": self.generation,
            "why": list(self.why),
            "leader": self.leader,
            "protocol": self.protocol,
            "members": {member_id: view.document() for member_id, view in self.members.items()},
            "joined": list(self.joined),
            "left": list(self.left),
            "stopped_ms": self.stopped_ms,
            "moved": self.moved,
        }


@dataclass(slots=True)
class GroupStory:
    """What is known of one group between two rebalances."""

    group: str
    disturbed_at_ms: int | None = None
    formed_at_ms: int | None = None
    causes: list[str] = field(default_factory=list)
    members: Mapping[str, MemberView] = field(default_factory=dict)

    def disturbed(self, now_ms: int, cause: str) -> None:
        """Note that the group left its rest, or what else came before the next generation was formed."""
        assert cause in CAUSES, cause
        if self.disturbed_at_ms is None:
            self.disturbed_at_ms = now_ms
        if cause not in self.causes:
            self.causes.append(cause)

    def formed(self, now_ms: int) -> None:
        """Note that the join phase ended: the generation has its members and waits for their assignments."""
        self.formed_at_ms = now_ms

    def settled(
        self,
        now_ms: int,
        *,
        generation: int,
        leader: str | None,
        protocol: str | None,
        members: Mapping[str, MemberView],
    ) -> Rebalance:
        """Return the rebalance that is over now and begin the next page."""
        before = self.members
        formed_at_ms = now_ms if self.formed_at_ms is None else self.formed_at_ms
        at_ms = formed_at_ms if self.disturbed_at_ms is None else self.disturbed_at_ms
        rebalance = Rebalance(
            group=self.group,
            at_ms=at_ms,
            formed_at_ms=formed_at_ms,
            generation=generation,
            why=tuple(self.causes) or ("unknown",),
            leader=leader,
            protocol=protocol,
            members=members,
            joined=tuple(m for m in members if m not in before),
            left=tuple(m for m in before if m not in members),
            stopped_ms=max(0, now_ms - at_ms),
            moved=_moved(before, members),
        )
        self.members, self.causes = members, []
        self.disturbed_at_ms = self.formed_at_ms = None
        return rebalance


def _moved(before: Mapping[str, MemberView], after: Mapping[str, MemberView]) -> int:
    """Count the partitions whose owner is another one than before, or that have lost or found one."""
    old = {partition: member for member, view in before.items() for partition in view.owned}
    new = {partition: member for member, view in after.items() for partition in view.owned}
    return sum(old.get(partition) != new.get(partition) for partition in old.keys() | new.keys())
