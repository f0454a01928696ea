"""A second opinion on time: who may be thrown out of a group when, and how long each phase may last.

Nothing here asks the coordinator for its deadlines. It goes by what members were heard to say and by how the
group was seen to change, so that a timer that was not armed, moved too far or given to another is found out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.coordinator.group.model import Group, Member, State
from swarm.world import Violation

NEW_MEMBER_MS = 300_000  # JG-23


@dataclass(slots=True, kw_only=True)
class Patience:
    """What lateness is forgiven now: a busy broker rings late, a refused append is tried again."""

    late_ms: int
    initial_delay_ms: int
    troubled_ms: int
    """When the disk was last seen ill; what was due around then may come later."""

    def over(self, due_ms: int, now_ms: int) -> bool:
        """Return whether something that was due should have happened."""
        return now_ms > max(due_ms, self.troubled_ms) + self.late_ms


@dataclass(slots=True)
class Seen:
    """One member as it was seen last. `sure_ms`, `maybe_ms`: since when its session runs, at least, at
    most.
    """

    sure_ms: int
    maybe_ms: int
    session_ms: int
    waits: bool
    is_new: bool
    joined_ms: int
    static: bool
    synced: bool = False
    beaten: bool = False
    """Whether it was heard of while it was new: a session takes the place of its five minutes then (HB-8)."""

    def heard(self, now_ms: int, *, sure: bool) -> None:
        """Take note of what begins the session anew, surely or maybe."""
        self.maybe_ms = now_ms
        if sure:
            self.sure_ms = now_ms


@dataclass(slots=True)
class GroupWatch:
    """One group as it was seen last, in one life of its shard."""

    group_id: str
    state: State
    generation: int
    phase_ms: int
    limit_ms: int
    initial: bool
    members: dict[str, Seen] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    """Ids that were handed out and not yet used, and since when."""
    excused: set[str] = field(default_factory=set)
    """Who may be removed at the next look: somebody asked for it."""
    forgiven: bool = False
    """A failed append may have taken back anything since the last look."""
    again_ms: int = 0
    """When the join phase was last given its time anew, since nobody was there to begin with (LD-4)."""
    begun_before: bool = False
    """The phase that was seen first may have begun long before."""
    sync_from_ms: int = 0
    sync_limit_ms: int = 0
    longest_ms: int = 0
    """The longest rebalance timeout of anybody who was seen in the group; whoever had it may be gone."""

    @classmethod
    def of(cls, group: Group, now_ms: int, patience: Patience) -> GroupWatch:
        """Return the watch of a group that is seen for the first time."""
        watch = cls(group.group_id, group.state, group.generation, now_ms, 0, False)
        watch._enter(group, now_ms, patience)
        watch.sync_from_ms, watch.sync_limit_ms = now_ms, group.rebalance_timeout_ms()
        for member in group.members.values():
            known = watch.members[member.member_id] = seen(member, now_ms)
            known.synced = group.state is State.STABLE
        return watch

    # -- what is heard

    def beat(self, member_id: str, now_ms: int, *, sure: bool) -> None:
        """Take note of a heartbeat or a commit of a member."""
        known = self.members.get(member_id)
        if known is not None:
            known.heard(now_ms, sure=sure)
            known.beaten |= known.is_new

    def stood_still(self, for_ms: int, now_ms: int) -> None:
        """Take note that the shard has decided nothing for so long: deadlines have waited, and sessions begin
        anew (LO-4), as do those that ids were promised for.
        """
        self.phase_ms += for_ms
        self.again_ms += for_ms if self.again_ms else 0
        self.sync_from_ms += for_ms
        self.promised = dict.fromkeys(self.promised, now_ms)
        for known in self.members.values():
            known.heard(now_ms, sure=True)
            known.joined_ms += for_ms

    def synced(self, member_id: str) -> None:
        """Take note of a sync of the current generation."""
        known = self.members.get(member_id)
        if known is not None:
            known.synced = True

    # -- what is seen

    def look(self, group: Group, now_ms: int, patience: Patience) -> None:
        """Compare the group with what it was, and with what time allows."""
        if self.members.keys() - group.members.keys():
            self._check_removed(group, now_ms, patience)
        if group.generation != self.generation:
            self._begin_generation(group, now_ms)
        if group.state is not self.state or group.generation != self.generation:
            self.state, self.generation = group.state, group.generation
            self._enter(group, now_ms, patience)
        else:
            self._check_phase(group, now_ms, patience)
        self.longest_ms = max(self.longest_ms, group.rebalance_timeout_ms())
        for member in group.members.values():
            self._look_at(member, now_ms, patience)
        self._check_promises(group, now_ms, patience)
        self.excused.clear()
        self.forgiven = False

    def _enter(self, group: Group, now_ms: int, patience: Patience) -> None:
        """Note when a phase began and how long it may last."""
        self.phase_ms, self.again_ms, self.begun_before = now_ms, 0, False
        self.longest_ms = max(self.longest_ms, group.rebalance_timeout_ms())
        self.limit_ms = self.longest_ms
        self.initial = group.initial
        if self.initial:  # ID-4
            self.limit_ms = max(self.limit_ms, patience.initial_delay_ms) + patience.initial_delay_ms

    def _begin_generation(self, group: Group, now_ms: int) -> None:
        """Everybody has a new session, and this long to sync (RB-9)."""
        self.sync_from_ms, self.sync_limit_ms = now_ms, group.rebalance_timeout_ms()
        for known in self.members.values():
            known.heard(now_ms, sure=not self.forgiven)
            known.synced = False

    def _check_phase(self, group: Group, now_ms: int, patience: Patience) -> None:
        if group.state not in (State.PREPARING, State.COMPLETING):
            return
        due_ms = max(self.phase_ms, self.again_ms) + self.limit_ms
        if now_ms >= due_ms and group.state is State.PREPARING and group.awaiting_join == 0:
            self.again_ms, self.limit_ms = now_ms, max(self.limit_ms, 500)
            return
        if not patience.over(due_ms, now_ms):
            return
        lasts = now_ms - self.phase_ms
        self._fail(
            "phases end",
            f"is {group.state} for {lasts} ms now, and may be for {self.limit_ms}; "
            f"{group.awaiting_join} of {len(group.members)} have joined, pending {sorted(group.pending)}",
        )

    def _look_at(self, member: Member, now_ms: int, patience: Patience) -> None:
        known = self.members.get(member.member_id)
        if known is None:
            known = self.members[member.member_id] = seen(member, now_ms)
            if self.forgiven:  # undoing may have brought it back, and its session began who knows when
                known.sure_ms = 0
            return
        waits = member.join_call is not None or member.sync_call is not None
        if known.waits and not waits:
            known.heard(now_ms, sure=not self.forgiven)
        known.waits, known.is_new = waits, member.is_new
        known.session_ms = max(known.session_ms, member.session_timeout_ms)
        if self.forgiven:
            known.maybe_ms = now_ms
        self._check_silence(member, known, now_ms, patience)

    def _check_silence(self, member: Member, known: Seen, now_ms: int, patience: Patience) -> None:
        if known.waits and not known.is_new:
            return
        due_ms = known.maybe_ms + known.session_ms
        if known.is_new:
            due_ms = max(due_ms, known.joined_ms + NEW_MEMBER_MS)
        if patience.over(due_ms, now_ms):
            silent = now_ms - known.maybe_ms
            self._fail("the silent go", f"still has {member.member_id}, silent for {silent} ms")

    def _check_promises(self, group: Group, now_ms: int, patience: Patience) -> None:
        """Hold ids that were handed out against the session timeout that they were promised for."""
        if not group.pending and not self.promised:
            return
        if self.forgiven:
            self.promised.clear()
        self.promised = {one: self.promised.get(one, now_ms) for one in group.pending}
        for member_id, since_ms in self.promised.items():
            if patience.over(since_ms + group.pending[member_id], now_ms):
                self._fail("the silent go", f"still keeps the promised id {member_id} of {since_ms}")

    # -- removals

    def _check_removed(self, group: Group, now_ms: int, patience: Patience) -> None:
        for member_id in sorted(self.members.keys() - group.members.keys()):
            known = self.members.pop(member_id)
            if self.forgiven or member_id in self.excused:
                continue
            if not any(reason(known, now_ms) for reason in (self._silent, self._absent, self._never_synced)):
                self._fail(
                    "nobody goes without a reason",
                    f"has lost {member_id} in {self.state}, heard {now_ms - known.sure_ms} ms ago with a "
                    f"session of {known.session_ms} ms, {now_ms - self.phase_ms} ms after the phase began",
                )

    def _silent(self, known: Seen, now_ms: int) -> bool:
        """Whether the session ran out (EX-1, EX-2)."""
        ran_out = now_ms >= known.sure_ms + known.session_ms
        if known.is_new:
            return now_ms >= known.joined_ms + NEW_MEMBER_MS or (known.beaten and ran_out)
        return not known.waits and ran_out

    def _absent(self, known: Seen, now_ms: int) -> bool:
        """Whether it missed the join phase (RB-5); a static one may (ST-11)."""
        if self.state is not State.PREPARING or known.waits or known.static:
            return False
        least_ms = 0 if self.initial or self.begun_before else self.limit_ms
        return now_ms >= self.phase_ms + least_ms

    def _never_synced(self, known: Seen, now_ms: int) -> bool:
        """Whether it had its time to sync (EX-3)."""
        return not known.synced and now_ms >= self.sync_from_ms + self.sync_limit_ms

    def _fail(self, rule: str, what: str) -> None:
        raise Violation(rule, f"group {self.group_id} {what}")


def seen(member: Member, now_ms: int) -> Seen:
    """Return a member as it is seen for the first time."""
    waits = member.join_call is not None or member.sync_call is not None
    return Seen(
        now_ms,
        now_ms,
        member.session_timeout_ms,
        waits,
        member.is_new,
        now_ms,
        member.instance_id is not None,
    )
