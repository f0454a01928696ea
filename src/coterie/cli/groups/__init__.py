"""`coterie groups`: list, describe, reset, delete, read the story of, and take members out of groups.

Talks to any broker, Coterie's or Apache Kafka's; the story is kept by Coterie's alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.asking import (
    Settings,
    broker_options,
    group_argument,
    known_ones,
    output_option,
    say,
    say_json,
    telling_deleted,
    when_output_closes,
    with_admin,
)
from coterie.cli.groups.offsets import delete_offsets_command, reset_command
from coterie.cli.groups.overview import overview_command

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.groups import DescribedGroup
    from coterie.client.net.cluster import Cluster
    from coterie.story.cost import Cost

# Kafka's, of groups of all types; the state of a classic one comes first.
STATES = (
    "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead",
    "Assigning", "Reconciling", "NotReady", "Unknown",
)  # fmt: skip
TYPES = ("classic", "consumer", "share", "streams")
AWAY_S = 1  # between two looks at a broker that does not answer


class GroupCommands(click.Group):
    """`coterie groups` without a command is `coterie groups overview`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {text for one in overview_command.params for text in one.opts}
        known = {*self.commands, *ctx.help_option_names}
        alone = not args or args[0].partition("=")[0] in options
        if alone and not known & {*args} and not ctx.resilient_parsing:
            args = [overview_command.name or "", *args]
        return super().parse_args(ctx, args)


@click.group("groups", cls=GroupCommands)
def command() -> None:
    """Show consumer groups, reset offsets, evict members."""


@command.command("list")
@click.option("--state", "states", metavar="STATE", multiple=True, help="Only those in it, as Empty.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only those of it, as classic.")
@broker_options
@output_option
def list_command(states: tuple[str, ...], types: tuple[str, ...], broker: Settings, output: str) -> None:
    """List the groups of the cluster."""
    from coterie.cli.tables import table

    states, types = known_ones("--state", states, STATES), known_ones("--type", types, TYPES)
    groups = with_admin(broker, lambda admin: admin.list_groups(states=states, types=types))
    if output == "json":
        say_json([group._asdict() for group in groups])
        return
    rows = [(one.group_id, one.state, one.group_type, one.protocol_type) for one in groups]
    say(table(("GROUP", "STATE", "TYPE", "PROTOCOL"), rows) if rows else ["There are no groups."])


@command.command("describe")
@group_argument
@click.option("--members", is_flag=True, help="Show the members instead of the partitions.")
@click.option(
    "--last-commit",
    is_flag=True,
    help="Also when each offset was committed, read from __consumer_offsets: takes as long as that is large.",
)
@broker_options
@output_option
def describe_command(group: str, members: bool, last_commit: bool, broker: Settings, output: str) -> None:
    """Show a group's offsets, lag and owners."""
    from coterie.cli.groups.texts import group_document, headline, partition_lines, total_lag_line

    if members and last_commit:
        raise click.UsageError("--last-commit is about partitions; leave out --members")
    if members:
        say_members(group, broker, output)
        return

    async def ask(admin: Admin) -> tuple[DescribedGroup, dict[Any, int], dict[Any, int]]:
        described = await admin.describe_group(group)
        committed = await admin.list_group_offsets(group)
        return described, committed, await admin.list_group_ends({*committed, *described.owners()})

    described, committed, ends = with_admin(broker, ask)
    commits = None
    if last_commit:
        from coterie.client.admin.commit_times import commit_times

        commits = asyncio.run(commit_times(broker, group))
    if output == "json":
        say_json(group_document(described, (committed, ends), commits))
        return
    lines = partition_lines(described, committed, ends, commits)
    say([headline(described) + total_lag_line(described, committed, ends), "", *lines])


@command.command("members")
@group_argument
@broker_options
@output_option
def members_command(group: str, broker: Settings, output: str) -> None:
    """Show the members of a group and what each of them owns."""
    say_members(group, broker, output)


def say_members(group: str, broker: Settings, output: str) -> None:
    """Print the members of a group."""
    from coterie.cli.groups.texts import group_document, headline, member_lines

    described = with_admin(broker, lambda admin: admin.describe_group(group))
    if output == "json":
        say_json(group_document(described, None))
        return
    say([headline(described), "", *member_lines(described)])


