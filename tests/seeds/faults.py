"""Faults to plant in production code: each patches one small thing, as a slip of the hand would.

The simulator has to find every one of them within the seeds of `make test`; a net that lets one through has a
hole. Each is a context manager, and says in its docstring what has gone wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from inspect import getattr_static
from typing import Any

from coterie.base.codes import Code
from coterie.broker.fastpath import heartbeats
from coterie.broker.runtime.groups import Coordinator, ShardHost
from coterie.broker.runtime.purgatory import Purgatory
from coterie.broker.runtime.transactions import TransactionHost
from coterie.client.member.leader import Leadership
from coterie.client.member.state import Standing
from coterie.coordinator.group import apply, facts, shard, table
from coterie.coordinator.group.classic import expiry, join_phase, leave, static, sync
from coterie.coordinator.group.commands import CommitOffsets, Heartbeat
from coterie.coordinator.group.loading import Loader
from coterie.coordinator.group.model import Group, Member, State
from coterie.coordinator.group.offsets import committed
from coterie.coordinator.group.shard import Draft, Shard
from coterie.coordinator.machine import Decision
from coterie.storage import compaction
from coterie.storage.log import recovery
from coterie.storage.log.flushing import Flushing
from coterie.storage.log.segment import Segment
from coterie.wire.payloads.consumer_protocol import read_topics_v0
from coterie.wire.records.batches import scan

__all__ = ["FAULTS"]

Fault = Callable[[], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {}


def fault(plant: Callable[[], Iterator[None]]) -> Fault:
    """Put a fault on the list, by its name."""
    FAULTS[plant.__name__] = contextmanager(plant)
    return FAULTS[plant.__name__]


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put what `make` makes of an attribute in its place."""
    mine = name in vars(owner)
    static_one = getattr_static(owner, name)
    setattr(owner, name, make(static_one))
    try:
        yield
    finally:
        if mine:
            setattr(owner, name, static_one)
        else:  # it comes from a base class, and does again
            delattr(owner, name)


@contextmanager
def applied(fact: type, make: Callable[[Any], Any]) -> Iterator[None]:
    """Have a fact change the state in another way."""
    with patched(shard, "APPLY", lambda table: {**table, fact: make(table[fact])}):
        yield


# -- who may do what


@fault
def stale_generation_may_commit() -> Iterator[None]:
    """A member of a generation that is over commits."""

    def refusal(group: Group, command: Any) -> tuple[Code, str]:
        return group.refusal(command.member_id, command.instance_id), "unknown-member"

    with patched(committed, "commit_refusal", lambda _: refusal):
        yield


@fault
def stale_generation_may_beat() -> Iterator[None]:
    """A member of a generation that is over hears that all is well."""

    def refusal(group: Group, command: Any) -> tuple[Code, str]:
        return group.refusal(command.member_id, command.instance_id), "unknown-member"

    with patched(sync, "refusal_of", lambda _: refusal):  # the fast path hands over who is no member
        yield


@fault
def replaced_static_member_is_not_fenced() -> Iterator[None]:
    """Who was replaced is told that nobody knows it, and comes back to replace its successor."""

    def refusal(self: Group, member_id: str, instance_id: str | None) -> Code:
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    with patched(Group, "refusal", lambda _: refusal):
        yield


@fault
def anybody_may_commit_beside_a_group() -> Iterator[None]:
    """A commit of no generation is taken while the group has members."""
    rows = (State.PREPARING, State.STABLE)
    before = [table.ANSWERS[state] for state in rows]

    def answer(draft: Draft, group: Group, command: Any) -> Decision:
        if command.generation < 0:
            return committed.store(draft, command, "committed")
        return committed.commit_for_a_member(draft, group, command)

    answers = {**table.ANSWERS}
    for state, row in zip(rows, before, strict=True):
        answers[state] = {**row, CommitOffsets: answer}
    with patched(table, "ANSWERS", lambda _: answers):
        yield


@fault
def rebalance_is_not_announced() -> Iterator[None]:
    """Members hear that all is well while the others wait for them to join."""

    with patched(sync, "renewed", lambda _: lambda group: Code.NONE):
        yield


