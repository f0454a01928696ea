"""Producer ids that were never given out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from coterie.broker.runtime.pieces import Until


class ProducerIdManager(Protocol):
    """Where producer ids come from."""

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
