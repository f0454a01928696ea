"""How each fact changes the state: every change goes into the shard's journal, which knows the way back.

`APPLY[type(fact)](world, fact)` makes the changes. Nothing else writes to groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from coterie.base.journal import Journal
from coterie.coordinator.group import facts
from coterie.coordinator.group.facts import Fact, StoredOffset
from coterie.coordinator.group.model import CONSUMER, Group, Member, OffsetTable, Protocols, State
from coterie.coordinator.group.offsets.stored import Key, OffsetTables, Pending, Writers, stored_offset
from coterie.wire.payloads.consumer_offsets import read_partition_key


class World(Protocol):
    """What facts change: a shard's groups and offsets."""

    journal: Journal
    groups: dict[str, Group]
    offsets: OffsetTables
    pending: Pending
    foreign: dict[str, set[bytes]]


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


def group_created(world: World, fact: facts.GroupCreated) -> None:
    assert fact.group_id not in world.groups
    world.journal.put(world.groups, fact.group_id, Group(fact.group_id, State.EMPTY, since_ms=fact.at_ms))


def group_stored(world: World, fact: facts.GroupStored) -> None:
    assert fact.group_id in world.groups


def group_removed(world: World, fact: facts.GroupRemoved) -> None:
    world.journal.drop(world.groups, fact.group_id)


def group_loaded(world: World, fact: facts.GroupLoaded) -> None:
    world.journal.put(world.groups, fact.group_id, loaded(world, fact))


def loaded(world: World, fact: facts.GroupLoaded) -> Group:
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
        enlist(world, group, member)
    group.subscriptions = spoken(group)
    return group


def group_died(world: World, fact: facts.GroupDied) -> None:
    group = world.groups[fact.group_id]
    world.journal.set_all(group.members.values(), join_call=None, sync_call=None)
    world.journal.set(group, awaiting_join=0, join_due_ms=None, sync_due_ms=None)
    move(world, group, fact, fact.at_ms)


def move(world: World, group: Group, fact: Fact, at_ms: int) -> None:
    """Change the state as `MOVES` allows."""
    sources, to = MOVES[type(fact)]
    assert group.state in sources, f"{group.group_id}: {group.state} does not lead to {to}"
    world.journal.set(group, state=to, previous_state=group.state, since_ms=at_ms)


# -- members


def enlist(world: World, group: Group, member: Member) -> None:
    """Put a member into the map, the static map and the counts; the first one leads (LD-1)."""
    journal = world.journal
    assert member.member_id not in group.members
    journal.put(group.members, member.member_id, member)
    if member.instance_id is not None:
        assert member.instance_id not in group.static
        journal.put(group.static, member.instance_id, member.member_id)
    if member.join_call is not None:
        journal.set(group, awaiting_join=group.awaiting_join + 1)
    if group.leader is None:
        journal.set(group, leader=member.member_id)
    count(world, group, member.protocols, 1)


def strike(world: World, group: Group, member: Member) -> None:
    """Take a member out of the map, the static map, the counts and the pending syncs (CG-8)."""
    journal = world.journal
    journal.drop(group.members, member.member_id)
    if member.instance_id is not None:
        journal.drop(group.static, member.instance_id)
    if member.join_call is not None:
        journal.set(group, awaiting_join=group.awaiting_join - 1)
    journal.discard(group.pending_sync, member.member_id)
    count(world, group, member.protocols, -1)


def line_up(group: Group, *_: None) -> None:
    """Have the members lie in the order in which they joined, after one was put back or into a place."""
    lined_up = sorted(group.members.items(), key=lambda item: item[1].order)
    group.members.clear()
    group.members.update(lined_up)


def count(world: World, group: Group, protocols: Protocols, step: int) -> None:
    """Count a member in or out as a supporter of each protocol that it names, once however often it does."""
    supporters = group.supporters
    for name in dict(protocols):
        supported = supporters.get(name, 0) + step
        if supported:
            world.journal.put(supporters, name, supported)
        else:
            world.journal.drop(supporters, name)


def member_id_promised(world: World, fact: facts.MemberIdPromised) -> None:
    group = world.groups[fact.group_id]
    assert fact.member_id not in group.members
    world.journal.put(group.pending, fact.member_id, fact.session_timeout_ms)


def promise_dropped(world: World, fact: facts.PromiseDropped) -> None:
    world.journal.drop(world.groups[fact.group_id].pending, fact.member_id)


def member_joined(world: World, fact: facts.MemberJoined) -> None:
    group, journal = world.groups[fact.group_id], world.journal
    if fact.member_id in group.pending:
        journal.drop(group.pending, fact.member_id)
    if not group.members:
        journal.set(group, protocol_type=fact.protocol_type)
    if group.initial:
        journal.set(group, new_member_added=True)
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
    journal.set(group, next_order=group.next_order + 1)
    enlist(world, group, member)


