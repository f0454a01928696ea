"""`coterie topics`: create, list, describe and delete topics of any broker, add partitions, and try where
replicas go.

With --dry-run nothing is changed; with --brokers beside it no cluster is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.asking import (
    Settings,
    broker_options,
    output_option,
    say,
    say_json,
    telling_deleted,
    with_admin,
)
from coterie.cli.topics.placing import Placing, placing_options

if TYPE_CHECKING:
    from coterie.broker.placement.model import Broker, Layout
    from coterie.client.admin.admin import Admin


@click.group("topics")
def command() -> None:
    """Look at topics, create and delete them, and add partitions."""


@command.command("list")
@click.option("--internal", is_flag=True, help="With those that brokers keep their own state in.")
@broker_options
@output_option
def list_command(internal: bool, broker: Settings, output: str) -> None:
    """List the topics of the cluster."""
    from coterie.cli.topics.texts import listed_document, listed_lines

    topics = with_admin(broker, lambda admin: admin.list_topics(internal=internal))
    if output == "json":
        say_json([listed_document(topic) for topic in topics])
        return
    say(listed_lines(topics))


@command.command("describe")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@broker_options
@output_option
def describe_command(topics: tuple[str, ...], broker: Settings, output: str) -> None:
    """Show topics' settings, leaders and replicas."""
    from coterie.cli.topics.texts import topic_document, topic_lines

    async def ask(admin: Admin) -> Any:
        from coterie.client.admin.messages import Resource

        found = await admin.describe_topics(topics)
        return [(found[name], await admin.describe_configs(Resource.topic(name))) for name in found]

    found = with_admin(broker, ask)
    if output == "json":
        say_json([topic_document(topic, configs) for topic, configs in found])
        return
    for at, (topic, configs) in enumerate(found):
        say(["", *topic_lines(topic, configs)] if at else topic_lines(topic, configs))


@command.command("offsets")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:0,2]...")
@click.option("--at", metavar="TIME", help="Also the first record since TIME; UTC if it names no zone.")
@broker_options
@output_option
def offsets_command(topics: tuple[str, ...], at: str | None, broker: Settings, output: str) -> None:
    """Show the first and the next offset of each partition."""
    from coterie.cli.tables import table
    from coterie.client.admin.resets import time_ms

    stamps: dict[str, str | int] = {"earliest": "earliest", "latest": "latest"}
    if at is not None:
        stamps["at"] = time_ms(at)

    async def ask(admin: Admin) -> list[dict[str, Any]]:
        partitions = await admin.partitions_named(topics)
        found = {name: await admin.list_offsets(partitions, at=stamp) for name, stamp in stamps.items()}
        return [
            {**one._asdict(), **{name: listed[one].offset for name, listed in found.items()}}
            for one in partitions
        ]

    rows = with_admin(broker, ask)
    if output == "json":
        say_json(rows)
        return
    heads = ["TOPIC", "PARTITION", "EARLIEST", "LATEST", f"SINCE {at}"][: 2 + len(stamps)]
    # -1: nothing is that young
    say(table(heads, [tuple(None if cell == -1 else cell for cell in row.values()) for row in rows]))


@command.command("delete")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--if-exists", is_flag=True, help="It is no mistake if a topic is not there.")
@broker_options
@output_option
def delete_command(topics: tuple[str, ...], if_exists: bool, broker: Settings, output: str) -> None:
    """Delete topics and their records.

    What groups have committed for them goes, too.
    """

    async def delete(admin: Admin) -> None:
        there = {topic.name for topic in await admin.list_topics(internal=True)}
        doomed = [name for name in dict.fromkeys(topics) if name in there or not if_exists]
        await admin.describe_topics(doomed)  # if one is not there, none is deleted
        for name in doomed:
            await admin.delete_topic(name)
            deleted.append(name)

    with telling_deleted("topic", output) as deleted:
        with_admin(broker, delete)
    if output != "json" and not deleted:
        say(["there is nothing to delete"])


