"""A connection on which jobs are done one after another, each answered by a callback: for all but lanes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias, TypeVar

import asyncpg

from coterie.storage.postgres.connecting import LOST, Connections, failure_of
from coterie.storage.remote.session import Broken, Failed, Verdict, verdict_of

log = logging.getLogger("coterie.storage")

T = TypeVar("T")
Connection: TypeAlias = asyncpg.Connection
"""The driver's."""
Job: TypeAlias = Callable[[Connection], Awaitable[T]]
"""Does its statements on a connection, in transactions that end with it."""
Watched: TypeAlias = Callable[[Connection], AbstractContextManager[None]]
"""A block around what is done on a connection, as that of a `LockWatch`."""
_Queued: TypeAlias = tuple[Job[Any], Callable[[Any], None], Callable[[Failed], None] | None]
"""A job, and what takes its result or its refusal."""
WARNING = "01000"
LOCKED = "55P03"
PASSING = ("40001", "40P01", LOCKED)
"""The SQLSTATEs of errors that are over once others are done: the log has no line about them. Whoever asked
does so again, and hears of `LOCKED` where it takes refusals.
"""
BEGIN_WITHIN_S = 10.0
"""So long the first job may take. Whoever asked for the connection has asked for another by then, and would
for another still: where a table is locked, until the server takes no more.
"""
IDLE_MS = 1_500
"""So long a transaction waits for its next statement: whoever is to be taken over from may hold the lock that
a takeover needs, and that waits a little longer. It is long enough to compute who leads many partitions.
"""

LOCK_TIMEOUT_MS = 2_000
"""So long a change of the metadata, or a migration, waits for a lock: who comes to use the table waits behind
it.
"""
ROWS_LOCK_MS = 8_000
"""The same of what is done with the rows of logs, beside appends and what is compacted."""
LOCKED_IDLE_MS = 10_000
"""The same of a command that holds a lock for which brokers wait."""
COMMAND_LOCK_MS, COMMAND_IDLE_MS = 10_000, 600_000
"""The same of a command: it waits for appends and changes that are under way, and a disk is written or read
between two of its statements, which may be slow.
"""


@asynccontextmanager
async def transaction(
    connection: Connection, mode: str = "", *, first: str = "", **limits_ms: int
) -> AsyncIterator[None]:
    """Have what is done within be one transaction, of a mode as BEGIN takes it; raised errors roll it back.
    `first` is a statement that is sent along with BEGIN.

    Its locks end with whoever holds them: where nothing comes from here for a while, since this process is
    stopped or its machine gone, the server ends the session. `limits_ms` are further settings of the server's
    that hold as long as it lasts.
    """
    limits = {"idle_in_transaction_session_timeout": IDLE_MS, **limits_ms}
    begin = [f"BEGIN {mode}", *(f"SET LOCAL {name} = {value}" for name, value in limits.items())]
    try:
        await connection.execute("; ".join([*begin, first] if first else begin))
        yield
    except BaseException:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")


def transaction_of_command(connection: Connection, mode: str = "") -> AbstractAsyncContextManager[None]:
    """Return the transaction of a command, which may take long."""
    return transaction(
        connection,
        mode,
        lock_timeout=COMMAND_LOCK_MS,
        idle_in_transaction_session_timeout=COMMAND_IDLE_MS,
    )


async def done_beside(work: Callable[..., T], *arguments: object) -> T:
    """Return the result of work that takes long, done in a thread: others are answered meanwhile."""
    return await asyncio.to_thread(work, *arguments)


async def after_others() -> None:
    """Return once what waits for the event loop has had its turn."""
    await asyncio.sleep(0)


def _has_done_nothing(failure: Failed) -> bool:
    """Return whether a job that has failed so has done nothing, and would fail so again until somebody puts
    something right, or lets go of a lock.
    """
    if failure.sqlstate == LOCKED:
        return True
    verdict = verdict_of(failure.sqlstate)
    return failure.sqlstate not in PASSING and verdict in (Verdict.REFUSE, Verdict.CONFLICT)


def unwatched(_: Connection) -> AbstractContextManager[None]:
    """Return a block in which nobody watches."""
    return nullcontext()


