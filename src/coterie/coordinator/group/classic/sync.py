"""SyncGroup and Heartbeat (1.4, 1.5): what a member of a generation may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.group.commands import Heartbeat, HeartbeatAnswer, Sync, SyncAnswer
from coterie.coordinator.group.facts import (
    Assigned,
    GroupStabilized,
    GroupStored,
    MemberSynced,
    SyncParked,
)
from coterie.coordinator.group.model import Group, Member, State, stranger_why
from coterie.coordinator.machine import Decision

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft


def refusal_of(group: Group, command: Heartbeat | Sync) -> tuple[Code, str]:
    """Return why this is no member of the generation: a code, NONE if it is one, and a why."""
    if group.current_member(command.member_id, command.instance_id, command.generation):
        return Code.NONE, ""
    code = group.refusal(command.member_id, command.instance_id)
    if code:
        return code, stranger_why(group, code, command.instance_id)
    return Code.ILLEGAL_GENERATION, "stale-generation"


# -- SyncGroup


def refuse_sync(draft: Draft, command: Sync, code: Code, why: str) -> Decision:
    draft.reply(command.call, SyncAnswer(code))
    return draft.decision(why)


def sync_refusal(group: Group, command: Sync) -> tuple[Code, str]:
    """Return why a sync is refused in any state (SG-6 to SG-8): a code, NONE if it is not, and a why."""
    code, why = refusal_of(group, command)
    if code:
        return code, why
    for sent, current in (
        (command.protocol_type, group.protocol_type),
        (command.protocol_name, group.protocol),
    ):
        if sent is not None and current is not None and sent != current:
            return Code.INCONSISTENT_GROUP_PROTOCOL, "inconsistent-protocol"
    return Code.NONE, ""


def refuse_sync_to_a_missing_group(draft: Draft, _: None, command: Sync) -> Decision:
    """Answer UNKNOWN_MEMBER_ID: there is no such group (SG-4)."""
    return refuse_sync(draft, command, Code.UNKNOWN_MEMBER_ID, "no-such-group")


def refuse_sync_to_an_empty_group(draft: Draft, group: Group, command: Sync) -> Decision:
    """Answer UNKNOWN_MEMBER_ID: the group has no members (SG-4)."""
    return refuse_sync(draft, command, Code.UNKNOWN_MEMBER_ID, "group-empty")


def tell_syncer_to_rejoin(draft: Draft, group: Group, command: Sync) -> Decision:
    """Tell the member to join again (SG-9)."""
    code, why = sync_refusal(group, command)
    if code:
        return refuse_sync(draft, command, code, why)
    return refuse_sync(draft, command, Code.REBALANCE_IN_PROGRESS, "rebalance-in-progress")


def wait_for_the_leader_or_assign(draft: Draft, group: Group, command: Sync) -> Decision:
    """Park a follower; with the leader's sync store what it assigned and answer everybody (SG-10, SG-11)."""
    code, why = sync_refusal(group, command)
    if code:
        return refuse_sync(draft, command, code, why)
    earlier = group.members[command.member_id].sync_call
    if earlier is not None:
        draft.then("earlier-sync-forgotten")
        draft.drop(earlier)
    unparked_due_ms = group.sync_due_ms
    leads = command.member_id == group.leader
    if leads:
        draft.apply(MemberSynced(group.group_id, command.member_id))
    else:
        draft.apply(SyncParked(group.group_id, command.member_id, command.call))
    if unparked_due_ms is not None and group.sync_due_ms is None:
        draft.then("everybody-synced")
        draft.clear(("sync", group.group_id))
    if not leads:
        return draft.decision("follower-waits")
    distribute(draft, group, command)
    return draft.decision("assignment-stored")


