"""Group members of ours and the production coordinator's core in one process; time is a number.

A `Process` is an application with its member: what the member asks is under way until the test lets it
arrive, is answered when the core answers, and may be lost on either way. What the listener was told is held
against what the member says.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from group_rig import Rig, a_commit, a_heartbeat, a_join, a_sync
from member_rig import Sticky

from coterie.assign.model import Assignor, Cluster, RebalanceProtocol
from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.member import (
    Call,
    Commit,
    DescribeGroup,
    Disconnect,
    FindCoordinator,
    GroupDescription,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Member,
    MemberSettings,
    Phase,
    RefreshMetadata,
    Request,
    Sync,
    Synced,
    Wait,
)
from coterie.coordinator.group.commands import Leaver, OffsetToCommit
from coterie.wire.payloads.consumer_protocol import Assignment

SESSION_MS, BEAT_MS, REBALANCE_MS = 10_000, 3_000, 30_000
KINDS: dict[str, tuple[str, ...]] = {
    "eager": ("range",),
    "cooperative": ("little-sticky",),
    "upgrading": ("little-sticky", "range"),
}


class Process:
    """One application: its member, what that has under way, and what the listener was told."""

    def __init__(self, world: World, kind: str, instance_id: str | None) -> None:
        assignors: tuple[str | Assignor, ...] = tuple(
            Sticky() if name == "little-sticky" else name for name in KINDS[kind]
        )
        self.world, self.kind, self.name = world, kind, f"p{next(world.names)}"
        self.settings = MemberSettings(
            group_id="g",
            instance_id=instance_id,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=BEAT_MS,
            max_poll_interval_ms=REBALANCE_MS,
            assignors=assignors,
            auto_commit_interval_ms=4_000,
            metadata_max_age_ms=5_000,
        )
        self.member = Member(
            self.settings, world.cluster.partition_counts, now_ms=world.rig.now_ms, auto_commit=True
        )
        self.calls: dict[int, Request] = {}
        self.to_send: list[Request] = []
        self.called: list[Call] = []
        self.told: set[TopicPartition] = set()
        self.alive = True

    # -- the application

    def poll(self) -> None:
        """Show a sign of life, and have the member ask for what it wants."""
        self.member.called(self.world.rig.now_ms)
        self.run()

    def run(self) -> None:
        for _ in range(100):
            if not self.alive:
                return
            request = self.member.next(self.world.rig.now_ms)
            self.check()
            match request:
                case Wait(until_ms=until_ms):
                    assert until_ms is None or until_ms > self.world.rig.now_ms
                    return
                case Disconnect():
                    self.break_off()
                case Call():
                    self.check_call(request)
                    self.called.append(request)
                case _:
                    self.to_send.append(request)
        raise AssertionError(f"{self.name} asks for ever more")

    def return_from_call(self, error: Exception | None = None) -> None:
        """Have the listener return."""
        call = self.called.pop()
        if call.kind == "assigned":
            self.told |= set(call.partitions)
            assert self.told == self.member.owned
        else:
            self.told -= set(call.partitions)
        self.member.called_back(error, self.world.rig.now_ms)
        self.member.pending_error()
        self.run()

    # -- what must hold

    def check_call(self, call: Call) -> None:
        """Kafka's order: nothing is assigned twice, and only what was assigned is taken away."""
        member, partitions = self.member, set(call.partitions)
        assert not self.called, "two callbacks at once"
        assert call.partitions == tuple(sorted(call.partitions))
        if call.kind == "assigned":
            assert not partitions & self.told
            assert partitions <= member.owned
            assert member.protocol is RebalanceProtocol.COOPERATIVE or not self.told
            return
        assert partitions <= self.told
        assert not partitions & member.fetchable, "handed out while it is being given up"
        if call.kind == "lost" or member.protocol is RebalanceProtocol.EAGER:
            assert partitions == self.told

    def check(self) -> None:
        member = self.member
        assert member.fetchable <= member.owned
        assert not member.fetchable or member.generation.valid
        assert not member.at_work or member.phase is Phase.STABLE
        if not self.called and member.ready:
            assert self.told == member.owned

    # -- the network

    def send(self) -> None:
        """Have the oldest request arrive at the coordinator."""
        if self.to_send:
            self.world.arrive(self, self.to_send.pop(0))

    def lose(self) -> None:
        """Lose the oldest request on its way; the member hears of it."""
        if self.to_send:
            self.unanswered(self.to_send.pop(0))

    def break_off(self) -> None:
        """Have the connections break: nothing that is under way is answered."""
        lost = [*self.to_send, *self.calls.values()]
        self.to_send.clear()
        self.calls.clear()
        for request in lost:
            if isinstance(request, RefreshMetadata | FindCoordinator):
                self.to_send.append(request)
            else:
                self.unanswered(request)

    def unanswered(self, request: Request) -> None:
        self.member.unanswered(request, self.world.rig.now_ms)
        self.run()

    def kill(self) -> None:
        self.alive = False

    def hand_back(self, request: Request, answer: Any) -> None:
        """Take an answer of the coordinator's."""
        member, now_ms = self.member, self.world.rig.now_ms
        match request:
            case Join():
                member.joined(request, joined(answer), now_ms)
            case Sync():
                told = Synced(answer.code, answer.assignment, answer.protocol_type, answer.protocol_name)
                member.synced(request, told, now_ms)
            case Heartbeat():
                member.heartbeat_answered(request, answer.code, now_ms)
            case Commit():
                member.committed(request, next((one for one in answer.codes if one), Code.NONE), now_ms)
            case Leave():
                member.left(request)
        self.run()


