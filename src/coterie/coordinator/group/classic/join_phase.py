"""The join phase: how a rebalance starts, what holds it open, and what its end does (2.5, 2.6).

Each function goes on with a draft: it applies facts, answers and arms, and returns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.assign.vote import vote
from coterie.base.codes import Code
from coterie.coordinator.group.commands import JoinAnswer, SyncAnswer
from coterie.coordinator.group.facts import (
    GenerationStarted,
    GroupEmptied,
    GroupStored,
    JoinDeadlineSet,
    LeaderElected,
    MembersLeft,
    RebalanceStarted,
)
from coterie.coordinator.group.model import Group, Roll, State
from coterie.coordinator.group.settings import RETRY_MS

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft


def rebalance_or_complete(draft: Draft, group: Group) -> None:
    """Start a rebalance, or, where one is under way, end its join phase if everybody is there (RB-4)."""
    if group.state is State.PREPARING:
        complete_if_all_joined(draft, group)
    else:
        start_rebalance(draft, group)


def complete_if_all_joined(draft: Draft, group: Group) -> None:
    """End the join phase if everybody is there. The initial delay must run out first (ID-5)."""
    if group.state is not State.PREPARING or not group.all_joined:
        return
    if group.initial:
        draft.then("held-by-initial-delay")
        return
    draft.then("everybody-joined")
    complete(draft, group)


def start_rebalance(draft: Draft, group: Group, *, code: Code = Code.REBALANCE_IN_PROGRESS) -> None:
    """Have everybody join again. Who is parked in a sync is told with `code` (RB-1, SG-12)."""
    if group.state is State.COMPLETING:
        tell_syncs(draft, group, code)
    if group.sync_due_ms is not None:
        draft.then("sync-phase-cut-short")
        draft.clear(("sync", group.group_id))
    from_empty = group.state is State.EMPTY
    draft.apply(RebalanceStarted(group.group_id, draft.wall_ms))
    if from_empty:
        start_initial_delay(draft, group)
        return
    draft.then("rebalance-begun")
    if group.all_joined:
        draft.then("everybody-joined")
        complete(draft, group)
    else:
        await_joins(draft, group)


def tell_syncs(draft: Draft, group: Group, code: Code) -> None:
    """Answer every parked sync with an error; its member's session starts anew."""
    parked = [member for member in group.in_order() if member.sync_call is not None]
    if parked:
        draft.then("syncs-sent-back")
    for member in parked:
        assert member.sync_call is not None
        draft.reply(member.sync_call, SyncAnswer(code))
        draft.restart_session(member)


def remove(draft: Draft, group: Group, member_ids: tuple[str, ...]) -> None:
    """Take members out, with their deadlines; whoever of them waited has been told (CG-8)."""
    leader = group.leader
    draft.apply(MembersLeft(group.group_id, member_ids))
    if leader != group.leader and group.leader is not None:
        draft.then("leadership-passed-on")
    for member_id in member_ids:
        draft.clear(("session", group.group_id, member_id))


def await_joins(draft: Draft, group: Group, *, at_least_ms: int = 0) -> None:
    """Give the members their rebalance timeout to join (RB-3, LD-4)."""
    # A phase that nobody joined is tried again and again: without a floor, a timeout of 0 would spin.
    due_ms = draft.now_ms + max(group.rebalance_timeout_ms(), at_least_ms)
    draft.apply(JoinDeadlineSet(group.group_id, due_ms))
    draft.arm(("join", group.group_id), due_ms)


# -- the initial delay


def start_initial_delay(draft: Draft, group: Group) -> None:
    """Wait for more members than the first one (ID-1). The first one's patience bounds the wait."""
    draft.then("initial-delay-begun")
    delay_ms = draft.shard.settings.initial_rebalance_delay_ms
    delay_again(draft, group, delay_ms, max(group.rebalance_timeout_ms() - delay_ms, 0))


