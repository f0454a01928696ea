"""Records every decision that moves a group: in memory, in the log and in the topic `__group_story`.

An `Observer` is shown each fact before it is applied, `effects` sees the group after the last, and `record`
is called when what was decided lasts. A decision whose append failed is never recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.coordinator.group import commands, facts
from coterie.coordinator.group.model import State
from coterie.story.model import Move, OpenRebalance, Person, StoryMemory
from coterie.story.topic import EndedRebalance, MemberSnapshot, StoryTopic

if TYPE_CHECKING:
    from coterie.coordinator.group.commands import Command
    from coterie.coordinator.group.model import Group, Member
    from coterie.coordinator.group.shard import Shard
    from coterie.coordinator.machine import Decision

log = logging.getLogger("coterie.story")

# What clients say of why they join or leave (KIP-800), as Java's, librdkafka's and ours word it, and which
# cause that is; "removed by an admin" is what Admin clients and `coterie groups evict` say for somebody else.
CAUSES_SAID: Mapping[type, Sequence[tuple[str, str]]] = {
    commands.Join: (
        ("revoke", "cooperative-follow-up"),
        ("metadata", "topics-changed"),
        ("subscription", "subscription-changed"),
    ),
    commands.Leave: (
        ("member was removed by an admin", "evicted"),
        ("poll timeout", "poll-interval-exceeded"),
        ("max.poll.interval", "poll-interval-exceeded"),
        ("poll interval", "poll-interval-exceeded"),
    ),
}
CAUSES_DUE: Mapping[str, str] = {
    "session": "session-expired",
    "join": "rebalance-timed-out",
    "sync": "sync-timed-out",
}

MOVING = frozenset(
    {
        facts.MemberJoined,
        facts.MembersLeft,
        facts.MemberReplaced,
        facts.LeaderElected,
        facts.RebalanceStarted,
        facts.GenerationStarted,
        facts.GroupEmptied,
        facts.GroupStabilized,
        facts.GroupRemoved,
        facts.GroupDied,
    }
)
# A group comes to be before it moves, and the last one to fetch its assignment ends a rebalance.
LOOKED_AT = MOVING | {facts.GroupCreated, facts.MemberSynced}
# With one of these begins what ends a group's rest; a group that prepares a rebalance already is not at rest.
DISTURBING = frozenset({facts.MemberJoined, facts.MembersLeft, facts.MemberReplaced, facts.RebalanceStarted})
LAST_STEPS = frozenset({facts.MemberSynced, facts.GroupStabilized, facts.GroupEmptied})
AT_REST = (None, State.EMPTY, State.STABLE)
LINES_RECOUNTED = 20
REASON_MOST, REASONS_MOST = 255, 10  # characters of one, and how many members may word one request's


class GroupBefore:
    """A group as a decision finds it, and the facts that will move it. `epoch` is the coordinator's.

    `had`: what each member was given, if the decision ends the group's rest. `cut_short`: the rebalance that
    it ends before everybody had fetched an assignment.
    """

    __slots__ = ("cut_short", "epoch", "group_id", "had", "leavers", "mine", "state")

    def __init__(self, group_id: str, state: State | None, epoch: int) -> None:
        self.group_id = group_id
        self.state = state
        self.epoch = epoch
        self.mine: list[Any] = []
        self.leavers: tuple[Person, ...] = ()
        self.had: dict[str, bytes] | None = {} if state is None else None
        self.cut_short: EndedRebalance | None = None

    def show(self, fact: Any, group: Group, now_ms: int) -> None:
        """See a fact that is about to be applied."""
        if not self.mine and type(fact) in DISTURBING:
            self._remember(group, now_ms)
        if type(fact) is facts.MembersLeft:
            self.leavers += tuple(person_of(group.members[member_id]) for member_id in fact.member_ids)
        self.mine.append(fact)

    def _remember(self, group: Group, now_ms: int) -> None:
        """Remember what the members have now, and what is not finished."""
        if group.state in AT_REST:
            self.had = {member.member_id: member.assignment for member in group.in_order()}
        if group.state is State.COMPLETING or group.pending_sync:
            self.cut_short = ended_rebalance(group, now_ms, settled=False)


class Observer:
    """Notes the groups that a decision moves, as they are before it. `epoch` is the coordinator's."""

    __slots__ = ("_epoch", "_groups", "_now_ms", "befores")

    def __init__(self, shard: Shard, now_ms: int, epoch: int) -> None:
        self._groups = shard.groups
        self._now_ms = now_ms
        self._epoch = epoch
        self.befores: dict[str, GroupBefore] = {}

    def __call__(self, fact: Any) -> None:
        """See a fact that is about to be applied."""
        kind = type(fact)
        if kind not in LOOKED_AT:
            return
        group = self._groups.get(fact.group_id)
        before = self.befores.get(fact.group_id)
        if before is None:
            before = GroupBefore(fact.group_id, None if group is None else group.state, self._epoch)
            self.befores[fact.group_id] = before
        if group is not None and not (kind is facts.MemberSynced and len(group.pending_sync) > 1):
            before.show(fact, group, self._now_ms)


