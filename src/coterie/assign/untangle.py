"""Taking back moves that nobody needed: members exchange partitions until no exchange saves a move.

Who has how much does not change. An exchange is fair if as many partitions are near their owners as before,
and if nobody gets a partition that another, with two less, wants as well: what was balanced stays so.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from coterie.assign.board import UNASSIGNED, Board


def untangle(board: Board, owners: list[int], homes: Sequence[int]) -> None:
    """Bring partitions back to where they were, in place, in exchange for such as were not there."""
    if not [1 for owner, home in zip(owners, homes, strict=True) if home != UNASSIGNED and home != owner]:
        return
    exchange = Exchange(board, owners, homes)
    waiting = deque(sorted(exchange.missed))
    while waiting:  # every exchange saves a move, and only an exchange lets somebody wait again
        waiting.extend(exchange.bring_back(waiting.popleft()))


class Exchange:
    """What each member misses, and what it has that was not its own."""

    def __init__(self, board: Board, owners: list[int], homes: Sequence[int]) -> None:
        self.board, self.owners, self.homes = board, owners, homes
        self.missed: defaultdict[int, set[int]] = defaultdict(set)
        self.strange: defaultdict[int, set[int]] = defaultdict(set)
        self.load = Counter(owners)
        self._least: dict[int, int] = {}
        for partition, (owner, home) in enumerate(zip(owners, homes, strict=True)):
            if owner != home:
                self.strange[owner].add(partition)
                if home != UNASSIGNED:
                    self.missed[home].add(partition)

    def bring_back(self, member: int) -> list[int]:
        """Bring back what can be of what the member misses; return who has got something strange for it."""
        others = []
        for missed in sorted(self.missed[member]):
            other = self.owners[missed]
            offered = self._offer(member, missed, other)
            if offered is not None:
                self._give(missed, member)
                self._give(offered, other)
                others.append(other)
        return [other for other in others if self.missed[other]]

    def _offer(self, member: int, missed: int, other: int) -> int | None:
        """Return a partition that the member can give for what it misses, best one that the other misses."""
        offers = [one for one in sorted(self.strange[member]) if self._is_fair(member, missed, other, one)]
        return min(offers, key=lambda one: self.homes[one] != other, default=None)

    def _is_fair(self, member: int, missed: int, other: int, offered: int) -> bool:
        board, near = self.board, self.board.near
        if not board.wanted(offered, other):
            return False
        if near is not None:
            after = near.fits(member, missed) + near.fits(other, offered)
            if after < near.fits(other, missed) + near.fits(member, offered):
                return False
        return self._stays_balanced(missed, member) and self._stays_balanced(offered, other)

    def _stays_balanced(self, partition: int, taker: int) -> bool:
        return self.load[taker] < self._least_load(self.board.topic_of(partition)) + 2

    def _least_load(self, topic: int) -> int:
        """Return the smallest number of partitions that a member has among those that want a topic."""
        if topic not in self._least:
            audience = self.board.members_that_want(topic)
            self._least[topic] = min(self.load[member] for member in audience)
        return self._least[topic]

    def _give(self, partition: int, taker: int) -> None:
        home = self.homes[partition]
        self.strange[self.owners[partition]].discard(partition)
        if taker == home:
            self.missed[home].discard(partition)
        else:
            self.strange[taker].add(partition)
        self.owners[partition] = taker
