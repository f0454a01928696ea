"""OffsetCommit, OffsetFetch, OffsetDelete: what a group has consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, compress
from operator import not_
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.reasons import mark
from coterie.broker.api.data import topic_named
from coterie.broker.api.groups import Gathered, ask, ask_each
from coterie.broker.net.context import WAITS, Context, milliseconds
from coterie.broker.repeats import Repeats
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, gathered, mapped, paced
from coterie.coordinator.group import commands
from coterie.coordinator.group.commands import FetchAnswer
from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.runtime.groups import Coordinator
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.topics.catalog import TopicCatalog

FETCH = 9
RETENTION_UNSET = -1
BY_ID_SINCE = 10
OFFSETS_AT_ONCE = 500  # of one decision of a group
FETCHED_AT_ONCE = 20_000  # the same, to be told: whoever asks for fewer sees them as of one moment
WHOLE_TOPIC = -1  # in the place of a partition: the topic itself is not known
AskedFor = tuple[str, tuple[int, ...]]  # a topic and partitions of it
NO_OFFSET = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    topics: TopicCatalog
    leadership: Leadership
    coordinator: Coordinator


# -- OffsetCommit


def offset_commit(parts: Parts, ctx: Context, request: Any) -> Any:
    """Store the offsets of the partitions that exist; the others are answered here (OC-2 to OC-5)."""
    return paced(_offset_commit(parts, ctx, request), named_in(request))


def named_in(request: Any) -> int:
    """Return the number of topics and partitions that a request names."""
    return len(request.topics) + sum(len(asked.partitions) for asked in request.topics)


def _offset_commit(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """A commit of very many offsets goes to the group in parts: one decision keeps everybody waiting."""
    offsets, refused = yield from sorted_out(parts.topics, request.topics)
    mark_unknown(ctx, refused)

    def done(codes: Sequence[Code]) -> None:
        ctx.reply(
            paced(
                committed(ctx.api_key, ctx.version, request, refused, iter(codes).__next__), named_in(request)
            )
        )

    if not offsets:
        mark("nothing-left", ctx.api_key)  # OC-5: nothing is left to ask the group about
    return (yield from in_parts(offsets, partial(_commit_part, parts, ctx, request), done))


def in_parts(
    offsets: Sequence[commands.OffsetToCommit],
    commit: Callable[[Sequence[commands.OffsetToCommit], Callable[[Any], None]], None],
    done: Callable[[Sequence[Code]], None],
) -> Pieces[Any]:
    """Have offsets committed in parts, with others heard between; `done` gets the code of each, in order."""
    slices = [offsets[at : at + OFFSETS_AT_ONCE] for at in range(0, len(offsets), OFFSETS_AT_ONCE)]

    def answered(answers: list[Any]) -> None:
        codes: list[Code] = []
        for part, answer in zip(slices, answers, strict=True):
            codes += [answer] * len(part) if isinstance(answer, Code) else answer.codes
        done(codes)

    return (yield from ask_each(slices, commit, answered, at_once=1))


def _commit_part(
    parts: Parts,
    ctx: Context,
    request: Any,
    named: Sequence[commands.OffsetToCommit],
    take: Callable[[Any], None],
) -> None:
    offsets, take = still_there(parts.topics, ctx, named, take)
    if not offsets:
        take(Code.NONE)
        return
    ask(
        parts.coordinator,
        ctx,
        request.group_id,
        lambda call: commit_command(request, call=call, version=ctx.version, offsets=offsets),
        take,
        nameless=True,
    )


def commit_command(
    request: Any, *, call: int, version: int, offsets: tuple[commands.OffsetToCommit, ...]
) -> commands.CommitOffsets:
    """Return the core's command for some of the offsets of an OffsetCommit."""
    retention_ms = getattr(request, "retention_time", None)
    return commands.CommitOffsets(
        group_id=request.group_id,
        call=call,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id_or_member_epoch,
        version=version,
        offsets=offsets,
        retention_ms=RETENTION_UNSET if retention_ms is None else milliseconds(retention_ms),
    )


class Codes(NamedTuple):
    """What came of offsets, in their order."""

    codes: Sequence[Code]


