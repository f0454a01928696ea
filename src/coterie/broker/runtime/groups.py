"""The shell around the group core: it carries decisions out over the log of `__consumer_offsets`.

A command is decided, its facts are applied, its durable facts are gathered, and its replies are held until
those are appended; `shards.py` has what is alike for transactions. Here is what groups have besides: quick
commits, offsets committed in transactions, stories, and the cleaning of what has expired.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from coterie.base.codes import Code
from coterie.base.plain import counted
from coterie.base.reasons import mark
from coterie.base.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC
from coterie.broker.runtime.forgetting import AGAIN_MS, Forgetting, Forgotten
from coterie.broker.runtime.shards import HostedShard, PendingBatch, Tried
from coterie.broker.runtime.topic_shards import CoordinatorParts, ShardsOfTopic
from coterie.coordinator.group import commands, facts
from coterie.coordinator.group.loading import Loader
from coterie.coordinator.group.shard import Shard
from coterie.coordinator.group.shard import due_ms as due_at
from coterie.storage.log.contract import AppendRefused, StorageFailed
from coterie.story.recorder import GroupStories, Observer

if TYPE_CHECKING:
    from uuid import UUID

    from coterie.broker.net.connection import Connection
    from coterie.broker.runtime.markers import TransactionEnd
    from coterie.broker.runtime.pieces import Pieces
    from coterie.coordinator.group.commands import Command
    from coterie.coordinator.machine import TimerKey
    from coterie.storage.log.contract import Appended
    from coterie.storage.log.producers import Verification
    from coterie.story.recorder import Effect

log = logging.getLogger("coterie.broker")

GROUPS_STARTED_AT_ONCE = 50
LATE_MS = 1_000
"""While a log takes so long to land a batch members may be unheard: a connection is answered in order."""
LOOK_AGAIN_MS = 250
"""When a session that is put off for that is looked at again: what came meanwhile is read by then."""
PART_BYTES = 1 << 17  # some 4,000 tombstones, which take 13 ms


class Writer(NamedTuple):
    """Under whose name the next batch goes out, and what shows that its transaction allows it (TX-7)."""

    producer_id: int
    producer_epoch: int
    verified: Verification | None


class Committed(NamedTuple):
    """A commit that the fast path has gathered: whose it is, what it was, and its answer."""

    connection: Connection
    sized: bytes
    answer: bytes


@dataclass(slots=True, eq=False)
class GroupBatch(PendingBatch[commands.Command]):
    """What groups wait for besides: the effects for their story, and commits by the fast path."""

    effects: list[Effect] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    """The groups that it moves: all but committing offsets does."""
    commits: list[Committed] = field(default_factory=list)
    ends: set[str] = field(default_factory=set)
    """The topics for which it ends commits."""
    markers: list[Callable[[Code], None]] = field(default_factory=list)
    """What takes word of the markers that it consists of: NONE when they last."""


class ShardHost(HostedShard[commands.Command, GroupBatch]):
    """One partition of `__consumer_offsets`."""

    batches = GroupBatch
    shard: Shard

    def __init__(self, coordinator: Coordinator, partition: int, *, status: str, epoch: int) -> None:
        settings = replace(
            coordinator.parts.settings.group_settings(),
            keeps_ids_in_transactions=not coordinator.parts.leadership.alone,
        )
        core = Shard(settings=settings, new_id=lambda: str(coordinator.new_uuid()))
        super().__init__(coordinator, core, partition, status=status, epoch=epoch)
        self.coordinator = coordinator
        self.forgetting = Forgetting(self)
        # Up to where the log has ended commits for topics. Of what was loaded nobody knows for which.
        self._ended: dict[str, int] = {}
        self._loaded_upto = 0
        self._resumed_ms: int | None = None  # when it has gone on last
        self._waits_since_ms = 0  # for the oldest batch in flight
        self._landed_late_ms: int | None = None
        self._unheard: dict[TimerKey, tuple[int, int]] = {}
        """The sessions that are put off: since when, and until when."""

    # -- live

    def _try(self, command: Command, now_ms: int, *, failed: Code | None = None) -> Tried:
        wall_ms = self.replica_manager.dated_ms(now_ms + self._stood_ms)
        observer = Observer(self.shard, wall_ms, self.epoch)
        if failed is None:
            decision = self.shard.perform(command, now_ms, observer, wall_ms=wall_ms)
        else:
            decision = self.shard.append_failed(command, failed, now_ms, observer, wall_ms=wall_ms)
        return Tried(decision, wall_ms, observer)

    def _recount(self, command: Command) -> str:
        return self.coordinator.stories.recent_moves(getattr(command, "group_id", ""))

    def commit_gathered(
        self, fact: facts.OffsetsCommitted, connection: Connection, sized: bytes, answer: bytes
    ) -> None:
        """Carry out a commit whose records are gathered; the connection gets the answer when they last."""
        self.shard.apply(fact)
        self.pending.commits.append(Committed(connection, sized, answer))
        self._go_on()

    def _carry_out(self, tried: Tried, command: Command) -> None:
        super()._carry_out(tried, command)
        decision, wall_ms, observer = tried
        for fact in decision.facts:
            if isinstance(fact, facts.OffsetsRemoved):
                self.pending.ends.update(topic for topic, _ in fact.partitions)
        if observer.befores:
            self.pending.moved.update(observer.befores)
            self.pending.effects += self.coordinator.stories.effects(
                observer, self.shard, command, decision, wall_ms
            )

    def is_moving(self, group_id: str) -> bool:
        """Return whether a group has been moved by what does not last yet; commits move none."""
        return group_id in self.pending.moved or any(group_id in batch.moved for batch in self._in_flight)

    def expire(self, key: TimerKey, now_ms: int) -> None:
        if self.status == self.ACTIVE:
            due_ms = now_ms if self._resumed_ms is None else self._due_ms(key, self._resumed_ms)
            if due_ms <= now_ms and self._may_be_unheard(key, now_ms):
                self.purgatory.arm(key, now_ms + LOOK_AGAIN_MS, self._ring)
            elif due_ms <= now_ms:
                self.execute(commands.Expire(key=key))
            else:
                self.purgatory.arm(key, due_ms, self._ring)
        elif self.status == self.LOADING:  # what it has loaded lives on when it answers
            self.purgatory.arm(key, now_ms + AGAIN_MS, self._ring)
        elif self.status in self.HALTED:
            self.purgatory.arm(key, max(self._due_ms(key, now_ms), now_ms + AGAIN_MS), self._ring)

    def _may_be_unheard(self, key: TimerKey, now_ms: int) -> bool:
        """Return whether a session is over though its member may have said something, behind a commit that
        the log is late to land. It is given a session's time for that, and no more.
        """
        landed_ms = self._landed_late_ms
        if not self._lands_late(now_ms) and (landed_ms is None or now_ms - landed_ms > LOOK_AGAIN_MS):
            self._unheard.clear()
            return False
        session_ms = self._due_ms(key, 0)
        if key[0] in ("join", "sync") or not session_ms:
            return False
        since_ms, until_ms = self._unheard.get(key, (now_ms, now_ms))
        if now_ms - until_ms > LOOK_AGAIN_MS:  # it was heard in the meantime
            since_ms = now_ms
        self._unheard[key] = since_ms, now_ms + LOOK_AGAIN_MS
        return now_ms - since_ms < session_ms

    def _lands_late(self, now_ms: int) -> bool:
        return bool(self._in_flight) and now_ms - self._waits_since_ms >= LATE_MS

    def _appended(self, appended: Appended) -> None:
        if not (appended.landed or self._in_flight):
            self._waits_since_ms = self.clock.now_ms()
        super()._appended(appended)

    def _landed(self, batch: GroupBatch, refused: AppendRefused | None) -> None:
        now_ms = self.clock.now_ms()
        if self._lands_late(now_ms):
            self._landed_late_ms = now_ms
        self._waits_since_ms = now_ms
        super()._landed(batch, refused)

    def _due_ms(self, key: TimerKey, since_ms: int) -> int:
        """Return the time of a deadline, a session's counted from a time on; 0 if there is none."""
        group = self.shard.groups.get(key[1])
        due_ms = None if group is None else due_at(group, key, since_ms - self._stood_ms)
        return 0 if due_ms is None else due_ms + self._stood_ms

    def go_on(self) -> None:
        """Decide again, after a halt: sessions begin anew (LO-4), other deadlines have stood still."""
        now_ms = self._resumed_ms = self.clock.now_ms()
        self._stood_ms += now_ms - self._halted_ms
        super().go_on()
        self.forgetting.forget_gone_soon()

    def _append(self, writer: Writer | None = None) -> Appended:
        if writer is None:
            appended = super()._append()
        else:
            batch = self.records.build(
                producer_id=writer.producer_id, producer_epoch=writer.producer_epoch, transactional=True
            )
            appended = self._append_batch(batch, verified=writer.verified)
        self._ended |= dict.fromkeys(self.pending.ends, appended.last_offset + 1)
        return appended

    def _hand_out(self, batch: GroupBatch) -> None:
        if batch.effects:  # before the replies: a client may have sent its next request already
            self.coordinator.stories.record(batch.effects)
        if batch.replies:
            self._deliver(batch.replies)
        for connection, _, answer in batch.commits:
            connection.send_answer(answer)
        for deliver in batch.markers:
            deliver(Code.NONE)

    def _give_up(self, batch: GroupBatch, code: Code) -> None:
        for connection, sized, _ in batch.commits:
            connection.answer_by_handler(sized)  # which says why
        for deliver in batch.markers:
            deliver(Code.NOT_LEADER_OR_FOLLOWER if code is Code.NOT_COORDINATOR else code)

    # -- transactions

    def execute_in_transaction(
        self, command: commands.TxnCommitOffsets, verified: Verification | None
    ) -> None:
        """Decide a TxnOffsetCommit; its records go out at once, in a batch of their own (TX-7, RT-5)."""
        writer = Writer(command.producer_id, command.producer_epoch, verified)

        def commit() -> None:
            if self.status != self.ACTIVE:
                deliver = self.calls.pop(command.call, None)  # unless it has been told
                if deliver is not None:
                    deliver(self.unavailable())
                return
            if self._gather(command) is None:
                return  # whoever waits has been told
            if self.records.count:
                self._append_gathered(writer=writer)
            else:
                self._settle_gathered()

        self._alone(commit)

    def _alone(self, act: Callable[[], None]) -> None:
        """Act behind everything that was decided before, which is appended by then. Nobody is let go between
        the two: who is may have more decided.
        """
        self._append_gathered()
        if self.records.count:  # what a failed append has led to goes out next
            self.scheduler.call_soon(lambda: self._alone(act))
        else:
            if self._in_flight:  # what needs no record lasts with that: the log may refuse what is to come
                self._in_flight.append(self._take_pending())
            act()
        self._let_go()

    def end_transaction(self, end: TransactionEnd, deliver: Callable[[Code], None]) -> None:
        """Append the marker of a transaction's end and let its offsets count, or drop them (OM-3, RT-7)."""
        self._alone(partial(self._end, end, deliver))

    def _end(self, end: TransactionEnd, deliver: Callable[[Code], None]) -> None:
        if self.status != self.ACTIVE:
            deliver(Code.NOT_LEADER_OR_FOLLOWER)
            return
        before, pending = self.shard.journal.mark(), self.shard.pending.keys_of(end.producer_id)
        command = commands.EndTransaction(producer_id=end.producer_id, commit=end.commit)
        self.shard.perform(command, self.clock.now_ms() - self._stood_ms)
        marker = end.marker(self.clock.wall_ms())
        try:
            appended = self._append_batch(marker, transaction_version=end.transaction_version)
        except AppendRefused as refused:
            self.shard.undo_to(before)
            deliver(refused.code)
            return
        if not end.commit:
            ended = (topic for _, topic, _ in pending)
            self._ended |= dict.fromkeys(ended, appended.last_offset + 1)
        self.pending.markers.append(deliver)
        self._appended(appended)

    # -- coming and going

    def _replay(self) -> Pieces[None]:
        loader, wall_ms = Loader(self.shard), self.clock.wall_ms()
        yield from self._read_log(lambda piece: loader.read(piece, wall_ms))
        if self.status != self.LOADING:
            return
        yield from loader.settle(wall_ms)
        if self.status != self.LOADING:
            return
        self._loaded_upto = self.log.end_offset
        skipped = sum(self.shard.skipped.values())
        if skipped:
            log.warning(
                "%s: left as found: %s of kinds that are not known here (%s)",
                self,
                counted(skipped, "record"),
                ", ".join(map(str, sorted(self.shard.skipped))),
            )

    def _revive(self) -> Pieces[None]:
        """Begin the sessions of loaded groups, some at a time (LO-4)."""
        group_ids = tuple(self.shard.groups)
        for at in range(0, len(group_ids), GROUPS_STARTED_AT_ONCE):
            if self.status != self.LOADING:
                return
            now_ms = self.clock.now_ms()
            wall_ms = self.replica_manager.dated_ms(now_ms)
            observer = Observer(self.shard, wall_ms, self.epoch)
            some = group_ids[at : at + GROUPS_STARTED_AT_ONCE]
            decision = self.shard.loaded(now_ms, some, observer, wall_ms=wall_ms)
            stories = self.coordinator.stories
            self.pending.effects += stories.effects(observer, self.shard, None, decision, wall_ms)
            self._set_timers(decision)
            yield
        yield from self.forgetting.forget_outdated()

    @property
    def part_bytes(self) -> int:
        """How much of what is done in parts is done between two stops, by `weight_of`."""
        return min(self.batch_bytes, PART_BYTES)

    def carry_out_in_parts(
        self, command: commands.CleanOffsets | commands.TopicsDeleted
    ) -> Generator[None, None, bool]:
        """Carry out what need not be done at once: a part at a time (XP-10). Return whether it was anything.

        It ends where the log refuses a part: what is left waits for whoever asks next.
        """
        part = replace(command, most_bytes=self.part_bytes)
        decision = self._gather(part)
        found = decision is not None and bool(decision.records)
        while decision is not None and decision.more:
            taken = self._append_gathered()
            self._let_go()
            if not taken:
                return found
            yield
            if self.status not in (self.LOADING, self.ACTIVE):
                return found
            decision = self._gather(part)
        if decision is not None:
            self._go_on()
        return found

    def inherit(self, before: ShardHost) -> None:
        """Go on with what is still to be dropped."""
        self.forgetting.inherit(before.forgetting)

    def begin(self) -> None:
        """Answer from now on; not before nobody can be told what was committed for an earlier topic."""
        if self.forgetting.outdated():
            again_ms = self.clock.now_ms() + AGAIN_MS
            self.purgatory.arm(("begin", self._watched), again_ms, self._begin_later)
        else:
            super().begin()
            self.forgetting.forget_gone_soon()

    def _begin_later(self, _: object, now_ms: int) -> None:
        def pieces() -> Pieces[None]:
            yield from self.forgetting.forget_outdated()
            if self.status == self.LOADING:
                self.begin()

        self.scheduler.work(pieces())

    def make_ends_certain(self, names: Set[str]) -> None:
        """Have no crash bring back what was committed for topics and has ended, or was refused: a loss of
        power would take what has ended the commits, and leave them. Raises `StorageFailed`.
        """
        flushed = self.log.recovery_point
        self._ended = {name: upto for name, upto in self._ended.items() if upto > flushed}
        doubtful = self._loaded_upto > flushed or self.log.may_bring_back
        if doubtful or not names.isdisjoint(self._ended):
            self.log.flush()

    def _holdings(self) -> str:
        return counted(len(self.shard.groups), "group")

    def unload(self) -> None:
        """Let go of the shard: whoever waits is sent elsewhere, and nothing comes due any more (DE-6)."""
        stories, wall_ms = self.coordinator.stories, self.clock.wall_ms()
        stories.handed_over(self.shard.groups, wall_ms, lasts=not self.is_appending)
        decision = self.shard.unload()
        self._set_timers(decision)
        self._deliver(decision.replies)
        super().unload()


