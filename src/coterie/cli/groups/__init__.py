"""`coterie groups`: list and describe groups, show their stories, reset their offsets, evict members, delete
groups.

For any broker, Coterie's or Apache Kafka's; only Coterie's keeps a story.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from coterie.cli.groups.offsets import delete_offsets_command, reset_command
from coterie.cli.groups.overview import overview_command
from coterie.cli.hints import FamilyWithDefault
from coterie.cli.numbers import WholeNumber
from coterie.cli.options import (
    AskCluster,
    CommandResult,
    Settings,
    asks_cluster,
    broker_options,
    complete_group,
    group_argument,
    one_of,
    output_option,
)
from coterie.cli.output import listing_deleted, run_async, say_json, when_output_closes
from coterie.cli.tables import table

if TYPE_CHECKING:
    from coterie.base.ids import ShortNames
    from coterie.cli.groups.texts import Document, GroupOffsets
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


class GroupCommands(FamilyWithDefault):
    """`coterie groups` without a command is `coterie groups overview`; `reset-offsets`, as Kafka has it, is
    `reset`.
    """

    default = "overview"

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, "reset" if cmd_name == "reset-offsets" else cmd_name)


@click.group("groups", cls=GroupCommands)
def command() -> None:
    """Show consumer groups, reset offsets, evict members.

    Without a command: all groups at a glance, as `coterie groups overview` shows them.
    """


@command.command("list")
@click.option(
    "--state", "states", metavar="STATE", multiple=True, callback=one_of(STATES),
    help="Only groups in this state, for example Empty; may be repeated.",
)  # fmt: skip
@click.option(
    "--type", "types", metavar="TYPE", multiple=True, callback=one_of(TYPES),
    help="Only groups of this type, for example classic; may be repeated.",
)  # fmt: skip
@asks_cluster
def list_command(ask: AskCluster, states: tuple[str, ...], types: tuple[str, ...]) -> CommandResult:
    """List the groups of the cluster."""
    groups = ask(lambda admin: admin.list_groups(states=states, types=types))
    rows = [(one.group_id, one.state, one.group_type, one.protocol_type) for one in groups]
    head = ("GROUP", "STATE", "TYPE", "PROTOCOL")
    return CommandResult([one._asdict() for one in groups], table(head, rows, "There are no groups."))


@command.command("describe")
@group_argument
@click.option("--members", is_flag=True, help="Show the members instead of the partitions.")
@click.option(
    "--last-commit",
    is_flag=True,
    help="Also show when each offset was committed. Reads a whole partition of __consumer_offsets.",
)
@asks_cluster
def describe_command(ask: AskCluster, group: str, members: bool, last_commit: bool) -> CommandResult:
    """Show a group's offsets, lag and owners."""
    from coterie.cli.groups.texts import GroupOffsets, group_document, headline, partition_lines

    if members and last_commit:
        raise click.UsageError("--last-commit is about partitions; leave out --members")
    if members:
        return members_of(ask, group)

    async def describe(admin: Admin) -> tuple[DescribedGroup, GroupOffsets]:
        described = await admin.describe_group(group)
        committed = await admin.list_group_offsets(group)
        ends = await admin.list_group_ends({*committed, *described.owners()})
        return described, GroupOffsets(committed, ends)

    described, offsets = ask(describe, groups=[group])
    if last_commit:
        from coterie.client.admin.commit_times import commit_times

        offsets = offsets._replace(commits=run_async(commit_times(ask.settings, group)))
    document = group_document(described, offsets)
    return CommandResult(document, [headline(document), "", *partition_lines(document)])


@command.command("members")
@group_argument
@asks_cluster
def members_command(ask: AskCluster, group: str) -> CommandResult:
    """Show a group's members and the partitions of each."""
    return members_of(ask, group)


def members_of(ask: AskCluster, group: str) -> CommandResult:
    """Return a group and its members."""
    from coterie.cli.groups.texts import group_document, headline, member_lines

    document = group_document(ask(lambda admin: admin.describe_group(group), groups=[group]))
    return CommandResult(document, [headline(document), "", *member_lines(document)])


