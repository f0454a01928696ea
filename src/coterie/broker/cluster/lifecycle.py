"""The life of a broker among others, as a state machine. Pure: events in, actions out.

    STARTING --registered, image there--> LIVE <--> SUSPENDED
        LIVE, SUSPENDED --epoch gone--> FENCED --registered anew, image there--> LIVE
        LIVE, SUSPENDED --terminate--> LEAVING: hands over, drains --> ENDED

Every event brings the time, one monotonic clock's, and returns what to do now; where nothing happens until
`next_ms`, `tick` is the event then. Each statement that is returned is answered by one event, which may be
`unanswered`; a heartbeat's may be that its connection is gone. Whoever was stopped for a while sees time
jump: each event first looks at the clock. From `serves_until_ms` on nobody is answered before one has come.
"""

from __future__ import annotations

from enum import Enum, auto
from uuid import UUID

from coterie.broker.cluster.actions import (
    Action,
    AwaitEngine,
    Connect,
    Drain,
    Exit,
    Fence,
    HandOver,
    Resume,
    Serve,
    Suspend,
)
from coterie.broker.cluster.changes import (
    Change,
    Changed,
    LeaveCluster,
    NotChanged,
    RegisterBroker,
    StartLeaving,
    TakeOver,
    Why,
)
from coterie.broker.cluster.image import Delta, DoesNotFollow, Endpoint, Image
from coterie.broker.cluster.judging import Judging
from coterie.broker.cluster.made import SeenByOthers, SeenHere
from coterie.broker.cluster.statements import BrokerHeartbeat, HeartbeatAnswer, ReadDelta
from coterie.broker.cluster.terms import (
    ANNOUNCE_AFTER_MS,
    DRAIN_WITHIN_MS,
    HAND_OVER_WITHIN_MS,
    LEAVE_WITHIN_MS,
    READS_ANEW,
    SAY_SO_MS,
    UNGIVEN,
    UNREACHED,
    UNWRITTEN,
    LifecycleTerms,
    Retries,
)


class Phase(Enum):
    """Where a broker is in its life."""

    STARTING = auto()
    LIVE = auto()
    SUSPENDED = auto()
    FENCED = auto()
    LEAVING = auto()
    ENDED = auto()


