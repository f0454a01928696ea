"""How each fact changes the state, and how the change is taken back.

`APPLY[type(fact)](world, fact)` makes the change and returns its undoing: a function and its arguments,
called by the undo log, newest first, so that it finds the state as the change left it. Nothing else writes
to groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from coterie.coordinator.group import facts
from coterie.coordinator.group.facts import Fact, StoredOffset
from coterie.coordinator.group.model import CONSUMER, Group, Member, Protocols, State, offset_of
from coterie.coordinator.group.offsets.pending import Key, Pending, Writers
from coterie.coordinator.group.offsets.stored import OffsetTables, stored_offset
from coterie.wire.payloads.consumer_offsets import read_partition_key

Undo: TypeAlias = tuple[Any, ...]  # a callable and its arguments


class World(Protocol):
    """What facts change: a shard's groups and offsets. Undoing is worth preparing only while `recording`."""

    groups: dict[str, Group]
    offsets: OffsetTables
    pending: Pending
    foreign: dict[str, set[bytes]]
    recording: bool


# Which fact moves a group to which state, and from where (2.1). docs/states.md draws its diagram from this.
MOVES: Mapping[type, tuple[frozenset[State], State]] = MappingProxyType(
    {
        facts.RebalanceStarted: (
            frozenset({State.EMPTY, State.COMPLETING, State.STABLE}),
            State.PREPARING,
        ),
        facts.GenerationStarted: (frozenset({State.PREPARING}), State.COMPLETING),
        facts.GroupEmptied: (frozenset({State.PREPARING}), State.EMPTY),
        facts.GroupStabilized: (frozenset({State.COMPLETING}), State.STABLE),
        facts.GroupDied: (frozenset(State), State.DEAD),
    }
)
ARRIVES_FROM: Mapping[State, frozenset[State]] = MappingProxyType(
    {to: sources for sources, to in MOVES.values()}
)
assert ARRIVES_FROM.keys() == set(State)


def session_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    """Return the key of a member's session deadline, or of a promised id's."""
    return ("session", group_id, member_id)