def member_rejoined(world: World, fact: facts.MemberRejoined) -> None:
    """Set what a JoinGroup sets: protocols, timeouts, and whether it is parked."""
    group, journal = world.groups[fact.group_id], world.journal
    member, timeouts = group.members[fact.member_id], (fact.session_timeout_ms, fact.rebalance_timeout_ms)
    if fact.protocols != member.protocols:
        count(world, group, member.protocols, -1)
        count(world, group, fact.protocols, 1)
        journal.set(member, protocols=fact.protocols)
    if timeouts != (member.session_timeout_ms, member.rebalance_timeout_ms):
        journal.set(member, session_timeout_ms=timeouts[0], rebalance_timeout_ms=timeouts[1])
    parked = (fact.call is not None) - (member.join_call is not None)
    if parked:
        journal.set(group, awaiting_join=group.awaiting_join + parked)
    journal.set(member, join_call=fact.call)


def member_replaced(world: World, fact: facts.MemberReplaced) -> None:
    group, journal = world.groups[fact.group_id], world.journal
    old = group.members[fact.old_id]
    assert group.static[fact.instance_id] == fact.old_id
    was_pending_sync, leader = fact.old_id in group.pending_sync, group.leader
    journal.add(line_up, group, None, None)  # the old one is put back behind the others
    strike(world, group, old)
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
    enlist(world, group, new)
    line_up(group)
    if was_pending_sync:
        journal.set(group, pending_sync=group.pending_sync | {fact.new_id})
    if leader == fact.old_id:
        journal.set(group, leader=fact.new_id)


def members_left(world: World, fact: facts.MembersLeft) -> None:
    group = world.groups[fact.group_id]
    world.journal.add(line_up, group, None, None)  # they are put back behind the others
    for member_id in fact.member_ids:
        strike(world, group, group.members[member_id])
    if group.leader is not None and group.leader in fact.member_ids:
        world.journal.set(group, leader=next(iter(group.members), None))  # the earliest one


def leader_elected(world: World, fact: facts.LeaderElected) -> None:
    group = world.groups[fact.group_id]
    assert fact.member_id in group.members
    world.journal.set(group, leader=fact.member_id)


# -- rebalances


def rebalance_started(world: World, fact: facts.RebalanceStarted) -> None:
    group = world.groups[fact.group_id]
    if group.state is State.COMPLETING:
        world.journal.set_all(group.members.values(), assignment=b"", sync_call=None)
    world.journal.set(group, pending_sync=set(), sync_due_ms=None, new_member_added=False)
    move(world, group, fact, fact.at_ms)


def join_deadline_set(world: World, fact: facts.JoinDeadlineSet) -> None:
    world.journal.set(
        world.groups[fact.group_id],
        join_due_ms=fact.due_ms,
        delay_ms=fact.delay_ms,
        remaining_ms=fact.remaining_ms,
        new_member_added=False,
    )


def generation_started(world: World, fact: facts.GenerationStarted) -> None:
    group = world.groups[fact.group_id]
    members = group.members.values()
    world.journal.set_all(members, join_call=None)
    world.journal.set_all([member for member in members if member.is_new], is_new=False)
    world.journal.set(group, awaiting_join=0, sync_due_ms=fact.sync_due_ms, pending_sync=set(group.members))
    end_join_phase(world, group, fact, fact.protocol)


def group_emptied(world: World, fact: facts.GroupEmptied) -> None:
    group = world.groups[fact.group_id]
    assert not group.members
    end_join_phase(world, group, fact, None)


def end_join_phase(
    world: World, group: Group, fact: facts.GenerationStarted | facts.GroupEmptied, protocol: str | None
) -> None:
    """Begin the next generation with what its members said."""
    move(world, group, fact, fact.at_ms)
    world.journal.set(
        group,
        generation=fact.generation,
        protocol=protocol,
        join_due_ms=None,
        delay_ms=0,
        remaining_ms=0,
    )
    world.journal.set(group, subscriptions=spoken(group))


def spoken(group: Group) -> tuple[bytes, ...] | None:
    """Return each member's metadata under the chosen protocol, None where that says nothing of topics."""
    if group.protocol_type != CONSUMER:
        return None
    if not group.members:
        return ()
    protocol = group.protocol
    return None if protocol is None else tuple(m.metadata(protocol) for m in group.members.values())


def sync_parked(world: World, fact: facts.SyncParked) -> None:
    group = world.groups[fact.group_id]
    world.journal.set(group.members[fact.member_id], sync_call=fact.call)
    heard_sync(world, group, fact.member_id)


def member_synced(world: World, fact: facts.MemberSynced) -> None:
    heard_sync(world, world.groups[fact.group_id], fact.member_id)


def heard_sync(world: World, group: Group, member_id: str) -> None:
    """Await one sync less; with the last one the phase's deadline goes (SG-15)."""
    world.journal.discard(group.pending_sync, member_id)
    if not group.pending_sync:  # an emptied one keeps its room, 700 bytes a group of ten
        world.journal.set(group, sync_due_ms=None, pending_sync=set())


