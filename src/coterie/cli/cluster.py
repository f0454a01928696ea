"""`coterie cluster`: the cluster and its brokers, Coterie's or Apache Kafka's. Brokers are given their share,
and are taken out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import counted
from coterie.cli.hints import FamilyWithDefault
from coterie.cli.numbers import Number, WholeNumber
from coterie.cli.options import AskCluster, CommandResult, asks_cluster, names_in_cluster
from coterie.cli.tables import by_topic, partitions_text, table

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.broker.placement.model import Broker, Replicas
    from coterie.broker.placement.moving import PlacedPartition, ReplicaMove
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.messages import ClusterInfo, DescribedTopic, FeatureLevels

LOOK_EVERY_S = 0.2
TIMEOUT_S = 60
HELD_IN_FILES = "a broker over files keeps its partitions, and those of --processes share anew at another N"


class ClusterCommands(FamilyWithDefault):
    """`coterie cluster` without a command is `coterie cluster describe`."""

    default = "describe"
    shown_by = None


@click.group("cluster", cls=ClusterCommands)
def command() -> None:
    """Show brokers, give them their share, take them out.

    Without a command: the brokers, as `coterie cluster describe` shows them.
    """


# -- describe


@command.command("describe")
@asks_cluster
def describe_command(ask: AskCluster) -> CommandResult:
    """Show the cluster's id, its controller and its brokers.

    LEADS and REPLICAS count partitions, those of internal topics as well. While some have no leader LEADS is
    a dash where it may be theirs.
    """
    found, topics = ask(cluster_and_topics)
    leads, replicas = counts_of(topics)
    without = without_leader(found, topics)
    brokers = [
        {
            "broker": one.broker_id,
            "host": one.address[0],
            "port": one.address[1],
            "rack": one.rack,
            "state": "fenced" if one.fenced else "live",
            "leads": leads[one.broker_id] or (None if any(without) and not one.fenced else 0),
            "replicas": replicas[one.broker_id],
        }
        for one in sorted(found.brokers)
    ]
    rows = [(*one.values(), "yes" if one["broker"] == found.controller_id else None) for one in brokers]
    head = ("BROKER", "HOST", "PORT", "RACK", "STATE", "LEADS", "REPLICAS", "CONTROLLER")
    return CommandResult(
        {
            "cluster": found.cluster_id,
            "controller": found.controller_id,
            "brokers": brokers,
            "without_leader": sum(without),
        },
        [f"cluster {found.cluster_id}", "", *table(head, rows), *lines_without_leader(without)],
    )


async def cluster_and_topics(admin: Admin) -> tuple[ClusterInfo, list[DescribedTopic]]:
    """Return the cluster with brokers that are fenced, as far as it says so, and all topics."""
    found = await admin.describe_cluster(include_fenced=True)
    return found, await admin.list_topics(internal=True)


def counts_of(topics: Sequence[DescribedTopic]) -> tuple[Counter[int], Counter[int]]:
    """Return the number of partitions that each broker leads, and of those that it is a replica of."""
    partitions = [one for topic in topics for one in topic.partitions]
    leads = Counter(one.leader for one in partitions)
    return leads, Counter(broker_id for one in partitions for broker_id in one.replicas)


class WithoutLeader(NamedTuple):
    """How many partitions have no leader by what a broker knows: those of which a replica is live, others."""

    replica_live: int
    none_live: int


def without_leader(found: ClusterInfo, topics: Sequence[DescribedTopic]) -> WithoutLeader:
    """Return the numbers of partitions without a leader."""
    live = {one.broker_id for one in found.brokers if not one.fenced}
    unled = [one for topic in topics for one in topic.partitions if one.leader < 0]
    replica_live = sum(not live.isdisjoint(one.replicas) for one in unled)
    return WithoutLeader(replica_live, len(unled) - replica_live)


def lines_without_leader(without: WithoutLeader) -> Iterator[str]:
    """Yield lines about partitions without a leader, whose brokers may all look well."""
    if any(without):
        yield ""
    if without.replica_live:
        yield f"without a leader, though a replica is live: {counted(without.replica_live, 'partition')}"
    if without.none_live:
        yield f"without a leader, and no replica is live: {counted(without.none_live, 'partition')}"
    if any(without):
        yield "  If this lasts: so says a broker of Coterie's that does not reach its database of what it"
        yield "  leads itself, and of all else what was before; its log says since when, and why (suspended)."
        yield "  Apache Kafka says so where no replica in sync is live."


# -- moving replicas


async def brokers_known(admin: Admin) -> list[str]:
    """Return the ids of the brokers, of fenced ones too, as they are typed."""
    found = await admin.describe_cluster(include_fenced=True)
    return [str(one.broker_id) for one in found.brokers]


broker_argument = click.argument(
    "broker_id",
    metavar="BROKER",
    type=WholeNumber(min=0),
    shell_complete=names_in_cluster(brokers_known),
)
timeout_option = click.option(
    "--timeout", "timeout_s", metavar="SECONDS", type=Number(min=0), default=TIMEOUT_S,
    show_default=True, help="How long to wait for the partitions to have moved.",
)  # fmt: skip


@command.command("drain")
@broker_argument
@timeout_option
@asks_cluster
def drain_command(ask: AskCluster, broker_id: int, timeout_s: float) -> CommandResult:
    """Move all partitions away from a broker.

    Others get its replicas and lead what it leads. It may run or not. While it runs new topics are placed on
    it; stop it afterwards, and `coterie cluster remove` takes it out for good.
    """
    from coterie.broker.placement.moving import moves_away

    async def drain(admin: Admin) -> tuple[ReplicaMove, ...]:
        found, topics = await cluster_and_topics(admin)
        if all(one.broker_id != broker_id for one in found.brokers):
            raise no_such_broker(broker_id, found)
        moves = moves_away(broker_id, await settled(admin, topics), placeable(found))
        if not isinstance(moves, list):
            raise CoterieError(f"broker {broker_id} cannot be drained: {moves.text}")
        await carry_out(admin, moves)
        await until_away(admin, broker_id, timeout_s)
        return tuple(moves)

    moves = ask(drain)
    lines = [f"broker {broker_id} holds no partitions" + (", and held none" if not moves else "")]
    return CommandResult({"broker": broker_id, "moved": documents_of(moves)}, [*lines_of(moves), *lines])


@command.command("balance")
@timeout_option
@asks_cluster
def balance_command(ask: AskCluster, timeout_s: float) -> CommandResult:
    """Give each broker its share of the partitions.

    For brokers that have come later: topics that were there before are on the others. No partition gets more
    or fewer replicas. Brokers that were away lead again at once what they are preferred for.
    """
    from coterie.broker.placement.moving import moves_to_share

    async def balance(admin: Admin) -> tuple[ReplicaMove, ...]:
        found, topics = await cluster_and_topics(admin)
        brokers, moves = placeable(found), []
        wanted: dict[TopicPartition, Replicas] = {}
        for internal in (False, True):
            partitions = await settled(admin, [one for one in topics if one.internal is internal])
            moves += moves_to_share(partitions, brokers)
            wanted |= {one.name: one.replicas for one in partitions}
        wanted |= {move.name: move.after for move in moves}
        await carry_out(admin, moves)
        live = {one.broker_id for one in brokers if not one.fenced}
        await until_led(admin, {name: after for name, after in wanted.items() if after[0] in live}, timeout_s)
        return tuple(moves)

    moves = ask(balance)
    lines = [f"{counted(len(moves), 'partition')} moved" if moves else "each broker has its share already"]
    return CommandResult({"moved": documents_of(moves)}, [*lines_of(moves), *lines])


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


def placeable(found: ClusterInfo) -> list[Broker]:
    """Return the brokers of a cluster as replicas are placed on them."""
    from coterie.broker.placement.model import Broker

    return [Broker(one.broker_id, one.rack, fenced=one.fenced) for one in found.brokers]


async def carry_out(admin: Admin, moves: Sequence[ReplicaMove]) -> None:
    """Have partitions be moved. Raises `CoterieError` where brokers keep their partitions for themselves."""
    from coterie.client.errors import Unsupported

    if not moves:
        return
    try:
        await admin.alter_partition_reassignments({move.name: move.after for move in moves})
    except Unsupported as error:
        raise CoterieError(f"nothing is moved: {error}; {HELD_IN_FILES}") from error


async def until_away(admin: Admin, broker: int, timeout_s: float) -> None:
    """Wait until a broker is no replica and leads nothing. Raises `CoterieError` if that takes too long."""

    async def left(topics: Sequence[DescribedTopic]) -> int:
        return sum(broker in (*one.replicas, one.leader) for topic in topics for one in topic.partitions)

    await until_none(admin, left, timeout_s, f"on broker {broker}")


async def until_led(admin: Admin, wanted: Mapping[TopicPartition, Replicas], timeout_s: float) -> None:
    """Wait until partitions have these replicas, and the first one leads. Raises `CoterieError` as above."""

    async def left(topics: Sequence[DescribedTopic]) -> int:
        there = {one.name: one for one in placed(topics)}
        moved = [(there[name], after) for name, after in wanted.items() if name in there]
        late = [(one, after) for one, after in moved if (one.replicas, one.leader) != (after, after[0])]
        unled = [one.name for one, after in late if one.replicas == after]
        if unled:
            await admin.elect_leaders(unled)
        return len(late)

    await until_none(admin, left, timeout_s, "on their way")


async def until_none(
    admin: Admin, left: Callable[[Sequence[DescribedTopic]], Awaitable[int]], timeout_s: float, where: str
) -> None:
    """Wait until no partitions are left. Raises `CoterieError` where that takes too long."""
    end_s = asyncio.get_running_loop().time() + timeout_s
    while count := await left(await admin.list_topics(internal=True)):
        if asyncio.get_running_loop().time() >= end_s:
            again = "they go on moving; run the command again to wait for them"
            raise CoterieError(f"{counted(count, 'partition')} still {where} after {timeout_s:g} s; {again}")
        await asyncio.sleep(LOOK_EVERY_S)


def documents_of(moves: Sequence[ReplicaMove]) -> list[dict[str, Any]]:
    """Return moves for programs."""
    return [{**move.name._asdict(), "before": move.before, "after": move.after} for move in moves]


def lines_of(moves: Sequence[ReplicaMove]) -> Iterator[str]:
    """Yield for each broker which partitions come to it, and which it leads of those that it had."""
    gained = sorted({one for move in moves for one in move.after if one not in move.before})
    for broker_id in gained:
        names = [move.name for move in moves if broker_id in {*move.after} - {*move.before}]
        yield f"to broker {broker_id}: {partitions_text(by_topic(names))}"
    swaps = [move for move in moves if {*move.before} == {*move.after}]
    for broker_id in sorted({move.after[0] for move in swaps}):
        names = [move.name for move in swaps if move.after[0] == broker_id]
        yield f"led by broker {broker_id}, which had a replica: {partitions_text(by_topic(names))}"
    fewer = [move.name for move in moves if len(move.after) < len(move.before)]
    if fewer:
        yield f"with fewer replicas than before: {partitions_text(by_topic(fewer))}"


# -- remove


@command.command("remove")
@broker_argument
@asks_cluster
def remove_command(ask: AskCluster, broker_id: int) -> CommandResult:
    """Take a broker out of the cluster for good.

    It has to be stopped, and to hold no partitions: `coterie cluster drain` moves them. If it is started
    again it is a member as any other.
    """

    async def remove(admin: Admin) -> None:
        found, topics = await cluster_and_topics(admin)
        for one in found.brokers:
            if one.broker_id == broker_id and not one.fenced:
                raise CoterieError(f"broker {broker_id} runs, at {one.address}; stop it, and remove it then")
        _, replicas = counts_of(topics)
        if replicas[broker_id]:
            held = f"broker {broker_id} is a replica of {counted(replicas[broker_id], 'partition')}"
            raise CoterieError(f"{held}; `coterie cluster drain {broker_id}` moves them")
        if all(one.broker_id != broker_id for one in found.brokers):
            raise no_such_broker(broker_id, found)
        await admin.unregister_broker(broker_id)

    ask(remove)
    return CommandResult({"removed": broker_id}, [f"broker {broker_id} is removed"])


def no_such_broker(broker: int, found: ClusterInfo) -> CoterieError:
    """Return the error about an id that no broker has."""
    ids = ", ".join(str(one.broker_id) for one in sorted(found.brokers))
    return CoterieError(f"there is no broker {broker}; there are these: {ids}")


# -- upgrade


@command.command("upgrade")
@asks_cluster
def upgrade_command(ask: AskCluster) -> CommandResult:
    """Raise the cluster's level to that of its software.

    Of brokers over a database: after an upgrade of all of them. From then on they rely on what their software
    has that older software lacks, and older software is no member any more.
    """

    from coterie.broker.api.metadata import LEVEL_FEATURE

    async def upgrade(admin: Admin) -> FeatureLevels:
        found = await admin.describe_feature(LEVEL_FEATURE)
        if found.supported > found.finalized:
            await admin.update_feature(LEVEL_FEATURE, found.supported)
        return found

    found = ask(upgrade)
    after = max(found)
    said = f"the cluster is at level {after}"
    raised = after > found.finalized
    said += f", and was at {found.finalized}" if raised else ", as its software; nothing is raised"
    return CommandResult({"before": found.finalized, "after": after}, [said])
