"""What Spark's Python workers have in common: processes that serve one task after the other."""

import gc
from functools import cache


@cache
def settle(work: str) -> None:
    """Take what is loaded out of the garbage collector's sight, once in a process for each kind of work.

    Spark's workers collect garbage after each task: 35 ms with numba's modules, more than most tasks take.
    Some of those are loaded only when a kernel is called: settle when the first task is done, not before.
    """
    gc.collect()
    gc.freeze()