class Effect(NamedTuple):
    """What one decision did to one group. `settled`: the end of the rebalance that it ends."""

    move: Move
    kinds: frozenset[type]
    had: dict[str, bytes] | None
    cut_short: EndedRebalance | None
    settled: EndedRebalance | None


class GroupStories:
    """Records the moves and rebalances of every group of this node."""

    def __init__(self, topic: StoryTopic) -> None:
        self.memory = StoryMemory()
        self.topic = topic
        self._opened: dict[str, OpenRebalance] = {}

    # -- what the broker's runtime calls

    def effects(
        self, observer: Observer, shard: Shard, command: Command | None, decision: Decision, now_ms: int
    ) -> list[Effect]:
        """Return the effects of a decision, whose facts are applied now, on the groups that were observed.

        Without a command the decision came with the loading of the shard.
        """
        return [
            effect_of(one, shard.groups.get(one.group_id), command, decision, now_ms)
            for one in observer.befores.values()
            if one.mine
        ]

    def record(self, effects: Iterable[Effect]) -> None:
        """Record decisions that last, in their order."""
        for effect in effects:
            self._record(effect)

    def handed_over(self, groups: Mapping[str, Group], now_ms: int, *, lasts: bool) -> None:
        """Tell of the rebalances under way in groups that another broker coordinates from now on.

        A generation that was formed is told as far as it came, if all that was decided `lasts`; one that was
        not is the other's to form. Should the groups come back, nothing of these goes on.
        """
        for group_id in [one for one in self._opened if one in groups]:
            opened, group = self._opened.pop(group_id), groups[group_id]
            if lasts and opened.generation == group.generation:
                end = ended_rebalance(group, now_ms, settled=False)
                self.topic.add(end._replace(opened=opened))

    def recent_moves(self, group_id: str) -> str:
        """Return the last moves of a group as lines of text, for whoever has to find a mistake of ours."""
        moves = self.memory.of(group_id)[-LINES_RECOUNTED:]
        return "\n".join(
            f"{move.at_ms} generation {move.generation}: {move.state_before} -> {move.state} by "
            f"{', '.join((move.decision, *move.steps))}"
            for move in moves
        )

    # -- what is recorded

    def _record(self, effect: Effect) -> None:
        move, kinds = effect.move, effect.kinds
        if not kinds.isdisjoint(MOVING):
            self.memory.add(move)
        opened = self._open(effect)
        if opened is not None and move.why is not None:
            opened.add_cause(move.why)
        if move.why is not None:
            self.topic.add(move)
        if opened is None:
            return
        if facts.GenerationStarted in kinds or facts.GroupEmptied in kinds:
            opened.formed_at_ms, opened.generation = move.at_ms, move.generation
        if effect.settled is not None:
            self._end(opened, effect.settled)

    def _open(self, effect: Effect) -> OpenRebalance | None:
        """Return the rebalance under way that an effect is part of; a new one ends the one before."""
        move = effect.move
        opened = self._opened.get(move.group)
        if facts.RebalanceStarted in effect.kinds:
            had = effect.had if effect.had is not None else {} if opened is None else opened.had
            if opened is not None and effect.cut_short is not None:
                self._end(opened, effect.cut_short)
            opened = OpenRebalance(
                move.at_ms, state_before=move.state_before, had=dict(had), epoch=move.epoch
            )
            self._opened[move.group] = opened
        elif facts.GroupRemoved in effect.kinds or facts.GroupDied in effect.kinds:
            self._opened.pop(move.group, None)
            return None
        if opened is not None and facts.MemberReplaced in effect.kinds:
            for person in move.who:
                if person.replaces is not None:
                    opened.replaced(person.replaces, person.member_id)
        return opened

    def _end(self, opened: OpenRebalance, end: EndedRebalance) -> None:
        self._opened.pop(end.group, None)
        if opened.formed_at_ms is not None:
            self.topic.add(end._replace(opened=opened))


# -- before and after


def effect_of(
    before: GroupBefore, group: Group | None, command: Command | None, decision: Decision, now_ms: int
) -> Effect:
    """Return the effect of a decision on a group."""
    mine = before.mine
    kinds = frozenset(map(type, mine))
    move = Move(
        now_ms,
        before.group_id,
        cause_of(kinds, command, group),
        decision.why,
        tuple(dict.fromkeys(decision.steps)),
        before.leavers + arrivals(mine, command, group),
        reason_of(command),
        None if before.state is None else before.state.value,
        None if group is None else group.state.value,
        -1 if group is None else group.generation,
        0 if group is None else len(group.members),
        before.epoch,
    )
    return Effect(move, kinds, before.had, before.cut_short, settled(kinds, group, now_ms))


