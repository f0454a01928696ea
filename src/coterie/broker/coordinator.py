"""The shell around the group core: it carries decisions out over the log of `__consumer_offsets`.

A command is decided, its facts are applied, its durable facts are gathered, and its replies are held until
those are appended. What comes in while the event loop answers one round of requests goes out as one batch
(P-9, RT-5). When the append fails, the facts of the batch are undone, newest first, and the core says what
everybody is answered.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.marks import mark
from coterie.broker.story import GroupStories, Look
from coterie.broker.topic_names import OFFSETS_TOPIC
from coterie.group import commands, facts
from coterie.group.loading import Loader
from coterie.group.shard import Shard
from coterie.store.log import AppendRefused, StorageFailed
from coterie.wire.batches import build_marker
from coterie.wire.growing import GrowingBatch

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.broker.quick_commits import Asker
    from coterie.broker.story import Scene
    from coterie.group.commands import Command
    from coterie.group.decision import Decision, Reply, WakeKey
    from coterie.group.records import RawRecord
    from coterie.store.files import FileLog
    from coterie.store.producers import Verification

__all__ = ["Coordinator", "ShardHost"]

log = logging.getLogger("coterie.broker")

LOAD_READ_BYTES = 1 << 20
BATCH_OVERHEAD_BYTES = 1 << 10
RECORD_OVERHEAD_BYTES = 64
SLICE_MS = 4  # of loading and cleaning between requests; what is done at once takes about one more
GROUPS_STARTED_AT_ONCE = 50
# A transaction's coordinator does not know these; what it makes of this one is to try again (RT-7).
NOT_READY = {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR}

Deliver = Callable[[Any], None]


class Writer(NamedTuple):
    """Under whose name the next batch goes out, and what shows that its transaction allows it (TX-7)."""

    producer_id: int
    producer_epoch: int
    verified: Verification | None


class Bell:
    """Rings for one deadline of a shard. A class, because a hundred thousand closures would be heavy."""

    __slots__ = ("host", "key")

    def __init__(self, host: ShardHost, key: WakeKey) -> None:
        self.host, self.key = host, key

    def __call__(self, now_ms: int) -> None:
        if self.host.status == ShardHost.ACTIVE:
            self.host.execute(commands.Expire(key=self.key))


class ShardHost:
    """One partition of `__consumer_offsets`: its core, its log, and what is decided but not yet appended."""

    LOADING, ACTIVE, FAILED, AWAY = "loading", "active", "failed", "away"

    def __init__(
        self, coordinator: Coordinator, partition: int, *, status: str = LOADING, epoch: int = 0
    ) -> None:
        self.coordinator = coordinator
        self.node = coordinator.node
        self.partition = partition
        self.epoch = epoch  # in which this node leads the partition
        self.shard = Shard(
            settings=self.node.settings.group_settings(), new_id=lambda: str(self.node.new_uuid())
        )
        self.status = status
        self.calls: dict[int, Deliver] = {}
        self.records = GrowingBatch()
        self._writer: Writer | None = None
        self._commands: list[Command] = []
        self._replies: list[Reply] = []
        self._quick: list[tuple[Asker, bytes, bytes]] = []  # who committed quickly, what, and the answer
        self._scenes: list[Scene] = []
        self._held: list[Callable[[], None]] = []
        self._mark = self.shard.mark()
        self._scheduled = False

    @property
    def log(self) -> FileLog:
        """The log behind this shard."""
        return self.node.store.logs[TopicPartition(OFFSETS_TOPIC, self.partition)]

    # -- live

    def unavailable(self) -> Code:
        """Return why this shard answers nobody, NONE when it does (P-7)."""
        if self.status == self.ACTIVE:
            return Code.NONE
        loading = self.status == self.LOADING
        return Code.COORDINATOR_LOAD_IN_PROGRESS if loading else Code.NOT_COORDINATOR

    def execute(self, command: Command) -> None:
        """Decide, apply, gather; the replies leave with the batch, or at once when there is nothing to wait
        for.
        """
        now_ms = self.node.now_ms()
        try:
            self._perform(command, now_ms)
        except Exception:  # our own mistake: this shard is no longer to be trusted, the others are
            told = self.coordinator.stories.recount(getattr(command, "group_id", ""))
            log.exception("%s-%d is taken out of service\n%s", OFFSETS_TOPIC, self.partition, told)
            self.fence()
            return
        self._go_on()

    def _perform(self, command: Command, now_ms: int) -> None:
        """Decide and apply. Records for which the batch has no room fail alone, if they do (RT-5)."""
        before, look = self.shard.mark(), Look(self.shard, now_ms)
        decision, records = self.shard.perform(command, now_ms, look)
        if records and self.records and not self.has_room(weight_of(records)):
            self.shard.take_back(before)
            self.flush()  # which may fail, and change what is to be decided
            look = Look(self.shard, now_ms)
            decision, records = self.shard.perform(command, now_ms, look)
        self._carry_out(decision, records, look, command, now_ms)

    def has_room(self, weight: int) -> bool:
        """Return whether so many bytes more go into the batch."""
        return self.records.size + weight <= self.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES

    def commit_quickly(self, fact: facts.OffsetsCommitted, asker: Asker, sized: bytes, answer: bytes) -> None:
        """Carry out a plain commit, whose records are gathered; `asker` gets the answer when they last."""
        self.shard.apply(fact)
        self._quick.append((asker, sized, answer))
        self._go_on()

    def _go_on(self) -> None:
        """Let go what waits for nothing; have the batch appended after this round of requests."""
        if not self.records:
            self._release()
        elif self.records.size > self.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self.node.call_soon(self.flush)

    def _apply(self, decision: Decision, look: Look) -> list[RawRecord]:
        """Apply what was only decided, and return the records of it."""
        records: list[RawRecord] = []
        for fact in decision.facts:
            look(fact)
            self.shard.apply(fact)
            records += self.shard.records(fact)
        return records

    def _carry_out(
        self, decision: Decision, records: list[RawRecord], look: Look, command: Command, now_ms: int
    ) -> None:
        """Do what a decision, whose facts are applied, asks for."""
        for key, value in records:
            self.records.add(key, value, now_ms)
        self._commands.append(command)
        self._replies += decision.replies
        for call in decision.dropped:  # JG-21: a newer request took its place
            self.calls.pop(call, None)
        self._set_wakes(decision)
        if look.befores:
            self._scenes += self.coordinator.stories.watch(look, self.shard, command, decision, now_ms)

    def _set_wakes(self, decision: Decision) -> None:
        purgatory = self.node.purgatory
        for wake in decision.wakes:
            if wake.at_ms is None:
                purgatory.clear(wake.key)  # no other shard has such a key: it names the group
                continue
            bell = purgatory.ring_of(wake.key)
            if isinstance(bell, Bell) and bell.host is self:
                purgatory.move(wake.key, wake.at_ms)
            else:
                purgatory.arm(wake.key, wake.at_ms, Bell(self, wake.key))

    def flush(self) -> None:
        """Append what has been gathered and let the replies go, or undo it and answer with the failure."""
        self._scheduled = False
        if not self.records:
            return
        try:
            self._append()
        except AppendRefused as refused:
            self._undo(refused.code)
            return
        self._release()

    def _append(self) -> None:
        writer = self._writer
        if writer is None:
            self._append_batch(self.records.build())
            return
        batch = self.records.build(
            producer_id=writer.producer_id, producer_epoch=writer.producer_epoch, transactional=True
        )
        self._append_batch(batch, verified=writer.verified)

    def _append_batch(self, batch: bytes, **terms: Any) -> None:
        now_ms = self.node.now_ms()
        self.node.append(
            OFFSETS_TOPIC,
            self.partition,
            batch,
            now_ms=now_ms,
            leader_epoch=self.epoch,
            origin="coordinator",
            **terms,
        )

    def _release(self) -> None:
        self.shard.settle(self.shard.mark())
        scenes, quick = self._scenes, self._quick
        replies = self._take_pending()[1]
        if scenes:  # before the replies: a client may have sent its next request already
            self.coordinator.stories.tell(scenes)
        for reply in replies:
            deliver = self.calls.pop(reply.call, None)
            if deliver is not None:
                deliver(reply.answer)
        for asker, _, answer in quick:
            asker.paid(answer)
        if self._held:
            self._let_go()

    def hold(self, ask_again: Callable[[], None]) -> None:
        """Put off what may not be answered before everything that is decided is appended (P-9)."""
        self._held.append(ask_again)

    def _let_go(self) -> None:
        held, self._held = self._held, []
        for ask_again in held:
            ask_again()

    def _take_pending(self) -> tuple[list[Command], list[Reply]]:
        commands, replies = self._commands, self._replies
        self._commands, self._replies = [], []
        if self.records:
            self.records = GrowingBatch()
        self._scenes, self._quick = [], []
        self._mark = self.shard.mark()
        return commands, replies

    def _undo(self, code: Code) -> None:
        """Undo the batch, newest fact first, and do what the core says of each of its commands."""
        log.error("%s-%d: append failed with %s", OFFSETS_TOPIC, self.partition, code.name)
        self.shard.undo_to(self._mark)
        quick = self._quick
        commands, _ = self._take_pending()
        now_ms = self.node.now_ms()
        for command in commands:
            look, decision = Look(self.shard, now_ms), self.shard.append_failed(command, code, now_ms)
            self._carry_out(decision, self._apply(decision, look), look, command, now_ms)
        self._commands.clear()
        for asker, sized, _ in quick:  # the general way finds the words
            self.node.call_soon(partial(asker.answer_at_length, sized))
        if self.records:
            self._scheduled = True
            self.node.call_soon(self.flush)
        else:
            self._release()

    def fence(self) -> None:
        """Take this shard out of service: nothing more is appended, and whoever waits is sent elsewhere."""
        self.status = self.FAILED
        quick = self._quick
        self._take_pending()
        waiting, self.calls = self.calls, {}
        for deliver in waiting.values():
            deliver(Code.NOT_COORDINATOR)
        for asker, sized, _ in quick:
            asker.answer_at_length(sized)
        self._let_go()

    # -- transactions

    def execute_in_transaction(
        self, command: commands.TxnCommitOffsets, verified: Verification | None
    ) -> None:
        """Decide a TxnOffsetCommit; its records go out at once, in a batch of their own (TX-7, RT-5)."""
        self._alone(lambda: self._execute_in_transaction(command, verified))

    def _execute_in_transaction(
        self, command: commands.TxnCommitOffsets, verified: Verification | None
    ) -> None:
        if self.status != self.ACTIVE:
            return  # whoever waits has been told
        self._writer = Writer(command.producer_id, command.producer_epoch, verified)
        try:
            self.execute(command)
            self.flush()
        finally:
            self._writer = None

    def _alone(self, act: Callable[[], None]) -> None:
        """Act once everything that was decided before is appended."""
        self.flush()
        if self.records:  # what a failed append has led to goes out next
            self.node.call_soon(lambda: self._alone(act))
        else:
            act()

    def end_transaction(
        self,
        command: commands.EndTransaction,
        *,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int,
        deliver: Callable[[Code], None],
    ) -> None:
        """Append the marker of a transaction's end and let its offsets count, or drop them (OM-3, RT-7)."""

        def end() -> None:
            marker = build_marker(
                commit=command.commit,
                producer_id=command.producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                timestamp=self.node.now_ms(),
            )
            deliver(self._end(command, marker, transaction_version))

        self._alone(end)

    def _end(self, command: commands.EndTransaction, marker: bytes, transaction_version: int) -> Code:
        if self.status != self.ACTIVE:
            return Code.NOT_LEADER_OR_FOLLOWER
        before = self.shard.mark()
        self.shard.perform(command, self.node.now_ms())
        try:
            self._append_batch(marker, transaction_version=transaction_version)
        except AppendRefused as refused:
            self.shard.undo_to(before)
            return refused.code
        self._release()
        return Code.NONE

    # -- coming and going

    def load(self) -> Iterator[None]:
        """Replay the log a piece at a time (LO-1); whoever asks meanwhile is told to come back (LO-9)."""
        began_ms = self.node.now_ms()
        try:
            yield from self._replay()
        except (Corrupt, StorageFailed):
            mark("load-failed")
            log.exception("%s-%d cannot be loaded", OFFSETS_TOPIC, self.partition)
            self.status = self.FAILED
            return
        if self.status != self.LOADING:
            return
        for group_ids in in_slices(tuple(self.shard.groups), GROUPS_STARTED_AT_ONCE):
            self._begin(group_ids)
            yield
        self.status = self.ACTIVE
        log.info(
            "%s-%d: loaded %d groups from offsets %d to %d in %d ms",
            OFFSETS_TOPIC,
            self.partition,
            len(self.shard.groups),
            self.log.start_offset,
            self.log.end_offset,
            self.node.now_ms() - began_ms,
        )
        self._go_on()

    def _replay(self) -> Iterator[None]:
        log_, loader, now_ms = self.log, Loader(self.shard), self.node.now_ms()
        offset = log_.start_offset
        while offset < log_.end_offset and self.status == self.LOADING:
            piece = log_.read(offset, max_bytes=LOAD_READ_BYTES)
            if not piece:
                break  # compaction has left nothing behind this
            offset = yield from loader.read(piece, now_ms)
        yield from loader.settle(now_ms)
        skipped = sum(self.shard.skipped.values())
        if skipped:
            log.warning(
                "%s-%d: %d records are of kinds that are not known here (%s); they are left as they are",
                OFFSETS_TOPIC,
                self.partition,
                skipped,
                ", ".join(map(str, sorted(self.shard.skipped))),
            )

    def _begin(self, group_ids: tuple[str, ...]) -> None:
        """Begin the sessions of loaded groups (LO-4)."""
        now_ms = self.node.now_ms()
        look, decision = Look(self.shard, now_ms), self.shard.loaded(now_ms, group_ids)
        self._apply(decision, look)
        self._scenes += self.coordinator.stories.watch(look, self.shard, None, decision, now_ms)
        self._set_wakes(decision)

    def unload(self) -> None:
        """Let go of the shard: whoever waits is sent elsewhere, and nothing comes due any more (DE-6)."""
        decision = self.shard.unload()
        for fact in decision.facts:
            self.shard.apply(fact)
        self._set_wakes(decision)
        for reply in decision.replies:
            deliver = self.calls.pop(reply.call, None)
            if deliver is not None:
                deliver(reply.answer)
        self.fence()
        self.status = self.AWAY


