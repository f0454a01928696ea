"""Watches the facts of every decision and tells each rebalance when it is over.

The telling goes to the log and, unless `coterie.story.enable` is off, to the topic `__group_story`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.broker.topic_names import STORY_TOPIC
from coterie.group import commands, facts
from coterie.observe.story import GroupStory, MemberView, Rebalance
from coterie.store.log import AppendRefused
from coterie.wire.batches import Record, build_batch
from coterie.wire.consumer import Assignment

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.group.commands import Command
    from coterie.group.decision import Decision
    from coterie.group.model import Group, Member
    from coterie.group.shard import Shard

__all__ = ["GroupStories", "cause_of_join", "cause_of_leave"]

log = logging.getLogger("coterie.story")

# How clients word a LeaveGroup that they send because nobody polled for max.poll.interval.ms.
POLL_WORDS = ("poll timeout", "max.poll.interval", "poll interval")


def cause_of_join(command: commands.Join, decision: Decision, group: Group) -> str:
    """Return why a join of a member that was known already disturbed its group."""
    if any(isinstance(fact, facts.MemberReplaced) for fact in decision.facts):
        return "static-member-replaced"
    reason = command.reason or ""
    if "revoke" in reason or group.protocol == "cooperative-sticky":
        return "cooperative-follow-up"
    if "metadata" in reason:
        return "topics-changed"
    if "subscription" in reason:
        return "subscription-changed"
    return "member-rejoined"


def cause_of_leave(command: Command) -> str:
    """Return why members are gone: they left, or one of the deadlines took them."""
    match command:
        case commands.Leave(members=leavers):
            told = " ".join((leaver.reason or "").lower() for leaver in leavers)
            return "poll-interval-exceeded" if any(word in told for word in POLL_WORDS) else "member-left"
        case commands.Expire(key=("session", *_)):
            return "session-expired"
        case commands.Expire(key=("join", *_)):
            return "rebalance-timed-out"
        case commands.Expire(key=("sync", *_)):
            return "sync-timed-out"
        case commands.Join():
            return "group-too-large"
        case _:
            return "unknown"


class GroupStories:
    """The story of every group of this node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stories: dict[str, GroupStory] = {}

    def watch(self, shard: Shard, command: Command, decision: Decision, now_ms: int) -> None:
        """Note what a decision's facts, applied already, mean for the story of their group."""
        for fact in decision.facts:
            if isinstance(fact, facts.RebalanceStarted):
                self._close_page(shard, fact.group_id, now_ms)
        for fact in decision.facts:
            note = NOTES.get(type(fact))
            if note is not None:
                note(self, shard, command, decision, fact, now_ms)

    def _close_page(self, shard: Shard, group_id: str, now_ms: int) -> None:
        """Tell a generation that ends before everybody in it had fetched its assignment."""
        if self._story(group_id).formed_at_ms is not None:
            self._tell(shard.groups[group_id], now_ms)

    def _story(self, group_id: str) -> GroupStory:
        story = self._stories.get(group_id)
        if story is None:
            story = self._stories[group_id] = GroupStory(group_id)
        return story

    # -- what each fact means

    def _member_joined(
        self, shard: Shard, command: Command, decision: Decision, fact: Any, now_ms: int
    ) -> None:
        self._story(fact.group_id).disturbed(now_ms, "member-joined")

    def _members_left(
        self, shard: Shard, command: Command, decision: Decision, fact: Any, now_ms: int
    ) -> None:
        self._story(fact.group_id).disturbed(now_ms, cause_of_leave(command))

    def _rebalance_started(
        self, shard: Shard, command: Command, decision: Decision, fact: Any, now_ms: int
    ) -> None:
        story = self._story(fact.group_id)
        told = any(isinstance(other, facts.MemberJoined | facts.MembersLeft) for other in decision.facts)
        if told:
            return
        if isinstance(command, commands.Join):
            story.disturbed(now_ms, cause_of_join(command, decision, shard.groups[fact.group_id]))
        else:
            story.disturbed(now_ms, "append-failed" if isinstance(command, commands.Sync) else "unknown")

    def _generation_started(
        self, shard: Shard, command: Command, decision: Decision, fact: Any, now_ms: int
    ) -> None:
        self._story(fact.group_id).formed(now_ms)

    def _group_emptied(
        self, shard: Shard, command: Command, decision: Decision, fact: Any, now_ms: int
    ) -> None:
        self._story(fact.group_id).formed(now_ms)
        self._tell(shard.groups[fact.group_id], now_ms)

    def _synced(self, shard: Shard, command: Command, decision: Decision, fact: Any, now_ms: int) -> None:
        group = shard.groups[fact.group_id]
        story = self._story(fact.group_id)
        if group.state.name == "STABLE" and not group.pending_sync and story.formed_at_ms is not None:
            self._tell(group, now_ms)

    def _group_removed(
        self, shard: Shard, command: Command, decision: Decision, fact: Any, now_ms: int
    ) -> None:
        self._stories.pop(fact.group_id, None)

    # -- telling

    def _tell(self, group: Group, now_ms: int) -> None:
        rebalance = self._story(group.group_id).settled(
            now_ms,
            generation=group.generation,
            leader=group.leader,
            protocol=group.protocol,
            members={member_id: view_of(member) for member_id, member in group.members.items()},
        )
        log.info(
            "group %s: generation %d with %d members, because %s; stood still %d ms, %d partitions moved",
            rebalance.group,
            rebalance.generation,
            len(rebalance.members),
            ", ".join(rebalance.why),
            rebalance.stopped_ms,
            rebalance.moved,
        )
        if self._node.settings.coterie_story_enable:
            self._node.call_soon(lambda: self._write(rebalance, now_ms))

    def _write(self, rebalance: Rebalance, now_ms: int) -> None:
        self._node.ensure_internal(STORY_TOPIC)
        value = json.dumps(rebalance.document(), separators=(",", ":"), ensure_ascii=False).encode()
        batch = build_batch([Record(0, now_ms, rebalance.group.encode(), value)])
        try:
            self._node.append(STORY_TOPIC, 0, batch, now_ms=now_ms, origin="coordinator")
        except AppendRefused as refused:
            log.warning("a rebalance of group %s could not be told: %s", rebalance.group, refused)


def view_of(member: Member) -> MemberView:
    """Return a member as the story shows it; an assignment that cannot be read counts as none."""
    owned: tuple[TopicPartition, ...] = ()
    if member.assignment:
        try:
            owned = Assignment.decode(member.assignment).partitions
        except Corrupt:
            owned = ()
    return MemberView(
        client_id=member.client_id, host=member.client_host, instance_id=member.instance_id, owned=owned
    )


NOTES: Mapping[type, Callable[..., None]] = {
    facts.MemberJoined: GroupStories._member_joined,
    facts.MembersLeft: GroupStories._members_left,
    facts.RebalanceStarted: GroupStories._rebalance_started,
    facts.GenerationStarted: GroupStories._generation_started,
    facts.GroupEmptied: GroupStories._group_emptied,
    facts.GroupStabilized: GroupStories._synced,
    facts.MemberSynced: GroupStories._synced,
    facts.GroupRemoved: GroupStories._group_removed,
}