@command.command("story")
@group_argument
@click.option("--last", metavar="N", type=WholeNumber(min=1), help="Show only the last N entries.")
@click.option("--follow", is_flag=True, help="Keep showing new entries until Ctrl-C.")
@broker_options
@output_option
def story_command(group: str, last: int | None, follow: bool, broker: Settings, output: str) -> None:
    """Show why a group rebalanced, and what each rebalance cost.

    Coterie's broker records this in the topic __group_story. JSON is one record a line, as it is there.
    """
    from coterie.cli.groups.texts import story_lines
    from coterie.client.admin.groups import NoSuchGroup

    def show(document: Document, cost: Cost | None, names: ShortNames) -> None:
        if output == "json":
            say_json(document if cost is None else {**document, "cost": cost._asdict()})
            return
        for line in story_lines(document, cost, names, coloured=True):
            click.echo(line)

    async def show_story(admin: Admin) -> None:
        if not await _story(admin.cluster, group, last, follow, show):
            raise NoSuchGroup(await _said_of_none(admin, group))

    try:
        AskCluster(broker)(show_story, groups=[group])
    except (KeyboardInterrupt, asyncio.CancelledError):
        if not follow:
            raise


async def _said_of_none(admin: Admin, group: str) -> str:
    """Return the sentence about a group without a story: it has none yet, or is not there."""
    if all(one.group_id != group for one in await admin.list_groups()):
        return f"there is no story of a group {group}; `coterie groups list` lists the groups"
    return (
        f"nothing is told of group {group} yet: its story goes on with its next rebalance, unless"
        " coterie.story.enable is false; what was before `coterie history` infers from the log"
    )


async def _story(
    cluster: Cluster,
    group: str,
    last: int | None,
    follow: bool,
    show: Callable[[Document, Cost | None, ShortNames], None],
) -> int:
    """Show the story up to now, of which only the last entries if so many are asked for, and then new ones;
    return how many were shown.
    """
    from coterie.base.ids import ShortNames
    from coterie.cli.groups.texts import members_of
    from coterie.client.errors import ClientTimeout
    from coterie.story.cost import Costs, is_rebalance
    from coterie.story.order import dated
    from coterie.story.reader import StoryReader

    reader = await StoryReader.open(cluster, group)
    costs = Costs()  # of all rebalances, since each begins with what the one before has led to
    names = ShortNames()  # of all members, so that a name stays the same over the whole story
    entries: deque[tuple[Document, Cost | None]] = deque(maxlen=last)
    documents = [one async for one in reader.until_now()]
    rebalances = iter(dated(one for one in documents if is_rebalance(one)))
    for document in documents:
        names.learn(members_of(document))
        entries.append((document, costs.of(next(rebalances)) if is_rebalance(document) else None))
    for entry in entries:
        show(*entry, names)
    shown = len(entries)
    if follow:
        task = asyncio.current_task()
        assert task is not None
        when_output_closes(task.cancel)
    while follow:
        try:
            documents = await reader.more()
        except ClientTimeout:  # the client has said that no broker answers; it may come back
            await asyncio.sleep(AWAY_S)
            continue
        for document in documents:
            names.learn(members_of(document))
            show(document, costs.of(document), names)
            shown += 1
    return shown


@command.command("evict")
@group_argument
@click.option("--member", metavar="ID", help="A member id, as `coterie groups members` shows it.")
@click.option("--instance", metavar="ID", help="The instance id of a static member.")
@click.option("--reason", metavar="TEXT", default="", help="The reason, for the group's story.")
@asks_cluster
def evict_command(
    ask: AskCluster, group: str, member: str | None, instance: str | None, reason: str
) -> CommandResult:
    """Remove one member from a group.

    A client that is still running joins again by itself: stop it first to keep it out.
    """
    if bool(member) == bool(instance):
        raise click.UsageError("say which member: --member ID or --instance ID")
    ask(
        lambda admin: admin.evict_member(group, member_id=member or "", instance_id=instance, reason=reason),
        groups=[group],
    )
    who = f"member {member}" if member else f"the member with instance id {instance}"
    return CommandResult(
        {"group": group, "member_id": member, "instance_id": instance, "evicted": True},
        [f"{who} is out of group {group}; if its client is still running, it joins again by itself"],
    )


@command.command("delete")
@click.argument("groups", nargs=-1, metavar="GROUP...", shell_complete=complete_group)
@click.option(
    "--group",
    "named",
    metavar="GROUP",
    multiple=True,
    help="The same as GROUP.",
    shell_complete=complete_group,
)
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

    with listing_deleted("group", output) as deleted:
        AskCluster(broker)(delete, groups=(one for one in groups if one not in deleted))


command.add_command(overview_command)
command.add_command(reset_command)
command.add_command(delete_offsets_command)