class SerialConnection:
    """One connection, from `open` until it ends by itself or by `close`. It is not opened again."""

    def __init__(
        self,
        connections: Connections,
        use: str = "",
        *,
        watched: Watched = unwatched,
    ) -> None:
        """Each job is done within `watched`."""
        self._connections = connections
        self._use = use
        self._watched = watched
        self._loop = connections.loop
        self._connection: Connection | None = None
        self._ended: Callable[[], None] = lambda: None
        self._over = False
        self._task: asyncio.Task[None] | None = None
        self._jobs: deque[_Queued] = deque()
        self._ahead: deque[_Queued] = deque()  # which the others let go before them
        self._went_ahead = False  # whether the last one was of these
        self._warned = False
        self._refusal: Failed | None = None  # what was said last

    def open(self, begin: Job[T], opened: Callable[[T], None], ended: Callable[[], None]) -> None:
        """Connect, do the first job, and have `opened` called with its result.

        `ended` is called, once, if that fails, and when the connection ends by itself. Nothing is called from
        within.
        """
        self._ended = ended
        self._start(self._open(begin, opened))

    def run(
        self,
        job: Job[T],
        done: Callable[[T | None], None],
        refused: Callable[[Failed], None] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Have a job done behind those before it, and `done` called with its result; never from within. One
        that is to go `ahead` is done before others that have not begun, in turns with them.

        It is None if the job has failed, or its connection: whether its last transaction was made is not
        known, and it may be made later. If the database has refused the job for good, or for a lock that
        somebody keeps, `refused` is called in place of `done`, where there is one: its last transaction was
        not made. A job that fails by a fault of its own ends the connection, and with it whatever it has left
        there.
        """
        if self._over:
            self._loop.call_soon(done, None)
            return
        (self._ahead if ahead else self._jobs).append((job, done, refused))
        if self._task is None and self._connection is not None:
            self._next()

    def close(self) -> None:
        """Give the connection up, without waiting for what is under way; `ended` is not called."""
        self._ended = lambda: None
        if self._connection is None and self._task is not None and not self._over:
            self._task.cancel()  # it connects: no statement is under way
        self._end()

    def _start(self, doing: Coroutine[Any, Any, None]) -> None:
        self._task = self._connections.start(doing)

    def _next(self) -> None:
        """Begin the next job. Where one after another goes ahead the others have their turn: each may take as
        long as somebody's lock keeps it, and is asked for again then.
        """
        self._went_ahead = bool(self._ahead) and not (self._went_ahead and self._jobs)
        jobs = self._ahead if self._went_ahead else self._jobs
        if jobs and not self._over:
            self._start(self._do(*jobs.popleft()))

    async def _open(self, begin: Job[T], opened: Callable[[T], None]) -> None:
        try:
            connection = await self._connections.connect(use=self._use)
        except LOST:
            self._end()
            return
        self._connection = connection
        connection.add_log_listener(self._take_warning)
        connection.add_termination_listener(lambda _: self._end())
        late = self._loop.call_later(BEGIN_WITHIN_S, self._end)
        try:
            with self._watched(connection):
                begun = await begin(connection)
        except LOST:
            self._end()
            return
        except Exception:
            if not self._over:  # else the driver fails somehow between two statements: the connection is gone
                log.exception("a connection to the database cannot be begun")
            self._end()
            return
        finally:
            late.cancel()
        self._task = None
        if not self._over:
            opened(begun)
            if self._task is None:  # what was asked for from there has not begun
                self._next()

    async def _do(
        self, job: Job[T], done: Callable[[T | None], None], refused: Callable[[Failed], None] | None
    ) -> None:
        assert self._connection is not None
        self._warned = False
        result: T | None = None
        failure: Failed | Broken | None = None
        try:
            with self._watched(self._connection):
                result = await job(self._connection)
        except LOST as error:
            failure = failure_of(error)
            if isinstance(failure, Failed) and not self._over:
                self._say_refused(failure)
        except Exception as error:
            if not self._over and not self._connection.is_closed():  # as above; or it was closed just now
                log.exception("a job on the database has failed")
            failure = Broken(f"{type(error).__name__}: {error}")
        self._task = None
        if isinstance(failure, Broken):
            self._end()
        if refused is not None and isinstance(failure, Failed) and _has_done_nothing(failure):
            refused(failure)
        else:
            done(None if self._warned else result)
        if self._task is None:
            self._next()

    def _say_refused(self, failure: Failed) -> None:
        """Say why the database refuses a job, each reason once: of most whoever asked does not hear it."""
        if failure.sqlstate in PASSING or failure == self._refusal:
            return
        self._refusal = failure
        log.warning("the database refuses a job: %s %s", failure.sqlstate, failure.message)

    def _take_warning(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        """Note that a wait for the synchronous replica was cancelled: what was committed may be lost."""
        self._warned |= message.sqlstate == WARNING

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        if self._connection is not None:
            self._connection.terminate()
        for _, done, _ in [*self._ahead, *self._jobs]:
            self._loop.call_soon(done, None)
        self._ahead.clear()
        self._jobs.clear()
        self._loop.call_soon(self._ended)
