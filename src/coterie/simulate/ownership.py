"""Who was at work on each partition, when nobody was, and when two were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coterie.base.ids import TopicPartition
from coterie.story.drawing import Span


class Row:
    """One partition's history."""

    __slots__ = (
        "_at_work",
        "_idle_since",
        "_twice_since",
        "first_owned_ms",
        "idle",
        "moves",
        "spans",
        "twice_ms",
    )

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.idle: list[Span] = []
        """When nobody was at work on it, from its first owner on."""
        self.moves: list[int] = []
        """When it went to another member than the one before."""
        self.twice_ms = 0
        """For how long more than one was at work on it."""
        self.first_owned_ms: int | None = None
        self._at_work: dict[int, int] = {}
        self._idle_since: int | None = None
        self._twice_since = 0

    def taken(self, owner: int, now_ms: int, before: int | None) -> None:
        """Note that a member begins to work on it; `before` is who did so last."""
        if self.first_owned_ms is None:
            self.first_owned_ms = now_ms
        elif self._idle_since is not None and self._idle_since < now_ms:
            self.idle.append(Span(self._idle_since, now_ms))
        self._idle_since = None
        if before is not None and before != owner:
            self.moves.append(now_ms)
        self._at_work[owner] = now_ms
        if len(self._at_work) == 2:
            self._twice_since = now_ms

    def left(self, owner: int, now_ms: int) -> None:
        """Note that a member works on it no more."""
        since_ms = self._at_work.pop(owner)
        if since_ms < now_ms:
            self.spans.append(Span(since_ms, now_ms, owner))
        if len(self._at_work) == 1:
            self.twice_ms += now_ms - self._twice_since
        elif not self._at_work:
            self._idle_since = now_ms

    def close(self, now_ms: int) -> None:
        """End the history: whatever goes on is cut here."""
        for owner in tuple(self._at_work):
            self.left(owner, now_ms)
        if self._idle_since is not None and self._idle_since < now_ms:
            self.idle.append(Span(self._idle_since, now_ms))
        self.spans.sort()

    @property
    def idle_ms(self) -> int:
        """For how long nobody was at work on it."""
        return sum(span.length_ms for span in self.idle)

    @property
    def longest(self) -> Span | None:
        """The longest time that nobody was at work on it."""
        return max(self.idle, key=lambda span: (span.length_ms, -span.from_ms), default=None)


class Ownership:
    """The history of every partition of the group's topics."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.rows = {one: Row() for one in partitions}
        self._last: dict[TopicPartition, int] = {}

    def changed(
        self, owner: int, had: frozenset[TopicPartition], has: frozenset[TopicPartition], now_ms: int
    ) -> None:
        """Note that a member is at work on other partitions than before."""
        rows, last = self.rows, self._last
        for one in had - has:
            rows[one].left(owner, now_ms)
        for one in has - had:
            rows[one].taken(owner, now_ms, last.get(one))
            last[one] = owner

    def close(self, now_ms: int) -> None:
        """End all histories."""
        for row in self.rows.values():
            row.close(now_ms)

    def idle_spans(self) -> Iterator[tuple[TopicPartition, Span]]:
        """Yield every stretch of every partition in which nobody was at work on it."""
        return ((one, span) for one, row in self.rows.items() for span in row.idle)