# -- replies and the log


@fault
def reply_before_its_append() -> Iterator[None]:
    """Answers leave when they are decided, and the log follows."""

    def early(go_on: Callable[[ShardHost], None]) -> Callable[[ShardHost], None]:
        def hurried(self: ShardHost) -> None:
            replies, self.pending.replies = self.pending.replies, []
            for reply in replies:
                deliver = self.calls.pop(reply.call, None)
                if deliver is not None:
                    deliver(reply.answer)
            go_on(self)

        return hurried

    with patched(ShardHost, "_go_on", early):
        yield


@fault
def answered_twice() -> Iterator[None]:
    """A reply stays where it was when it has left."""

    def twice(hand_out: Callable[..., None]) -> Callable[..., None]:
        def again(self: ShardHost, batch: Any) -> None:
            held = [(self.calls.get(reply.call), reply.answer) for reply in batch.replies]
            hand_out(self, batch)
            for deliver, answer in held[1:]:
                if deliver is not None:
                    deliver(answer)

        return again

    with patched(ShardHost, "_hand_out", twice):
        yield


@fault
def undo_is_skipped() -> Iterator[None]:
    """What a refused append would have stored stays in memory."""

    def keep(self: Shard, mark: int) -> None:
        self.journal.settle(self.journal.mark())

    with patched(Shard, "undo_to", lambda _: keep):
        yield


@fault
def refused_append_answers_nobody() -> Iterator[None]:
    """Whoever is in a batch that the log refuses waits for ever."""
    with patched(shard, "after_failure", lambda _: lambda draft, command, code: None):
        yield


@fault
def append_counts_as_landed() -> Iterator[None]:
    """Whoever waits is answered as soon as the log has taken a batch, though it may refuse it yet."""

    def early(appended: Callable[..., None]) -> Callable[..., None]:
        return lambda self, place: appended(self, place._replace(landed=True))

    with patched(ShardHost, "_appended", early):
        yield


@fault
def what_needs_no_record_overtakes_what_is_in_flight() -> Iterator[None]:
    """An answer that stores nothing leaves at once, whatever it has seen."""

    def at_once(self: ShardHost) -> None:
        batch = self._take_pending()
        batch.mark = self.shard.journal.settled
        self._settle(batch)

    with patched(ShardHost, "_settle_gathered", lambda _: at_once):
        yield


@fault
def late_refusal_leaves_what_is_gathered() -> Iterator[None]:
    """What has been decided behind a batch in flight stays when that is refused."""

    def undone(self: ShardHost, code: Code) -> None:
        batches = [*self._in_flight]
        self._in_flight.clear()
        self.shard.undo_to(self.shard.journal.settled)
        self._answer_refused(batches, code)

    with patched(ShardHost, "_undo_in_flight", lambda _: undone):
        yield


@fault
def late_refusal_undoes_what_is_gathered_alone() -> Iterator[None]:
    """What was in flight and has been refused stays in memory."""

    def undone(self: ShardHost, code: Code) -> None:
        batches = [*self._in_flight, self.pending]
        self._in_flight.clear()
        self.shard.undo_to(self._mark)
        self._take_pending()
        self._answer_refused(batches, code)

    with patched(ShardHost, "_undo_in_flight", lambda _: undone):
        yield


@fault
def late_refusal_forgets_the_commits_of_the_fast_path() -> Iterator[None]:
    """Whoever committed by the fast path waits for ever when its batch is refused."""
    with patched(ShardHost, "_give_up", lambda _: lambda self, batch, code: None):
        yield


@fault
def batches_in_flight_settle_in_any_order() -> Iterator[None]:
    """The first to land takes the newest batch with it."""

    def newest(landed: Callable[..., None]) -> Callable[..., None]:
        def mistaken(self: ShardHost, batch: Any, refused: Any) -> None:
            if refused is None and len(self._in_flight) > 1:
                self._settle(self._in_flight.pop())
                self._let_go()
            landed(self, batch, refused)

        return mistaken

    with patched(ShardHost, "_landed", newest):
        yield


