"""Producer ids that were never given out: where they come from, and those that a broker of several holds.

The engine of a cluster gives them out in blocks. A block is its broker's for good, whatever epoch that is
registered in by then, so it is used up; and the next one is asked for while there are some left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from coterie.broker.runtime.pieces import Until

if TYPE_CHECKING:
    from coterie.broker.cluster.statements import ProducerIds

LOW = 500  # so few left, and the next block is asked for


class ProducerIdManager(Protocol):
    """Where producer ids come from."""

    @property
    def learns_from_logs(self) -> bool:
        """Whether none is given out before those that logs hold are known."""
        ...

    def next_producer_id(self) -> int | None:
        """Return a producer id that was never given out, None while there is none. Raises OSError."""
        ...

    def producer_id_seen(self, producer_id: int) -> None:
        """Take note of one that was given out: perhaps by a broker whose files this one goes on with."""
        ...

    def until_some(self) -> Until | None:
        """Return the wait for some, None where one is at hand or is made at once. The answer is whether more
        have come, True or False.
        """
        ...


class ReservedProducerIds:
    """The producer ids that this broker of several holds."""

    learns_from_logs: Final = False

    def __init__(self, reserve: Callable[[Callable[[ProducerIds | None], None]], None]) -> None:
        """`reserve` asks the engine for a block, and calls once: with it, or None if there is none now."""
        self._reserve = reserve
        self._blocks: deque[range] = deque()
        self._asked = False
        self._waiting: list[Callable[[Any], None]] = []

    def next_producer_id(self) -> int | None:
        """Return a producer id that was never given out, None while there is none."""
        given = None
        if self._blocks:
            block = self._blocks.popleft()
            given = block[0]
            if len(block) > 1:
                self._blocks.appendleft(block[1:])
        if sum(map(len, self._blocks)) < LOW:
            self._ask()
        return given

    def producer_id_seen(self, producer_id: int) -> None:
        """Do nothing: whatever a log of the cluster holds, the engine has given out."""

    def until_some(self) -> Until | None:
        """Return the wait for the next block, whether it comes; None where an id is at hand."""
        return None if self._blocks else Until(self._await)

    def _await(self, take: Callable[[Any], None]) -> None:
        self._waiting.append(take)
        self._ask()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._reserve(self._answered)

    def _answered(self, block: ProducerIds | None) -> None:
        self._asked = False
        if block is not None:
            self._blocks.append(range(block.first, block.first + block.size))
        waiting, self._waiting = self._waiting, []
        for take in waiting:
            take(block is not None)
