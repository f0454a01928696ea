"""What is done once in each of Spark's worker processes, which go on from task to task."""

from __future__ import annotations

import gc
from functools import cache

from coterie.columns.records import decoder

__all__ = ["settle"]


@cache
def settle() -> None:
    """Take what was imported out of the garbage collector's sight.

    Spark's workers collect garbage after each task: 50 ms with numba's modules, more than a small task takes.
    """
    decoder()
    gc.collect()
    gc.freeze()
