"""One of several brokers on a machine: it goes by the metadata in their file, and proposes changes of it.

Nobody takes over what it leads, so it need not show that it lives: the lock of its directory keeps others
out. While the file cannot be read or written it goes on by what it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from coterie.broker.cluster.changes import Changed, NotChanged
from coterie.broker.cluster.image import Delta, DoesNotFollow, Image
from coterie.broker.cluster.made import MadeChanges, taking_ids
from coterie.broker.cluster.statements import (
    BrokerHeartbeat,
    HeartbeatAnswer,
    ReadDelta,
    Refused,
    ReserveProducerIds,
)
from coterie.broker.processes.changes import RegisterProcess, Static
from coterie.broker.processes.sqlite import ReadHeartbeats

if TYPE_CHECKING:
    from coterie.broker.cluster.changes import Change, Proposed
    from coterie.broker.cluster.statements import Answer, ProducerIds
    from coterie.broker.processes.engine import SqliteEngine, SqliteSession
    from coterie.broker.processes.sqlite import SqliteStatement

log = logging.getLogger("coterie.broker")

FAULT = "a fault in the broker: what it serves is not to be relied on"
RETRY_MS = 200
LOOK_EVERY_MS = 5


class Serves(Protocol):
    """What a broker serves by the metadata (`Hosting`)."""

    def apply(self, before: Image, after: Image) -> None:
        """Go by another image."""
        ...

    def serve(self, broker_epoch: int) -> None:
        """Lead what the image says."""
        ...


class ProcessMember:
    """The broker's part in the cluster. `later` calls a function after so many milliseconds."""

    def __init__(
        self,
        registration: RegisterProcess,
        engine: SqliteEngine,
        hosting: Serves,
        *,
        clock: Callable[[], int],
        later: Callable[[int, Callable[[], None]], object],
        serving: Callable[[], object],
        exit_with: Callable[[str], None],
    ) -> None:
        """`serving` is called once the broker leads what it has to; `exit_with` ends the process."""
        self.image = Image()
        self.history: str | None = None
        self._registration = registration
        self._engine = engine
        self._hosting = hosting
        self._clock = clock
        self._later = later
        self._serving = serving
        self._exit_with = exit_with
        self._session: SqliteSession | None = None
        self._broker_epoch = 0
        self._served = False
        self._reading = False
        self._newest = 0  # the version that there is, as far as it was heard of
        self._made = MadeChanges(clock)
        self._looking = False  # whether it looks how far the others are, or will soon

    def refused(self, broker_epoch: int) -> None:
        """Take note that what is led is not to be relied on, which cannot be: files have one owner."""
        self._exit_with("the metadata contradict what this broker leads")

    def act(self, do: Callable[[], None]) -> None:
        """Do something that follows from an image: a fault in it ends the process."""
        try:
            do()
        except Exception:
            log.exception("an image could not be gone by")
            self._exit_with(FAULT)

    # -- the session

    def begin(self) -> None:
        """Connect, and register."""
        self._engine.connect(opened=self._opened, ended=self._ended, notified=self._notified)

    def _opened(self, session: SqliteSession, history: str) -> None:
        if self.history not in (None, history):
            self._exit_with("the file of the metadata is another one than before")
            return
        self._session, self.history = session, history
        if not self._broker_epoch:
            self._register(session)
        else:
            self._read(self.image.version)

    def _register(self, session: SqliteSession) -> None:
        if session is self._session:
            session.send(self._registration, partial(self._registered, session))

    def _ended(self) -> None:
        """Connect again; what was proposed may have been made."""
        self._session, self._reading = None, False
        self._made.answer(own=self.image.version, all_=self.image.version)  # what it has seen was made
        self._made.give_up()
        self._later(RETRY_MS, self.begin)

    def _registered(self, session: SqliteSession, answer: Answer | None) -> None:
        match answer:
            case Changed(version):
                self._broker_epoch = version
                self._notified(version)
            case NotChanged():
                self._exit_with(f"broker {self._registration.broker_id} is none of this cluster")
            case Refused():  # as on a full disk; the engine has said why
                self._later(RETRY_MS, partial(self._register, session))

    # -- images

    def _notified(self, version: int) -> None:
        self._newest = max(self._newest, version)
        if not self._reading and self._newest > self.image.version:
            self._read(self.image.version)

    def _read(self, above: int) -> None:
        if self._session is not None:
            self._reading = True
            self._session.send(ReadDelta(above), self._delta_read)

    def _delta_read(self, answer: Answer | None) -> None:
        self._reading = False
        if not isinstance(answer, Delta):
            return  # the session has ended
        before = self.image
        try:
            after = (before if answer.above else Image()).after(answer)
        except DoesNotFollow:
            if answer.above:
                self._read(0)
            else:
                self._exit_with("the file of the metadata is damaged")
            return
        if after.version < before.version:
            self._exit_with("the file of the metadata has gone back to an older state")
            return
        self.image = after
        self._hosting.apply(before, after)
        self._serve_once_registered()
        self._say_seen()
        self._answer_made()
        self._notified(after.version)

    def _serve_once_registered(self) -> None:
        if not self._served and 0 < self._broker_epoch <= self.image.version:
            self._served = True
            self._hosting.serve(self._broker_epoch)
            self._serving()

    def _say_seen(self) -> None:
        """Have others see how far this broker is: they may wait for it. What cannot be written now is said
        again, unless there is more to say by then.
        """
        session, seen = self._session, self.image.version
        if session is None or not self._served:
            return

        def said(answer: Answer | None) -> None:
            if isinstance(answer, Refused):  # as on a full disk; the engine has said why
                self._later(RETRY_MS, again)

        def again() -> None:
            if session is self._session and seen == self.image.version:
                self._say_seen()

        session.send(BrokerHeartbeat(self._registration.broker_id, self._broker_epoch, seen), said)

    # -- changes on behalf of clients

    def propose(self, change: Change, answered: Proposed) -> None:
        """Have metadata changed; `answered` is called once the own image shows it, with None if what came of
        it is not known. What makes topics is answered when all brokers know of them, or some time later.
        """
        self._send(Static(change), self._made.taking(change, answered, self._change_made))

    def _change_made(self, version: int) -> None:
        self._notified(version)
        self._answer_made()

    def reserve_producer_ids(self, answered: Callable[[ProducerIds | None], None]) -> None:
        """Have a block of producer ids that no other broker gets; None if there is none to be had now."""
        self._send(ReserveProducerIds(), taking_ids(answered))

    def _send(self, statement: SqliteStatement, answered: Callable[[Answer | None], None]) -> None:
        if self._session is None:
            answered(None)
        else:
            self._session.send(statement, answered)

    def _answer_made(self) -> None:
        """Answer for the changes that the own image shows. Where some have to be seen by all, look again and
        again how far the brokers that run are.
        """
        self._made.answer(own=self.image.version, all_=0)
        if self._made.waits_for_others and not self._looking:
            self._looking = True
            self._send(ReadHeartbeats(), self._heartbeats_read)

    def _heartbeats_read(self, answer: Answer | None) -> None:
        self._looking = False
        if isinstance(answer, HeartbeatAnswer):
            seen_by_all = min((one.reached for one in answer.brokers), default=self.image.version)
            self._made.answer(own=self.image.version, all_=seen_by_all)
            if self._made.waits_for_others:
                self._looking = True
                self._later(LOOK_EVERY_MS, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self._answer_made()
