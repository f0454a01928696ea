"""Runs a test's coroutine, and sees to it that it leaves no task behind and no delivery unanswered."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

from coterie.client.producer.delivery import (
    Delivery,
)
from coterie.client.producer.producer import (
    Producer,
)

__all__ = ["WatchedProducer", "run"]

T = TypeVar("T")
WITHIN_S = 100.0


class WatchedProducer(Producer):
    """A producer that remembers every delivery it handed out."""

    handed_out: list[Delivery]  # all producers' of a test

    async def send(self, *terms: Any, **more: Any) -> Delivery:
        delivery = await super().send(*terms, **more)
        WatchedProducer.handed_out.append(delivery)
        return delivery


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Return what the coroutine returns, once its loop has nothing left to do and nobody was let down."""
    problems: list[dict[str, Any]] = []
    WatchedProducer.handed_out = []

    async def whole() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        async with asyncio.timeout(WITHIN_S):
            result = await scenario
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left behind: {left}"
        return result

    result = asyncio.run(whole())
    gc.collect()
    assert not problems, problems
    unanswered = [delivery for delivery in WatchedProducer.handed_out if not delivery.done()]
    assert not unanswered, f"{len(unanswered)} deliveries are not answered"
    return result