def still_there(
    known: TopicCatalog, ctx: Context, offsets: Sequence[commands.OffsetToCommit], take: Callable[[Any], None]
) -> tuple[tuple[commands.OffsetToCommit, ...], Callable[[Any], None]]:
    """Return the offsets whose topics are there, and who takes what becomes of them.

    For when others were heard since they were sorted out: a commit for a topic that they have deleted would
    stay, and be the next topic's of the name.
    """
    there = [one.topic_id is None or known.by_id(one.topic_id) is not None for one in offsets]
    if all(there):
        return tuple(offsets), take
    missing = Code.UNKNOWN_TOPIC_ID if ctx.version >= BY_ID_SINCE else Code.UNKNOWN_TOPIC_OR_PARTITION

    def respond_checked(answer: Any) -> None:
        codes = iter([answer] * sum(there) if isinstance(answer, Code) else answer.codes)
        take(Codes([next(codes) if one else missing for one in there]))

    return tuple(one for one, is_there in zip(offsets, there, strict=True) if is_there), respond_checked


def sorted_out(
    known: TopicCatalog, topics: Sequence[Any]
) -> Pieces[tuple[tuple[commands.OffsetToCommit, ...], dict[tuple[int, int], Code]]]:
    """Return the offsets of partitions that exist, and by place in the request why the others are refused."""
    refused: dict[tuple[int, int], Code] = {}
    offsets = []
    for at, asked in enumerate(topics):
        topic, missing = topic_named(known, asked)
        if topic is None:
            refused[at, WHOLE_TOPIC] = missing
        for within, one in enumerate(asked.partitions):
            if within % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                yield
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
        yield
    return tuple(offsets), refused


def committed(
    api_key: int,
    version: int,
    request: Any,
    refused: dict[tuple[int, int], Code],
    next_code: Callable[[], Code],
) -> Pieces[Any]:
    """Return the answer to an OffsetCommit or a TxnOffsetCommit; `next_code` is the group's of the others."""
    api = APIS[api_key]
    topic_type = entity(api.name, version, f"{api.title}ResponseTopic", "response")
    partition_type = entity(api.name, version, f"{api.title}ResponsePartition", "response")
    topics = []
    for asked, codes in (yield from answered_in_order(request.topics, refused, next_code)):
        partitions = yield from _coded(partition_type, codes)
        named = {field: getattr(asked, field) for field in ("name", "topic_id") if hasattr(asked, field)}
        topics.append(build(topic_type, partitions=partitions, **named))
    return build(response_type(api_key, version), topics=tuple(topics))


def _coded(partition_type: Any, codes: Sequence[tuple[int, Code]]) -> Pieces[tuple[Any, ...]]:
    partitions = []
    for partition, code in codes:
        partitions.append(build(partition_type, partition_index=partition, error_code=code))
        if len(partitions) % ITEMS_AT_ONCE == 0:
            yield
    yield
    return tuple(partitions)


def mark_unknown(ctx: Context, refused: dict[tuple[int, int], Code]) -> None:
    """Mark what a request names that is not there."""
    if not refused:
        return
    by_id = Code.UNKNOWN_TOPIC_ID in refused.values()
    mark("topic-id-unknown" if by_id else "topic-unknown", ctx.api_key)


def answered_in_order(
    asked: Sequence[Any], refused: dict[tuple[int, int], Code], next_code: Callable[[], Code]
) -> Pieces[list[tuple[Any, list[tuple[int, Code]]]]]:
    """Return topics with (partition, code) in Kafka's order: what was refused here, then what the group says.

    Then a topic stands once, however often it was asked for; if nothing was refused, as often as that.
    """
    first: list[tuple[Any, list[tuple[int, Code]]]] = []
    later: list[tuple[Any, list[tuple[int, Code]]]] = []
    for at, topic in enumerate(asked):
        here = yield from gathered(
            (p.partition_index, refused.get((at, within))) for within, p in enumerate(topic.partitions)
        )
        codes = yield from gathered(None if code is None else (p, code) for p, code in here)
        if codes or (at, WHOLE_TOPIC) in refused:
            first.append((topic, codes))
        if len(codes) < len(here):
            coded = yield from gathered((p, next_code()) if code is None else None for p, code in here)
            later.append((topic, coded))
        yield
    if not refused:
        return later
    merged: dict[Any, tuple[Any, list[tuple[int, Code]]]] = {}
    for place, (topic, codes) in enumerate((*first, *later)):
        key = getattr(topic, "name", None) or getattr(topic, "topic_id", None)
        merged.setdefault(key, (topic, []))[1].extend(codes)
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    return list(merged.values())


