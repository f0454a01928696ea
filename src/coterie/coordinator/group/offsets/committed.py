"""Committed offsets: stored, fetched, deleted, expired; groups deleted with them (1.7 to 1.11, 3.3, 3.4)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import TYPE_CHECKING
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import ZERO_UUID
from coterie.coordinator.group.commands import (
    CleanOffsets,
    CommitAnswer,
    CommitOffsets,
    DeleteGroup,
    DeleteGroupAnswer,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    EndTransaction,
    FetchAnswer,
    FetchedOffset,
    FetchOffsets,
    OffsetToCommit,
    TopicsDeleted,
    TxnCommitOffsets,
)
from coterie.coordinator.group.facts import (
    GroupCreated,
    GroupRemoved,
    OffsetsCommitted,
    OffsetsPending,
    OffsetsRemoved,
    StoredOffset,
    TransactionEnded,
)
from coterie.coordinator.group.model import (
    CONSUMER,
    Group,
    Member,
    OffsetTable,
    State,
    offset_of,
    stranger_why,
)
from coterie.coordinator.group.records import Allowance
from coterie.coordinator.machine import Decision

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft, Shard

NO_RETENTION = -1
GROUP_ID_NOT_FOUND_SINCE = 9


# -- OffsetCommit


def refuse_commit(draft: Draft, command: CommitOffsets | TxnCommitOffsets, code: Code, why: str) -> Decision:
    """Answer every partition with the error."""
    draft.reply(command.call, CommitAnswer((code,) * len(command.offsets)))
    return draft.decision(why)


def create_a_simple_group_and_commit(draft: Draft, _: None, command: CommitOffsets) -> Decision:
    """Make a simple group for who commits without one; a member of a lost group is refused (OC-7, OC-8)."""
    if command.generation >= 0:
        newer = command.version >= GROUP_ID_NOT_FOUND_SINCE
        code = Code.GROUP_ID_NOT_FOUND if newer else Code.ILLEGAL_GENERATION
        return refuse_commit(draft, command, code, "no-such-group")
    draft.apply(GroupCreated(command.group_id, draft.wall_ms))
    draft.then("simple-group-created")
    return store(draft, command, "committed-alone")


def send_committer_to_the_coordinator(draft: Draft, group: Group, command: CommitOffsets) -> Decision:
    """Send the member to look for its coordinator."""
    return refuse_commit(draft, command, Code.COORDINATOR_NOT_AVAILABLE, "group-dead")


def commit_without_a_member(draft: Draft, group: Group, command: CommitOffsets) -> Decision:
    """Take a commit of no generation, whoever makes it; there are no members who could make another."""
    if command.generation < 0:
        return store(draft, command, "committed-alone")
    code, why = commit_refusal(group, command)
    return refuse_commit(draft, command, code, why)


def commit_for_a_member(draft: Draft, group: Group, command: CommitOffsets) -> Decision:
    """Take a member's commit, and as a sign of life (OC-13)."""
    code, why = commit_refusal(group, command)
    if code:
        return refuse_commit(draft, command, code, why)
    draft.restart_session(group.members[command.member_id])
    return store(draft, command, "committed")


def committing_member(group: Group | None, command: CommitOffsets) -> Member | None:
    """Return the member whose commit `commit_for_a_member` takes; None for every other commit."""
    if group is None or (group.state is not State.STABLE and group.state is not State.PREPARING):
        return None
    return group.current_member(command.member_id, command.instance_id, command.generation)


def put_the_commit_off(draft: Draft, group: Group, command: CommitOffsets) -> Decision:
    """Put the member off: what it consumed may be another's by now."""
    code, why = commit_refusal(group, command)
    if code:
        return refuse_commit(draft, command, code, why)
    return refuse_commit(draft, command, Code.REBALANCE_IN_PROGRESS, "rebalance-in-progress")


def commit_refusal(group: Group, command: CommitOffsets | TxnCommitOffsets) -> tuple[Code, str]:
    """Return why a commit is no member's of this generation: a code, NONE if it is one, and a why."""
    if group.current_member(command.member_id, command.instance_id, command.generation):
        return Code.NONE, ""
    code = group.refusal(command.member_id, command.instance_id)
    if code:
        return code, stranger_why(group, code, command.instance_id)
    return Code.ILLEGAL_GENERATION, "stale-generation"


