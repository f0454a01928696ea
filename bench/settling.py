"""`python -m bench.settling [GROUPS]`: how many rebalances until a cooperative group is settled.

Random groups of 2 to 12 members that want different topics, each partition with one of those that want it or
with nobody. The first rebalance withholds what changes hands; a group is settled when nothing is withheld.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from itertools import product
from random import Random

from coterie.assign.model import Cluster, Member
from coterie.assign.registry import new_assignor
from coterie.base.ids import TopicPartition
from coterie.wire.payloads.consumer_protocol import Subscription

GROUPS, SEED = 100_000, 1
TOPICS = ("t0", "t1", "t2", "t3")
MEMBERS = (2, 12)
PARTITIONS_MOST = 8
REBALANCES_MOST = 10

Wants = Mapping[str, tuple[str, ...]]
Owned = Mapping[str, tuple[TopicPartition, ...]]


def main() -> None:
    """Print how many groups took how many rebalances, and how many could be balanced better."""
    groups = int(sys.argv[1]) if sys.argv[1:] else GROUPS
    chance = Random(SEED)
    took: Counter[int] = Counter()
    unbalanced = 0
    for _ in range(groups):
        cluster, wants = drawn(chance)
        rebalances, given = settled(cluster, wants, owned_at_first(chance, cluster, wants))
        took[rebalances] += 1
        unbalanced += could_be_better(given, wants)
    print(f"{groups} groups, seed {SEED}")
    for rebalances, count in sorted(took.items()):
        print(f"settled after {rebalances} rebalances: {count} ({count / groups:.2%})")
    print(f"a move would improve the balance of {unbalanced}")


def drawn(chance: Random) -> tuple[Cluster, Wants]:
    """Return topics, and members of which not all want the same."""
    cluster = Cluster(partition_counts={topic: chance.randint(0, PARTITIONS_MOST) for topic in TOPICS})
    names = [f"member-{number:02}" for number in range(chance.randint(*MEMBERS))]
    while True:
        wants = {name: tuple(sorted(chance.sample(TOPICS, chance.randint(0, len(TOPICS))))) for name in names}
        if len(set(wants.values())) > 1:
            return cluster, wants


def owned_at_first(chance: Random, cluster: Cluster, wants: Wants) -> Owned:
    """Return who has what before the first rebalance."""
    owned: dict[str, list[TopicPartition]] = {name: [] for name in wants}
    for topic in TOPICS:
        takers = [None, *(name for name, topics in wants.items() if topic in topics)]
        for partition in cluster.partitions_of(topic):
            taker = chance.choice(takers)
            if taker is not None:
                owned[taker].append(partition)
    return {name: tuple(share) for name, share in owned.items()}


def settled(cluster: Cluster, wants: Wants, owned: Owned) -> tuple[int, Owned]:
    """Return how many rebalances it takes until all that is wanted is given, and what is given then."""
    assignor = new_assignor("cooperative-sticky")
    wanted = {topic for topics in wants.values() for topic in topics}
    everything = sum(cluster.partition_counts[topic] for topic in wanted)
    for rebalance in range(1, REBALANCES_MOST + 1):
        owned = assignor.assign(cluster, [
            Member(member_id=name, subscription=Subscription(topics, None, owned[name], rebalance))
            for name, topics in wants.items()
        ])  # fmt: skip
        if sum(map(len, owned.values())) == everything:
            return rebalance, owned
    raise AssertionError(f"not settled after {REBALANCES_MOST} rebalances: {cluster}, {wants}")


def could_be_better(given: Owned, wants: Wants) -> bool:
    """Return whether a partition could go to a member with at least two less."""
    return any(
        partition.topic in wants[taker]
        for giver, taker in product(given, given)
        if len(given[giver]) >= len(given[taker]) + 2
        for partition in given[giver]
    )


if __name__ == "__main__":
    main()
