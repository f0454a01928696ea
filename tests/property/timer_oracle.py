"""Which deadlines must be armed, and for when: the rows of 2.5 to 2.7, written down a second time.

It sees what a bystander sees: the command, the group before and after, and the answers. It never looks at
what the decision says of deadlines, which is what it is there to check.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.base.codes import Code
from coterie.coordinator.group.commands import (
    Command,
    CommitOffsets,
    Expire,
    Heartbeat,
    HeartbeatAnswer,
    Sync,
)
from coterie.coordinator.group.model import Group, State
from coterie.coordinator.group.settings import GroupSettings
from coterie.coordinator.group.shard import Shard
from coterie.coordinator.machine import Decision

__all__ = ["Seen", "TimerOracle", "seen"]

NEW_MEMBER_MS, RETRY_MS = 300_000, 500
HEARD = (Code.NONE, Code.REBALANCE_IN_PROGRESS)

Key = tuple[str, ...]


@dataclass(frozen=True)
class SeenMember:
    """A member as far as its timers go."""

    session_ms: int
    rebalance_ms: int
    instance_id: str | None
    sync_call: int | None
    satisfied: bool
    joins: bool


@dataclass(frozen=True)
class Seen:
    """A group as far as its timers go."""

    state: State
    generation: int
    members: dict[str, SeenMember]
    promised: dict[str, int]
    silent: frozenset[str]

    def rebalance_ms(self) -> int:
        """Return the longest rebalance timeout (CG-5)."""
        return max((member.rebalance_ms for member in self.members.values()), default=0)


def seen(shard: Shard) -> dict[str, Seen]:
    """Return what a bystander sees of every group."""
    return {group_id: seen_group(group) for group_id, group in shard.groups.items()}


def seen_group(group: Group) -> Seen:
    members = {
        m.member_id: SeenMember(
            session_ms=m.session_timeout_ms,
            rebalance_ms=m.rebalance_timeout_ms,
            instance_id=m.instance_id,
            sync_call=m.sync_call,
            satisfied=not m.is_new and (m.join_call is not None or m.sync_call is not None),
            joins=m.join_call is not None,
        )
        for m in group.members.values()
    }
    promised = dict(group.pending)
    return Seen(group.state, group.generation, members, promised, frozenset(group.pending_sync))


NOTHING = Seen(State.EMPTY, 0, {}, {}, frozenset())


@dataclass
class Delay:
    """The initial delay of one group (ID-1 to ID-3)."""

    span_ms: int
    left_ms: int
    newcomer: bool = False


@dataclass
class TimerOracle:
    """Expects each deadline, by its key, and says where the truth is another."""

    settings: GroupSettings
    due: dict[Key, int] = field(default_factory=dict)
    delays: dict[str, Delay] = field(default_factory=dict)

    def take_over(self, due: dict[Key, int], shard: Shard) -> None:
        """Believe what is armed: undoing a failed append arms anew what it brings back."""
        self.due = dict(due)
        self.delays = {
            group_id: Delay(group.delay_ms, group.remaining_ms, group.new_member_added)
            for group_id, group in shard.groups.items()
            if group.initial
        }

    def loaded(self, groups: dict[str, Seen], now_ms: int) -> None:
        """Expect what the end of loading arms: every session (LO-4), and a join phase for who is too many."""
        self.due, self.delays = {}, {}
        for group_id, group in groups.items():
            for member_id, member in group.members.items():
                self.due["session", group_id, member_id] = now_ms + member.session_ms
            if group.state is State.PREPARING:
                self.due["join", group_id] = now_ms + group.rebalance_ms()

    def watch(
        self,
        command: Command,
        decision: Decision,
        before: dict[str, Seen],
        after: dict[str, Seen],
        now_ms: int,
    ) -> None:
        """Expect what one command arms, moves and takes off."""
        struck = self._strike(command, now_ms)
        if struck is not None:
            group_id = struck[1]
            waits_on = self._waits_on(group_id)
            check_strike(struck, before[group_id], after.get(group_id, NOTHING), waits_on=waits_on)
        for group_id in before.keys() | after.keys():
            earlier, now = before.get(group_id, NOTHING), after.get(group_id)
            if now is None:
                self._forget(group_id)
                continue
            asked = getattr(command, "group_id", group_id) == group_id
            self._sessions(group_id, earlier, now, command if asked else None, decision, now_ms)
            self._joins(group_id, earlier, now, struck == ("join", group_id), now_ms)
            self._syncs(group_id, earlier, now, now_ms)

    def _strike(self, command: Command, now_ms: int) -> Key | None:
        """Return the key of a deadline that was due and is gone now; a late bell strikes nothing (EX-7)."""
        if not isinstance(command, Expire) or self.due.get(command.key, now_ms + 1) > now_ms:
            return None
        del self.due[command.key]
        return command.key

    def _waits_on(self, group_id: str) -> bool:
        """Return whether the initial delay has another link (ID-3)."""
        delay = self.delays.get(group_id)
        return delay is not None and delay.newcomer and delay.left_ms > 0

    def _forget(self, group_id: str) -> None:
        self.delays.pop(group_id, None)
        for key in [key for key in self.due if key[1] == group_id]:
            del self.due[key]

    # -- sessions

    def _sessions(
        self,
        group_id: str,
        before: Seen,
        after: Seen,
        command: Command | None,
        decision: Decision,
        now_ms: int,
    ) -> None:
        for gone in (before.members.keys() | before.promised.keys()) - (
            after.members.keys() | after.promised.keys()
        ):
            self.due.pop(("session", group_id, gone), None)
        for member_id, session_ms in after.promised.items():
            if member_id not in before.promised:
                self.due["session", group_id, member_id] = now_ms + session_ms
        alive = heard(command, decision, before)
        begun = after.state is State.COMPLETING and after.generation > before.generation
        for member_id, member in after.members.items():
            key = ("session", group_id, member_id)
            if member_id not in before.members:
                self.due[key] = now_ms + first_session_ms(member, before)
            if begun or member_id in alive or has_synced(member_id, before, after, command):
                self.due[key] = now_ms + member.session_ms

    # -- phases

    def _joins(self, group_id: str, before: Seen, after: Seen, struck: bool, now_ms: int) -> None:
        key = ("join", group_id)
        if after.state is not State.PREPARING:
            self.due.pop(key, None)
            self.delays.pop(group_id, None)
        elif before.state is State.EMPTY:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self.delays[group_id] = Delay(delay_ms, max(after.rebalance_ms() - delay_ms, 0))
            self.due[key] = now_ms + delay_ms
        elif before.state is not State.PREPARING:
            self.due[key] = now_ms + after.rebalance_ms()
        elif struck:
            self.due[key] = now_ms + self._next_link_ms(group_id, after)
        elif group_id in self.delays and came_new(before, after):
            self.delays[group_id].newcomer = True

    def _next_link_ms(self, group_id: str, after: Seen) -> int:
        """Return how long a join phase goes on whose time was over (ID-3, LD-4)."""
        if not self._waits_on(group_id):
            return max(after.rebalance_ms(), RETRY_MS)
        delay = self.delays[group_id]
        span_ms = min(self.settings.initial_rebalance_delay_ms, delay.left_ms)
        self.delays[group_id] = Delay(span_ms, max(delay.left_ms - delay.span_ms, 0))
        return span_ms

    def _syncs(self, group_id: str, before: Seen, after: Seen, now_ms: int) -> None:
        key = ("sync", group_id)
        if after.state is State.COMPLETING and after.generation > before.generation:
            self.due[key] = now_ms + after.rebalance_ms()
        elif after.state not in (State.COMPLETING, State.STABLE) or not after.silent:
            self.due.pop(key, None)


def check_strike(struck: Key, before: Seen, after: Seen, *, waits_on: bool) -> None:
    """See that a deadline did what it was armed for: EX-1 and EX-3, ID-3, RB-5 and LD-4."""
    if struck[0] == "session":
        member = before.members.get(struck[2])
        stays = member is not None and member.satisfied
        assert (struck[2] in after.members) == stays, "EX-1: who is silent goes, who is parked stays"
        assert struck[2] not in after.promised
    elif struck[0] == "sync":
        assert not before.silent & after.members.keys(), "EX-3: who never synced goes"
        assert after.state is not State.STABLE
    elif waits_on:
        assert after.state is State.PREPARING, "ID-3: newcomers extend the initial delay"
    else:
        someone = any(member.joins for member in before.members.values())
        gone = [m for m in before.members.values() if not m.joins and m.instance_id is None]
        assert (after.state is State.PREPARING) == (not someone and len(gone) < len(before.members))


def heard(command: Command | None, decision: Decision, before: Seen) -> set[str]:
    """Return who has given a sign of life that counts: a heartbeat, a commit (HB-8, HB-9, OC-13)."""
    if isinstance(command, Heartbeat):
        codes = [reply.answer.code for reply in decision.replies if isinstance(reply.answer, HeartbeatAnswer)]
        return {command.member_id} if codes[0] in HEARD else set()
    if not isinstance(command, CommitOffsets) or before.state not in (State.PREPARING, State.STABLE):
        return set()
    member = before.members.get(command.member_id)
    itself = member is not None and command.instance_id in (None, member.instance_id)
    return {command.member_id} if itself and command.generation == before.generation else set()


def first_session_ms(member: SeenMember, before: Seen) -> int:
    """Return how long a member has at first: five minutes, or what the one had whom it replaces (ST-1)."""
    for old in before.members.values():
        if member.instance_id is not None and old.instance_id == member.instance_id:
            return old.session_ms
    return NEW_MEMBER_MS


def has_synced(member_id: str, before: Seen, after: Seen, command: Command | None) -> bool:
    """Return whether the end of its sync gives a member its session anew (SG-11, RB-1)."""
    if before.state is not State.COMPLETING or member_id not in before.members:
        return False
    waited = before.members[member_id].sync_call is not None
    if after.state is State.STABLE and after.generation == before.generation:
        return waited or (isinstance(command, Sync) and command.member_id == member_id)
    return after.state is not State.COMPLETING and waited


def came_new(before: Seen, after: Seen) -> bool:
    """Return whether somebody joined who replaces nobody (ID-2, ID-9)."""
    known = {member.instance_id for member in before.members.values()} - {None}
    return any(
        member_id not in before.members and member.instance_id not in known
        for member_id, member in after.members.items()
    )
