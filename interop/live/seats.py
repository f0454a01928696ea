"""What the clients of one group believe: who they are, in which generation, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Group", "Seat"]


@dataclass(slots=True)
class Seat:
    """One client's place in its group."""

    actor: str
    instance: str | None = None
    id: str = ""
    past: str = ""
    """The id before a restart."""
    generation: int = -1
    protocol: str | None = None
    leads: bool = False
    ids: tuple[str, ...] = ()
    """Every member, as the leader was told."""
    stage: str = "out"
    """out, named, joined, stable or behind."""

    def forget(self) -> None:
        """Start again as a client that was never in the group."""
        self.id, self.past, self.generation, self.protocol = "", "", -1, None
        self.leads, self.ids, self.stage = False, (), "out"

    def restart(self) -> None:
        """Come back without the id, which a static member may."""
        past = self.id
        self.forget()
        self.past = past


@dataclass(slots=True)
class Group:
    """One group of the walk. A new name is a new group to the brokers."""

    letter: str
    key: str
    protocol_type: str
    seats: list[Seat]
    leader: str = ""
    number: int = 0
    instances: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """The group id."""
        return f"{self.key}-{self.letter}{self.number}"

    def renew(self) -> None:
        """Leave the group to itself and take another."""
        self.number += 1
        self.leader = ""
        for seat in self.seats:
            seat.forget()

    def known(self) -> list[Seat]:
        """Return the clients that have an id."""
        return [seat for seat in self.seats if seat.id]
