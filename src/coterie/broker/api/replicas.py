"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, DescribeQuorum, UnregisterBroker,
UpdateFeatures: who leads, where replicas lie, which brokers there are, and what they rely on of each other.

A broker alone has everything where it must be. Of several over one engine none has the records to itself:
replicas are elsewhere as soon as the metadata say so, and no reassignment is ever on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import RESERVED_TOPIC
from coterie.broker.api.metadata import LEVEL_FEATURE, controller_of
from coterie.broker.net.context import Context, milliseconds
from coterie.broker.placement import manual
from coterie.broker.refusal import Refusal
from coterie.broker.runtime.pieces import Until
from coterie.broker.topics.catalog import GONE
from coterie.broker.topics.proposals import NOT_KNOWN
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.placement.model import Replicas
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.pieces import Pieces
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.broker.topics.catalog import TopicCatalog, TopicChanges
    from coterie.broker.topics.replica_proposals import ReplicaProposals

ELECT_LEADERS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS, DESCRIBE_QUORUM = 43, 45, 46, 55
UPDATE_FEATURES, UNREGISTER_BROKER = 57, 64
UPGRADE = 1  # of a feature
ALL_OR_NONE_SINCE = 2  # since this version of UpdateFeatures no feature has a result of its own
PREFERRED, UNCLEAN = 0, 1  # elections
FIRST_EPOCH = 1  # of the one that leads the metadata

