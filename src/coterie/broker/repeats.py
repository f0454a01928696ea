"""What an answer may say again: as much as Apache Kafka does, but not without end."""

from __future__ import annotations

ITEMS_MAX = 10_000


class Repeats:
    """The repeats of one answer, that are allowed while they are few.

    Kafka describes a thing as often as it is named; but a few kilobytes of names must not become gigabytes.
    """

    def __init__(self) -> None:
        self._left = ITEMS_MAX

    def allow(self, items: int) -> bool:
        """Return whether something of so many items (members, partitions, settings) is said once more."""
        self._left -= 1 + items
        return self._left >= 0
