"""Who owned what when, what changed hands, and what stood still.

Ownership is a list of stretches in time, from whichever kind of group; stand-stills are what lies between
them, and the silences within them that were no lack of records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from coterie.base.ids import TopicPartition
from coterie.history.activity import gave_up_late
from coterie.history.log.runs import Run
from coterie.history.tables import Generation, History, Move, Ownership, Stall
from coterie.story.cost import Cost, GenerationBefore

NO_OWNER, NO_PROGRESS = "no-owner", "no-progress"
PARTITION = itemgetter(*map(Ownership._fields.index, ("topic", "partition")))
STALL_LEAST_MS = 5_000
"""A shorter silence is no stand-still."""
SILENT_TIMES = 4
BURST = 0.3
"""Of what the silence would have brought at the rate before it, so much must have been waiting."""
BUSY_TIMES, BUSY_BURST = 2.2, 0.7
"""A silence not as long as that is one, too, if that much was: then records came all the time."""


class Owner(NamedTuple):
    """Who has a partition."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None

    def same_client(self, other: Owner) -> bool:
        """Return whether it is the same client, perhaps started again."""
        if self.instance_id or other.instance_id:
            return self.instance_id == other.instance_id
        return (self.client_id, self.host) == (other.client_id, other.host)


class Owners:
    """Writes down who owns what, as it is told of it in order."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.tenures: list[Ownership] = []
        self.moves: list[Move] = []
        self._open: dict[TopicPartition, tuple[Owner, int, int]] = {}
        self._last: dict[TopicPartition, Owner] = {}
        self._over_ms: dict[TopicPartition, int] = {}

    def held(self) -> dict[TopicPartition, Owner]:
        """Return the owner of each partition that has one now."""
        return {partition: owner for partition, (owner, _, _) in self._open.items()}

    def held_by(self) -> dict[TopicPartition, str]:
        """Return the member id of each partition's owner now."""
        return {partition: owner.member_id for partition, (owner, _, _) in self._open.items()}

    def last_owners(self) -> Mapping[TopicPartition, Owner]:
        """Return the owner of each partition now, or the last one."""
        return self._last

    def take(self, partition: TopicPartition, owner: Owner, *, at_ms: int, generation: int) -> None:
        """Note that a partition has an owner from now on: not from before the last one gave it up."""
        last = self._last.get(partition)
        self._open[partition] = owner, max(at_ms, self._over_ms.get(partition, at_ms)), generation
        self._last[partition] = owner
        if last is None or last.member_id == owner.member_id:
            return
        topic, number = partition
        words = (last.member_id, owner.member_id, last.same_client(owner))
        self.moves.append(Move(self.group_id, generation, at_ms, topic, number, *words))

    def replace(self, partition: TopicPartition, owner: Owner) -> None:
        """Note that the owner of a partition goes by another member id, since when is not known."""
        _, from_ms, generation = self._open[partition]
        self._open[partition] = owner, from_ms, generation
        self._last[partition] = owner

    def give_up(self, partition: TopicPartition, *, at_ms: int) -> None:
        """Note that a partition had its owner until then."""
        found = self._open.pop(partition, None)
        if found is not None:
            self._over_ms[partition] = max(at_ms, found[1])
            self._write(partition, found, self._over_ms[partition])

    def begin_anew(self) -> None:
        """Note that the group is another one of the name: nothing moves to its first members."""
        self._last = {}

    def close(self) -> None:
        """The log is at its end."""
        for partition, found in self._open.items():
            self._write(partition, found, None)
        self._open = {}
        self.tenures.sort(key=itemgetter(*map(Ownership._fields.index, ("topic", "partition", "from_ms"))))
        # What moved at one moment stands in the order of its partitions.
        self.moves.sort(key=itemgetter(*map(Move._fields.index, ("at", "generation", "topic", "partition"))))

    def _write(self, partition: TopicPartition, found: tuple[Owner, int, int], to_ms: int | None) -> None:
        owner, from_ms, generation = found
        topic, number = partition
        one = Ownership(
            self.group_id,
            topic,
            number,
            owner.member_id,
            owner.client_id,
            owner.instance_id,
            generation,
            from_ms,
            to_ms,
        )
        self.tenures.append(one)


class Ended(NamedTuple):
    """A group's last member is gone for good: since when, the generation that has nobody, and when a group of
    the name was made anew, None where none was.
    """

    at_ms: int
    generation: int
    anew_ms: int | None = None


class Silence(NamedTuple):
    """A time without commits of a partition, in which records waited.

    `formed` says that it ends because a generation was formed, of which its owner may be as well.
    """

    from_ms: int
    to_ms: int
    least_ms: int
    """How long a part of it must be to tell anything."""
    formed: bool = False


