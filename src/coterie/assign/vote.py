"""The vote for a group's protocol, which the coordinator holds when a generation starts (2.3)."""

from collections import Counter
from collections.abc import Iterable, Sequence

from coterie.assign.model import Assignor, RebalanceProtocol
from coterie.base.hashes import java_hash_order

__all__ = ["candidates", "common_protocol", "vote"]


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


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol | None:
    """Return the highest rebalance protocol that all the assignors support, None if there is none (CA-6)."""
    supported = [frozenset(assignor.protocols) for assignor in assignors]
    common = frozenset.intersection(*supported) if supported else frozenset()
    return max(common, key=lambda protocol: protocol.value, default=None)