# -- OffsetFetch


def offset_fetch(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with what has been committed, for one group or, from v8 on, for many (OF)."""
    many = ctx.version >= 8
    asked = request.groups if many else (request,)
    require_stable = getattr(request, "require_stable", False)

    def done(answers: list[Any]) -> None:
        found = 0
        if len(answers) <= ITEMS_AT_ONCE:
            found = sum(len(answer.partitions) for answer in answers if not isinstance(answer, Code))
        ctx.reply(paced(_all_fetched(parts, ctx, asked, answers, many), max(weight, found)))

    weight = len(asked)
    if weight <= ITEMS_AT_ONCE:
        weight += sum(1 + len(topic.partition_indexes) for group in asked for topic in group.topics or ())
    pieces = _fetch_each(parts, ctx, asked, require_stable, done)
    return pieces if len(asked) > 1 else paced(pieces, weight)


def _fetch_each(
    parts: Parts, ctx: Context, asked: Sequence[Any], require_stable: bool, done: Callable[[list[Any]], None]
) -> Pieces[Any]:
    """Ask about each group, with others heard after each: one may have very many offsets. `done` gets the
    answers, in that order, when the last has come.
    """
    if not asked:
        done([])
        return WAITS
    answers = Gathered(len(asked), done)
    for place, group in enumerate(asked):
        yield from _fetch_one(parts, ctx, group, require_stable, answers.slot(place))
        yield
    return WAITS


def _all_fetched(
    parts: Parts, ctx: Context, asked: Sequence[Any], answers: Sequence[Any], many: bool
) -> Pieces[Any]:
    """All offsets of a group are told as often as they are asked for, as Kafka does, within bounds."""
    cls = response_type(9, ctx.version)
    fetched: list[Any] = []
    whole: dict[str, Any] = {}
    repeats = Repeats()
    for group, answer in zip(asked, answers, strict=True):
        response = whole.get(group.group_id) if group.topics is None else None
        if response is None:
            response = yield from _fetched(parts, ctx, group, answer, many)
            fetched.append(response)
            if group.topics is None:
                whole[group.group_id] = response
        elif repeats.allow(0 if isinstance(answer, Code) else len(answer.partitions)):
            fetched.append(response)
        yield
    if many:
        return build(cls, groups=tuple(fetched))
    code, topics = fetched[0]
    return build(cls, topics=topics, error_code=code)


def _fetch_one(
    parts: Parts, ctx: Context, group: Any, require_stable: bool, take: Callable[[Any], None]
) -> Pieces[None]:
    wanted = None
    if group.topics is not None:
        wanted = tuple((yield from gathered(_wanted(parts, topic) for topic in group.topics)))
    ids_asked_with = yield from _ids(parts, group.topics or ())

    def ask_part(part: Sequence[AskedFor] | None, take: Callable[[Any], None]) -> None:
        topic_ids = ids_asked_with if parts.leadership.alone else _ids_there(parts, group.group_id, part)
        ask(
            parts.coordinator,
            ctx,
            group.group_id,
            lambda call: commands.FetchOffsets(
                group_id=group.group_id,
                call=call,
                topics=None if part is None else tuple(part),
                require_stable=require_stable,
                topic_ids=topic_ids,
            ),
            take,
            nameless=True,
        )

    slices = [] if wanted is None else (yield from _in_parts(wanted))
    if len(slices) > 1:
        yield from ask_each(slices, ask_part, lambda answers: take(_whole(answers)), at_once=1)
    else:
        ask_part(wanted, take)


def _in_parts(wanted: Sequence[AskedFor]) -> Pieces[list[list[AskedFor]]]:
    """Return the offsets asked for in parts, none of which keeps a group busy for too long."""
    slices: list[list[AskedFor]] = [[]]
    room = FETCHED_AT_ONCE
    for place, (topic, partitions) in enumerate(wanted):
        for at in range(0, len(partitions) or 1, FETCHED_AT_ONCE):
            some = partitions[at : at + FETCHED_AT_ONCE]
            if len(some) >= room:
                slices.append([])
                room = FETCHED_AT_ONCE
            slices[-1].append((topic, some))
            room -= 1 + len(some)
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    return slices


def _whole(answers: Sequence[Any]) -> Any:
    """Return one answer of those to parts of a question: the first refusal, if there is one."""
    for answer in answers:
        if isinstance(answer, Code) or answer.code:
            return answer
    return FetchAnswer(Code.NONE, tuple(chain.from_iterable(answer.partitions for answer in answers)))


def _ids(parts: Parts, asked: Sequence[Any]) -> Pieces[dict[str, UUID]]:
    """Return the topic ids that a request asks with, by name (OF-6)."""
    if not asked or not hasattr(asked[0], "topic_id"):
        return {}
    given = (one.topic_id for one in asked)  # None where it is all zeros, as from who knows none
    topics = (None if topic_id is None else parts.topics.by_id(topic_id) for topic_id in given)
    return (yield from mapped(None if topic is None else (topic.name, topic.topic_id) for topic in topics))


def _ids_there(parts: Parts, group_id: str, asked: Sequence[AskedFor] | None) -> dict[str, UUID]:
    """Return the ids of the topics there are, of those asked for or of all that a group has committed for.

    Among several brokers the news that a topic is deleted may come late to where its commits are, or to
    nobody: what was committed for it does not count for the next of its name.
    """
    names: Iterable[str] = (name for name, _ in asked or ())
    if asked is None:
        host = parts.coordinator.host_of(group_id)
        names = () if host is None else host.shard.offsets.topics_of(group_id)
    topics = (parts.topics.get(name) for name in names)
    return {topic.name: topic.topic_id for topic in topics if topic is not None}


def _wanted(parts: Parts, asked: Any) -> AskedFor | None:
    name = getattr(asked, "name", None)
    if name is None:
        topic = topic_named(parts.topics, asked)[0]
        if topic is None:
            return None
        name = topic.name
    return name, tuple(asked.partition_indexes)


def _fetched(parts: Parts, ctx: Context, group: Any, answer: Any, many: bool) -> Pieces[Any]:
    """Return one group's part of the response: an entity from v8 on, before that its code and topics."""
    side = "response"
    suffix = "s" if many else ""
    topic_type = entity("offset_fetch", ctx.version, f"OffsetFetchResponseTopic{suffix}", side)
    partition_type = entity("offset_fetch", ctx.version, f"OffsetFetchResponsePartition{suffix}", side)
    code = answer if isinstance(answer, Code) else answer.code
    topics: tuple[Any, ...] = ()
    if not code:
        if group.topics is None:
            topics = yield from _everything(parts, ctx, topic_type, partition_type, answer.partitions)
        else:
            stored = {}
            for place, one in enumerate(answer.partitions):
                stored[one.topic, one.partition] = one
                if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                    yield
            known_first = group.topics
            if ctx.version >= 10:  # named by id: as Kafka has them
                there = yield from gathered(_wanted(parts, t) is not None for t in group.topics)
                known_first = chain(compress(group.topics, there), compress(group.topics, map(not_, there)))
            asked_topics = []
            for t in known_first:
                asked_topics.append((yield from _asked_for(parts, topic_type, partition_type, t, stored)))
                yield
            topics = tuple(asked_topics)
    elif ctx.version == 1:  # no field for the group's own error: every partition carries it
        refused = []
        for t in group.topics:
            partitions = yield from gathered(
                build(partition_type, partition_index=p, error_code=code, **NO_OFFSET)
                for p in t.partition_indexes
            )
            refused.append(build(topic_type, name=t.name, partitions=tuple(partitions)))
            yield
        topics = tuple(refused)
    if not many:
        return code, topics
    cls = entity("offset_fetch", ctx.version, "OffsetFetchResponseGroup", side)
    return build(cls, group_id=group.group_id, topics=topics, error_code=code)


def _everything(
    parts: Parts, ctx: Context, topic_type: Any, partition_type: Any, stored: Sequence[Any]
) -> Pieces[tuple[Any, ...]]:
    """Return all that a group has committed; `stored` has the partitions of a topic in order."""
    by_topic: dict[str, list[Any]] = {}
    for place, found in enumerate(stored):
        by_topic.setdefault(found.topic, []).append(_partition(partition_type, found.partition, found))
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    answered = []
    for name, partitions in sorted(by_topic.items()):
        topic_of_name = parts.topics.get(name)
        if ctx.version < 10:
            answered.append(build(topic_type, name=name, partitions=tuple(partitions)))
        elif topic_of_name is not None:  # OF-3: a topic without an id is left out
            answered.append(build(topic_type, topic_id=topic_of_name.topic_id, partitions=tuple(partitions)))
        else:
            mark("topic-without-id-left-out", ctx.api_key)
    return tuple(answered)


def _asked_for(
    parts: Parts, topic_type: Any, partition_type: Any, asked: Any, stored: dict[tuple[str, int], Any]
) -> Pieces[Any]:
    wanted = _wanted(parts, asked)
    if wanted is None:
        mark("topic-id-unknown", FETCH)
        unknown = {"error_code": Code.UNKNOWN_TOPIC_ID, **NO_OFFSET}
        refused = yield from gathered(
            build(partition_type, partition_index=p, **unknown) for p in asked.partition_indexes
        )
        return build(topic_type, topic_id=asked.topic_id, partitions=tuple(refused))
    name, indexes = wanted
    found = []
    for p in indexes:
        found.append(_partition(partition_type, p, stored.get((name, p))))
        if len(found) % ITEMS_AT_ONCE == 0:
            yield
    partitions = tuple(found)
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


def offset_delete(parts: Parts, ctx: Context, request: Any) -> Any:
    """Forget what a group has committed for partitions (OD)."""
    return paced(_offset_delete(parts, ctx, request), named_in(request))


def _offset_delete(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    refused: dict[tuple[int, int], Code] = {}  # by the place in the request: topic, partition
    existing = []
    for at, topic in enumerate(request.topics):
        if parts.topics.get(topic.name) is None:
            refused[at, WHOLE_TOPIC] = Code.UNKNOWN_TOPIC_OR_PARTITION
        for within, one in enumerate(topic.partitions):
            wanted = TopicPartition(topic.name, one.partition_index)
            if _exists(parts, wanted):
                existing.append(wanted)
            else:
                refused[at, within] = Code.UNKNOWN_TOPIC_OR_PARTITION
            if within % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                yield
        yield
    mark_unknown(ctx, refused)
    # even where no partition is left the group has its say
    slices = [existing[at : at + OFFSETS_AT_ONCE] for at in range(0, len(existing), OFFSETS_AT_ONCE)] or [[]]

    def done(answers: list[Any]) -> None:
        ctx.reply(paced(_deleted(request, refused, answers), named_in(request)))

    def ask_one(part: Sequence[TopicPartition], take: Callable[[Any], None]) -> None:
        group_id = request.group_id
        wanted = tuple(part)
        ask(
            parts.coordinator,
            ctx,
            group_id,
            lambda call: commands.DeleteOffsets(group_id=group_id, call=call, partitions=wanted),
            take,
        )

    return (yield from ask_each(slices, ask_one, done, at_once=1))


def _deleted(request: Any, refused: dict[tuple[int, int], Code], answers: Sequence[Any]) -> Pieces[Any]:
    cls = response_type(47, 0)
    codes: list[Code] = []
    for answer in answers:
        code = answer if isinstance(answer, Code) else answer.code
        if code:
            return build(cls, error_code=code)
        codes += answer.codes
    topic_type = entity("offset_delete", 0, "OffsetDeleteResponseTopic", "response")
    partition_type = entity("offset_delete", 0, "OffsetDeleteResponsePartition", "response")
    topics = []
    for asked, coded in (yield from answered_in_order(request.topics, refused, iter(codes).__next__)):
        partitions = yield from _coded(partition_type, coded)
        topics.append(build(topic_type, name=asked.name, partitions=partitions))
    return build(cls, error_code=Code.NONE, topics=tuple(topics))


def _exists(parts: Parts, wanted: TopicPartition) -> bool:
    topic = parts.topics.get(wanted.topic)
    return topic is not None and 0 <= wanted.partition < topic.partitions


HANDLERS = {8: offset_commit, 9: offset_fetch, 47: offset_delete}
