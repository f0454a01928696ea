"""An assignor without a cluster: a line of `coterie assign`, step by step.

A line has a cluster, the members' subscriptions, and steps: the members that are there, and the partitions
that each owned before. A step that does not say goes by the assignment of the step before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.assign.model import Assignor, Cluster, Member, RebalanceProtocol
from coterie.base.ids import TopicPartition
from coterie.cli.assign.fields import Field
from coterie.wire.payloads.consumer_protocol import NO_GENERATION, Subscription

PARTITIONS_MAX = 1_000_000  # of one line: more is a slip of the keyboard
INT32_MAX = 2**31 - 1

Owned = Mapping[str, tuple[TopicPartition, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The assignment of one step, and that before."""

    owned: Owned
    """The partitions of each member before."""
    assigned: Owned
    withheld: int
    """The number of partitions that wait until the members that own them have given them up."""

    @property
    def loads(self) -> dict[str, int]:
        """The number of partitions of each member."""
        return {member: len(partitions) for member, partitions in self.assigned.items()}

    @property
    def spread(self) -> int:
        """The difference between the most and the fewest partitions of a member."""
        loads = self.loads.values()
        return max(loads, default=0) - min(loads, default=0)

    def kept(self, member: str) -> int:
        """Return the number of partitions that a member keeps."""
        return len({*self.owned.get(member, ())} & {*self.assigned[member]})

    def lost(self, member: str) -> int:
        """Return the number of partitions that a member gives to others."""
        return len({*self.owned.get(member, ())} - {*self.assigned[member]})

    @property
    def moves(self) -> int:
        """The number of partitions that leave a member that is still there."""
        return sum(self.lost(member) for member in self.assigned)

    def document(self) -> dict[str, list[tuple[str, int]]]:
        """Return the assignment as JSON has it."""
        return {
            member: [(topic, number) for topic, number in sorted(partitions)]
            for member, partitions in self.assigned.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A line that has been read: the part that does not change from step to step."""

    assignor: str
    cluster: Cluster
    subscriptions: Mapping[str, tuple[str, ...]]
    instances: Mapping[str, str]
    racks: Mapping[str, str]
    steps: Sequence[Field]

    @classmethod
    def of(cls, document: Any) -> "Trial":
        """Return the trial of a line, or raise BadField."""
        line = Field(document)
        subscriptions = {name: topics.texts() for name, topics in line["subscriptions"].fields().items()}
        instances, racks = line.get("instances"), line.get("racks")
        return cls(
            assignor=line["assignor"].text(),
            cluster=_cluster(line),
            subscriptions=subscriptions,
            instances={} if instances is None else instances.texts_by_name(),
            racks={} if racks is None else racks.texts_by_name(),
            steps=line["steps"].items(),
        )

    def play(self, make: Callable[[], Assignor]) -> Iterator[Outcome]:
        """Yield the outcome of each step. `make` makes an assignor, one for the leader and one for each
        member.
        """
        before: Owned = {}
        for place, step in enumerate(self.steps):
            names = self._members(step)
            owned = self._owned(step, before)
            generations = _generations(step, default=place)
            members = [self._member(make(), name, owned, generations(name)) for name in names]
            before = dict(make().assign(self.cluster, members))
            yield Outcome(owned=owned, assigned=before, withheld=self._wanted(names) - _count(before))

    def _members(self, step: Field) -> list[str]:
        """Return the members of a step."""
        names: dict[str, None] = {}
        for name in step["members"].items():
            if name.text() not in self.subscriptions or name.text() in names:
                name.refuse("a member that `subscriptions` names, each once")
            names[name.text()] = None
        return list(names)

    def _wanted(self, members: Iterable[str]) -> int:
        """Return the number of partitions to which a member is subscribed."""
        topics = {topic for member in members for topic in self.subscriptions[member]}
        return sum(self.cluster.partition_counts.get(topic, 0) for topic in topics)

    def _owned(self, step: Field, before: Owned) -> Owned:
        given = step.get("owned")
        if given is None:
            return before
        return {
            member: tuple(_partition(each) for each in listed.items())
            for member, listed in given.fields().items()
        }

    def _member(self, assignor: Assignor, member: str, owned: Owned, generation: int) -> Member:
        """Return the member as it would join: an eager one has given all up, and may say what it had."""
        topics, had = self.subscriptions[member], owned.get(member, ())
        if had:
            assignor.on_assignment(had, generation=generation, member_id=member)
        keeps = had if RebalanceProtocol.COOPERATIVE in assignor.protocols else ()
        data = assignor.user_data(topics=topics, owned=keeps, generation=generation)
        return Member(
            member_id=member,
            instance_id=self.instances.get(member),
            subscription=Subscription(topics, data, keeps, generation, self.racks.get(member)),
        )


def _cluster(line: Field) -> Cluster:
    counts = {
        topic: count.number(least=0, most=PARTITIONS_MAX)
        for topic, count in line["partitions"].fields().items()
    }
    if sum(counts.values()) > PARTITIONS_MAX:
        line["partitions"].refuse(f"at most {PARTITIONS_MAX:,} partitions in all")
    brokers, replicas = line.get("broker_racks"), line.get("replicas")
    if brokers is None or replicas is None:
        return Cluster(partition_counts=counts)
    homes = [rack.value and rack.text() for rack in brokers.items()]
    racks = {}
    for topic, partitions in replicas.fields().items():
        for number, listed in enumerate(partitions.items()):
            ids = [broker.number(least=0, most=len(homes) - 1) for broker in listed.items()]
            racks[TopicPartition(topic, number)] = frozenset(homes[one] for one in ids if homes[one])
    return Cluster(partition_counts=counts, racks=racks)


def _count(owned: Owned) -> int:
    return sum(map(len, owned.values()))


def _partition(field: Field) -> TopicPartition:
    pair = field.items()
    if len(pair) != 2:
        field.refuse("a topic and a partition number")
    topic, number = pair
    return TopicPartition(topic.text(), number.number(least=0, most=INT32_MAX))


def _generations(step: Field, *, default: int) -> Callable[[str], int]:
    """Return a function from a member to its generation: one for all, or an object with one for each."""
    given = step.get("generation")
    if given is None:
        return lambda member: default
    if isinstance(given.value, int):
        one = given.number(least=NO_GENERATION, most=INT32_MAX)
        return lambda member: one
    each = {name: field.number(least=NO_GENERATION, most=INT32_MAX) for name, field in given.fields().items()}
    return lambda member: each.get(member, NO_GENERATION)
