"""Sharing out among members that want different topics: keep what was, place what is free, level (5.7).

What is free goes to the member with the least that wants it. Then, as long as one member has two or more
above another that wants one of its partitions, one goes over. Each such step lowers the sum of the squared
loads by two at least: that is why the steps end, why no single move can improve what comes out, and how many
moves there are at most.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from coterie.assign.board import UNASSIGNED, Board

ByTopic: TypeAlias = list[tuple[int, Sequence[int]]]


def share_unevenly(board: Board, owners: list[int], *, older: Mapping[int, int], revoked: bool) -> None:
    """Give every partition an owner, in place.

    `owners` says who may keep each partition, or nobody; `older` who had it before, in an earlier generation;
    `revoked` whether somebody had to give up what it had.
    """
    table = Table(board, owners)
    free = table.free()
    table.place()
    leveller = Leveller(table, older)
    if not revoked:
        leveller.level(free)  # what is new moves first: that costs nobody anything (GS-7)
    leveller.level(table.everything())


class Table:
    """Who has what, and how much everybody has.

    A member's key is its load and its number in one integer, so that the least key is that of the member with
    the least, the first by member id among equals (GS-4).
    """

    def __init__(self, board: Board, owners: list[int]) -> None:
        self.board, self.owners = board, owners
        self.members = len(board.members)
        self.keys = list(range(self.members))
        for owner in owners:
            if owner != UNASSIGNED:
                self.keys[owner] += self.members
        self.order = sorted(range(len(board.topics)), key=board.crowds().__getitem__)
        """The topics that the fewest want come first, among those the first by name (GS-1)."""
        self._audiences: dict[int, list[int]] = {}

    def audience(self, topic: int) -> list[int]:
        """Return the members that want a topic. In a group that is balanced few are asked for."""
        if topic not in self._audiences:
            self._audiences[topic] = self.board.members_that_want(topic)
        return self._audiences[topic]

    def load(self, member: int) -> int:
        """Return the number of a member's partitions."""
        return self.keys[member] // self.members

    def hand(self, partition: int, taker: int) -> None:
        """Let a partition go from its owner to another member."""
        self.keys[self.owners[partition]] -= self.members
        self.keys[taker] += self.members
        self.owners[partition] = taker

    def everything(self) -> ByTopic:
        """Return the partitions of each topic."""
        return [(topic, self.board.partitions_of(topic)) for topic in self.order]

    def free(self) -> ByTopic:
        """Return the partitions without an owner, by topic."""
        owners = self.owners
        return [
            (topic, free)
            for topic, partitions in self.everything()
            if (free := [partition for partition in partitions if owners[partition] == UNASSIGNED])
        ]

    @property
    def is_level(self) -> bool:
        """Whether nobody has two more than anybody else."""
        return max(self.keys) // self.members < min(self.keys) // self.members + 2

    def is_level_in(self, topic: int) -> bool:
        """Whether nobody that has a partition of the topic has two more than another that wants it."""
        partitions = self.board.partitions_of(topic)
        most = max(self.keys[owner] for owner in self.owners[partitions.start : partitions.stop])
        least = min(map(self.keys.__getitem__, self.audience(topic)))
        return most // self.members < least // self.members + 2

    def place(self) -> None:
        """Give what is free to the members with the least, with racks first to those that are near (GS-5)."""
        if self.board.near is not None:
            for topic, partitions in self.free():
                for partition in partitions:
                    near = [one for one in self.audience(topic) if self.board.near.fits(one, partition)]
                    self._place([partition], near)
        for topic, partitions in self.free():
            self._place(partitions, self.audience(topic))

    def _place(self, partitions: Iterable[int], members: Sequence[int]) -> None:
        heap = [self.keys[member] for member in members]
        heapify(heap)
        for partition in partitions if heap else ():
            key = heap[0] + self.members
            heapreplace(heap, key)
            self.owners[partition] = member = key % self.members
            self.keys[member] = key


