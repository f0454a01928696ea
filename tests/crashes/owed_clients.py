"""What a broker owes to groups and to transactional producers, from what it has answered them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from coterie.base.ids import TopicPartition

__all__ = ["Commits", "Key", "OwedToClients", "Producer", "Seat", "Txn"]


class Key(NamedTuple):
    """What an offset is committed for."""

    group: str
    where: TopicPartition


@dataclass(slots=True)
class Commits:
    """What was committed of one key, the newest last; None: nothing, or nothing any more."""

    told: list[int | None] = field(default_factory=lambda: [None])
    """What was acknowledged, since what no loss of power can take."""
    maybe: dict[int | None, int] = field(default_factory=dict)
    """What was sent since and not acknowledged, with the number of the request."""
    left_over: set[int | None] = field(default_factory=set)
    """What may still be there of a deleted topic, as nobody has heard that it is gone, until one is made."""
    undecided: bool = False
    """Whether a transaction has committed it. A loss of power may take its end; what the start then decides
    anew is not flushed either, and after the next loss the start after that decides."""
    seen: bool = False
    """Whether the one of `maybe` was there after a crash."""
    newest: int = 0
    """The number of the newest commit that counts: one that was sent before it never replaces it."""

    def acknowledge(self, value: int | None, number: int) -> None:
        """Owe what was sent with this number, unless something newer counts."""
        if self.seen:
            self.settle()
        if number > self.newest:
            self.told.append(value)
            self.newest = number
        else:  # it counts again where a loss of power takes what is newer
            self.told.insert(0, value)

    def allowed(self, *, power_lost: bool) -> set[int | None]:
        """Return what a crash may have left."""
        return self.maybe.keys() | self.left_over | (set(self.told) if power_lost else {self.told[-1]})

    def become(self, value: int | None, *, certain: bool, flushes: bool) -> None:
        """Owe what was found from now on; if nobody was told of it, the next loss of power may take it."""
        before = self.allowed(power_lost=True) if self.undecided else set()
        self.newest = max(self.newest, self.maybe.pop(value, 0))
        self.maybe = {}
        if certain:
            self.told = [*(before - {value}), value]
        elif not flushes:
            self.told.append(value)
        elif value != self.told[-1]:
            self.maybe = {value: self.newest}
            self.seen = True

    def begin_anew(self, number: int) -> None:
        """Owe nothing: a topic is made, and whatever was committed is of an earlier one of its name."""
        self.told, self.seen, self.undecided, self.newest = [None], False, False, number
        self.maybe.clear()
        self.left_over.clear()

    def settle(self) -> None:
        """Something was appended behind what was refused: that is not there, what was seen is for good."""
        if self.seen:
            self.told.extend(self.maybe)
        self.maybe, self.seen = {}, False


@dataclass(slots=True)
class Seat:
    """The only member of a group, in the generation whose SyncGroup was answered."""

    member_id: str = ""
    generation: int = -1
    synced_ms: int = 0
    moving: bool = False
    """Whether it has asked for another generation, and was not answered to the end."""


@dataclass(slots=True)
class Txn:
    """A transaction: where it has written, and how somebody has asked to end it."""

    producer_id: int
    epoch: int
    began_ms: int
    places: dict[TopicPartition, tuple[UUID, int]] = field(default_factory=dict)
    """Where it has written: to which life of the topic, and from which offset on."""
    offsets: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """What it commits, with the number of the request."""
    replaced: list[tuple[Key, int]] = field(default_factory=list)
    """What it would have committed, had it not committed something newer for the same."""
    asked: str = ""
    answered: bool = False
    overdue: bool = False
    taken_over: bool = False
    """Whether somebody has asked for the transactional id anew, which ends it."""
    broken: bool = False
    """Whether something was refused, so that a client would not commit it."""


@dataclass(slots=True)
class Producer:
    """A transactional id, and who has it."""

    producer_id: int = -1
    epoch: int = -1
    txn: Txn | None = None
    sequences: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class OwedToClients:
    """Everything that is owed to groups and transactional producers."""

    commits: dict[Key, Commits] = field(default_factory=dict)
    seats: dict[str, Seat] = field(default_factory=dict)
    producers: dict[str, Producer] = field(default_factory=dict)
    ended: list[Txn] = field(default_factory=list)
    """Transactions whose end was answered since the last start: what has become of them is looked at then."""

    number: int = 0
    """Of the last request that commits."""

    def next(self) -> int:
        """Return the number of a new request."""
        self.number += 1
        return self.number

    def of(self, key: Key) -> Commits:
        return self.commits.setdefault(key, Commits())

    def settle(self) -> None:
        """Forget what was refused: something was appended behind it, so it cannot be there."""
        for one in self.commits.values():
            one.settle()

    def certain(self) -> None:
        """Nothing that was acknowledged can be lost any more."""
        for one in self.commits.values():
            del one.told[:-1]
