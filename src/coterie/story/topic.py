"""The topic `__group_story`: moves and rebalances as JSON records, a little after everybody was answered."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.base.plain import counted
from coterie.base.topic_names import STORY_TOPIC
from coterie.storage.log.contract import AppendRefused, StorageFailed
from coterie.story.model import MemberView, Move, OpenRebalance, Person, Pieces, Rebalance, at_once
from coterie.wire.payloads.consumer_protocol import PROTOCOL_TYPE, Assignment, read_topics_v0
from coterie.wire.records.batches import Record, build_batch

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.broker.runtime.replica_manager import ReplicaManager
    from coterie.broker.topics.catalog import TopicChanges
    from coterie.broker.topics.topic import Topic
    from coterie.storage.kind import Log

log = logging.getLogger("coterie.story")

# Nothing is written before a group that forms has formed, as a rule. Then so many moves and pieces of
# rebalances at a time, or a part of what waits if that is more, that it takes a twentieth of the time at
# most, and where very much waits a quarter: a weight of 1 takes 10 us.
PAUSE_MS, ROUND_MS = 500, 50
WEIGHT_OF_A_ROUND, WEIGHT_OF_A_ROUND_MAX, ROUNDS_WANTED = 200, 2_000, 50
PEOPLE_AS_A_MEMBER = 10  # to name so many takes as long as to write one member
PARTITIONS_AS_A_MEMBER, BYTES_AS_A_MEMBER = 10, 40
MEMBERS_MAX = 1_000  # of a rebalance: the lists of a larger one would be too long for most readers
# One is read in one go: more would be felt by a heartbeat. It is recorded as what cannot be read.
ASSIGNMENT_READ_MAX, SUBSCRIPTION_READ_MAX = 40 << 10, 256 << 10
BATCH_BYTES, RECORD_BYTES = 1 << 10, 32  # what the batch and each record take beside keys and values
QUEUE_MAX, QUEUE_BYTES_MAX = 100_000, 64 << 20  # of what was not read yet
READY_MAX, READY_BYTES_MAX = 100_000, 64 << 20  # of records, while there is no partition to write them to
# One round writes no more of those that have waited: some 10 ms.
RECORDS_OF_A_ROUND, BYTES_OF_A_ROUND = 2_000, 2 << 20
NO_ROOM = (
    f"more has waited than is kept until this broker leads a partition of {STORY_TOPIC};"
    " `coterie cluster balance` has it lead what it is preferred for"
)
LISTS: Mapping[str, Any] = {"members": {}, "joined": [], "left": [], "who": []}

T = TypeVar("T")

as_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


class MemberSnapshot(NamedTuple):
    """A member at the end of a rebalance, what it subscribes to and what it was given still as bytes."""

    person: Person
    subscription: bytes
    assignment: bytes


class EndedRebalance(NamedTuple):
    """A rebalance at its end, in which nothing was read yet: that is done when everybody was answered."""

    opened: OpenRebalance | None
    group: str
    over_at_ms: int
    generation: int
    leader: str | None
    protocol_type: str | None
    protocol: str | None
    state: str
    settled: bool
    snapshots: tuple[MemberSnapshot, ...]

    @property
    def weight(self) -> int:
        """How many bytes it keeps, which in the group itself the next rebalance replaces."""
        had = () if self.opened is None else self.opened.had.values()
        return sum(len(one.subscription) + len(one.assignment) for one in self.snapshots) + sum(map(len, had))


class StoryParts(NamedTuple):
    """The parts of the broker that the topic is written with."""

    settings: BrokerSettings
    clock: Clock
    purgatory: Purgatory
    topic_manager: TopicChanges
    replica_manager: ReplicaManager
    led_log: Callable[[TopicPartition], Log | None]


class StoryTopic:
    """Writes rebalances to the log and, unless `coterie.story.enable` is off, moves too to the topic.

    They go to a partition of the topic that this broker leads: those of a group to one, while its coordinator
    stays. As long as the broker leads none, but is to, they wait. For the log a rebalance never waits.
    """

    def __init__(self, parts: StoryParts) -> None:
        self._parts = parts
        self._queue: deque[Move | EndedRebalance] = deque()
        self._queue_bytes = 0
        self._queue_weight = 0
        self._current: Pieces[Record | None] | None = None
        self._ready: deque[Record] = deque()
        """What was read, and waits to be written; not yet placed in a batch."""
        self._ready_bytes = 0
        self._added = 0
        self._awaited: deque[tuple[int, Callable[[], None]]] = deque()  # by how many are to be written
        self._scheduled = False
        self._lost = 0

    def add(self, what: Move | EndedRebalance) -> None:
        """Have something written soon, after all that was added before."""
        if isinstance(what, Move) and not self._parts.settings.coterie_story_enable:
            return
        if len(self._queue) >= QUEUE_MAX or self._queue_bytes + what.weight > QUEUE_BYTES_MAX:
            self._lose(1, "more happens than can be read")
            return
        self._queue.append(what)
        self._added += 1
        self._queue_bytes += what.weight
        self._queue_weight += time_weight(what)
        if not self._scheduled:
            self._later(PAUSE_MS)

    def flush(self) -> None:
        """Write what is left: the broker stops."""
        while self._left():
            self._read_some()
            self._write_some()

    def when_written(self, done: Callable[[], None]) -> None:
        """Have `done` called once all that was added so far is written: now, or after one of the rounds."""
        if self._left():
            self._awaited.append((self._added, done))
        else:
            done()

    def _left(self) -> int:
        """Return the number of moves and rebalances that are not written, or not whole."""
        return len(self._ready) + self._unread()

    def _unread(self) -> int:
        return len(self._queue) + (self._current is not None)

    def _tell_who_waits(self) -> None:
        written = self._added - self._left()
        while self._awaited and self._awaited[0][0] <= written:
            _, done = self._awaited.popleft()
            done()

    def _later(self, pause_ms: int) -> None:
        self._scheduled = True
        self._parts.purgatory.arm("story", self._parts.clock.now_ms() + pause_ms, self._round)

    def _round(self, _: object, now_ms: int) -> None:
        self._scheduled = waits = False
        try:
            self._read_some()
            waits = bool(self._ready) and self._is_coming()
            if not waits:
                self._write_some()
        finally:  # whatever becomes of one, the others are written
            if self._left():
                self._later(PAUSE_MS if waits and not self._unread() else ROUND_MS)
            self._tell_who_waits()

    def _is_coming(self) -> bool:
        """Return whether what waits can be written soon: the topic is being made, or a partition of it for
        this broker, or that has yet to come back to it.
        """
        if not self._parts.settings.coterie_story_enable:
            return False
        try:
            topic = self._parts.topic_manager.ensure_internal(STORY_TOPIC)
            if topic is None:
                return True
            return self._led_of(topic) is None and self._parts.topic_manager.ensure_own_partition(STORY_TOPIC)
        except (StorageFailed, OSError):  # which is said when something is to be written
            return False

    def _read_some(self) -> None:
        """Read, log and make records of so much at once that no heartbeat notices; a rebalance may take many
        rounds.
        """
        left = min(WEIGHT_OF_A_ROUND_MAX, max(WEIGHT_OF_A_ROUND, self._queue_weight // ROUNDS_WANTED))
        bytes_max = self._bytes_max()
        while left > 0 and self._unread():
            if self._current is None:
                what = self._queue.popleft()
                self._queue_bytes -= what.weight
                self._queue_weight -= time_weight(what)
                self._current = self._in_pieces(what, bytes_max)
            try:
                left -= next(self._current)
            except StopIteration as over:
                self._current = None
                if over.value is not None:
                    self._have_ready(over.value)

    def _have_ready(self, record: Record) -> None:
        size = size_of(record)
        if len(self._ready) >= READY_MAX or self._ready_bytes + size > READY_BYTES_MAX:
            self._lose(1, NO_ROOM)
            return
        self._ready.append(record)
        self._ready_bytes += size

    def _write_some(self) -> None:
        """Write so much at once that no heartbeat notices."""
        bytes_max = self._bytes_max()
        batch: list[Record] = []
        size = 0
        for record in self._taken():
            fitting = refitted(record, bytes_max)
            added = size_of(fitting)
            if batch and size + added > bytes_max:
                self._write(batch)
                batch, size = [], 0
            batch.append(fitting._replace(offset=len(batch)))
            size += added
        if batch:
            self._write(batch)

    def _taken(self) -> Iterator[Record]:
        """Yield the records that one round writes, which wait no more."""
        size = 0
        for _ in range(min(RECORDS_OF_A_ROUND, len(self._ready))):
            if size > BYTES_OF_A_ROUND:
                return
            record = self._ready.popleft()
            self._ready_bytes -= size_of(record)
            size += size_of(record)
            yield record

    def _in_pieces(self, what: Move | EndedRebalance, bytes_max: int) -> Pieces[Record | None]:
        """Return a record of a move or a rebalance, not yet placed in a batch; None if it is for no topic."""
        document: dict[str, Any] | None
        if isinstance(what, Move):
            yield time_weight(what)
            document, at_ms = what.document(), what.at_ms
        else:
            document, at_ms = (yield from self._document(what, bytes_max)), what.over_at_ms
        if document is None:
            return None
        return Record(0, at_ms, what.group.encode(), fitted(document, bytes_max))

    def _document(self, end: EndedRebalance, bytes_max: int) -> Pieces[dict[str, Any] | None]:
        """Return a rebalance as JSON values, None if it is not for the topic."""
        wanted = self._parts.settings.coterie_story_enable
        yield 1
        if not wanted and not log.isEnabledFor(logging.INFO):
            return None
        rebalance = yield from rebalance_in_pieces(end)
        moved = yield from weighed(rebalance.moving())
        log_rebalance(rebalance, moved)
        if not wanted:
            return None
        if len(end.snapshots) > MEMBERS_MAX:
            return rebalance.abridged(moved)
        members: dict[str, dict[str, Any]] = {}
        size = 0
        for member_id, document in rebalance.views():
            members[member_id] = document
            text_size = len(as_json(document))
            size += text_size
            if size > bytes_max:
                return rebalance.abridged(moved)
            yield 1 + text_size // BYTES_AS_A_MEMBER
        return rebalance.whole(members, moved)

    def _bytes_max(self) -> int:
        """Return the bytes of values that a batch may have at most."""
        there = self._parts.replica_manager.log_of(STORY_TOPIC, 0)
        config = self._parts.settings.log_base if there is None else there.config
        return max(0, config.max_message_bytes - BATCH_BYTES)

    def _partition(self) -> int:
        """Return the partition to write to. Raises `StorageFailed`, or OSError."""
        topic = self._parts.topic_manager.ensure_internal(STORY_TOPIC)
        if topic is None:
            raise StorageFailed(f"topic {STORY_TOPIC} is being created")
        number = self._led_of(topic)
        if number is None:
            raise StorageFailed(f"this broker leads no partition of {STORY_TOPIC}")
        return number

    def _led_of(self, topic: Topic) -> int | None:
        """Return the first partition of the topic that this broker leads, None if there is none."""
        numbers = range(topic.partitions)
        led = self._parts.led_log
        return next((one for one in numbers if led(TopicPartition(STORY_TOPIC, one)) is not None), None)

    def _write(self, records: list[Record]) -> None:
        now_ms = self._parts.clock.now_ms()
        try:
            number = self._partition()
            self._parts.replica_manager.append(
                STORY_TOPIC, number, build_batch(records), now_ms=now_ms, origin="coordinator"
            )
        except (AppendRefused, StorageFailed, OSError) as refused:
            self._lose(len(records), refused)
            return
        if self._lost:
            log.warning("the story of the groups is written again; %s lost", counted(self._lost, "record"))
            self._lost = 0

    def _lose(self, records: int, why: object) -> None:
        """Count records that are not written, and say why with the first of them."""
        if not self._lost:
            log.warning("the story of the groups is not written for now: %s", why)
        self._lost += records


def size_of(record: Record) -> int:
    """Return about the bytes that a record takes."""
    return len(record.value or b"") + len(record.key or b"") + RECORD_BYTES


def refitted(record: Record, bytes_max: int) -> Record:
    """Return the record, or what the topic takes of it, which may be less than when the record was made."""
    if record.value is None or len(record.value) <= bytes_max:
        return record
    return record._replace(value=fitted(json.loads(record.value), bytes_max))


def fitted(document: dict[str, Any], bytes_max: int) -> bytes:
    """Return the JSON text, without the lists of members where it would be too long for a record."""
    value = as_json(document).encode()
    if len(value) > bytes_max:
        for name, empty in LISTS.items():
            if name in document:
                document[name] = empty
        document["abridged"] = True
        value = as_json(document).encode()
    return value


def time_weight(what: Move | EndedRebalance) -> int:
    """Return about the time that it takes to write, as a multiple of one member with few partitions."""
    if isinstance(what, Move):
        return 1 + len(what.who) // PEOPLE_AS_A_MEMBER
    return 1 + len(what.snapshots) + what.weight // BYTES_AS_A_MEMBER


def weighed(pieces: Pieces[T]) -> Pieces[T]:
    """Return the same, each piece counted as `time_weight` counts."""
    while True:
        try:
            count = next(pieces)
        except StopIteration as over:
            result: T = over.value
            return result
        yield 1 + count // PARTITIONS_AS_A_MEMBER


EMPTY = "Empty"


def log_rebalance(rebalance: Rebalance, moved: int) -> None:
    """Log a rebalance. That a group begins or ends is no outage, and nothing moves to anybody."""
    if not rebalance.members:
        why = ", ".join(rebalance.why)
        log.info(
            "group %s: generation %d ended because %s; nobody is left",
            rebalance.group,
            rebalance.generation,
            why,
        )
        return
    if rebalance.state_before in (None, EMPTY):
        log.info(
            "group %s: generation %d with %s, because %s; nobody had worked before, %d ms to join",
            rebalance.group,
            rebalance.generation,
            counted(len(rebalance.members), "member"),
            ", ".join(rebalance.why),
            rebalance.barrier_ms,
        )
        return
    log.info(
        "group %s: generation %d with %s, because %s; %d ms until all had their assignments, %s moved",
        rebalance.group,
        rebalance.generation,
        counted(len(rebalance.members), "member"),
        ", ".join(rebalance.why),
        rebalance.stopped_ms,
        counted(moved, "partition"),
    )


# -- reading what members sent


def rebalance_of(end: EndedRebalance) -> Rebalance:
    """Return the Rebalance that has ended. What cannot be read is unknown in it."""
    return at_once(rebalance_in_pieces(end))


def rebalance_in_pieces(end: EndedRebalance) -> Pieces[Rebalance]:
    """Return the Rebalance as `rebalance_of` does, read payload by payload."""
    opened = end.opened
    assert opened is not None
    assert opened.formed_at_ms is not None
    if end.protocol_type in (PROTOCOL_TYPE, None):
        given = (*(snapshot.assignment for snapshot in end.snapshots), *opened.had.values())
        owned = yield from all_read(given, ASSIGNMENT_READ_MAX, partitions_of)
        subscriptions = (snapshot.subscription for snapshot in end.snapshots)
        topics = yield from all_read(subscriptions, SUBSCRIPTION_READ_MAX, topics_of)
    else:
        owned, topics = {}, {}
    return Rebalance(
        group=end.group,
        at_ms=opened.at_ms,
        formed_at_ms=opened.formed_at_ms,
        over_at_ms=end.over_at_ms,
        generation=end.generation,
        why=tuple(opened.causes) or ("unknown",),
        state_before=opened.state_before,
        state=end.state,
        settled=end.settled,
        leader=end.leader,
        protocol=end.protocol,
        members={
            snapshot.person.member_id: MemberView(
                snapshot.person, owned.get(snapshot.assignment), topics.get(snapshot.subscription)
            )
            for snapshot in end.snapshots
        },
        had={member_id: owned.get(given) or frozenset() for member_id, given in opened.had.items()},
        epoch=opened.epoch,
    )


def all_read(
    payloads: Iterable[bytes], bytes_max: int, read: Callable[[bytes], T | None]
) -> Pieces[dict[bytes, T | None]]:
    """Return the contents of each payload, None for one that cannot be read or is longer than that."""
    found: dict[bytes, T | None] = {}
    for payload in payloads:  # many are alike
        if payload not in found:
            found[payload] = read(payload) if len(payload) <= bytes_max else None
            yield 1 + min(len(payload), bytes_max) // BYTES_AS_A_MEMBER
    return found


def partitions_of(assignment: bytes) -> frozenset[TopicPartition] | None:
    """Return the partitions of an assignment, None if it is none that can be read."""
    if not assignment:
        return frozenset()
    try:
        return frozenset(Assignment.decode(assignment).partitions)
    except Corrupt:
        return None


def topics_of(subscription: bytes) -> tuple[str, ...] | None:
    """Return the topics of a subscription, None if it is none that can be read."""
    try:
        return read_topics_v0(subscription)
    except Corrupt:
        return None
