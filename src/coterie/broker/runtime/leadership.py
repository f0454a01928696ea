"""Which node leads a partition. A broker alone leads everything; the simulator knows of more than one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from coterie.broker.node import Node


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

    def __init__(self, node: Node) -> None:
        self._node = node

    def leads(self, topic: str, partition: int) -> bool:
        """Return True: there is nobody else."""
        return True

    def leader_of(self, topic: str, partition: int) -> Leader:
        """Return this node."""
        return Leader(self._node.settings.node_id, *self._node.advertised)
