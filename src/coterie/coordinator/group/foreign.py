"""Groups of kinds that are not served yet (KIP-848's, share, streams): they and their records are kept.

Who knows them may read this log again, so nothing is written that would end them, but for one case: a group
of KIP-848's gives way to who joins it as a classic one. Apache Kafka allows that once its members are gone,
and here none of them can send the heartbeat that keeps it a member. Their offsets are fetched and committed
like those of any group that has no members here. They are listed as what they are, in a state that is not
known: as simple groups, they would look like ones to be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.coordinator.group.classic.join import admit_the_first_member, create_the_group
from coterie.coordinator.group.commands import (
    DeleteGroup,
    DeleteGroupAnswer,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    Describe,
    DescribeAnswer,
    Join,
    JoinAnswer,
)
from coterie.coordinator.group.facts import ForeignEnded
from coterie.coordinator.group.model import Group, State
from coterie.coordinator.machine import Decision

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft

WHY = "group-of-another-kind"
# By the kind of a record, as of Kafka 4.3; one yet to come is of "unknown".
TYPES: Mapping[int, str] = MappingProxyType(
    {
        **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), "consumer"),
        **dict.fromkeys(range(9, 16), "share"),
        **dict.fromkeys(range(17, 24), "streams"),
    }
)


# Kafka's loading fails, and with it every group of the partition, if members go before what they were given,
# or the group before its members.
ENDED_IN_ORDER = (8, 7, 6, 5, 4, 16, 3)


def type_of(keys: Iterable[bytes]) -> str:
    """Return the type of a group by the keys of its records, as Kafka calls it."""
    return next((TYPES[kind] for kind in map(kind_of, keys) if kind in TYPES), "unknown")


def kind_of(key: bytes) -> int:
    """Return the number that a record's key begins with."""
    return int.from_bytes(key[:2], "big", signed=True)


def join_foreign(draft: Draft, group: Group | None, command: Join) -> Decision:
    """Put a classic group in the place of a consumer group (JG-9), offsets kept; refuse all others (JG-7)."""
    keys = draft.shard.foreign[command.group_id]
    foreign = type_of(keys) != "consumer" or not all(kind_of(key) in ENDED_IN_ORDER for key in keys)
    if foreign or (group is not None and group.state is not State.EMPTY):
        draft.reply(command.call, JoinAnswer(Code.INCONSISTENT_GROUP_PROTOCOL, ""))
        return draft.decision(WHY)
    if draft.shard.settings.allows_session(command.session_timeout_ms):
        in_order = sorted(keys, key=lambda key: (ENDED_IN_ORDER.index(kind_of(key)), key))
        draft.apply(ForeignEnded(command.group_id, tuple(in_order)))
        draft.then("consumer-group-replaced")
    return (
        create_the_group(draft, None, command)
        if group is None
        else admit_the_first_member(draft, group, command)
    )


def describe_foreign(draft: Draft, _: Group | None, command: Describe) -> Decision:
    """Show a Dead group, as Kafka does to who asks for a classic one (DG-2)."""
    draft.reply(command.call, DescribeAnswer(Code.GROUP_ID_NOT_FOUND, State.DEAD.value))
    return draft.decision(WHY)


def delete_foreign(draft: Draft, _: Group | None, command: DeleteGroup) -> Decision:
    """Refuse: whether it has members is not known (DL-2)."""
    draft.reply(command.call, DeleteGroupAnswer(Code.NON_EMPTY_GROUP))
    return draft.decision(WHY)


def delete_offsets_foreign(draft: Draft, _: Group | None, command: DeleteOffsets) -> Decision:
    """Take it to read everything: what it reads is not known (OD-4)."""
    codes = (Code.GROUP_SUBSCRIBED_TO_TOPIC,) * len(command.partitions)
    draft.reply(command.call, DeleteOffsetsAnswer(Code.NONE, codes))
    return draft.decision(WHY)
