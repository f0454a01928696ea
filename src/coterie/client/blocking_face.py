"""What the blocking faces share: an asyncio face on a loop in a thread of its own, and calls that wait."""

from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from coterie.client.errors import Closed
from coterie.client.loop import LoopThread

__all__ = ["BlockingFace", "waiting"]

F = TypeVar("F")
T = TypeVar("T")
P = ParamSpec("P")


class BlockingFace(Generic[F]):
    """A face whose calls return when they are done. Used from one thread at a time."""

    def __init__(self, inner: F, *, name: str) -> None:
        self._inner, self._name = inner, name
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Connect to one of the bootstrap servers."""
        raise NotImplementedError

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Start the thread, and do this in it first."""
        self._thread = LoopThread(f"coterie {self._name}")
        try:
            self._run(work)
        except BaseException:
            self._stop()
            raise

    def _end(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do this last, and end the thread; nothing if it does not run."""
        if self._thread is None:
            return
        try:
            self._run(work())
        finally:
            self._stop()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns, done on the loop; Ctrl-C ends it there, too."""
        if self._thread is None:
            work.close()
            raise Closed(f'this {self._name} does not run: use "with", or call start()')
        running = self._thread.submit(work)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what a plain method returns, called where nothing else runs at the same time."""

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