def store(draft: Draft, command: CommitOffsets, why: str) -> Decision:
    """Store every offset but those with too much metadata (OC-11, OC-12)."""
    expire_ms = -1 if command.retention_ms == NO_RETENTION else draft.wall_ms + command.retention_ms
    stored, codes = storable(draft, command.offsets, expire_ms)
    if expire_ms != -1:
        draft.then("own-retention")
    if stored:
        draft.apply(OffsetsCommitted(command.group_id, stored))
    draft.reply(command.call, CommitAnswer(codes))
    return draft.decision(why if stored or not codes else "metadata-too-large")


def storable(
    draft: Draft, offsets: tuple[OffsetToCommit, ...], expire_ms: int
) -> tuple[tuple[tuple[str, int, StoredOffset], ...], tuple[Code, ...]]:
    """Return the offsets to store, and a code for each that was sent: some have too much metadata (OC-11)."""
    limit, dated_ms = draft.shard.settings.offset_metadata_max_bytes, draft.wall_ms
    stored, codes = [], []
    for offset in offsets:
        if too_long(offset.metadata, limit):
            once(draft, "some-metadata-too-large")
            codes.append(Code.OFFSET_METADATA_TOO_LARGE)
            continue
        stored.append((offset.topic, offset.partition, to_store(offset, dated_ms, expire_ms)))
        codes.append(Code.NONE)
    if stored and len(stored) < len(codes):
        draft.then("some-metadata-too-large")
    return tuple(stored), tuple(codes)


def too_long(metadata: str | None, limit: int) -> bool:
    """Return whether the text has more UTF-16 units than the limit, as Java counts them."""
    if not metadata or 2 * len(metadata) <= limit:
        return False
    return len(metadata) + sum(character > "\uffff" for character in metadata) > limit


def to_store(offset: OffsetToCommit, dated_ms: int, expire_ms: int) -> StoredOffset:
    """Return the StoredOffset of a commit: a record with an end of its own has no place for more (OC-12)."""
    if expire_ms != -1:
        return StoredOffset(offset.offset, -1, offset.metadata or "", dated_ms, expire_ms)
    topic_id = None if offset.topic_id == ZERO_UUID else offset.topic_id
    return StoredOffset(
        offset.offset, offset.leader_epoch, offset.metadata or "", dated_ms, expire_ms, topic_id
    )


# -- TxnOffsetCommit and the end of transactions


def create_a_simple_group_and_hold_back(draft: Draft, _: None, command: TxnCommitOffsets) -> Decision:
    """Make a simple group for who commits without one; a member of a lost group is refused (TX-4)."""
    if command.generation >= 0:
        return refuse_commit(draft, command, Code.ILLEGAL_GENERATION, "no-such-group")
    draft.apply(GroupCreated(command.group_id, draft.wall_ms))
    draft.then("simple-group-created")
    return hold_back(draft, command, "pending-alone")


def send_producer_to_the_coordinator(draft: Draft, group: Group, command: TxnCommitOffsets) -> Decision:
    """Send the producer to look for the group's coordinator (TX-5)."""
    return refuse_commit(draft, command, Code.COORDINATOR_NOT_AVAILABLE, "group-dead")


def hold_back_without_a_member(draft: Draft, group: Group, command: TxnCommitOffsets) -> Decision:
    """Take a commit of no generation, whoever makes it (TX-5)."""
    if command.generation < 0:
        return hold_back(draft, command, "pending-alone")
    code, why = commit_refusal(group, command)
    return refuse_commit(draft, command, code, why)


def hold_back_for_a_member(draft: Draft, group: Group, command: TxnCommitOffsets) -> Decision:
    """Take a member's commit, in CompletingRebalance too, and one of nobody in particular (TX-5).

    It is the producer's doing and no sign of the member's life.
    """
    if command.generation < 0 and not command.member_id and command.instance_id is None:
        return hold_back(draft, command, "pending-alone")
    code, why = commit_refusal(group, command)
    if code:
        return refuse_commit(draft, command, code, why)
    return hold_back(draft, command, "pending")


