"""`coterie topics`: create, list, describe and delete topics of any broker, add partitions, and try where
replicas go.

With --dry-run nothing is changed; with --brokers beside it no cluster is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import counted
from coterie.cli.cluster_state import lines_of_cut_off, said_of_outdated
from coterie.cli.hints import Family
from coterie.cli.numbers import WholeNumber
from coterie.cli.options import (
    AskCluster,
    CommandResult,
    Settings,
    asks_cluster,
    assigned,
    broker_options,
    complete_topic,
    output_option,
    topic_argument,
    topics_argument,
)
from coterie.cli.output import listing_deleted, say
from coterie.cli.tables import table
from coterie.cli.topics.placing import Placing, placing_options

if TYPE_CHECKING:
    from coterie.broker.placement.model import Broker, Layout
    from coterie.client.admin.admin import Admin


@click.group("topics", cls=Family)
def command() -> None:
    """Create, list, describe and delete topics; add partitions."""


@command.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics, such as __consumer_offsets.")
@asks_cluster
def list_command(ask: AskCluster, internal: bool) -> CommandResult:
    """List the topics of the cluster."""
    from coterie.cli.topics.texts import listed_document, listed_lines

    topics = ask(lambda admin: admin.list_topics(internal=internal))
    return CommandResult([listed_document(topic) for topic in topics], listed_lines(topics))


@command.command("describe")
@topics_argument
@asks_cluster
def describe_command(ask: AskCluster, topics: tuple[str, ...]) -> CommandResult:
    """Show topics' settings, leaders and replicas.

    Where no broker that answers can use its database that is said, and LEADER and IN SYNC are a dash.
    """
    from coterie.cli.topics.texts import topic_document, topic_lines

    async def describe(admin: Admin) -> Any:
        from coterie.client.admin.messages import Resource

        before = await lines_of_before(admin)
        found = await admin.describe_topics(topics)
        return before, [(found[name], await admin.describe_configs(Resource.topic(name))) for name in found]

    before, found = ask(describe, topics=topics)
    documents = [topic_document(*one, outdated=bool(before)) for one in found]
    _, *lines = [line for one in documents for line in ("", *topic_lines(one))]
    return CommandResult(documents, [*before, *lines])


async def lines_of_before(admin: Admin) -> list[str]:
    """Return the lines about what brokers tell where none of them can use its database; none where one can,
    or does not know of clusters: it is older than Kafka 2.8.
    """
    with suppress(CoterieError):
        found = await admin.describe_cluster()
        if said_of_outdated(found):
            return [*lines_of_cut_off(found)]
    return []


@command.command("offsets")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:0,2]...", shell_complete=complete_topic)
@click.option(
    "--at", metavar="TIME", help="Also show the first offset since TIME; UTC unless it names a zone."
)
@asks_cluster
def offsets_command(ask: AskCluster, topics: tuple[str, ...], at: str | None) -> CommandResult:
    """Show the first and the next offset of each partition."""
    from coterie.client.admin.resets import time_ms

    stamps: dict[str, str | int] = {"earliest": "earliest", "latest": "latest"}
    if at is not None:
        stamps["at"] = time_ms(at)

    async def offsets(admin: Admin) -> list[dict[str, Any]]:
        partitions = await admin.partitions_named(topics)
        found = {name: await admin.list_offsets(partitions, at=stamp) for name, stamp in stamps.items()}
        return [
            {**one._asdict(), **{name: listed[one].offset for name, listed in found.items()}}
            for one in partitions
        ]

    rows = ask(offsets, topics=[name.partition(":")[0] for name in topics])
    heads = ["TOPIC", "PARTITION", "EARLIEST", "LATEST", f"SINCE {at}"][: 2 + len(stamps)]
    # -1: no record is that young
    cells = [tuple(None if cell == -1 else cell for cell in row.values()) for row in rows]
    return CommandResult(rows, table(heads, cells))


@command.command("delete")
@topics_argument
@click.option("--if-exists", is_flag=True, help="Skip topics that do not exist.")
@broker_options
@output_option
def delete_command(topics: tuple[str, ...], if_exists: bool, broker: Settings, output: str) -> None:
    """Delete topics and their records.

    The offsets that groups have committed for them are deleted, too.
    """

    async def delete(admin: Admin) -> None:
        there = {topic.name for topic in await admin.list_topics(internal=True)}
        doomed = [name for name in dict.fromkeys(topics) if name in there or not if_exists]
        await admin.describe_topics(doomed)  # if one is not there, none is deleted
        for name in doomed:
            await admin.delete_topic(name)
            deleted.append(name)

    with listing_deleted("topic", output) as deleted:
        AskCluster(broker)(delete, topics=topics)
    if output != "json" and not deleted:
        say(["there is nothing to delete"])


@command.command("create")
@click.argument("topic")
@click.option(
    "--partitions", type=WholeNumber(min=1), metavar="N", help="Default: the broker's num.partitions."
)
@click.option(
    "--replication-factor", type=WholeNumber(min=1), metavar="N",
    help="Default: the broker's default.replication.factor.",
)  # fmt: skip
@click.option(
    "--config",
    "configs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of the topic; may be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@placing_options
@asks_cluster
def create_command(
    ask: AskCluster,
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    placing: Placing,
) -> CommandResult:
    """Create a topic.

    With --dry-run, only shows where the replicas would be.
    """
    if placing.by_hand is not None and (partitions or replication_factor):
        raise click.UsageError("--replica-assignment says how many: leave out the numbers")
    count, factor, settings = partitions or 1, replication_factor or 1, assigned(configs, "--config")
    if placing.alone:
        brokers = placing.described()
        return layout_result(topic, placing.layout(brokers, total=count, factor=factor), brokers)

    async def create(admin: Admin) -> CommandResult:
        if if_not_exists and topic in {one.name for one in await admin.list_topics(internal=True)}:
            return CommandResult({"topic": topic, "created": False}, [f"topic {topic} is there already"])
        if placing.by_cluster:
            return created_result(
                topic,
                await admin.create_topic(
                    topic, partitions=partitions, replication_factor=replication_factor, configs=settings
                ),
            )
        brokers = await placing.registered(admin)
        layout = placing.layout(brokers, total=count, factor=factor)
        created = await admin.create_topic(
            topic, layout=layout, configs=settings, validate_only=placing.dry_run
        )
        return layout_result(topic, layout, brokers) if placing.dry_run else created_result(topic, created)

    result: CommandResult = ask(create)
    return result


@command.command("add-partitions")
@topic_argument
@click.option(
    "--total", type=WholeNumber(min=1), metavar="N", required=True,
    help="The number of partitions that the topic is to have in all.",
)  # fmt: skip
@click.option(
    "--existing",
    metavar="0:1,1:2",
    help="With --brokers: the replicas of the partitions that the topic has already.",
)
@placing_options
@asks_cluster
def add_partitions_command(
    ask: AskCluster, topic: str, total: int, existing: str | None, placing: Placing
) -> CommandResult:
    """Add partitions to a topic.

    Records with a key may go to another partition from then on.
    """
    if placing.alone != (existing is not None):
        raise click.UsageError("give --existing and --brokers together, to place without a cluster")
    if existing is not None:
        from coterie.broker.placement.manual import layout_of

        brokers, there = placing.described(), layout_of(existing)
        return layout_result(topic, grown(placing, brokers, there, total), brokers, first=len(there))

    async def grow(admin: Admin) -> CommandResult:
        there = (await admin.describe_topics([topic]))[topic].layout
        if placing.by_cluster:
            await admin.create_partitions(topic, total=total)
        else:
            brokers = await placing.registered(admin)
            added = grown(placing, brokers, there, total)
            await admin.create_partitions(topic, total=total, layout=added, validate_only=placing.dry_run)
            if placing.dry_run:
                return layout_result(topic, added, brokers, first=len(there))
        return CommandResult(
            {"topic": topic, "partitions": total}, [f"topic {topic} has {total} partitions now"]
        )

    result: CommandResult = ask(grow, topics=[topic])
    return result


def grown(placing: Placing, brokers: Sequence[Broker], there: Layout, total: int) -> Layout:
    """Return the layout of the partitions that a topic gets."""
    if total <= len(there):
        raise CoterieError(
            f"the topic has {counted(len(there), 'partition')}; --total has to be more than that"
        )
    return placing.layout(brokers, existing=there, total=total, factor=len(there[0]))


def layout_result(topic: str, layout: Layout, brokers: Sequence[Broker], *, first: int = 0) -> CommandResult:
    """Return a layout that is only shown."""
    from coterie.cli.topics.texts import layout_document, layout_lines

    document = layout_document(topic, layout, brokers, first=first)
    return CommandResult(document, layout_lines(document))


def created_result(topic: str, created: Any) -> CommandResult:
    """Return the numbers of a topic that was created."""
    known = {"partitions": created.partitions, "replication_factor": created.replication_factor}
    numbers = f"{counted(created.partitions, 'partition')}, replication factor {created.replication_factor}"
    return CommandResult(
        {"topic": topic, "created": True, **known}, [f"topic {topic} is created with {numbers}"]
    )