def settled(kinds: frozenset[type], group: Group | None, now_ms: int) -> EndedRebalance | None:
    """Return the end of a rebalance, if all is done: nobody is left, or everybody has its assignment."""
    if group is None or kinds.isdisjoint(LAST_STEPS):
        return None
    if facts.GroupEmptied in kinds or (group.state is State.STABLE and not group.pending_sync):
        return ended_rebalance(group, now_ms, settled=True)
    return None


def ended_rebalance(group: Group, now_ms: int, *, settled: bool) -> EndedRebalance:
    """Return the end of a rebalance as the group shows it.

    In a generation that was never handed its assignments members still hold those of the one before, which
    count for nothing.
    """
    given = group.state is not State.COMPLETING
    return EndedRebalance(
        opened=None,
        group=group.group_id,
        over_at_ms=now_ms,
        generation=group.generation,
        leader=group.leader,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        state=group.state.value,
        settled=settled,
        snapshots=tuple(snapshot_of(member, group.protocol, given=given) for member in group.in_order()),
    )


def snapshot_of(member: Member, protocol: str | None, *, given: bool) -> MemberSnapshot:
    return MemberSnapshot(person_of(member), member.metadata(protocol), member.assignment if given else b"")


def person_of(member: Member, *, replaces: str | None = None) -> Person:
    return Person(member.member_id, member.client_id, member.client_host, member.instance_id, replaces)


def arrivals(mine: list[Any], command: Command | None, group: Group | None) -> tuple[Person, ...]:
    """Return the members that came, came back, or began a rebalance by what they asked."""
    if group is None:
        return ()
    for fact in mine:
        if isinstance(fact, facts.MemberJoined):
            return (person_of(group.members[fact.member_id]),)
        if isinstance(fact, facts.MemberReplaced):
            return (person_of(group.members[fact.new_id], replaces=fact.old_id),)
    began = any(isinstance(fact, facts.RebalanceStarted) for fact in mine)
    member = group.members.get(command.member_id) if isinstance(command, commands.Join) else None
    return () if member is None or not began else (person_of(member),)


# -- why


def reason_of(command: Command | None) -> str:
    """Return the reason that the client gave, cut to what clients may give (KIP-800); empty without one."""
    match command:
        case commands.Join(reason=reason):
            return (reason or "")[:REASON_MOST]
        case commands.Leave(members=leavers):
            given = dict.fromkeys(leaver.reason[:REASON_MOST] for leaver in leavers if leaver.reason)
            return "; ".join(islice(given, REASONS_MOST))
        case _:
            return ""


def cause_of(kinds: frozenset[type], command: Command | None, group: Group | None) -> str | None:
    """Return the cause of a move, None if a decision only goes on with what an earlier one had begun."""
    if facts.MemberJoined in kinds:
        return "member-joined"
    if facts.MembersLeft in kinds:
        return cause_of_leave(command)
    if facts.MemberReplaced in kinds:
        return "static-member-replaced"
    if facts.RebalanceStarted in kinds:
        if isinstance(command, commands.Join):
            return cause_of_join(command, group)
        if command is None:
            return "group-too-large"
        return "append-failed" if isinstance(command, commands.Sync) else "unknown"
    if facts.GroupRemoved in kinds:
        return "group-deleted" if isinstance(command, commands.DeleteGroup) else "group-expired"
    return "coordinator-moved" if facts.GroupDied in kinds else None


def cause_of_join(command: commands.Join, group: Group | None) -> str:
    """Return the cause of a rebalance that a member began by joining again."""
    cooperative = group is not None and group.protocol == "cooperative-sticky"
    silent = "cooperative-follow-up" if cooperative else "member-rejoined"
    return cause_said(command, [command.reason]) or silent


def cause_of_leave(command: Command | None) -> str:
    """Return the cause of members' going: they left, were taken out, or one of the deadlines took them."""
    match command:
        case commands.Leave(members=leavers):
            if any(not one.member_id for one in leavers):  # an Admin names a static member by its instance id
                return "evicted"
            return cause_said(command, [one.reason for one in leavers]) or "member-left"
        case commands.Expire(key=(timer, *_)):
            return CAUSES_DUE.get(timer, "unknown")
        case commands.Join():
            return "group-too-large"
        case _:
            return "unknown"


def cause_said(command: Command, given: Iterable[str | None]) -> str | None:
    """Return the cause that the reasons which clients gave name, None if they name none."""
    reasons = [(one or "").lower() for one in given]
    causes = CAUSES_SAID[type(command)]
    return next((cause for words, cause in causes if any(words in one for one in reasons)), None)
