"""OffsetCommit, OffsetFetch, OffsetDelete: what a group has consumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.context import WAITS, Context, milliseconds
from coterie.broker.handlers.data import topic_named
from coterie.broker.handlers.groups import Gathered, ask
from coterie.group import commands
from coterie.wire.codec import build, entity, response_type

if TYPE_CHECKING:
    from coterie.broker.node import Node

__all__ = ["HANDLERS"]

RETENTION_UNSET = -1
NO_OFFSET = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


# -- OffsetCommit


def offset_commit(node: Node, ctx: Context, request: Any) -> Any:
    """Store the offsets of the partitions that exist; the others are answered here (OC-2 to OC-5)."""
    refused: dict[tuple[int, int], Code] = {}  # by the place in the request: topic, partition
    offsets = []
    for at, asked in enumerate(request.topics):
        topic, missing = topic_named(node, asked)
        for within, one in enumerate(asked.partitions):
            if topic is None or not 0 <= one.partition_index < topic.partitions:
                refused[at, within] = missing or Code.UNKNOWN_TOPIC_OR_PARTITION
                continue
            offsets.append(
                commands.OffsetToCommit(
                    topic=topic.name,
                    partition=one.partition_index,
                    offset=one.committed_offset,
                    leader_epoch=getattr(one, "committed_leader_epoch", -1),
                    metadata=one.committed_metadata or "",
                    topic_id=topic.topic_id,
                )
            )

    def respond(answer: Any) -> None:
        codes = [answer] * len(offsets) if isinstance(answer, Code) else list(answer.codes)
        ctx.reply(_committed(ctx, request, refused, iter(codes).__next__))

    if not offsets:
        respond(Code.NONE)  # OC-5: nothing is left to ask the group about
        return WAITS
    retention_ms = getattr(request, "retention_time", None)
    return ask(
        node,
        ctx,
        request.group_id,
        lambda call: commands.CommitOffsets(
            group_id=request.group_id,
            call=call,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            generation=request.generation_id_or_member_epoch,
            version=ctx.version,
            offsets=tuple(offsets),
            retention_ms=RETENTION_UNSET if retention_ms is None else milliseconds(retention_ms),
        ),
        respond,
        nameless=True,
    )


def _committed(
    ctx: Context, request: Any, refused: dict[tuple[int, int], Code], next_code: Callable[[], Code]
) -> Any:
    topic_type = entity("offset_commit", ctx.version, "OffsetCommitResponseTopic", "response")
    partition_type = entity("offset_commit", ctx.version, "OffsetCommitResponsePartition", "response")
    topics = []
    for at, asked in enumerate(request.topics):
        partitions = []
        for within, one in enumerate(asked.partitions):
            code = refused[at, within] if (at, within) in refused else next_code()
            partitions.append(build(partition_type, partition_index=one.partition_index, error_code=code))
        named = {"name": getattr(asked, "name", ""), "topic_id": getattr(asked, "topic_id", None)}
        topics.append(build(topic_type, partitions=tuple(partitions), **named))
    return build(response_type(8, ctx.version), topics=tuple(topics))


# -- OffsetFetch


def offset_fetch(node: Node, ctx: Context, request: Any) -> Any:
    """Answer with what has been committed, for one group or, from v8 on, for many (OF)."""
    many = ctx.version >= 8
    asked = request.groups if many else (request,)
    require_stable = getattr(request, "require_stable", False)

    def done(answers: list[Any]) -> None:
        fetched = tuple(_fetched(node, ctx, g, a, many) for g, a in zip(asked, answers, strict=True))
        cls = response_type(9, ctx.version)
        if many:
            ctx.reply(build(cls, groups=tuple(fetched)))
            return
        code, topics = fetched[0]
        ctx.reply(build(cls, topics=topics, error_code=code))

    if not asked:
        done([])
        return WAITS
    gathered = Gathered(len(asked), done)
    for index, group in enumerate(asked):
        _fetch_one(node, ctx, group, require_stable, gathered.slot(index))
    return WAITS


def _fetch_one(
    node: Node, ctx: Context, group: Any, require_stable: bool, take: Callable[[Any], None]
) -> None:
    wanted = None if group.topics is None else tuple(_wanted(node, topic) for topic in group.topics)
    ask(
        node,
        ctx,
        group.group_id,
        lambda call: commands.FetchOffsets(
            group_id=group.group_id,
            call=call,
            topics=None if wanted is None else tuple(w for w in wanted if w is not None),
            require_stable=require_stable,
        ),
        take,
        nameless=True,
    )


def _wanted(node: Node, asked: Any) -> tuple[str, tuple[int, ...]] | None:
    name = getattr(asked, "name", None)
    if name is None:
        topic = topic_named(node, asked)[0]
        if topic is None:
            return None
        name = topic.name
    return name, tuple(asked.partition_indexes)


def _fetched(node: Node, ctx: Context, group: Any, answer: Any, many: bool) -> Any:
    """Return one group's part of the response: an entity from v8 on, before that its code and topics."""
    side = "response"
    suffix = "s" if many else ""
    topic_type = entity("offset_fetch", ctx.version, f"OffsetFetchResponseTopic{suffix}", side)
    partition_type = entity("offset_fetch", ctx.version, f"OffsetFetchResponsePartition{suffix}", side)
    code = answer if isinstance(answer, Code) else answer.code
    topics: tuple[Any, ...] = ()
    if not code:
        stored = {(p.topic, p.partition): p for p in answer.partitions}
        if group.topics is None:
            topics = _everything(node, ctx, topic_type, partition_type, stored)
        else:
            topics = tuple(_asked_for(node, topic_type, partition_type, t, stored) for t in group.topics)
    elif ctx.version == 1:  # no field for the group's own error: every partition carries it
        topics = tuple(
            build(
                topic_type,
                name=t.name,
                partitions=tuple(
                    build(partition_type, partition_index=p, error_code=code, **NO_OFFSET)
                    for p in t.partition_indexes
                ),
            )
            for t in group.topics
        )
    if not many:
        return code, topics
    cls = entity("offset_fetch", ctx.version, "OffsetFetchResponseGroup", side)
    return build(cls, group_id=group.group_id, topics=topics, error_code=code)


