"""The topic `__group_story`: what was told becomes JSON records, a little after everybody was answered."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import STORY_TOPIC
from coterie.storage.log.contract import AppendRefused, StorageFailed
from coterie.story.model import MemberView, Move, Page, Person, Pieces, Rebalance, at_once
from coterie.wire.payloads.consumer_protocol import PROTOCOL_TYPE, Assignment, read_topics_v0
from coterie.wire.records.batches import Record, build_batch

if TYPE_CHECKING:
    from coterie.broker.node import Node

log = logging.getLogger("coterie.story")

# Nothing is told before a group that forms has formed, as a rule. Then so many moves and pieces of rebalances
# at a time, or a part of what waits if that is more, that it takes a twentieth of the time at most, and where
# very much waits a quarter: a weight of 1 takes 10 us.
PAUSE_MS, ROUND_MS = 500, 50
WEIGHT_OF_A_ROUND, WEIGHT_OF_A_ROUND_MAX, ROUNDS_WANTED = 200, 2_000, 50
PEOPLE_AS_A_MEMBER = 10  # to name so many takes as long as to tell of one member
PARTITIONS_AS_A_MEMBER, BYTES_AS_A_MEMBER = 10, 40
MEMBERS_TOLD_MAX = 1_000  # of a rebalance: the lists of a larger one would be too long for most readers
# One is read in one go: more would be felt by a heartbeat. It is told as what cannot be read.
ASSIGNMENT_READ_MAX, SUBSCRIPTION_READ_MAX = 40 << 10, 256 << 10
BATCH_BYTES, RECORD_BYTES = 1 << 10, 32  # what the batch and each record take beside keys and values
UNTOLD_MAX, UNTOLD_BYTES_MAX = 100_000, 64 << 20
LISTS: Mapping[str, Any] = {"members": {}, "joined": [], "left": [], "who": []}

T = TypeVar("T")

as_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


class Shot(NamedTuple):
    """A member at the end of a rebalance, what it subscribes to and what it was given still as bytes."""

    person: Person
    subscription: bytes
    assignment: bytes


class Turned(NamedTuple):
    """A rebalance at its end, in which nothing was read yet: that is done when everybody was answered."""

    page: Page | None
    group: str
    over_at_ms: int
    generation: int
    leader: str | None
    protocol_type: str | None
    protocol: str | None
    state: str
    settled: bool
    shots: tuple[Shot, ...]

    @property
    def weight(self) -> int:
        """How many bytes it keeps, which in the group itself the next rebalance replaces."""
        had = () if self.page is None else self.page.had.values()
        return sum(len(one.subscription) + len(one.assignment) for one in self.shots) + sum(map(len, had))


class StoryTopic:
    """Tells rebalances to the log and, unless `coterie.story.enable` is off, all there is to the topic."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._untold: deque[Move | Turned] = deque()
        self._untold_bytes = 0
        self._untold_weight = 0
        self._telling: Pieces[Record | None] | None = None
        self._scheduled = False
        self._lost = 0

    def tell(self, what: Move | Turned) -> None:
        """Have something told soon, after what has been told before."""
        if isinstance(what, Move) and not self._node.settings.coterie_story_enable:
            return
        if len(self._untold) >= UNTOLD_MAX or self._untold_bytes + what.weight > UNTOLD_BYTES_MAX:
            self._lost += 1
            return
        self._untold.append(what)
        self._untold_bytes += what.weight
        self._untold_weight += time_weight(what)
        if not self._scheduled:
            self._later(PAUSE_MS)

    def flush(self) -> None:
        """Tell what is left: the broker stops."""
        while self._untold or self._telling is not None:
            self._tell_some()

    def _later(self, pause_ms: int) -> None:
        self._scheduled = True
        self._node.purgatory.arm("story", self._node.now_ms() + pause_ms, self._round)

    def _round(self, _: object, now_ms: int) -> None:
        self._scheduled = False
        try:
            self._tell_some()
        finally:  # whatever becomes of one, the others are told
            if self._untold or self._telling is not None:
                self._later(ROUND_MS)

    def _tell_some(self) -> None:
        """Put so many things into words that nobody notices, and write them."""
        records: list[Record] = []
        size = 0
        bytes_max = self._bytes_max()
        for record in self._worded(bytes_max):
            assert record.value is not None
            if size + len(record.value) > bytes_max:
                self._write(records)
                records, size = [], 0
            records.append(record._replace(offset=len(records)))
            size += len(record.value) + len(record.key or b"") + RECORD_BYTES
        if records:
            self._write(records)

    def _worded(self, bytes_max: int) -> Iterator[Record]:
        """Yield what is in words as far as a round comes; a rebalance may take many rounds."""
        left = min(WEIGHT_OF_A_ROUND_MAX, max(WEIGHT_OF_A_ROUND, self._untold_weight // ROUNDS_WANTED))
        while left > 0 and (self._untold or self._telling is not None):
            if self._telling is None:
                what = self._untold.popleft()
                self._untold_bytes -= what.weight
                self._untold_weight -= time_weight(what)
                self._telling = self._in_pieces(what, bytes_max)
            try:
                left -= next(self._telling)
            except StopIteration as over:
                self._telling = None
                if over.value is not None:
                    yield over.value

    def _in_pieces(self, what: Move | Turned, bytes_max: int) -> Pieces[Record | None]:
        """Return a record of what is told, its place in the batch yet unknown; None if it is for no topic."""
        document: dict[str, Any] | None
        if isinstance(what, Move):
            yield time_weight(what)
            document, told_ms = what.document(), what.at_ms
        else:
            document, told_ms = (yield from self._turned(what, bytes_max)), what.over_at_ms
        if document is None:
            return None
        return Record(0, told_ms, what.group.encode(), fitted(document, bytes_max))

    def _turned(self, end: Turned, bytes_max: int) -> Pieces[dict[str, Any] | None]:
        """Return a rebalance as JSON values, None if it is not for the topic."""
        wanted = self._node.settings.coterie_story_enable
        yield 1
        if not wanted and not log.isEnabledFor(logging.INFO):
            return None
        rebalance = yield from reading(end)
        moved = yield from weighed(rebalance.moving())
        say(rebalance, moved)
        if not wanted:
            return None
        if len(end.shots) > MEMBERS_TOLD_MAX:
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
        """Return how many bytes of values a batch may have."""
        there = self._node.log_of(STORY_TOPIC, 0)
        config = self._node.settings.log_base if there is None else there.config
        return max(0, config.max_message_bytes - BATCH_BYTES)

    def _write(self, records: list[Record]) -> None:
        now_ms = self._node.now_ms()
        try:
            self._node.ensure_internal(STORY_TOPIC)
            self._node.append(STORY_TOPIC, 0, build_batch(records), now_ms=now_ms, origin="coordinator")
        except (AppendRefused, StorageFailed, OSError) as refused:
            if not self._lost:
                log.warning("the story of the groups is not written for now: %s", refused)
            self._lost += len(records)
            return
        if self._lost:
            log.warning("the story of the groups is written again; %d records are lost", self._lost)
            self._lost = 0


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


def time_weight(what: Move | Turned) -> int:
    """Return about how long something takes to tell, as a multiple of one member with few partitions."""
    if isinstance(what, Move):
        return 1 + len(what.who) // PEOPLE_AS_A_MEMBER
    return 1 + len(what.shots) + what.weight // BYTES_AS_A_MEMBER


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


def say(rebalance: Rebalance, moved: int) -> None:
    """Tell a rebalance to the log. That a group begins or ends is no outage, and nothing moves to anybody."""
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
            "group %s: generation %d with %d members, because %s; nobody had worked before, %d ms to join",
            rebalance.group,
            rebalance.generation,
            len(rebalance.members),
            ", ".join(rebalance.why),
            rebalance.barrier_ms,
        )
        return
    log.info(
        "group %s: generation %d with %d members, because %s; stood still %d ms, %d partitions moved",
        rebalance.group,
        rebalance.generation,
        len(rebalance.members),
        ", ".join(rebalance.why),
        rebalance.stopped_ms,
        moved,
    )


# -- reading what members sent


def rebalance_of(end: Turned) -> Rebalance:
    """Return what a rebalance led to. What cannot be read is told as unknown."""
    return at_once(reading(end))


def reading(end: Turned) -> Pieces[Rebalance]:
    """Return `rebalance_of`, read payload by payload."""
    page = end.page
    assert page is not None
    assert page.formed_at_ms is not None
    if end.protocol_type in (PROTOCOL_TYPE, None):
        given = (*(shot.assignment for shot in end.shots), *page.had.values())
        owned = yield from all_read(given, ASSIGNMENT_READ_MAX, partitions_of)
        subscriptions = (shot.subscription for shot in end.shots)
        topics = yield from all_read(subscriptions, SUBSCRIPTION_READ_MAX, topics_of)
    else:
        owned, topics = {}, {}
    return Rebalance(
        group=end.group,
        at_ms=page.at_ms,
        formed_at_ms=page.formed_at_ms,
        over_at_ms=end.over_at_ms,
        generation=end.generation,
        why=tuple(page.causes) or ("unknown",),
        state_before=page.state_before,
        state=end.state,
        settled=end.settled,
        leader=end.leader,
        protocol=end.protocol,
        members={
            shot.person.member_id: MemberView(
                shot.person, owned.get(shot.assignment), topics.get(shot.subscription)
            )
            for shot in end.shots
        },
        had={member_id: owned.get(given) or frozenset() for member_id, given in page.had.items()},
    )


def all_read(
    payloads: Iterable[bytes], bytes_max: int, read: Callable[[bytes], T | None]
) -> Pieces[dict[bytes, T | None]]:
    """Return what each payload says, None for one that cannot be read or is longer than that."""
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
