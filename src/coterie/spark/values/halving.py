"""Which of many values are none, where only all together say that some are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

Errors = dict[int, str]
"""Why values are none, by their places."""


def pieces(
    payloads: Sequence[bytes],
    all_at_once: Callable[[Sequence[bytes]], pa.Array],
    few_by_few: Callable[[Sequence[bytes], int], pa.Array],
    *,
    few: int,
    first: int = 0,
) -> Iterator[pa.Array]:
    """Yield the values piece by piece: halves of what is refused as a whole, down to a `few`, which are left
    to `few_by_few` with the place of the first.
    """
    try:
        yield all_at_once(payloads)
        return
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
    if len(payloads) <= few:
        yield few_by_few(payloads, first)
        return
    middle = len(payloads) // 2
    for start, part in ((first, payloads[:middle]), (first + middle, payloads[middle:])):
        yield from pieces(part, all_at_once, few_by_few, few=few, first=start)


def described(error: BaseException) -> str:
    """Return the reason that a value is none, in one line."""
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
