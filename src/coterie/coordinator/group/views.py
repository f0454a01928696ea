"""What is shown of groups and changes nothing: ListGroups and DescribeGroups (1.11)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from coterie.base.codes import Code
from coterie.base.reasons import mark
from coterie.coordinator.group.commands import Describe, DescribeAnswer, DescribedMember
from coterie.coordinator.group.foreign import type_of
from coterie.coordinator.group.model import Group, Member, State
from coterie.coordinator.machine import Decision

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft, Shard

CLASSIC = "classic"
UNKNOWN = "Unknown"  # as Kafka's clients call a state that they do not know
LIST_GROUPS = 16


class ListedGroup(NamedTuple):
    """A group as ListGroups shows it. A simple group has the protocol type "", others that of their type."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = CLASSIC


def list_groups(
    shard: Shard, *, states: Collection[str] = (), types: Collection[str] = ()
) -> list[ListedGroup]:
    """Return the groups in one of the states and of one of the types; none given means any (LS-2, LS-3).

    Both are in small letters, as `folded` makes them: once for all shards, since they may be many.
    """
    mark("groups-listed", LIST_GROUPS)
    if states:
        mark("groups-filtered-by-state", LIST_GROUPS)
    if types:
        mark("groups-filtered-by-type", LIST_GROUPS)
    return [
        one
        for one in everything(shard)
        if (not types or one.group_type in types) and (not states or one.state.lower() in states)
    ]


def folded(name: str) -> str:
    """Return a state or a type as groups are looked for by it, however a client writes it."""
    return name.strip().lower()


def everything(shard: Shard) -> Iterator[ListedGroup]:
    """Yield all groups; of those that are not served it is known of which type they are, and no more."""
    for group_id, group in shard.groups.items():
        if group_id not in shard.foreign:
            yield ListedGroup(group_id, group.protocol_type or "", group.state.value)
    for group_id, keys in shard.foreign.items():
        kind = type_of(keys)
        yield ListedGroup(group_id, kind, UNKNOWN, kind)


def describe_a_missing_group(draft: Draft, _: None, command: Describe) -> Decision:
    """Show a Dead group for one that is not there (DG-2)."""
    draft.reply(command.call, DescribeAnswer(Code.GROUP_ID_NOT_FOUND, State.DEAD.value))
    return draft.decision("no-such-group")


def describe_the_group(draft: Draft, group: Group, command: Describe) -> Decision:
    """Show the members without what they say: no protocol is chosen, or none is at work yet (DG-4)."""
    draft.reply(command.call, described(group, None))
    return draft.decision("described")


def describe_the_group_and_its_protocol(draft: Draft, group: Group, command: Describe) -> Decision:
    """Show the protocol, and the members with what they say under it (DG-3)."""
    draft.reply(command.call, described(group, group.protocol))
    return draft.decision("described-at-work")


def described(group: Group, protocol: str | None) -> DescribeAnswer:
    members = tuple(described_member(member, protocol) for member in group.in_order())
    return DescribeAnswer(Code.NONE, group.state.value, group.protocol_type or "", protocol or "", members)


def described_member(member: Member, protocol: str | None) -> DescribedMember:
    return DescribedMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        b"" if protocol is None else member.metadata(protocol),
        member.assignment,
    )
