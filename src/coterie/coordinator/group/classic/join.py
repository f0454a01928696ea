"""JoinGroup (1.3): who may come in, who is told to come again, who waits for the others.

The order of the checks is Kafka's: room, protocols, promised id, identity, and then the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from coterie.base.codes import Code
from coterie.coordinator.group.classic import join_phase, static
from coterie.coordinator.group.commands import Join, JoinAnswer
from coterie.coordinator.group.facts import (
    GroupCreated,
    GroupStored,
    MemberIdPromised,
    MemberJoined,
    MemberRejoined,
    PromiseDropped,
)
from coterie.coordinator.group.model import Group, Member, State, stranger_why
from coterie.coordinator.group.settings import NEW_MEMBER_JOIN_TIMEOUT_MS
from coterie.coordinator.machine import Decision

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft

MEMBER_ID_REQUIRED_SINCE = 4

Rejoin: TypeAlias = "Callable[[Draft, Group, Join], Decision]"
Return: TypeAlias = "Callable[[Draft, Group, Join, str], Decision]"


# -- by state; these are the cells of the table


def create_the_group(draft: Draft, _: None, command: Join) -> Decision:
    """Create the group for a new member; nobody can be known in a group that is not there (JG-10, JG-11)."""
    if not draft.shard.settings.allows_session(command.session_timeout_ms):
        return refuse(draft, command, Code.INVALID_SESSION_TIMEOUT, "session-timeout-out-of-bounds")
    if command.member_id:
        return refuse(draft, command, Code.UNKNOWN_MEMBER_ID, "no-such-group")
    draft.apply(GroupCreated(command.group_id, draft.wall_ms))
    draft.then("group-created")
    draft.apply(GroupStored(command.group_id))  # as it is now, whatever the join itself leads to
    return admit_the_first_member(draft, draft.group(command.group_id), command)


def admit_the_first_member(draft: Draft, group: Group, command: Join) -> Decision:
    """Begin with the first member: the initial delay starts (ID-1)."""
    return admit(draft, group, command, known=unexpected, returning=static.unexpected)


def wait_for_the_others_to_join(draft: Draft, group: Group, command: Join) -> Decision:
    """Park the member with those who wait; the last one to come ends the wait (RB-4)."""
    return admit(draft, group, command, known=rejoin, returning=static.return_to_barrier)


def rebalance_if_new_or_changed(draft: Draft, group: Group, command: Join) -> Decision:
    """Rebalance again for whoever is new or changed; tell a retry what it missed."""
    return admit(draft, group, command, known=rejoin_if_changed, returning=static.return_to_barrier)


def rebalance_if_new_changed_or_leader(draft: Draft, group: Group, command: Join) -> Decision:
    """Rebalance for whoever is new or changed, and for the leader always; tell a retry what it missed."""
    return admit(draft, group, command, known=rejoin_if_leads_or_changed, returning=static.return_to_stable)


def send_joiner_to_the_coordinator(draft: Draft, group: Group, command: Join) -> Decision:
    """Send the member to look for its coordinator (DE-7)."""
    if not draft.shard.settings.allows_session(command.session_timeout_ms):
        return refuse(draft, command, Code.INVALID_SESSION_TIMEOUT, "session-timeout-out-of-bounds")
    return refuse(draft, command, Code.COORDINATOR_NOT_AVAILABLE, "group-dead")


# -- the checks


def admit(draft: Draft, group: Group, command: Join, *, known: Rejoin, returning: Return) -> Decision:
    """Check what holds in every state, then go on by what the group knows of the member."""
    member_id, instance_id = command.member_id, command.instance_id
    if not draft.shard.settings.allows_session(command.session_timeout_ms):
        return refuse(draft, command, Code.INVALID_SESSION_TIMEOUT, "session-timeout-out-of-bounds")
    if not has_room(group, member_id, draft.shard.settings.max_size):
        return turn_away(draft, group, command)
    if not group.supports(command.protocol_type, command.protocols):
        return refuse(draft, command, Code.INCONSISTENT_GROUP_PROTOCOL, "inconsistent-protocol")
    if not member_id:
        old_id = None if instance_id is None else group.static.get(instance_id)
        if old_id is not None:
            return returning(draft, group, command, old_id)
        return admit_stranger(draft, group, command)
    if member_id in group.pending:
        if instance_id is not None:  # Kafka promises ids to dynamic members only, and trips over this
            return refuse(
                draft, command, Code.UNKNOWN_SERVER_ERROR, "promised-id-with-instance", member_id=""
            )
        return add(draft, group, command, member_id, "promise-redeemed")
    refusal = group.refusal(member_id, instance_id)
    if refusal:
        return refuse(draft, command, refusal, stranger_why(group, refusal, instance_id))
    return known(draft, group, command)


def has_room(group: Group, member_id: str, max_size: int) -> bool:
    """Return whether a seat is left. While members rejoin, the first come are the first served (1.3.2)."""
    if group.state is State.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is State.PREPARING:
        return (member is not None and member.join_call is not None) or group.awaiting_join < max_size
    return member is not None or len(group.members) < max_size


def refuse(draft: Draft, command: Join, code: Code, why: str, *, member_id: str | None = None) -> Decision:
    """Answer with an error that echoes the member id, unless another is given."""
    echo = command.member_id if member_id is None else member_id
    draft.reply(command.call, JoinAnswer(code, echo))
    return draft.decision(why)


def turn_away(draft: Draft, group: Group, command: Join) -> Decision:
    """Refuse for want of room. A member that rejoined too late loses its place by this (JG-12)."""
    member_id, why = command.member_id, "group-full"
    if member_id in group.members:
        why = "seat-lost"
        join_phase.remove(draft, group, (member_id,))
    elif member_id in group.pending:
        why = "promise-too-late"
        draft.apply(PromiseDropped(group.group_id, member_id))
        draft.clear(("session", group.group_id, member_id))
    return refuse(draft, command, Code.GROUP_MAX_SIZE_REACHED, why, member_id="")


# -- newcomers


def admit_stranger(draft: Draft, group: Group, command: Join) -> Decision:
    """Make an id. A dynamic member has to come again with it (KIP-394), a static one need not (ST-13)."""
    if command.instance_id is not None:
        member_id = draft.shard.new_member_id(command.instance_id)
        return add(draft, group, command, member_id, "static-member-joined")
    member_id = draft.shard.new_member_id(command.client_id)
    if command.version < MEMBER_ID_REQUIRED_SINCE:
        return add(draft, group, command, member_id, "member-joined")
    draft.apply(MemberIdPromised(group.group_id, member_id, command.session_timeout_ms))
    draft.arm(("session", group.group_id, member_id), draft.now_ms + command.session_timeout_ms)
    draft.reply(command.call, JoinAnswer(Code.MEMBER_ID_REQUIRED, member_id))
    return draft.decision("member-id-required")


def add(draft: Draft, group: Group, command: Join, member_id: str, why: str) -> Decision:
    """Take in a new member and park it. It has five minutes, whatever its session timeout (JG-23)."""
    joined = MemberJoined(
        group.group_id,
        member_id,
        command.instance_id,
        command.client_id,
        command.client_host,
        command.protocol_type,
        command.protocols,
        command.session_timeout_ms,
        command.rebalance_timeout_ms,
        command.call,
    )
    draft.arm(("session", group.group_id, member_id), draft.now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
    if group.leader is None:
        draft.then("first-member-leads")
    if group.initial:
        draft.then("newcomer-may-extend-delay")
    let_in(draft, group, joined)
    return draft.decision(why)


def let_in(draft: Draft, group: Group, fact: MemberJoined | MemberRejoined) -> None:
    """Park a member, and rebalance or go on with the rebalance there is; an initial delay just goes on."""
    draft.apply(fact)
    if not group.initial:
        join_phase.rebalance_or_complete(draft, group)


# -- members


def rejoin(draft: Draft, group: Group, command: Join) -> Decision:
    """Take what the member says now and park it; a join that it has parked is forgotten (JG-21)."""
    return rejoin_because(draft, group, command, "member-rejoined")


def rejoin_because(draft: Draft, group: Group, command: Join, why: str) -> Decision:
    """Take what the member says now, and rebalance or go on with the rebalance there is."""
    parked = group.members[command.member_id].join_call
    if parked is not None:
        draft.then("earlier-join-forgotten")
        draft.drop(parked)
    rejoined = MemberRejoined(
        group.group_id,
        command.member_id,
        command.protocols,
        command.session_timeout_ms,
        command.rebalance_timeout_ms,
        command.call,
    )
    let_in(draft, group, rejoined)
    return draft.decision(why)


def rejoin_if_changed(draft: Draft, group: Group, command: Join) -> Decision:
    """Rebalance if the member says something new; else it only missed its answer, and gets it again."""
    member = group.members[command.member_id]
    if member.protocols != command.protocols:
        return rejoin_because(draft, group, command, "metadata-changed")
    return answer_again(draft, group, command, member, roll=member.member_id == group.leader)


def rejoin_if_leads_or_changed(draft: Draft, group: Group, command: Join) -> Decision:
    """Rebalance for the leader, who may know of changes that no metadata shows, and for what is new."""
    member = group.members[command.member_id]
    if member.member_id == group.leader:
        return rejoin_because(draft, group, command, "leader-rejoined")
    if member.protocols != command.protocols:
        return rejoin_because(draft, group, command, "metadata-changed")
    return answer_again(draft, group, command, member, roll=False)


def answer_again(draft: Draft, group: Group, command: Join, member: Member, *, roll: bool) -> Decision:
    """Answer with the generation as it is."""
    draft.reply(command.call, current_generation(group, member.member_id, roll=roll))
    return draft.decision("leader-join-repeated" if roll else "join-repeated")


def current_generation(group: Group, member_id: str, *, roll: bool) -> JoinAnswer:
    """Return the answer that a member of the current generation gets, the leader's with the roll."""
    return JoinAnswer(
        Code.NONE,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        group.roll() if roll else (),
    )


def unexpected(draft: Draft, group: Group, command: Join) -> Decision:
    """Have a member of an Empty group start over. Nobody is one, so this only keeps the table whole."""
    return refuse(draft, command, Code.UNKNOWN_MEMBER_ID, "group-empty")