class World:
    """A coordinator, a cluster's topics, and processes."""

    def __init__(self) -> None:
        self.rig = Rig(initial_rebalance_delay_ms=0)
        self.names = count(1)
        self.cluster = Cluster(partition_counts={"t": 3, "u": 2})
        self.processes: list[Process] = []

    def start(self, kind: str, instance_id: str | None = None) -> Process:
        self.processes.append(Process(self, kind, instance_id))
        self.processes[-1].run()
        return self.processes[-1]

    @property
    def living(self) -> list[Process]:
        return [one for one in self.processes if one.alive]

    def arrive(self, process: Process, request: Request) -> None:
        """Have a request arrive, and hand out what is answered now."""
        member, now_ms = process.member, self.rig.now_ms
        match request:
            case FindCoordinator():
                member.found(Code.NONE, now_ms)
            case RefreshMetadata(topics=topics):
                member.metadata_received(
                    request, self.cluster if topics is None else self.some(topics), now_ms
                )
            case DescribeGroup():
                group = self.rig.group
                shares = [Assignment.decode(one.assignment).partitions for one in group.members.values()]
                owned = frozenset(one for share in shares for one in share)
                member.group_described(request, GroupDescription(Code.NONE, group.state.value, owned), now_ms)
            case _:
                command = self.command_of(process, request)
                process.calls[command.call] = request
                self.rig.ask(command)
        self.hand_out()
        process.run()

    def some(self, topics: frozenset[str]) -> Cluster:
        counts = self.cluster.partition_counts
        return Cluster(partition_counts={one: counts[one] for one in topics & counts.keys()})

    def command_of(self, process: Process, request: Request) -> Any:
        """The coordinator's command for a request of a member."""
        rig, identity = self.rig, {"instance_id": process.settings.instance_id}
        match request:
            case Join():
                return a_join(
                    rig,
                    process.name,
                    member_id=request.member_id,
                    protocols=request.protocols,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                    **identity,
                )
            case Sync(generation=place):
                given = dict(request.assignments)
                return a_sync(rig, place.member_id, given, generation=place.id, **identity)
            case Heartbeat(generation=place):
                return a_heartbeat(rig, place.member_id, place.id, **identity)
            case Commit(generation=place):
                offsets = tuple(OffsetToCommit(*one, now) for one, now in self.positions(request))
                return a_commit(rig, place.member_id, place.id, offsets=offsets, **identity)
            case Leave():
                from coterie.coordinator.group.commands import Leave as Command

                leaver = Leaver(request.member_id, None, None)
                return Command(group_id="g", call=rig.call(), members=(leaver,), version=5)
        raise AssertionError(request)

    def positions(self, commit: Commit) -> Iterator[tuple[TopicPartition, int]]:
        return ((one, self.rig.now_ms) for one in sorted(commit.partitions))

    def hand_out(self) -> None:
        """Hand every answer to who waits for it."""
        for _ in range(1_000):
            found = [
                (process, call)
                for process in self.living
                for call in process.calls
                if call in self.rig.answers
            ]
            if not found:
                return
            process, call = found[0]
            process.hand_back(process.calls.pop(call), self.rig.answers[call])
        raise AssertionError("answers never end")

    def run_ms(self, span_ms: int) -> None:
        """Let time pass; nobody does anything but the coordinator."""
        self.rig.run_ms(span_ms)
        self.hand_out()

    # -- what must hold

    def check_owners(self) -> None:
        """No partition has two owners in a generation: by what they took, and by what they hand out."""
        owners: dict[tuple[int, TopicPartition], str] = {}
        for process in self.living:
            member = process.member
            if not member.at_work:
                continue
            for one in member.owned:
                other = owners.setdefault((member.generation.id, one), process.name)
                assert other == process.name, f"{one} is {other}'s and {process.name}'s"

    def settle(self, *, within_ms: int) -> None:
        """Let everybody do its work: in that time the group is at work, and everything owned by one."""
        until = self.rig.now_ms + within_ms
        while not self.at_work():
            assert self.rig.now_ms < until, [
                (one.name, one.member.phase, one.member.rejoin_why, sorted(one.member.owned))
                for one in self.living
            ]
            self.run_ms(100)
            for process in self.living:
                process.poll()
                while process.called:
                    process.return_from_call()
                while process.to_send:
                    process.send()

    def at_work(self) -> bool:
        owned = sorted(one for process in self.living for one in process.member.owned)
        there = [one for topic in self.cluster.partition_counts for one in self.cluster.partitions_of(topic)]
        return all(one.member.ready for one in self.living) and owned == sorted(there)


def joined(answer: Any) -> Joined:
    return Joined(
        answer.code,
        answer.generation,
        answer.member_id,
        answer.protocol_name or "",
        answer.leader,
        answer.members,
        answer.skip_assignment,
        answer.protocol_type,
    )
