"""Readers: applications that are members of a group through the production client, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie.base.codes import Code
from coterie.client import member as m
from coterie.client.member import Member, MemberSettings, Phase
from coterie.client.member.exchanges import exchange_of
from coterie.client.member.state import JOINED
from coterie.client.net import messages
from coterie.wire.api.apis import ApiKey
from swarm.checks.diary import Diary
from swarm.clients.client import Client, Done, Line
from swarm.clients.work import Work
from swarm.cluster import Broker, Cluster
from swarm.world import Violation

CLOSE_MS = 2_000
GROUP, OFFSETS, DATA = "group", "offsets", "data"
"""What connections are for. What a broker parks holds up what comes behind it on the same one."""
BEATS_LATE_MS = 50
FOREVER = 1 << 62

RUBBISH = (
    b"",
    b"\x00",
    b"\x00\x01\xff",
    b"\x00\x00\x7f\xff\xff\xff",
    b"\x00\x00\x00\x00\x00\x01\x00\xff",
    b"\xff" * 9,
)


class Rude(Member):
    """A member whose subscription nobody can read."""

    rubbish = RUBBISH[0]

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((name, self.rubbish) for name in self.assignors)


class ListenerRaised(Exception):
    """What an application's listener raises now and then."""


class Reader(Client):
    """An application that reads its share of some topics and commits how far it came.

    It runs the production member the way `client.member.runner` does, in virtual time.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        group_id: str,
        topics: tuple[str, ...],
        assignors: tuple[str, ...],
        instance_id: str | None = None,
        malformed: bool = False,
    ) -> None:
        super().__init__(cluster, name)
        self._asked = self._answered = 0
        options = cluster.options
        self.group_id = group_id
        self.malformed = malformed
        self.auto_commit = options.auto_commit
        self.settings = MemberSettings(
            group_id=group_id,
            instance_id=instance_id,
            session_timeout_ms=options.session_ms,
            heartbeat_interval_ms=options.heartbeat_ms,
            max_poll_interval_ms=options.rebalance_ms,
            assignors=assignors,
            retry_backoff_ms=options.session_ms // 40,
            retry_backoff_max_ms=options.session_ms // 10,
            auto_commit_interval_ms=2 * options.poll_ms,
            metadata_max_age_ms=6 * options.poll_ms,
        )
        self.member = self._a_member(topics)
        self.diary = Diary(name, self.member.protocol, static=instance_id is not None, readable=not malformed)
        self.work = Work(self)
        self.coordinator: Broker | None = None
        self.leaving = False
        self._tells = False
        """Whether the coordinator has to hear that this member leaves."""
        self._place = m.NO_GENERATION
        self._phase = self.member.phase
        self._called_ms = self._beaten_ms = self.now_ms
        self._beating = self._raised = self._must_fail = False
        self._wake_at: int | None = None
        self._stalled_until = 0
        self._poll()

    def _a_member(self, topics: tuple[str, ...]) -> Member:
        random = self.world.random
        terms: dict[str, Any] = {
            "now_ms": self.now_ms,
            "auto_commit": self.auto_commit,
            "jitter": lambda: random.uniform(0.8, 1.2),
        }
        if not self.malformed:
            return Member(self.settings, topics, **terms)
        rude = Rude(self.settings, topics, **terms)
        rude.rubbish = random.choice(RUBBISH)
        return rude

    # -- the application

    def stall(self, span_ms: int) -> None:
        """Do not poll for so long: the application is busy with something else."""
        self._stalled_until = self.world.now_ms + span_ms

    def wake_up(self) -> None:
        """Go on, and poll again."""
        self._stalled_until = 0
        super().wake_up()

    def leave(self) -> None:
        """Close: leave the group politely, and be gone a little later."""
        if self.leaving:
            return
        self.leaving = self.diary.closing = True
        dynamic = self.settings.instance_id is None
        self._tells = dynamic and self.member.coordinator_known and bool(self.diary.place[1])
        self.member.close(leave=None, timeout_ms=CLOSE_MS, now_ms=self.now_ms)
        self.run()
        self.world.later(CLOSE_MS, self.kill)

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Want other topics from now on."""
        self.member.subscribe(topics, self.now_ms)
        self.run()

    def _poll(self) -> None:
        """Show a sign of life, and work on what is owned."""
        if self.leaving:
            return
        if self.world.now_ms >= self._stalled_until:
            self._called_ms = self.now_ms
            self.member.called(self.now_ms)
            self._hear_pending_error()
            if self.world.chance(0.3):
                self.work.begin()
        self.run()
        self._check_beats()
        self.later(self.options.poll_ms, self._poll)

    def _hear_pending_error(self) -> None:
        """Hear what the member has to tell; what the listener raised is part of that (CB-10)."""
        pending_error = self.member.pending_error()
        if self._raised and pending_error is None:
            raise Violation("callbacks in order", f"{self.name} never heard what its listener raised")
        self._raised = False

    # -- the member, as client.membership runs it

    def run(self) -> None:
        """Do all that the member wants done now; what it waits for comes later."""
        while self.running and self.member.phase is not Phase.STOPPED:
            request = self.member.next(self.now_ms)
            self._look(request)
            if isinstance(request, m.Wait):
                self._wait(request.until_ms)
                return
            self.diary.asks(request)
            CARRY_OUT[type(request)](self, request)

    def _look(self, request: m.Request) -> None:
        """Look at where the member stands now: what it works on, and what it has come to by itself."""
        member = self.member
        if self._must_fail and member.phase not in (Phase.FAILED, Phase.STOPPED):
            raise Violation("members live", f"{self.name} goes on, and another has its place (4.5)")
        if member.phase is not self._phase:
            before, self._phase = self._phase, member.phase
            self._check_phase(before, request)
        self._tells = self._tells and (member.coordinator_known or self.diary.left)
        fetchable = member.fetchable - member.announced
        self.diary.works_on(fetchable)
        if fetchable != self.work.fetchable or member.generation != self._place:
            self._place = member.generation
            self.work.apply(fetchable)
            if self.malformed:  # a leader cannot read what it has, and gives it to others
                return
            owner = self.settings.instance_id or member.generation.member_id
            since = self.diary.since
            self.cluster.checks.works(owner, self.group_id, member.generation, fetchable, since)

    def _check_phase(self, before: Phase, request: m.Request) -> None:
        """Check what a member does that falls asleep, fails or has closed."""
        phase, diary = self.member.phase, self.diary
        self.world.marks.add(phase.value)
        if phase is Phase.ASLEEP:
            silent_ms = self.now_ms - self._called_ms
            if silent_ms < self.settings.max_poll_interval_ms:
                raise Violation("members live", f"{self.name} goes although it polled {silent_ms} ms ago")
            known = self.member.coordinator_known and self.settings.instance_id is None
            if known and before in JOINED and diary.place[1] and not isinstance(request, m.Leave):
                raise Violation("members live", f"{self.name} goes without a word (HT-2)")
            if not isinstance(request, m.Leave):
                diary.lose_place()
        elif phase is Phase.FAILED:
            diary.lose_place()
        elif phase is Phase.STOPPED:
            diary.stopped(tells=self._tells)

    def _wait(self, until_ms: int | None) -> None:
        if until_ms is None or (self._wake_at is not None and self.now_ms < self._wake_at <= until_ms):
            return
        self._wake_at = until_ms
        self.later(until_ms - self.now_ms, self._woken, until_ms)

    def _woken(self, at_ms: int) -> None:
        if self._wake_at == at_ms:
            self._wake_at = None
        self.run()

    def _check_beats(self) -> None:
        """Check that heartbeats go on, whatever the application does (HT-1, HT-3)."""
        member, settings = self.member, self.settings
        late_ms = self.now_ms - self._called_ms - settings.max_poll_interval_ms
        if member.phase in JOINED and member.coordinator_known and late_ms > BEATS_LATE_MS:
            what = f"{self.name} is {member.phase.value} {late_ms} ms after it should have gone (HT-2)"
            raise Violation("members live", what)
        silent = member.phase not in JOINED or not member.coordinator_known
        if silent or self._beating or self.leaving:
            self._beaten_ms = self.now_ms
            return
        due_ms = self._beaten_ms + settings.heartbeat_interval_ms + settings.retry_backoff_max_ms
        if self.now_ms > due_ms + BEATS_LATE_MS:
            what = f"{self.name} is {member.phase.value} and silent for {self.now_ms - self._beaten_ms} ms"
            raise Violation("members beat", what)

    def ask(self, request: Any, done: Done, *, timeout_ms: int = 0, purpose: str = GROUP) -> bool:
        """Ask the coordinator that is known; return whether it gets the request twice."""
        broker = self.coordinator
        assert broker is not None
        timeout_ms = timeout_ms or self.options.request_timeout_ms
        twice = not self.cluster.calm and self.world.chance(self.options.twice_chance)
        if twice:
            self.world.marks.add("twice")
            self.call(broker, request, timeout_ms=timeout_ms, done=lambda _: None, purpose="again")
        self.call(broker, request, timeout_ms=timeout_ms, done=done, purpose=purpose)
        return twice

    def _overtaken(self, number: int) -> None:
        """Note whether the answer to a later question, over another connection, has come before this one."""
        if number < self._answered:
            self.world.marks.add("overtaken")
        self._answered = max(self._answered, number)

    def hang_up(self, line: Line) -> None:
        """Close a connection; note whether answers are lost with it, and the member has to ask again."""
        if line.calls and line.channel.owes:
            self.world.marks.add("answer lost")
        super().hang_up(line)

    def _told(self, wanted: m.Request, done: Done) -> Done:
        """Return the callback that hands the member an answer, or word that none will come, and goes on."""

        self._asked += 1
        number = self._asked

        def told(answer: Any) -> None:
            if answer is not None:
                self._overtaken(number)
            if answer is None:
                self.member.unanswered(wanted, self.now_ms)
            else:
                done(answer)
            self.run()

        return told

    def refused(self, code: Code | None, place: m.Generation) -> None:
        """Take note of what a heartbeat or a commit of a generation was answered."""
        if code:
            self._must_fail = self.diary.refused(code, place, joined=self.member.phase in JOINED)

    def _break(self, wanted: m.Disconnect) -> None:
        """Break the connections to the coordinator."""
        if self.coordinator is not None:
            for purpose in (GROUP, OFFSETS):
                self.break_off(self.coordinator, purpose)

    def _find(self, wanted: m.FindCoordinator) -> None:
        def done(answer: Any) -> None:
            (found,) = answer.coordinators
            code = Code(found.error_code)
            if not code:
                self.coordinator = self.cluster.at(found.host)
                self._beaten_ms = self.now_ms
            self.member.found(code, self.now_ms)

        request = messages.find_coordinator(self.version(ApiKey.FIND_COORDINATOR), self.group_id)
        self._ask_anyone(request, self._told(wanted, done))

    def _refresh_metadata(self, wanted: m.RefreshMetadata) -> None:
        def done(answer: Any) -> None:
            found = messages.read_metadata(answer).assignable(internal=wanted.topics is not None)
            self.member.metadata_received(wanted, found, self.now_ms)

        request = messages.metadata(self.version(ApiKey.METADATA), wanted.topics)
        self._ask_anyone(request, self._told(wanted, done))

    def _ask_anyone(self, request: Any, done: Done) -> None:
        broker = self.world.random.choice(list(self.cluster.brokers.values()))
        self.call(broker, request, timeout_ms=self.options.request_timeout_ms, done=done, purpose=DATA)

    def _exchange(self, wanted: m.Coordinated) -> None:
        """Ask the coordinator what the member wants, as `client.member.runner` does."""
        exchange = exchange_of(self.member, self.settings, wanted, timeout_ms=self.options.request_timeout_ms)
        self._beating = self._beating or isinstance(wanted, m.Heartbeat)

        def done(answer: Any) -> None:
            said = exchange.read(answer)
            self._note(wanted, said)
            exchange.deliver(said, self.now_ms)

        def told(answer: Any) -> None:
            if isinstance(wanted, m.Heartbeat):
                self._beating, self._beaten_ms = False, self.now_ms
            tell(answer)

        tell = self._told(wanted, done)
        request, purpose = (
            exchange.make(self.version(exchange.api_key)),
            GROUP if exchange.parked else OFFSETS,
        )
        self.ask(request, told, timeout_ms=exchange.timeout_ms, purpose=purpose)

    def _note(self, wanted: m.Coordinated, said: Any) -> None:
        """Take note of what the coordinator said, before the member hears it."""
        if isinstance(wanted, m.Join):
            self.diary.joined(wanted, said)
            self._beaten_ms = self.now_ms
        elif isinstance(wanted, m.Sync):
            self.diary.synced(wanted, said)
        elif isinstance(wanted, m.Heartbeat):
            self.refused(said, wanted.generation)

    def _commit(self, wanted: m.Commit) -> None:
        """Commit how far the application has come, as the member asks."""
        offsets = self.work.progress(wanted.partitions)
        if not offsets:
            self.member.committed(wanted, Code.NONE, self.now_ms)
            return

        def done(code: Code | None) -> None:
            self.refused(code, wanted.generation)
            told = Code.NETWORK_EXCEPTION if code is None else code
            self.member.committed(wanted, told, self.now_ms)
            self.run()

        self.work.send(wanted.generation, offsets, done, tell=False)

    # -- the listener

    def _call_back(self, wanted: m.Call) -> None:
        """Be the listener, which may take its time, commit what is revoked, or raise something."""
        if self._dies_instead(wanted):
            return
        self.diary.calls(wanted, self.member.topics)
        if wanted.partitions:
            self.world.marks.add(f"{'eager' if self.diary.eager else 'cooperative'} {wanted.kind}")
        if wanted.kind == "assigned":
            self.world.tell(f"{self.name} owns {len(self.member.owned)} in {self.member.generation.id}")
        if wanted.kind == "revoked" and self.auto_commit:
            self.work.check_committed(wanted.partitions)
        elif wanted.kind == "revoked" and not self.member.commit_refusal() and self.world.chance(0.5):
            self._commit_revoked(wanted)
            return
        self._think(wanted)

    def _dies_instead(self, wanted: m.Call) -> bool:
        """Whether the process ends before it has given up what it was asked for; it is soon back, in the calm
        too, but not without end.
        """
        open_to = self.settings.instance_id is not None and self.cluster.deaths_in_revocation > 0
        if wanted.kind != "revoked" or self.leaving or not open_to or not self.world.chance(0.5):
            return False
        self.cluster.deaths_in_revocation -= 1
        self.world.marks.add("died giving up")
        self.kill()
        return True

    def _commit_revoked(self, wanted: m.Call) -> None:
        """Commit what is about to go, as applications do, and only then be done."""
        offsets = self.work.progress(wanted.partitions)

        def done(code: Code | None) -> None:
            self._think(wanted)
            self.run()

        if offsets:
            self.work.send(self.member.generation, offsets, done, tell=True)
        else:
            self._think(wanted)

    def _think(self, wanted: m.Call) -> None:
        longest_ms = min(self.options.listener_ms, self.options.poll_ms if self.cluster.calm else FOREVER)
        if longest_ms and not self.leaving and self.world.chance(0.5):
            self.later(self.world.between(1, longest_ms), self._thought)
        else:
            self._return()

    def _thought(self) -> None:
        self._return()
        self.run()

    def _return(self) -> None:
        error = None
        if self.options.listener_raises and not self.leaving and self.world.chance(0.2):
            error, self._raised = ListenerRaised("the listener's own mistake"), True
            self.world.marks.add("listener raised")
        self.diary.returned()
        self.member.called_back(error, self.now_ms)

    # -- how it stands

    def pending(self) -> str:
        """Return why this reader is not at work, "" if it is."""
        member = self.member
        if member.phase is Phase.FAILED:
            return f"{self.name} has failed: {member.failure}"
        if not member.ready:
            wants = f", wants to rejoin: {member.rejoin_why}" if member.rejoin_why else ""
            return f"{self.name} is {member.phase.value} in {member.generation}{wants}"
        return self.diary.pending()


CARRY_OUT: Mapping[type[m.Request], Callable[[Reader, Any], None]] = {
    m.Disconnect: Reader._break,
    m.FindCoordinator: Reader._find,
    m.RefreshMetadata: Reader._refresh_metadata,
    m.Join: Reader._exchange,
    m.Sync: Reader._exchange,
    m.Heartbeat: Reader._exchange,
    m.Commit: Reader._commit,
    m.Call: Reader._call_back,
    m.Leave: Reader._exchange,
    m.DescribeGroup: Reader._exchange,
}