def stalls_of(
    group_id: str,
    tenures: Sequence[Ownership],
    silent: Mapping[TopicPartition, Sequence[Silence]],
    dead: Iterable[Stall],
    formed: Sequence[int] = (),
    ends: Sequence[Ended] = (),
) -> list[Stall]:
    """Return the stand-stills of a group, sorted; its tenures are, too, by partition and time.

    `dead` is known of members that were gone before it was noticed.

    A silence is looked at from one generation, of those `formed`, to the next. Who keeps its partitions over
    one works on and does not commit while the others join: of that part of a silence nothing is known.

    In a group that ended, what had no owner any more stood still until its last member was gone. `ends` has
    the ends of all groups of the name, in order.
    """
    found = list(dead)
    known = {(one.topic, one.partition, one.to_ms) for one in found}
    for (topic, partition), mine in groupby(tenures, key=PARTITION):
        owned = list(mine)
        found += gaps(group_id, owned, ends)
        for silence in silent.get(TopicPartition(topic, partition), ()):
            found += (
                one
                for part in parts_of(silence, formed)
                for one in cut(group_id, part, owned)
                if (one.topic, one.partition, one.to_ms) not in known
            )
    return sorted(found, key=lambda one: (one.topic, one.partition, one.from_ms, one.kind))


def gaps(group_id: str, owned: Sequence[Ownership], ends: Sequence[Ended]) -> Iterator[Stall]:
    """Yield the time between one owner and the next, or from the last one to the end of its group."""
    anew_ms = [inf if one.anew_ms is None else one.anew_ms for one in ends]
    for one, after in pairwise([*owned, None]):
        if one is None or one.to_ms is None:
            continue
        place = bisect_right(anew_ms, one.to_ms)
        if after is not None and (place == len(ends) or anew_ms[place] > after.from_ms):
            until_ms, generation = after.from_ms, after.generation
        elif place < len(ends):
            until_ms, generation, _ = ends[place]
        else:
            continue
        if one.to_ms < until_ms:
            where = (group_id, one.topic, one.partition)
            yield Stall(*where, NO_OWNER, one.to_ms, until_ms, generation, None)


def silences_of(runs: Mapping[TopicPartition, Sequence[Run]]) -> dict[TopicPartition, list[Silence]]:
    """Return the silences of each partition after which more was waiting than a moment brings.

    Where there simply was nothing to read, there is nothing to catch up with either. What a Spark task finds
    for all its groups at once is the same (`coterie.spark.history.silences`, docs/decisions/0018).
    """
    return {partition: list(silences(mine)) for partition, mine in runs.items()}


def silences(runs: Sequence[Run]) -> Iterator[Silence]:
    """Yield the same of one partition, whose runs are in the order of the log."""
    rate, cadence_ms, least_ms = 0.0, 0.0, float(STALL_LEAST_MS)
    before: Run | None = None
    hung: Run | None = None
    for run in runs:
        if hung is not None:
            brought = run.first - hung.silent_before
            yield from waited(hung.silent_from_ms, hung.silent_to_ms, brought, rate, cadence_ms)
            hung = None
        if before is not None and run.first_ms - before.last_ms >= least_ms:
            yield from waited(before.last_ms, run.first_ms, run.first - before.last, rate, cadence_ms)
        spoken = spoken_of(run)
        if spoken is not None:
            rate, cadence_ms = spoken
            least_ms = max(STALL_LEAST_MS, BUSY_TIMES * cadence_ms)
        if run.silent_to_ms - run.silent_from_ms >= least_ms:
            brought = run.silent_after - run.silent_before
            found = list(waited(run.silent_from_ms, run.silent_to_ms, brought, rate, cadence_ms))
            yield from found
            # What had waited for one that gave up late, whoever comes next commits.
            hung = run if not found and gave_up_late(run) else None
        before = run


def spoken_of(run: Run) -> tuple[float, float] | None:
    """Return a run's rate and cadence but for its longest silence, None where too few commits tell."""
    spoken_ms = run.last_ms - run.first_ms - (run.silent_to_ms - run.silent_from_ms)
    if run.count < 4 or spoken_ms <= 0:
        return None
    read = run.last - run.first - (run.silent_after - run.silent_before)
    return (read if read > 0 else 0) / spoken_ms, spoken_ms / (run.count - 2)


def waited(from_ms: int, to_ms: int, brought: int, rate: float, cadence_ms: float) -> Iterator[Silence]:
    """Yield a silence that `brought` so many records, if they waited meanwhile: at this rate others were
    committed before it.

    It began between the commit before it and the one that was due.
    """
    length_ms = to_ms - from_ms
    burst = BURST if length_ms >= SILENT_TIMES * cadence_ms else BUSY_BURST
    if rate > 0.0 and brought >= burst * rate * length_ms:
        yield Silence(from_ms + int(cadence_ms / 2), to_ms, part_least_ms(length_ms, cadence_ms))


def part_least_ms(length_ms: int, cadence_ms: float) -> int:
    """Return the least length of the part of a silence that lies in one generation.

    Who commits seldom does so an interval after a generation was formed: in a silence of few intervals, that
    is none.
    """
    if length_ms >= SILENT_TIMES * cadence_ms:
        return STALL_LEAST_MS
    return max(STALL_LEAST_MS, int((BUSY_TIMES - 0.5) * cadence_ms))


