"""Placement as Kafka's controller does it since KRaft: in stripes over the racks, and over their brokers."""

from collections.abc import Sequence

from coterie.assign.chance import Chance, shuffle
from coterie.base.codes import Code
from coterie.broker.placement.model import Broker, Layout, Problem, Replicas, in_id_order


def problem_of(brokers: Sequence[Broker], *, factor: int, passed_over: int = 0) -> Problem | None:
    """Return why partitions cannot have so many replicas, in Kafka's words (SP-1) but where so many brokers
    are registered as well that are fenced, or about to be, and were passed over: Kafka places on those.
    """
    if factor <= 0:
        why = f"Invalid replication factor {factor}: the replication factor must be positive."
    elif all(broker.fenced for broker in brokers):
        why = "All brokers are currently fenced."
    elif factor > len(brokers):
        why = (
            f"The target replication factor of {factor} cannot be reached because only {len(brokers)} broker"
        )
        if passed_over:
            why += f"(s) are live: {passed_over} more are registered, and fenced or in controlled shutdown."
        else:
            why += "(s) are registered or some brokers have all their log directories cordoned."
    else:
        return None
    text = f"Unable to replicate the partition {factor} time(s): {why}"
    return Problem(Code.INVALID_REPLICATION_FACTOR, text)


def place(brokers: Sequence[Broker], *, partitions: int, factor: int, chance: Chance) -> Layout:
    """Return the replicas of so many new partitions; `problem_of` has been asked.

    Leaders are never fenced. No rack gets a second replica of a partition before each has one.
    """
    assert problem_of(brokers, factor=factor) is None
    stripes = _Stripes(brokers, chance)
    return [stripes.next(factor) for _ in range(partitions)]


class _Ring:
    """Brokers given out in turn, each once in a stripe; the next stripe starts one further (SP-5)."""

    def __init__(self, broker_ids: list[int], chance: Chance) -> None:
        self.broker_ids = broker_ids
        self.start = chance.randrange(len(broker_ids)) if broker_ids else 0
        self.given = 0
        self.stripe = 0

    def next(self, stripe: int) -> int | None:
        """Return the next broker, None if all have been given out in this stripe."""
        if not self.broker_ids:
            return None
        if stripe != self.stripe:
            self.stripe, self.given = stripe, 0
            self.start = (self.start + 1) % len(self.broker_ids)
        if self.given == len(self.broker_ids):
            return None
        found = self.broker_ids[(self.start + self.given) % len(self.broker_ids)]
        self.given += 1
        return found


class _Rack:
    """The brokers of a rack, in two rings: the fenced are taken when the others are used up (SP-2)."""

    def __init__(self, brokers: list[Broker], chance: Chance) -> None:
        self.fenced = _Ring([one.broker_id for one in brokers if one.fenced], chance)
        self.unfenced = _Ring([one.broker_id for one in brokers if not one.fenced], chance)

    def next(self, stripe: int) -> int | None:
        found = self.unfenced.next(stripe)
        return self.fenced.next(stripe) if found is None else found

    def shuffle(self, chance: Chance) -> None:
        shuffle(self.fenced.broker_ids, chance)
        shuffle(self.unfenced.broker_ids, chance)


class _Stripes:
    """The racks of a cluster, from which one stripe of replicas after the other is taken."""

    def __init__(self, brokers: Sequence[Broker], chance: Chance) -> None:
        members: dict[str | None, list[Broker]] = {}
        for broker in in_id_order(brokers):
            members.setdefault(broker.rack, []).append(broker)
        names = sorted(members, key=lambda name: (name is not None, name or ""))  # no rack is one rack, too
        self._racks = [_Rack(members[name], chance) for name in names]
        self._rack_order = list(self._racks)
        self._leaders = sum(not broker.fenced for broker in brokers)
        self._stripe = 0
        self._first = chance.randrange(len(names))
        self._chance = chance

    def next(self, factor: int) -> Replicas:
        """Return the replicas of one partition."""
        if self._stripe == self._leaders > 1:  # every stripe has been seen: draw others (SP-6)
            self._shuffle()
        self._first %= len(self._rack_order)
        leads, leader = self._leader()
        replicas = (leader, *self._followers(factor - 1, leads))
        self._stripe += 1
        self._first += 1
        return replicas

    def _leader(self) -> tuple[int, int]:
        """Return the place of the leader's rack, and the leader (SP-3)."""
        at = self._first
        while (leader := self._rack_order[at].unfenced.next(self._stripe)) is None:
            at = (at + 1) % len(self._rack_order)
        return at, leader

    def _followers(self, count: int, leads: int | None) -> list[int]:
        """Return so many more brokers, from rack after rack; the leader's sits out once (SP-4)."""
        found: list[int] = []
        at = self._first
        while len(found) < count:
            if at == leads:
                leads = None
            elif (broker := self._rack_order[at].next(self._stripe)) is not None:
                found.append(broker)
            at = (at + 1) % len(self._rack_order)
        return found

    def _shuffle(self) -> None:
        shuffle(self._rack_order, self._chance)
        for rack in self._racks:
            rack.shuffle(self._chance)
        self._stripe = 0
