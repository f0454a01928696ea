"""The assignors by the names that go over the wire."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from coterie.assign import range_, roundrobin
from coterie.assign.model import Assigned, Cluster, Member

__all__ = ["ASSIGNORS", "Assignor"]


class Assignor(NamedTuple):
    """A way to share partitions out. With an eager one, members give up everything before they rejoin."""

    name: str
    assign: Callable[[Cluster, Sequence[Member]], Assigned]
    eager: bool = True


ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        Assignor(range_.NAME, range_.assign),
        Assignor(roundrobin.NAME, roundrobin.assign),
    )
}
