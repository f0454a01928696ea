"""Committed offsets: stored, fetched, deleted, expired; groups deleted with them (1.7 to 1.11, 3.3, 3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import ZERO_UUID
from coterie.group.commands import (
    CleanOffsets,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    OffsetToCommit,
    TopicsDeleted,
)
from coterie.group.decision import (
    CommitAnswer,
    Decision,
    DeleteGroupAnswer,
    DeleteOffsetsAnswer,
    Draft,
    FetchAnswer,
    FetchedOffset,
)
from coterie.group.facts import GroupCreated, GroupRemoved, OffsetsCommitted, OffsetsRemoved, StoredOffset
from coterie.group.model import CONSUMER, Group, OffsetTable, State, offset_of

__all__ = [
    "clean_offsets",
    "commit_completing",
    "commit_dead",
    "commit_empty",
    "commit_nowhere",
    "commit_working",
    "delete_empty",
    "delete_nowhere",
    "delete_offsets",
    "delete_offsets_nowhere",
    "delete_offsets_working",
    "delete_working",
    "fetch",
    "fetch_nothing",
    "topics_deleted",
]

NO_RETENTION = -1
GROUP_ID_NOT_FOUND_SINCE = 9


# -- OffsetCommit


def refuse_commit(draft: Draft, command: CommitOffsets, code: Code, why: str) -> Decision:
    """Answer every partition with the error."""
    draft.reply(command.call, CommitAnswer((code,) * len(command.offsets)))
    return draft.decision(why)


def commit_nowhere(draft: Draft, _: None, command: CommitOffsets) -> Decision:
    """Make a simple group for who commits without one; a member of a lost group is refused (OC-7, OC-8)."""
    if command.generation >= 0:
        newer = command.version >= GROUP_ID_NOT_FOUND_SINCE
        code = Code.GROUP_ID_NOT_FOUND if newer else Code.ILLEGAL_GENERATION
        return refuse_commit(draft, command, code, "no-such-group")
    draft.note(GroupCreated(command.group_id, draft.now_ms))
    return store(draft, command, "committed-alone")


def commit_dead(draft: Draft, group: Group, command: CommitOffsets) -> Decision:
    """Send the member to look for its coordinator."""
    return refuse_commit(draft, command, Code.COORDINATOR_NOT_AVAILABLE, "group-dead")


def commit_empty(draft: Draft, group: Group, command: CommitOffsets) -> Decision:
    """Take a commit of no generation, whoever makes it; there are no members who could make another."""
    if command.generation < 0:
        return store(draft, command, "committed-alone")
    code, why = commit_refusal(group, command)
    return refuse_commit(draft, command, code, why)


def commit_working(draft: Draft, group: Group, command: CommitOffsets) -> Decision:
    """Take a member's commit, and as a sign of life (OC-13)."""
    code, why = commit_refusal(group, command)
    if code:
        return refuse_commit(draft, command, code, why)
    draft.restart_session(group.members[command.member_id])
    return store(draft, command, "committed")


def commit_completing(draft: Draft, group: Group, command: CommitOffsets) -> Decision:
    """Put the member off: what it consumed may be another's by now."""
    code, why = commit_refusal(group, command)
    if code:
        return refuse_commit(draft, command, code, why)
    return refuse_commit(draft, command, Code.REBALANCE_IN_PROGRESS, "rebalance-in-progress")


def commit_refusal(group: Group, command: CommitOffsets) -> tuple[Code, str]:
    """Return why a commit is no member's of this generation: a code, NONE if it is one, and a why."""
    code = group.refusal(command.member_id, command.instance_id)
    if code is Code.FENCED_INSTANCE_ID:
        return code, "fenced-instance"
    if code:
        return code, "unknown-member"
    if command.generation != group.generation:
        return Code.ILLEGAL_GENERATION, "stale-generation"
    return Code.NONE, ""


def store(draft: Draft, command: CommitOffsets, why: str) -> Decision:
    """Store every offset but those with too much metadata (OC-11, OC-12)."""
    limit, now_ms = draft.shard.settings.offset_metadata_max_bytes, draft.now_ms
    expire_ms = -1 if command.retention_ms == NO_RETENTION else now_ms + command.retention_ms
    stored, codes = [], []
    for offset in command.offsets:
        if too_long(offset.metadata, limit):
            codes.append(Code.OFFSET_METADATA_TOO_LARGE)
            continue
        stored.append((offset.topic, offset.partition, to_store(offset, now_ms, expire_ms)))
        codes.append(Code.NONE)
    if stored:
        draft.note(OffsetsCommitted(command.group_id, tuple(stored)))
    draft.reply(command.call, CommitAnswer(tuple(codes)))
    return draft.decision(why if stored or not codes else "metadata-too-large")


