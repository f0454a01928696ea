"""How far a consumer has come in each partition: what was handed out, what of it is done, what goes back.

A position is after the last record that was handed out. Those that were handed out last are done when the
application asks for more: until then auto commit stays before them, and they can be handed out again.
"""

from collections.abc import Callable, Sequence
from typing import Any

from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.fetch_state import FetchedFrom, FetchState
from coterie.client.consumer.fetcher import Fetcher
from coterie.client.consumer.records import ConsumerRecord
from coterie.client.errors import NotAssigned

Interceptors = Sequence[Callable[[list[Any]], list[Any]]]


class Walk:
    """Records of one partition that are handed out one by one."""

    def __init__(
        self, partition: TopicPartition, records: list[ConsumerRecord[Any, Any]], *, epoch: int
    ) -> None:
        self.partition, self.epoch = partition, epoch
        self.records = iter(records)
        self.shown: ConsumerRecord[Any, Any] | None = None
        """The one that the application has in its hands."""
        self.first = records[0].offset
        self.over = False
        """Whether somebody has asked for more than there was."""

    @property
    def position(self) -> int:
        """The offset after the one that was handed out last."""
        return self.first if self.shown is None else self.shown.offset + 1


class Progress:
    """The positions of a consumer's partitions, and the records that the application works on."""

    def __init__(self, fetcher: Callable[[], Fetcher], interceptors: Interceptors) -> None:
        """`fetcher` returns the consumer's, or raises why there is none now."""
        self._fetcher, self._interceptors = fetcher, interceptors
        self.walk: Walk | None = None
        self._open: dict[TopicPartition, int] = {}
        """The first offset of what the application was handed last, by partition."""
        self._parting: dict[TopicPartition, OffsetAndMetadata] = {}
        """Positions of partitions that are not fetched any more and still ours: they can be committed."""

    # Records out

    def take(self, most: int, *, partitions: int | None = None) -> dict[TopicPartition, list[Any]]:
        """Return up to so many records, of so many partitions, as the interceptors leave them."""
        taken = self._fetcher().take(most, partitions=partitions)
        for at, records in taken.items():
            self._open.setdefault(at, records[0].offset)
        try:
            for intercept in self._interceptors:
                seen = ((at, intercept(records)) for at, records in taken.items())
                taken = {at: records for at, records in seen if records}
        except BaseException:
            self.hand_back()
            raise
        return taken

    def take_walk(self, most: int) -> list[Walk]:
        """Return the walk that another task has begun, else a new one; none where nothing has come."""
        if self.walk is not None and not self.walk.over:
            return [self.walk]
        for at, records in self.take(most, partitions=1).items():
            self.walk = Walk(at, records, epoch=self._fetcher().states[at].epoch)
            return [self.walk]
        return []

    def take_columns(self) -> list[FetchedFrom]:
        """Return all that came, undecoded, and the offset from which on it is wanted."""
        taken = self._fetcher().take_fetched()
        for state, first, _ in taken:
            self._open.setdefault(state.at, first)
        return taken

    def hand_back(self) -> None:
        """Take back what was handed out last and has come to nobody: it is handed out again."""
        walk = self.walk
        if walk is not None and walk.shown is not None:
            self.walk = None
            self._fetcher().back(self.state_of(walk.partition), walk.shown.offset, epoch=walk.epoch)
            return
        for at, first in self._open.items():
            state = self._fetcher().states.get(at)
            if state is not None:
                self._fetcher().back(state, first, epoch=state.epoch)
        self._open.clear()

    def settle(self) -> None:
        """Count what was handed out before as done; what is left of a walk goes back."""
        self._open.clear()
        self.end_walk()

    def end_walk(self) -> None:
        """Take back what is left of a walk, if there is one."""
        if self.walk is None:
            return
        walk, self.walk = self.walk, None
        fetcher = self._fetcher()
        state = fetcher.states.get(walk.partition)
        left = next(walk.records, None)
        if left is not None and state is not None:
            fetcher.back(state, left.offset, epoch=walk.epoch)

    def pause(self, states: Sequence[FetchState]) -> None:
        """Hand out nothing of these partitions until they are resumed."""
        if self.walk is not None and any(state.at == self.walk.partition for state in states):
            self.end_walk()
        self._fetcher().pause(states, True)

    def seek(self, state: FetchState, offset: int, *, epoch: int) -> None:
        """Go on at this offset; what was handed out before counts for nothing."""
        if self.walk is not None and self.walk.partition == state.at:
            self.walk = None
        self._open.pop(state.at, None)
        self._fetcher().jump(state, offset, epoch=epoch)

    def set_partitions(self, partitions: frozenset[TopicPartition]) -> None:
        """Fetch these from now on; what is in stock of others is not handed out any more."""
        stand = {**self._parting, **self._fetched()}
        self._parting = {at: one for at, one in stand.items() if at not in partitions}
        walk = self.walk
        if walk is not None and walk.partition not in partitions:
            if walk.shown is not None:
                self._open[walk.partition] = walk.shown.offset
            self.walk = None
        self._fetcher().set_partitions(partitions)

    # Positions

    def state_of(self, partition: TopicPartition) -> FetchState:
        """Return the state of a partition that is fetched, or raise NotAssigned."""
        state = self._fetcher().states.get(partition)
        if state is None:
            raise NotAssigned(partition)
        return state

    def position(self, state: FetchState) -> int | None:
        """Return the offset after the last record handed out, None where the first is not known yet."""
        if self.walk is not None and self.walk.partition == state.at:
            return self.walk.position
        return state.position

    def positions(self, owned: frozenset[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of the owned partitions, after the records that the application works on."""
        return {at: one for at, one in self._parting.items() if at in owned} | self._fetched()

    def _fetched(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of the partitions that are fetched."""
        found = {}
        for at, state in self._fetcher().states.items():
            position = self.position(state)
            if position is not None:
                found[at] = OffsetAndMetadata(position, state.epoch)
        return found

    def done(self, owned: frozenset[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offset up to which each partition is done, before what the application works on."""
        done = self.positions(owned)
        for at, offset in self._open.items():
            if at in done:
                done[at] = done[at]._replace(offset=offset)
        walk = self.walk
        if walk is not None and walk.shown is not None and walk.partition in done:
            done[walk.partition] = OffsetAndMetadata(walk.shown.offset, walk.epoch)
        return done
