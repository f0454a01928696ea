"""The changes of a cluster's topics: each is proposed to the engine that holds the metadata, which makes it
or refuses it. It is answered once this broker's own image has it.

Whatever was decided by an image may be outdated when the engine gets to it: others propose, too. So a change
names what it goes by, and what was refused because of that is looked at anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from coterie.assign.chance import chance_of
from coterie.base.codes import Code
from coterie.base.reasons import mark
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC
from coterie.broker.cluster.changes import (
    AddPartitions,
    Change,
    Changed,
    ChangeOutcome,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    NotChanged,
    Proposed,
    SetConfigs,
    Why,
)
from coterie.broker.cluster.image import BrokerState
from coterie.broker.placement import striped
from coterie.broker.placement.model import Broker, Layout, Problem
from coterie.broker.refusal import Refusal
from coterie.broker.runtime.pieces import Pieces, Until, gathered
from coterie.broker.topics.catalog import GONE, OVERTAKEN

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.topics.cluster_topics import ClusterTopics
    from coterie.broker.topics.topic import Topic

log = logging.getLogger("coterie.broker")

LOW_BITS = (1 << 62) - 1  # of a random uuid: those above say that it is one
NOT_KNOWN = Refusal(
    Code.REQUEST_TIMED_OUT, "The request timed out: the database of the cluster's metadata has not answered."
)
NO_SURPRISES = (Why.NAME_TAKEN, Why.CHANGED, Why.REFUSED, Why.LOCKED)
"""Why an internal topic is not made or grown: another was faster, or the engine has said it by itself."""


class Propose(Protocol):
    """Proposes a change to the cluster's engine."""

    def __call__(self, change: Change, answered: Proposed) -> None:
        """Call `answered` once: with `Changed` when the own image has the change, with why it was not made,
        or with None where that is not known in time.
        """
        ...


