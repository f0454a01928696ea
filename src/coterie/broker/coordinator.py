"""The shell around the group core: it carries decisions out over the log of `__consumer_offsets`.

A command is decided, its facts are applied, its durable facts are gathered, and its replies are held until
those are appended. What comes in while the event loop answers one round of requests goes out as one batch
(P-9, RT-5). When the append fails, the facts of the batch are undone, newest first, and the core says what
everybody is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.broker.story import GroupStories
from coterie.broker.topic_names import OFFSETS_TOPIC
from coterie.group.shard import Shard
from coterie.store.log import AppendRefused
from coterie.wire.batches import Record, build_batch, records_of, scan

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.group.commands import Command
    from coterie.group.decision import Decision, Reply, WakeKey
    from coterie.store.files import FileLog

__all__ = ["Coordinator", "ShardHost"]

log = logging.getLogger("coterie.broker")

LOAD_READ_BYTES = 1 << 20
BATCH_OVERHEAD_BYTES = 1 << 10
RECORD_OVERHEAD_BYTES = 32

Deliver = Callable[[Any], None]


class ShardHost:
    """One partition of `__consumer_offsets`: its core, its log, and what is decided but not yet appended."""

    LOADING, ACTIVE, FAILED = "loading", "active", "failed"

    def __init__(self, coordinator: Coordinator, partition: int) -> None:
        self.coordinator = coordinator
        self.node = coordinator.node
        self.partition = partition
        self.shard = Shard(settings=self.node.settings.group_settings(), new_id=lambda: str(uuid4()))
        self.status = self.LOADING
        self.calls: dict[int, Deliver] = {}
        self.records: list[Record] = []
        self._record_bytes = 0
        self._commands: list[Command] = []
        self._replies: list[Reply] = []
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
            decision = self.shard.decide(command, now_ms)
            self._carry_out(decision, command, now_ms)
        except Exception:  # our own mistake: this shard is no longer to be trusted, the others are
            log.exception("%s-%d is taken out of service", OFFSETS_TOPIC, self.partition)
            self.fence()
            return
        if not self.records:
            self._release()
        elif self._record_bytes > self.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self.node.call_soon(self.flush)

    def _carry_out(self, decision: Decision, command: Command, now_ms: int) -> None:
        for fact in decision.facts:
            self.shard.apply(fact)
            for key, value in self.shard.records(fact):
                self.gather(key, value, now_ms)
        self._commands.append(command)
        self._replies.extend(decision.replies)
        for call in decision.dropped:  # JG-21: a newer request took its place
            self.calls.pop(call, None)
        self._set_wakes(decision)
        if decision.facts:
            self.coordinator.stories.watch(self.shard, command, decision, now_ms)

    def gather(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        """Add a record to the batch that goes out next."""
        self.records.append(Record(0, now_ms, key, value))
        self._record_bytes += len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES

    def _set_wakes(self, decision: Decision) -> None:
        purgatory = self.node.purgatory
        for wake in decision.wakes:
            if wake.at_ms is None:
                purgatory.clear(self.timer(wake.key))
            else:
                purgatory.arm(self.timer(wake.key), wake.at_ms, self._ring(wake.key))

    def timer(self, key: Hashable) -> Hashable:
        """Return the name that a deadline of this shard has in the purgatory."""
        return (self.partition, key)

    def _ring(self, key: WakeKey) -> Callable[[int], None]:
        from coterie.group.commands import Expire

        def ring(now_ms: int) -> None:
            if self.status == self.ACTIVE:
                self.execute(Expire(key=key))

        return ring

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
        now_ms = self.node.now_ms()
        batch = build_batch(self.records)
        if len(batch) > self.log.config.max_message_bytes and len(self._commands) == 1:
            limit = self.log.config.max_message_bytes
            raise AppendRefused(Code.MESSAGE_TOO_LARGE, f"{len(batch)} bytes, max.message.bytes is {limit}")
        self.node.append(OFFSETS_TOPIC, self.partition, batch, now_ms=now_ms, origin="coordinator")

    def _release(self) -> None:
        self.shard.settle(self.shard.mark())
        replies = self._take_pending()[1]
        for reply in replies:
            deliver = self.calls.pop(reply.call, None)
            if deliver is not None:
                deliver(reply.answer)

    def _take_pending(self) -> tuple[list[Command], list[Reply]]:
        commands, replies = self._commands, self._replies
        self._commands, self._replies, self.records, self._record_bytes = [], [], [], 0
        self._mark = self.shard.mark()
        return commands, replies

    def _undo(self, code: Code) -> None:
        """Undo the batch, newest fact first, and do what the core says of each of its commands."""
        log.error("%s-%d: append failed with %s", OFFSETS_TOPIC, self.partition, code.name)
        self.shard.undo_to(self._mark)
        commands, _ = self._take_pending()
        now_ms = self.node.now_ms()
        for command in commands:
            decision = self.shard.append_failed(command, code, now_ms)
            self._carry_out(decision, command, now_ms)
        self._commands.clear()
        if self.records:
            self._scheduled = True
            self.node.call_soon(self.flush)
        else:
            self._release()

    def fence(self) -> None:
        """Take this shard out of service: nothing more is appended, and whoever waits is sent elsewhere."""
        self.status = self.FAILED
        self._take_pending()
        waiting, self.calls = self.calls, {}
        for deliver in waiting.values():
            deliver(Code.NOT_COORDINATOR)

    # -- loading

    def load(self) -> Iterator[None]:
        """Replay the log a piece at a time (LO-1); whoever asks meanwhile is told to come back (LO-9)."""
        log_ = self.log
        offset = log_.start_offset
        try:
            while offset < log_.end_offset:
                piece = log_.read(offset, max_bytes=LOAD_READ_BYTES)
                for at, header in scan(piece):
                    if not header.control:
                        records = records_of(piece, at)
                        self.shard.load(((r.key or b"", r.value) for r in records), self.node.now_ms())
                    offset = header.last_offset + 1
                    yield
        except Corrupt:
            log.exception("%s-%d cannot be loaded", OFFSETS_TOPIC, self.partition)
            self.status = self.FAILED
            return
        now_ms = self.node.now_ms()
        self.status = self.ACTIVE
        self._mark = self.shard.mark()
        decision = self.shard.loaded(now_ms)
        for fact in decision.facts:
            self.shard.apply(fact)
        self._set_wakes(decision)
        self._release()


class Coordinator:
    """Every shard of this node, and the way from a group id to its shard."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.partition_count = node.settings.offsets_topic_num_partitions
        self.hosts: dict[int, ShardHost] = {}
        self.stories = GroupStories(node)
        self._calls = 0
        self._loading: Iterator[None] | None = None
        self._start()

    def _start(self) -> None:
        """Load what `__consumer_offsets` holds, in slices between which requests are answered."""
        topic = self.node.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            self.partition_count = topic.partitions
            written = [
                p for p in range(topic.partitions) if self._log(p).end_offset > self._log(p).start_offset
            ]
            for partition in written:
                self.hosts[partition] = ShardHost(self, partition)
            self._loading = self._load_all()
            self.node.call_soon(self._load_slice)
        self._clean(self.node.now_ms())

    def _log(self, partition: int) -> FileLog:
        return self.node.store.logs[TopicPartition(OFFSETS_TOPIC, partition)]

    def _load_all(self) -> Iterator[None]:
        for host in tuple(self.hosts.values()):
            yield from host.load()

    def _load_slice(self) -> None:
        """Load for at most 5 ms, then let the event loop answer requests."""
        assert self._loading is not None
        until = self.node.now_ms() + 5
        for _ in self._loading:
            if self.node.now_ms() >= until:
                self.node.call_soon(self._load_slice)
                return
        self._loading = None

    # -- the way in

    def host_of(self, group_id: str) -> ShardHost:
        """Return the shard that a group id hashes to (P-6)."""
        self.node.ensure_internal(OFFSETS_TOPIC)
        partition = coordinator_partition(group_id, partition_count=self.partition_count)
        host = self.hosts.get(partition)
        if host is None:  # its log is empty: there is nothing to load
            host = self.hosts[partition] = ShardHost(self, partition)
            host.status = ShardHost.ACTIVE
        return host

    def new_call(self, host: ShardHost, deliver: Deliver) -> int:
        """Return the number under which the core answers; `deliver` is called with the answer, once."""
        self._calls += 1
        host.calls[self._calls] = deliver
        return self._calls

    def flush_all(self) -> None:
        """Append whatever is decided and not yet appended."""
        for host in self.hosts.values():
            host.flush()

    # -- the background

    def topic_deleted(self, name: str) -> None:
        """Have every shard drop what was committed for a topic that is gone (OM-7)."""
        from coterie.group.commands import TopicsDeleted

        for host in self.active():
            host.execute(TopicsDeleted(topics=(name,)))

    def active(self) -> list[ShardHost]:
        """Return the shards that answer."""
        return [host for host in self.hosts.values() if host.status == ShardHost.ACTIVE]

    def _clean(self, now_ms: int) -> None:
        from coterie.group.commands import CleanOffsets

        for host in self.active():
            host.execute(CleanOffsets())
        interval = self.node.settings.offsets_retention_check_interval_ms
        self.node.purgatory.arm("clean offsets", now_ms + interval, self._clean)