@command.command("create")
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(min=1), help="How many; else the broker's default.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Replicas of each; else likewise.")
@click.option("--config", "configs", metavar="NAME=VALUE", multiple=True, help="A setting of the topic.")
@click.option("--if-not-exists", is_flag=True, help="It is no mistake if the topic is there already.")
@placing_options
@broker_options
@output_option
def create_command(
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    placing: Placing,
    broker: Settings,
    output: str,
) -> None:
    """Create a topic.

    With --dry-run it is only shown where its replicas would go.
    """
    if placing.by_hand is not None and (partitions or replication_factor):
        raise click.UsageError("--replica-assignment says how many: leave out the numbers")
    count, factor, settings = partitions or 1, replication_factor or 1, settings_of(configs)
    if placing.alone:
        brokers = placing.described()
        say_layout(topic, placing.layout(brokers, total=count, factor=factor), brokers, output)
        return

    async def create(admin: Admin) -> Any:
        if if_not_exists and topic in {one.name for one in await admin.list_topics(internal=True)}:
            return None
        if placing.by_cluster:
            return await admin.create_topic(
                topic, partitions=partitions, replication_factor=replication_factor, configs=settings
            )
        brokers = await placing.registered(admin)
        layout = placing.layout(brokers, total=count, factor=factor)
        created = await admin.create_topic(
            topic, layout=layout, configs=settings, validate_only=placing.dry_run
        )
        return (layout, brokers) if placing.dry_run else created

    done = with_admin(broker, create)
    if done is not None and placing.dry_run:
        layout, brokers = done
        say_layout(topic, layout, brokers, output)
    else:
        say_created(topic, done, output)


@command.command("add-partitions")
@click.argument("topic")
@click.option("--total", type=click.IntRange(min=1), required=True, help="How many it is to have then.")
@click.option(
    "--existing",
    metavar="0:1,1:2",
    help="With --brokers: the replicas of the partitions that the topic is to have already.",
)
@placing_options
@broker_options
@output_option
def add_partitions_command(
    topic: str, total: int, existing: str | None, placing: Placing, broker: Settings, output: str
) -> None:
    """Add partitions to a topic.

    Keys go to other partitions from then on.
    """
    if placing.alone != (existing is not None):
        raise click.UsageError("--existing and --brokers together describe what no cluster is asked about")
    if existing is not None:
        from coterie.broker.placement.manual import layout_of

        brokers, there = placing.described(), layout_of(existing)
        say_layout(topic, grown(placing, brokers, there, total), brokers, output, first=len(there))
        return

    async def grow(admin: Admin) -> Any:
        there = (await admin.describe_topics([topic]))[topic].layout
        if placing.by_cluster:
            await admin.create_partitions(topic, total=total)
            return None
        brokers = await placing.registered(admin)
        added = grown(placing, brokers, there, total)
        await admin.create_partitions(topic, total=total, layout=added, validate_only=placing.dry_run)
        return added, brokers, len(there)

    done = with_admin(broker, grow)
    if placing.dry_run:
        added, brokers, first = done
        say_layout(topic, added, brokers, output, first=first)
    elif output == "json":
        say_json({"topic": topic, "partitions": total})
    else:
        say([f"topic {topic} has {total} partitions now"])


def grown(placing: Placing, brokers: Sequence[Broker], there: Layout, total: int) -> Layout:
    """Return the layout of the partitions that a topic gets."""
    from coterie.base.errors import CoterieError

    if total <= len(there):
        raise CoterieError(f"the topic has {len(there)} partitions; --total has to be more than that")
    return placing.layout(brokers, existing=there, total=total, factor=len(there[0]))


# -- how


def settings_of(configs: Sequence[str], *, option: str = "--config") -> dict[str, str]:
    """Return NAME=VALUE words as a mapping."""
    settings = {}
    for word in configs:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise click.UsageError(f"{option} {word!r} is not NAME=VALUE")
        settings[name] = value
    return settings


def say_layout(topic: str, layout: Layout, brokers: Sequence[Broker], output: str, *, first: int = 0) -> None:
    """Print where replicas would go."""
    from coterie.cli.topics.texts import layout_document, layout_lines

    if output == "json":
        say_json(layout_document(topic, layout, brokers, first=first))
        return
    say(layout_lines(layout, brokers, first=first))


def say_created(topic: str, created: Any, output: str) -> None:
    """Print what became of a topic; None if it was there before."""
    if output == "json":
        known = {} if created is None else {
            "partitions": created.partitions, "replication_factor": created.replication_factor
        }  # fmt: skip
        say_json({"topic": topic, "created": created is not None, **known})
    elif created is None:
        say([f"topic {topic} is there already"])
    else:
        replicas = f"replication factor {created.replication_factor}"
        say([f"topic {topic} is created with {created.partitions} partitions, {replicas}"])