class BrokerLifecycle:
    """One broker's life, from the start of its process to the end."""

    def __init__(
        self,
        broker_id: int,
        terms: LifecycleTerms,
        *,
        incarnation: UUID,
        listeners: tuple[Endpoint, ...] = (),
        rack: str | None = None,
        level: int = 0,
        software: str = "",
    ) -> None:
        self.broker_id = broker_id
        self.broker_epoch = 0
        """That of the registration that is known to stand, 0 for none."""
        self.next_ms: int | None = 0
        self.image = Image()
        """The metadata that the broker goes by."""
        self.seen = SeenByOthers()
        self._terms = terms
        self._registration = RegisterBroker(broker_id, incarnation, 0, listeners, rack, level, software)
        self._judging = Judging(terms)
        self._actions: list[Action] = []
        self._phase = Phase.STARTING
        self._suspended = False
        # the connection of the heartbeats
        self._connected = self._connecting = False
        self._connect = Retries()
        self._connect_sent_ms = 0
        self._history: str | None = None
        self._disconnected_ms: int | None = None  # the first since a heartbeat was answered
        # heartbeats
        self._heartbeat: BrokerHeartbeat | None = None
        self._sent_ms = self._heartbeat_at_ms = 0
        self._renewed_ms = 0  # when the last one that was answered was sent
        # metadata
        self._newest = 0
        self._reading: ReadDelta | None = None
        self._read = Retries()
        self._whole = True  # the next reading is of all rows: the image, if any, is not to be relied on
        self._anew = False  # it was read so since the broker has served
        self._seen_here = SeenHere()
        # changes under way
        self._change: Change | None = None
        self._change_sent_ms = 0
        self._changing = Retries()
        self._taking_over: dict[int, TakeOver] = {}
        # leaving
        self._drained = self._announced = False  # announced: the others know that it leaves
        self._leaving_since_ms = 0
        self._drain_by_ms = 0
        self._unwritten = ""  # a sentence, where not all was by then
        self._hand_over_by_ms: int | None = None  # while it does, or is about to
        self._announce_at_ms: int | None = None
        self._exit_at_ms: int | None = None
        self._stop_by_ms: int | None = None  # where it ends before it serves
        self._away_said_ms: int | None = None  # since when the engine was away where that was said last

    # -- what others ask

    @property
    def level(self) -> int:
        """The level of the broker's software."""
        return self._registration.level

    @property
    def phase(self) -> Phase:
        """Where the broker is in its life, as far as it has looked at the clock."""
        return Phase.SUSPENDED if self._phase is Phase.LIVE and self._suspended else self._phase

    @property
    def hands_over(self) -> bool:
        """Whether the broker leaves, and gives partitions of internal topics away one after another."""
        return self._announced and self._hand_over_by_ms is not None

    def serves(self, now_ms: int) -> bool:
        """Return whether a client may be answered by what the image and the memory say."""
        return now_ms < self.serves_until_ms

    @property
    def serves_until_ms(self) -> int:
        """When the broker has to stop serving unless another heartbeat is answered; 0 where it must not."""
        leading = self._phase is Phase.LIVE or (self._phase is Phase.LEAVING and not self._drained)
        if self._suspended or not leading or self._whole:
            return 0
        until_ms = self._renewed_ms + self._terms.suspend_after_ms
        if self._disconnected_ms is not None:
            until_ms = min(until_ms, self._disconnected_ms + self._terms.disconnected_ms)
        return until_ms

    # -- events

    def tick(self, now_ms: int) -> list[Action]:
        """`next_ms` has come, or the process goes on after a while."""
        self._look_at_clock(now_ms)
        return self._due_actions(now_ms)

    def connected(self, history: str, now_ms: int) -> list[Action]:
        """The connection is open, with a session. `history` is another one after the engine has gone back to
        an older state: nothing that was known of it holds.
        """
        self._look_at_clock(now_ms)
        self._connecting, self._connected = False, True
        self._connect.worked()
        self._judging.begin_anew(now_ms)
        self._heartbeat_at_ms = now_ms
        if self._history not in (None, history):
            self._read_all_anew()
        self._history = history
        return self._due_actions(now_ms)

    def disconnected(self, now_ms: int) -> list[Action]:
        """The connection was not opened, or is no more. A heartbeat that was under way has no answer."""
        self._look_at_clock(now_ms)
        self._lose_connection(now_ms)
        self._connect.failed(now_ms)
        return self._due_actions(now_ms)

    def heartbeat_answered(
        self, heartbeat: BrokerHeartbeat, answer: HeartbeatAnswer, now_ms: int
    ) -> list[Action]:
        """The engine has answered a heartbeat; one that was given up before is passed over."""
        self._look_at_clock(now_ms)
        if heartbeat is self._heartbeat and self._phase is not Phase.ENDED:
            self._heartbeat = None
            self._newest = max(self._newest, answer.version)
            self.seen.take(answer.brokers, self.broker_id, answer.version)
            self._look_soon(now_ms)
            if answer.version < heartbeat.least_version:
                self._read_all_anew()
            if answer.counted:
                self._counted(answer, now_ms)
            else:
                self._epoch_gone(now_ms)
        return self._due_actions(now_ms)

    def notified(self, version: int, now_ms: int) -> list[Action]:
        """The engine says that the metadata has changed."""
        self._look_at_clock(now_ms)
        self._newest = max(self._newest, version)
        return self._due_actions(now_ms)

    def delta_read(self, read: ReadDelta, delta: Delta, now_ms: int) -> list[Action]:
        """The engine has read a delta, which makes the next image; all is read anew if it does not follow."""
        self._look_at_clock(now_ms)
        if read is self._reading and self._phase is not Phase.ENDED:
            self._reading = None
            try:
                self.image = (Image() if self._whole else self.image).after(delta)
            except DoesNotFollow:
                if self._whole:
                    self._read.failed(now_ms)
                self._read_all_anew()
            else:
                self._read.worked()
                self._whole = False
                if self._phase is Phase.LIVE and delta.above and delta.is_waited_for:
                    self._heartbeat_at_ms = min(self._heartbeat_at_ms, now_ms)
                if any(row.leader == self.broker_id for row in delta.partitions):
                    self._seen_here.elected()
                self._look_at_own_row(now_ms)
        return self._due_actions(now_ms)

    def change_answered(self, change: Change, answer: Changed | NotChanged, now_ms: int) -> list[Action]:
        """The engine has made a change, or refused it."""
        self._look_at_clock(now_ms)
        if isinstance(answer, Changed):
            self._newest = max(self._newest, answer.version)
        if isinstance(change, TakeOver):
            self._taking_over.pop(change.broker_id, None)
        elif change is self._change:
            self._change = None
            self._changing.worked()
            if isinstance(change, RegisterBroker):
                self._registration_answered(change, answer, now_ms)
            elif isinstance(change, StartLeaving):  # refused, too: a heartbeat will tell why
                self._announced = True
                if self.hands_over:
                    self._actions.append(HandOver())
            elif self._phase is Phase.LEAVING:  # refused, too: it leads nothing
                self._left(now_ms)
            elif isinstance(change, LeaveCluster):
                self.broker_epoch = 0
        return self._due_actions(now_ms)

    def unanswered(self, asked: Change | ReadDelta, now_ms: int) -> list[Action]:
        """No answer will come to a change or a reading; whether it has happened, or will, is not known."""
        self._look_at_clock(now_ms)
        if isinstance(asked, TakeOver):
            self._taking_over.pop(asked.broker_id, None)
        elif asked is self._reading:
            self._reading = None
            self._read.failed(now_ms)
            self._newest = max(self._newest, self.image.version + 1)  # as it was when it was asked
        elif asked is self._change:
            self._change = None
            self._changing.failed(now_ms)
        return self._due_actions(now_ms)

    def refused(self, broker_epoch: int, now_ms: int) -> list[Action]:
        """The engine has refused an append of this epoch: it is gone."""
        self._look_at_clock(now_ms)
        if broker_epoch == self.broker_epoch != 0:
            self._epoch_gone(now_ms)
        return self._due_actions(now_ms)

    def await_seen(self, version: int, now_ms: int) -> list[Action]:
        """Somebody waits for the images of all to reach a version: heartbeats, whose answers tell, are sent
        sooner than they are due for some moments.
        """
        self._look_at_clock(now_ms)
        if self.seen.await_all(version):
            self._look_soon(now_ms)
        return self._due_actions(now_ms)

    def settled(self, now_ms: int, *, all_: bool) -> list[Action]:
        """Whether all is loaded that the broker is to lead of internal topics by its image, which it goes by
        now. Until it is, that is said with the version that it has seen; once it is, that is said at once
        where somebody is leaving, who may wait for it to hand over the next.
        """
        self._look_at_clock(now_ms)
        news = self._seen_here.settle(all_=all_)
        if news and len(self.image.live) < len(self.image.unfenced):
            self._heartbeat_at_ms = min(self._heartbeat_at_ms, now_ms)
        return self._due_actions(now_ms)

    def terminate(self, now_ms: int) -> list[Action]:
        """The process is asked to stop."""
        self._look_at_clock(now_ms)
        if self._phase is Phase.LIVE:
            self._phase = Phase.LEAVING
            self._leaving_since_ms = now_ms
            self._hand_over_by_ms = now_ms + HAND_OVER_WITHIN_MS
        elif self._phase is not Phase.LEAVING and not self._begin_stopping(now_ms):
            self._end("")
        return self._due_actions(now_ms)

    def handed_over(self, now_ms: int) -> list[Action]:
        """Nothing is left to be handed over by itself, and those that were given something serve it."""
        self._look_at_clock(now_ms)
        if self.hands_over:
            self._drain(now_ms)
        return self._due_actions(now_ms)

    def drained(self, now_ms: int) -> list[Action]:
        """Nothing is being decided any more, and what was has landed: others may lead."""
        self._look_at_clock(now_ms)
        self._drained = True
        return self._due_actions(now_ms)

    def end(self, sentence: str, now_ms: int) -> list[Action]:
        """The broker cannot be of this cluster any longer; the sentence says why."""
        self._end(sentence)
        return self._due_actions(now_ms)

    # -- what they lead to

    def _look_at_clock(self, now_ms: int) -> None:
        """Note that too much time has passed, before anything else."""
        leading = self._phase is Phase.LIVE or (self._phase is Phase.LEAVING and not self._drained)
        if leading and not self._suspended and not self.serves(now_ms):
            self._suspended = True
            self._actions.append(Suspend(self._terms.why_suspended(now_ms - self._renewed_ms)))

    def _counted(self, answer: HeartbeatAnswer, now_ms: int) -> None:
        """Go on: the broker's epoch stands as of the sending of the heartbeat."""
        self._renewed_ms = self._sent_ms
        if self._disconnected_ms is not None:
            self._disconnected_ms = None
            self._drain_by_ms = min(now_ms, self._leaving_since_ms + HAND_OVER_WITHIN_MS) + DRAIN_WITHIN_MS
        dead = self._judging.dead(answer, self.broker_id, self._sent_ms, now_ms)
        suspicion_ms = self._judging.next_ms(self._sent_ms)
        if suspicion_ms is not None:
            self._heartbeat_at_ms = min(self._heartbeat_at_ms, suspicion_ms)
        self._serve_if_possible(now_ms)
        if self._phase is not Phase.LIVE or not self.serves(now_ms):
            return
        for one in dead:
            if one.broker_id not in self._taking_over:
                change = TakeOver(one.broker_id, one.broker_epoch, one.beats)
                self._taking_over[one.broker_id] = change
                self._actions.append(change)

    def _look_soon(self, now_ms: int) -> None:
        """Have the next heartbeat be early if somebody waits for what the others have seen."""
        pause_ms = self.seen.look_within_ms()
        if pause_ms is not None:
            self._heartbeat_at_ms = min(self._heartbeat_at_ms, now_ms + pause_ms)

    def _serve_if_possible(self, now_ms: int) -> None:
        """Begin to serve, or to serve again: the epoch stands, and the image has what was decided with it."""
        stopping = self._stop_by_ms is not None
        if stopping or self._whole or not self.broker_epoch or self.image.version < self.broker_epoch:
            return
        if now_ms >= self._renewed_ms + self._terms.suspend_after_ms or self._disconnected_ms is not None:
            return
        if self._phase in (Phase.STARTING, Phase.FENCED):
            self._phase, self._suspended, self._anew = Phase.LIVE, False, False
            self._actions.append(Serve(self.broker_epoch))
        elif self._suspended and self._phase in (Phase.LIVE, Phase.LEAVING):
            self._suspended = False
            self._actions.append(Resume(self._anew))
            self._anew = False

    def _read_all_anew(self) -> None:
        """Rely on the image no more."""
        self._whole = self._anew = True
        self._reading = None
        self.seen.begin_anew()
        if self._phase in (Phase.LIVE, Phase.LEAVING) and not self._suspended:
            self._suspended = True
            self._actions.append(Suspend(READS_ANEW))

    def _look_at_own_row(self, now_ms: int) -> None:
        row = self.image.brokers.get(self.broker_id)
        if self._phase is Phase.STARTING and not self.broker_epoch and self._change is None:
            replaces = 0 if row is None else row.broker_epoch
            self._registration = self._registration._replace(replaces=replaces)
        if self.image.level > self.level:
            self._end(f"the cluster is at level {self.image.level}, and this software at {self.level}")
        elif row and self.broker_epoch and row.ends(self.broker_epoch, self._registration.incarnation):
            self._epoch_gone(now_ms)
        else:
            self._serve_if_possible(now_ms)

    def _epoch_gone(self, now_ms: int) -> None:
        """Stop: this registration is over. If another process has made a later one, the next will tell."""
        if self._phase is Phase.ENDED:
            return
        if self._phase is Phase.LEAVING and self._drained:
            self._left(now_ms)
            return
        self._registration = self._registration._replace(replaces=self.broker_epoch)
        self.broker_epoch = 0
        self._heartbeat = None
        if self._phase is not Phase.FENCED and self._phase is not Phase.STARTING:
            self._actions.append(Fence())
        if self._phase is Phase.LEAVING:
            self._end("fenced before it had given away what it led")
        else:
            self._phase, self._suspended = Phase.FENCED, False

    def _left(self, now_ms: int) -> None:
        """Say for a while longer that others lead."""
        if self._exit_at_ms is None:
            self.broker_epoch = 0
            self._exit_at_ms = now_ms + SAY_SO_MS
            self._actions.append(Fence())

    def _registration_answered(
        self, change: RegisterBroker, answer: Changed | NotChanged, now_ms: int
    ) -> None:
        if isinstance(answer, Changed):
            self.broker_epoch = answer.version
            self._renewed_ms = self._change_sent_ms
            self._heartbeat_at_ms = now_ms
            self._serve_if_possible(now_ms)
        elif self._phase is Phase.FENCED and (sentence := change.why_replaced(answer)):
            self._end(sentence)
        elif answer.why is Why.OLDER_SOFTWARE:  # which the image says, once it is the newest
            self._newest = max(self._newest, self.image.version + 1)
            self._changing.failed(now_ms)
        else:  # of the process before this one, or our own that was not answered
            self._registration = change._replace(replaces=answer.broker_epoch)
            if self._stop_by_ms is not None and answer.incarnation == change.incarnation:
                self.broker_epoch = answer.broker_epoch  # to leave

    def _begin_stopping(self, now_ms: int) -> bool:
        """Return whether a broker that does not serve has something to take back before it ends: others are
        to lead what it was given by a registration, which may be made though nobody waits for it.
        """
        registered = self.broker_epoch or isinstance(self._change, RegisterBroker)
        if not registered or self._stop_by_ms is not None or self._phase is Phase.ENDED:
            return False
        self._stop_by_ms = now_ms + self._terms.session_timeout_ms  # then the others find out by themselves
        return True

    def _end(self, sentence: str) -> None:
        self._phase = Phase.ENDED
        self._actions.append(Exit(sentence))

    def _lose_connection(self, now_ms: int) -> None:
        self._connected = self._connecting = False
        self._heartbeat = None
        if self._disconnected_ms is None:
            self._disconnected_ms = now_ms

    # -- what is due

    def _due_actions(self, now_ms: int) -> list[Action]:
        """Return the actions that have come together, with those whose time has come."""
        self.next_ms = None
        if self._phase is not Phase.ENDED:
            self._look_at_leaving(now_ms)
            self._look_at_stopping(now_ms)
        if self._phase is not Phase.ENDED:
            self._look_at_connection(now_ms)
            self._look_at_metadata(now_ms)
            self._look_at_registration(now_ms)
            self._look_at_absence(now_ms)
            if self._phase in (Phase.LIVE, Phase.LEAVING) and not self._suspended and not self._drained:
                self._is_due(self.serves_until_ms, now_ms)
        actions, self._actions = self._actions, []
        return actions

    def _is_due(self, at_ms: int, now_ms: int) -> bool:
        """Return whether a time has come; if it has not, `next_ms` is no later."""
        if at_ms <= now_ms:
            return True
        self.next_ms = at_ms if self.next_ms is None else min(self.next_ms, at_ms)
        return False

    def _look_at_connection(self, now_ms: int) -> None:
        """Connect, and send a heartbeat; give a connection up that keeps one for too long."""
        overdue = self._heartbeat is not None and self._is_due(
            self._sent_ms + self._terms.answer_late_ms, now_ms
        )
        if overdue:
            self._lose_connection(now_ms)
        if not self._connected:
            wanted_ms = self._connect.at_ms
            if self._connecting:  # for too long
                wanted_ms = self._connect_sent_ms + self._terms.session_timeout_ms
            if overdue or self._is_due(wanted_ms, now_ms):
                self._connecting, self._connect_sent_ms = True, now_ms
                self._is_due(now_ms + self._terms.session_timeout_ms, now_ms)
                self._actions.append(Connect())
        elif self.broker_epoch and self._heartbeat is None and self._is_due(self._heartbeat_at_ms, now_ms):
            self._heartbeat = BrokerHeartbeat(self.broker_id, self.broker_epoch, self._says_seen)
            self._sent_ms, self._heartbeat_at_ms = now_ms, now_ms + self._terms.heartbeat_interval_ms
            self._is_due(now_ms + self._terms.answer_late_ms, now_ms)
            self._actions.append(self._heartbeat)

    @property
    def _says_seen(self) -> int:
        return 0 if self._whole else self._seen_here.say(self.image.version)

    def _look_at_metadata(self, now_ms: int) -> None:
        wanted = self._whole or self._newest > self.image.version
        if wanted and self._reading is None and self._connected and self._is_due(self._read.at_ms, now_ms):
            self._newest = self.image.version  # or what is heard from now on
            self._reading = ReadDelta(0 if self._whole else self.image.version)
            self._actions.append(self._reading)

    def _look_at_registration(self, now_ms: int) -> None:
        """Register, once it is known what there is to replace."""
        wanted = self._phase in (Phase.STARTING, Phase.FENCED) and not self.broker_epoch and not self._whole
        if not wanted or self._change is not None or not self._connected or self._stop_by_ms is not None:
            return
        if self._is_due(self._changing.at_ms, now_ms):
            self._change, self._change_sent_ms = self._registration, now_ms
            self._actions.append(self._registration)

    def _look_at_leaving(self, now_ms: int) -> None:
        if self._phase is not Phase.LEAVING:
            return
        if self._exit_at_ms is not None:
            if self._is_due(self._exit_at_ms, now_ms):
                self._end(self._unwritten)
            return
        if self._is_due(self._away_by_ms, now_ms):
            self._end(UNREACHED % (self._terms.away_within_ms // 1_000))
        elif self._is_due(self._leaving_since_ms + LEAVE_WITHIN_MS, now_ms):
            self._end(UNGIVEN)
        elif self._hand_over_by_ms is not None:
            self._look_at_handing_over(self._hand_over_by_ms, now_ms)
        else:
            self._look_at_draining(now_ms)

    @property
    def _away_by_ms(self) -> int:
        """When a broker that leaves ends though the engine may only be away."""
        return max(self._leaving_since_ms, self._renewed_ms) + self._terms.away_within_ms

    def _look_at_absence(self, now_ms: int) -> None:
        """Say, each time that the engine goes away before a stop or in it, for how long it is waited for."""
        since_ms, leaving = self._disconnected_ms, self._phase is Phase.LEAVING and self._exit_at_ms is None
        if since_ms is None or since_ms == self._away_said_ms or not leaving:
            return
        if self._is_due(since_ms + self._terms.disconnected_ms, now_ms):
            self._away_said_ms = since_ms
            by_ms = min(self._away_by_ms, self._leaving_since_ms + LEAVE_WITHIN_MS)
            self._actions.append(AwaitEngine(by_ms - now_ms))

    def _look_at_draining(self, now_ms: int) -> None:
        """Give all away once what was decided has landed, or has not for too long: then it never does."""
        if not self._drained and self._disconnected_ms is None and self._is_due(self._drain_by_ms, now_ms):
            self._drained, self._unwritten = True, UNWRITTEN
        if self._drained and self._change is None and self._is_due(self._changing.at_ms, now_ms):
            self._change = LeaveCluster(self.broker_id, self.broker_epoch)
            self._actions.append(self._change)
        elif not self._drained:
            self._announce(now_ms)

    def _look_at_stopping(self, now_ms: int) -> None:
        if self._stop_by_ms is None:
            return
        under_way = self._change is not None
        if not (self.broker_epoch or under_way) or self._is_due(self._stop_by_ms, now_ms):
            self._end("")
        elif not under_way and self._is_due(self._changing.at_ms, now_ms):
            self._change = LeaveCluster(self.broker_id, self.broker_epoch)
            self._actions.append(self._change)

    def _look_at_handing_over(self, by_ms: int, now_ms: int) -> None:
        """Say first that the broker leaves, so that it is given nothing meanwhile; give up handing over where
        that would take too long, or there is nobody to hand over to.
        """
        alone = all(one == self.broker_id for one in self.image.live)
        if alone or self._suspended or self._is_due(by_ms, now_ms):
            self._drain(now_ms)
        elif not self._announced and self._change is None and self._is_due(self._changing.at_ms, now_ms):
            self._change = StartLeaving(self.broker_id, self.broker_epoch)
            self._actions.append(self._change)

    def _drain(self, now_ms: int) -> None:
        self._hand_over_by_ms = None
        self._drain_by_ms = now_ms + DRAIN_WITHIN_MS
        self._is_due(self._drain_by_ms, now_ms)
        self._actions.append(Drain())
        if not self._announced:
            self._announce_at_ms = now_ms + ANNOUNCE_AFTER_MS
            self._is_due(self._announce_at_ms, now_ms)

    def _announce(self, now_ms: int) -> None:
        """Have the others give it nothing more, once draining takes long."""
        if self._announce_at_ms is not None and self._is_due(self._announce_at_ms, now_ms):
            self._announce_at_ms = None
            self._actions.append(StartLeaving(self.broker_id, self.broker_epoch))
