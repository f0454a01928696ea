"""An event loop in a daemon thread, for callers that block."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")
# How long what was cancelled may take to end, and how long a loop may take to say so.
END_TIMEOUT_S = 5.0
ANSWER_S = 1.0
# How long a fork waits for a loop to come to rest.
REST_TIMEOUT_S = 1.0
LOOPS: "WeakSet[LoopThread]" = WeakSet()
FORKING = threading.Lock()
"""Held by who forks while the loops rest: another thread's fork comes after it."""


class LoopThread:
    """Runs coroutines for other threads. The thread ends with the process; `stop` ends it before."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._open: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._stopped = self._over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._forked = threading.Event()
        LOOPS.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._over:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # of the application's code; who waits for that work has it raised
        self.loop.close()

    @property
    def here(self) -> bool:
        """Whether this is the loop's own thread: who waits here for the loop waits for ever."""
        return threading.current_thread() is self._thread

    def rest(self) -> None:
        """Have the loop do nothing until `go_on`, and return when it rests, or does not come to it soon.

        A child that is forked while another thread imports a module can never import that one itself.
        """
        resting, self._forked = threading.Event(), threading.Event()

        def wait(forked: threading.Event) -> None:
            resting.set()
            forked.wait()

        with suppress(RuntimeError):  # it has just ended
            self.loop.call_soon_threadsafe(wait, self._forked)
            resting.wait(REST_TIMEOUT_S)

    def go_on(self) -> None:
        """Have the loop go on."""
        self._forked.set()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the coroutine on the loop, and return the Future of its result; cancelled after `stop`."""
        with self._lock:
            if self._stopped:
                work.close()
                refused: Future[T] = Future()
                refused.cancel()
                return refused
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def let_go(self, work: Coroutine[Any, Any, object], *, patience_s: float = END_TIMEOUT_S) -> None:
        """Cancel work, whether or not it has begun, and return when it has ended, or after so long."""
        with suppress(TimeoutError, CancelledError):
            self.submit(called_off(work)).result(patience_s)

    def stop(self, *, patience_s: float = END_TIMEOUT_S) -> None:
        """End the loop and its thread; whoever still waits for a result is told that none will come. What is
        cancelled has so long to end.

        A thread that code of the application's holds is left to end when that does, or with the process.
        """
        with self._lock:
            if self._stopped or not self._thread.is_alive():
                return
            last = asyncio.run_coroutine_threadsafe(cancel_all(patience_s), self.loop)
            self._stopped = True
        with suppress(TimeoutError):
            last.result(patience_s + min(ANSWER_S, patience_s))
        self._over = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if last.done():
            self._thread.join(timeout=patience_s)
        for future in list(self._open):
            future.cancel()


async def cancel_all(patience_s: float) -> None:
    """Cancel what else runs on this loop, and wait for it, but not for ever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=patience_s)


async def called_off(work: Coroutine[Any, Any, object]) -> None:
    """Cancel this work, and wait until no task does it any more, nor will."""
    doing = [task for task in asyncio.all_tasks() if task.get_coro() is work]
    for task in doing:
        task.cancel()
    if doing:
        await asyncio.wait(doing)
    elif getcoroutinestate(work) == CORO_CREATED:
        work.close()


async def beside(function: Callable[..., T], *arguments: Any) -> T:
    """Return the result of a function, run in a daemon thread of its own.

    asyncio.to_thread would make the process wait at its end for a thread that never does.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def hand_over(outcome: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            outcome(value)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = answer.set_result, context.run(function, *arguments)
        except StopIteration as error:  # which no future can hold
            outcome = answer.set_exception, RuntimeError(f"raised {error!r}")
        except BaseException as error:  # noqa: BLE001  # the thread's root: who waits has it raised
            outcome = answer.set_exception, error
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(hand_over, *outcome)

    threading.Thread(target=run, name=f"coterie calls {function!r:.60}", daemon=True).start()
    return await answer


def rest_all() -> None:
    """Have all loops rest but this thread's own."""
    FORKING.acquire()
    for one in list(LOOPS):
        if not one.here:
            one.rest()


def go_on_all() -> None:
    """Have all loops go on."""
    for one in list(LOOPS):
        one.go_on()
    FORKING.release()


def forget_all() -> None:
    """Know of no loops in a child: their threads are the parent's."""
    LOOPS.clear()
    FORKING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=rest_all, after_in_parent=go_on_all, after_in_child=forget_all)
