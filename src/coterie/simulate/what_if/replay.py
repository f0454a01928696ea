"""A recorded group lived through again by the production coordinator and member, and what came of it.

With the recorded settings first: what of the record comes out again says how far any other outcome is to be
believed. A record does not have the phases of heartbeats, so some are tried, and the best reading is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from coterie.base.ids import TopicPartition
from coterie.base.reasons import inferred
from coterie.client import member as m
from coterie.client.member import Member
from coterie.history.log.records import CLASSIC
from coterie.history.log.segments import entries_of
from coterie.history.tables import History
from coterie.simulate.agenda import START_MS, Queue
from coterie.simulate.broker import LOG_BYTES, Open
from coterie.simulate.ownership import (
    Ownership,
)
from coterie.simulate.scenario import Kind, Variant
from coterie.simulate.timetable import Act
from coterie.simulate.variant import DIRECTOR, Course, Slot
from coterie.simulate.what_if.generations import HEARTBEAT_MS, HeartbeatPhase
from coterie.simulate.what_if.recorded import Life, Reading, Rest, life_of
from coterie.simulate.worker import NOTHING, Worker
from coterie.story.drawing import (
    Span,
)
from coterie.story.model import Move, Rebalance
from coterie.wire.payloads.consumer_offsets import GroupMetadataValue

READINGS = tuple(Reading(by_sight, seed) for seed in (1, 2, 3) for by_sight in (True, False))
MENDED_AT_MOST = 8
"""How many single generations are read otherwise, where no reading of a life has all that was."""
SAME_WITHIN_MS = 30_000
"""How far apart a rebalance and its replay may be; the record knows it to a few heartbeats."""
SAME_WITHIN = 0.1
"""By which share the standing still of a record and its replay may differ: heartbeats' phases do as much."""
JUST_ANSWERED_MS = 1_000
SAME_GENERATION_MS = 1_500
"""How far apart a generation and its replay may be for heartbeats that are known to come as they did."""
CALM_MS = 60_000
DELAY_MS = (1, 3)
FOREVER_MS = 1 << 30
IDLE = (
    "log.retention.check.interval.ms",
    "log.flush.scheduler.interval.ms",
    "log.cleaner.backoff.ms",
    "offsets.retention.check.interval.ms",
)
BROKER = {
    "group.min.session.timeout.ms": "1",
    "group.max.session.timeout.ms": str(FOREVER_MS),
    **dict.fromkeys(IDLE, str(FOREVER_MS)),
}
"""Any session is taken; and a broker with one group and no records has nothing to clean up."""


