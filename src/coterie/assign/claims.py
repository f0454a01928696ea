"""What sticky members say they had, and who of them is believed (5.5)."""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

from coterie.assign.board import UNASSIGNED, Board
from coterie.assign.model import Member
from coterie.base.errors import Corrupt
from coterie.wire.payloads.consumer_protocol import NO_GENERATION, read_previous

GENERATION = Struct(">i")


class Claim(NamedTuple):
    """What one member had, as numbers of the board, and in which generation; -1 where that is not known."""

    partitions: list[int]
    generation: int = NO_GENERATION


ClaimOf: TypeAlias = Callable[[Board, Member], Claim]


def claim_of_sticky(board: Board, member: Member) -> Claim:
    """Return the Claim in the user data: an eager member owns nothing when it joins (SK-1, SK-2)."""
    data = member.subscription.user_data
    if not data:
        return Claim([])
    try:
        topics, generation = read_previous(data)
    except Corrupt:
        return Claim([])
    numbers = [number for topic, listed in topics for number in board.numbers_of(topic, listed)]
    return Claim(numbers, NO_GENERATION if generation is None else generation)


def claim_of_cooperative(board: Board, member: Member) -> Claim:
    """Return the Claim of what the member owns; a generation may be in the user data alone (SK-3)."""
    subscription = member.subscription
    generation = subscription.generation
    if generation < 0:
        data = subscription.user_data or b""
        generation = GENERATION.unpack_from(data)[0] if len(data) >= GENERATION.size else NO_GENERATION
    return Claim(board.numbers_in(subscription.owned), generation)


class Claims:
    """The claims of all members on the partitions of a board, held against each other (SK-6)."""

    def __init__(self, board: Board, claims: Sequence[Claim]) -> None:
        self.board = board
        self.numbers = [claim.partitions for claim in claims]
        """What each member claims, rightly or not."""
        self.generations = [claim.generation for claim in claims]
        self.claimants = [UNASSIGNED] * board.size
        """Who claims each partition; of several the one of the highest generation."""
        self.rivals: dict[int, set[int]] = {}
        """All who claim a partition, where they are several."""
        self.twice: set[int] = set()
        """What several claim in the same generation: none of them is believed."""
        for member, numbers in enumerate(self.numbers):
            self._hear(member, numbers)

    def _hear(self, member: int, numbers: list[int]) -> None:
        claimants = self.claimants
        for partition in numbers:
            if claimants[partition] == UNASSIGNED:
                claimants[partition] = member
            elif claimants[partition] != member:
                self._dispute(partition, claimants[partition], member)

    def _dispute(self, partition: int, one: int, other: int) -> None:
        self.rivals.setdefault(partition, {one}).add(other)
        if self.generations[other] > self.generations[one]:
            self.claimants[partition] = other
            self.twice.discard(partition)
        elif self.generations[other] == self.generations[one]:
            self.twice.add(partition)

    def undisputed(self) -> list[int]:
        """Return the believed former owner of each partition, or nobody."""
        owners = list(self.claimants)
        for partition in self.twice:
            owners[partition] = UNASSIGNED
        return owners

    def still_wanted(self, owners: Sequence[int]) -> list[int]:
        """Return the owner of each partition if it still wants it, else nobody."""
        if self.board.all_want_the_same:
            return list(owners)
        wants = [*self.board.wants, frozenset()]  # the last are nobody's
        return [
            owner if topic in wants[owner] else UNASSIGNED
            for owner, topic in zip(owners, self.board.topic_names(), strict=True)
        ]

    def withheld_from(self, owners: Sequence[int]) -> set[int]:
        """Return the partitions that others must give up before these owners get them (CO-1, CO-3, CS-8)."""
        if not any(self.numbers):
            return set()
        claimed = [
            partition
            for partition, (owner, claimant) in enumerate(zip(owners, self.claimants, strict=True))
            if claimant != UNASSIGNED and claimant != owner
        ]
        return self.twice.union(one for one in claimed if owners[one] not in self.rivals.get(one, ()))

    def older(self) -> dict[int, int]:
        """Return the owners of partitions in the highest generation before the latest (GS-2)."""
        latest = max(self.generations, default=NO_GENERATION)
        found: dict[int, int] = {}
        for member, generation in enumerate(self.generations):
            if generation == latest:
                continue
            for partition in self.numbers[member]:
                if partition not in found or generation > self.generations[found[partition]]:
                    found[partition] = member
        return found
