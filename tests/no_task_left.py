"""A loop for tests that fails the test if a task is left when its work is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run", "watched"]

T = TypeVar("T")
ENDS_WITHIN_S = 10.0
real_run = asyncio.run


def run(work: Coroutine[Any, Any, T], *, within_s: float = 100.0) -> T:
    """Return what the work returns."""
    return real_run(watched(asyncio.wait_for(work, within_s)))


async def watched(work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns; whatever it started must end by itself."""
    try:
        return await work
    finally:
        clock = asyncio.get_running_loop()
        until = clock.time() + ENDS_WITHIN_S
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            assert clock.time() < until, f"left behind: {sorted(task.get_name() for task in left)}"
            await asyncio.sleep(0.001)