@command.command("story")
@group_argument
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="Only the last N entries.")
@click.option("--follow", is_flag=True, help="Go on as it happens, until Ctrl-C.")
@broker_options
@output_option
def story_command(group: str, last: int | None, follow: bool, broker: Settings, output: str) -> None:
    """Tell why a group rebalanced, and what it cost.

    JSON comes a record a line, as the topic __group_story holds it.
    """
    from coterie.base.errors import CoterieError

    def tell(document: dict[str, Any], cost: Cost | None) -> None:
        if output == "json":
            say_json(document)
            return
        from coterie.cli.groups.texts import story_lines

        for line in story_lines(document, cost, coloured=True):
            click.echo(line)

    try:
        shown = with_admin(broker, lambda admin: _story(admin.cluster, group, last, follow, tell))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return
    if not shown:
        raise CoterieError(f"nothing is told of a group {group}; `coterie groups list` lists the groups")


async def _story(
    cluster: Cluster,
    group: str,
    last: int | None,
    follow: bool,
    tell: Callable[[dict[str, Any], Cost | None], None],
) -> int:
    """Tell the story up to now, its last entries only if so many are asked for, and then what follows."""
    from collections import deque

    from coterie.client.errors import ClientTimeout
    from coterie.story.cost import Costs
    from coterie.story.reader import StoryReader

    costs = Costs()  # of all rebalances, since each begins with what the one before has led to
    reader = await StoryReader.open(cluster, group)
    entries: deque[tuple[dict[str, Any], Cost | None]] = deque(maxlen=last)
    async for document in reader.until_now():
        entries.append((document, costs.of(document)))
    for entry in entries:
        tell(*entry)
    shown = len(entries)
    if follow:
        task = asyncio.current_task()
        assert task is not None
        when_output_closes(task.cancel)
    while follow:
        try:
            documents = await reader.more()
        except ClientTimeout:  # the client has said that nobody answers; the broker may come back
            await asyncio.sleep(AWAY_S)
            continue
        for document in documents:
            tell(document, costs.of(document))
            shown += 1
    return shown


@command.command("evict")
@group_argument
@click.option("--member", metavar="ID", help="The member's id, as `describe --members` shows it.")
@click.option("--instance", metavar="ID", help="The instance id of a static member.")
@click.option("--reason", metavar="TEXT", default="", help="Why; the story tells it.")
@broker_options
@output_option
def evict_command(
    group: str, member: str | None, instance: str | None, reason: str, broker: Settings, output: str
) -> None:
    """Take one member out of a group.

    A client that still runs joins again by itself: stop it first if it shall stay out.
    """
    if bool(member) == bool(instance):
        raise click.UsageError("say who is to go: --member ID or --instance ID")

    def evict(admin: Admin) -> Awaitable[None]:
        return admin.evict_member(group, member_id=member or "", instance_id=instance, reason=reason)

    with_admin(broker, evict)
    if output == "json":
        say_json({"group": group, "member_id": member, "instance_id": instance, "evicted": True})
        return
    who = f"member {member}" if member else f"the member with instance id {instance}"
    say([f"{who} is out of group {group}"])


@command.command("delete")
@click.argument("groups", nargs=-1, metavar="GROUP...")
@click.option("--group", "named", metavar="GROUP", multiple=True, help="A group, as Kafka's tools name it.")
@broker_options
@output_option
def delete_command(groups: tuple[str, ...], named: tuple[str, ...], broker: Settings, output: str) -> None:
    """Delete groups that have no members, and their offsets."""
    if not (groups := (*groups, *named)):
        raise click.UsageError("Missing argument 'GROUP...'.")

    async def delete(admin: Admin) -> None:
        for group in dict.fromkeys(groups):
            await admin.delete_group(group)
            deleted.append(group)

    with telling_deleted("group", output) as deleted:
        with_admin(broker, delete)


command.add_command(overview_command)
command.add_command(reset_command)
command.add_command(delete_offsets_command)
