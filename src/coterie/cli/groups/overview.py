"""`coterie groups` alone: all groups at a glance, the one that is furthest behind first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.base.ids import notes_batches
from coterie.cli.options import AskCluster, CommandResult, asks_cluster
from coterie.cli.tables import table

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.groups import DescribedGroup

AT_ONCE = 32  # groups that are asked about at the same time
HEAD = ("GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG", "ASSIGNOR", "COORDINATOR")


class GroupOverview(NamedTuple):
    """A group in a line. Of a group that is no classic one only its state and offsets are known."""

    group: str
    state: str
    members: int | None
    partitions: int | None
    total_lag: int | None
    assignor: str | None
    coordinator: str | None


@click.command("overview")
@asks_cluster
def overview_command(ask: AskCluster) -> CommandResult:
    """Show all groups: state, members and total lag.

    The group that is furthest behind comes first. `coterie groups` alone does the same.
    """
    found = ask(overviews)
    return CommandResult([one._asdict() for one in found], table(HEAD, found, "There are no groups."))


async def overviews(admin: Admin) -> list[GroupOverview]:
    """Return all groups, the greatest lag first, and then by name."""
    from coterie.cli.groups.texts import total_lag

    listed = await admin.list_groups()
    limit = asyncio.Semaphore(AT_ONCE)
    answers = await asyncio.gather(*(described(admin, one.group_id, limit) for one in listed))
    partitions = {one for _, committed in answers for one in committed}
    ends = await admin.list_group_ends(partitions) if partitions else {}
    found = []
    for one, (group, committed) in zip(listed, answers, strict=True):
        lag = None if notes_batches(one.group_id) else total_lag(committed, ends)
        known = len({*committed, *(() if group is None else group.owners())})
        state, members, assignor, coordinator = (
            (one.state, None, None, None)
            if group is None
            else (group.state, len(group.members), group.protocol or None, group.coordinator)
        )
        found.append(GroupOverview(one.group_id, state, members, known, lag, assignor, coordinator))
    return sorted(found, key=lambda one: (-(one.total_lag or 0), one.group))


async def described(
    admin: Admin, group_id: str, limit: asyncio.Semaphore
) -> tuple[DescribedGroup | None, dict[Any, int]]:
    """Return a group, None if it has gone or is no classic one, and the offsets it has committed."""
    from coterie.client.admin.groups import NoSuchGroup

    async with limit:
        try:
            group = await admin.describe_group(group_id)
        except NoSuchGroup:
            group = None
        return group, await admin.list_group_offsets(group_id)