NOT_NEEDED = Refusal(Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
PREFERRED_IS_AWAY = Refusal(Code.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
NO_LEADER_TO_ELECT = Refusal(
    Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
)
NOT_IN_TIME = Refusal(Code.REQUEST_TIMED_OUT, "The request timed out.")


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    topics: TopicCatalog
    topic_manager: TopicChanges
    replica_changes: ReplicaProposals | None
    leadership: Leadership
    purgatory: Purgatory
    clock: Clock


# -- ElectLeaders


def elect_leaders(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Have partitions be led by the first of their replicas, and answer once they are. Where all are meant
    those that need no election are left out.
    """
    kind = getattr(request, "election_type", PREFERRED)
    if kind not in (PREFERRED, UNCLEAN):
        return (yield from _elections_of_no_kind(ctx, request, kind))
    asked = request.topic_partitions
    wanted = [(one.topic, one.partitions) for one in asked or ()]
    if asked is None:
        wanted = [(topic.name, range(topic.partitions)) for topic in parts.topics.all()]
    answers: dict[TopicPartition, Refusal | None] = {}
    for name in _named(wanted):
        answers[name] = _refuse_election(parts, name, kind)
        yield None
    electing = [name for name, refusal in answers.items() if refusal is None]
    if electing:
        patience_ms = max(milliseconds(request.timeout), 0)
        answers |= yield from _elect(parts, electing, parts.clock.now_ms() + patience_ms)
    if asked is None:
        answers = {name: one for name, one in answers.items() if one is None or one.code != NOT_NEEDED.code}
    return (yield from _elections(ctx, wanted, answers))


def _named(wanted: Iterable[tuple[str, Iterable[int]]]) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, number) for topic, numbers in wanted for number in numbers)


def _elections_of_no_kind(ctx: Context, request: Any, kind: int) -> Pieces[Any]:
    """Return the answer to who asks for elections of a kind that is not known."""
    wanted = [(one.topic, one.partitions) for one in request.topic_partitions or ()]
    refusal = Refusal(Code.INVALID_REQUEST, f"Unknown election type {kind}")
    code = Code.NONE if request.topic_partitions == () else Code.INVALID_REQUEST
    return (yield from _elections(ctx, wanted, dict.fromkeys(_named(wanted), refusal), code))


def _elections(
    ctx: Context,
    wanted: Iterable[tuple[str, Iterable[int]]],
    answers: Mapping[TopicPartition, Refusal | None],
    code: Code = Code.NONE,
) -> Pieces[Any]:
    topic_type = entity("elect_leaders", ctx.version, "ReplicaElectionResult", "response")
    partition_type = entity("elect_leaders", ctx.version, "PartitionResult", "response")
    topics = []
    for topic, numbers in wanted:
        results = []
        for number in numbers:
            name = TopicPartition(topic, number)
            if name in answers:
                result, text = answers[name] or (Code.NONE, None)
                results.append(
                    build(partition_type, partition_id=number, error_code=result, error_message=text)
                )
            yield None
        topics.append(build(topic_type, topic=topic, partition_result=tuple(results)))
        yield None
    cls = response_type(ELECT_LEADERS, ctx.version)
    return build(cls, error_code=code, replica_election_results=tuple(topics))


def _refuse_election(parts: Parts, name: TopicPartition, kind: int) -> Refusal | None:
    """Return why no election is to be held: of several brokers, too, whoever leads has all records. A broker
    that does not reach the others' engine knows who led before, and not who leads.
    """
    there = parts.topics.get(name.topic)
    if there is None:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name.topic}")
    if not 0 <= name.partition < there.partitions:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name.topic}-{name.partition}")
    if parts.leadership.suspended:
        return NOT_KNOWN
    changes = parts.replica_changes
    row = None if changes is None else changes.partition(name)
    if changes is None or row is None or row.leader == row.replicas[0]:
        return NOT_NEEDED
    if kind == UNCLEAN:
        return NOT_NEEDED if row.leader is not None else NO_LEADER_TO_ELECT
    return None if changes.is_live(row.replicas[0]) else PREFERRED_IS_AWAY


def _elect(
    parts: Parts, names: Sequence[TopicPartition], by_ms: int
) -> Pieces[dict[TopicPartition, Refusal | None]]:
    """Have preferred leaders lead, wait for it, and return what came of it."""
    assert parts.replica_changes is not None
    refusal = yield from parts.replica_changes.elect(names)
    if refusal is not None:
        return dict.fromkeys(names, refusal)
    answers: dict[TopicPartition, Refusal | None] = {}
    for name in names:  # by turns: to look at all of them again with each news takes time as their square
        while (found := _refuse_election(parts, name, PREFERRED)) is None and parts.clock.now_ms() < by_ms:
            yield _news_or_late(parts, by_ms)
        answers[name] = NOT_IN_TIME if found is None else None if found == NOT_NEEDED else found
        yield None
    return answers


def _news_or_late(parts: Parts, by_ms: int) -> Until:
    """Return the wait for news of the cluster, which ends at a time."""
    assert parts.replica_changes is not None
    news = parts.replica_changes.until_news()

    def ask(take: Callable[[Any], None]) -> None:
        timer = object()
        waits = True

        def go_on(*_: Any) -> None:
            nonlocal waits
            if waits:
                waits = False
                parts.purgatory.clear(timer)
                take(None)

        parts.purgatory.arm(timer, by_ms, go_on)
        news.ask(go_on)

    return Until(ask)


# -- reassignments


def alter_reassignments(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Give partitions the replicas that are asked for, partition by partition. To stay is no fault."""
    api = "alter_partition_reassignments"
    topic_type = entity(api, ctx.version, "ReassignableTopicResponse", "response")
    partition_type = entity(api, ctx.version, "ReassignablePartitionResponse", "response")
    resized = getattr(request, "allow_replication_factor_change", True)
    answers: dict[TopicPartition, Refusal | None] = {}
    wanted: dict[TopicPartition, Replicas] = {}
    for topic in request.topics:
        for one in topic.partitions:
            name = TopicPartition(topic.name, one.partition_index)
            answers[name] = _refuse_reassignment(parts, name, one.replicas, resized=resized)
            if answers[name] is None:
                wanted[name] = tuple(one.replicas)
            yield None
    answers |= yield from _reassign(parts, wanted)
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            number = one.partition_index
            code, text = answers[TopicPartition(topic.name, number)] or (Code.NONE, None)
            partitions.append(
                build(partition_type, partition_index=number, error_code=code, error_message=text)
            )
            yield None
        topics.append(build(topic_type, name=topic.name, partitions=tuple(partitions)))
        yield None
    return build(
        response_type(ALTER_REASSIGNMENTS, ctx.version),
        allow_replication_factor_change=not topics or resized,
        error_code=Code.NONE,
        error_message=None if topics else "",
        responses=tuple(topics),
    )


def _refuse_reassignment(
    parts: Parts, name: TopicPartition, replicas: Sequence[int] | None, *, resized: bool
) -> Refusal | None:
    topic, partition = parts.topics.get(name.topic), name.partition
    if topic is None:
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name.topic}.")
    if not 0 <= partition < topic.partitions:
        text = f"Unable to find partition {name.topic}:{partition}."
        return Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION, text)
    if replicas is None:
        return Refusal(Code.NO_REASSIGNMENT_IN_PROGRESS, None)
    problem = manual.problem_of_move(tuple(replicas), parts.topic_manager.brokers())
    if problem is not None:
        return Refusal(problem.code, problem.text)
    before = len(topic.replicas[partition])
    if not resized and len(replicas) != before:
        text = f"The replication factor is changed from {before} to {len(replicas)}"
        return Refusal(Code.INVALID_REPLICATION_FACTOR, text)
    return None


def _reassign(
    parts: Parts, wanted: Mapping[TopicPartition, Replicas]
) -> Pieces[dict[TopicPartition, Refusal | None]]:
    """Carry out what may be done, and return what came of it. A broker alone can only stay what it is."""
    if parts.replica_changes is None or not wanted:
        return {}
    refusal = yield from parts.replica_changes.reassign(wanted)
    return {name: refusal if parts.replica_changes.partition(name) else GONE for name in wanted}


def list_reassignments(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer that nothing is on its way: a reassignment is done with the change that makes it."""
    cls = response_type(LIST_REASSIGNMENTS, ctx.version)
    return build(cls, error_code=Code.NONE, error_message=None, topics=())


# -- DescribeQuorum


def describe_quorum(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Answer that the brokers which live are the quorum. There is no log of the metadata: offsets are 0."""
    topic_type = entity("describe_quorum", ctx.version, "TopicData", "response")
    asked = request.topics
    few = [(one.topic_name, [part.partition_index for part in one.partitions[:2]]) for one in asked[:2]]
    if few == [(RESERVED_TOPIC, [0])]:
        topics = (build(topic_type, topic_name=RESERVED_TOPIC, partitions=(_the_quorum(parts, ctx),)),)
        return _quorum_answer(parts, ctx, topics)
    unknown_topics = []
    for one in asked:
        answers = []
        for partition in one.partitions:
            answers.append(_not_of_the_quorum(ctx, partition.partition_index))
            yield None
        unknown_topics.append(build(topic_type, topic_name=one.topic_name, partitions=tuple(answers)))
        yield None
    return _quorum_answer(None, ctx, tuple(unknown_topics))


def _quorum_answer(parts: Parts | None, ctx: Context, topics: tuple[Any, ...]) -> Any:
    nodes: tuple[Any, ...] = ()
    if parts is not None and ctx.version >= 2:
        node_type = entity("describe_quorum", ctx.version, "Node", "response")
        live = parts.leadership.live_brokers()
        nodes = tuple(build(node_type, node_id=one.node_id, listeners=()) for one in live)
    cls = response_type(DESCRIBE_QUORUM, ctx.version)
    return build(cls, error_code=Code.NONE, error_message="", topics=topics, nodes=nodes)


def _the_quorum(parts: Parts, ctx: Context) -> Any:
    now_ms = parts.clock.now_ms()
    voter_type = entity("describe_quorum", ctx.version, "ReplicaState", "response")
    voters = [
        build(
            voter_type,
            replica_id=one.node_id,
            replica_directory_id=None,
            log_end_offset=0,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        for one in parts.leadership.live_brokers()
    ]
    return build(
        entity("describe_quorum", ctx.version, "PartitionData", "response"),
        partition_index=0,
        error_code=Code.NONE,
        error_message="",
        leader_id=controller_of(parts.leadership),
        leader_epoch=FIRST_EPOCH,
        high_watermark=0,
        current_voters=tuple(voters),
        observers=(),
    )


def _not_of_the_quorum(ctx: Context, partition: int) -> Any:
    return build(
        entity("describe_quorum", ctx.version, "PartitionData", "response"),
        partition_index=partition,
        error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
        error_message="This server does not host this topic-partition.",
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=(),
        observers=(),
    )


# -- UnregisterBroker


def unregister_broker(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Have a broker be none of the cluster's any more, whether it runs or not."""
    assert parts.replica_changes is not None, "it is not served"
    refusal = yield from parts.replica_changes.unregister(request.broker_id)
    code, text = (refusal.code, refusal.message) if refusal else (Code.NONE, None)
    return build(response_type(UNREGISTER_BROKER, ctx.version), error_code=code, error_message=text)


# -- UpdateFeatures


def update_features(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Raise the cluster's level, which is the one feature that may be updated; it is never lowered."""
    refusals: list[Refusal | None] = []
    for one in request.feature_updates:
        refusals.append((yield from _update_feature(parts, one, request)))
        yield None
    failed = next((one for one in refusals if one is not None), None)
    code, text = failed or (Code.NONE, None)
    api = "update_features"
    results = ()
    if ctx.version < ALL_OR_NONE_SINCE:
        result_type = entity(api, ctx.version, "UpdatableFeatureResult", "response")
        results = tuple(
            build(result_type, feature=one.feature, error_code=result, error_message=words)
            for one, (result, words) in zip(
                request.feature_updates, (one or (Code.NONE, None) for one in refusals), strict=True
            )
        )
        code, text = Code.NONE, None
    cls = response_type(UPDATE_FEATURES, ctx.version)
    return build(cls, error_code=code, error_message=text, results=results)


def _update_feature(parts: Parts, one: Any, request: Any) -> Pieces[Refusal | None]:
    assert parts.replica_changes is not None, "it is not served"
    level, kind = one.max_version_level, getattr(one, "upgrade_type", UPGRADE)
    start = f"Invalid update version {level} for feature {one.feature}."
    if one.feature != LEVEL_FEATURE:
        return Refusal(Code.INVALID_UPDATE_VERSION, f"{start} Brokers do not support this feature.")
    if kind != UPGRADE or getattr(one, "allow_downgrade", False) or level < 1:
        return Refusal(Code.INVALID_UPDATE_VERSION, f"{start} It is never lowered.")
    if getattr(request, "validate_only", False):
        return None
    refusal = yield from parts.replica_changes.raise_level(level)
    if refusal is None or refusal.code is not Code.INVALID_UPDATE_VERSION:
        return refusal
    return Refusal(refusal.code, f"{start} {refusal.message}")


HANDLERS = {
    ELECT_LEADERS: elect_leaders,
    ALTER_REASSIGNMENTS: alter_reassignments,
    LIST_REASSIGNMENTS: list_reassignments,
    DESCRIBE_QUORUM: describe_quorum,
    UPDATE_FEATURES: update_features,
    UNREGISTER_BROKER: unregister_broker,
}
