"""The topic `__group_story`: what was told becomes JSON records, a little after everybody was answered."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.broker.topic_names import STORY_TOPIC
from coterie.observe.story import MemberView, Move, Page, Person, Rebalance
from coterie.store.log import AppendRefused, StorageFailed
from coterie.wire.batches import Record, build_batch
from coterie.wire.consumer import PROTOCOL_TYPE, Assignment, read_topics_v0

if TYPE_CHECKING:
    from coterie.broker.node import Node

__all__ = ["Shot", "StoryTopic", "Turned", "rebalance_of"]

log = logging.getLogger("coterie.story")

# Nothing is told before a group that forms has formed, as a rule. Then so many members and moves at a time,
# or a part of what waits if that is more, that it takes a twentieth of the time at most: each takes 10 us.
PAUSE_MS, ROUND_MS = 500, 50
WEIGHT_OF_A_ROUND, ROUNDS_WANTED = 200, 50
PEOPLE_AS_A_MEMBER = 10  # to name so many takes as long as to tell of one member's partitions
MEMBERS_TOLD_MAX = 1_000  # of a rebalance: to tell the members of a larger one would be felt by a heartbeat
BATCH_BYTES, RECORD_BYTES = 1 << 10, 32  # what the batch and each record take beside keys and values
UNTOLD_MAX, UNTOLD_BYTES_MAX = 100_000, 64 << 20
LISTS: Mapping[str, Any] = {"members": {}, "joined": [], "left": [], "who": []}

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


class StoryTopic:
    """Tells rebalances to the log and, unless `coterie.story.enable` is off, all there is to the topic."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._untold: deque[Move | Turned] = deque()
        self._untold_bytes = 0
        self._scheduled = False
        self._lost = 0

    def tell(self, what: Move | Turned) -> None:
        """Have something told soon, after what has been told before."""
        if isinstance(what, Move) and not self._node.settings.coterie_story_enable:
            return
        weight = what.weight if isinstance(what, Move) else 0  # what a rebalance shows are the members' own
        if len(self._untold) >= UNTOLD_MAX or self._untold_bytes + weight > UNTOLD_BYTES_MAX:
            self._lost += 1
            return
        self._untold.append(what)
        self._untold_bytes += weight
        if not self._scheduled:
            self._later(PAUSE_MS)

    def flush(self) -> None:
        """Tell what is left: the broker stops."""
        while self._untold:
            self._tell_some()

    def _later(self, pause_ms: int) -> None:
        self._scheduled = True
        self._node.purgatory.arm("story", self._node.now_ms() + pause_ms, self._round)

    def _round(self, now_ms: int) -> None:
        self._tell_some()
        self._scheduled = False
        if self._untold:
            self._later(ROUND_MS)

    def _tell_some(self) -> None:
        """Put so many things into words that nobody notices, and write them."""
        weight_max = max(WEIGHT_OF_A_ROUND, len(self._untold) // ROUNDS_WANTED)
        records: list[Record] = []
        weight = size = 0
        bytes_max = self._bytes_max()
        while self._untold and weight < weight_max:
            what = self._untold.popleft()
            if isinstance(what, Move):
                weight += 1 + len(what.who) // PEOPLE_AS_A_MEMBER
                self._untold_bytes -= what.weight
            else:
                weight += 1 + len(what.shots)
            document = self._document(what)
            if document is None:
                continue
            value = fitted(document, bytes_max)
            if size + len(value) > bytes_max:
                self._write(records)
                records, size = [], 0
            told_ms = what.at_ms if isinstance(what, Move) else what.over_at_ms
            records.append(Record(len(records), told_ms, what.group.encode(), value))
            size += len(value) + len(what.group) + RECORD_BYTES
        if records:
            self._write(records)

    def _document(self, what: Move | Turned) -> dict[str, Any] | None:
        """Return what is told as JSON values, None if it is not for the topic."""
        wanted = self._node.settings.coterie_story_enable
        if isinstance(what, Move):
            return what.document()
        if not wanted and not log.isEnabledFor(logging.INFO):
            return None
        rebalance = rebalance_of(what)
        say(rebalance)
        return rebalance.document(abridged=len(what.shots) > MEMBERS_TOLD_MAX) if wanted else None

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


def say(rebalance: Rebalance) -> None:
    """Tell a rebalance to the log."""
    log.info(
        "group %s: generation %d with %d members, because %s; stood still %d ms, %d partitions moved",
        rebalance.group,
        rebalance.generation,
        len(rebalance.members),
        ", ".join(rebalance.why),
        rebalance.stopped_ms,
        rebalance.moved,
    )


# -- reading what members sent


def rebalance_of(end: Turned) -> Rebalance:
    """Return what a rebalance led to. What cannot be read is told as unknown."""
    page = end.page
    assert page is not None
    assert page.formed_at_ms is not None
    ours = end.protocol_type in (PROTOCOL_TYPE, None)
    partitions, topics = cache(partitions_of), cache(topics_of)  # many are alike
    members = {
        shot.person.member_id: MemberView(
            shot.person,
            partitions(shot.assignment) if ours else None,
            topics(shot.subscription) if ours else None,
        )
        for shot in end.shots
    }
    nothing: frozenset[TopicPartition] = frozenset()
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
        members=members,
        had={
            member_id: (partitions(given) if ours else None) or nothing
            for member_id, given in page.had.items()
        },
    )


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