class Coordinator(ShardsOfTopic[ShardHost]):
    """Every shard of this node, and the way from a group id to its shard."""

    topic = OFFSETS_TOPIC

    def __init__(
        self,
        parts: CoordinatorParts,
        *,
        stories: GroupStories,
        new_uuid: Callable[[], UUID],
        loaded: Callable[[], None],
    ) -> None:
        """`loaded` is called once the groups have been loaded."""
        super().__init__(parts, partition_count=parts.settings.offsets_topic_num_partitions)
        self.stories = stories
        self.new_uuid = new_uuid
        self._loaded = loaded
        self._cleaning = False
        self._load_what_is_led()
        self._clean_later()

    def _new_host(self, partition: int, *, status: str, epoch: int) -> ShardHost:
        return ShardHost(self, partition, status=status, epoch=epoch)

    def _all_loaded(self) -> None:
        super()._all_loaded()
        self._loaded()

    def end_transaction(self, partition: int, end: TransactionEnd, deliver: Callable[[Code], None]) -> None:
        """Write a transaction's marker into a partition, and let what it committed there count or not (OM-3).

        A shard that is loading or elsewhere answers as Kafka's does: the partition has no leader here.
        """
        host = self.host_at(partition)
        if host.unavailable():
            mark("marker-put-off")
            deliver(Code.NOT_LEADER_OR_FOLLOWER)
            return
        host.end_transaction(end, deliver)

    def flush_all(self) -> None:
        """Append whatever is decided and not yet appended."""
        super().flush_all()
        self.stories.topic.flush()

    # -- the background

    def topics_gone(self, gone: Mapping[UUID, str]) -> None:
        """Have every shard drop what was committed for topics that a cluster has no more, names by id (OM-7).

        What is left where the news comes late, or the log refuses, does not count for the next of the name:
        its id is another.
        """
        for host in tuple(self.hosts.values()):
            host.forgetting.note_gone(gone)

    def topics_deleted(self, names: tuple[str, ...]) -> Pieces[None]:
        """Have every shard drop what was committed for topics that go, before anybody hears it (OM-7).

        Where the log refuses, it stays until a topic of the name is made.
        """
        hosts = tuple(self.hosts.values())
        for host in hosts:
            if host.status == ShardHost.LOADING:
                host.forgetting.note_outdated(names)
            else:
                yield from host.forgetting.forget(frozenset(names))
        for host in hosts:
            yield from host.until_settled()

    def topics_made(self, names: Collection[str]) -> Pieces[frozenset[str]]:
        """Have new topics begin without commits, and return those of which some could not be dropped.

        A topic may have gone without what was committed for it: the broker was killed between the two, or
        the disk refused the second, or a loss of power takes it. Groups would go on in the new one where they
        were in the last.
        """
        wanted, left = frozenset(names), frozenset[str]()
        if any(host.status in ShardHost.HALTED for host in self.hosts.values()):
            return wanted
        forgotten: dict[ShardHost, Forgotten] = {}
        for host in tuple(self.hosts.values()):
            if host.status == ShardHost.LOADING:
                host.forgetting.note_outdated(wanted)
            else:
                forgotten[host] = yield from host.forgetting.forget(wanted)
        for host, found in forgotten.items():  # all land meanwhile
            if not wanted <= INTERNAL_TOPICS:  # those are made within what needs them: it cannot wait
                yield from host.until_settled()
            left |= yield from host.forgetting.left_of(found)
        for host in tuple(self.hosts.values()):
            try:
                host.make_ends_certain(wanted)
            except StorageFailed:
                return wanted
        return left

    def unread(self) -> list[int]:
        """Return the partitions whose commits are not known: they are being loaded, or could not be."""
        return [partition for partition, host in self.hosts.items() if host.status != ShardHost.ACTIVE]

    def _clean_later(self) -> None:
        interval = self.parts.settings.offsets_retention_check_interval_ms
        self.parts.purgatory.arm("clean offsets", self.parts.clock.now_ms() + interval, self._clean)

    def _clean(self, _: object, now_ms: int) -> None:
        if not self._cleaning:
            self._cleaning = True
            self.parts.scheduler.work(self._clean_all())
        self._clean_later()

    def _clean_all(self) -> Pieces[None]:
        """Drop what has expired, a group at a time (XP-10)."""
        try:
            for host in self.active():
                for group_id in tuple(host.shard.groups):
                    if host.status == ShardHost.ACTIVE:
                        yield from host.carry_out_in_parts(commands.CleanOffsets(group_ids=(group_id,)))
                    yield
        finally:
            self._cleaning = False
