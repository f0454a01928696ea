"""Partitions moved for `coterie cluster drain` and `balance`: sent, waited for, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.plain import counted

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.broker.placement.model import Replicas
    from coterie.broker.placement.moving import PlacedPartition, ReplicaMove
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.messages import DescribedTopic

LOOK_EVERY_S = 0.2
HELD_IN_FILES = "a broker over files keeps its partitions, and those of --processes share anew at another N"


def placed(topics: Sequence[DescribedTopic]) -> list[PlacedPartition]:
    """Return the partitions of topics."""
    from coterie.base.ids import TopicPartition
    from coterie.broker.placement.moving import PlacedPartition

    return [
        PlacedPartition(
            TopicPartition(topic.name, one.partition), one.replicas, one.leader if one.leader >= 0 else None
        )
        for topic in topics
        for one in topic.partitions
    ]


async def settled(admin: Admin, topics: Sequence[DescribedTopic]) -> list[PlacedPartition]:
    """Return the partitions of topics that are not being moved already."""
    moving = {*await admin.list_partition_reassignments()}
    return [one for one in placed(topics) if one.name not in moving]


async def carry_out(admin: Admin, moves: Sequence[ReplicaMove], *, dry_run: bool = False) -> None:
    """Have partitions be moved, but for those of topics that were deleted meanwhile. Raises `CoterieError`
    where brokers keep their partitions for themselves, which a dry run finds out by moving none.
    """
    from coterie.client.errors import Unsupported

    if not moves:
        return
    try:
        sent = [] if dry_run else moves
        await admin.alter_partition_reassignments({move.name: move.after for move in sent})
    except Unsupported as error:
        raise CoterieError(f"nothing is moved: {error}; {HELD_IN_FILES}") from error
    except RefusedBy as refusal:
        if refusal.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:  # raised once all the others have moved
            raise


class Moved(NamedTuple):
    """The moves of partitions that are there still, and what is not."""

    moves: list[ReplicaMove]
    deleted: list[TopicPartition]


def moves_of(moves: Sequence[ReplicaMove], topics: Sequence[DescribedTopic]) -> Moved:
    """Return the Moved that moves come to where these topics are there."""
    there = {one.name for one in placed(topics)}
    return Moved(
        [move for move in moves if move.name in there],
        [move.name for move in moves if move.name not in there],
    )


def kept(before: Sequence[DescribedTopic], now: Sequence[DescribedTopic]) -> list[DescribedTopic]:
    """Return the topics of now that were there before: not one that was deleted and made anew."""
    ids = {one.name: one.topic_id for one in before}
    return [one for one in now if one.name in ids and ids[one.name] == one.topic_id]


async def until_away(
    admin: Admin, leaving: Sequence[int], timeout_s: float, where: str
) -> list[DescribedTopic]:
    """Return the topics once brokers are no replicas and lead nothing. Raises `CoterieError` if that takes
    too long.
    """

    async def left(topics: Sequence[DescribedTopic]) -> int:
        return sum(
            not {one.leader, *one.replicas}.isdisjoint(leaving)
            for topic in topics
            for one in topic.partitions
        )

    return await until_none(admin, left, timeout_s, where)


async def until_led(
    admin: Admin,
    wanted: Mapping[TopicPartition, Replicas],
    before: Sequence[DescribedTopic],
    timeout_s: float,
) -> list[DescribedTopic]:
    """Return the topics once partitions of those `before` have these replicas, and the first one leads.
    Raises `CoterieError` as above.
    """

    async def left(topics: Sequence[DescribedTopic]) -> int:
        there = {one.name: one for one in placed(kept(before, topics))}
        moved = [(there[name], after) for name, after in wanted.items() if name in there]
        late = [(one, after) for one, after in moved if (one.replicas, one.leader) != (after, after[0])]
        unled = [one.name for one, after in late if one.replicas == after]
        if unled:
            await admin.elect_leaders(unled)
        return len(late)

    return await until_none(admin, left, timeout_s, "on their way")


async def until_none(
    admin: Admin, left: Callable[[Sequence[DescribedTopic]], Awaitable[int]], timeout_s: float, where: str
) -> list[DescribedTopic]:
    """Return the topics once no partitions are left. Raises `CoterieError` where that takes too long."""
    end_s = asyncio.get_running_loop().time() + timeout_s
    while count := await left(topics := await admin.list_topics(internal=True)):
        if asyncio.get_running_loop().time() >= end_s:
            again = "they go on moving; run the command again to wait for them"
            raise CoterieError(f"{counted(count, 'partition')} still {where} after {timeout_s:g} s; {again}")
        await asyncio.sleep(LOOK_EVERY_S)
    return topics
