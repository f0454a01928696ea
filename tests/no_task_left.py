"""A loop for tests that fails the test if a task is left when its work is done, or a future has no answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakSet

__all__ = ["run", "watched"]

T = TypeVar("T")
ENDS_WITHIN_S = 10.0
real_run = asyncio.run


def run(work: Coroutine[Any, Any, T], *, within_s: float = 100.0) -> T:
    """Return what the work returns."""
    return real_run(watched(work, within_s=within_s))


async def watched(work: Coroutine[Any, Any, T], *, within_s: float = 60.0) -> T:
    """Return what the work returns; whatever it started must end by itself, and answer who waited."""
    loop = asyncio.get_running_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, problem: problems.append(problem))
    open_futures = futures_of(loop)
    try:
        async with asyncio.timeout(within_s):
            return await work
    finally:
        until = loop.time() + ENDS_WITHIN_S
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            assert loop.time() < until, f"left behind: {sorted(task.get_name() for task in left)}"
            await asyncio.sleep(0.001)
        if open_futures():
            gc.collect()  # what nobody holds, nobody waits for
        assert not open_futures(), f"never answered: {open_futures()}"
        assert not problems, problems


def futures_of(loop: asyncio.AbstractEventLoop) -> Callable[[], list[asyncio.Future[Any]]]:
    """Return what lists the futures that the loop makes from now on and that have no answer."""
    made: WeakSet[asyncio.Future[Any]] = WeakSet()
    create = loop.create_future

    def create_noted() -> asyncio.Future[Any]:
        future = create()
        made.add(future)
        return future

    loop.create_future = create_noted  # type: ignore[method-assign]
    return lambda: [future for future in made if not future.done()]