class Leveller:
    """Lets partitions go from members that have more to such as have less, and remembers their ways."""

    def __init__(self, table: Table, older: Mapping[int, int]) -> None:
        self.table, self.older = table, older
        self.trail = Trail()

    def level(self, movable: ByTopic) -> None:
        """Move the partitions given, until no move of one of them would help (GS-8)."""
        moved = not self.table.is_level
        while moved:
            moved = False
            for topic, partitions in movable:
                moved |= self._level(topic, partitions)

    def _level(self, topic: int, partitions: Sequence[int]) -> bool:
        """Go over the partitions of a topic once; return whether any moved."""
        if self.table.is_level_in(topic):
            return False
        least = Least(self.table, self.table.audience(topic))
        moved = False
        for partition in partitions:
            taker = self._taker(partition, least.member())
            if taker is not None:
                least.changed(self._move(topic, partition, taker))
                moved = True
        return moved

    def _taker(self, partition: int, least: int) -> int | None:
        """Return the member that should get the partition, None if its owner should keep it."""
        enough = self.table.load(self.table.owners[partition]) - 2
        before = self.older.get(partition)
        if (
            before is not None
            and self.table.load(before) <= enough
            and self.table.board.wanted(partition, before)
        ):
            return before
        return least if self.table.load(least) <= enough else None

    def _move(self, topic: int, partition: int, taker: int) -> set[int]:
        """Move a partition, or rather undo the move of another from there; return whose load changed.

        If a partition of the topic went from the taker to where this one was first, it goes back (GS-9).
        Where that alone would not even loads out, this one goes back to where it was first as well.
        """
        owners, load = self.table.owners, self.table.load
        first = self.trail.first_owner(partition, owners[partition])
        back = self.trail.back(topic, taker, first)
        changed = {owners[partition], first, taker}
        if back is None or load(first) < load(taker):
            self._hand(topic, partition, taker)
        elif first == owners[partition] or load(first) > load(taker):
            self._hand(topic, back, taker)
        else:
            self._hand(topic, back, taker)
            self._hand(topic, partition, first)
        return changed

    def _hand(self, topic: int, partition: int, taker: int) -> None:
        self.trail.note(topic, partition, self.table.owners[partition], taker)
        self.table.hand(partition, taker)


class Least:
    """The member with the least of those that want a topic, while loads change.

    Whoever's load changes gets a new entry; old entries are dropped when they come up.
    """

    def __init__(self, table: Table, members: Sequence[int]) -> None:
        self.table = table
        self._heap = [table.keys[member] for member in members]
        heapify(self._heap)

    def member(self) -> int:
        """Return the member with the least."""
        heap, table = self._heap, self.table
        while heap[0] != table.keys[heap[0] % table.members]:
            heappop(heap)
        return heap[0] % table.members

    def changed(self, members: Iterable[int]) -> None:
        """Take note that these members' loads are others now."""
        for member in members:
            heappush(self._heap, self.table.keys[member])


class Trail:
    """Where partitions went: of each that moved, its first owner and its last."""

    def __init__(self) -> None:
        self._ways: dict[int, tuple[int, int]] = {}
        self._between: dict[tuple[int, int, int], set[int]] = {}
        """The partitions of a topic that went from one member to another."""

    def first_owner(self, partition: int, owner: int) -> int:
        """Return the partition's owner before its first move, else `owner`."""
        return self._ways.get(partition, (owner,))[0]

    def back(self, topic: int, giver: int, taker: int) -> int | None:
        """Return a partition of the topic that went from `giver` to `taker`, None if none did."""
        return max(self._between.get((topic, giver, taker), ()), default=None)

    def note(self, topic: int, partition: int, giver: int, taker: int) -> None:
        """Take note of a move; what is back where it was has not moved."""
        if partition in self._ways:
            giver, before = self._ways.pop(partition)
            self._between[topic, giver, before].remove(partition)
        if giver != taker:
            self._ways[partition] = giver, taker
            self._between.setdefault((topic, giver, taker), set()).add(partition)