@fault
def tombstone_of_offsets_is_forgotten() -> Iterator[None]:
    """Deleted offsets are deleted in memory only."""

    def without(records_of: Callable[..., Any]) -> Callable[..., Any]:
        def written(groups: Any, fact: Any) -> Any:
            return () if isinstance(fact, facts.OffsetsRemoved) else records_of(groups, fact)

        return written

    with patched(shard, "records_of", without):
        yield


@fault
def tombstone_of_a_group_is_forgotten() -> Iterator[None]:
    """A deleted group is deleted in memory only."""

    def without(records_of: Callable[..., Any]) -> Callable[..., Any]:
        def written(groups: Any, fact: Any) -> Any:
            return () if isinstance(fact, facts.GroupRemoved) else records_of(groups, fact)

        return written

    with patched(shard, "records_of", without):
        yield


@fault
def group_is_stored_with_its_old_members() -> Iterator[None]:
    """A group's record is that of the time before."""
    last: dict[Any, Any] = {}

    def late(records_of: Callable[..., Any]) -> Callable[..., Any]:
        def written(groups: Any, fact: Any) -> Any:
            now = records_of(groups, fact)
            if not isinstance(fact, facts.GroupStored):
                return now
            before = last.get((id(groups), fact.group_id), now)
            last[id(groups), fact.group_id] = now
            return before

        return written

    with patched(shard, "records_of", late):
        yield


# -- generations and assignments


@fault
def generation_is_not_bumped() -> Iterator[None]:
    """The next generation has the number of the last."""

    def same(begin: Callable[[Draft, Group], None]) -> Callable[[Draft, Group], None]:
        def again(draft: Draft, group: Group) -> None:
            if not group.generation:
                begin(draft, group)
                return
            group.generation -= 1
            try:
                begin(draft, group)
            finally:
                group.generation += 1

        return again

    with patched(join_phase, "begin_generation", same):
        yield


@fault
def assignments_go_to_the_wrong_members() -> Iterator[None]:
    """Each member gets what the leader gave to the next one."""

    def shift(distribute: Callable[..., None]) -> Callable[..., None]:
        def shifted(draft: Draft, group: Group, command: Any) -> None:
            ids = [member_id for member_id, _ in command.assignments]
            given = [assignment for _, assignment in command.assignments]
            moved = tuple(zip(ids, given[1:] + given[:1], strict=True))
            distribute(draft, group, replace(command, assignments=moved))

        return shifted

    with patched(sync, "distribute", shift):
        yield


@fault
def returning_static_member_loses_its_assignment() -> Iterator[None]:
    """The new self of a static member starts with nothing."""

    def bare(replaced: Callable[..., Any]) -> Callable[..., Any]:
        def changed(world: Any, fact: Any) -> None:
            replaced(world, fact)
            world.groups[fact.group_id].members[fact.new_id].assignment = b""

        return changed

    with applied(facts.MemberReplaced, bare):
        yield


@fault
def leader_may_be_gone() -> Iterator[None]:
    """Nobody is chosen when the leader goes."""

    def keep(left: Callable[..., Any]) -> Callable[..., Any]:
        def changed(world: Any, fact: Any) -> None:
            group = world.groups[fact.group_id]
            leader = group.leader
            left(world, fact)
            group.leader = leader

        return changed

    with applied(facts.MembersLeft, keep):
        yield


@fault
def leave_does_not_remove() -> Iterator[None]:
    """Who leaves is told that it is gone, and stays."""
    with patched(leave, "remove", lambda _: lambda draft, group, member_id: Code.NONE):
        yield


@fault
def join_phase_ends_too_early() -> Iterator[None]:
    """The join phase does not wait for the last member."""

    def early(self: Group) -> bool:
        return self.awaiting_join >= max(1, len(self.members) - 1) and not self.pending

    with patched(Group, "all_joined", lambda _: property(early)):
        yield


@fault
def parked_join_is_dropped() -> Iterator[None]:
    """A member that joins again is not counted among those who wait."""

    def dropped(rejoined: Callable[..., Any]) -> Callable[..., Any]:
        return lambda world, fact: rejoined(world, replace(fact, call=None))

    with applied(facts.MemberRejoined, dropped):
        yield


