"""The assignors and the hashes against what Apache Kafka 4.3.1's own classes returned.

`assignors_steps.jsonl` holds more of the sticky ones: larger changes between the steps, racks, few topics.
"""

import json
from itertools import combinations
from pathlib import Path

import pytest

from coterie.assign.model import Cluster, Member
from coterie.assign.registry import ASSIGNORS, KINDS
from coterie.base.hashes import coordinator_partition, murmur2, to_positive
from coterie.base.ids import TopicPartition
from coterie.cli.assign.trial import Outcome, Trial
from coterie.client.producer.partitioner import partition_for_key
from coterie.wire.payloads.consumer_protocol import Subscription

TESTS = Path(__file__).resolve().parents[2]
WHOLE, PART = TESTS.parents[1] / "shared/vectors/assignors.jsonl", TESTS / "data/assignors.jsonl"
VECTORS = [json.loads(line) for line in (WHOLE if WHOLE.exists() else PART).read_text().splitlines()]

STEPS = [json.loads(line) for line in (TESTS / "data/assignors_steps.jsonl").read_text().splitlines()]


def the_cluster(vector) -> Cluster:
    racks = {}
    for topic, replicas in vector["replicas"].items() if vector["broker_racks"] else ():
        for number, brokers in enumerate(replicas):
            racks[TopicPartition(topic, number)] = frozenset(vector["broker_racks"][each] for each in brokers)
    return Cluster(partition_counts=vector["partitions"], racks=racks)


def the_members(vector, names) -> list[Member]:
    return [
        Member(
            member_id=name,
            instance_id=vector["instances"].get(name),
            subscription=Subscription(tuple(vector["subscriptions"][name]), rack=vector["racks"].get(name)),
        )
        for name in names
    ]


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_an_assignor_gives_what_javas_gives(name):
    """5.2 to 5.4, racks included."""
    cases = [vector for vector in VECTORS if vector.get("assignor") == name]
    assert len(cases) >= 40

    for vector in cases:
        for step in vector["steps"]:
            given = {
                member: tuple(TopicPartition(*each) for each in partitions)
                for member, partitions in step["assignment"].items()
            }
            members = the_members(vector, step["members"])
            # Who comes first in the list must not matter.
            for listed in (members, members[::-1]):
                assert ASSIGNORS[name].assign(the_cluster(vector), listed) == given, vector["case"]


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_a_sticky_assignor_is_never_less_balanced_and_never_moves_more_than_javas(name):
    """Step by step, from what Java's gave in the step before; most answers are the same to the partition."""
    lines = [vector for vector in (*VECTORS, *STEPS) if vector.get("assignor") == name]
    steps = same = 0

    for vector in lines:
        if any(unasked(vector, step) for step in vector["steps"]):
            continue  # there Java's answer is wrong (SK-7)
        for step, ours in zip(vector["steps"], Trial.of(vector).play(KINDS[name]), strict=True):
            theirs = Outcome(owned=ours.owned, assigned=assigned_by(step), withheld=0)
            assert ours.spread <= theirs.spread, vector["case"]
            assert unevenness(ours) <= unevenness(theirs), vector["case"]
            assert ours.moves <= theirs.moves, vector["case"]
            steps += 1
            same += ours.assigned == theirs.assigned
    assert steps >= 150
    assert same >= 0.9 * steps


def assigned_by(step) -> dict[str, tuple[TopicPartition, ...]]:
    return {
        member: tuple(TopicPartition(*each) for each in given) for member, given in step["assignment"].items()
    }


def unasked(vector, step) -> bool:
    """Whether the answer gives something to a member that wants nothing, or withholds it for such a one."""
    return any(not vector["subscriptions"][member] for member in step["members"])


def unevenness(outcome: Outcome) -> int:
    """Return the sum of the differences between any two members (GS-10)."""
    return sum(abs(one - other) for one, other in combinations(outcome.loads.values(), 2))


def test_keys_and_groups_hash_as_in_kafka():
    """PT-2, PT-3."""
    cases = [vector for vector in VECTORS if "key" in vector]
    assert len(cases) >= 10

    for vector in cases:
        key = bytes.fromhex(vector["key"])
        assert murmur2(key) == vector["murmur2"]
        assert to_positive(murmur2(key)) == vector["to_positive"]
        assert partition_for_key(key, 7) == vector["to_positive"] % 7
        assert coordinator_partition(vector["group"], partition_count=50) == vector["offsets_partition_of_50"]