def hold_back(draft: Draft, command: TxnCommitOffsets, why: str) -> Decision:
    """Keep the offsets until the transaction ends, mostly without their topics' ids (OM-2, TX-7)."""
    offsets = command.offsets
    if not draft.shard.settings.keeps_ids_in_transactions:
        offsets = tuple(offset._replace(topic_id=None) for offset in offsets)
    stored, codes = storable(draft, offsets, -1)
    if stored:
        draft.apply(OffsetsPending(command.group_id, command.producer_id, stored))
    draft.reply(command.call, CommitAnswer(codes))
    return draft.decision(why if stored or not codes else "metadata-too-large")


def end_transaction(draft: Draft, command: EndTransaction) -> Decision:
    """Let what a producer committed count, or drop it; it may have committed nothing here (OM-3)."""
    if not draft.shard.pending.keys_of(command.producer_id):
        return draft.decision("nothing-pending")
    if command.commit and draft.shard.pending.has_overtaken(command.producer_id):
        draft.then("pending-overtaken")
    draft.apply(TransactionEnded(command.producer_id, command.commit))
    return draft.decision("transaction-committed" if command.commit else "transaction-aborted")


# -- OffsetFetch


def return_the_offsets(draft: Draft, group: Group, command: FetchOffsets) -> Decision:
    """Tell what is stored for the partitions that are asked for, or for all (OF-2, OF-6)."""
    table = draft.shard.offsets.get(command.group_id, {})
    found = tuple(everything(table, command) if command.topics is None else asked_for(table, command))
    if not command.require_stable:
        draft.reply(command.call, FetchAnswer(Code.NONE, found))
        return draft.decision("offsets-fetched")
    pending = draft.shard.pending.partitions_of(command.group_id)
    stable = tuple(unsettled(one) if (one.topic, one.partition) in pending else one for one in found)
    draft.reply(command.call, FetchAnswer(Code.NONE, stable))
    return draft.decision("stable-offsets-fetched" if stable == found else "offsets-unstable")


def unsettled(one: FetchedOffset) -> FetchedOffset:
    """Return the answer for a partition for which a transaction is open (OF-9)."""
    return FetchedOffset(one.topic, one.partition, code=Code.UNSTABLE_OFFSET_COMMIT)


def everything(table: OffsetTable, command: FetchOffsets) -> Iterator[FetchedOffset]:
    for topic, partitions in table.items():
        topic_id = command.topic_ids.get(topic)
        for partition, stored in sorted(partitions.items()):
            if topic_id is not None and differ(stored.topic_id, topic_id):
                continue
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


def return_no_offsets(draft: Draft, group: Group | None, command: FetchOffsets) -> Decision:
    """Tell that nothing is stored, which is no error (OF-5)."""
    found = asked_for({}, command)
    draft.reply(command.call, FetchAnswer(Code.NONE, tuple(found)))
    return draft.decision("no-such-group" if group is None else "group-dead")


# -- OffsetDelete


def refuse_to_delete_offsets_of_no_group(
    draft: Draft, group: Group | None, command: DeleteOffsets
) -> Decision:
    """Answer GROUP_ID_NOT_FOUND (OD-2)."""
    draft.reply(command.call, DeleteOffsetsAnswer(Code.GROUP_ID_NOT_FOUND))
    return draft.decision("no-such-group" if group is None else "group-dead")


def delete_unread_offsets_of_consumers(draft: Draft, group: Group, command: DeleteOffsets) -> Decision:
    """Refuse where members are that are no consumers, else delete what nobody reads (OD-3, OD-4)."""
    if group.protocol_type != CONSUMER:
        draft.reply(command.call, DeleteOffsetsAnswer(Code.NON_EMPTY_GROUP))
        return draft.decision("group-not-empty")
    return delete_unread_offsets(draft, group, command)


def delete_unread_offsets(draft: Draft, group: Group, command: DeleteOffsets) -> Decision:
    """Delete the offsets, pending ones too, of the topics that the group does not read (OD-4, OD-5)."""
    table = draft.shard.offsets.get(command.group_id, {})
    pending = draft.shard.pending.partitions_of(command.group_id)
    removed, codes = [], []
    for topic, partition in command.partitions:
        subscribed = group.is_subscribed_to(topic)
        codes.append(Code.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else Code.NONE)
        stored = offset_of(table, topic, partition) is not None or (topic, partition) in pending
        if stored and not subscribed:
            removed.append((topic, partition))
    if removed:
        draft.apply(OffsetsRemoved(command.group_id, tuple(removed)))
    draft.reply(command.call, DeleteOffsetsAnswer(Code.NONE, tuple(codes)))
    return draft.decision("offsets-deleted")