class Change(NamedTuple):
    """Other settings than the recorded ones: of members, by field; whether they are static; of the broker."""

    client: Mapping[str, Any] = {}
    static: bool | None = None
    broker: Mapping[str, str] = {}

    def of(self, kind: Kind) -> Kind:
        """Return a member as it is with these settings; heartbeats come often enough for its session."""
        settings = replace(kind.settings, **self.client)
        if "heartbeat_interval_ms" not in self.client:
            heartbeat_ms = min(settings.heartbeat_interval_ms, max(settings.session_timeout_ms // 2, 1))
            settings = replace(settings, heartbeat_interval_ms=heartbeat_ms)
        return replace(kind, settings=settings, static=kind.static if self.static is None else self.static)


class Figures(NamedTuple):
    """What came of a replay."""

    rebalances: tuple[tuple[int, frozenset[str]], ...]
    """When each was formed, and its causes."""
    stood_still_ms: int
    """For how long partitions got nowhere, added up over all."""
    longest_ms: int
    moves: int

    @property
    def causes(self) -> Mapping[str, int]:
        """How many rebalances had each cause."""
        return Counter(cause for _, causes in self.rebalances for cause in sorted(causes))


class Replayed(NamedTuple):
    """A recorded life, and what the replay with the recorded settings made of it."""

    life: Life
    reading: Reading
    figures: Figures
    matched: int
    """How many of the recorded rebalances came out with their causes, about when they were."""

    def usually(self) -> Figures:
        """Return the figures of the recorded settings, replayed as others are: only settings differ then."""
        return foretold(self.life, Change(), self.reading.seed)

    @property
    def stood_still_error(self) -> float:
        """Return by which share the replay has more or less standing still than the record, of the larger.

        Less than a heartbeat for each rebalance is nothing to speak of, and counts as that.
        """
        was, is_now = self.life.stood_still_ms, self.figures.stood_still_ms
        return abs(is_now - was) / max(was, is_now, HEARTBEAT_MS * len(self.life.expected), 1)

    @property
    def fidelity(self) -> float:
        """Return the share of the rebalances, or of the standing still if less, that are in both."""
        most = max(len(self.life.expected), len(self.figures.rebalances))
        off = self.stood_still_error
        return min(self.matched / most if most else 1.0, 1.0 if off <= SAME_WITHIN else 1 - off)


class Beating(Member):
    """A member whose next heartbeat can be had at a given time: a record may tell when one came."""

    def heartbeat_at(self, at_ms: int) -> None:
        """Send the next heartbeat then."""
        self._heartbeat_at = at_ms


class Process(Worker):
    """A process that gets nowhere while a batch takes too long, as a history has it.

    Its heartbeats come when they are due: how far apart those of several are, the record says.
    """

    member_class = Beating
    member: Beating

    def __init__(self, course: Course, slot: Slot) -> None:
        super().__init__(course, slot)
        self.late_ms = 0
        self._known: HeartbeatPhase | None = None

    def align(self, known: HeartbeatPhase) -> None:
        """Have the next heartbeats come as a record knows, if it was in a generation then when this one is.

        Where it was not, another life is lived than the recorded one.
        """
        if abs(self.settled_ms - START_MS - known.since_ms) > SAME_GENERATION_MS:
            return
        self._known = known
        self.late_ms = known.late_ms
        interval_ms = self.settings.heartbeat_interval_ms + known.late_ms
        next_ms = self.agenda.now_ms + (known.next_ms - known.at_ms) % interval_ms
        self.member.heartbeat_at(next_ms - known.late_ms)
        self._happen(self._run)

    def heartbeat_now(self) -> None:
        """Send a heartbeat."""
        self.member.heartbeat_at(self.agenda.now_ms)
        self._happen(self._run)

    def _call(
        self,
        wanted: m.Request,
        asked: Callable[[Open], None],
        take: Callable[[Any], None],
        *,
        queue: Queue = Queue.MOVING,
    ) -> None:
        """Have something asked; a join that is known to have come late comes late."""
        known, delay_ms = self._known, self.delay_ms
        if isinstance(wanted, m.Join) and known is not None:
            since_ms = self.agenda.now_ms - START_MS - known.next_ms
            if abs(since_ms) < JUST_ANSWERED_MS:
                self.delay_ms += max(known.joins_ms - since_ms, 0)
            self._known = None
        super()._call(wanted, asked, take, queue=queue)
        self.delay_ms = delay_ms

    def stall(self, span_ms: int) -> None:
        """Take so long for the batch under way, and commit nothing."""
        super().stall(span_ms)
        self._note_work()

    def at_work(self) -> frozenset[TopicPartition]:
        """Return the partitions on which there is progress."""
        return NOTHING if self.is_stalled else self.member.fetchable


class Replay(Course):
    """The world of a recorded group, in which topics grow when they did."""

    def __init__(self, variant: Variant, *, life: Life, acts: Sequence[Act]) -> None:
        super().__init__(variant, fold=True, acts=acts)
        self.ended_ms, self.rests = life.ended_ms, life.rests
        self.apart = [(START_MS + from_ms, START_MS + to_ms) for from_ms, to_ms in life.apart]
        self._gone_ms: dict[str, int] = {}
        """Since when each topic is deleted that is."""
        self._wanted: dict[int, tuple[str, ...]] = {}
        """What the process of a place wants, by the place's number; all topics if it is not told."""
        (_, self.there), *later = life.grown
        for at_ms, there in later:
            self.agenda.at(START_MS + at_ms, DIRECTOR, self._grow, there)
        for known in life.phases:
            self.agenda.at(START_MS + known.at_ms, DIRECTOR, self._align, self.slots[known.place - 1], known)
        for last in life.last_heartbeats:
            slot = self.slots[last.place - 1]
            self.agenda.at(START_MS + last.at_ms, DIRECTOR, self._heartbeat_now, slot)
        for lead in life.leads:
            self.agenda.at(START_MS + lead.at_ms, DIRECTOR, self._lead, lead.places)
        for at_ms, place, topics in life.wanted:
            self.agenda.at(START_MS + at_ms, DIRECTOR, self._want, self.slots[place - 1], topics)

    def topics_of(self, slot: Slot) -> Iterable[str]:
        """Return the topics that a process subscribes to now."""
        return self._wanted.get(slot.number, self.topics)

    def _want(self, slot: Slot, topics: tuple[str, ...]) -> None:
        """Have a process, or the next one of its place, want other topics."""
        if self._wanted.get(slot.number) == topics:
            return
        self._wanted[slot.number] = topics
        if slot.running:
            assert slot.worker is not None
            slot.worker.refresh_metadata()

    def _lead(self, places: Sequence[int]) -> None:
        self.station.first = tuple(self.slots[place - 1].name for place in places)

    def _align(self, slot: Slot, known: HeartbeatPhase) -> None:
        if slot.running:
            assert isinstance(slot.worker, Process)
            slot.worker.align(known)

    def _heartbeat_now(self, slot: Slot) -> None:
        if slot.running:
            assert isinstance(slot.worker, Process)
            slot.worker.heartbeat_now()

    def _grow(self, there: Mapping[str, int]) -> None:
        """Have topics that are new or have more partitions; whoever runs looks at once."""
        gone = {topic for topic, count in there.items() if not count and self.there.get(topic)}
        self._gone_ms = {topic: at_ms for topic, at_ms in self._gone_ms.items() if not there.get(topic)}
        self._gone_ms |= dict.fromkeys(gone, self.agenda.now_ms)
        self.there = there
        for slot in self.slots:
            if slot.running:
                assert slot.worker is not None
                slot.worker.refresh_metadata()

    def _start(self, slot: Slot) -> None:
        if not slot.running:
            slot.worker = Process(self, slot)
            slot.worker.start()

    def _idle(self) -> Iterator[tuple[TopicPartition, Span]]:
        """Yield the spans in which nobody was at work on a partition, while it was there and somebody was
        left to be.
        """
        over_ms = self.ends_ms if self.ended_ms is None else START_MS + self.ended_ms
        rested = dict(self._rested())
        for partition, span in self.ownership.idle_spans():
            to_ms = min([span.to_ms, over_ms, *self._until_apart(span)])
            if (partition, span.from_ms) in rested:
                span = span._replace(from_ms=min(rested[partition, span.from_ms], to_ms))
            if span.to_ms == self.ends_ms:
                to_ms = min(to_ms, self._gone_ms.get(partition.topic, to_ms))
            yield partition, span._replace(to_ms=to_ms)

    def _until_apart(self, span: Span) -> Iterator[int]:
        """Yield the end of a group within a span in which another one of the name was made."""
        for ended_ms, anew_ms in self.apart:
            if span.from_ms < anew_ms and ended_ms < span.to_ms:
                yield max(span.from_ms, ended_ms)

    def _rested(self) -> Iterator[tuple[tuple[TopicPartition, int], int]]:
        """Yield the partitions of processes that died when they had nothing to do, and the spans until they
        were missed.
        """
        missed_ms = {(START_MS + one.at_ms, one.place - 1): self._missed_ms(one) for one in self.rests}
        if missed_ms:
            for partition, row in self.ownership.rows.items():
                for _, until_ms, owner in row.spans:
                    if (until_ms, owner) in missed_ms:
                        yield (partition, until_ms), missed_ms[until_ms, owner]

    def _missed_ms(self, rest: Rest) -> int:
        """Return the time at which the group was without a process that had died."""
        died_ms, name = START_MS + rest.at_ms, self.slots[rest.place - 1].name
        return next(
            (
                one.at_ms
                for one in self.station.story
                if isinstance(one, Move)
                and one.at_ms >= died_ms
                and name in {who.client_id for who in one.who}
            ),
            self.ends_ms,
        )

    def _stored(self) -> set[int]:
        """Return the generations that the broker's log has; the oldest of a long life are trimmed."""
        host = self.station.host()
        assert host is not None
        segment = bytes(host.log.read(host.log.start_offset, max_bytes=LOG_BYTES))
        return {
            one.value.generation
            for one in entries_of([segment])
            if one.kind == CLASSIC and isinstance(one.value, GroupMetadataValue)
        }

    def _rebalances(self) -> Iterator[tuple[int, frozenset[str]]]:
        """Yield the time of each generation that a record would have, and its causes.

        One whose leader died before it had assigned anything is not stored: the next one comes of what it
        came of, too.
        """
        causes, stored = frozenset[str](), self._stored()
        for one in self.station.story:
            if isinstance(one, Rebalance):
                causes |= causes_of(one)
                if one.generation in stored or one.generation < min(stored, default=0):
                    yield one.formed_at_ms - START_MS, causes
                    causes = frozenset()

    def figures(self) -> Figures:
        """Return the figures of the replay."""
        spans = [span for _, span in self._idle() if span.length_ms > 0]
        return Figures(
            tuple(self._rebalances()),
            sum(span.length_ms for span in spans),
            max((span.length_ms for span in spans), default=0),
            moves_of(self.ownership),
        )


def causes_of(one: Rebalance) -> frozenset[str]:
    """Return a rebalance's causes in the words of a history."""
    had = {topic for partitions in one.had.values() for topic, _ in partitions}
    has = {topic for member in one.members.values() for topic, _ in member.owned or ()}
    return frozenset(inferred(one.why, same_topics=had == has))


def moves_of(ownership: Ownership) -> int:
    return sum(len(row.moves) for row in ownership.rows.values())


def replayed(life: Life, change: Change, seed: int) -> Figures:
    """Live through a recorded life with other settings: what is done is the same, and so are heartbeats."""
    kinds = tuple(change.of(kind) for kind in life.kinds)
    acts = tuple(act if act.kind is None else act._replace(kind=change.of(act.kind)) for act in life.acts)
    replay = Replay(variant_of(life, change, kinds, seed), life=life, acts=acts)
    replay.run()
    return replay.figures()


def foretold(life: Life, change: Change, seed: int) -> Figures:
    """Return the figures of a replay with other settings: standing still is the mean of two replays.

    Those who stay hear of a rebalance when they did in the one, and when it comes about in the other: the
    record has one chance of several.
    """
    came = replayed(life, change, seed)
    if not life.phases:
        return came
    fell = replayed(life._replace(phases=()), change, seed)
    return came._replace(stood_still_ms=(came.stood_still_ms + fell.stood_still_ms) // 2)


def variant_of(life: Life, change: Change, kinds: tuple[Kind, ...], seed: int) -> Variant:
    """Return the scenario: it lasts until the last session would have ended, too."""
    return Variant(
        name=life.group_id,
        seed=seed,
        lasts_ms=life.lasts_ms + max(kind.settings.session_timeout_ms for kind in kinds) + CALM_MS,
        topics=life.topics,
        kinds=kinds,
        broker={**BROKER, **life.broker, **change.broker},
        delay_ms=DELAY_MS,
    )


def best_reading(history: History) -> Replayed | None:
    """Return the reading whose replay comes nearest to the record; None if there is nothing to replay."""
    best: Replayed | None = None
    for reading in READINGS:
        found = read(history, reading)
        if found is None:
            return None
        if best is None or found.fidelity > best.fidelity:
            best = found
        if best.fidelity == 1:
            return best
    assert best is not None
    return mended(history, best)


def read(history: History, reading: Reading) -> Replayed | None:
    """Return a reading of a record, and its replay; None if there is nothing to replay."""
    life = life_of(history, reading)
    if life is None:
        return None
    figures = replayed(life, Change(), reading.seed)
    return Replayed(life, reading, figures, matched(life.expected, figures.rebalances))


def mended(history: History, best: Replayed) -> Replayed:
    """Return a better reading, in which single generations are read otherwise, or the best as it is.

    Those of which it is least sure why members went are tried first: each costs a replay.
    """
    reading = best.reading if best.reading.by_sight else READINGS[0]
    doubtful = sorted(
        (one for one in history.generations if one.left), key=lambda one: (one.confidence, one.formed_at)
    )
    for one in doubtful[:MENDED_AT_MOST]:
        found = read(history, reading._replace(late=reading.late | {one.generation}))
        if found is not None and found.fidelity > best.fidelity:
            best, reading = found, found.reading
        if best.fidelity == 1:
            break
    return best


def matched(
    expected: Sequence[tuple[int, frozenset[str]]], found: Sequence[tuple[int, frozenset[str]]]
) -> int:
    """Return the number of expected rebalances among those found: same causes, about the same time."""
    count = first = 0
    for at_ms, causes in expected:
        while first < len(found) and found[first][0] < at_ms - SAME_WITHIN_MS:
            first += 1
        for place in range(first, len(found)):
            if found[place][0] > at_ms + SAME_WITHIN_MS:
                break
            if found[place][1] == causes:
                count, first = count + 1, place + 1
                break
    return count