def too_long(metadata: str | None, limit: int) -> bool:
    """Return whether the text has more UTF-16 units than the limit, as Java counts them."""
    if not metadata or 2 * len(metadata) <= limit:
        return False
    return len(metadata) + sum(character > "\uffff" for character in metadata) > limit


def to_store(offset: OffsetToCommit, now_ms: int, expire_ms: int) -> StoredOffset:
    """Return what lasts of a commit: a record with an end of its own has no place for more (OC-12)."""
    if expire_ms != -1:
        return StoredOffset(offset.offset, -1, offset.metadata or "", now_ms, expire_ms)
    topic_id = None if offset.topic_id == ZERO_UUID else offset.topic_id
    return StoredOffset(
        offset.offset, offset.leader_epoch, offset.metadata or "", now_ms, expire_ms, topic_id
    )


# -- OffsetFetch


def fetch(draft: Draft, group: Group, command: FetchOffsets) -> Decision:
    """Tell what is stored for the partitions that are asked for, or for all (OF-2, OF-6)."""
    table = draft.shard.offsets.get(command.group_id, {})
    found = everything(table) if command.topics is None else asked_for(table, command)
    draft.reply(command.call, FetchAnswer(Code.NONE, tuple(found)))
    return draft.decision("offsets-fetched")


def everything(table: OffsetTable) -> Iterator[FetchedOffset]:
    for topic, partitions in table.items():
        for partition, stored in sorted(partitions.items()):
            yield FetchedOffset(topic, partition, stored.offset, stored.leader_epoch, stored.metadata)


def asked_for(table: OffsetTable, command: FetchOffsets) -> Iterator[FetchedOffset]:
    for topic, partitions in command.topics or ():
        topic_id = command.topic_ids.get(topic)
        for partition in partitions:
            stored = offset_of(table, topic, partition)
            if stored is None or differ(stored.topic_id, topic_id):
                yield FetchedOffset(topic, partition)
            else:
                yield FetchedOffset(topic, partition, stored.offset, stored.leader_epoch, stored.metadata)


def differ(stored: UUID | None, other: UUID | None) -> bool:
    """Return whether two topic ids are both known and not the same (OF-6, OM-6)."""
    return stored is not None and other is not None and other != ZERO_UUID and stored != other


def fetch_nothing(draft: Draft, group: Group | None, command: FetchOffsets) -> Decision:
    """Tell that nothing is stored, which is no error (OF-5)."""
    found = asked_for({}, command)
    draft.reply(command.call, FetchAnswer(Code.NONE, tuple(found)))
    return draft.decision("no-such-group" if group is None else "group-dead")


# -- OffsetDelete


def delete_offsets_nowhere(draft: Draft, group: Group | None, command: DeleteOffsets) -> Decision:
    """Know no such group (OD-2)."""
    draft.reply(command.call, DeleteOffsetsAnswer(Code.GROUP_ID_NOT_FOUND))
    return draft.decision("no-such-group" if group is None else "group-dead")


def delete_offsets_working(draft: Draft, group: Group, command: DeleteOffsets) -> Decision:
    """Refuse where members are that are no consumers, else delete what nobody reads (OD-3, OD-4)."""
    if group.protocol_type != CONSUMER:
        draft.reply(command.call, DeleteOffsetsAnswer(Code.NON_EMPTY_GROUP))
        return draft.decision("group-not-empty")
    return delete_offsets(draft, group, command)


def delete_offsets(draft: Draft, group: Group, command: DeleteOffsets) -> Decision:
    """Delete the offsets of the topics that the group does not read (OD-4, OD-5)."""
    table = draft.shard.offsets.get(command.group_id, {})
    removed, codes = [], []
    for topic, partition in command.partitions:
        subscribed = group.is_subscribed_to(topic)
        codes.append(Code.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else Code.NONE)
        if not subscribed and offset_of(table, topic, partition) is not None:
            removed.append((topic, partition))
    if removed:
        draft.note(OffsetsRemoved(command.group_id, tuple(dict.fromkeys(removed))))
    draft.reply(command.call, DeleteOffsetsAnswer(Code.NONE, tuple(codes)))
    return draft.decision("offsets-deleted")