# -- DeleteGroups


def answer_delete(draft: Draft, command: DeleteGroup, code: Code, why: str) -> Decision:
    draft.reply(command.call, DeleteGroupAnswer(code))
    return draft.decision(why)


def refuse_to_delete_a_missing_group(draft: Draft, group: Group | None, command: DeleteGroup) -> Decision:
    """Answer GROUP_ID_NOT_FOUND (DL-2)."""
    why = "no-such-group" if group is None else "group-dead"
    return answer_delete(draft, command, Code.GROUP_ID_NOT_FOUND, why)


def refuse_to_delete_a_group_in_use(draft: Draft, group: Group, command: DeleteGroup) -> Decision:
    """Refuse: somebody is in it (DL-2)."""
    return answer_delete(draft, command, Code.NON_EMPTY_GROUP, "group-not-empty")


def delete_the_group(draft: Draft, group: Group, command: DeleteGroup) -> Decision:
    """Delete the group with all its offsets, the pending ones of open transactions too (DL-2, DE-4, OM-8).

    Where that is more than may be decided at once, the group goes with the last part.
    """
    allowance = Allowance(command.most_bytes)
    table = draft.shard.offsets.get(command.group_id, {})
    pending = draft.shard.pending.partitions_of(command.group_id)
    uncounted = (place for place in pending if offset_of(table, *place) is None)
    allowed = tuple(allowance.up_to(command.group_id, chain(partitions_of(table), uncounted)))
    if not allowance.exhausted and allowance.takes_group(command.group_id):
        remove_group(draft, group, allowed)
        return answer_delete(draft, command, Code.NONE, "group-deleted")
    draft.apply(OffsetsRemoved(group.group_id, allowed))
    draft.reply(command.call, DeleteGroupAnswer(Code.NONE, more=True))
    return draft.decision("group-deleted-in-part")


def partitions_of(table: OffsetTable) -> Iterator[tuple[str, int]]:
    return ((topic, partition) for topic, partitions in table.items() for partition in partitions)


def remove_group(draft: Draft, group: Group, partitions: tuple[tuple[str, int], ...]) -> None:
    """Remove the offsets, then the group, and with it the deadlines of the ids that it had promised."""
    if partitions:
        draft.apply(OffsetsRemoved(group.group_id, partitions))
    draft.apply(GroupRemoved(group.group_id))
    for member_id in group.pending:
        draft.clear(("session", group.group_id, member_id))


# -- what time and topics do


def clean_offsets(draft: Draft, command: CleanOffsets) -> Decision:
    """Drop the offsets that have expired, and the Empty groups that are left with none (3.4, DE-2, DE-3)."""
    groups, allowance = draft.shard.groups, Allowance(command.most_bytes)
    for group_id in tuple(groups) if command.group_ids is None else command.group_ids:
        group = groups.get(group_id)
        if group is not None:
            clean_group(draft, group, allowance)
        if draft.more:
            break
    return draft.decision("offsets-expired" if draft.facts else "nothing-expired")


def clean_group(draft: Draft, group: Group, allowance: Allowance) -> None:
    """Drop what has expired of a group; one of a kind that is not known is left to who knows it (LO-7).

    It goes itself with the last of it: where a crash comes between two parts, there is a group with the rest.
    """
    if group.group_id in draft.shard.foreign:
        once(draft, "kept-for-another-kind")
        return
    table = draft.shard.offsets.get(group.group_id, {})
    pending = draft.shard.pending.partitions_of(group.group_id)
    allowed = tuple(allowance.up_to(group.group_id, expired_of(draft, group, table, pending)))
    draft.more = allowance.exhausted
    everything_gone = len(allowed) == sum(map(len, table.values()))
    if everything_gone and group.state is State.EMPTY and pending:
        once(draft, "held-by-transaction")
    if everything_gone and group.state is State.EMPTY and not pending:
        draft.more = not allowance.takes_group(group.group_id)
        if not draft.more:
            once(draft, "group-outlived" if allowed else "group-unused")
            remove_group(draft, group, allowed)
            return
    if allowed:
        draft.apply(OffsetsRemoved(group.group_id, allowed))


