"""The vote for a group's protocol, which the coordinator holds when a generation starts (2.3).

And what a member's assignors have in common, which decides whether it keeps its partitions while it rejoins.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from coterie.assign.model import Assignor, RebalanceProtocol
from coterie.base.errors import CoterieError
from coterie.base.hashes import java_hash_order


class NoCommonProtocol(CoterieError):
    """The assignors of one member cannot be used together: some are only eager, some only cooperative."""

    def __init__(self, assignors: Sequence[Assignor]) -> None:
        listed = "; ".join(
            f"{assignor.name}: {', '.join(protocol.name.lower() for protocol in assignor.protocols)}"
            for assignor in assignors
        )
        super().__init__(
            f"the assignors have no rebalance protocol in common ({listed}): choose such as share one"
        )


def candidates(ballots: Iterable[Sequence[str]]) -> frozenset[str]:
    """Return the protocols that every member supports (PV-1); each ballot is one member's list."""
    supported = [frozenset(ballot) for ballot in ballots]
    return frozenset.intersection(*supported) if supported else frozenset()


def vote(ballots: Sequence[Sequence[str]]) -> str | None:
    """Return the protocol that most members prefer among those all support, None if there is none.

    Each member votes for the first candidate of its own list (PV-2). A tie falls to the name that
    comes first in a Java HashMap, as it does in Kafka (PV-3).
    """
    standing = candidates(ballots)
    if not standing:
        return None
    votes = Counter(next(name for name in ballot if name in standing) for ballot in ballots)
    return max(java_hash_order(votes), key=votes.__getitem__)


def common_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """Return the highest rebalance protocol that all of a member's assignors support (CA-6)."""
    if not assignors:
        raise CoterieError(
            "partition.assignment.strategy names no assignor: name at least one, such as range"
        )
    common = frozenset.intersection(*(frozenset(assignor.protocols) for assignor in assignors))
    if not common:
        raise NoCommonProtocol(assignors)
    return max(common, key=lambda protocol: protocol.value)