# -- DeleteGroups


def answer_delete(draft: Draft, command: DeleteGroup, code: Code, why: str) -> Decision:
    draft.reply(command.call, DeleteGroupAnswer(code))
    return draft.decision(why)


def delete_nowhere(draft: Draft, group: Group | None, command: DeleteGroup) -> Decision:
    """Know no such group (DL-2)."""
    why = "no-such-group" if group is None else "group-dead"
    return answer_delete(draft, command, Code.GROUP_ID_NOT_FOUND, why)


def delete_working(draft: Draft, group: Group, command: DeleteGroup) -> Decision:
    """Refuse: somebody is in it (DL-2)."""
    return answer_delete(draft, command, Code.NON_EMPTY_GROUP, "group-not-empty")


def delete_empty(draft: Draft, group: Group, command: DeleteGroup) -> Decision:
    """Delete the group with all its offsets (DL-2, DE-4)."""
    everything_of = tuple(partitions_of(draft.shard.offsets.get(command.group_id, {})))
    remove_group(draft, group, everything_of)
    return answer_delete(draft, command, Code.NONE, "group-deleted")


def partitions_of(table: OffsetTable) -> Iterator[tuple[str, int]]:
    return ((topic, partition) for topic, partitions in table.items() for partition in partitions)


def remove_group(draft: Draft, group: Group, partitions: tuple[tuple[str, int], ...]) -> None:
    """Remove the offsets, then the group, and with it the deadlines of the ids that it had promised."""
    if partitions:
        draft.note(OffsetsRemoved(group.group_id, partitions))
    draft.note(GroupRemoved(group.group_id))
    for member_id in group.pending:
        draft.clear(("session", group.group_id, member_id))


# -- what time and topics do


def clean_offsets(draft: Draft, command: CleanOffsets) -> Decision:
    """Drop the offsets that have expired, and the Empty groups that are left with none (3.4, DE-2, DE-3)."""
    groups = draft.shard.groups
    for group_id in tuple(groups) if command.group_ids is None else command.group_ids:
        group = groups.get(group_id)
        if group is not None:
            clean_group(draft, group)
    return draft.decision("offsets-expired" if draft.facts else "nothing-expired")


def clean_group(draft: Draft, group: Group) -> None:
    table = draft.shard.offsets.get(group.group_id, {})
    expired = tuple(expired_of(draft, group, table))
    everything_gone = len(expired) == sum(map(len, table.values()))
    if everything_gone and group.state is State.EMPTY:
        remove_group(draft, group, expired)
    elif expired:
        draft.note(OffsetsRemoved(group.group_id, expired))


def expired_of(draft: Draft, group: Group, table: OffsetTable) -> Iterator[tuple[str, int]]:
    """Return the partitions whose offsets have expired, by the clock that their group's state sets (3.4)."""
    if not table or not offsets_age(group):
        return
    now_ms, retention_ms = draft.now_ms, draft.shard.settings.offsets_retention_ms
    emptied_ms = group.since_ms if group.protocol_type is not None and group.state is State.EMPTY else None
    for topic, partitions in table.items():
        if group.is_subscribed_to(topic):
            continue  # XP-7
        for partition, stored in partitions.items():
            base_ms = stored.commit_ms if emptied_ms is None else emptied_ms
            if stored.expire_ms != -1:
                expired = now_ms >= stored.expire_ms  # XP-1
            else:
                expired = now_ms - base_ms >= retention_ms
            if expired:
                yield topic, partition


def offsets_age(group: Group) -> bool:
    """Return whether offsets of the group can expire at all in its state (XP-2 to XP-5)."""
    if group.protocol_type is None or group.state is State.EMPTY:
        return True
    return group.protocol_type == CONSUMER and group.state is State.STABLE and group.topics() is not None


def topics_deleted(draft: Draft, command: TopicsDeleted) -> Decision:
    """Drop what any group committed for topics that are gone, but not for later ones of the name (OM-7)."""
    for group_id, table in draft.shard.offsets.items():
        removed = tuple(
            (topic, partition)
            for topic in command.topics
            for partition, stored in table.get(topic, {}).items()
            if not differ(stored.topic_id, command.topic_ids.get(topic))
        )
        if removed:
            draft.note(OffsetsRemoved(group_id, removed))
    return draft.decision("topics-deleted")
