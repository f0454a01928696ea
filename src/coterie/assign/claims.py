"""What sticky members say they had, and who of them is believed (5.5)."""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

from coterie.assign.board import NOBODY, Board
from coterie.assign.model import Member
from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.wire.consumer import NO_GENERATION, PreviousAssignment

__all__ = ["GENERATION", "Claim", "ClaimOf", "Claims", "claim_of_cooperative", "claim_of_sticky"]

GENERATION = Struct(">i")


class Claim(NamedTuple):
    """What one member had, and in which generation; -1 where that is not known."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


ClaimOf: TypeAlias = Callable[[Member], Claim]


def claim_of_sticky(member: Member) -> Claim:
    """Return what the user data says: an eager member owns nothing when it joins (SK-1, SK-2)."""
    data = member.subscription.user_data
    if not data:
        return Claim()
    try:
        previous = PreviousAssignment.decode(data)
    except Corrupt:
        return Claim()
    return Claim(previous.partitions, NO_GENERATION if previous.generation is None else previous.generation)


def claim_of_cooperative(member: Member) -> Claim:
    """Return what the member owns. Where the subscription has no generation, the user data may (SK-3)."""
    subscription = member.subscription
    generation = subscription.generation
    if generation < 0:
        data = subscription.user_data or b""
        generation = GENERATION.unpack_from(data)[0] if len(data) >= GENERATION.size else NO_GENERATION
    return Claim(subscription.owned, generation)


class Claims:
    """The claims of all members on the partitions of a board, held against each other (SK-6)."""

    def __init__(self, board: Board, claims: Sequence[Claim]) -> None:
        self.board = board
        self.numbers = [board.numbers_of(claim.partitions) for claim in claims]
        """What each member claims, rightly or not."""
        self.generations = [claim.generation for claim in claims]
        self.claimants = [NOBODY] * board.size
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
            if claimants[partition] == NOBODY:
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
        """Return who is believed to have had each partition, or nobody."""
        owners = list(self.claimants)
        for partition in self.twice:
            owners[partition] = NOBODY
        return owners

    def still_wanted(self, owners: Sequence[int]) -> list[int]:
        """Return who of these owners still wants its partition, or nobody."""
        board, wanted = self.board, list(owners)
        for member, numbers in enumerate(self.numbers):
            if numbers and len(board.wants[member]) < len(board.topics):
                for partition in numbers:
                    if wanted[partition] == member and not board.wanted(partition, member):
                        wanted[partition] = NOBODY
        return wanted

    def is_withheld(self, partition: int, owner: int) -> bool:
        """Whether someone must give the partition up before `owner` may have it (CO-1, CO-3)."""
        claimant = self.claimants[partition]
        if claimant in (NOBODY, owner):
            return partition in self.twice
        return partition in self.twice or owner not in self.rivals.get(partition, ())

    def older(self) -> dict[int, int]:
        """Return who had a partition in the highest generation before the latest (GS-2)."""
        latest = max(self.generations, default=NO_GENERATION)
        found: dict[int, int] = {}
        for member, generation in enumerate(self.generations):
            if generation == latest:
                continue
            for partition in self.numbers[member]:
                if partition not in found or generation > self.generations[found[partition]]:
                    found[partition] = member
        return found