def parts_of(silence: Silence, formed: Sequence[int]) -> Iterator[Silence]:
    """Yield a silence in parts that end where a generation was formed."""
    from_ms = silence.from_ms
    for place in range(bisect_right(formed, from_ms), bisect_left(formed, silence.to_ms)):
        yield silence._replace(from_ms=from_ms, to_ms=formed[place], formed=True)
        from_ms = formed[place]
    yield silence._replace(from_ms=from_ms)


def cut(group_id: str, silence: Silence, owned: Sequence[Ownership]) -> Iterator[Stall]:
    """Yield the parts of a silence in which the partition had an owner."""
    start = max(0, bisect_left(owned, silence.from_ms, key=attrgetter("from_ms")) - 1)
    for place in range(start, len(owned)):
        one = owned[place]
        if one.from_ms >= silence.to_ms:
            return
        from_ms = max(silence.from_ms, one.from_ms)
        to_ms = silence.to_ms if one.to_ms is None else min(silence.to_ms, one.to_ms)
        joins = silence.formed and (one.to_ms is None or one.to_ms > silence.to_ms)
        if to_ms - from_ms >= silence.least_ms and not joins:
            where = (group_id, one.topic, one.partition)
            yield Stall(*where, NO_PROGRESS, from_ms, to_ms, one.generation, one.member_id)


def costs_of(history: History) -> dict[tuple[int, int], Cost]:
    """Return the cost of each rebalance that had one, by its generation and the time it was formed (ms); and
    of each static member's return without a rebalance, by the generation and its time.

    A dead member's partitions count from its last progress: no member read them from then on. The broker's
    own story, which has no commits, counts them from when they had no owner (`Cost.unowned_ms`). Members of
    KIP-848 take a partition over some time after the generation in which they are to have it is formed.
    """
    formed: dict[int, list[int]] = defaultdict(list)  # a generation's number may come again
    for each in history.generations:
        formed[each.generation].append(each.formed_at)

    returns = {(one.generation, one.at) for one in history.replacements}

    def rebalance(generation: int, at_ms: int) -> tuple[int, int]:
        if (generation, at_ms) in returns:
            return generation, at_ms
        earlier = [formed_at for formed_at in formed[generation] if formed_at <= at_ms]
        return generation, max(earlier, default=at_ms)

    moved = Counter(rebalance(one.generation, one.at) for one in history.moves)
    costs = {place: Cost(moved=number) for place, number in moved.items()}
    partition, since, until = ("", -1), 0, 0
    for one in sorted(history.stalls, key=lambda stall: (stall.topic, stall.partition, stall.from_ms)):
        if (one.topic, one.partition) != partition or one.from_ms > until:
            partition, since = (one.topic, one.partition), one.from_ms
        until = one.to_ms
        if one.kind == NO_OWNER:
            place = rebalance(one.generation, one.to_ms)
            cost = costs.get(place, Cost())
            longest_ms = max(cost.longest_ms, one.to_ms - since)
            silent_ms = longest_ms - max(cost.unowned_ms, one.to_ms - one.from_ms)
            costs[place] = cost._replace(
                partitions=cost.partitions + 1, longest_ms=longest_ms, silent_ms=silent_ms
            )
    for empty in times_empty(history.generations):
        place = empty.generation, empty.to_ms
        costs[place] = costs.get(place, Cost())._replace(empty_ms=empty.to_ms - empty.from_ms)
    return costs


class Empty(NamedTuple):
    """A time in which a group had no members, and the generation in which it had some again."""

    from_ms: int
    to_ms: int
    generation: int


def times_empty(generations: Sequence[Generation]) -> Iterator[Empty]:
    """Yield the times without members of a group that members came back to."""
    for one, after in pairwise(generations):
        last = before_next(one)
        empty_ms = last.empty_ms(after.formed_at)
        if empty_ms and before_next(after).has_members and not last.is_of_another(after.generation):
            yield Empty(one.formed_at, after.formed_at, after.generation)


def before_next(one: Generation) -> GenerationBefore:
    """Return a generation as the one before the next. Who its members are may not be told; one leads them."""
    return GenerationBefore(one.generation, one.formed_at, bool(one.members or one.leader))


def still_while_empty_ms(history: History) -> int:
    """Return the time (ms) that partitions stood still, added up, while their group had no members."""
    empty = [*times_empty(history.generations)]
    return sum(ms_within(one, empty) for one in history.stalls if one.kind == NO_OWNER)


def ms_within(one: Stall, empty: Sequence[Empty]) -> int:
    """Return the time (ms) of a stand-still in which its group had no members."""
    still_ms = 0
    for place in range(bisect_right(empty, one.from_ms, key=attrgetter("to_ms")), len(empty)):
        each = empty[place]
        if each.from_ms >= one.to_ms:
            break
        still_ms += min(one.to_ms, each.to_ms) - max(one.from_ms, each.from_ms)
    return still_ms
