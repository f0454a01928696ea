"""Static members that come back without a member id (2.9): the old self is fenced, the new takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.group.classic import join_phase
from coterie.coordinator.group.commands import Join, JoinAnswer, SyncAnswer
from coterie.coordinator.group.facts import GroupStored, MemberRejoined, MemberReplaced
from coterie.coordinator.group.model import Group, State
from coterie.coordinator.machine import Decision

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft

SKIPS_ASSIGNMENT_SINCE = 9


def return_to_barrier(draft: Draft, group: Group, command: Join, old_id: str) -> Decision:
    """Park the new self.

    In CompletingRebalance the leader may know the old one: everybody joins again (ST-8).
    """
    new_id = replace(draft, group, command, old_id)
    speak(draft, group, command, new_id, command.call)
    join_phase.rebalance_or_complete(draft, group)
    return draft.decision("static-member-replaced")


def return_to_stable(draft: Draft, group: Group, command: Join, old_id: str) -> Decision:
    """Let the new self go on where the old one was, unless the vote would now fall otherwise (ST-2, ST-7)."""
    leader_before = group.leader
    new_id = replace(draft, group, command, old_id)
    speak(draft, group, command, new_id, None)
    if join_phase.chosen_protocol(group) != group.protocol:
        speak(draft, group, command, new_id, command.call)
        join_phase.start_rebalance(draft, group)
        return draft.decision("static-member-changed-vote")
    draft.then("vote-unchanged")
    draft.apply(GroupStored(group.group_id))
    answer = welcome_back(group, new_id, leader_before, version=command.version)
    if group.leader == new_id:
        draft.then("assignment-skipped" if answer.skip_assignment else "old-leader-shown")
    draft.reply(command.call, answer)
    return draft.decision("static-member-returned")


def unexpected(draft: Draft, group: Group, command: Join, old_id: str) -> Decision:
    """Refuse what cannot be: an Empty group maps no instance (ST-8)."""
    draft.reply(command.call, JoinAnswer(Code.UNKNOWN_SERVER_ERROR, ""))
    return draft.decision("static-member-of-empty-group")


def replace(draft: Draft, group: Group, command: Join, old_id: str) -> str:
    """Put a new id in the old one's place and fence whatever the old one had parked (ST-1).

    Return the new id.
    """
    assert command.instance_id is not None
    old = group.members[old_id]
    if old.join_call is not None or old.sync_call is not None:
        draft.then("old-self-told")
    if old.join_call is not None:
        draft.reply(old.join_call, JoinAnswer(Code.FENCED_INSTANCE_ID, old_id))
    if old.sync_call is not None:
        draft.reply(old.sync_call, SyncAnswer(Code.FENCED_INSTANCE_ID))
    new_id = draft.shard.new_member_id(command.instance_id)
    draft.apply(MemberReplaced(group.group_id, command.instance_id, old_id, new_id))
    if group.leader == new_id:
        draft.then("leadership-inherited")
    draft.clear(old.session_key)
    draft.restart_session(group.members[new_id])  # with the old one's timeout: the new terms come after
    return new_id


def speak(draft: Draft, group: Group, command: Join, new_id: str, call: int | None) -> None:
    """Give the new self the terms of its request, and park it under `call`, if any."""
    draft.apply(
        MemberRejoined(
            group.group_id,
            new_id,
            command.protocols,
            command.session_timeout_ms,
            command.rebalance_timeout_ms,
            call,
        )
    )


def welcome_back(group: Group, new_id: str, leader_before: str | None, *, version: int) -> JoinAnswer:
    """Return the answer without a rebalance. Before version 9 it cannot say that a leader need not assign:
    there a returning leader is shown its old id as leader, and takes itself for a follower (ST-3, ST-4)."""
    assert group.state is State.STABLE
    skips = version >= SKIPS_ASSIGNMENT_SINCE
    leads = skips and group.leader == new_id
    return JoinAnswer(
        Code.NONE,
        new_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        (group.leader if skips else leader_before) or "",
        group.roll() if leads else (),
        skip_assignment=leads,
    )
