"""Sharing out among members that want the same topics, with as few moves as there can be (5.6).

Of N partitions and C members each gets N // C or one more. A member keeps what it had up to that many, and
those that had more come first for the one more: no assignment as balanced keeps more. With racks, what is not
near its owner counts as if nobody had had it, and the near members come first for what is free.
"""

from collections import Counter
from itertools import chain

from coterie.assign.board import UNASSIGNED, Board, Nearness
from coterie.base.hashes import java_hash_order


def share_evenly(board: Board, owners: list[int]) -> None:
    """Give every partition an owner, in place. `owners` says who may keep each partition, or nobody.

    What is free is dealt in the order of topics and numbers (CS-5). Each member ends with N // C or one more,
    and nobody loses what it need not (CS-9).
    """
    if not board.size:
        return
    dealer = Dealer(board, owners)
    dealer.keep()
    free = [partition for partition, owner in enumerate(owners) if owner == UNASSIGNED]
    if board.near is not None:
        free = NearDealer(dealer, board.near).deal(free)
    dealer.deal(free)


class Dealer:
    """Who may still get how much."""

    def __init__(self, board: Board, owners: list[int]) -> None:
        self.board, self.owners = board, owners
        self.load = [0] * len(board.members)
        self.low, self.over = divmod(board.size, len(board.members))
        """Each member gets `low` partitions; so many may still get one more."""
        self.under: list[int] = []
        """Members that have less than `low`, by member id."""
        self.at_low: list[int] = []
        """Members that have `low` and come next for one more."""

    def keep(self) -> None:
        """Take from each member what is above its share (CS-1 to CS-4)."""
        had = Counter(self.owners)
        with_more = self._first_for_more([one for one in range(len(self.load)) if had[one] > self.low])
        self.over -= len(with_more)
        too_many = set()
        for member in range(len(self.load)):
            share = min(had[member], self.low + (member in with_more))
            self.load[member] = share
            if share < self.low:
                self.under.append(member)
            elif share == self.low:
                self.at_low.append(member)
            if share < had[member]:
                too_many.add(member)
        if too_many:
            self._take_from(too_many)

    def _take_from(self, members: set[int]) -> None:
        """Let the members keep as much as their load says: the lowest numbers, whatever the topic."""
        left = {member: self.load[member] for member in members}
        theirs = [partition for partition, owner in enumerate(self.owners) if owner in members]
        for partition in sorted(theirs, key=self.board.by_number):
            owner = self.owners[partition]
            left[owner] -= 1
            if left[owner] < 0:
                self.owners[partition] = UNASSIGNED

    def _first_for_more(self, members: list[int]) -> frozenset[int]:
        """Return the members that had more and may keep one more; of too many, Java's choice (AS-4)."""
        if len(members) > self.over > 0:
            places = {member.member_id: place for place, member in enumerate(self.board.members)}
            candidates = frozenset(members)
            members = [places[one] for one in java_hash_order(places) if places[one] in candidates]
        return frozenset(members[: self.over])

    def deal(self, free: list[int]) -> None:
        """Give a partition each in turn to the members below their share, the rest to those at it (CS-7)."""
        takers: list[int] = []
        under, rounds = self.under, 0
        for lack in sorted({self.low - self.load[member] for member in under}):
            takers += under * (lack - rounds)
            self.at_low += [member for member in under if self.low - self.load[member] == lack]
            under = [member for member in under if self.low - self.load[member] > lack]
            rounds = lack
        takers += self.at_low[: self.over]
        for partition, taker in zip(free, takers, strict=True):
            self.owners[partition] = taker


class NearDealer:
    """Deals what is near somebody, before the rest is dealt (CS-6)."""

    def __init__(self, dealer: Dealer, near: Nearness) -> None:
        self.dealer, self.near = dealer, near
        self.turn = 0

    def deal(self, free: list[int]) -> list[int]:
        """Give what is near a member that may have it, the hardest to place first; return the rest."""
        return [
            partition
            for partition in self.near.hardest_first(free)
            if not self._to_one_below(partition) and not self._to_one_at_low(partition)
        ]

    def _to_one_below(self, partition: int) -> bool:
        """Give to the next member below its share that is in a rack of the partition."""
        dealer, under = self.dealer, self.dealer.under
        places = chain(range(self.turn, len(under)), range(self.turn))
        at = next((at for at in places if self.near.shares_rack(under[at], partition)), None)
        if at is None:
            return False
        member = under[at]
        self._give(partition, member)
        if dealer.load[member] == dealer.low:
            del under[at]
            dealer.at_low.append(member)
        else:
            at += 1
        self.turn = at % len(under) if under else 0
        return True

    def _to_one_at_low(self, partition: int) -> bool:
        """Give to the first member at its share that is in a rack of the partition and may have one more."""
        dealer = self.dealer
        if not dealer.over:
            return False
        for at, member in enumerate(dealer.at_low):
            if self.near.shares_rack(member, partition):
                self._give(partition, member)
                dealer.over -= 1
                del dealer.at_low[at]
                return True
        return False

    def _give(self, partition: int, member: int) -> None:
        self.dealer.owners[partition] = member
        self.dealer.load[member] += 1
