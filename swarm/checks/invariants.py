"""What must hold, looked at after every step: of answers, of the log, of the coordinator's state, of time.

The checks read the log themselves and remember what was answered. Of the coordinator they see its groups, to
compare, and never ask why it did something.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.runtime.groups import ShardHost
from coterie.client.member import Generation
from coterie.coordinator.group.model import Group, State
from coterie.wire.api.apis import ApiKey
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from swarm.checks.answers import Answers
from swarm.checks.calls import IN_TRANSACTIONS, OF_A_GROUP, Call, Standing, leaving, milliseconds, told
from swarm.checks.comparing import check_owners, compare_flushed, compare_journals, compare_shard, owned
from swarm.checks.doubts import Doubts
from swarm.checks.journal import Entry, Journal
from swarm.checks.watch import GroupWatch, Patience
from swarm.world import Violation

if TYPE_CHECKING:
    from swarm.cluster import Cluster, Process
    from swarm.session import Frame

Era = tuple[int, int]
MINUTE_MS = 60_000
TRANSACTION_MS = 1_000  # what a request waits for the end of the transaction before its own, and then some


class Mistakes(logging.Handler):
    """Catches what the broker logs with a traceback: a mistake of ours, which is not forgiven here."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.caught: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self.caught.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


class Checks:
    """Everything that must hold in one scenario."""

    def __init__(self, cluster: Cluster, mistakes: Mistakes) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.options = cluster.options
        self.journals = {partition: Journal() for partition in range(cluster.options.shards)}
        self._names = [TopicPartition(OFFSETS_TOPIC, partition) for partition in self.journals]
        self.deleting: set[str] = set()
        """Groups that somebody asked to delete, or of which to delete offsets."""
        self._let_in: dict[tuple[str, int], tuple[Era, int]] = {}
        """By member id and generation: the era and the shard's life in which the member was let into it."""
        self.workers: dict[tuple[str, tuple[Era, int], int, TopicPartition], dict[str, int]] = {}
        """Who has worked on a partition as a member of a generation, and since which one."""
        self.timelines: dict[int, int] = dict.fromkeys(self.journals, 0)
        """By partition: how often its log lost something that had been answered."""
        self.doubts = Doubts()
        self._mistakes = mistakes
        self._answers = Answers(self)
        self._calls: dict[Call, None] = {}
        self._asked: set[str] = set()
        """The groups that requests of this step were about."""
        self._patience = Patience(
            late_ms=self.options.late_ms, initial_delay_ms=self.options.initial_delay_ms, troubled_ms=0
        )
        self._watches: dict[int, dict[str, GroupWatch]] = {partition: {} for partition in self.journals}
        self._given: dict[tuple[str, Era, int, int], Mapping[str, bytes]] = {}
        self.life: dict[int, int] = dict.fromkeys(self.journals, 0)
        """By partition: how often it was elected. Soft state lasts as long."""
        self._dirty: dict[int, set[str]] = {partition: set() for partition in self.journals}
        self._active: set[int] = set()
        self.troubled: dict[Process, int] = {}
        self._torn: set[int] = set()
        """Partitions whose log may end in what was refused, if the disk would not even take it away again."""
        self._last_words: set[int] = set()
        """Partitions whose leader ends in order: it writes what it owes, though nobody may wait for it."""
        self._flushed: dict[int, int] = dict.fromkeys(self.journals, 0)

    # -- requests

    def asked(self, process: Process, frame: Frame) -> Call:
        """Take note of a request before it is handled."""
        call = Call(process, frame, self.world.now_ms)
        self._calls[call] = None
        if call.api in OF_A_GROUP:
            self._asked.add(call.group_id)
            call.partition = self.cluster.partition_of(call.group_id)
            call.mark = self.journals[call.partition].end
            group = self.group_at(call)
            call.standing = self._standing(call, group)
            if group is not None and call.api == ApiKey.LEAVE_GROUP:
                call.leaving = leaving(group, call.request)
            if call.api in (ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE):
                self.deleting.add(call.group_id)
            self.world.tell(f"broker {process.broker.node_id} gets {call}")
        call.due_ms += self._patience_for(call)
        return call

    def held(self, call: Call) -> None:
        """Take note that a request is looked at only now."""
        call.mark = self.journals[call.partition].end
        call.standing = self._standing(call, self.group_at(call))

    def group_at(self, call: Call) -> Group | None:
        host = self._host(call)
        return None if host is None else host.shard.groups.get(call.group_id)

    def _host(self, call: Call) -> ShardHost | None:
        return call.process.node.coordinator.hosts.get(call.partition)

    def _standing(self, call: Call, group: Group | None) -> Standing:
        led = self.cluster.led[call.partition].leader == call.process.broker.node_id
        host = self._host(call)
        active = led and (host is None or host.status == ShardHost.ACTIVE)
        if group is None or not active:
            return Standing(led, active)
        member_id = getattr(call.request, "member_id", "")
        member = group.members.get(member_id)
        instance_id = getattr(call.request, "group_instance_id", None)
        known = member is not None and instance_id in (None, member.instance_id)
        holders = [one.member_id for one in group.members.values() if one.instance_id == instance_id]
        fenced = bool(member_id and instance_id and holders) and member_id not in holders
        return Standing(
            led,
            active,
            group.state,
            group.generation,
            known,
            fenced,
            known and group.leader == member_id,
            group.rebalance_timeout_ms(),
        )

    def _patience_for(self, call: Call) -> int:
        """Return the longest time in ms that a call may wait for its answer."""
        if call.api == ApiKey.JOIN_GROUP:
            timeout = getattr(call.request, "rebalance_timeout", None)
            own_ms = self.options.rebalance_ms if timeout is None else milliseconds(timeout)
            delay_ms = self.options.initial_delay_ms
            return max(own_ms, call.standing.longest_ms, delay_ms) + delay_ms
        if call.api in IN_TRANSACTIONS:
            return TRANSACTION_MS
        if call.api == ApiKey.FETCH:
            return milliseconds(call.request.max_wait)
        return call.standing.longest_ms if call.api == ApiKey.SYNC_GROUP else 0

    def handled(self, call: Call) -> None:
        """Take note of what a request means, once its handler has returned."""
        standing = call.standing
        if call.api not in OF_A_GROUP or not self._may_change(call):
            return
        if call.api in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP):
            self._supersede(call)
        watch = self._watches[call.partition].get(call.group_id)
        if (
            call.api == ApiKey.SYNC_GROUP
            and standing.known
            and call.request.generation_id == standing.generation
        ):
            self._note_sync(call, watch)
        if watch is None:
            return
        if call.api == ApiKey.HEARTBEAT and standing.known:
            if call.request.generation_id == standing.generation:
                watch.beat(call.request.member_id, self.world.now_ms, sure=True)
        elif call.api == ApiKey.OFFSET_COMMIT and standing.known:
            if call.request.generation_id_or_member_epoch == standing.generation:
                watch.beat(call.request.member_id, self.world.now_ms, sure=False)
        elif call.api == ApiKey.LEAVE_GROUP:
            watch.excused.update(call.leaving)
        elif call.api == ApiKey.JOIN_GROUP:
            self._excuse_join(call, watch)

    def _may_change(self, call: Call) -> bool:
        """Return whether a request may change its group: whoever is asked serves it."""
        return call.standing.active

    def _supersede(self, call: Call) -> None:
        """A member's newer request takes the place of its parked one, which is never answered (JG-21)."""
        member_id = call.request.member_id
        for other in self._calls:
            if (
                member_id
                and other is not call
                and other.api == call.api
                and other.process is call.process
                and other.group_id == call.group_id
                and other.arrived_ms <= call.arrived_ms
                and self._speaks_for(other, member_id)
            ):
                other.excused = True

    def _speaks_for(self, other: Call, member_id: str) -> bool:
        """Whether a parked call may be that of a member: a join without an id gets one while it waits."""
        return other.request.member_id in ("", member_id)

    def _note_sync(self, call: Call, watch: GroupWatch | None) -> None:
        standing, request = call.standing, call.request
        if watch is not None:
            watch.synced(request.member_id)
        if standing.state is State.COMPLETING and standing.leads:
            given = {one.member_id: one.assignment for one in request.assignments}
            era, life = self.era(call.group_id), self.life[call.partition]
            key = (call.group_id, era, life, standing.generation)
            self._given.setdefault(key, given)
            if watch is not None:  # the leader's is answered as soon as it is stored, with a session anew
                watch.beat(request.member_id, self.world.now_ms, sure=False)

    def _excuse_join(self, call: Call, watch: GroupWatch) -> None:
        """A member may go by its own join: when the group is full, or when its instance comes back (ST-1)."""
        instance_id = getattr(call.request, "group_instance_id", None)
        watch.excused.add(call.request.member_id)
        if instance_id is not None and not call.request.member_id:
            watch.excused.update(one for one, known in watch.members.items() if known.static)

    def waiting(self, process: Process) -> list[Call]:
        """Return the requests that a process has taken and not answered."""
        return [call for call in self._calls if call.process is process]

    def gone(self, call: Call) -> None:
        """Take note that whoever asked has hung up."""
        self._calls.pop(call, None)

    # -- answers

    def leads(self, call: Call, name: TopicPartition) -> bool:
        """Return whether a call about a user's partition may be granted where it is answered."""
        return self.cluster.data.led[name].leader == call.process.broker.node_id

    def answered(self, call: Call, answer: Any) -> None:
        """Check an answer at the moment at which the broker lets it go."""
        if call.answered:
            raise Violation("answered once", f"{call} is answered twice")
        call.answered = True
        self._calls.pop(call, None)
        if call.partition >= 0:
            self.world.tell(f"broker {call.process.broker.node_id} answers {call} {told(call, answer)}")
        self._read(call.process, call.partition)
        self._answers.check(call, answer)

    # -- lives of shards

    def elected(self, process: Process, partition: int) -> None:
        """Check that a log that changed hands, or was opened again, holds what it must."""
        with process.broker.disk.quiet():
            log = process.store.logs[self._names[partition]]
            journal = self.journals[partition]
            if log.high_watermark > journal.end:
                self._take_in(process, partition)
            found = Journal()
            found.read(log)
        if partition in self.cluster.lost_power:
            self._take_loss(partition, found)
        else:
            compare_journals(journal, found)
            if found.end != journal.end:
                what = f"the log of {partition} ends at {found.end}, and was at {journal.end}"
                raise Violation("what was written lasts", what)
        self._last_words.discard(partition)
        self.life[partition] += 1
        self._flushed[partition] = max(self._flushed[partition], log.recovery_point)
        self._new_life(partition)

    def _take_in(self, process: Process, partition: int) -> None:
        """Read what a log has gained by being opened: what was written last, when the process stopped, or an
        append that was refused and not taken back in time.

        Whoever that was for has been told that it failed, and tries again; it may count all the same.
        """
        log, journal = process.store.logs[self._names[partition]], self.journals[partition]
        if partition not in self._torn and partition not in self._last_words:
            what = f"the log of {partition} ends at {log.end_offset}, and was at {journal.end}"
            raise Violation("nothing comes from nowhere", what)
        journal.read(log)
        self.timelines[partition] += 1

    def _take_loss(self, partition: int, found: Journal) -> None:
        """Go on with what a loss of power has left: at least what was flushed."""
        journal = self.journals[partition]
        flushed = journal.end if self.options.flush_each else self._flushed[partition]
        if found.end < flushed:
            what = f"the log of {partition} ends at {found.end}, and was flushed up to {flushed}"
            raise Violation("what was flushed lasts", what)
        compare_flushed(journal, found, flushed)
        self.journals[partition] = found
        self.timelines[partition] += 1

    def _new_life(self, partition: int) -> None:
        self._watches[partition].clear()
        self._dirty[partition] = self.journals[partition].group_ids()
        self._active.discard(partition)

    def stopping(self, process: Process) -> None:
        """Take note that a process ends in order, and writes what it owes before."""
        self._last_words |= {p for p, led in self.cluster.led.items() if led.leader == process.broker.node_id}

    def resigned(self, process: Process, partition: int) -> None:
        """Check that whoever waited was sent elsewhere (DE-6)."""
        left = [call for call in self._calls if call.process is process and call.partition == partition]
        for call in left:
            if not call.excused:
                raise Violation("nobody waits for who resigned", f"{call} was not answered")
            del self._calls[call]
        self._new_life(partition)

    def ended(self, process: Process) -> None:
        """Forget what a process owed that is gone."""
        self._calls = {call: None for call in self._calls if call.process is not process}
        self.troubled.pop(process, None)
        for partition, led in self.cluster.led.items():
            if led.leader == process.broker.node_id:
                self._new_life(partition)

    # -- every step

    def look(self, process: Process, *, only_asked: bool = False) -> None:
        """Look at what a process has come to by its last step: at all groups, or those asked for."""
        if self._mistakes.caught:
            raise Violation("no mistakes of ours", self._mistakes.caught[0])
        if process.broker.disk.is_ill:
            self.troubled[process] = self.world.now_ms
            self._torn |= {p for p, led in self.cluster.led.items() if led.leader == process.broker.node_id}
        asked, self._asked = self._asked, set()
        patience = self._patience
        patience.troubled_ms = self.troubled.get(process, -MINUTE_MS) + 1_000
        for partition, led in self.cluster.led.items():
            if led.leader == process.broker.node_id:
                self._look_at(process, partition, asked if only_asked else None)
        for call in self._calls:
            if call.process is process and not call.excused and patience.over(call.due_ms, self.world.now_ms):
                raise Violation("answered in time", f"{call} came at {call.arrived_ms} and waits still")

    def _look_at(self, process: Process, partition: int, asked: set[str] | None) -> None:
        self._read(process, partition)
        host = process.node.coordinator.hosts.get(partition)
        if host is None or host.status != ShardHost.ACTIVE:
            if host is not None and host.status == ShardHost.FAILED:
                raise Violation("no mistakes of ours", f"partition {partition} is out of service")
            return
        dirty = self._dirty[partition]
        if dirty and not host.is_appending:
            for group_id in dirty:
                compare_shard(host.shard, self.journals[partition], group_id)
            dirty.clear()
        watches, groups = self._watches[partition], host.shard.groups
        for group_id in [one for one in watches if one not in groups]:
            del watches[group_id]
        for group_id, group in groups.items():
            if asked is None or group_id in asked:
                self._watch(watches, group, forgiven=self._is_refused(process))

    def _is_refused(self, process: Process) -> bool:
        """Return whether appends of a process may be refused, and what they were of undone."""
        return process.broker.disk.is_ill

    def _watch(self, watches: dict[str, GroupWatch], group: Group, *, forgiven: bool) -> None:
        if (group.leader is None) == bool(group.members) or (
            group.leader is not None and group.leader not in group.members
        ):
            raise Violation("one leader", f"group {group.group_id} is led by {group.leader}, no member")
        watch = watches.get(group.group_id)
        if watch is None:
            watches[group.group_id] = GroupWatch.of(group, self.world.now_ms, self._patience)
            return
        watch.forgiven = forgiven
        watch.look(group, self.world.now_ms, self._patience)

    # -- the log

    def _read(self, process: Process, partition: int) -> None:
        """Read what was appended since the last look, and check it."""
        if partition < 0 or self.cluster.led[partition].leader != process.broker.node_id:
            return
        log = process.store.logs.get(self._names[partition])
        journal = self.journals[partition]
        if log is None or log.high_watermark == journal.end:
            return
        with process.broker.disk.quiet():
            entries = journal.read(log)
        if not process.broker.disk.is_ill:
            self._torn.discard(partition)
        self._flushed[partition] = max(self._flushed[partition], log.recovery_point)
        self._take(partition, entries, process)

    def _take(self, partition: int, entries: Iterable[Entry], process: Process) -> None:
        """Check records that have just been read."""
        for entry in entries:
            self._dirty[partition].add(entry.key.group)
            if isinstance(entry.key, GroupMetadataKey):
                self._check_group_record(partition, entry)
            elif entry.value is None:
                self._check_tombstone(partition, entry, process.clock())
            else:
                self._check_offset(partition, entry)

    def _check_group_record(self, partition: int, entry: Entry) -> None:
        group_id, value = entry.key.group, entry.value
        before = self.journals[partition].group_at(group_id, entry.at)
        if value is None:
            self._check_removal(partition, entry, before)
            return
        assert isinstance(value, GroupMetadataValue)
        if before is not None and value.generation < before.generation:
            raise Violation(
                "generations grow",
                f"group {group_id} has {value.generation} after {before.generation} in the log",
            )
        if value.members and value.leader not in {one.member_id for one in value.members}:
            raise Violation("one leader", f"group {group_id} is stored as led by {value.leader}, no member")
        if before is not None and before.members and value.generation == before.generation:
            self._check_same(group_id, before, value)
        else:
            check_owners(group_id, value)
            self._check_given(partition, group_id, value)

    def _check_removal(self, partition: int, entry: Entry, before: GroupMetadataValue | None) -> None:
        group_id = entry.key.group
        if before is not None and before.members:
            raise Violation("nobody goes without a reason", f"group {group_id} is deleted with members in it")
        left = self.journals[partition].offsets_of(group_id, entry.at)
        if left:
            raise Violation("deleted is deleted", f"group {group_id} is deleted, its offsets {left} are not")

    def _check_same(self, group_id: str, before: GroupMetadataValue, after: GroupMetadataValue) -> None:
        """A generation is stored anew only for a static member that has come back (ST-2)."""
        if owned(before) != owned(after):
            raise Violation(
                "generations grow",
                f"generation {after.generation} of group {group_id} is assigned twice: {before} and {after}",
            )

    def _check_given(self, partition: int, group_id: str, value: GroupMetadataValue) -> None:
        given = self._given.get((group_id, self.era(group_id), self.life[partition], value.generation))
        if given is None:
            return
        for one in value.members:
            if one.assignment != given.get(one.member_id, b""):
                raise Violation(
                    "own assignment",
                    f"{one.member_id} of group {group_id} is stored with another's assignment",
                )

    def _check_offset(self, partition: int, entry: Entry) -> None:
        """A committed offset is at or past the one before, unless its sender had given it up."""
        assert isinstance(entry.key, OffsetCommitKey)
        assert isinstance(entry.value, OffsetCommitValue)
        history = self.journals[partition].offsets[entry.key]
        before = history[-2][1] if len(history) > 1 else None
        self.doubts.check(entry.key, before, entry.value)

    def _check_tombstone(self, partition: int, entry: Entry, now_ms: int) -> None:
        """An offset goes by being deleted or by its age, and not while somebody reads its topic."""
        assert isinstance(entry.key, OffsetCommitKey)
        if entry.key.group in self.deleting:
            return
        history = self.journals[partition].offsets[entry.key]
        value = history[-2][1] if len(history) > 1 else None
        group = self.journals[partition].group_at(entry.key.group, entry.at)
        retention_ms = self.options.retention_ms
        since_ms = 0 if value is None else value.commit_timestamp
        if group is not None and not group.members and group.protocol_type:
            since_ms = group.current_state_timestamp  # XP-2, XP-8
        if value is not None and now_ms < since_ms + retention_ms:
            raise Violation("commits last", f"{entry.key} is deleted; it was {now_ms - since_ms} ms old")

    # -- members' own view

    def era(self, group_id: str) -> Era:
        """Return the era of a generation's number: after a loss, or a deletion, numbers come again."""
        partition = self.cluster.partition_of(group_id)
        history = self.journals[partition].groups.get(group_id, ())
        return self.timelines[partition], sum(value is None for _, value in history)

    def let_in(self, member_id: str, generation: int, group_id: str) -> None:
        """Note when a member was let into a generation; numbers that were not stored come again."""
        life = self.life[self.cluster.partition_of(group_id)]
        self._let_in[member_id, generation] = self.era(group_id), life

    def works(
        self,
        reader: str,
        group_id: str,
        place: Generation,
        partitions: Iterable[TopicPartition],
        since: Mapping[TopicPartition, int],
    ) -> None:
        """Check that nobody else works, or has worked, on the same in the same generation.

        Whoever missed a generation, as static members may (ST-11), comes to the next one with partitions that
        were given to another meanwhile, and hears there that they are gone. That is not this generation's
        fault; but what this one gives, nobody else in it may still have.
        """
        for one in partitions:
            if not place.valid:
                raise Violation("one owner", f"{reader} works on {one} and is in no generation")
            era = self._let_in[place.member_id, place.id]
            workers = self.workers.setdefault((group_id, era, place.id, one), {})
            workers.setdefault(reader, since[one])
            begun = sorted(workers.values())
            if len(begun) > 1 and (begun[-1] >= place.id or len(set(begun)) < len(begun)):
                what = f"{one} is worked on by {workers} in generation {place.id} of {group_id}"
                raise Violation("one owner", what)

    # -- the end

    def finish(self) -> None:
        """Compare everything once more, now that all is quiet."""
        for partition in self.journals:
            process = self.cluster.process_of(partition)
            if process is not None:
                self._dirty[partition] |= self.journals[partition].group_ids()
                self.look(process)

    def outstanding(self) -> list[Call]:
        """Return the calls that wait for an answer; a fetch may wait for records that nobody writes."""
        return [call for call in self._calls if not call.excused and call.api != ApiKey.FETCH]
