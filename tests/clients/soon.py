"""Waiting for what becomes true a moment later: a broker's nodes hear of a change after who asked for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["SOON_S", "soon", "soon_is"]

T = TypeVar("T")
SOON_S = 40.0


def soon(true: Callable[[], object], *, within_s: float = SOON_S) -> None:
    """Return once it is true; fail if that takes too long."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, f"not so within {within_s} s"
        time.sleep(0.01)


def soon_is(ask: Callable[[], T], wanted: T, *, within_s: float = SOON_S) -> None:
    """Ask until the answer is the one that is wanted; fail with the last one if that takes too long."""
    end = time.monotonic() + within_s
    while (answer := ask()) != wanted:
        if time.monotonic() > end:
            assert answer == wanted
        time.sleep(0.01)
