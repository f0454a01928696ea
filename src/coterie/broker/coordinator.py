"""The shell around the group core: it carries decisions out over the log of `__consumer_offsets`.

A command is decided, its facts are applied, its durable facts are gathered, and its replies are held until
those are appended; `shards.py` has what is alike for transactions. Here is what groups have besides: quick
commits, offsets committed in transactions, stories, and the cleaning of what has expired.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from coterie.base.codes import Code
from coterie.base.marks import mark
from coterie.broker.shards import HostedShard, ShardsOfTopic
from coterie.broker.story import GroupStories, Look
from coterie.broker.topic_names import OFFSETS_TOPIC
from coterie.group import commands, facts
from coterie.group.decision import Reply
from coterie.group.loading import Loader
from coterie.group.shard import Shard
from coterie.store.log import AppendRefused
from coterie.wire.batches import build_marker

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.broker.pieces import Pieces
    from coterie.broker.quick_commits import Asker
    from coterie.broker.shards import Deliver
    from coterie.broker.story import Scene
    from coterie.group.commands import Command
    from coterie.group.decision import Decision, WakeKey
    from coterie.group.records import RawRecord
    from coterie.store.producers import Verification

__all__ = ["Coordinator", "ShardHost"]

log = logging.getLogger("coterie.broker")

RECORD_OVERHEAD_BYTES = 64
GROUPS_STARTED_AT_ONCE = 50
COMMITS_LOOKED_AT_ONCE = 2_000
GROUP_COUNTS_AS = 20  # so many commits: looking at a group costs something, too


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


class ShardHost(HostedShard[commands.Command, Reply]):
    """One partition of `__consumer_offsets`."""

    shard: Shard

    def __init__(self, coordinator: Coordinator, partition: int, *, status: str, epoch: int) -> None:
        node = coordinator.node
        core = Shard(settings=node.settings.group_settings(), new_id=lambda: str(node.new_uuid()))
        super().__init__(coordinator, core, partition, status=status, epoch=epoch)
        self.coordinator = coordinator
        self._writer: Writer | None = None
        self._quick: list[tuple[Asker, bytes, bytes]] = []  # who committed quickly, what, and the answer
        self._scenes: list[Scene] = []
        self._held: list[Callable[[], None]] = []
        # Topics that were deleted or made while this was loading: what it finds of them is of earlier ones.
        self._outdated: dict[str, None] = {}

    # -- live

    def _perform(self, command: Command, now_ms: int) -> None:
        """Decide and apply. Records for which the batch has no room fail alone, if they do (RT-5)."""
        wall_ms = self.node.dated_ms(now_ms)
        before, look = self.shard.mark(), Look(self.shard, wall_ms)
        decision, records = self.shard.perform(command, now_ms, look, wall_ms=wall_ms)
        if records and self.records and not self.has_room(weight_of(records)):
            self.shard.take_back(before)
            self.flush()  # which may fail, and change what is to be decided
            look = Look(self.shard, wall_ms)
            decision, records = self.shard.perform(command, now_ms, look, wall_ms=wall_ms)
        self._commands.append(command)
        self._carry_out(decision, records, look, command, wall_ms)

    def _recount(self, command: Command) -> str:
        return self.coordinator.stories.recount(getattr(command, "group_id", ""))

    def commit_quickly(self, fact: facts.OffsetsCommitted, asker: Asker, sized: bytes, answer: bytes) -> None:
        """Carry out a plain commit, whose records are gathered; `asker` gets the answer when they last."""
        self.shard.apply(fact)
        self._quick.append((asker, sized, answer))
        self._go_on()

    def _apply(self, decision: Decision, look: Look) -> list[RawRecord]:
        """Apply what was only decided, and return the records of it."""
        records: list[RawRecord] = []
        for fact in decision.facts:
            look(fact)
            self.shard.apply(fact)
            records += self.shard.records(fact)
        return records

    def _carry_out(
        self, decision: Decision, records: list[RawRecord], look: Look, command: Command, wall_ms: int
    ) -> None:
        """Do what a decision, whose facts are applied, asks for."""
        for key, value in records:
            self.records.add(key, value, wall_ms)
        self._replies += decision.replies
        for call in decision.dropped:  # JG-21: a newer request took its place
            self.calls.pop(call, None)
        self._set_wakes(decision)
        if look.befores:
            self._scenes += self.coordinator.stories.watch(look, self.shard, command, decision, wall_ms)

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

    def _append(self) -> None:
        writer = self._writer
        if writer is None:
            super()._append()
            return
        batch = self.records.build(
            producer_id=writer.producer_id, producer_epoch=writer.producer_epoch, transactional=True
        )
        self._append_batch(batch, verified=writer.verified)

    def _release(self) -> None:
        replies = self._take_settled()[1]
        scenes, quick = self._scenes, self._quick
        self._scenes, self._quick = [], []
        if scenes:  # before the replies: a client may have sent its next request already
            self.coordinator.stories.tell(scenes)
        if replies:
            self._deliver(replies)
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

    def _undo(self, code: Code) -> None:
        for asker, sized in self._drop_quick():  # the general way finds the words
            self.node.call_soon(partial(asker.answer_at_length, sized))
        super()._undo(code)

    def _drop_quick(self) -> list[tuple[Asker, bytes]]:
        """Forget what would have followed the batch; return who has to be answered in another way."""
        quick, self._quick, self._scenes = self._quick, [], []
        return [(asker, sized) for asker, sized, _ in quick]

    def _after_failure(self, command: Command, code: Code, now_ms: int) -> None:
        wall_ms = self.node.dated_ms(now_ms)
        look = Look(self.shard, wall_ms)
        decision = self.shard.append_failed(command, code, now_ms, wall_ms=wall_ms)
        self._carry_out(decision, self._apply(decision, look), look, command, wall_ms)

    def fence(self) -> None:
        quick = self._drop_quick()
        super().fence()
        for asker, sized in quick:
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
                timestamp=self.node.wall_ms(),
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

    def _replay(self) -> Iterator[None]:
        loader, wall_ms = Loader(self.shard), self.node.wall_ms()
        yield from self._read_log(lambda piece: loader.read(piece, wall_ms))
        yield from loader.settle(wall_ms)
        skipped = sum(self.shard.skipped.values())
        if skipped:
            log.warning(
                "%s: %d records are of kinds that are not known here (%s); they are left as they are",
                self,
                skipped,
                ", ".join(map(str, sorted(self.shard.skipped))),
            )

    def _revive(self) -> Iterator[None]:
        """Begin the sessions of loaded groups, some at a time (LO-4)."""
        group_ids = tuple(self.shard.groups)
        for at in range(0, len(group_ids), GROUPS_STARTED_AT_ONCE):
            if self.status != self.LOADING:
                return
            now_ms = self.node.now_ms()
            wall_ms = self.node.dated_ms(now_ms)
            look = Look(self.shard, wall_ms)
            some = group_ids[at : at + GROUPS_STARTED_AT_ONCE]
            decision = self.shard.loaded(now_ms, some, wall_ms=wall_ms)
            self._apply(decision, look)
            self._scenes += self.coordinator.stories.watch(look, self.shard, None, decision, wall_ms)
            self._set_wakes(decision)
            yield

    def forget_topics(self, names: Iterable[str]) -> None:
        """Drop what groups have committed for topics, now or as soon as it is loaded (OM-7)."""
        if self.status == self.LOADING:
            self._outdated |= dict.fromkeys(names)
        elif self.status == self.ACTIVE:
            self.execute(commands.TopicsDeleted(topics=tuple(names)))

    def begin(self) -> None:
        """Answer from now on."""
        super().begin()
        if self._outdated:
            outdated, self._outdated = self._outdated, {}
            self.forget_topics(outdated)

    def _holdings(self) -> str:
        return f"{len(self.shard.groups)} groups"

    def unload(self) -> None:
        """Let go of the shard: whoever waits is sent elsewhere, and nothing comes due any more (DE-6)."""
        decision = self.shard.unload()
        for fact in decision.facts:
            self.shard.apply(fact)
        self._set_wakes(decision)
        self._deliver(decision.replies)
        super().unload()


def weight_of(records: Iterable[RawRecord]) -> int:
    """Return about how many bytes the records add to a batch, rather too many."""
    return sum(RECORD_OVERHEAD_BYTES + len(key) + len(value or b"") for key, value in records)


class Coordinator(ShardsOfTopic[ShardHost]):
    """Every shard of this node, and the way from a group id to its shard."""

    topic = OFFSETS_TOPIC

    def __init__(self, node: Node) -> None:
        super().__init__(node, partition_count=node.settings.offsets_topic_num_partitions)
        self.stories = GroupStories(node)
        self._calls = 0
        self._cleaning = False
        self._load_what_is_led()
        self._clean_later()

    def _new_host(self, partition: int, *, status: str, epoch: int) -> ShardHost:
        return ShardHost(self, partition, status=status, epoch=epoch)

    def _all_loaded(self) -> None:
        super()._all_loaded()
        self.node.groups_loaded()

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
        super().flush_all()
        self.stories.topic.flush()

    # -- the background

    def topics_deleted(self, names: tuple[str, ...]) -> Iterator[None]:
        """Have every shard drop what was committed for topics that go, before anybody hears it (OM-7)."""
        for host in tuple(self.hosts.values()):
            yield from self._forget(host, frozenset(names))

    def topics_made(self, names: Collection[str]) -> Generator[None, None, frozenset[str]]:
        """Have new topics begin without commits, and return those of which some could not be dropped.

        A topic may have gone without what was committed for it: the broker was killed between the two, or
        the disk refused the second. Groups would go on in the new one where they were in the last.
        """
        left: frozenset[str] = frozenset()
        for host in tuple(self.hosts.values()):
            found = yield from self._forget(host, frozenset(names))
            for _, topics in self._committed(host, found):
                left |= topics
                yield
        return left

    def _forget(self, host: ShardHost, names: frozenset[str]) -> Generator[None, None, frozenset[str]]:
        """Have a shard drop what was committed for topics, and return for which of them it was."""
        found: frozenset[str] = frozenset()
        for group_ids, topics in self._committed(host, names):
            if topics:
                found |= topics
                host.execute(commands.TopicsDeleted(topics=tuple(sorted(topics)), group_ids=group_ids))
                host.flush()
            yield
        if host.status == ShardHost.LOADING:
            host.forget_topics(names)
        return found

    def _committed(
        self, host: ShardHost, names: frozenset[str]
    ) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
        """Yield, some groups at a time, those of a shard that have committed for these topics, and which."""
        if not names or host.status != ShardHost.ACTIVE:
            return
        offsets, pending = host.shard.offsets, host.shard.pending
        found: dict[str, frozenset[str]] = {}
        looked_at = 0
        for group_id in dict.fromkeys((*offsets, *pending.groups())):
            waiting = pending.partitions_of(group_id)
            topics = (offsets.topics_of(group_id) | {topic for topic, _ in waiting}) & names
            if topics:
                found[group_id] = topics
            looked_at += offsets.count_of(group_id) + len(waiting) + GROUP_COUNTS_AS
            if looked_at >= COMMITS_LOOKED_AT_ONCE:
                yield tuple(found), frozenset().union(*found.values())
                if host.status != ShardHost.ACTIVE:
                    return
                found, looked_at = {}, 0
        yield tuple(found), frozenset().union(*found.values())

    def _clean_later(self) -> None:
        interval = self.node.settings.offsets_retention_check_interval_ms
        self.node.purgatory.arm("clean offsets", self.node.now_ms() + interval, self._clean)

    def _clean(self, now_ms: int) -> None:
        if not self._cleaning:
            self._cleaning = True
            self.node.work(self._clean_all())
        self._clean_later()

    def _clean_all(self) -> Pieces[None]:
        """Drop what has expired, a group at a time (XP-10)."""
        try:
            for host in self.active():
                for group_id in tuple(host.shard.groups):
                    if host.status == ShardHost.ACTIVE:
                        host.execute(commands.CleanOffsets(group_ids=(group_id,)))
                    yield
        finally:
            self._cleaning = False
