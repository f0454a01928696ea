"""Work beside the event loop: what waits in threads, what computes in processes that end with the broker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

log = logging.getLogger("coterie.broker")

NICENESS = 19  # of a process that only computes
IDLE_S = 5.0
"""So long the process that computes is kept: to start one takes as long as a small compaction."""
ENDS_WITHIN_S = 5.0
PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)


class Ended(Exception):
    """The broker has stopped, and with it what was computed for it."""


class Beside:
    """Runs work beside an event loop. The process that computes is kept for what comes next, and ends when
    nothing comes for a while.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, idle_s: float = IDLE_S) -> None:
        self._loop = loop
        self._idle_s = idle_s
        self._running: set[asyncio.Task[None]] = set()
        self._to_compute = 0
        self._idle: asyncio.TimerHandle | None = None
        self._computing = ThreadPoolExecutor(1, initializer=_go_last)
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._stopped = False

    def __call__(
        self,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        finish: Callable[[Any], None],
        *,
        computes: bool,
    ) -> None:
        """Begin; `finish` gets the result in the loop's thread, None when the work failed."""
        if computes:
            self._to_compute += 1
            if self._idle is not None:
                self._idle.cancel()
        task = self._loop.create_task(self._wait(work, arguments, finish, computes))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _wait(
        self,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        finish: Callable[[Any], None],
        computes: bool,
    ) -> None:
        result = None
        try:
            if computes:
                result = await self._loop.run_in_executor(self._computing, self._compute, work, arguments)
            else:
                result = await self._loop.run_in_executor(None, work, *arguments)
        except Ended:
            return
        except Exception:  # the root of this task
            log.exception("%s failed", work.__name__)
        if computes:
            self._computed()
        finish(result)

    def _computed(self) -> None:
        self._to_compute -= 1
        if not self._to_compute:
            self._idle = self._loop.call_later(self._idle_s, self._computing.submit, self._let_go)

    def _compute(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the result of `work` in a process without our sockets; a thread of its own waits for it.

        A fork would take the event loop and every connection along; and to start a process takes so long that
        a heartbeat would feel it. What it computes can wait: where cores are few, requests go first.
        """
        with self._lock:
            if self._stopped:
                raise Ended
            if self._worker is None or not self._worker.process.is_alive():
                self._worker = _Worker()
            worker = self._worker
        try:
            result, error = worker.do(work, arguments)
        except (EOFError, OSError):
            self._let_go()
            if self._stopped:
                raise Ended from None
            raise
        if error is not None:
            raise error
        return result

    def _let_go(self) -> None:
        """Have the process end. This runs in the thread that waits for it."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def stop(self) -> None:
        """End what is being computed: whoever stops the broker is not to wait for a compaction.

        What it has written is taken away at the next start.
        """
        if self._idle is not None:
            self._idle.cancel()
        with self._lock:
            self._stopped = True
            if self._worker is not None:
                self._worker.process.kill()


class _Worker:
    """A process that does one piece of work after the other."""

    def __init__(self) -> None:
        from multiprocessing import get_context

        context = get_context("spawn")
        self._pieces, pieces = context.Pipe()
        self.process = context.Process(target=_do_all, args=(pieces,), daemon=True)
        self.process.start()
        pieces.close()

    def do(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
        """Return the result, and what was raised. Raises EOFError or OSError where the process has ended."""
        self._pieces.send((work, arguments))
        answer: tuple[Any, Exception | None] = self._pieces.recv()
        return answer

    def end(self) -> None:
        """Have the process end, which does nothing, or has ended; one that stands still is killed."""
        self._pieces.close()
        self.process.join(ENDS_WITHIN_S)
        self.process.kill()
        self.process.join()


def _do_all(pieces: Connection) -> None:
    """Do what comes, until nobody is there to send more."""
    _end_with_the_broker()
    while True:
        try:
            work, arguments = pieces.recv()
        except EOFError:
            return
        answer: tuple[Any, Exception | None]
        try:
            answer = work(*arguments), None
        except Exception as error:  # noqa: BLE001  the root of a process: whoever waits for it raises it
            answer = None, error
        pieces.send(answer)


def _end_with_the_broker() -> None:
    """Have this process end when the one that has started it ends, by `kill -9` too.

    It would write on, for minutes, to files that the next broker takes away or writes itself.
    """
    from multiprocessing import parent_process

    broker = parent_process()
    assert broker is not None
    end_with_the_parent()

    def watch() -> None:
        broker.join()
        os._exit(1)

    threading.Thread(target=watch, name="broker", daemon=True).start()


def end_with_the_parent() -> None:
    """Have the kernel end this process together with the thread that has started it, where it can.

    With it, not after it: whoever opens the directory next is alone there. A parent that has ended before
    this is not noticed by it.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _go_last() -> None:
    """Have this thread, and the processes that it starts, let all others have the processor first."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