class TopicProposals:
    """The changes of topics of a broker that is one of several. Logs are made by whoever leads."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        topics: ClusterTopics,
        propose: Propose,
        wall_ms: Callable[[], int],
        new_uuid: Callable[[], UUID],
    ) -> None:
        """`wall_ms` is the time by the wall's clock; from the bits of `new_uuid` chance is drawn."""
        self._settings = settings
        self._topics = topics
        self._propose = propose
        self._wall_ms = wall_ms
        self._chance = chance_of(lambda: new_uuid().int & LOW_BITS)

    # -- where replicas go

    @property
    def default_factor(self) -> int:
        """How many replicas a partition has if nobody says."""
        return self._settings.default_factor

    def brokers(self) -> list[Broker]:
        """Return the brokers that are registered. One that is about to stop counts as fenced."""
        rows = (row for row in self._topics.image.brokers.values() if row.is_registered)
        return [Broker(row.broker_id, row.rack, fenced=row.state is not BrokerState.LIVE) for row in rows]

    def placed(self, partitions: int, *, factor: int) -> Layout | Problem:
        """Return the replicas of so many new partitions on brokers that live, or why they cannot be there.

        Kafka places on fenced ones, too, where others do not suffice. Here they would be of no use: the
        records are the engine's, and whoever is fenced can neither lead nor serve.
        """
        brokers = self.brokers()
        live = [broker for broker in brokers if not broker.fenced]
        problem = striped.problem_of(live, factor=factor, passed_over=len(brokers) - len(live))
        if problem is not None:
            return problem
        return striped.place(live, partitions=partitions, factor=factor, chance=self._chance)

    # -- changes

    def create_topics(self, wanted: Sequence[Topic]) -> Pieces[dict[str, Refusal]]:
        """Create topics; return those that could not be, by name. Their names are this broker's meanwhile.

        They are made together. Of those whose names others have taken the rest is made without them.
        """
        refused: dict[str, Refusal] = {}
        names = {topic.name for topic in wanted}
        self._topics.claimed |= names
        try:
            left = [*wanted]
            while left:
                created_ms = self._wall_ms()
                new = yield from gathered(_new_topic(topic, created_ms) for topic in left)
                [answer] = yield from answers_of(self._propose, [CreateTopics(tuple(new))])
                found = {topic.name: self._not_created(topic, answer) for topic in left}
                refused |= {name: refusal for name, refusal in found.items() if refusal is not None}
                left = self._left_of(left, answer, refused)
        finally:
            self._topics.claimed -= names
        return refused

    def _left_of(
        self, wanted: Sequence[Topic], answer: ChangeOutcome, refused: Mapping[str, Refusal]
    ) -> list[Topic]:
        """Return the topics to propose again: without those that have made the engine refuse all of them."""
        if not isinstance(answer, NotChanged) or refused.keys().isdisjoint(answer.names):
            return []
        there = self._topics.by_id
        return [topic for topic in wanted if topic.name not in refused and there(topic.topic_id) is None]

    def _not_created(self, topic: Topic, answer: ChangeOutcome) -> Refusal | None:
        """Return why a topic was not created: None if it was, or may be by the next change."""
        if isinstance(answer, Changed) or self._topics.by_id(topic.topic_id) is not None:
            return None  # it may have been, though its answer was lost
        if answer is None:
            return NOT_KNOWN
        name = topic.name
        match answer.why:
            case Why.NAME_TAKEN if name in answer.names:
                return Refusal(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
            case Why.NAME_COLLIDES if name in answer.names:
                other = self._topics.name_like(name) or "one that has just been created"
                text = f"Topic '{name}' collides with existing topic: {other}"
                return Refusal(Code.INVALID_TOPIC_EXCEPTION, text)
            case Why.NAME_TAKEN | Why.NAME_COLLIDES | Why.ID_TAKEN:
                return None  # of this id it was created, and deleted again
        return refusal_of(answer)

    def grow_topics(
        self, totals: Mapping[str, int], assigned: Mapping[str, Layout]
    ) -> Pieces[dict[str, Refusal]]:
        """Give topics that exist so many partitions in all; return those that could not be grown.

        New ones have as many replicas as the first, but for those of topics to which some are `assigned`.
        """
        changes: dict[str, Change] = {}
        refused: dict[str, Refusal] = {}
        for name, total in totals.items():
            topic = self._topics.get(name)
            if topic is None:
                refused[name] = GONE
                continue
            placed = assigned.get(name) or self.placed(
                total - topic.partitions, factor=len(topic.replicas[0])
            )
            if isinstance(placed, Problem):
                refused[name] = Refusal(*placed)
            else:
                changes[name] = AddPartitions(topic.topic_id, topic.partitions, tuple(placed))
            yield
        return refused | (yield from self._make(changes))

    def configure_topics(self, wanted: Mapping[str, Mapping[str, str]]) -> Pieces[dict[str, Refusal]]:
        """Replace the settings of topics that exist, as they are known now; return those that could not be.

        One that has changed meanwhile is OVERTAKEN: its settings are to be made from what it has by then.
        """
        rows = {name: self._topics.image.topic(name) for name in wanted}
        changes = {
            name: SetConfigs(row.topic_id, row.version, dict(wanted[name]))
            for name, row in rows.items()
            if row is not None
        }
        gone = dict.fromkeys((name for name, row in rows.items() if row is None), GONE)
        return gone | (yield from self._make(changes))

    def delete_topics(self, names: Sequence[str]) -> Pieces[dict[str, Refusal]]:
        """Delete topics that exist; return those that could not be. They are deleted together, or one by one
        where others have deleted some meanwhile.
        """
        ids = {name: topic.topic_id for name in names if (topic := self._topics.get(name)) is not None}
        refused = dict.fromkeys((name for name in names if name not in ids), GONE)
        if not ids:
            return refused
        [answer] = yield from answers_of(self._propose, [DeleteTopics(tuple(ids.values()))])
        if isinstance(answer, NotChanged) and answer.why is Why.NO_TOPIC and len(ids) > 1:
            alone = {name: DeleteTopics((topic_id,)) for name, topic_id in ids.items()}
            return refused | (yield from self._make(alone))
        refusal = refusal_of(answer)
        if refusal is None:
            return refused
        # What is not there any more was deleted, though the answer was lost.
        left = (name for name, topic_id in ids.items() if self._topics.by_id(topic_id) is not None)
        return refused | dict.fromkeys(ids if answer is not None else left, refusal)

    def ensure_internal(self, name: str) -> Topic | None:
        """Return an internal topic; None until it is there. It is proposed on its first use, and again only
        when that has come to nothing.
        """
        topic = self._topics.get(name)
        if topic is None and name not in self._topics.claimed:
            self._propose_internal(name)
            topic = self._topics.get(name)
        return topic

    def _propose_internal(self, name: str) -> None:
        partitions, configs = self._settings.internal_topic(name)
        live = sum(not broker.fenced for broker in self.brokers())
        if name == STORY_TOPIC:
            partitions = max(partitions, live)  # each broker writes to one that it leads
        placed = self.placed(partitions, factor=min(self._settings.internal_factor(name), max(live, 1)))
        if isinstance(placed, Problem):
            return  # nobody has registered yet
        mark("internal-topic-proposed")
        self._topics.claimed.add(name)
        topic = self._topics.new(name, replicas=placed, configs=configs)
        change = CreateTopics((_new_topic(topic, self._wall_ms()),))
        self._propose(change, partial(self._internal_answered, topic))

    def ensure_own_partition(self, name: str) -> bool:
        """Return whether an internal topic has or gets a partition that this broker is preferred to lead. It
        gets one where it has none and groups are coordinated here, as of a broker that came after the topic.
        """
        topic = self.ensure_internal(name)
        if topic is None:
            return True
        me = self._settings.node_id
        if any(replicas[0] == me for replicas in topic.replicas):
            return True
        offsets = self._topics.image.topic(OFFSETS_TOPIC)
        if offsets is None or all(
            row.leader != me for row in self._topics.image.partitions(offsets.topic_id)
        ):
            return False
        return name in self._topics.claimed or self._propose_own_partition(topic, me)

    def _propose_own_partition(self, topic: Topic, me: int) -> bool:
        """Return whether a partition was proposed, with as many replicas as the others have, or as can be."""
        live = sum(not broker.fenced for broker in self.brokers())
        placed = self.placed(1, factor=min(len(topic.replicas[0]), live))
        if isinstance(placed, Problem):
            return False  # nobody lives: this broker is about to stop
        self._topics.claimed.add(topic.name)
        followers = [one for one in placed[0] if one != me][: len(placed[0]) - 1]
        change = AddPartitions(topic.topic_id, topic.partitions, ((me, *followers),))
        self._propose(change, partial(self._internal_answered, topic))
        return True

    def _internal_answered(self, topic: Topic, answer: ChangeOutcome) -> None:
        self._topics.claimed.discard(topic.name)
        # What the engine refuses by itself it has said, and is asked for again with each request.
        if isinstance(answer, NotChanged) and answer.why not in NO_SURPRISES:
            log.error("cannot create or grow topic %s: %s", topic.name, answer.why)

    # -- proposing

    def _make(self, changes: Mapping[str, Change]) -> Pieces[dict[str, Refusal]]:
        """Propose a change for each topic; return why some were not made."""
        image = self._topics.image
        answers = yield from answers_of(self._propose, [*changes.values()])
        refusals = {name: refusal_of(answer) for name, answer in zip(changes, answers, strict=True)}
        refused = {name: refusal for name, refusal in refusals.items() if refusal is not None}
        if OVERTAKEN in refused.values():  # by what, this broker has yet to hear
            yield self._topics.until_after(image)
        return refused


def answers_of(propose: Propose, changes: Sequence[Change]) -> Pieces[list[ChangeOutcome]]:
    """Propose changes, and return their answers when the last has come."""
    answers = _Answers(propose, changes)
    if changes:
        yield Until(answers.ask)
    return answers.all


class _Answers:
    """The answers of changes that are proposed together."""

    def __init__(self, propose: Propose, changes: Sequence[Change]) -> None:
        self.all: list[ChangeOutcome] = [None] * len(changes)
        self._propose = propose
        self._changes = changes
        self._waiting = len(changes)
        self._take: Callable[[Any], None]

    def ask(self, take: Callable[[Any], None]) -> None:
        """Propose them; `take` is called when the last is answered."""
        self._take = take
        for place, change in enumerate(self._changes):
            self._propose(change, partial(self._answered, place))

    def _answered(self, place: int, answer: ChangeOutcome) -> None:
        self.all[place] = answer
        self._waiting -= 1
        if not self._waiting:
            self._take(None)


def _new_topic(topic: Topic, created_ms: int) -> NewTopic:
    return NewTopic(topic.topic_id, topic.name, topic.replicas, topic.configs, created_ms)


def refusal_of(answer: ChangeOutcome) -> Refusal | None:
    """Return why a change was not made, None if it was."""
    if isinstance(answer, Changed):
        return None
    if answer is None:
        return NOT_KNOWN
    match answer.why:
        case Why.NO_TOPIC:
            return GONE
        case Why.CHANGED:
            return OVERTAKEN
        case Why.LOCKED:
            text = f"Nothing was changed: the database of the cluster's metadata waited for {answer.reason}."
            return Refusal(Code.KAFKA_STORAGE_ERROR, text)  # one that timed out might have been made
        case Why.REFUSED:
            text = f"The database of the cluster's metadata has refused the change: {answer.reason}."
            return Refusal(Code.UNKNOWN_SERVER_ERROR, text)
    return Refusal(Code.UNKNOWN_SERVER_ERROR, f"The cluster has refused the change: {answer.why}.")
