"""The queue of requests: they are answered in slices, between which everybody else is heard.

A heartbeat has a fast path and is not queued. So it waits for a slice at most, however many joins
and commits came before it; and they wait for half of the time at most, however many heartbeats come.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from coterie.broker.runtime.pieces import Aside, Pieces, Until

if TYPE_CHECKING:
    from coterie.broker.net.context import Read

log = logging.getLogger("coterie.broker")

SLICE_S = 0.003


class Requester(Protocol):
    """A connection with a request in the queue."""

    def answer_queued(self, sized: bytes, read: Read | None) -> None: ...


class Done(Protocol):
    """What came of work aside, as a future tells it."""

    def exception(self) -> BaseException | None: ...
    def result(self) -> Any: ...


class Answered(NamedTuple):
    """An answer that work has waited for, in the shape of a future."""

    answer: Any

    def exception(self) -> None:
        """Return None: whoever answers raises nothing."""

    def result(self) -> Any:
        """Return the answer."""
        return self.answer


def here_and_now(
    work: Callable[..., Any], arguments: tuple[Any, ...], finish: Callable[[Done], None], items: int
) -> None:
    """Do what could be done aside."""
    done: Future[Any] = Future()
    done.set_result(work(*arguments))
    finish(done)


class RequestQueue:
    """The requests of all connections that are not answered at once, oldest first.

    A round of the event loop reads every socket that has something. Of what it reads, as much is answered
    at once as fits into a slice; the rest waits here, for a slice after every round. But a round has no end
    while a thousand sockets always have something: libuv reads them 48 times over before it calls anybody.
    So whoever answers a heartbeat has a slice run if one is due (`run_if_due`), and what the node wants to
    have done soon is done before it.

    A request that takes longer than a slice is answered in pieces: when the slice is over, the rest of it
    goes to the end of the queue. So no request holds up the others for longer, however much it asks for.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = perf_counter,
        aside: Callable[..., None] = here_and_now,
    ) -> None:
        """`call_soon` runs a function after the event loop's present round.

        `aside(work, arguments, finish, items)` has work on so many things done in a thread; `finish` gets the
        future, in the loop.
        """
        self.before_slice: Callable[[], None] | None = None
        """Called before anybody is answered of those who had to wait."""
        self.pending = False  # whether anything waits that heartbeats have to share the time with
        self._after_round = call_soon
        self._clock = clock
        self._aside = aside
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._soon: list[Callable[[], None]] = []
        self._until: float | None = (
            None  # when the present slice is over; None before a round's first request
        )
        self._due = 0.0  # when half of the time has gone to others
        self._scheduled = False
        self._working = False

    def call_soon(self, act: Callable[[], None]) -> None:
        """Have something done after the requests that are being answered now."""
        self._soon.append(act)
        self._schedule()

    def admits(self) -> bool:
        """Return whether a request that has just been read may be answered at once."""
        if self._waiting:
            return False
        if self._until is None:
            self._until = self._clock() + SLICE_S
            self._schedule()
            return True
        return self._clock() < self._until

    def enqueue(self, connection: Requester, sized: bytes, read: Read | None = None) -> None:
        """Have a request answered when it comes to the front; `admits` has just said that it must wait."""
        self._put_off(connection.answer_queued, sized, read)

    def work(self, pieces: Pieces[None]) -> None:
        """Work for as long as the present slice lasts, and go on in later ones.

        The work is its own root: it lets no exception out.
        """
        self._go_on(pieces, None)

    def _go_on(self, pieces: Pieces[None], done: Done | None) -> None:
        if self._until is None:
            self._until = self._clock() + SLICE_S
            self._schedule()
        try:
            while True:
                if done is None:
                    wanted = next(pieces)
                elif failure := done.exception():
                    wanted = pieces.throw(failure)
                else:
                    wanted = pieces.send(done.result())
                if wanted is not None:
                    self._have_done(wanted, pieces)
                    return
                if self._clock() >= self._until:
                    self._put_off(self._go_on, pieces, None)
                    return
                done = None
        except StopIteration:
            return

    def _have_done(self, wanted: Aside | Until, pieces: Pieces[None]) -> None:
        if isinstance(wanted, Until):
            wanted.ask(lambda answer: self._put_off(self._go_on, pieces, Answered(answer)))
        else:
            work, arguments, items = wanted
            self._aside(work, arguments, lambda done: self._put_off(self._go_on, pieces, done), items)

    def _put_off(self, act: Callable[..., None], *arguments: Any) -> None:
        self._waiting.append((act, arguments))
        self._schedule()

    def run_if_due(self) -> None:
        """Answer for a slice if the last one was as long ago; asked while something is pending."""
        if self._clock() >= self._due and not self._working:
            self._work()

    def _schedule(self) -> None:
        if not self.pending:
            self.pending = True
            self._due = self._clock() + SLICE_S
        if not self._scheduled:
            self._scheduled = True
            self._after_round(self._round)

    def _round(self) -> None:
        """Answer for a slice after a round of the event loop."""
        self._scheduled = False
        self._work()
        if self.pending:
            self._schedule()

    def _work(self) -> None:
        self._working = True
        if self.before_slice is not None:
            do(self.before_slice)
        self._until = None
        todo, self._soon = self._soon, []
        for act in todo:
            do(act)
        self._until = self._clock() + SLICE_S
        while self._waiting:
            act, arguments = self._waiting.popleft()
            do(act, *arguments)
            if self._clock() >= self._until:
                break
        self._until = None
        self._working = False
        self._due = self._clock() + SLICE_S
        self.pending = bool(self._waiting or self._soon)


def do(act: Callable[..., None], *arguments: object) -> None:
    """Do what was put off. A mistake in it must not keep the others waiting."""
    try:
        act(*arguments)
    except Exception:  # the root of what was put off
        log.exception("%s failed", act)
