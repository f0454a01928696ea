"""The assignors by the names that go over the wire."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from coterie.assign import range_, roundrobin
from coterie.assign.model import Assigned, Assignor, Cluster, Member, RebalanceProtocol
from coterie.base.ids import TopicPartition

__all__ = ["ASSIGNORS", "new_assignor"]


class Forgetful(NamedTuple):
    """An assignor that remembers nothing."""

    name: str
    assign: Callable[[Cluster, Sequence[Member]], Assigned]
    protocols: tuple[RebalanceProtocol, ...] = (RebalanceProtocol.EAGER,)

    def user_data(
        self, *, topics: Sequence[str], owned: Sequence[TopicPartition], generation: int
    ) -> bytes | None:
        """Return None."""

    def on_assignment(self, partitions: Sequence[TopicPartition], *, generation: int, member_id: str) -> None:
        """Forget it."""


ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        Forgetful(range_.NAME, range_.assign),
        Forgetful(roundrobin.NAME, roundrobin.assign),
    )
}


def new_assignor(name: str) -> Assignor:
    """Return an assignor for one member, by its name."""
    return ASSIGNORS[name]