@fault
def old_self_of_a_static_member_is_not_told() -> Iterator[None]:
    """What a replaced static member had parked is never answered."""

    def silent(take_over: Callable[..., str]) -> Callable[..., str]:
        def taken(draft: Draft, *rest: Any) -> str:
            kept = list(draft.replies)
            new_id = take_over(draft, *rest)
            draft.replies[:] = kept
            return new_id

        return taken

    with patched(static, "replace", silent):
        yield


@fault
def malformed_subscription_stalls_the_group() -> Iterator[None]:
    """The join phase ends in an error when a subscription cannot be read, as Apache Kafka's does."""

    def parsing(begin: Callable[[Draft, Group], None]) -> Callable[[Draft, Group], None]:
        def strict(draft: Draft, group: Group) -> None:
            for member in group.members.values():
                for _, metadata in member.protocols:
                    read_topics_v0(metadata)
            begin(draft, group)

        return strict

    with patched(join_phase, "begin_generation", parsing):
        yield


# -- time


@fault
def heartbeat_does_not_renew() -> Iterator[None]:
    """A heartbeat is answered, and the session runs out all the same."""
    with patched(Purgatory, "move", lambda _: lambda self, key, at_ms: key in self._timers):
        yield


@fault
def heartbeat_renews_another_member() -> Iterator[None]:
    """A heartbeat moves the session of the member that joined first."""

    def astray(renewal: Callable[..., Any]) -> Callable[..., Any]:
        def moved(group: Group, command: Heartbeat) -> Any:
            renewed = renewal(group, command)
            return None if renewed is None else (renewed[0], group.in_order()[0])

        return moved

    with patched(heartbeats, "renewal", astray):
        yield


@fault
def heartbeat_renews_too_short() -> Iterator[None]:
    """A heartbeat that the core decides gives two seconds less than the session."""

    def shorter(keep: Callable[..., Decision]) -> Callable[..., Decision]:
        def cut(draft: Draft, group: Group, command: Heartbeat) -> Decision:
            decision = keep(draft, group, command)
            wakes = tuple(w._replace(at_ms=w.at_ms and w.at_ms - 2_000) for w in decision.timers)
            return decision._replace(timers=wakes)

        return cut

    def none(group: Group, command: Heartbeat) -> None:
        return None

    rows = {state: {**row, Heartbeat: shorter(row[Heartbeat])} for state, row in table.ANSWERS.items()}
    with patched(table, "ANSWERS", lambda _: rows), patched(heartbeats, "renewal", lambda _: none):
        yield


@fault
def session_is_too_long() -> Iterator[None]:
    """A member that was answered has twice its session."""

    def longer(self: Draft, member: Member) -> None:
        self.arm(member.session_key, self.now_ms + 2 * member.session_timeout_ms)

    with patched(Draft, "restart_session", lambda _: longer):
        yield


