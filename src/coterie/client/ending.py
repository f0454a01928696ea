"""The end of a client: carried out once, by a task of its own, whoever asks for it and however often."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from coterie.base.errors import CoterieError
from coterie.client.errors import WrongUse

T = TypeVar("T")


def begun(work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
    """Return the task that does the work. What it raises is for those who wait, if anybody does."""
    ending = asyncio.create_task(work, name=name)
    ending.add_done_callback(look_at)
    return ending


def look_at(ending: "asyncio.Task[None]") -> None:
    """Have asyncio know that somebody has seen what a task raised."""
    if not ending.cancelled():
        ending.exception()


async def ended(ending: "asyncio.Task[None]") -> None:
    """Wait until it is over, and raise what it raised. Who is cancelled meanwhile has it cut short.

    It is not awaited itself: it may have to cancel who waits for it here.
    """
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        waiter = asyncio.current_task()
        if ending.cancelled() and waiter is not None and not waiter.cancelling():
            return  # somebody else has cut it short
        await cut_short(ending)
        raise


async def shared(task: "asyncio.Task[T]", cut_off: CoterieError) -> T:
    """Return a task's result, or raise what it raised; the task goes on when who waits for it is cancelled.

    `cut_off` is raised if the task itself was cancelled: who waits here was not.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise cut_off
    return task.result()


async def cut_short(*endings: "asyncio.Task[None]") -> None:
    """Cancel ends, and return when they have let go of what they held."""
    for ending in endings:
        # Not at once: who is cancelled before the first step does nothing at all.
        ending.get_loop().call_soon(ending.cancel)
    if endings:
        await asyncio.wait(endings)


def same_loop(loop: asyncio.AbstractEventLoop, what: str) -> None:
    """Raise WrongUse unless this runs on that loop: on another, answers would never come."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        raise WrongUse(
            f"this {what} belongs to the event loop that it was started on, and this is another:"
            " make one on each (asyncio.run makes a loop each time)"
        )
