"""The engine of the metadata in one file: SQLite waits for the disk, so each session has a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.base.errors import CoterieError
from coterie.broker.cluster.changes import Changed
from coterie.broker.cluster.statements import HeartbeatAnswer, ProducerIds, Refused
from coterie.broker.processes.sqlite import SqliteMetadata, WriteRefused

if TYPE_CHECKING:
    from coterie.broker.cluster.statements import Answer
    from coterie.broker.processes.sqlite import SqliteStatement

log = logging.getLogger("coterie.broker")

POLL_S = 0.05
Post: TypeAlias = Callable[[Callable[[], None]], object]
"""Has something done later, in the one thread that all callbacks belong to. Called from any thread."""


def is_written(answer: Answer) -> bool:
    """Return whether an answer says that something was written."""
    return isinstance(answer, Changed | ProducerIds) or (
        isinstance(answer, HeartbeatAnswer) and answer.counted
    )


def nothing() -> None:
    """Do nothing."""


class Asked(NamedTuple):
    """A statement, and its number among those of its session."""

    number: int
    statement: SqliteStatement


class SqliteEngine:
    """The metadata in one file, a `MetadataEngine`.

    Changes of other processes are noticed by looking every 50 ms, and at once when somebody says so (`look`);
    `changed` is called after each change that was made here, for them to be told.
    """

    def __init__(
        self, path: str, post: Post, *, poll_s: float = POLL_S, changed: Callable[[], None] = nothing
    ) -> None:
        self._path = path
        self._post = post
        self._poll_s = poll_s
        self._changed = changed
        self._sessions: set[SqliteSession] = set()
        self._problem = ""  # why the last session has failed, if none has answered since
        self._refusal = ""  # why nothing is written, if nothing was since

    def connect(
        self,
        *,
        opened: Callable[[SqliteSession, str], None],
        ended: Callable[[], None],
        notified: Callable[[int], None] | None = None,
    ) -> None:
        """Open a session (`MetadataEngine.connect`). The history of a file is always the same."""
        session = SqliteSession(self, self._post, ended, notified)
        self._sessions.add(session)
        session.start(self._path, self._poll_s, opened)

    def look(self) -> None:
        """Have every session look now whether something has changed."""
        for session in self._sessions:
            session.look()

    def close(self) -> None:
        """Close every session."""
        for session in tuple(self._sessions):
            session.close()

    def change_made(self) -> None:
        """Take note that a session has changed something."""
        self.look()
        self._changed()

    def written(self) -> None:
        """Take note that something can be written: a refusal is another one from now on."""
        self._refusal = ""

    def session_answers(self) -> None:
        """Take note that the file is of use."""
        if self._problem:
            log.info("%s can be used again", self._path)
        self._problem = ""

    def session_failed(self, error: Exception) -> None:
        """Log why a session has failed: once, though sessions are opened again and again meanwhile."""
        problem = str(error)
        if problem != self._problem:
            log.error("%s", problem, exc_info=None if isinstance(error, CoterieError) else error)
        self._problem = problem

    def write_refused(self, error: WriteRefused) -> None:
        """Log why nothing is written: once, though others ask for it again."""
        if error.reason != self._refusal:
            log.warning("%s", error)
        self._refusal = error.reason

    def session_ended(self, session: SqliteSession) -> None:
        """Forget a session."""
        self._sessions.discard(session)


class SqliteSession:
    """A connection to the file, and the thread that it belongs to. Statements are done in their order."""

    def __init__(
        self,
        engine: SqliteEngine,
        post: Post,
        ended: Callable[[], None],
        notified: Callable[[int], None] | None,
    ) -> None:
        self._engine = engine
        self._post = post
        self._ended = ended
        self._notified = notified
        self._asked: SimpleQueue[Asked | None] = SimpleQueue()  # None: look whether something has changed
        self._waiting: dict[int, Callable[[Answer | None], None]] = {}
        self._sent = 0
        self._open = True
        self._version = 0  # the last that the thread has seen

    # -- in the thread of the callbacks

    def start(self, path: str, poll_s: float, opened: Callable[[SqliteSession, str], None]) -> None:
        """Open the file, in a thread of its own; the process does not wait for it at its end."""
        arguments = (path, poll_s, lambda history: opened(self, history))
        threading.Thread(target=self._work, args=arguments, name="metadata", daemon=True).start()

    def send(self, statement: SqliteStatement, answered: Callable[[Answer | None], None]) -> None:
        """Send a statement (`MetadataSession.send`)."""
        if not self._open:
            self._post(partial(answered, None))
            return
        self._sent += 1
        self._waiting[self._sent] = answered
        self._asked.put(Asked(self._sent, statement))

    def look(self) -> None:
        """Look whether something has changed."""
        self._asked.put(None)

    def close(self) -> None:
        """End the session (`MetadataSession.close`)."""
        if self._open:
            self._open = False
            self._engine.session_ended(self)
            self._asked.put(None)
            for answered in self._waiting.values():
                self._post(partial(answered, None))
            self._waiting.clear()

    def _opened(self, opened: Callable[[str], None], history: str) -> None:
        if self._open:
            opened(history)

    def _answer(self, number: int, answer: Answer) -> None:
        answered = self._waiting.pop(number, None)
        if not isinstance(answer, Refused):
            self._engine.session_answers()
        if is_written(answer):
            self._engine.written()
        if isinstance(answer, Changed):
            self._engine.change_made()
        if answered is not None:
            answered(answer)

    def _refuse(self, number: int, error: WriteRefused) -> None:
        if error.usable:  # else the session ends by it
            self._engine.write_refused(error)
        self._answer(number, Refused(error.reason))

    def _notify(self, version: int) -> None:
        if self._open and self._notified is not None:
            self._notified(version)

    def _fail(self, error: Exception) -> None:
        self._engine.session_failed(error)
        if self._open:
            self.close()
            self._ended()

    # -- in the session's thread

    def _work(self, path: str, poll_s: float, opened: Callable[[str], None]) -> None:
        try:
            with closing(SqliteMetadata(path)) as metadata:
                self._version = metadata.version()
                self._post(partial(self._opened, opened, metadata.history))
                self._serve(metadata, poll_s)
        except Exception as error:  # noqa: BLE001  the root of a thread: who waits hears that no answer comes
            self._post(partial(self._fail, error))

    def _serve(self, metadata: SqliteMetadata, poll_s: float) -> None:
        known = None
        while self._open:
            try:
                asked = self._asked.get(timeout=poll_s)
            except Empty:
                asked = None
            if asked is not None:
                self._execute(metadata, asked)
            elif (now := metadata.changed_elsewhere()) != known:
                known = now
                self._saw(metadata.version())

    def _execute(self, metadata: SqliteMetadata, asked: Asked) -> None:
        try:
            answer = metadata.execute(asked.statement)
        except WriteRefused as error:
            self._post(partial(self._refuse, asked.number, error))
            if not error.usable:
                raise
            return
        self._post(partial(self._answer, asked.number, answer))
        if isinstance(answer, Changed):
            self._saw(answer.version)

    def _saw(self, version: int) -> None:
        if version > self._version:
            self._version = version
            self._post(partial(self._notify, version))
