"""The assignors that come with Coterie, by the names that go over the wire."""

from collections.abc import Callable, Mapping

from coterie.assign import range_, roundrobin
from coterie.assign.model import Assignor, Stateless
from coterie.assign.sticky import CooperativeSticky, Sticky

RANGE = Stateless(range_.NAME, range_.assign)
ROUNDROBIN = Stateless(roundrobin.NAME, roundrobin.assign)

KINDS: Mapping[str, Callable[[], Assignor]] = {
    RANGE.name: lambda: RANGE,
    ROUNDROBIN.name: lambda: ROUNDROBIN,
    Sticky.name: Sticky,
    CooperativeSticky.name: CooperativeSticky,
}

# To assign with, which needs nothing to be remembered. A member that joins a group has its own: new_assignor.
ASSIGNORS: Mapping[str, Assignor] = {name: make() for name, make in KINDS.items()}


def new_assignor(name: str) -> Assignor:
    """Return an assignor for one member to keep; the sticky ones remember what it was given."""
    return KINDS[name]()


# What Java's clients write into `partition.assignment.strategy`.
JAVA_CLASSES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
