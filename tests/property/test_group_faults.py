"""That the net holds: faults planted into the core, each found by the machine of `test_group_machine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from test_group_machine import GroupMachine

from coterie.base.codes import Code
from coterie.coordinator.group import apply, failures, records, shard
from coterie.coordinator.group.classic import expiry, join, join_phase, leave, static, sync
from coterie.coordinator.group.facts import GroupRemoved, GroupStored, OffsetsCommitted
from coterie.coordinator.group.model import Group
from coterie.coordinator.group.offsets import committed as offsets
from coterie.coordinator.group.shard import Draft
from planting import GENERATED, Faults, instead

FAULTS = fault = Faults()


@fault
def a_heartbeat_that_moves_nothing(patch: pytest.MonkeyPatch) -> None:
    instead(patch, sync, "renew_the_session_and_call_to_rebalance", lambda keep: keep)
    patch.setattr(Draft, "restart_session", lambda draft, member: None)


@fault.from_seed(6)
def a_stale_generation_that_passes(patch: pytest.MonkeyPatch) -> None:
    instead(patch, sync, "refusal_of", lambda refusal: lambda group, command: (
        (Code.NONE, "") if refusal(group, command)[1] == "stale-generation" else refusal(group, command)
    ))  # fmt: skip


@fault
def a_new_member_with_its_own_session_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(join, "NEW_MEMBER_JOIN_TIMEOUT_MS", 45_000)


@fault
def a_sync_phase_without_an_end(patch: pytest.MonkeyPatch) -> None:
    arm = Draft.arm
    patch.setattr(Draft, "arm", lambda draft, key, at_ms: key[0] == "sync" or arm(draft, key, at_ms))


@fault.from_seed(2)
def a_join_phase_as_long_as_the_most_impatient_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Group,
        "rebalance_timeout_ms",
        lambda group: min((m.rebalance_timeout_ms for m in group.members.values()), default=0),
    )


@fault.from_seed(3)
def an_initial_delay_that_nobody_extends(patch: pytest.MonkeyPatch) -> None:
    def end(draft: Draft, group: Group) -> str:
        join_phase.complete(draft, group)
        return "initial-delay-over"

    patch.setattr(join_phase, "end_initial_delay", end)


@fault
def a_silent_member_that_stays(patch: pytest.MonkeyPatch) -> None:
    instead(patch, expiry, "forget", lambda forget: lambda draft, group, member_id: (
        "session-satisfied" if member_id in group.members else forget(draft, group, member_id)
    ))  # fmt: skip


@fault.from_seed(2)
def a_member_that_never_synced_and_stays(patch: pytest.MonkeyPatch) -> None:
    def due(remove: Any) -> Any:
        return lambda draft, group, member_ids: remove(draft, group, member_ids[:1])

    instead(patch, expiry.join_phase, "remove", due)


@fault.from_seed(10)
def a_commit_that_is_no_sign_of_life(patch: pytest.MonkeyPatch) -> None:
    def quietly(commit: Any) -> Any:
        def committed(draft: Draft, group: Group, command: Any) -> Any:
            decision = commit(draft, group, command)
            return decision._replace(timers=())

        return committed

    plant_in_table(patch, offsets.commit_for_a_member, quietly)


@fault
def an_old_self_whose_deadline_stays(patch: pytest.MonkeyPatch) -> None:
    def replaced(replace_: Any) -> Any:
        def kept(draft: Draft, group: Group, command: Any, old_id: str) -> str:
            new_id: str = replace_(draft, group, command, old_id)
            draft.timers = [wake for wake in draft.timers if wake.at_ms is not None]
            return new_id

        return kept

    instead(patch, static, "replace", replaced)


@fault.from_seed(2)
def a_leader_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch,
        apply,
        "strike",
        lambda strike: lambda world, group, member: strike_all_but_leader(strike, world, group, member),
    )


def strike_all_but_leader(strike: Any, world: Any, group: Group, member: Any) -> None:
    leader = group.leader
    strike(world, group, member)
    group.pending_sync.add(member.member_id)
    group.leader = leader


@fault.from_seed(3)
def a_parked_join_that_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    instead(patch, join_phase, "remove", lambda remove: remove)
    patch.setattr(leave, "tell_removed", lambda draft, member: None)
    patch.setattr(expiry, "tell_removed", lambda draft, member: None)


@fault.from_seed(3)
def an_assignment_that_everybody_gets(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch,
        sync,
        "synced",
        lambda synced: lambda group, assignment: synced(group, assignment[:2] and b"1/0"),
    )


@fault
def a_tombstone_that_stores_the_group(patch: pytest.MonkeyPatch) -> None:
    def without(records_of: Any) -> Any:
        def written(groups: Any, fact: Any) -> Any:
            if isinstance(fact, GroupRemoved):
                key = records_of(groups, fact)[0][0]
                return ((key, empty_group()),)
            return records_of(groups, fact)

        return written

    instead(patch, shard, "records_of", without)


def empty_group() -> bytes:
    value = records.GroupMetadataValue("consumer", 1)
    raw = records.group_metadata_record(records.GroupMetadataKey("g"), value)[1]
    assert raw is not None
    return raw


@fault.from_seed(3)
def an_assignment_that_is_not_written(patch: pytest.MonkeyPatch) -> None:
    def without(records_of: Any) -> Any:
        def written(groups: Any, fact: Any) -> Any:
            found = records_of(groups, fact)
            if isinstance(fact, GroupStored) and groups[fact.group_id].members:
                value = replace_assignments(found[0][1])
                return ((found[0][0], value),)
            return found

        return written

    instead(patch, shard, "records_of", without)


def replace_assignments(raw: bytes) -> bytes:
    value = records.read_group_value(raw)
    members = tuple(member._replace(assignment=b"") for member in value.members)
    written = records.group_metadata_record(records.GroupMetadataKey("g"), value._replace(members=members))[1]
    assert written is not None
    return written


@fault
def a_commit_that_cannot_be_undone(patch: pytest.MonkeyPatch) -> None:
    apply_commit = shard.APPLY[OffsetsCommitted]

    def unjournalled(world: Any, fact: Any) -> None:
        mark = world.journal.mark()
        apply_commit(world, fact)
        world.journal.forget(mark)

    patch.setattr(shard, "APPLY", {**shard.APPLY, OffsetsCommitted: unjournalled})


@fault
def a_transaction_that_counts_when_aborted(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch, offsets, "TransactionEnded", lambda ended: lambda producer_id, commit: ended(producer_id, True)
    )


@fault.from_seed(8)
def a_transaction_that_overtakes_what_is_newer(patch: pytest.MonkeyPatch) -> None:
    apply_commit = apply.APPLY[OffsetsCommitted]

    def keeping(world: Any, fact: Any) -> None:
        pending = world.pending.view()
        apply_commit(world, fact)
        for key, writers in pending.items():
            if key[0] == fact.group_id:
                world.pending.put(key, dict(writers))

    patch.setattr(shard, "APPLY", {**shard.APPLY, OffsetsCommitted: keeping})


@fault
def a_failed_assignment_that_leaves_the_others_waiting(patch: pytest.MonkeyPatch) -> None:
    def failed(draft: Draft, command: Any, code: Code) -> None:
        draft.reply(command.call, failures.SyncAnswer(code))

    patch.setattr(failures, "AFTER", {**failures.AFTER, sync.Sync: failed})


@fault.from_seed(3)
def a_deadline_that_a_failed_append_takes_along(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard.Shard, "_rearm", lambda self, draft: self._revived.clear())


def plant_in_table(patch: pytest.MonkeyPatch, cell: Any, make: Callable[[Any], Any]) -> None:
    """Put something else into every cell of the table that holds `cell`."""
    from coterie.coordinator.group import table

    rows = {
        state: {kind: make(handler) if handler is cell else handler for kind, handler in row.items()}
        for state, row in table.ANSWERS.items()
    }
    patch.setattr(table, "ANSWERS", rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_machine_finds(name, monkeypatch):
    # An invariant, an assert of the core, a missing key: not a slip of the machine's own.
    with pytest.raises((AssertionError, KeyError)):
        FAULTS.hunt(name, GroupMachine, monkeypatch)


def test_the_machine_finds_nothing_where_nothing_is_planted():
    run_state_machine_as_test(GroupMachine, settings=settings(GENERATED, max_examples=20))