def weight_of(records: Iterable[RawRecord]) -> int:
    """Return about how many bytes the records add to a batch, rather too many."""
    return sum(RECORD_OVERHEAD_BYTES + len(key) + len(value or b"") for key, value in records)


def in_slices(items: tuple[str, ...], size: int) -> Iterator[tuple[str, ...]]:
    """Yield the items, so many at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


class Coordinator:
    """Every shard of this node, and the way from a group id to its shard."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.partition_count = node.settings.offsets_topic_num_partitions
        self.hosts: dict[int, ShardHost] = {}
        self.stories = GroupStories(node)
        self._calls = 0
        self._to_load: deque[ShardHost] = deque()
        self._loading: Iterator[None] | None = None
        self._cleaning: Iterator[None] | None = None
        self._start()

    def _start(self) -> None:
        """Load what `__consumer_offsets` holds, in slices between which requests are answered."""
        topic = self.node.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            self.partition_count = topic.partitions
            for partition in range(topic.partitions):
                if self._is_written(partition) and self.node.leadership.leads(OFFSETS_TOPIC, partition):
                    self._load(partition, epoch=0)
        self._clean_later()

    def _log(self, partition: int) -> FileLog:
        return self.node.store.logs[TopicPartition(OFFSETS_TOPIC, partition)]

    def _is_written(self, partition: int) -> bool:
        log_ = self._log(partition)
        return log_.end_offset > log_.start_offset

    # -- leadership

    def elected(self, partition: int, leader_epoch: int) -> None:
        """Load a partition that this node has come to lead; an epoch that is no news is ignored (LO-8)."""
        before = self.hosts.get(partition)
        if before is None or before.epoch < leader_epoch:
            if before is not None:
                before.unload()
            self._load(partition, epoch=leader_epoch)

    def resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        """Let go of a partition that another node leads by now, from that epoch on if given (LO-8, DE-6)."""
        host = self.hosts.get(partition)
        if host is not None and (leader_epoch is None or host.epoch < leader_epoch):
            del self.hosts[partition]
            host.unload()

    # -- loading

    def _load(self, partition: int, *, epoch: int) -> ShardHost:
        host = self.hosts[partition] = ShardHost(self, partition, epoch=epoch)
        self._to_load.append(host)
        if self._loading is None:
            self._loading = self._load_all()
            self.node.call_soon(self._load_slice)
        return host

    def _load_all(self) -> Iterator[None]:
        while self._to_load:
            yield from self._to_load.popleft().load()

    def _load_slice(self) -> None:
        """Load for at most 5 ms, then let the event loop answer requests."""
        assert self._loading is not None
        until = self.node.now_ms() + SLICE_MS
        for _ in self._loading:
            if self.node.now_ms() >= until:
                self.node.call_soon(self._load_slice)
                return
        self._loading = None
        self.node.groups_loaded()

    # -- the way in

    def host_of(self, group_id: str) -> ShardHost:
        """Return the shard that a group id hashes to (P-6)."""
        self.node.ensure_internal(OFFSETS_TOPIC)
        return self.host_at(coordinator_partition(group_id, partition_count=self.partition_count))

    def host_at(self, partition: int) -> ShardHost:
        """Return the shard of a partition that exists; if it is another's, one that sends everybody there."""
        host = self.hosts.get(partition)
        if host is not None:
            return host
        if not self.node.leadership.leads(OFFSETS_TOPIC, partition):
            return ShardHost(self, partition, status=ShardHost.AWAY)
        if self._is_written(partition):
            return self._load(partition, epoch=0)
        host = self.hosts[partition] = ShardHost(self, partition, status=ShardHost.ACTIVE)
        return host

    def new_call(self, host: ShardHost, deliver: Deliver) -> int:
        """Return the number under which the core answers; `deliver` is called with the answer, once."""
        self._calls += 1
        host.calls[self._calls] = deliver
        return self._calls

    def end_transaction(
        self,
        partition: int,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        deliver: Callable[[Code], None],
        transaction_version: int = 0,
    ) -> None:
        """Write a transaction's marker into a partition, and let what it committed there count or not (OM-3).

        A shard that is loading or elsewhere answers as Kafka's does: the partition has no leader here.
        """
        host = self.host_at(partition)
        if host.unavailable():
            mark("marker-put-off")
            deliver(Code.NOT_LEADER_OR_FOLLOWER)
            return
        host.end_transaction(
            commands.EndTransaction(producer_id=producer_id, commit=commit),
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            deliver=deliver,
        )

    def flush_all(self) -> None:
        """Append whatever is decided and not yet appended."""
        for host in tuple(self.hosts.values()):
            host.flush()
        self.stories.topic.flush()

    # -- the background

    def topic_deleted(self, name: str) -> None:
        """Have every shard drop what was committed for a topic that is gone (OM-7)."""
        for host in self.active():
            host.execute(commands.TopicsDeleted(topics=(name,)))

    def active(self) -> list[ShardHost]:
        """Return the shards that answer."""
        return [host for host in self.hosts.values() if host.status == ShardHost.ACTIVE]

    def _clean_later(self) -> None:
        interval = self.node.settings.offsets_retention_check_interval_ms
        self.node.purgatory.arm("clean offsets", self.node.now_ms() + interval, self._clean)

    def _clean(self, now_ms: int) -> None:
        if self._cleaning is None:
            self._cleaning = self._clean_all()
            self._clean_slice()
        self._clean_later()

    def _clean_all(self) -> Iterator[None]:
        """Drop what has expired, a group at a time (XP-10)."""
        for host in self.active():
            for group_id in tuple(host.shard.groups):
                if host.status == ShardHost.ACTIVE:
                    host.execute(commands.CleanOffsets(group_ids=(group_id,)))
                yield

    def _clean_slice(self) -> None:
        """Clean for at most 5 ms, then let the event loop answer requests."""
        assert self._cleaning is not None
        until = self.node.now_ms() + SLICE_MS
        for _ in self._cleaning:
            if self.node.now_ms() >= until:
                self.node.call_soon(self._clean_slice)
                return
        self._cleaning = None