@fault
def session_is_too_short() -> Iterator[None]:
    """A member that was answered has half its session."""

    def shorter(self: Draft, member: Member) -> None:
        self.arm(member.session_key, self.now_ms + member.session_timeout_ms // 2)

    with patched(Draft, "restart_session", lambda _: shorter):
        yield


def without_deadline(kind: str) -> AbstractContextManager[None]:
    """Have deadlines of a kind not be armed."""

    def deaf(arm: Callable[..., None]) -> Callable[..., None]:
        def armed(self: Draft, key: tuple[str, ...], at_ms: int) -> None:
            if key[0] != kind:
                arm(self, key, at_ms)

        return armed

    return patched(Draft, "arm", deaf)


@fault
def join_deadline_is_not_armed() -> Iterator[None]:
    """The join phase waits for ever for whoever does not come."""
    with without_deadline("join"):
        yield


@fault
def sync_deadline_is_not_armed() -> Iterator[None]:
    """The sync phase waits for ever for a leader that does not speak."""
    with without_deadline("sync"):
        yield


@fault
def promised_ids_never_expire() -> Iterator[None]:
    """An id that was handed out and is not used holds the join phase open."""
    with without_deadline("session"):
        yield


@fault
def initial_delay_never_ends() -> Iterator[None]:
    """Every link of the initial delay is followed by another one."""

    def again(draft: Draft, group: Group) -> str:
        join_phase.delay_again(draft, group, draft.shard.settings.initial_rebalance_delay_ms + 1, 0)
        return "initial-delay-extended"

    with patched(expiry.join_phase, "end_initial_delay", lambda _: again):
        yield


@fault
def pending_sync_is_not_cleared() -> Iterator[None]:
    """Who has synced counts as not having, and is thrown out when the time for it is over."""
    with patched(apply, "heard_sync", lambda _: lambda world, group, member_id: None):
        yield


@fault
def parked_members_expire() -> Iterator[None]:
    """A member that waits for the others runs out of its session."""
    with patched(Member, "satisfied", lambda _: property(lambda self: False)):
        yield


@fault
def alarm_is_not_set_earlier() -> Iterator[None]:
    """A deadline that comes before the one that is waited for is not noticed."""

    def lazy(self: Purgatory, at_ms: int) -> None:
        if self._alarm_ms is None:
            self._alarm_ms = at_ms
            self._alarm(at_ms)

    with patched(Purgatory, "_warn", lambda _: lazy):
        yield


@fault
def loaded_members_never_expire() -> Iterator[None]:
    """A failover gives members no session."""

    def mute(loaded: Callable[..., Decision]) -> Callable[..., Decision]:
        return lambda self, *terms, **named: loaded(self, *terms, **named)._replace(timers=())

    with patched(Shard, "loaded", mute):
        yield


# -- failovers


@fault
def wakes_are_lost_on_unload() -> Iterator[None]:
    """Nobody who waits is told that the partition is led elsewhere now."""

    def silent(self: ShardHost) -> None:
        self.status = self.AWAY

    with patched(ShardHost, "unload", lambda _: silent):
        yield


@fault
def resigned_leader_goes_on() -> Iterator[None]:
    """A node keeps serving a partition that another leads."""

    def stay(self: Coordinator, partition: int, leader_epoch: int | None = None) -> None:
        return None

    with patched(Coordinator, "resigned", lambda _: stay):
        yield


@fault
def old_news_of_leadership_counts() -> Iterator[None]:
    """A node that is told again that it leads begins anew."""

    def anew(self: Coordinator, partition: int, leader_epoch: int) -> None:
        before = self.hosts.get(partition)
        if before is not None:
            before.unload()
        self._begin_term(partition, leader_epoch)

    with patched(Coordinator, "elected", lambda _: anew):
        yield


@fault
def load_ignores_the_last_write() -> Iterator[None]:
    """Loading stops one batch short of the end."""

    def short(read: Callable[..., Any]) -> Callable[..., Any]:
        def cut(self: Loader, piece: bytes, now_ms: int) -> Any:
            at, header = scan(piece)[-1]
            if at:
                yield from read(self, piece[:at], now_ms)
            return header.last_offset + 1

        return cut

    with patched(Loader, "read", short):
        yield


@fault
def load_in_the_wrong_order() -> Iterator[None]:
    """Loading reads the newest batch first."""

    def reverse(read: Callable[..., Any]) -> Callable[..., Any]:
        def backwards(self: Loader, piece: bytes, now_ms: int) -> Any:
            batches = [piece[at : at + header.size] for at, header in scan(piece)]
            yield from read(self, b"".join(reversed(batches)), now_ms)
            return scan(piece)[-1][1].last_offset + 1

        return backwards

    with patched(Loader, "read", reverse):
        yield


@fault
def nothing_is_loaded() -> Iterator[None]:
    """A node that is elected begins with nothing."""

    def empty(self: ShardHost) -> Iterator[None]:
        yield from ()

    with patched(ShardHost, "_replay", lambda _: empty):
        yield


# -- offsets and the store


@fault
def offsets_of_readers_expire() -> Iterator[None]:
    """Offsets grow old although somebody reads their topic."""
    subscribed = patched(Group, "is_subscribed_to", lambda _: lambda self, topic: False)
    with (
        subscribed,
        patched(committed, "why_expired", lambda _: lambda draft, group, stored: "expired-alone"),
    ):
        yield


@fault
def groups_with_members_are_cleaned_away() -> Iterator[None]:
    """A group without offsets is deleted although somebody is in it."""

    def clean(draft: Draft, group: Group, allowance: object) -> None:
        if not draft.shard.offsets.get(group.group_id):
            committed.remove_group(draft, group, ())

    with patched(committed, "clean_group", lambda _: clean):
        yield


@fault
def compaction_keeps_the_oldest() -> Iterator[None]:
    """Of two records of a key the older one stays."""

    def oldest(found: Callable[..., Any]) -> Callable[..., Any]:
        def shifted(plan: Any, disk: Any) -> Any:
            newest = found(plan, disk)
            return newest._replace(offsets={key: at + 1 for key, at in newest.offsets.items()})

        return shifted

    with patched(compaction, "_newest_of", oldest):
        yield


@fault
def recovery_cuts_too_much() -> Iterator[None]:
    """After a crash the last whole batch counts as torn."""

    def shy(sound: Callable[..., Any]) -> Callable[..., Any]:
        def fewer(*place: Any, **terms: Any) -> Any:
            found = list(sound(*place, **terms))
            return iter(found[:-1])

        return fewer

    with patched(recovery, "sound_batches", shy):
        yield


@fault
def flush_does_not_reach_the_disk() -> Iterator[None]:
    """What counts as flushed is only written."""

    def lazy(append: Callable[..., None]) -> Callable[..., None]:
        def unflushed(self: Segment, *what: Any, sync: bool) -> None:
            append(self, *what, sync=False)

        return unflushed

    with patched(Segment, "append", lazy):
        yield


@fault
def failed_append_leaves_its_bytes() -> Iterator[None]:
    """What a refused append has written stays, and the next append comes behind it."""

    def leave_it(self: Flushing, segment: Segment) -> None:
        segment.size = segment.file.size()

    with patched(Flushing, "take_back", lambda _: leave_it):
        yield


# -- transactions


@fault
def aborted_offsets_count() -> Iterator[None]:
    """What was committed in a transaction that is aborted counts all the same."""

    def kept(ended: Callable[..., Any]) -> Callable[..., Any]:
        return lambda world, fact: ended(world, replace(fact, commit=True))

    with applied(facts.TransactionEnded, kept):
        yield


@fault
def committed_offsets_are_dropped() -> Iterator[None]:
    """What was committed in a transaction never counts."""

    def dropped(ended: Callable[..., Any]) -> Callable[..., Any]:
        return lambda world, fact: ended(world, replace(fact, commit=False))

    with applied(facts.TransactionEnded, dropped):
        yield


@fault
def open_transaction_is_not_told() -> Iterator[None]:
    """Who asks for stable offsets gets those of the time before an open transaction."""
    with patched(committed, "unsettled", lambda _: lambda one: one):
        yield


@fault
def hanging_transactions_are_never_aborted() -> Iterator[None]:
    """A transaction whose producer is gone stays open."""
    with patched(TransactionHost, "_set_timers", lambda _: lambda self, decision: None):
        yield


# -- the client


@fault
def leader_gives_a_partition_twice() -> Iterator[None]:
    """The assignor of a leader gives its first member's share to everybody."""

    def twice(assign: Callable[..., None]) -> Callable[..., None]:
        def shared(self: Leadership, cluster: Any) -> None:
            assign(self, cluster)
            given = self.given or {}
            everything = tuple(one for share in given.values() for one in share)
            self.given = dict.fromkeys(given, everything)

        return shared

    with patched(Leadership, "assign", twice):
        yield


@fault
def client_does_not_look_for_its_coordinator_again() -> Iterator[None]:
    """A client that hears NOT_COORDINATOR goes on asking the same broker."""
    with patched(Standing, "_lose_coordinator", lambda _: lambda self: None):
        yield


@fault
def client_does_not_rejoin() -> Iterator[None]:
    """A client that hears of a rebalance goes on with what it has."""
    with patched(Standing, "_want_rejoin", lambda _: lambda self, why, now_ms: None):
        yield
