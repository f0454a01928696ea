"""Which node leads a partition. A broker alone leads everything; the simulator knows of more than one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Leader(NamedTuple):
    """A node, and where clients reach it."""

    node_id: int
    host: str
    port: int


class Leadership(Protocol):
    """What a node believes of who leads what."""

    def leads(self, topic: str, partition: int) -> bool:
        """Return whether this node leads a partition."""
        ...

    def leader_of(self, topic: str, partition: int) -> tuple[int, str, int] | None:
        """Return the id and address of a partition's leader, None while it has none."""
        ...


class Alone:
    """The leadership of a cluster of one."""

    def __init__(self, node_id: int, address: Callable[[], tuple[str, int]]) -> None:
        """`address` returns the host and port that clients are sent to."""
        self._node_id = node_id
        self._address = address

    def leads(self, topic: str, partition: int) -> bool:
        """Return True: there is nobody else."""
        return True

    def leader_of(self, topic: str, partition: int) -> Leader:
        """Return this node."""
        return Leader(self._node_id, *self._address())
