"""`coterie cluster`: the cluster and its brokers, Coterie's or Apache Kafka's. Brokers are given their share,
and are taken out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import counted
from coterie.base.topic_names import STORY_TOPIC
from coterie.cli.cluster_state import (
    brokers_text,
    busy,
    cluster_and_topics,
    cluster_to_change,
    counts_of,
    lines_of_cut_off,
    lines_of_one_address,
    lines_without_leader,
    said_of_outdated,
    what_is_wrong,
    without_leader,
)
from coterie.cli.hints import FamilyWithDefault
from coterie.cli.moves import (
    Moved,
    carry_out,
    insist_on_moves,
    kept,
    moves_of,
    moves_stopped,
    placed,
    settled,
    until_away,
    until_led,
)
from coterie.cli.numbers import Number, WholeNumber
from coterie.cli.options import AskCluster, CommandResult, asks_cluster, complete_topic, names_in_cluster
from coterie.cli.output import saying_what_is_left
from coterie.cli.tables import by_topic, partitions_text, table

if TYPE_CHECKING:
    from coterie.base.ids import TopicPartition
    from coterie.broker.placement.model import Broker
    from coterie.broker.placement.moving import PlacedPartition, ReplicaMove
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.messages import ClusterInfo, DescribedTopic, FeatureLevels

TIMEOUT_S = 60


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
@click.option(
    "--check",
    is_flag=True,
    help="End with exit code 1 where a broker is fenced or cannot use its database, two have one address, or"
    " a partition has no leader.",
)
@asks_cluster
def describe_command(ask: AskCluster, check: bool) -> CommandResult:
    """Show the cluster's id, its controller and its brokers.

    LEADS and REPLICAS count partitions, those of internal topics as well. While some have no leader LEADS is
    a dash where it may be theirs. Where the broker that is asked cannot use its database, another is
    asked, and that is said; where none can, STATE and LEADS are a dash of all.
    """
    found, topics = ask(cluster_and_topics)
    wrong = "; ".join(what_is_wrong(found, topics)) if check else ""
    return described(found, topics)._replace(wrong=wrong)


def described(found: ClusterInfo, topics: Sequence[DescribedTopic]) -> CommandResult:
    """Return the cluster as it is shown: of what was before neither states nor leaders are."""
    outdated = bool(said_of_outdated(found))
    leads, replicas = counts_of(topics)
    without = without_leader(found, topics)
    brokers = [
        {
            "broker": one.broker_id,
            "host": one.address[0],
            "port": one.address[1],
            "rack": one.rack,
            "state": None if outdated else "fenced" if one.fenced else "live",
            "leads": None
            if outdated
            else leads[one.broker_id] or (None if any(without) and not one.fenced else 0),
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
            "outdated": outdated,
            "brokers": brokers,
            "without_leader": None if outdated else sum(without),
        },
        [
            f"cluster {found.cluster_id}",
            "",
            *lines_of_cut_off(found),
            *table(head, rows),
            *lines_of_one_address(found),
            *lines_of_idle(idle_brokers(found, topics)),
            *(() if outdated else lines_without_leader(without)),
        ],
    )


def idle_brokers(found: ClusterInfo, topics: Sequence[DescribedTopic]) -> list[int]:
    """Return the live brokers that lead nothing and would by `balance`: new ones, or drained. One that was
    away is given back by itself what it is preferred for.
    """
    leads, _ = counts_of(topics)
    idle = {one.broker_id for one in found.brokers if not one.fenced and not leads[one.broker_id]}
    if not idle or found.controller_id < 0:
        return []
    shares = [moves_to_balance(placed(some), placeable(found), None) for some in shared_apart(topics)]
    return sorted(idle & {move.after[0] for moves in shares for move in moves})


def lines_of_idle(broker_ids: Sequence[int]) -> Iterator[str]:
    """Yield lines about brokers that lead nothing: what gives them their share, or takes them out."""
    if broker_ids:
        lead, each = ("lead", "each") if len(broker_ids) > 1 else ("leads", "it")
        yield ""
        yield f"{brokers_text(broker_ids)} {lead} nothing: `coterie cluster balance` gives {each} its share;"
        yield "  one that is to go is stopped, and `coterie cluster remove` takes it out"


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
broker_arguments = click.argument(
    "broker_ids",
    metavar="BROKER ...",
    nargs=-1,
    required=True,
    type=WholeNumber(min=0),
    shell_complete=names_in_cluster(brokers_known),
)
timeout_option = click.option(
    "--timeout", "timeout_s", metavar="SECONDS", type=Number(min=0), default=TIMEOUT_S,
    show_default=True, help="How long to wait for the partitions to have moved.",
)  # fmt: skip

dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would move, and move nothing.")
NOTHING_MOVED = "nothing is moved; without --dry-run this would be done:"


@command.command("drain")
@broker_arguments
@timeout_option
@dry_run_option
@asks_cluster
def drain_command(
    ask: AskCluster, broker_ids: tuple[int, ...], timeout_s: float, dry_run: bool
) -> CommandResult:
    """Move all partitions away from brokers.

    Others get their replicas and lead what they lead. They may run or not. While one runs new topics, and
    what leaves another broker, are placed on it: name all that are to go in one command. Stop them
    afterwards, and `coterie cluster remove` takes them out for good.
    """
    from coterie.broker.placement.moving import moves_away

    leaving = sorted({*broker_ids})

    async def drain(admin: Admin) -> tuple[Moved, set[int], set[int]]:
        found, topics = await cluster_to_change(admin)
        for one in leaving:
            if all(broker.broker_id != one for broker in found.brokers):
                raise no_such_broker(one, found)
        moves = moves_away(leaving, await settled(admin, topics), placeable(found))
        if not isinstance(moves, list):
            raise CoterieError(f"{brokers_text(leaving)} cannot be drained: {moves.text}")
        held = {broker for broker, count in counts_of(topics)[1].items() if count}
        await carry_out(admin, moves, dry_run=dry_run)
        if dry_run:
            return Moved(moves, []), held, busy(topics)
        where = f"on {brokers_text(leaving)}"
        there = kept(topics, await until_away(admin, leaving, moves, topics, timeout_s, where))
        return moves_of(moves, there), held, busy(topics)

    with saying_what_is_left(lambda: moves_stopped(dry_run=dry_run)):
        (moves, deleted), held, had = ask(drain)
    lines = [NOTHING_MOVED] if dry_run else []
    lines += [*lines_of(moves), *lines_of_fewer(moves), *lines_of_empty(moves, held, leaving)]
    lines += [*lines_of_deleted(deleted), line_of_drained(leaving, had, dry_run=dry_run)]
    return CommandResult({"brokers": leaving, "moved": documents_of(moves), "dry_run": dry_run}, lines)


def line_of_drained(leaving: Sequence[int], had: Collection[int], *, dry_run: bool) -> str:
    """Return the line about brokers that are drained, or would be, and which of them are none of those that
    `had` some before.
    """
    empty = [one for one in leaving if one not in had]
    line = f"{brokers_text(leaving)} {'would hold' if dry_run else hold(leaving)} no partitions"
    if not empty:
        return line
    return f"{line}, and held none" if empty == leaving else f"{line}; {brokers_text(empty)} held none"


def lines_of_fewer(moves: Sequence[ReplicaMove]) -> Iterator[str]:
    """Yield lines about partitions that have fewer replicas than before, and how they get them back."""
    fewer = [move for move in moves if len(move.after) < len(move.before)]
    if fewer:
        yield f"with fewer replicas than before: {partitions_text(by_topic(move.name for move in fewer))}"
    had: Counter[str] = Counter()
    for move in fewer:
        had[move.name.topic] = max(had[move.name.topic], len(move.before))
    for most in sorted({*had.values()}):
        topics = " ".join(f"--topic {topic}" for topic in sorted(had) if had[topic] == most)
        back = f"`coterie cluster balance --replicas {most} {topics}`"
        yield f"  once {most} brokers live {back} gives them back"


def lines_of_empty(
    moves: Sequence[ReplicaMove], held: Collection[int], leaving: Sequence[int]
) -> Iterator[str]:
    """Yield a line for each broker that has got partitions and `held` none: new, or drained before."""
    got = {one for move in moves for one in move.after} - {*held}
    for broker in sorted(got):
        together = " ".join(map(str, (broker, *leaving)))
        yield f"broker {broker} held none before; if it is to stay empty: `coterie cluster drain {together}`"


class Balanced(NamedTuple):
    """What `balance` has done, and what it could not."""

    moves: list[ReplicaMove]
    elected: dict[TopicPartition, int]
    """The preferred leaders of partitions that did not move and that others led."""
    waiting: Counter[int]
    """Of brokers that are fenced, or not there at all, how many partitions each is preferred to lead."""
    deleted: Sequence[TopicPartition] = ()
    """What was to move, and is not there any more."""


@command.command("balance")
@click.option(
    "--replicas", "replicas", metavar="N", type=WholeNumber(min=1),
    help="Give partitions with fewer replicas than N as many.",
)  # fmt: skip
@click.option(
    "--topic", "only_topics", metavar="TOPIC", multiple=True, shell_complete=complete_topic,
    help="With --replicas: those of this topic alone; may be repeated.",
)  # fmt: skip
@timeout_option
@dry_run_option
@asks_cluster
def balance_command(
    ask: AskCluster, replicas: int | None, only_topics: tuple[str, ...], timeout_s: float, dry_run: bool
) -> CommandResult:
    """Give each broker its share of the partitions.

    For brokers that have come later: topics that were there before are on the others. No partition gets
    fewer replicas, nor more without --replicas, which is for all topics unless --topic names some. Brokers
    that were away lead again at once what they are preferred for; those that are away (fenced) keep what they
    have.
    """
    if only_topics and replicas is None:
        raise click.UsageError("--topic says of which topics --replicas N is: give that, too")
    from coterie.broker.placement.moving import moved

    async def balance(admin: Admin) -> Balanced:
        if only_topics:
            await admin.describe_topics(only_topics)  # if one is not there, nothing is moved
        found, topics = await cluster_to_change(admin)
        brokers, partitions, moves = placeable(found), [], []
        for shared in shared_apart(topics):
            some = await settled(admin, shared)
            moves += moves_to_balance(some, brokers, replicas, only_topics)
            partitions += some
        balanced = balanced_by(moves, partitions, brokers)
        await carry_out(admin, moves, dry_run=dry_run)
        if dry_run:
            return balanced
        wanted = {one.name: one.replicas for one in moved(partitions, moves)}
        live = {one.broker_id for one in brokers if not one.fenced}
        led = {name: after for name, after in wanted.items() if after[0] in live}
        there = kept(topics, await until_led(admin, led, topics, timeout_s))
        there_moves, deleted = moves_of(moves, there)
        return balanced._replace(moves=there_moves, deleted=deleted)

    with saying_what_is_left(lambda: moves_stopped(dry_run=dry_run)):
        found = ask(balance, topics=only_topics)
    elected = [{**name._asdict(), "leader": leader} for name, leader in found.elected.items()]
    waiting = [{"broker": one, "preferred": count} for one, count in found.waiting.items()]
    return CommandResult(
        {"moved": documents_of(found.moves), "elected": elected, "away": waiting, "dry_run": dry_run},
        [*lines_of_balanced(found, dry_run=dry_run)],
    )


def shared_apart(topics: Sequence[DescribedTopic]) -> tuple[list[DescribedTopic], ...]:
    """Return the topics of which each broker gets its share by itself: those of users, internal ones, and the
    story, of which a broker has to lead a partition to write any.
    """
    story = [one for one in topics if one.name == STORY_TOPIC]
    rest = [one for one in topics if one.name != STORY_TOPIC]
    return [one for one in rest if not one.internal], [one for one in rest if one.internal], story


def moves_to_balance(
    partitions: Sequence[PlacedPartition],
    brokers: Sequence[Broker],
    replicas: int | None,
    only_topics: Collection[str] = (),
) -> list[ReplicaMove]:
    """Return the moves after which partitions, or where there are `only_topics` those of these, have so many
    replicas, and brokers their share. Raises `CoterieError` where too few brokers live.
    """
    from coterie.broker.placement.moving import joined, moved, moves_to_more, moves_to_share

    more = moves_to_more(replicas, partitions, brokers, only_topics) if replicas else []
    if not isinstance(more, list):
        raise CoterieError(more.text)
    return joined(more, moves_to_share(moved(partitions, more), brokers))


def balanced_by(
    moves: list[ReplicaMove], partitions: Sequence[PlacedPartition], brokers: Sequence[Broker]
) -> Balanced:
    """Return the Balanced that moves make of partitions, each led by its preferred leader if that lives."""
    from coterie.broker.placement.moving import moved

    live = {one.broker_id for one in brokers if not one.fenced}
    names = {move.name for move in moves}
    elected = {
        one.name: one.replicas[0]
        for one in partitions
        if one.name not in names and one.replicas and one.replicas[0] in live - {one.leader}
    }
    preferred = (one.replicas[0] for one in moved(partitions, moves) if one.replicas)
    waiting = Counter(one for one in preferred if one not in live)
    return Balanced(moves, elected, waiting)


def lines_of_balanced(found: Balanced, *, dry_run: bool = False) -> Iterator[str]:
    """Yield lines about what has moved, what is led by its preferred leader now, and what waits for a fenced
    broker; or about what would be so.
    """
    if dry_run and (found.moves or found.elected):
        yield NOTHING_MOVED
    yield from lines_of(found.moves)
    more = [move.name for move in found.moves if len(move.after) > len(move.before)]
    if more:
        yield f"with more replicas than before: {partitions_text(by_topic(more))}"
    for broker in sorted({*found.elected.values()}):
        names = [name for name, leader in found.elected.items() if leader == broker]
        moment = "then" if dry_run else "now"
        yield f"led by broker {broker} {moment}, their preferred leader: {partitions_text(by_topic(names))}"
    if found.moves:
        yield f"{counted(len(found.moves), 'partition')} {'would move' if dry_run else 'moved'}"
    elif not found.elected and not found.deleted:
        yield f"each {'live ' if found.waiting else ''}broker has its share already"
    yield from lines_of_deleted(found.deleted)
    for broker, count in sorted(found.waiting.items()):
        yield f"broker {broker} is away, and is given {counted(count, 'partition')} back when it returns;"
        yield f"  `coterie cluster drain {broker}` has others lead them for good"


def placeable(found: ClusterInfo) -> list[Broker]:
    """Return the brokers of a cluster as replicas are placed on them."""
    from coterie.broker.placement.model import Broker

    return [Broker(one.broker_id, one.rack, fenced=one.fenced) for one in found.brokers]


def documents_of(moves: Sequence[ReplicaMove]) -> list[dict[str, Any]]:
    """Return moves for programs."""
    return [{**move.name._asdict(), "before": move.before, "after": move.after} for move in moves]


def lines_of(moves: Sequence[ReplicaMove]) -> Iterator[str]:
    """Yield for each broker which partitions come to it, and which it comes to lead of those that it had."""
    gained = sorted({one for move in moves for one in move.after if one not in move.before})
    for broker_id in gained:
        names = [move.name for move in moves if broker_id in {*move.after} - {*move.before}]
        yield f"to broker {broker_id}: {partitions_text(by_topic(names))}"
    led = [move for move in moves if move.after[0] in move.before[1:]]
    for broker_id in sorted({move.after[0] for move in led}):
        names = [move.name for move in led if move.after[0] == broker_id]
        yield f"led by broker {broker_id}, which had a replica: {partitions_text(by_topic(names))}"


def lines_of_deleted(names: Sequence[TopicPartition]) -> Iterator[str]:
    """Yield a line about what was to move, and was deleted meanwhile."""
    if names:
        yield f"deleted meanwhile: {partitions_text(by_topic(names))}"


def hold(broker_ids: Sequence[int]) -> str:
    """Return the verb behind `brokers_text`."""
    return "hold" if len(broker_ids) > 1 else "holds"


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
        found, topics = await cluster_to_change(admin)
        _, replicas = counts_of(topics)
        held = f"is a replica of {counted(replicas[broker_id], 'partition')}"
        drain = f"`coterie cluster drain {broker_id}`"
        for one in found.brokers:
            if one.broker_id == broker_id and not one.fenced:
                await insist_on_moves(admin)
                runs = f"broker {broker_id} runs, at {one.address}"
                if replicas[broker_id]:
                    runs += f", and {held}: {drain} moves them first"
                raise CoterieError(f"{runs}; stop it, and remove it then")
        if replicas[broker_id]:
            raise CoterieError(f"broker {broker_id} {held}; {drain} moves them")
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