def assigned(world: World, fact: facts.Assigned) -> None:
    for member_id, member in world.groups[fact.group_id].members.items():
        world.journal.set(member, assignment=fact.assignments[member_id])


def group_stabilized(world: World, fact: facts.GroupStabilized) -> None:
    group = world.groups[fact.group_id]
    parked = [member for member in group.members.values() if member.sync_call is not None]
    world.journal.set_all(parked, sync_call=None)
    move(world, group, fact, fact.at_ms)


# -- offsets


def offsets_committed(world: World, fact: facts.OffsetsCommitted) -> None:
    put, table = world.journal.put, table_of(world, fact.group_id)
    for topic, partition, stored in fact.offsets:
        by_partition = table[topic] if topic in table else world.journal.put(table, topic, {})
        put(by_partition, partition, stored)
    if world.pending:
        for topic, partition, _ in fact.offsets:
            overtake(world, (fact.group_id, topic, partition))


def table_of(world: World, group_id: str) -> OffsetTable:
    """Return the OffsetTable of a group's commits; there is one from now on."""
    table = world.offsets.get(group_id)
    return world.journal.put(world.offsets, group_id, {}) if table is None else table


def offsets_of(world: World, group_id: str, topic: str) -> dict[int, StoredOffset]:
    """Return a group's committed offsets for a topic, by partition; there is a dict from now on."""
    table = table_of(world, group_id)
    return table[topic] if topic in table else world.journal.put(table, topic, {})


def overtake(world: World, key: Key) -> None:
    """Leave nothing of what transactions committed earlier for the same partition."""
    writers = world.pending.of(key)
    if writers:
        set_writers(world, key, dict.fromkeys(writers))


def set_writers(world: World, key: Key, writers: Writers) -> None:
    """Replace those who have a transaction open for a partition."""
    world.journal.add(Pending.put, world.pending, key, world.pending.put(key, writers))


def offsets_pending(world: World, fact: facts.OffsetsPending) -> None:
    for topic, partition, stored in fact.offsets:
        key = fact.group_id, topic, partition
        others = {one: held for one, held in world.pending.of(key).items() if one != fact.producer_id}
        set_writers(world, key, others | {fact.producer_id: stored})


def transaction_ended(world: World, fact: facts.TransactionEnded) -> None:
    journal, place, table = world.journal, None, dict[int, StoredOffset]()
    for key, writers in world.pending.end(fact.producer_id, commit=fact.commit):
        journal.add(Pending.put, world.pending, key, writers)
        stored = writers[fact.producer_id] if fact.commit else None
        if stored is not None:
            if key[:2] != place:
                place = key[:2]
                table = offsets_of(world, *place)
            journal.put(table, key[2], stored)


def offsets_removed(world: World, fact: facts.OffsetsRemoved) -> None:
    for topic, partition in fact.partitions:
        remove(world, fact.group_id, topic, partition)
        key = fact.group_id, topic, partition
        if world.pending.of(key):
            set_writers(world, key, {})


def remove(world: World, group_id: str, topic: str, partition: int) -> None:
    """Remove one partition's offset, if there is one; tables that became empty go too."""
    journal, table = world.journal, world.offsets.get(group_id)
    if table is None or partition not in table.get(topic, ()):
        return
    journal.drop(table[topic], partition)
    if not table[topic]:
        journal.drop(table, topic)
        if not table:
            journal.drop(world.offsets, group_id)


def offsets_loaded(world: World, fact: facts.OffsetsLoaded) -> None:
    """Take over what the log has. It is loaded and nothing else, and what is loaded is not rolled back."""
    group_id, packed = fact.group_id, fact.packed
    if world.offsets.is_packed(group_id) and not world.pending.partitions_of(group_id):
        world.offsets.pack(group_id, packed)
        return
    for key, value in packed.items():
        topic, partition = read_partition_key(key)
        place = group_id, topic, partition
        if value is None:
            offsets_removed(world, facts.OffsetsRemoved(group_id, ((topic, partition),)))
        else:
            world.journal.put(offsets_of(world, group_id, topic), partition, stored_offset(value))
            overtake(world, place)


def foreign_seen(world: World, fact: facts.ForeignSeen) -> None:
    """Remember a record of somebody else's group, or forget it; a group without any is nobody else's. It is
    loaded and nothing else, as `OffsetsLoaded` is.
    """
    keys = world.foreign.setdefault(fact.group_id, set())
    if fact.present:
        keys.add(fact.key)
    else:
        keys.discard(fact.key)
    if not keys:
        del world.foreign[fact.group_id]


def foreign_ended(world: World, fact: facts.ForeignEnded) -> None:
    world.journal.drop(world.foreign, fact.group_id)


APPLY: Mapping[type, Callable[[Any, Any], None]] = MappingProxyType(
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
