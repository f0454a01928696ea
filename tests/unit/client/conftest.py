"""Every loop that a client's test runs must end with no task left behind."""

from __future__ import annotations

import asyncio

import pytest

ENDS_WITHIN_S = 2.0
real_run = asyncio.run


@pytest.fixture(autouse=True)
def _no_task_is_left(monkeypatch):
    """Have asyncio.run fail if tasks still run when the test's own work is done."""
    monkeypatch.setattr(asyncio, "run", lambda work: real_run(watched(work)))


async def watched(work):
    """Return what the work returns; whatever it started must end by itself."""
    result = await work
    clock = asyncio.get_running_loop()
    until = clock.time() + ENDS_WITHIN_S
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        assert clock.time() < until, f"left behind: {sorted(task.get_name() for task in left)}"
        await asyncio.sleep(0.001)
    return result
