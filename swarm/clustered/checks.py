"""What must hold in a cluster over a database, besides what must hold anywhere.

Who leads, and in which epoch, is what the database says; what lasts is what it holds. With clocks that all
run alike, whoever answers as the leader is the leader. What a process says that goes by a history that is no
more counts for nothing: it hears of it within moments, and nothing that it writes lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from coterie.broker.runtime.groups import ShardHost
from coterie.coordinator.group.model import Group
from coterie.wire.api.apis import ApiKey
from swarm.checks.calls import IN_TRANSACTIONS, Call, Standing
from swarm.checks.invariants import Checks, Mistakes
from swarm.checks.journal import Journal
from swarm.world import Violation

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from swarm.cluster import Process
    from swarm.clustered.cluster import DatabaseCluster
    from swarm.clustered.processes import ClusteredProcess


MARKERS_MS = 10_000
"""For so long a transaction may wait for the leaders of its partitions, which may have died."""


class ClusteredChecks(Checks):
    """Everything that must hold in one scenario of a cluster over a database."""

    def __init__(self, cluster: DatabaseCluster, mistakes: Mistakes) -> None:
        super().__init__(cluster, mistakes)
        self.over = cluster
        self._seen: dict[int, ShardHost] = {}  # the shard that was looked at last
        self._unheard: set[Call] = (
            set()
        )  # what has come before the process has heard that the database went back
        self._led_anew: set[int] = set()  # partitions of which nobody has looked at the shard since
        self._returned: dict[int, set[str]] = {}  # groups of shards whose takeover was undone, by partition
        self._since: dict[Process, int] = {}  # when a process has suspended itself
        self._suspensions: dict[Process, int] = {}  # how often it has

    # -- requests and answers

    def asked(self, process: Process, frame: Any) -> Call:
        self.over.note_leaders()
        return super().asked(process, frame)

    def _standing(self, call: Call, group: Group | None) -> Standing:
        process = cast("ClusteredProcess", call.process)
        led = self.cluster.led.get(call.partition)
        if not process.follows:
            self._unheard.add(call)
            return Standing(True, False)
        leads = led is not None and led.leader == process.broker.node_id
        host = self._host(call)
        if led is None or not leads or host is None or host.status != ShardHost.ACTIVE:
            halted = host is not None and host.status == ShardHost.DRAINING
            return Standing(leads or halted, False)
        if host.epoch != led.epoch:
            raise Violation(
                "only the leader serves", f"{call} comes to epoch {host.epoch}, it is {led.epoch}"
            )
        return super()._standing(call, group)

    def _may_change(self, call: Call) -> bool:
        """Return whether a request may change its group. What comes before the process hears that the
        database went back counts after all, if nothing is lost that the process goes by.
        """
        return call in self._unheard or super()._may_change(call)

    def _patience_for(self, call: Call) -> int:
        patience_ms = super()._patience_for(call)
        return patience_ms + MARKERS_MS if call.api in IN_TRANSACTIONS else patience_ms

    def answered(self, call: Call, answer: Any) -> None:
        if call in self._unheard or not cast("ClusteredProcess", call.process).follows:
            self._unheard.discard(call)
            call.answered = True
            self._calls.pop(call, None)
            if call.api == ApiKey.JOIN_GROUP and not answer.error_code:
                self.let_in(answer.member_id, answer.generation_id, call.group_id)
            return
        self.over.note_leaders()
        super().answered(call, answer)

    def leads(self, call: Call, name: TopicPartition) -> bool:
        """Return whether a call may be granted: what has landed was written by the leader of then."""
        return call.api == ApiKey.PRODUCE or super().leads(call, name)

    # -- terms

    def led_anew(self, partition: int) -> None:
        """Take note that a partition is led by another, or in another epoch."""
        self.life[partition] += 1
        self._new_life(partition)
        self._led_anew.add(partition)

    def fell_back(self) -> None:
        """Take note that the database is what it was before: what was answered meanwhile is undone."""
        for partition, name in enumerate(self._names):
            groups = self.journals[partition].group_ids()
            journal = self.journals[partition] = Journal()
            journal.read(self.over.log_of(name))
            self._dirty[partition] |= groups | journal.group_ids()
            self.timelines[partition] += 1
            self.life[partition] += 1

    def forgive(self, process: Process) -> None:
        """Let a process be late."""
        self.troubled[process] = self.world.now_ms

    def rings_late(self, process: Process, by_ms: int) -> None:
        """Let initial delays of a process be so much longer in all: one that was due while it stood still is
        over now, and the next follows it (ID-3).
        """
        led = (
            partition for partition, led in self.cluster.led.items() if led.leader == process.broker.node_id
        )
        delayed = [watch for one in led for watch in self._watches[one].values() if watch.initial]
        for watch in delayed:
            watch.limit_ms += by_ms
        groups = {watch.group_id for watch in delayed}
        for call in self.waiting(process):
            call.due_ms += by_ms if call.group_id in groups else 0

    def stopping(self, process: Process) -> None:
        """Do nothing: what it writes is in the database, or is not."""

    def ended(self, process: Process) -> None:
        self._calls = {call: None for call in self._calls if call.process is not process}
        self.troubled.pop(process, None)
        self._since.pop(process, None)
        self._suspensions.pop(process, None)

    # -- every step

    def look(self, process: Process, *, only_asked: bool = False) -> None:
        self.over.note_leaders()
        member = cast("ClusteredProcess", process)
        if member.is_suspended:
            self._since.setdefault(process, self.world.now_ms)
        elif process in self._since or self._suspensions.get(process, 0) < member.suspensions:
            since_ms = self._since.pop(process, self.world.now_ms)  # it may have gone on in the same step
            self._resumed(process, self.world.now_ms - since_ms)
        self._suspensions[process] = member.suspensions
        lanes = member.clustered.store.lanes
        if (
            member.is_suspended
            or self.world.now_ms < max(member.silent_until_ms, member.refused_until_ms)
            or any(lane.suspended for lane in lanes)
        ):
            self.forgive(process)
        super().look(process, only_asked=only_asked)

    def _resumed(self, process: Process, after_ms: int) -> None:
        for call in self.waiting(process):
            call.due_ms += after_ms
        for partition, led in self.cluster.led.items():
            if led.leader == process.broker.node_id:
                for watch in self._watches[partition].values():
                    watch.stood_still(after_ms, self.world.now_ms)

    def _look_at(self, process: Process, partition: int, asked: set[str] | None) -> None:
        host = process.node.coordinator.hosts.get(partition)
        led = self.cluster.led[partition]
        loaded = host is not None and self._seen.get(partition) is not host
        if host is not None and loaded:
            self._seen[partition] = host
            self._new_life(partition)
        if host is not None and host.epoch == led.epoch and cast("ClusteredProcess", process).follows:
            self._note_return(partition, host, loaded=loaded)
            super()._look_at(process, partition, asked)
            for group_id in self._returned[partition] & self._watches[partition].keys():
                self._watches[partition][group_id].begun_before = True
                self._returned[partition].discard(group_id)
        else:
            self._read(process, partition)

    def _note_return(self, partition: int, host: ShardHost, *, loaded: bool) -> None:
        """Note which groups have gone on through a takeover that a fall-back has undone: of what they do
        nobody knows when it began.
        """
        if partition in self._led_anew:
            self._led_anew.discard(partition)
            self._returned[partition] = set() if loaded else {*host.shard.groups}
        self._returned.setdefault(partition, set())

    def _is_refused(self, process: Process) -> bool:
        return self.world.now_ms < cast("ClusteredProcess", process).refused_until_ms

    def _read(self, process: Process, partition: int) -> None:
        if partition < 0 or partition not in self.cluster.led:
            return
        journal, log = self.journals[partition], self.over.log_of(self._names[partition])
        if log.high_watermark > journal.end:
            self._take(partition, journal.read(log), process)
