"""One process of a scenario's group: an application that polls, and the production member inside it.

It runs the member the way `client.member.runner` does, in virtual time. Between its polls the application
works on a batch; what the member wants of the application waits for the end of the batch. No records are
read and no offsets committed: a scenario asks who owns what when, and whose work stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coterie.assign.model import Cluster
from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client import member as m
from coterie.client.member import Member, Phase
from coterie.coordinator.group import commands
from coterie.coordinator.group.model import State
from coterie.simulate.agenda import FOREVER, Event, Queue
from coterie.simulate.broker import Open
from coterie.wire.payloads.consumer_protocol import PROTOCOL_TYPE

if TYPE_CHECKING:
    from coterie.simulate.variant import Course, Slot

JOIN_VERSION, SYNC_VERSION, LEAVE_VERSION = 9, 5, 5
CLOSE_MS = 30_000
LATE_MOST_MS = 20
"""How late a process's timers come, each process's by its own time: no two beat in step for long."""
FIRST_RANK = 10
NOTHING: frozenset[TopicPartition] = frozenset()
OVER = (Phase.FAILED, Phase.STOPPED)


class Asked(Open):
    """A call of a worker's member."""

    __slots__ = ("_worker", "done", "queue")

    def __init__(self, worker: Worker, done: Callable[[Any], None], queue: Queue) -> None:
        super().__init__()
        self._worker, self.done, self.queue = worker, done, queue

    def take(self, answer: Any) -> None:
        """Send the answer back."""
        self._worker.answer(self, answer)


