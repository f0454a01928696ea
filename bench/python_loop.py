"""The loop that both asyncio clients are fastest on."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["on_uvloop"]

T = TypeVar("T")


def on_uvloop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function to its end; returns what it returns."""
    make_loop = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(work())
