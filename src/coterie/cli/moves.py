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
    if not moves:
        return
    if dry_run:
        await insist_on_moves(admin)
        return
    try:
        await _move(admin, moves)
    except RefusedBy as refusal:
        if refusal.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:  # raised once all the others have moved
            raise


async def insist_on_moves(admin: Admin) -> None:
    """Raise `CoterieError` where brokers keep their partitions for themselves, and none is taken out."""
    await _move(admin, ())


async def _move(admin: Admin, moves: Sequence[ReplicaMove]) -> None:
    from coterie.client.errors import Unsupported

    try:
        await admin.alter_partition_reassignments({move.name: move.after for move in moves})
    except Unsupported as error:
        raise CoterieError(f"nothing is moved: {error}; {HELD_IN_FILES}") from error


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


def moves_stopped(*, dry_run: bool) -> str:
    """Return the sentence about a command that was stopped before all had moved."""
    if dry_run:
        return "stopped; nothing is moved"
    return (
        "stopped: what the brokers were asked to move by then goes on moving; run the command again to wait"
        " for it, or see how far it is with `coterie cluster describe`"
    )


class Left(NamedTuple):
    """The partitions that are waited for, and those that came after the moves were decided, and stay."""

    moving: Sequence[TopicPartition]
    staying: Sequence[TopicPartition] = ()


Look = Callable[[], Awaitable[tuple[list["DescribedTopic"], Left]]]
"""Finds the topics and what is left of them."""


async def until_away(
    admin: Admin,
    leaving: Sequence[int],
    moves: Sequence[ReplicaMove],
    before: Sequence[DescribedTopic],
    timeout_s: float,
    where: str,
) -> list[DescribedTopic]:
    """Return the topics once brokers are no replicas and lead nothing. Raises `CoterieError` if that takes
    too long, or where nothing is left but what none of the `moves` of the topics `before` is about.
    """

    async def look() -> tuple[list[DescribedTopic], Left]:
        moving = {*await admin.list_partition_reassignments()}  # of others, too; asked before what is there
        topics = await admin.list_topics(internal=True)
        moving |= {one.name for one in placed(kept(before, topics))} & {move.name for move in moves}
        left = [one for one in placed(topics) if not {one.leader, *one.replicas}.isdisjoint(leaving)]
        stay = {one.name for one in left if not {*one.replicas}.isdisjoint(leaving)} - moving
        names = [one.name for one in left]
        return topics, Left([one for one in names if one not in stay], [one for one in names if one in stay])

    return await until_none(look, timeout_s, where)


async def until_led(
    admin: Admin,
    wanted: Mapping[TopicPartition, Replicas],
    before: Sequence[DescribedTopic],
    timeout_s: float,
) -> list[DescribedTopic]:
    """Return the topics once partitions of those `before` have these replicas, and the first one leads.
    Raises `CoterieError` if that takes too long.
    """

    async def look() -> tuple[list[DescribedTopic], Left]:
        topics = await admin.list_topics(internal=True)
        there = {one.name: one for one in placed(kept(before, topics))}
        moved = [(there[name], after) for name, after in wanted.items() if name in there]
        late = [(one, after) for one, after in moved if (one.replicas, one.leader) != (after, after[0])]
        unled = [one.name for one, after in late if one.replicas == after]
        if unled:
            await admin.elect_leaders(unled)
        return topics, Left([one.name for one, _ in late])

    return await until_none(look, timeout_s, "on their way")


async def until_none(look: Look, timeout_s: float, where: str) -> list[DescribedTopic]:
    """Return the topics once no partitions are left. Raises `CoterieError` where that takes too long, or
    those that are left stay.
    """
    end_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        topics, left = await look()
        if not any(left):
            return topics
        if not left.moving or asyncio.get_running_loop().time() >= end_s:
            raise CoterieError(said_of_left(left, timeout_s, where))
        await asyncio.sleep(LOOK_EVERY_S)


def said_of_left(left: Left, timeout_s: float, where: str) -> str:
    """Return the sentence about partitions that are left, and what to do."""
    from coterie.cli.tables import by_topic, partitions_text

    said = []
    if left.moving:
        said.append(f"{counted(len(left.moving), 'partition')} still {where} after {timeout_s:g} s")
        said.append("they go on moving")
    if left.staying:
        said.append(f"new {where}, and not moving: {partitions_text(by_topic(left.staying))}")
    said.append(f"run the command again to {'move those' if left.staying else 'wait for them'}")
    return "; ".join(said)
