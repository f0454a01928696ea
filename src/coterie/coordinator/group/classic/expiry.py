"""Deadlines that are due (2.7): a session, a promised id, a join phase, a sync phase.

A deadline that was moved or cleared while it waited to be handled means nothing any more (EX-7). The two of
a group are checked against the group; of a session only the shell knows the time, and asks for it once it
is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.coordinator.group.classic import join_phase
from coterie.coordinator.group.classic.leave import tell_removed
from coterie.coordinator.group.commands import Expire
from coterie.coordinator.group.facts import PromiseDropped
from coterie.coordinator.group.model import Group, State
from coterie.coordinator.machine import Decision

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft

GONE = ("promise-expired", "session-expired", "join-expired")


class SessionDue:
    """Expire(("session", group, member)): nothing was heard of a member or of a promised id for too long."""


class JoinDue:
    """Expire(("join", group)): the join phase, or a link of the initial delay, has lasted long enough."""


class SyncDue:
    """Expire(("sync", group)): the members have had their time to sync."""


def ignore_a_missing_group(draft: Draft, _: None, command: Expire) -> Decision:
    """Do nothing: the group is gone."""
    return draft.decision("no-such-group")


def ignore_an_outdated_timer(draft: Draft, group: Group, command: Expire) -> Decision:
    """Do nothing: the deadline outlived what it was for."""
    return draft.decision("deadline-passed-over")


# -- sessions


def forget(draft: Draft, group: Group, member_id: str) -> str:
    """Remove a promised id or a member whose session ran out.

    Return why, and if nobody was to be removed why not (EX-1).
    """
    if member_id in group.pending:
        draft.apply(PromiseDropped(group.group_id, member_id))
        return "promise-expired"
    member = group.members.get(member_id)
    if member is None:
        return "deadline-passed-over"
    if member.satisfied:
        return "session-satisfied"
    why = "join-expired" if member.is_new else "session-expired"
    tell_removed(draft, member)
    join_phase.remove(draft, group, (member_id,))
    return why


def drop_a_silent_pending_member(draft: Draft, group: Group, command: Expire) -> Decision:
    """Drop the promised id."""
    return draft.decision(forget(draft, group, command.key[2]))


def remove_a_silent_member_and_go_on_joining(draft: Draft, group: Group, command: Expire) -> Decision:
    """Remove who is silent; end the join phase, even its initial delay, if only that one missed (ID-6)."""
    why = forget(draft, group, command.key[2])
    if why in GONE and group.all_joined:
        draft.then("everybody-joined")
        join_phase.complete(draft, group)
    return draft.decision(why)


def remove_a_silent_member_and_rebalance(draft: Draft, group: Group, command: Expire) -> Decision:
    """Remove who is silent and rebalance among the others. A promised id goes without one (EX-1)."""
    why = forget(draft, group, command.key[2])
    if why in GONE and why != "promise-expired":
        join_phase.start_rebalance(draft, group)
    return draft.decision(why)


# -- phases


def end_the_join_phase(draft: Draft, group: Group, command: Expire) -> Decision:
    """End the join phase with those who came (RB-5), or go on with the initial delay (ID-3)."""
    assert group.state is State.PREPARING
    if group.join_due_ms is None or draft.now_ms < group.join_due_ms:
        return draft.decision("deadline-passed-over")
    if group.initial:
        return draft.decision(join_phase.end_initial_delay(draft, group))
    join_phase.complete(draft, group)
    return draft.decision("rebalance-timeout")


def remove_who_never_synced_and_rebalance(draft: Draft, group: Group, command: Expire) -> Decision:
    """Remove who never synced, static or not, and rebalance; in Stable too (EX-3, EX-4)."""
    if group.sync_due_ms is None or draft.now_ms < group.sync_due_ms:
        return draft.decision("deadline-passed-over")
    silent = tuple(m.member_id for m in group.in_order() if m.member_id in group.pending_sync)
    assert silent
    join_phase.remove(draft, group, silent)
    join_phase.start_rebalance(draft, group)
    return draft.decision("sync-timeout")
