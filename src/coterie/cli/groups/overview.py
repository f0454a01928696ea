"""`coterie groups` alone: all groups at a glance, the one that is furthest behind first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.cli.asking import Settings, broker_options, output_option, say, say_json, with_admin

if TYPE_CHECKING:
    from coterie.client.admin.admin import Admin
    from coterie.client.admin.groups import DescribedGroup

AT_ONCE = 32  # groups that are asked about at the same time


class GroupOverview(NamedTuple):
    """A group in a line. Of a group that is no classic one only its state and type are known."""

    group: str
    state: str
    members: int | None
    partitions: int | None
    total_lag: int | None
    assignor: str | None
    coordinator: str | None


@click.command("overview")
@broker_options
@output_option
def overview_command(broker: Settings, output: str) -> None:
    """Show all groups: state, members and total lag.

    The one that is furthest behind comes first. `coterie groups` alone does the same.
    """
    found = with_admin(broker, overviews)
    if output == "json":
        say_json([one._asdict() for one in found])
        return
    from coterie.cli.tables import table

    head = ("GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG", "ASSIGNOR", "COORDINATOR")
    say(table(head, found) if found else ["There are no groups."])


async def overviews(admin: Admin) -> list[GroupOverview]:
    """Return all groups, the greatest lag first, and then by name."""
    from coterie.cli.groups.texts import total_lag

    listed = await admin.list_groups()
    limit = asyncio.Semaphore(AT_ONCE)
    looks = await asyncio.gather(*(look_at(admin, one.group_id, limit) for one in listed))
    partitions = {one for _, committed in looks for one in committed}
    ends = await admin.list_group_ends(partitions) if partitions else {}
    found = []
    for one, (group, committed) in zip(listed, looks, strict=True):
        lag = total_lag(one.group_id, committed, ends)
        if group is None:
            found.append(GroupOverview(one.group_id, one.state, None, len(committed), lag, None, None))
            continue
        known = {*committed, *group.owners()}
        found.append(
            GroupOverview(
                group.group_id, group.state, len(group.members), len(known), lag, group.protocol or None,
                group.coordinator,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (-(one.total_lag or 0), one.group))


async def look_at(
    admin: Admin, group_id: str, limit: asyncio.Semaphore
) -> tuple[DescribedGroup | None, dict[Any, int]]:
    """Return a group, None if it has gone or is no classic one, and what it has committed."""
    from coterie.client.admin.groups import NoSuchGroup

    async with limit:
        try:
            group = await admin.describe_group(group_id)
        except NoSuchGroup:
            group = None
        return group, await admin.list_group_offsets(group_id)