def distribute(draft: Draft, group: Group, command: Sync) -> None:
    """Store what the leader hands in and answer everybody who waits.

    Who was forgotten gets nothing (SG-11).
    """
    given = dict(command.assignments)
    assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
    for member in group.in_order():
        call = command.call if member.member_id == command.member_id else member.sync_call
        if call is not None:
            draft.reply(call, synced(group, assignments[member.member_id]))
            draft.restart_session(member)
    draft.apply(Assigned(group.group_id, assignments))
    draft.apply(GroupStored(group.group_id))  # still with the time of entering CompletingRebalance (RC-2)
    draft.apply(GroupStabilized(group.group_id, draft.wall_ms))


def synced(group: Group, assignment: bytes) -> SyncAnswer:
    return SyncAnswer(Code.NONE, assignment, group.protocol_type, group.protocol)


def return_the_assignment(draft: Draft, group: Group, command: Sync) -> Decision:
    """Answer with the member's assignment; nobody's list counts any more (SG-14)."""
    code, why = sync_refusal(group, command)
    if code:
        return refuse_sync(draft, command, code, why)
    member = group.members[command.member_id]
    if command.member_id in group.pending_sync:
        draft.apply(MemberSynced(group.group_id, command.member_id))
        if not group.pending_sync:
            draft.then("everybody-synced")
            draft.clear(("sync", group.group_id))
    draft.reply(command.call, synced(group, member.assignment))
    return draft.decision("assignment-told")


def send_syncer_to_the_coordinator(draft: Draft, group: Group, command: Sync) -> Decision:
    """Send the member to look for its coordinator (SG-5)."""
    return refuse_sync(draft, command, Code.COORDINATOR_NOT_AVAILABLE, "group-dead")


# -- Heartbeat


def answer_beat(draft: Draft, command: Heartbeat, code: Code, why: str) -> Decision:
    draft.reply(command.call, HeartbeatAnswer(code))
    return draft.decision(why)


def refuse_heartbeat_to_a_missing_group(draft: Draft, _: None, command: Heartbeat) -> Decision:
    """Answer UNKNOWN_MEMBER_ID: there is no such group (HB-3)."""
    return answer_beat(draft, command, Code.UNKNOWN_MEMBER_ID, "no-such-group")


def refuse_heartbeat_to_an_empty_group(draft: Draft, group: Group, command: Heartbeat) -> Decision:
    """Answer UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID (HB-5): an Empty group has no member for HB-7."""
    code, why = refusal_of(group, command)
    assert code
    return answer_beat(draft, command, code, why)


def renewal(group: Group | None, command: Heartbeat) -> tuple[Code, Member] | None:
    """Return the code that answers a heartbeat which gives its member the session anew, and the member; None
    for every other (HB-8, HB-9).

    No fact follows from it: so the fast path asks this, and moves the deadline itself.
    """
    if group is None or group.state is State.DEAD:
        return None
    member = group.current_member(command.member_id, command.instance_id, command.generation)
    return None if member is None else (renewed(group), member)


def renewed(group: Group) -> Code:
    """Return the code for a member whose session begins anew: REBALANCE_IN_PROGRESS calls it to rejoin."""
    return Code.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else Code.NONE


def renew_the_session(draft: Draft, group: Group, command: Heartbeat) -> Decision:
    """Give the member its session anew (HB-9)."""
    return renew(draft, group, command, "heard")


def renew_the_session_and_call_to_rebalance(draft: Draft, group: Group, command: Heartbeat) -> Decision:
    """Give the member its session anew and call it to the rebalance (HB-8)."""
    return renew(draft, group, command, "recalled")


def renew(draft: Draft, group: Group, command: Heartbeat, why: str) -> Decision:
    """Take a sign of life, if it is the member's."""
    code, refused = refusal_of(group, command)
    if code:
        return answer_beat(draft, command, code, refused)
    draft.restart_session(group.members[command.member_id])
    return answer_beat(draft, command, renewed(group), why)


def send_heartbeat_to_the_coordinator(draft: Draft, group: Group, command: Heartbeat) -> Decision:
    """Send the member to look for its coordinator (HB-4)."""
    return answer_beat(draft, command, Code.COORDINATOR_NOT_AVAILABLE, "group-dead")
