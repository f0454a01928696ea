"""What the blocking faces share: an asyncio face on a loop in a thread of its own, and calls that wait."""

import asyncio
import atexit
import logging
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, wait
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from coterie.client.blocking.loop import END_TIMEOUT_S, LoopThread
from coterie.client.errors import Closed, WrongUse
from coterie.client.other_clients import HintsAtMethods

log = logging.getLogger("coterie.client")

T = TypeVar("T")
P = ParamSpec("P")

# How long a process that ends waits for what nobody has closed, for loops that do not say, and for what was
# cancelled then: 10 s in all.
EXIT_TIMEOUT_S = 8.0
SILENCE_TIMEOUT_S = EXIT_TIMEOUT_S + 1.0
REST_S = 0.5
RUNNING: "set[BlockingFace[Any]]" = set()
"""The faces that nobody has closed yet."""


class AsyncFace(Protocol):
    """What every asyncio client can do."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


F = TypeVar("F", bound=AsyncFace)


class BlockingFace(HintsAtMethods, Generic[F]):
    """A face whose calls return when they are done. Used from one thread at a time.

    It belongs to the process that started it: a child made by os.fork has none of its threads.
    """

    def __init__(self, inner: F, *, name: str) -> None:
        self._inner, self._name = inner, name
        self._thread: LoopThread | None = None
        self._process = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Connect to one of the bootstrap servers."""
        self._begin(self._inner.start())

    def close(self) -> None:
        """Close all connections, and end the thread."""
        self._end(self._inner.close)

    def _last(self) -> Coroutine[Any, Any, object]:
        """Return the work that closes the asyncio face at the process's end, if nobody has before."""
        return self._inner.close()

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Start the thread, and do this in it first."""
        if self._thread is not None:
            work.close()
            raise WrongUse(f"this {self._name} was started before")
        self._thread, self._process = LoopThread(f"coterie {self._name}"), os.getpid()
        RUNNING.add(self)
        try:
            self._run(work)
        except BaseException:
            self._stop()
            raise

    def _end(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do this last, and end the thread; nothing if it does not run, or runs in the parent process."""
        if self._thread is None:
            return
        if self._process != os.getpid():
            self._thread = None
            return
        try:
            self._run(work())
        finally:
            self._stop()

    def _stop(self, *, patience_s: float = END_TIMEOUT_S) -> None:
        thread, self._thread = self._thread, None
        RUNNING.discard(self)
        if thread is not None:
            thread.stop(patience_s=patience_s)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work, done on the loop; Ctrl-C ends it there, too, and is raised then.

        The call after it would find what the work has not put right yet. A second Ctrl-C waits for nothing.
        """
        thread = self._thread
        refusal = self._refusal(thread)
        if thread is None or refusal is not None:
            work.close()
            raise refusal or Closed(f"this {self._name} is closed")
        try:
            return thread.submit(work).result()
        except CancelledError:
            raise Closed(f"this {self._name} was closed meanwhile") from None
        except BaseException:  # a signal comes anywhere, even before it is known what is running
            thread.let_go(work)
            raise

    def _refusal(self, thread: LoopThread | None) -> WrongUse | None:
        """Return the error if nothing can be done here, else None."""
        if thread is None:
            return Closed(f'this {self._name} does not run: use "with", or call start()')
        if self._process != os.getpid():
            return WrongUse(
                f"this {self._name} was started before os.fork, and its thread is in the parent process only:"
                " make one after the fork, in each process"
            )
        if thread.here:
            return WrongUse(
                f"this call would wait for the thread that it is made in, the {self._name}'s own: a plain"
                " method of a listener can make it, but no async one, no interceptor and no deserialiser"
            )
        return None

    def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return the result of a plain method, called on the loop, where nothing else runs meanwhile."""

        async def call() -> T:
            return function(*arguments, **named)

        return self._run(call())


def waiting(
    method: Callable[Concatenate[F, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingFace[F], P], T]:
    """Return the method of the blocking face that does what this one of the asyncio face does."""

    @wraps(method)
    def run(self: BlockingFace[F], /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._run(method(self._inner, *arguments, **named))

    return run


def calling(
    method: Callable[Concatenate[F, P], T],
) -> Callable[Concatenate[BlockingFace[F], P], T]:
    """Return the method of the blocking face that calls this plain one of the asyncio face, on the loop."""

    @wraps(method)
    def run(self: BlockingFace[F], /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._call(method, self._inner, *arguments, **named)

    return run


def close_all() -> None:
    """Close what nobody has closed, as the process ends, all at once: what was sent is written, and members
    leave. Threads that application code holds then end with the process.
    """
    mine = [face for face in list(RUNNING) if face._process == os.getpid()]
    closing = {face: face._thread.submit(within(face._last, EXIT_TIMEOUT_S)) for face in mine if face._thread}
    wait(closing.values(), timeout=SILENCE_TIMEOUT_S)
    for face, future in closing.items():
        error: BaseException | None
        try:
            error = future.exception(0)
        except (TimeoutError, CancelledError) as ended:
            error = ended
        if error is not None:  # whatever it is: the others are to be stopped, too
            log.warning("a %s that was not closed: %s", face._name, str(error) or "not done in time")
    for face in closing:
        face._stop(patience_s=REST_S / len(closing))


async def within(work: Callable[[], Coroutine[Any, Any, object]], timeout_s: float) -> None:
    """Do this, for at most so long."""
    async with asyncio.timeout(timeout_s):
        await work()


atexit.register(close_all)
