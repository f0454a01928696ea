"""What the log says held against itself, and against what the coordinator believes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.coordinator.group.model import Group, State
from coterie.coordinator.group.offsets.stored import unpacked
from coterie.wire.payloads.consumer_offsets import GroupMetadataValue
from coterie.wire.payloads.consumer_protocol import Assignment
from swarm.world import Violation

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Shard
    from swarm.checks.journal import Journal


def owned(value: GroupMetadataValue) -> list[tuple[str, bytes]]:
    """Return the assignments in a group's record by member, a static one by its instance id."""
    return sorted((one.group_instance_id or one.member_id, one.assignment) for one in value.members)


def is_in(value: GroupMetadataValue, member_id: str, generation: int) -> bool:
    """Return whether a group's record has the member in the generation."""
    return value.generation == generation and any(one.member_id == member_id for one in value.members)


def check_owners(group_id: str, value: GroupMetadataValue) -> None:
    """Check that no partition is given to two members."""
    owners: dict[TopicPartition, str] = {}
    for one in value.members:
        try:
            given = Assignment.decode(one.assignment).partitions
        except Corrupt:
            continue
        for partition in given:
            other = owners.setdefault(partition, one.member_id)
            if other != one.member_id:
                raise Violation(
                    "one owner", f"{partition} of group {group_id} is given to {other} and {one.member_id}"
                )


def compare_stable(group: Group, record: GroupMetadataValue | None) -> None:
    """Check that a group at work is stored as it is: a failover would find the record."""
    live = {one.member_id: (one.instance_id, one.assignment) for one in group.members.values()}
    members = () if record is None else record.members
    stored = {one.member_id: (one.group_instance_id, one.assignment) for one in members}
    terms = None if record is None else (record.generation, record.protocol, record.leader)
    if live != stored or terms != (group.generation, group.protocol, group.leader):
        raise Violation("the log says the same", f"group {group.group_id} is {group}, its record {record}")


def compare_journals(remembered: Journal, found: Journal) -> None:
    """Check that a log, read from its start, amounts to what was appended to it; it may be compacted."""
    for group_id in remembered.group_ids() | found.group_ids():
        for before, after in (
            (remembered.group(group_id), found.group(group_id)),
            (remembered.offsets_of(group_id), found.offsets_of(group_id)),
        ):
            if before != after:
                raise Violation("what was written lasts", f"of group {group_id} {before} became {after}")


def compare_flushed(remembered: Journal, found: Journal, flushed: int) -> None:
    """Check that a loss of power has left what was flushed, up to that place in the log."""
    histories: list[tuple[object, list[Any], list[Any]]] = [
        *((key, history, found.groups.get(key, [])) for key, history in remembered.groups.items()),
        *((key, history, found.offsets.get(key, [])) for key, history in remembered.offsets.items()),
    ]
    for key, before, after in histories:
        in_force = [value for at, value in before if at < flushed]
        place, left = after[-1] if after else (-1, None)
        if in_force and place < flushed and in_force[-1] != left:
            raise Violation("what was flushed lasts", f"of {key} {in_force[-1]} became {left}")


def compare_shard(shard: Shard, journal: Journal, group_id: str) -> None:
    """Hold what a shard believes of a group against what its log says of it."""
    tables, group = shard.offsets, shard.groups.get(group_id)
    packed = tables.is_packed(group_id)  # looking must not unpack it
    table = unpacked(tables.packed_of(group_id)) if packed else tables[group_id]
    stored = {
        (topic, number): (one.offset, one.leader_epoch, one.metadata, one.commit_ms)
        for topic, numbers in table.items()
        for number, one in numbers.items()
    }
    logged = {
        key: (one.offset, one.leader_epoch, one.metadata, one.commit_timestamp)
        for key, one in journal.offsets_of(group_id).items()
    }
    if stored != logged:
        raise Violation("the log says the same", f"group {group_id} has {stored}, its log has {logged}")
    record = journal.group(group_id)
    if group is None:
        if record is not None or logged:
            raise Violation("the log says the same", f"group {group_id} is gone, the log has {record}")
    elif group.state is State.STABLE:
        compare_stable(group, record)
    elif record is not None and group.generation < record.generation:
        what = f"group {group_id} is in {group.generation}, its log in {record.generation}"
        raise Violation("generations grow", what)
    elif group.state is State.EMPTY and record is not None and record.members:
        raise Violation("the log says the same", f"group {group_id} is empty, the log has {record}")