def delay_again(draft: Draft, group: Group, delay_ms: int, remaining_ms: int) -> None:
    """Arm one link of the chain of delays."""
    due_ms = draft.now_ms + delay_ms
    draft.apply(JoinDeadlineSet(group.group_id, due_ms, delay_ms, remaining_ms))
    draft.arm(("join", group.group_id), due_ms)


def end_initial_delay(draft: Draft, group: Group) -> str:
    """Wait on if a newcomer came and patience is left, else end the join phase (ID-3). Return the why."""
    if group.new_member_added and group.remaining_ms:
        delay_ms = min(draft.shard.settings.initial_rebalance_delay_ms, group.remaining_ms)
        delay_again(draft, group, delay_ms, max(group.remaining_ms - group.delay_ms, 0))
        return "initial-delay-extended"
    complete(draft, group)
    return "initial-delay-over"


# -- the end of the join phase


def complete(draft: Draft, group: Group) -> None:
    """End the join phase: drop who is absent, see who leads, begin the next generation (RB-5 to RB-9)."""
    if group.join_due_ms is not None:
        draft.clear(("join", group.group_id))
    if group.pending:
        draft.then("promises-outlived")
    drop_absent(draft, group)
    if not group.members:
        empty(draft, group)
    elif elect(draft, group):
        begin_generation(draft, group)
    else:
        draft.then("nobody-to-lead")
        await_joins(draft, group, at_least_ms=RETRY_MS)


def drop_absent(draft: Draft, group: Group) -> None:
    """Remove the dynamic members that did not rejoin. Static ones stay for this generation (RB-5, ST-11)."""
    if group.awaiting_join == len(group.members):
        return
    absent = [m for m in group.in_order() if m.join_call is None]
    dropped = tuple(m.member_id for m in absent if m.instance_id is None)
    if dropped:
        draft.then("absent-members-dropped")
        remove(draft, group, dropped)
    if len(dropped) < len(absent):
        draft.then("absent-static-members-kept")


def elect(draft: Draft, group: Group) -> bool:
    """See that somebody leads who has rejoined; False if nobody has (LD-3, LD-4)."""
    if group.awaiting_join == 0:
        return False
    leader = None if group.leader is None else group.members.get(group.leader)
    if leader is None or leader.join_call is None:
        first = next(m for m in group.in_order() if m.join_call is not None)
        draft.then("another-leads")
        draft.apply(LeaderElected(group.group_id, first.member_id))
    return True


def empty(draft: Draft, group: Group) -> None:
    """Nobody is left: store the group as Empty (RB-8)."""
    draft.then("group-emptied")
    draft.apply(GroupEmptied(group.group_id, group.generation + 1, draft.wall_ms))
    draft.apply(GroupStored(group.group_id))


def chosen_protocol(group: Group) -> str:
    """Return the protocol that the members' votes choose (2.3)."""
    candidates = group.candidates()
    assert candidates, f"{group.group_id}: no protocol is common to all"
    if len(candidates) == 1:
        return next(iter(candidates))
    chosen = vote([[name for name, _ in member.protocols] for member in group.in_order()])
    assert chosen is not None
    return chosen


def begin_generation(draft: Draft, group: Group) -> None:
    """Answer every parked join and await everybody's sync.

    Nothing is written before the leader's (RB-9, RB-11).
    """
    draft.then("generation-begun")
    if len(group.candidates()) > 1:
        draft.then("vote-taken")
    generation, protocol = group.generation + 1, chosen_protocol(group)
    members = group.in_order()
    leader, protocol_type = group.leader, group.protocol_type
    assert leader in group.members
    for member in members:
        if member.join_call is not None:
            roll: Roll = ()
            if member.member_id == leader:
                roll = tuple((m.member_id, m.instance_id, m.metadata(protocol)) for m in members)
            draft.reply(
                member.join_call,
                JoinAnswer(Code.NONE, member.member_id, generation, protocol_type, protocol, leader, roll),
            )
        draft.restart_session(member)
    due_ms = draft.now_ms + group.rebalance_timeout_ms()
    draft.arm(("sync", group.group_id), due_ms)
    draft.apply(GenerationStarted(group.group_id, generation, protocol, draft.wall_ms, due_ms))
