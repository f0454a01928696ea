"""The sticky assignors: as balanced as can be, and as much as possible as it was (5.5 to 5.8).

Both rest on what members say they had. A member of `sticky` gives up all it has before it joins, and says in
its user data what it was; one of `cooperative-sticky` keeps it, and what is to go elsewhere is withheld until
its owner has given it up.
"""

from collections.abc import Sequence
from typing import NamedTuple

from coterie.assign.board import UNASSIGNED, Board
from coterie.assign.claims import (
    GENERATION,
    ClaimOf,
    Claims,
    claim_of_cooperative,
    claim_of_sticky,
)
from coterie.assign.even import share_evenly
from coterie.assign.model import Assigned, Cluster, Member, RebalanceProtocol
from coterie.assign.uneven import share_unevenly
from coterie.assign.untangle import untangle
from coterie.base.ids import TopicPartition
from coterie.wire.payloads.consumer_protocol import NO_GENERATION, PreviousAssignment


class Sticky:
    """The sticky assignor. It remembers what the member was given last, for its next subscription."""

    name = "sticky"
    protocols = (RebalanceProtocol.EAGER,)

    def __init__(self) -> None:
        self.previous: PreviousAssignment | None = None

    def user_data(
        self, *, topics: Sequence[str], owned: Sequence[TopicPartition], generation: int
    ) -> bytes | None:
        """Return the member's last assignment as user data; None before the first (SK-1)."""
        return None if self.previous is None else self.previous.encode()

    def on_assignment(self, partitions: Sequence[TopicPartition], *, generation: int, member_id: str) -> None:
        """Remember what the member was given, and in which generation."""
        self.previous = PreviousAssignment(tuple(partitions), generation)

    def assign(self, cluster: Cluster, members: Sequence[Member]) -> Assigned:
        """Return each member's partitions; none is moved that another could be kept for."""
        outcome = shared_out(cluster, members, claim_of_sticky)
        untangle(outcome.board, outcome.owners, outcome.homes)
        return outcome.board.assigned(outcome.owners)


class CooperativeSticky:
    """The cooperative sticky assignor. It remembers the generation of the last assignment."""

    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def __init__(self) -> None:
        self.generation = NO_GENERATION

    def user_data(
        self, *, topics: Sequence[str], owned: Sequence[TopicPartition], generation: int
    ) -> bytes | None:
        """Return the generation of the last assignment, -1 before the first (SK-4)."""
        return GENERATION.pack(self.generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], *, generation: int, member_id: str) -> None:
        """Remember the generation."""
        self.generation = generation

    def assign(self, cluster: Cluster, members: Sequence[Member]) -> Assigned:
        """Return each member's partitions for now. What another still owns goes to nobody yet (CO-1, CO-2).

        Exchanges that would save moves are left out: what stays with its owner makes this first step, in
        which others still wait for theirs, less balanced than Java's.
        """
        outcome = shared_out(cluster, members, claim_of_cooperative)
        for partition in outcome.claims.withheld_from(outcome.owners):
            outcome.owners[partition] = UNASSIGNED
        return outcome.board.assigned(outcome.owners)


class Outcome(NamedTuple):
    """Who shall have each partition in the end, who had it and still wants it, and who claims it."""

    board: Board
    claims: Claims
    homes: list[int]
    owners: list[int]


def shared_out(cluster: Cluster, members: Sequence[Member], claim_of: ClaimOf) -> Outcome:
    """Return the Outcome: each partition's owner. With racks, nobody keeps what is not near (CS-1, GS-3)."""
    board = Board(cluster, members)
    claims = Claims(board, [claim_of(board, member) for member in board.members])
    had = claims.undisputed()
    homes = claims.still_wanted(had)
    owners = list(homes)
    if board.near is not None:
        for partition, home in enumerate(homes):
            if home != UNASSIGNED and not board.near.fits(home, partition):
                owners[partition] = UNASSIGNED
    if board.all_want_the_same:
        share_evenly(board, owners)
    else:
        share_unevenly(board, owners, older=claims.older(), revoked=owners != had)
    return Outcome(board, claims, homes, owners)
