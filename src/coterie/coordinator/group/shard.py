"""One partition of `__consumer_offsets`: its groups and offsets, and the door in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from sys import intern

from coterie.base.codes import Code
from coterie.base.reasons import GROUP, names
from coterie.coordinator import machine
from coterie.coordinator.group import table
from coterie.coordinator.group.apply import APPLY, barrier_keys, session_key
from coterie.coordinator.group.classic import join_phase
from coterie.coordinator.group.commands import (
    CleanOffsets,
    Command,
    Describe,
    EndTransaction,
    Expire,
    FetchOffsets,
    JoinAnswer,
    SyncAnswer,
    TopicsDeleted,
)
from coterie.coordinator.group.facts import (
    Fact,
    GroupDied,
    GroupRemoved,
    MemberIdPromised,
    MemberJoined,
    MemberReplaced,
    MembersLeft,
    PromiseDropped,
    TransactionEnded,
)
from coterie.coordinator.group.failures import after_failure
from coterie.coordinator.group.model import Group, Member
from coterie.coordinator.group.offsets.stored import OffsetTables, Pending
from coterie.coordinator.group.records import facts_of, records_of
from coterie.coordinator.group.settings import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupSettings
from coterie.coordinator.machine import Core, Decision, RawRecord, Timer, TimerKey
from coterie.wire.payloads.consumer_offsets import KNOWN_KINDS

# Bytes of a member id before its uuid: a text in a record has 16 bits for its length.
PREFIX_MAX = 32_767 - 64


class Draft(machine.Draft):
    """A decision about a group in the making."""

    __slots__ = ()

    shard: Shard
    reasons = names(GROUP)

    def drop(self, call: int | None) -> None:
        """Forget a parked call whose place a newer one takes."""
        if call is not None:
            self.dropped.append(call)

    def restart_session(self, member: Member) -> None:
        """Give a member its whole session timeout again."""
        self.timers.append(Timer(member.session_key, self.now_ms + member.session_timeout_ms))

    def group(self, group_id: str) -> Group:
        """Return a group as the facts so far leave it."""
        return self.shard.groups[group_id]


class Shard(Core[Command, Fact]):
    """The groups and offsets that hash to one partition. It knows no clock, socket or thread."""

    drafts = Draft

    def __init__(self, *, settings: GroupSettings, new_id: Callable[[], str]) -> None:
        """`new_id` returns a fresh uuid4 as text; member ids end in one (JG-24)."""
        super().__init__()
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetTables()
        self.pending = Pending()
        self.foreign: dict[str, set[bytes]] = {}  # groups with records of kinds not known here, by their keys
        self.skipped: dict[int, int] = {}  # record type -> how many of it were passed over while loading
        self._new_id = new_id
        self._undone: list[Fact] = []  # while they are being rolled back
        self._revived: dict[TimerKey, None] = {}

    def new_member_id(self, prefix: str) -> str:
        """Return a fresh member id: the client's name, or the instance's, and a uuid (JG-24).

        A name that leaves no room for the uuid is cut: no record could hold the id.
        """
        if len(prefix) > PREFIX_MAX // 4:
            prefix = prefix.encode()[:PREFIX_MAX].decode(errors="ignore")
        return intern(f"{prefix}-{self._new_id()}")  # it comes back in requests; see `broker.fastpath`

    # -- deciding

    def _only_reads(self, command: Command) -> bool:
        return isinstance(command, Describe) or (
            isinstance(command, FetchOffsets) and not command.require_stable
        )

    def _after_failure(self, draft: Draft, command: Command, code: Code) -> None:
        after_failure(draft, command, code)

    def _answer(self, draft: Draft, command: Command) -> Decision:
        """Return the Decision of the table for the state that the group of the command is in."""
        kind: type = type(command)
        # a union is made anew each time
        if isinstance(command, (CleanOffsets, EndTransaction, TopicsDeleted)):
            return table.SHARD_WIDE[kind](draft, None, command)
        if isinstance(command, Expire):
            kind, group_id = table.DUE[command.key[0]], command.key[1]
        else:
            group_id = command.group_id
        group = self.groups.get(group_id)
        row = table.ABSENT if group is None else table.ANSWERS[group.state]
        if group_id in self.foreign and kind in table.FOREIGN:
            row = table.FOREIGN
        return row[kind](draft, group, command)

    # -- the one door

    def apply(self, fact: Fact) -> None:
        """Change the state as the fact says, and note in the journal that it was this fact."""
        self.journal.add(_gone, self._undone, fact, None)
        APPLY[type(fact)](self, fact)

    def records(self, fact: Fact) -> tuple[RawRecord, ...]:
        """Return the records of a durable fact, asked for right after its `apply`; () for a volatile one."""
        return records_of(self.groups, fact)

    def take_back(self, mark: int) -> None:
        """Roll back what was decided after the mark, and not carried out: it is no decision after all."""
        super().take_back(mark)
        self._undone.clear()

    def undo_to(self, mark: int) -> None:
        """Roll back what was decided and carried out after the mark, and could not be appended.

        The next `append_failed` arms again what those decisions have cleared, or moved.
        """
        super().undo_to(mark)
        for fact in self._undone:
            self._revived.update(dict.fromkeys(self._deadlines_of(fact)))
        self._undone.clear()

    def _deadlines_of(self, fact: Fact) -> Iterable[TimerKey]:
        """Return the deadlines that the decision behind an undone fact may have armed, moved or cleared."""
        group_id = getattr(fact, "group_id", None)
        if group_id is None:
            return
        yield from barrier_keys(group_id)
        match fact:
            case MembersLeft(member_ids=gone):
                yield from (session_key(group_id, member_id) for member_id in gone)
            case GroupRemoved() if group_id in self.groups:
                yield from (session_key(group_id, member_id) for member_id in self.groups[group_id].pending)
            case MemberReplaced(old_id=back) | PromiseDropped(member_id=back):
                yield session_key(group_id, back)
            case MemberJoined(member_id=new) | MemberIdPromised(member_id=new):
                yield session_key(group_id, new)

    def _rearm(self, draft: Draft) -> None:
        """Arm again the deadlines of whatever undoing brought back, and disarm those of what it took away."""
        for key in self._revived:
            group = self.groups.get(key[1])
            draft.timers.append(Timer(key, None if group is None else due_ms(group, key, draft.now_ms)))
        self._revived.clear()

    # -- coming and going

    def load(self, records: Iterable[RawRecord], now_ms: int, *, producer_id: int = -1) -> None:
        """Replay records one by one, oldest first, those of one transaction at a time (LO-1, OM-2).

        Records of unknown types are passed over and counted in `skipped`; bytes of a known type that cannot
        be read raise Corrupt, and the shard is of no use then (LO-7). `loading.Loader` does it by the batch.
        """
        for record in records:
            for fact in facts_of(self.groups, record, producer_id=producer_id, now_ms=now_ms):
                self.load_fact(fact)
            self._count_unknown(record[0])

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Replay the end of a transaction (OM-3)."""
        self.load_fact(TransactionEnded(producer_id, commit))

    def _count_unknown(self, raw_key: bytes) -> None:
        kind = int.from_bytes(raw_key[:2], "big", signed=True)
        if kind not in KNOWN_KINDS:
            self.skipped[kind] = self.skipped.get(kind, 0) + 1

    def loaded(
        self,
        now_ms: int,
        group_ids: Iterable[str] | None = None,
        before: Callable[[Fact], None] | None = None,
        *,
        wall_ms: int | None = None,
    ) -> Decision:
        """Return the Decision at the end of loading: sessions begin, groups over the limit rebalance (LO-4).

        `group_ids` takes a slice of the groups; the other terms are those of `perform`.
        """
        draft = Draft(self, None, now_ms, before, wall_ms=wall_ms)
        for group in self.groups.values() if group_ids is None else map(self.groups.__getitem__, group_ids):
            for member in group.members.values():
                draft.restart_session(member)
            if group.members and group.leader not in group.members:
                draft.then("absent-leader-kept")
            if len(group.members) > self.settings.max_size:
                draft.then("oversized-group-loaded")
                join_phase.start_rebalance(draft, group)
        return draft.decision("loaded")

    def unload(self) -> Decision:
        """Return the Decision of unloading: groups are Dead, and whoever waits is sent elsewhere (DE-6)."""
        draft = Draft(self, None, 0)
        for group in self.groups.values():
            for member in group.in_order():
                send_elsewhere(draft, member)
            for key in barrier_keys(group.group_id):
                draft.clear(key)
            for promised in group.pending:
                draft.clear(session_key(group.group_id, promised))
            draft.apply(GroupDied(group.group_id, group.since_ms or 0))
        return draft.decision("unloaded")


def _gone(undone: list[Fact], fact: Fact, _: None) -> None:
    undone.append(fact)


def send_elsewhere(draft: Draft, member: Member) -> None:
    """Answer what a member has parked with NOT_COORDINATOR, and take its session's deadline off."""
    if member.join_call is not None:
        draft.reply(member.join_call, JoinAnswer(Code.NOT_COORDINATOR, member.member_id))
    if member.sync_call is not None:
        draft.reply(member.sync_call, SyncAnswer(Code.NOT_COORDINATOR))
    draft.clear(member.session_key)


def due_ms(group: Group, key: TimerKey, now_ms: int) -> int | None:
    """Return the time of a deadline of the group as it stands, in ms; None if it has no such deadline."""
    if key[0] == "join":
        return group.join_due_ms
    if key[0] == "sync":
        return group.sync_due_ms
    member = group.members.get(key[2])
    if member is not None:
        return now_ms + (NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms)
    promised_ms = group.pending.get(key[2])
    return None if promised_ms is None else now_ms + promised_ms
