"""Groups of kinds that are not served yet (KIP-848's, share, streams): they and their records are kept.

Who knows them may read this log again, so nothing is written that would end them or make them classic. Their
offsets are fetched and committed like those of any group that has no members here. They are listed as what
they are, in a state that is not known: as simple groups, they would look like ones to be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from coterie.base.codes import Code
from coterie.group.commands import DeleteGroup, DeleteOffsets, Describe, Join
from coterie.group.decision import (
    Decision,
    DeleteGroupAnswer,
    DeleteOffsetsAnswer,
    DescribeAnswer,
    Draft,
    JoinAnswer,
)
from coterie.group.model import Group, State

__all__ = ["delete_foreign", "delete_offsets_foreign", "describe_foreign", "join_foreign", "type_of"]

WHY = "group-of-another-kind"
# By the kind of a record, as of Kafka 4.3; one yet to come is of "unknown".
TYPES: Mapping[int, str] = MappingProxyType(
    {
        **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), "consumer"),
        **dict.fromkeys(range(9, 16), "share"),
        **dict.fromkeys(range(17, 24), "streams"),
    }
)


def type_of(keys: Iterable[bytes]) -> str:
    """Return the type of a group by the keys of its records, as Kafka calls it."""
    kinds = (int.from_bytes(key[:2], "big", signed=True) for key in keys)
    return next((TYPES[kind] for kind in kinds if kind in TYPES), "unknown")


def join_foreign(draft: Draft, _: Group | None, command: Join) -> Decision:
    """Refuse: its members speak another protocol (JG-7)."""
    draft.reply(command.call, JoinAnswer(Code.INCONSISTENT_GROUP_PROTOCOL, ""))
    return draft.decision(WHY)


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
