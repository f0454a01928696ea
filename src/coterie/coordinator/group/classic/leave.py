"""LeaveGroup (1.6): members go, each by itself; what is left of the group is looked at after the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.group.classic import join_phase
from coterie.coordinator.group.commands import JoinAnswer, Leave, LeaveAnswer, Leaver, SyncAnswer
from coterie.coordinator.group.facts import PromiseDropped
from coterie.coordinator.group.model import Group, Member
from coterie.coordinator.machine import Decision

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft


def refuse_to_leave_a_missing_group(draft: Draft, _: None, command: Leave) -> Decision:
    """Answer UNKNOWN_MEMBER_ID to each: there is no such group (LG-2)."""
    codes = tuple((m.member_id, m.instance_id, Code.UNKNOWN_MEMBER_ID) for m in command.members)
    draft.reply(command.call, LeaveAnswer(Code.NONE, codes))
    return draft.decision("no-such-group")


def send_leaver_to_the_coordinator(draft: Draft, group: Group, command: Leave) -> Decision:
    """Send whoever asks to look for the coordinator (LG-3)."""
    draft.reply(command.call, LeaveAnswer(Code.COORDINATOR_NOT_AVAILABLE))
    return draft.decision("group-dead")


def drop_pending_members(draft: Draft, group: Group, command: Leave) -> Decision:
    """Drop promised ids; there is nobody else (LG-6)."""
    gone = dismiss_all(draft, group, command)
    return draft.decision(reason(gone))


def remove_members_and_go_on_joining(draft: Draft, group: Group, command: Leave) -> Decision:
    """Let them go, and end the join phase if they were all it waited for.

    The initial delay stays (LG-10, ID-7).
    """
    gone = dismiss_all(draft, group, command)
    if gone:
        join_phase.complete_if_all_joined(draft, group)
    return draft.decision(reason(gone))


def remove_members_and_rebalance(draft: Draft, group: Group, command: Leave) -> Decision:
    """Let them go and rebalance among the others (LG-10)."""
    gone = dismiss_all(draft, group, command)
    if gone:
        join_phase.start_rebalance(draft, group)
    return draft.decision(reason(gone))


def reason(gone: bool) -> str:
    return "member-left" if gone else "nobody-left"


def dismiss_all(draft: Draft, group: Group, command: Leave) -> bool:
    """Dismiss each and answer; return whether anybody went."""
    codes = tuple((m.member_id, m.instance_id, dismiss(draft, group, m)) for m in command.members)
    draft.reply(command.call, LeaveAnswer(Code.NONE, codes))
    return any(code is Code.NONE for _, _, code in codes)


def dismiss(draft: Draft, group: Group, leaver: Leaver) -> Code:
    """Take one out, by member id or, an administrator's way, by instance id alone (LG-4 to LG-7)."""
    member_id = leaver.member_id
    if not member_id:
        return evict(draft, group, leaver.instance_id)
    if member_id in group.pending:
        draft.then("promise-dropped")
        draft.apply(PromiseDropped(group.group_id, member_id))
        draft.clear(("session", group.group_id, member_id))
        return Code.NONE
    code = group.refusal(member_id, leaver.instance_id)
    if code:
        draft.then("leaver-fenced" if code is Code.FENCED_INSTANCE_ID else "leaver-unknown")
        return code
    draft.then("member-removed")
    return remove(draft, group, member_id)


def evict(draft: Draft, group: Group, instance_id: str | None) -> Code:
    """Take out whoever has an instance id now (LG-4, LG-5)."""
    member_id = None if instance_id is None else group.static.get(instance_id)
    if member_id is None:
        draft.then("nobody-named")
        return Code.UNKNOWN_MEMBER_ID
    draft.then("evicted-by-instance")
    return remove(draft, group, member_id)


def remove(draft: Draft, group: Group, member_id: str) -> Code:
    """Answer what a member waits for and take it out."""
    tell_removed(draft, group.members[member_id])
    join_phase.remove(draft, group, (member_id,))
    return Code.NONE


def tell_removed(draft: Draft, member: Member) -> None:
    """Answer what a member has parked before it is removed: it is nobody now (LG-8).

    Kafka forgets a parked sync here (LG-9); its client would wait for its request timeout.
    """
    if member.join_call is not None:
        draft.then("parked-join-told")
        draft.reply(member.join_call, JoinAnswer(Code.UNKNOWN_MEMBER_ID, ""))
    if member.sync_call is not None:
        draft.then("parked-sync-told")
        draft.reply(member.sync_call, SyncAnswer(Code.UNKNOWN_MEMBER_ID))
