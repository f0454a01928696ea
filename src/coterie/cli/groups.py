"""`coterie groups`: list, describe, read the story of, and take members out of consumer groups.

Talks to any broker, Coterie's or Apache Kafka's; the story is kept by Coterie's alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from coterie.client.cluster import Cluster
    from coterie.client.groups import DescribedGroup

__all__ = ["command"]

TIMEOUT_MS = 15_000

bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    envvar="COTERIE_BOOTSTRAP",
    show_default=True,
    show_envvar=True,
    help="A broker to ask, or several with commas.",
)
output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)


@click.group("groups")
def command() -> None:
    """Look at consumer groups and take members out of them."""


@command.command("list")
@bootstrap_option
@output_option
def list_command(bootstrap: str, output: str) -> None:
    """List the groups of the cluster."""
    from coterie.cli.tables import table
    from coterie.client.groups import GroupAdmin

    groups = with_cluster(bootstrap, lambda cluster: GroupAdmin(cluster).listed())
    if output == "json":
        say_json([group._asdict() for group in groups])
        return
    rows = [(one.group_id, one.state, one.group_type, one.protocol_type) for one in groups]
    say(table(("GROUP", "STATE", "TYPE", "PROTOCOL"), rows) if rows else ["There are no groups."])


@command.command("describe")
@click.argument("group")
@click.option("--members", is_flag=True, help="Show the members instead of the partitions.")
@bootstrap_option
@output_option
def describe_command(group: str, members: bool, bootstrap: str, output: str) -> None:
    """Show a group: its state, and per partition what is committed, the lag and the owner."""
    from coterie.client.groups import GroupAdmin

    async def ask(cluster: Cluster) -> tuple[DescribedGroup, dict[Any, int], dict[Any, int]]:
        admin = GroupAdmin(cluster)
        described = await admin.described(group)
        committed = {} if members else await admin.committed(group)
        ends = {} if members else await admin.ends({**committed, **described.owners()})
        return described, committed, ends

    described, committed, ends = with_cluster(bootstrap, ask)
    if output == "json":
        from coterie.cli.group_texts import group_document

        say_json(group_document(described, None if members else (committed, ends)))
        return
    from coterie.cli.group_texts import headline, member_lines, partition_lines

    say([headline(described), ""])
    say(member_lines(described) if members else partition_lines(described, committed, ends))


@command.command("story")
@click.argument("group")
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="Only the last N entries.")
@click.option("--follow", is_flag=True, help="Go on as it happens, until Ctrl-C.")
@bootstrap_option
@output_option
def story_command(group: str, last: int | None, follow: bool, bootstrap: str, output: str) -> None:
    """Tell what moved a group, why and whom, and what each rebalance led to.

    JSON comes a record a line, as the topic __group_story holds it.
    """
    from coterie.base.errors import CoterieError

    def tell(document: dict[str, Any]) -> None:
        if output == "json":
            say_json(document)
            return
        from coterie.cli.group_texts import story_lines

        say(story_lines(document, coloured=True))

    try:
        told = with_cluster(bootstrap, lambda cluster: _story(cluster, group, last, follow, tell))
    except KeyboardInterrupt:
        return
    if not told:
        raise CoterieError(f"nothing is told of a group {group}; `coterie groups list` lists the groups")


async def _story(
    cluster: Cluster, group: str, last: int | None, follow: bool, tell: Callable[[dict[str, Any]], None]
) -> int:
    """Tell the story up to now, its last entries only if so many are asked for, and then what follows."""
    from collections import deque

    from coterie.client.story import StoryReader

    reader = await StoryReader.open(cluster, group)
    entries: deque[dict[str, Any]] = deque(maxlen=last)
    async for document in reader.until_now():
        entries.append(document)
    for document in entries:
        tell(document)
    told = len(entries)
    while follow:
        for document in await reader.more():
            tell(document)
            told += 1
    return told


@command.command("evict")
@click.argument("group")
@click.option("--member", metavar="ID", help="The member's id, as `describe --members` shows it.")
@click.option("--instance", metavar="ID", help="The instance id of a static member.")
@click.option("--reason", metavar="TEXT", default="", help="Why; the story tells it.")
@bootstrap_option
@output_option
def evict_command(
    group: str, member: str | None, instance: str | None, reason: str, bootstrap: str, output: str
) -> None:
    """Take one member out of a group; its partitions go to the others.

    A client that still runs joins again by itself: stop it first if it shall stay out.
    """
    from coterie.client.groups import GroupAdmin

    if bool(member) == bool(instance):
        raise click.UsageError("say who is to go: --member ID or --instance ID")

    def evict(cluster: Cluster) -> Awaitable[None]:
        admin = GroupAdmin(cluster)
        return admin.evict(group, member_id=member or "", instance_id=instance, reason=reason)

    with_cluster(bootstrap, evict)
    if output == "json":
        say_json({"group": group, "member_id": member, "instance_id": instance, "evicted": True})
        return
    who = f"member {member}" if member else f"the member with instance id {instance}"
    say([f"{who} is out of group {group}"])


# -- how


def with_cluster(bootstrap: str, ask: Callable[[Cluster], Awaitable[Any]]) -> Any:
    """Return what `ask` finds out from the cluster. A broker that is not there is told of at once."""
    from coterie.client.addresses import addresses_of
    from coterie.client.cluster import Cluster

    async def run() -> Any:
        cluster = Cluster(
            addresses_of(bootstrap), client_id="coterie-groups", request_timeout_ms=TIMEOUT_MS,
            api_timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        try:
            await cluster.reach()
            return await ask(cluster)
        finally:
            await cluster.close()

    return asyncio.run(run())


def say(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


def say_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))