class Worker:
    """One life of a member's process, from its start to its end."""

    member_class = Member

    def __init__(self, course: Course, slot: Slot) -> None:
        self.course, self.slot = course, slot
        self.agenda, self.station = course.agenda, course.station
        self.rank = FIRST_RANK + slot.number
        kind = slot.kind
        self.batch_ms = kind.batch_ms
        self.settings = replace(
            kind.settings,
            group_id=self.station.group_id,
            instance_id=slot.name if kind.static else None,
            metadata_max_age_ms=FOREVER,  # when topics change, `look` says so
        )
        self.member = self.member_class(
            self.settings,
            course.topics_of(slot),
            now_ms=self.agenda.now_ms,
            jitter=lambda: slot.random.uniform(0.8, 1.2),
        )
        self.delay_ms = course.delay_ms(slot)
        self.late_ms = slot.random.randint(0, LATE_MOST_MS)
        self.running = True
        self.heartbeat_at: int | None = None
        """When the next heartbeat is due, for a member that has nothing else to do in a stable group."""
        self.heartbeats_calmly = False
        """Whether its timer or its heartbeat under way was taken for one that disturbs nobody."""
        self.arrives_at = FOREVER
        """When its next heartbeat, planned or under way, arrives; of a calm member."""
        self.settled_ms = self._polled_ms = self.agenda.now_ms
        """When it was last given partitions, or began."""
        self._stalled_until = 0
        self._paused_until = 0
        self._deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._calls: dict[Asked, m.Request] = {}
        self._timer: Event | None = None
        self._has_looked = False
        self._batch_ends = False
        self._worked_on = NOTHING
        self._noted = NOTHING

    # -- what is done to it

    def start(self) -> None:
        """Poll for the first time."""
        self._run()

    def stop(self) -> None:
        """Close: leave politely if the member does, and end."""
        if not self.is_paused:
            self.member.close(leave=None, timeout_ms=CLOSE_MS, now_ms=self.agenda.now_ms)
            self._run()
        self.kill()

    def kill(self) -> None:
        """End without a word."""
        self.running = self.heartbeats_calmly = False
        self._disarm()
        for call in self._calls:
            self.station.forget(call)
        self._calls.clear()
        self._deferred.clear()
        self._note_work()

    def refresh_metadata(self) -> None:
        """Look at the topics anew, as a process does from time to time."""
        self.member.subscribe(self.course.topics_of(self.slot), self.agenda.now_ms)
        self._happen(self._run)

    def pause(self, span_ms: int) -> None:
        """Stand still, as a process that collects garbage; everything is done afterwards."""
        self._paused_until = max(self._paused_until, self.agenda.now_ms + span_ms)
        self.agenda.at(self._paused_until, self.rank, self._wake_up)
        self._note_work()

    def stall(self, span_ms: int) -> None:
        """Take so long for the batch under way; heartbeats go on meanwhile."""
        now_ms = self.agenda.now_ms
        if now_ms >= self._stalled_until:
            self._polled_ms = self.polled_ms(now_ms)
            self.member.called(self._polled_ms)
        self._stalled_until = max(self._stalled_until, now_ms + span_ms)
        self._worked_on = self.member.fetchable
        self.agenda.at(self._stalled_until, self.rank, self._happen, self._stall_over)
        gives_up_ms = self._polled_ms + self.settings.max_poll_interval_ms
        if gives_up_ms < self._stalled_until:
            self.agenda.at(gives_up_ms, self.rank, self._happen, self._run)

    def _stall_over(self) -> None:
        if self.agenda.now_ms < self._stalled_until:
            return
        self._polled_ms = self.agenda.now_ms
        self._worked_on = NOTHING
        self._run()

    def _wake_up(self) -> None:
        if self.agenda.now_ms < self._paused_until or not self.running:
            return
        deferred, self._deferred = self._deferred, []
        for do, arguments in deferred:
            self._happen(do, *arguments)
        self._note_work()

    def _happen(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something now, after the pause, or never: the way in of everything that comes over time."""
        if not self.running:
            return
        if self.is_paused:
            self._deferred.append((do, arguments))
        else:
            do(*arguments)

    @property
    def is_paused(self) -> bool:
        """Whether the process stands still."""
        return self.agenda.now_ms < self._paused_until

    # -- polling and working

    def polled_ms(self, now_ms: int) -> int:
        """Return the time of the application's last poll: the end of its last batch."""
        if now_ms < self._stalled_until:
            return self._polled_ms
        return now_ms - (now_ms - self._polled_ms) % self.batch_ms if self.batch_ms else now_ms

    def _hold_or_let_go(self) -> None:
        """Have a batch under way while the member may work; let go at its end if something waits for that."""
        member = self.member
        if member.ready:
            member.hold()
        elif member.held and not self._batch_ends:
            self._batch_ends = True
            self.agenda.at(self._batch_end_ms(), self.rank, self._happen, self._end_batch)

    def _batch_end_ms(self) -> int:
        now_ms = self.agenda.now_ms
        if now_ms < self._stalled_until:
            return self._stalled_until
        polled_ms = self.polled_ms(now_ms)
        return polled_ms if polled_ms == now_ms else polled_ms + self.batch_ms

    def _end_batch(self) -> None:
        self._batch_ends = False
        if self.agenda.now_ms < self._stalled_until:  # it began to stall meanwhile
            self._hold_or_let_go()
            return
        self.member.release()
        self._run()

    # -- the member, as client.membership runs it

    def _run(self) -> None:
        """Do all that the member wants done now; what it waits for comes later."""
        member, now_ms = self.member, self.agenda.now_ms
        while member.phase not in OVER:
            if now_ms >= self._stalled_until:
                member.called(self.polled_ms(now_ms))
            request = member.next(now_ms)
            if isinstance(request, m.Wait):
                self._hold_or_let_go()
                self._wait(request.until_ms)
                break
            CARRY_OUT[type(request)](self, request)
        if member.phase is Phase.FAILED:
            self.course.gave_up(self.slot, str(member.failure))
            self.kill()
        self._note_work()

    def _wait(self, until_ms: int | None) -> None:
        """Come back by then; a heartbeat of a member at work in a stable group disturbs nobody."""
        self._disarm()
        if until_ms is None:
            return
        until_ms += self.late_ms
        calm = self.is_calm()
        if calm and self._calls:
            return  # a heartbeat is under way: its answer, or the loss of it, is what comes next
        if calm:
            until_ms = self.course.folding.fold(self, until_ms)
        self.arm(until_ms, calm=calm)

    def arm(self, until_ms: int, *, calm: bool) -> None:
        """Have the timer come at that time, and no other."""
        self._disarm()
        self.heartbeat_at = until_ms if calm else None
        self.arrives_at = until_ms + self.delay_ms
        self.heartbeats_calmly = calm
        queue = Queue.CALM if calm else Queue.MOVING
        self._timer = self.agenda.at(until_ms, self.rank, self._happen, self._woken, queue=queue)

    def _disarm(self) -> None:
        self.heartbeat_at = None
        if self._timer is not None:
            self.agenda.call_off(self._timer)
            self._timer = None

    def _woken(self) -> None:
        self.heartbeat_at = self._timer = None
        self._run()

    def is_calm(self) -> bool:
        """Whether the member works and its group has it in the generation that it believes in."""
        member = self.member
        at_work = self.running and self._has_looked and member.coordinator_known and member.ready
        if not at_work or self.is_paused or member.missing:  # before its next heartbeat it looks for those
            return False
        group, generation = self.station.group(), member.generation
        return (
            group is not None
            and group.state is State.STABLE
            and group.generation == generation.id
            and generation.member_id in group.members
        )

    def silent_after_ms(self) -> int:
        """Return the time at which a stalled application will have been silent for too long."""
        if self.agenda.now_ms >= self._stalled_until:
            return FOREVER
        return self._polled_ms + self.settings.max_poll_interval_ms

    # -- requests

    def _call(
        self,
        wanted: m.Request,
        asked: Callable[[Open], None],
        take: Callable[[Any], None],
        *,
        queue: Queue = Queue.MOVING,
    ) -> None:
        """Have something asked once it has arrived; `take` gets the answer once that is back."""
        self.heartbeats_calmly = queue is Queue.CALM
        call = Asked(self, take, queue)
        self._calls[call] = wanted
        self.agenda.at(self.agenda.now_ms + self.delay_ms, self.rank, self._arrive, asked, call, queue=queue)

    def _arrive(self, asked: Callable[[Open], None], call: Asked) -> None:
        if call not in self._calls or not self.running:
            return
        if self.station.node is None:
            call.take(None)
        else:
            asked(call)

    def answer(self, call: Asked, answer: Any) -> None:
        """Have an answer come in once it has been on its way."""
        at_ms = self.agenda.now_ms + self.delay_ms
        self.agenda.at(at_ms, self.rank, self._happen, self._answered, call, answer, queue=call.queue)

    def _answered(self, call: Asked, answer: Any) -> None:
        wanted = self._calls.pop(call, None)
        if wanted is None:
            return
        if isinstance(wanted, m.RefreshMetadata):
            self._has_looked = answer is not None  # if not it looks again soon, among its heartbeats
        if answer is None:
            self.member.unanswered(wanted, self.agenda.now_ms)
        else:
            call.done(answer)
        self._run()

    def _disconnect(self, wanted: m.Disconnect) -> None:
        """Break the connections to the coordinator: nothing that was asked there is answered."""
        calls, self._calls = self._calls, {}
        for call, request in calls.items():
            if isinstance(request, m.FindCoordinator | m.RefreshMetadata):
                self._calls[call] = request
            else:
                self.station.forget(call)
                self.member.unanswered(request, self.agenda.now_ms)

    def _find(self, wanted: m.FindCoordinator) -> None:
        def found(answer: Any) -> None:
            self.member.found(answer, self.agenda.now_ms)

        self._call(wanted, lambda call: call.take(Code.NONE), found)

    def _refresh_metadata(self, wanted: m.RefreshMetadata) -> None:
        known = self.course.there
        there = {topic: count for topic, count in known.items() if topic in (wanted.topics or known)}

        def looked(answer: Any) -> None:
            self.member.metadata_received(wanted, answer, self.agenda.now_ms)

        self._call(wanted, lambda call: call.take(Cluster(partition_counts=there)), looked)

    def _describe_group(self, wanted: m.DescribeGroup) -> None:
        """Be told nothing: members of other clients, whose lives are lived through again here, do not ask."""
        self.member.group_described(wanted, m.GroupDescription(Code.NONE), self.agenda.now_ms)

    def _call_back(self, wanted: m.Call) -> None:
        """Be the application's listener, which has nothing to do."""
        self.member.called_back(None, self.agenda.now_ms)

    def _join(self, wanted: m.Join) -> None:
        settings = self.settings

        def command(call: int) -> commands.Join:
            return commands.Join(
                group_id=settings.group_id,
                call=call,
                member_id=wanted.member_id,
                instance_id=settings.instance_id,
                client_id=self.slot.name,
                client_host=f"/{self.slot.name}",
                protocol_type=PROTOCOL_TYPE,
                protocols=wanted.protocols,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                version=JOIN_VERSION,
                reason=wanted.reason,
            )

        def joined(answer: Any) -> None:
            self.member.joined(wanted, joined_of(answer), self.agenda.now_ms)

        self._call(wanted, lambda call: self.station.ask(command, call), joined)

    def _sync(self, wanted: m.Sync) -> None:
        generation = wanted.generation

        def command(call: int) -> commands.Sync:
            return commands.Sync(
                group_id=self.settings.group_id,
                call=call,
                member_id=generation.member_id,
                instance_id=self.settings.instance_id,
                generation=generation.id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=generation.protocol,
                assignments=tuple(wanted.assignments.items()),
                version=SYNC_VERSION,
            )

        self._call(
            wanted, lambda call: self.station.ask(command, call), lambda answer: self._synced(wanted, answer)
        )

    def _synced(self, wanted: m.Sync, answer: Any) -> None:
        """Hand the answer over; what is given up by it is, too, at the end of a batch."""
        self.member.synced(wanted, synced_of(answer), self.agenda.now_ms)
        self.settled_ms = self.agenda.now_ms
        if self.member.fetchable and self.batch_ms:
            self.member.hold()

    def _heartbeat(self, wanted: m.Heartbeat) -> None:
        def answered(answer: Any) -> None:
            code = answer if isinstance(answer, Code) else answer.code
            # A shard that loads takes a heartbeat (HB-2), as its handler has it.
            loading = code is Code.COORDINATOR_LOAD_IN_PROGRESS
            self.member.heartbeat_answered(wanted, Code.NONE if loading else code, self.agenda.now_ms)

        queue = Queue.CALM if self.is_calm() else Queue.MOVING
        self.arrives_at = self.agenda.now_ms + self.delay_ms
        self._call(wanted, lambda call: self._ask_heartbeat(wanted.generation, call), answered, queue=queue)

    def _ask_heartbeat(self, generation: m.Generation, call: Open) -> None:
        heartbeat = commands.Heartbeat(
            group_id=self.settings.group_id,
            call=0,
            member_id=generation.member_id,
            instance_id=self.settings.instance_id,
            generation=generation.id,
        )
        code = self.station.heartbeat(heartbeat)
        if code is None:
            self.station.ask(lambda number: replace(heartbeat, call=number), call)
        else:
            call.take(code)

    def _leave(self, wanted: m.Leave) -> None:
        """Send LeaveGroup; nobody waits for the answer."""
        leaver = commands.Leaver(member_id=wanted.member_id, instance_id=None, reason=wanted.reason)

        def command(number: int) -> commands.Leave:
            return commands.Leave(
                group_id=self.settings.group_id, call=number, members=(leaver,), version=LEAVE_VERSION
            )

        at_ms = self.agenda.now_ms + self.delay_ms
        self.agenda.at(at_ms, self.rank, self.station.ask, command, Open())
        self.member.left(wanted)

    # -- what it is at work on

    def at_work(self) -> frozenset[TopicPartition]:
        """Return the partitions that a running process works on: a batch that takes too long is work, too."""
        fetchable = self.member.fetchable
        return fetchable | self._worked_on if self._worked_on else fetchable

    @property
    def is_stalled(self) -> bool:
        """Whether the batch under way takes too long."""
        return self.agenda.now_ms < self._stalled_until

    def _note_work(self) -> None:
        """Note what this process is at work on now: what it may work on, and a batch that takes too long."""
        now = self.at_work() if self.running and not self.is_paused else NOTHING
        if now != self._noted:
            self.course.ownership.changed(self.slot.number, self._noted, now, self.agenda.now_ms)
            self._noted = now


CARRY_OUT: Mapping[type[m.Request], Callable[[Worker, Any], None]] = {
    m.Disconnect: Worker._disconnect,
    m.FindCoordinator: Worker._find,
    m.RefreshMetadata: Worker._refresh_metadata,
    m.Join: Worker._join,
    m.Sync: Worker._sync,
    m.Heartbeat: Worker._heartbeat,
    m.Call: Worker._call_back,
    m.Leave: Worker._leave,
    m.DescribeGroup: Worker._describe_group,
}


def joined_of(answer: Any) -> m.Joined:
    """Return the member's event for the core's answer to a join, or for the code that came before it."""
    if isinstance(answer, Code):
        return m.Joined(code=answer)
    return m.Joined(
        code=answer.code,
        generation=answer.generation,
        member_id=answer.member_id,
        protocol=answer.protocol_name or "",
        leader=answer.leader,
        members=answer.members,
        skip_assignment=answer.skip_assignment,
        protocol_type=answer.protocol_type,
    )


def synced_of(answer: Any) -> m.Synced:
    """Return the member's event for the core's answer to a sync, or for the code that came before it."""
    if isinstance(answer, Code):
        return m.Synced(code=answer)
    return m.Synced(
        code=answer.code,
        assignment=answer.assignment,
        protocol_type=answer.protocol_type,
        protocol=answer.protocol_name,
    )