def _everything(
    node: Node, ctx: Context, topic_type: Any, partition_type: Any, stored: dict[tuple[str, int], Any]
) -> tuple[Any, ...]:
    by_topic: dict[str, list[Any]] = {}
    for (topic, partition), found in sorted(stored.items()):
        by_topic.setdefault(topic, []).append(_partition(partition_type, partition, found))
    answered = []
    for name, partitions in by_topic.items():
        topic_of_name = node.topics.get(name)
        if ctx.version < 10:
            answered.append(build(topic_type, name=name, partitions=tuple(partitions)))
        elif topic_of_name is not None:  # OF-3: a topic without an id is left out
            answered.append(build(topic_type, topic_id=topic_of_name.topic_id, partitions=tuple(partitions)))
    return tuple(answered)


def _asked_for(
    node: Node, topic_type: Any, partition_type: Any, asked: Any, stored: dict[tuple[str, int], Any]
) -> Any:
    wanted = _wanted(node, asked)
    if wanted is None:
        unknown = {"error_code": Code.UNKNOWN_TOPIC_ID, **NO_OFFSET}
        partitions = tuple(
            build(partition_type, partition_index=p, **unknown) for p in asked.partition_indexes
        )
        return build(topic_type, topic_id=asked.topic_id, partitions=partitions)
    name, indexes = wanted
    partitions = tuple(_partition(partition_type, p, stored.get((name, p))) for p in indexes)
    if hasattr(asked, "topic_id"):
        return build(topic_type, topic_id=asked.topic_id, partitions=partitions)
    return build(topic_type, name=name, partitions=partitions)


def _partition(cls: Any, partition: int, found: Any) -> Any:
    if found is None:
        return build(cls, partition_index=partition, error_code=Code.NONE, **NO_OFFSET)
    return build(
        cls,
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=found.code,
    )


# -- OffsetDelete


def offset_delete(node: Node, ctx: Context, request: Any) -> Any:
    """Forget what a group has committed for partitions (OD)."""
    cls = response_type(47, ctx.version)
    topic_type = entity("offset_delete", 0, "OffsetDeleteResponseTopic", "response")
    partition_type = entity("offset_delete", 0, "OffsetDeleteResponsePartition", "response")
    asked = tuple(TopicPartition(t.name, p.partition_index) for t in request.topics for p in t.partitions)
    existing = tuple(tp for tp in asked if _exists(node, tp))

    def respond(answer: Any) -> None:
        code = answer if isinstance(answer, Code) else answer.code
        if code:
            ctx.reply(build(cls, error_code=code))
            return
        codes = dict(zip(existing, answer.codes, strict=True))
        topics = tuple(
            build(
                topic_type,
                name=t.name,
                partitions=tuple(
                    build(
                        partition_type,
                        partition_index=p.partition_index,
                        error_code=codes.get(
                            TopicPartition(t.name, p.partition_index), Code.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for p in t.partitions
                ),
            )
            for t in request.topics
        )
        ctx.reply(build(cls, error_code=Code.NONE, topics=topics))

    return ask(
        node,
        ctx,
        request.group_id,
        lambda call: commands.DeleteOffsets(group_id=request.group_id, call=call, partitions=existing),
        respond,
    )


def _exists(node: Node, wanted: TopicPartition) -> bool:
    topic = node.topics.get(wanted.topic)
    return topic is not None and 0 <= wanted.partition < topic.partitions


HANDLERS = {8: offset_commit, 9: offset_fetch, 47: offset_delete}