def barrier_keys(group_id: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the keys of the two deadlines of a group: its join phase's and its sync phase's."""
    return ("join", group_id), ("sync", group_id)


# -- groups


def group_created(world: World, fact: facts.GroupCreated) -> Undo:
    assert fact.group_id not in world.groups
    world.groups[fact.group_id] = Group(fact.group_id, State.EMPTY, since_ms=fact.at_ms)
    return world.groups.pop, fact.group_id


def group_stored(world: World, fact: facts.GroupStored) -> Undo:
    assert fact.group_id in world.groups
    return (nothing,)


def nothing() -> None:
    """Undo what changed nothing."""


def group_removed(world: World, fact: facts.GroupRemoved) -> Undo:
    group = world.groups.pop(fact.group_id)
    return world.groups.__setitem__, fact.group_id, group


def group_loaded(world: World, fact: facts.GroupLoaded) -> Undo:
    before = world.groups.get(fact.group_id)
    world.groups[fact.group_id] = loaded(fact)
    if before is None:
        return world.groups.pop, fact.group_id
    return world.groups.__setitem__, fact.group_id, before


def loaded(fact: facts.GroupLoaded) -> Group:
    """Return a group as the log has it: with members it is Stable, without it is Empty (LO-2)."""
    group = Group(fact.group_id, State.STABLE if fact.members else State.EMPTY, since_ms=fact.since_ms)
    group.generation = fact.generation
    group.protocol_type, group.protocol, group.leader = fact.protocol_type, fact.protocol, fact.leader
    for known in fact.members:
        member = Member(
            member_id=known.member_id,
            instance_id=known.instance_id,
            client_id=known.client_id,
            client_host=known.client_host,
            protocol_type=fact.protocol_type or "",
            protocols=((fact.protocol or "", known.subscription),),
            session_timeout_ms=known.session_timeout_ms,
            rebalance_timeout_ms=known.rebalance_timeout_ms,
            order=group.next_order,
            group_id=fact.group_id,
            assignment=known.assignment,
        )
        group.next_order += 1
        enlist(group, member)
    group.subscriptions = spoken(group)
    return group


def group_died(world: World, fact: facts.GroupDied) -> Undo:
    group = world.groups[fact.group_id]
    calls = [(m, m.join_call, m.sync_call) for m in group.members.values()]
    before = group.awaiting_join, group.join_due_ms, group.sync_due_ms
    for member, _, _ in calls:
        member.join_call = member.sync_call = None
    group.awaiting_join, group.join_due_ms, group.sync_due_ms = 0, None, None
    moved = move(group, fact, fact.at_ms)
    return undo_died, group, moved, calls, before


def undo_died(group: Group, moved: Moved, calls: Iterable[Any], before: tuple[Any, ...]) -> None:
    undo_move(group, moved)
    group.awaiting_join, group.join_due_ms, group.sync_due_ms = before
    for member, join_call, sync_call in calls:
        member.join_call, member.sync_call = join_call, sync_call


Moved: TypeAlias = tuple[State, State, int | None]


def move(group: Group, fact: Fact, at_ms: int) -> Moved:
    """Change the state as `MOVES` allows, and return what it was."""
    sources, to = MOVES[type(fact)]
    assert group.state in sources, f"{group.group_id}: {group.state} does not lead to {to}"
    before = group.state, group.previous_state, group.since_ms
    group.state, group.previous_state, group.since_ms = to, group.state, at_ms
    return before


def undo_move(group: Group, before: Moved) -> None:
    group.state, group.previous_state, group.since_ms = before


# -- members


def enlist(group: Group, member: Member) -> None:
    """Put a member into the map, the static map and the counts; the first one leads (LD-1)."""
    assert member.member_id not in group.members
    group.members[member.member_id] = member
    if member.instance_id is not None:
        assert member.instance_id not in group.static
        group.static[member.instance_id] = member.member_id
    if member.join_call is not None:
        group.awaiting_join += 1
    if group.leader is None:
        group.leader = member.member_id
    count(group, member.protocols, 1)


def strike(group: Group, member: Member) -> None:
    """Take a member out of the map, the static map, the counts and the pending syncs (CG-8)."""
    del group.members[member.member_id]
    if member.instance_id is not None:
        del group.static[member.instance_id]
    if member.join_call is not None:
        group.awaiting_join -= 1
    group.pending_sync.discard(member.member_id)
    count(group, member.protocols, -1)


def line_up(group: Group) -> None:
    """Have the members lie in the order in which they joined, after one was put back or into a place."""
    lined_up = sorted(group.members.items(), key=lambda item: item[1].order)
    group.members.clear()
    group.members.update(lined_up)


def count(group: Group, protocols: Protocols, step: int) -> None:
    """Count a member in or out as a supporter of each protocol that it names, once however often it does."""
    supporters = group.supporters
    for name in dict(protocols):
        supported = supporters.get(name, 0) + step
        if supported:
            supporters[name] = supported
        else:
            del supporters[name]


def member_id_promised(world: World, fact: facts.MemberIdPromised) -> Undo:
    group = world.groups[fact.group_id]
    assert fact.member_id not in group.members
    group.pending[fact.member_id] = fact.session_timeout_ms
    return group.pending.__delitem__, fact.member_id


def promise_dropped(world: World, fact: facts.PromiseDropped) -> Undo:
    group = world.groups[fact.group_id]
    session_timeout_ms = group.pending.pop(fact.member_id)
    return group.pending.__setitem__, fact.member_id, session_timeout_ms


def member_joined(world: World, fact: facts.MemberJoined) -> Undo:
    group = world.groups[fact.group_id]
    promised = group.pending.pop(fact.member_id, None)
    before = group.protocol_type, group.leader, group.new_member_added
    if not group.members:
        group.protocol_type = fact.protocol_type
    if group.initial:
        group.new_member_added = True
    member = Member(
        fact.member_id,
        fact.instance_id,
        fact.client_id,
        fact.client_host,
        fact.protocol_type,
        fact.protocols,
        fact.session_timeout_ms,
        fact.rebalance_timeout_ms,
        group.next_order,
        group.group_id,
        b"",
        fact.call,
        None,
        True,
    )
    group.next_order += 1
    enlist(group, member)
    return undo_joined, group, member, promised, before


def undo_joined(group: Group, member: Member, promised: int | None, before: tuple[Any, ...]) -> None:
    strike(group, member)
    group.next_order -= 1
    group.protocol_type, group.leader, group.new_member_added = before
    if promised is not None:
        group.pending[member.member_id] = promised


def member_rejoined(world: World, fact: facts.MemberRejoined) -> Undo:
    group = world.groups[fact.group_id]
    member = group.members[fact.member_id]
    before = member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms, member.join_call
    after = fact.protocols, fact.session_timeout_ms, fact.rebalance_timeout_ms, fact.call
    set_terms(group, member, after)
    return set_terms, group, member, before


def set_terms(group: Group, member: Member, terms: tuple[Protocols, int, int, int | None]) -> None:
    """Set what a JoinGroup sets: protocols, timeouts, and whether it is parked."""
    protocols, session_timeout_ms, rebalance_timeout_ms, call = terms
    if protocols != member.protocols:
        count(group, member.protocols, -1)
        count(group, protocols, 1)
        member.protocols = protocols
    member.session_timeout_ms, member.rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms
    group.awaiting_join += (call is not None) - (member.join_call is not None)
    member.join_call = call


def member_replaced(world: World, fact: facts.MemberReplaced) -> Undo:
    group = world.groups[fact.group_id]
    old = group.members[fact.old_id]
    assert group.static[fact.instance_id] == fact.old_id
    was_pending_sync, leader = fact.old_id in group.pending_sync, group.leader
    strike(group, old)
    new = Member(
        member_id=fact.new_id,
        instance_id=fact.instance_id,
        client_id=old.client_id,
        client_host=old.client_host,
        protocol_type=old.protocol_type,
        protocols=old.protocols,
        session_timeout_ms=old.session_timeout_ms,
        rebalance_timeout_ms=old.rebalance_timeout_ms,
        order=old.order,
        group_id=group.group_id,
        assignment=old.assignment,
    )
    enlist(group, new)
    line_up(group)
    if was_pending_sync:
        group.pending_sync.add(fact.new_id)
    if leader == fact.old_id:
        group.leader = fact.new_id
    return undo_replaced, group, old, new, was_pending_sync, leader


def undo_replaced(group: Group, old: Member, new: Member, was_pending_sync: bool, leader: str | None) -> None:
    strike(group, new)
    enlist(group, old)
    line_up(group)
    if was_pending_sync:
        group.pending_sync.add(old.member_id)
    group.leader = leader


def members_left(world: World, fact: facts.MembersLeft) -> Undo:
    group = world.groups[fact.group_id]
    leader, pending_sync = group.leader, group.pending_sync.intersection(fact.member_ids)
    gone = [group.members[member_id] for member_id in fact.member_ids]
    for member in gone:
        strike(group, member)
    if leader is not None and leader in fact.member_ids:
        group.leader = next(iter(group.members), None)  # the earliest one
    return undo_left, group, gone, pending_sync, leader


def undo_left(group: Group, gone: list[Member], pending_sync: set[str], leader: str | None) -> None:
    for member in gone:
        enlist(group, member)
    line_up(group)
    group.pending_sync |= pending_sync
    group.leader = leader


def leader_elected(world: World, fact: facts.LeaderElected) -> Undo:
    group = world.groups[fact.group_id]
    assert fact.member_id in group.members
    before, group.leader = group.leader, fact.member_id
    return setattr, group, "leader", before


# -- rebalances


def rebalance_started(world: World, fact: facts.RebalanceStarted) -> Undo:
    group = world.groups[fact.group_id]
    cleared = []
    if group.state is State.COMPLETING:
        for member in group.members.values():
            cleared.append((member, member.assignment, member.sync_call))
            member.assignment, member.sync_call = b"", None
    before = group.pending_sync, group.sync_due_ms, group.new_member_added
    group.pending_sync, group.sync_due_ms, group.new_member_added = set(), None, False
    moved = move(group, fact, fact.at_ms)
    return undo_rebalance_started, group, moved, cleared, before


def undo_rebalance_started(
    group: Group, moved: Moved, cleared: list[tuple[Member, bytes, int | None]], before: tuple[Any, ...]
) -> None:
    undo_move(group, moved)
    group.pending_sync, group.sync_due_ms, group.new_member_added = before
    for member, assignment, sync_call in cleared:
        member.assignment, member.sync_call = assignment, sync_call


def join_deadline_set(world: World, fact: facts.JoinDeadlineSet) -> Undo:
    group = world.groups[fact.group_id]
    before = group.join_due_ms, group.delay_ms, group.remaining_ms, group.new_member_added
    set_join_deadline(group, (fact.due_ms, fact.delay_ms, fact.remaining_ms, False))
    return set_join_deadline, group, before


def set_join_deadline(group: Group, values: tuple[int | None, int, int, bool]) -> None:
    group.join_due_ms, group.delay_ms, group.remaining_ms, group.new_member_added = values


def generation_started(world: World, fact: facts.GenerationStarted) -> Undo:
    group = world.groups[fact.group_id]
    answered = [(m, m.join_call, m.is_new) for m in group.members.values()]
    for member, _, _ in answered:
        member.join_call, member.is_new = None, False
    before = phase(group)
    moved = move(group, fact, fact.at_ms)
    group.generation, group.protocol, group.awaiting_join = fact.generation, fact.protocol, 0
    group.join_due_ms, group.delay_ms, group.remaining_ms = None, 0, 0
    group.sync_due_ms, group.pending_sync = fact.sync_due_ms, set(group.members)
    group.subscriptions = spoken(group)
    return undo_generation, group, moved, before, answered


def group_emptied(world: World, fact: facts.GroupEmptied) -> Undo:
    group = world.groups[fact.group_id]
    assert not group.members
    before = phase(group)
    moved = move(group, fact, fact.at_ms)
    group.generation, group.protocol = fact.generation, None
    group.join_due_ms, group.delay_ms, group.remaining_ms = None, 0, 0
    group.subscriptions = spoken(group)
    return undo_generation, group, moved, before, ()


def phase(group: Group) -> tuple[Any, ...]:
    """Return what the end of a join phase changes in a group itself."""
    return (
        group.generation,
        group.protocol,
        group.awaiting_join,
        group.join_due_ms,
        group.delay_ms,
        group.remaining_ms,
        group.sync_due_ms,
        group.pending_sync,
        group.subscriptions,
    )


def undo_generation(
    group: Group, moved: Moved, before: tuple[Any, ...], answered: Iterable[tuple[Member, int | None, bool]]
) -> None:
    undo_move(group, moved)
    (
        group.generation,
        group.protocol,
        group.awaiting_join,
        group.join_due_ms,
        group.delay_ms,
        group.remaining_ms,
        group.sync_due_ms,
        group.pending_sync,
        group.subscriptions,
    ) = before
    for member, join_call, is_new in answered:
        member.join_call, member.is_new = join_call, is_new


def spoken(group: Group) -> tuple[bytes, ...] | None:
    """Return what the members said under the chosen protocol, None where that says nothing of topics."""
    if group.protocol_type != CONSUMER:
        return None
    if not group.members:
        return ()
    protocol = group.protocol
    return None if protocol is None else tuple(m.metadata(protocol) for m in group.members.values())


def sync_parked(world: World, fact: facts.SyncParked) -> Undo:
    group = world.groups[fact.group_id]
    member = group.members[fact.member_id]
    before = member.sync_call, fact.member_id in group.pending_sync, group.sync_due_ms
    member.sync_call = fact.call
    heard_sync(group, fact.member_id)
    return undo_synced, group, member, before


def member_synced(world: World, fact: facts.MemberSynced) -> Undo:
    group = world.groups[fact.group_id]
    member = group.members[fact.member_id]
    before = member.sync_call, fact.member_id in group.pending_sync, group.sync_due_ms
    heard_sync(group, fact.member_id)
    return undo_synced, group, member, before


def heard_sync(group: Group, member_id: str) -> None:
    """Await one sync less; with the last one the phase's deadline goes (SG-15)."""
    group.pending_sync.discard(member_id)
    if not group.pending_sync:
        group.sync_due_ms = None
        group.pending_sync = set()  # an emptied one keeps its room, 700 bytes a group of ten


def undo_synced(group: Group, member: Member, before: tuple[int | None, bool, int | None]) -> None:
    member.sync_call, was_pending, group.sync_due_ms = before
    if was_pending:
        group.pending_sync.add(member.member_id)


def assigned(world: World, fact: facts.Assigned) -> Undo:
    group = world.groups[fact.group_id]
    before = [(member, member.assignment) for member in group.members.values()]
    for member, _ in before:
        member.assignment = fact.assignments[member.member_id]
    return undo_assigned, before


def undo_assigned(before: list[tuple[Member, bytes]]) -> None:
    for member, assignment in before:
        member.assignment = assignment


def group_stabilized(world: World, fact: facts.GroupStabilized) -> Undo:
    group = world.groups[fact.group_id]
    parked = [(m, m.sync_call) for m in group.members.values() if m.sync_call is not None]
    for member, _ in parked:
        member.sync_call = None
    moved = move(group, fact, fact.at_ms)
    return undo_stabilized, group, moved, parked


def undo_stabilized(group: Group, moved: Moved, parked: list[tuple[Member, int | None]]) -> None:
    undo_move(group, moved)
    for member, sync_call in parked:
        member.sync_call = sync_call


# -- offsets


def offsets_committed(world: World, fact: facts.OffsetsCommitted) -> Undo:
    table = world.offsets.get(fact.group_id)
    if table is None:
        table = world.offsets[fact.group_id] = {}
    before = []
    for topic, partition, stored in fact.offsets:
        by_partition = table.get(topic)
        if by_partition is None:
            by_partition = table[topic] = {}
        before.append((topic, partition, by_partition.get(partition)))
        by_partition[partition] = stored
    if not world.pending:
        return put_back, world, fact.group_id, before
    return put_back_both, world, fact.group_id, before, overtake(world, fact)


def overtake(world: World, fact: facts.OffsetsCommitted) -> list[tuple[Key, Writers]]:
    """Leave nothing of what transactions committed earlier for the same partitions; return what they had."""
    before = []
    for topic, partition, _ in fact.offsets:
        key = fact.group_id, topic, partition
        writers = world.pending.of(key)
        if writers:
            before.append((key, world.pending.put(key, dict.fromkeys(writers))))
    return before


def put_back_both(
    world: World,
    group_id: str,
    before: list[tuple[str, int, StoredOffset | None]],
    pending: list[tuple[Key, Writers]],
) -> None:
    put_back(world, group_id, before)
    put_back_pending(world, pending)


def put_back_pending(world: World, before: list[tuple[Key, Writers]]) -> None:
    for key, writers in reversed(before):
        world.pending.put(key, writers)


def offsets_pending(world: World, fact: facts.OffsetsPending) -> Undo:
    before = []
    for topic, partition, stored in fact.offsets:
        key = fact.group_id, topic, partition
        others = {one: held for one, held in world.pending.of(key).items() if one != fact.producer_id}
        before.append((key, world.pending.put(key, others | {fact.producer_id: stored})))
    return put_back_pending, world, before


def transaction_ended(world: World, fact: facts.TransactionEnded) -> Undo:
    pending, before = world.pending.end(fact.producer_id, commit=fact.commit), []
    place, table = None, dict[int, StoredOffset]()
    for (group_id, topic, partition), writers in pending if fact.commit else ():
        stored = writers[fact.producer_id]
        if stored is not None:
            if (group_id, topic) != place:
                place = group_id, topic
                table = world.offsets.setdefault(group_id, {}).setdefault(topic, {})
            before.append((group_id, topic, partition, table.get(partition)))
            table[partition] = stored
    return undo_ended, world, before, pending


def undo_ended(
    world: World,
    before: list[tuple[str, str, int, StoredOffset | None]],
    pending: list[tuple[Key, Writers]],
) -> None:
    for group_id, topic, partition, was in reversed(before):
        store(world, group_id, topic, partition, was)
    put_back_pending(world, pending)


def offsets_removed(world: World, fact: facts.OffsetsRemoved) -> Undo:
    table = world.offsets.get(fact.group_id, {})
    before = [(topic, partition, offset_of(table, topic, partition)) for topic, partition in fact.partitions]
    pending = []
    for topic, partition in fact.partitions:
        store(world, fact.group_id, topic, partition, None)
        key = fact.group_id, topic, partition
        if world.pending.of(key):
            pending.append((key, world.pending.put(key, {})))
    return put_back_both, world, fact.group_id, before, pending


def offsets_loaded(world: World, fact: facts.OffsetsLoaded) -> Undo:
    group_id, packed = fact.group_id, fact.packed
    if world.offsets.is_packed(group_id) and not world.pending.partitions_of(group_id):
        was = world.offsets.packed_of(group_id) if world.recording else {}
        world.offsets.pack(group_id, dict(packed) if world.recording else packed)
        return world.offsets.put_back, group_id, was
    before, pending = [], []
    for key, value in packed.items():
        topic, partition = read_partition_key(key)
        before.append((topic, partition, offset_of(world.offsets.get(group_id, {}), topic, partition)))
        store(world, group_id, topic, partition, None if value is None else stored_offset(value))
        place = group_id, topic, partition
        writers = world.pending.of(place)
        if writers:
            left = {} if value is None else dict.fromkeys(writers)
            pending.append((place, world.pending.put(place, left)))
    return put_back_both, world, group_id, before, pending


def foreign_seen(world: World, fact: facts.ForeignSeen) -> Undo:
    was = fact.key in world.foreign.get(fact.group_id, ())
    keep_foreign(world, fact.group_id, fact.key, present=fact.present)
    return undo_foreign, world, fact.group_id, fact.key, was


def undo_foreign(world: World, group_id: str, key: bytes, was: bool) -> None:
    keep_foreign(world, group_id, key, present=was)


def foreign_ended(world: World, fact: facts.ForeignEnded) -> Undo:
    return world.foreign.__setitem__, fact.group_id, world.foreign.pop(fact.group_id)


def keep_foreign(world: World, group_id: str, key: bytes, *, present: bool) -> None:
    """Remember a record of somebody else's group, or forget it; a group without any is nobody else's."""
    keys = world.foreign.setdefault(group_id, set())
    if present:
        keys.add(key)
    else:
        keys.discard(key)
    if not keys:
        del world.foreign[group_id]


def put_back(world: World, group_id: str, before: list[tuple[str, int, StoredOffset | None]]) -> None:
    """Undo, last first: one command may name a partition twice."""
    for topic, partition, stored in reversed(before):
        store(world, group_id, topic, partition, stored)


def store(world: World, group_id: str, topic: str, partition: int, stored: StoredOffset | None) -> None:
    """Set one partition's offset, or remove it with None; tables that became empty go too."""
    if stored is not None:
        world.offsets.setdefault(group_id, {}).setdefault(topic, {})[partition] = stored
        return
    table = world.offsets.get(group_id)
    if table is None or topic not in table:
        return
    table[topic].pop(partition, None)
    if not table[topic]:
        del table[topic]
        if not table:
            del world.offsets[group_id]


APPLY: Mapping[type, Callable[[Any, Any], Undo]] = MappingProxyType(
    {
        facts.GroupCreated: group_created,
        facts.GroupStored: group_stored,
        facts.GroupRemoved: group_removed,
        facts.GroupLoaded: group_loaded,
        facts.GroupDied: group_died,
        facts.MemberIdPromised: member_id_promised,
        facts.PromiseDropped: promise_dropped,
        facts.MemberJoined: member_joined,
        facts.MemberRejoined: member_rejoined,
        facts.MemberReplaced: member_replaced,
        facts.MembersLeft: members_left,
        facts.LeaderElected: leader_elected,
        facts.RebalanceStarted: rebalance_started,
        facts.JoinDeadlineSet: join_deadline_set,
        facts.GenerationStarted: generation_started,
        facts.GroupEmptied: group_emptied,
        facts.SyncParked: sync_parked,
        facts.MemberSynced: member_synced,
        facts.Assigned: assigned,
        facts.GroupStabilized: group_stabilized,
        facts.OffsetsCommitted: offsets_committed,
        facts.OffsetsPending: offsets_pending,
        facts.TransactionEnded: transaction_ended,
        facts.OffsetsRemoved: offsets_removed,
        facts.OffsetsLoaded: offsets_loaded,
        facts.ForeignSeen: foreign_seen,
        facts.ForeignEnded: foreign_ended,
    }
)
assert set(APPLY) == set(Fact.__args__)
