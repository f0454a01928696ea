"""Who owned what when, what changed hands, and what stood still.

Ownership is a list of stretches in time, from whichever kind of group; stand-stills are what lies between
them, and the silences within them that were no lack of records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple

from coterie.base.ids import TopicPartition
from coterie.history.activity import gave_up_late
from coterie.history.log.runs import Run
from coterie.history.tables import Move, Ownership, Stall

NO_OWNER = "no-owner"
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
        """Return who owns what now."""
        return {partition: owner for partition, (owner, _, _) in self._open.items()}

    def last_owners(self) -> Mapping[TopicPartition, Owner]:
        """Return who owns each partition, or owned it last."""
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

    def give_up(self, partition: TopicPartition, *, at_ms: int) -> None:
        """Note that a partition had its owner until then."""
        found = self._open.pop(partition, None)
        if found is not None:
            self._over_ms[partition] = max(at_ms, found[1])
            self._write(partition, found, self._over_ms[partition])

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
    """A group's last member is gone for good: since when, and the generation that has nobody."""

    at_ms: int
    generation: int


class Silence(NamedTuple):
    """A time without commits of a partition, and the offsets before and after it.

    `formed` says that it ends because a generation was formed, of which its owner may be as well.
    """

    from_ms: int
    to_ms: int
    before: int
    after: int
    formed: bool = False
    least_ms: int = STALL_LEAST_MS
    """How long a part of it must be to tell anything."""


def stalls_of(
    group_id: str,
    tenures: Sequence[Ownership],
    runs: Mapping[TopicPartition, Sequence[Run]],
    dead: Iterable[Stall],
    formed: Sequence[int] = (),
    ended: Ended | None = None,
) -> list[Stall]:
    """Return what stood still: `dead` is known of members that were gone before it was noticed.

    A silence is looked at from one generation, of those `formed`, to the next. Who keeps its partitions over
    one works on and does not commit while the others join: of that part of a silence nothing is known.

    In a group that `ended`, what had no owner any more stood still until its last member was gone.
    """
    by_partition: dict[TopicPartition, list[Ownership]] = {}
    for one in tenures:
        by_partition.setdefault(TopicPartition(one.topic, one.partition), []).append(one)
    found = list(dead)
    known = {(one.topic, one.partition, one.to_ms) for one in found}
    for partition, owned in by_partition.items():
        found += gaps(group_id, owned, ended)
        for silence in silences(runs.get(partition, ())):
            found += (
                one
                for part in parts_of(silence, formed)
                for one in cut(group_id, part, owned)
                if (one.topic, one.partition, one.to_ms) not in known
            )
    return sorted(found, key=lambda one: (one.topic, one.partition, one.from_ms, one.kind))


def gaps(group_id: str, owned: Sequence[Ownership], ended: Ended | None) -> Iterator[Stall]:
    """Yield the time between one owner and the next, and from the last one to the end of the group."""
    for one, after in pairwise(owned):
        if one.to_ms is not None and one.to_ms < after.from_ms:
            where = (group_id, one.topic, one.partition)
            yield Stall(*where, NO_OWNER, one.to_ms, after.from_ms, after.generation, None)
    last = owned[-1]
    if ended is not None and last.to_ms is not None and last.to_ms < ended.at_ms:
        where = (group_id, last.topic, last.partition)
        yield Stall(*where, NO_OWNER, last.to_ms, ended.at_ms, ended.generation, None)


def silences(runs: Sequence[Run]) -> Iterator[Silence]:
    """Yield the silences after which more was waiting than a moment brings.

    Where there simply was nothing to read, there is nothing to catch up with either.
    """
    rate, cadence_ms, least_ms = 0.0, 0.0, float(STALL_LEAST_MS)
    last_ms, last = None, 0
    hung: Silence | None = None
    for run in runs:
        if hung is not None:
            yield from waited(hung._replace(after=run.first), rate, cadence_ms)
            hung = None
        if last_ms is not None and run.first_ms - last_ms >= least_ms:
            yield from waited(Silence(last_ms, run.first_ms, last, run.first), rate, cadence_ms)
        spoken = spoken_of(run)
        if spoken is not None:
            rate, cadence_ms = spoken
            least_ms = max(STALL_LEAST_MS, BUSY_TIMES * cadence_ms)
        if run.silent_to_ms - run.silent_from_ms >= least_ms:
            quiet = Silence(run.silent_from_ms, run.silent_to_ms, run.silent_before, run.silent_after)
            found = list(waited(quiet, rate, cadence_ms))
            yield from found
            # What had waited for one that gave up late, whoever comes next commits.
            hung = quiet if not found and gave_up_late(run) else None
        last_ms, last = run.last_ms, run.last


def spoken_of(run: Run) -> tuple[float, float] | None:
    """Return a run's rate and cadence but for its longest silence, None where too few commits tell."""
    spoken_ms = run.last_ms - run.first_ms - (run.silent_to_ms - run.silent_from_ms)
    if run.count < 4 or spoken_ms <= 0:
        return None
    read = run.last - run.first - (run.silent_after - run.silent_before)
    return (read if read > 0 else 0) / spoken_ms, spoken_ms / (run.count - 2)


def waited(silence: Silence, rate: float, cadence_ms: float) -> Iterator[Silence]:
    """Yield a silence if records waited meanwhile, which before it were committed at this rate.

    It began between the commit before it and the one that was due.
    """
    length = silence.to_ms - silence.from_ms
    burst = BURST if length >= SILENT_TIMES * cadence_ms else BUSY_BURST
    if rate > 0.0 and silence.after - silence.before >= burst * rate * length:
        least_ms = STALL_LEAST_MS if burst == BURST else part_least_ms(cadence_ms)
        yield silence._replace(from_ms=silence.from_ms + int(cadence_ms / 2), least_ms=least_ms)


def part_least_ms(cadence_ms: float) -> int:
    """Return how long the part of a silence of few intervals must be that lies in one generation.

    Who commits seldom does so an interval after a generation was formed: that is none.
    """
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
    for one in islice(owned, start, None):
        if one.from_ms >= silence.to_ms:
            return
        from_ms = max(silence.from_ms, one.from_ms)
        to_ms = silence.to_ms if one.to_ms is None else min(silence.to_ms, one.to_ms)
        joins = silence.formed and (one.to_ms is None or one.to_ms > silence.to_ms)
        if to_ms - from_ms >= silence.least_ms and not joins:
            where = (group_id, one.topic, one.partition)
            yield Stall(*where, "no-progress", from_ms, to_ms, one.generation, one.member_id)
