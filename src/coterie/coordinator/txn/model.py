"""A transactional id and what is known of it. Values: nothing changes one, `apply.py` puts another there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, unique
from types import MappingProxyType
from typing import NamedTuple

from coterie.base.ids import TopicPartition

NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1  # by the names that they have in Kafka
NO_TIME = -1
EPOCH_MAX = 2**15 - 1
BUMPS_EPOCH_SINCE = 2  # the transaction.version from which on every end of a transaction does (KIP-890)


@unique
class State(Enum):
    """The states of a transactional id, by the names that ListTransactions shows."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"

    __hash__ = object.__hash__  # Enum's own is Python, and tables are keyed by states

    def __str__(self) -> str:
        return self.value


STATES: tuple[State, ...] = tuple(State)  # by the number that a record has for them
NUMBERS: Mapping[State, int] = MappingProxyType({state: number for number, state in enumerate(STATES)})


class Producer(NamedTuple):
    """A producer id and its epoch: who may write."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """One transactional id. `partitions` is an ordered set, never changed in place.

    `previous_id` is the producer id before the last change, `next_id` the one that follows when the end that
    is under way uses up the last epoch. `last_epoch` is the epoch before, as long as its owner may come back
    and ask again (KIP-360); no record has it.
    """

    transactional_id: str
    state: State
    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ms: int
    last_epoch: int = NO_PRODUCER_EPOCH
    previous_id: int = NO_PRODUCER_ID
    next_id: int = NO_PRODUCER_ID
    started_ms: int = NO_TIME
    client_version: int = 0
    partitions: Mapping[TopicPartition, None] = MappingProxyType({})

    @property
    def exhausted(self) -> bool:
        """Whether no epoch of this producer id is left to hand out: the last is kept to fence with."""
        return is_exhausted(self.epoch)

    def has(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether all of these are in the transaction."""
        held = self.partitions
        return all(one in held for one in partitions)


def is_exhausted(epoch: int) -> bool:
    """Return whether a producer with this epoch needs another producer id."""
    return epoch >= EPOCH_MAX - 1