def expired_of(
    draft: Draft, group: Group, table: OffsetTable, pending: Collection[tuple[str, int]]
) -> Iterator[tuple[str, int]]:
    """Yield the partitions whose offsets have expired, by the clock that their group's state sets (3.4)."""
    if not table:
        return
    if not offsets_age(group):
        once(draft, "kept-by-members")
        return
    for topic, partitions in table.items():
        if group.is_subscribed_to(topic):
            once(draft, "kept-while-read")
            continue
        for partition, stored in partitions.items():
            why = why_expired(draft, group, stored)
            if why and (topic, partition) in pending:
                once(draft, "held-by-transaction")
            elif why:
                once(draft, why)
                yield topic, partition


def once(draft: Draft, step: str) -> None:
    """Name a step that many offsets have in common."""
    if step not in draft.steps:
        draft.then(step)


def offsets_age(group: Group) -> bool:
    """Return whether offsets of the group can expire at all in its state (XP-2 to XP-5)."""
    if group.protocol_type is None or group.state is State.EMPTY:
        return True
    return group.protocol_type == CONSUMER and group.state is State.STABLE and group.topics() is not None


def why_expired(draft: Draft, group: Group, stored: StoredOffset) -> str:
    """Return by which rule an offset has expired, "" if by none (XP-1 to XP-4, XP-8, XP-9).

    Nothing goes that is young by either clock: the wall's may be wrong, now or when the broker started.
    """
    now_ms, retention_ms = min(draft.now_ms, draft.wall_ms), draft.shard.settings.offsets_retention_ms
    if stored.expire_ms != -1:
        return "expired-at-its-own-end" if now_ms >= stored.expire_ms else ""
    if group.protocol_type is None:
        base_ms, why = stored.commit_ms, "expired-alone"
    elif group.state is State.EMPTY:
        base_ms, why = stored.commit_ms if group.since_ms is None else group.since_ms, "expired-since-emptied"
    else:
        base_ms, why = stored.commit_ms, "expired-unread"
    return why if now_ms - base_ms >= retention_ms else ""


def topics_deleted(draft: Draft, command: TopicsDeleted) -> Decision:
    """Drop what groups committed for topics that are gone, but not for later ones of the name (OM-7)."""
    offsets, pending = draft.shard.offsets, draft.shard.pending
    allowance, group_ids = Allowance(command.most_bytes), command.group_ids
    for group_id in dict.fromkeys((*offsets, *pending.groups())) if group_ids is None else group_ids:
        removed = tuple(allowance.up_to(group_id, outdated_of(draft.shard, group_id, command)))
        if removed:
            draft.apply(OffsetsRemoved(group_id, removed))
        if allowance.exhausted:
            draft.more = True
            break
    return draft.decision("topics-deleted")


def outdated_of(shard: Shard, group_id: str, command: TopicsDeleted) -> Iterator[tuple[str, int]]:
    """Yield for which partitions a group has committed that are gone, as far as anybody asks."""
    names = frozenset(command.topics)
    gone = shard.offsets.topics_of(group_id) & names
    table = shard.offsets[group_id] if gone else {}
    counted: dict[tuple[str, int], None] = {}
    for topic in sorted(gone):
        topic_id = command.topic_ids.get(topic)
        for partition, stored in table[topic].items():
            place = topic, partition
            counted[place] = None
            if not differ(stored.topic_id, topic_id) and not goes_on(shard, (group_id, *place), topic_id):
                yield place
    for place in shard.pending.partitions_of(group_id):
        topic, _ = place
        if topic not in names or place in counted:
            continue
        if not goes_on(shard, (group_id, *place), command.topic_ids.get(topic)):
            yield place


def goes_on(shard: Shard, key: tuple[str, str, int], gone: UUID | None) -> bool:
    """Return whether a transaction has committed for a later topic than the one of this id that is gone."""
    writers = shard.pending.of(key).values()
    return any(stored is not None and differ(stored.topic_id, gone) for stored in writers)
