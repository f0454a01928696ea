"""The state machine as a table that runs: every state answers every command, checked at import.

`python -m coterie.coordinator.group.table` prints it, and the diagram of the states, as docs/states.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coterie.base.printed import described, legend, listed, table
from coterie.base.reasons import GROUP
from coterie.coordinator.group import foreign, views
from coterie.coordinator.group.apply import MOVES
from coterie.coordinator.group.classic import expiry, join, leave, sync
from coterie.coordinator.group.classic.expiry import JoinDue, SessionDue, SyncDue
from coterie.coordinator.group.commands import (
    CleanOffsets,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Describe,
    EndTransaction,
    Expire,
    FetchOffsets,
    Heartbeat,
    Join,
    Leave,
    Sync,
    TopicsDeleted,
    TxnCommitOffsets,
)
from coterie.coordinator.group.model import State
from coterie.coordinator.group.offsets import committed
from coterie.coordinator.machine import Row, check

ABSENT: Row = MappingProxyType(  # the group is not there
    {
        Join: join.create_the_group,
        Sync: sync.refuse_sync_to_a_missing_group,
        Heartbeat: sync.refuse_heartbeat_to_a_missing_group,
        Leave: leave.refuse_to_leave_a_missing_group,
        CommitOffsets: committed.create_a_simple_group_and_commit,
        TxnCommitOffsets: committed.create_a_simple_group_and_hold_back,
        FetchOffsets: committed.return_no_offsets,
        DeleteOffsets: committed.refuse_to_delete_offsets_of_no_group,
        Describe: views.describe_a_missing_group,
        DeleteGroup: committed.refuse_to_delete_a_missing_group,
        SessionDue: expiry.ignore_a_missing_group,
        JoinDue: expiry.ignore_a_missing_group,
        SyncDue: expiry.ignore_a_missing_group,
    }
)

ANSWERS: Mapping[State, Row] = MappingProxyType(
    {
        State.EMPTY: {
            Join: join.admit_the_first_member,
            Sync: sync.refuse_sync_to_an_empty_group,
            Heartbeat: sync.refuse_heartbeat_to_an_empty_group,
            Leave: leave.drop_pending_members,
            CommitOffsets: committed.commit_without_a_member,
            TxnCommitOffsets: committed.hold_back_without_a_member,
            FetchOffsets: committed.return_the_offsets,
            DeleteOffsets: committed.delete_unread_offsets,
            Describe: views.describe_the_group,
            DeleteGroup: committed.delete_the_group,
            SessionDue: expiry.drop_a_silent_pending_member,
            JoinDue: expiry.ignore_an_outdated_timer,
            SyncDue: expiry.ignore_an_outdated_timer,
        },
        State.PREPARING: {
            Join: join.wait_for_the_others_to_join,
            Sync: sync.tell_syncer_to_rejoin,
            Heartbeat: sync.renew_the_session_and_call_to_rebalance,
            Leave: leave.remove_members_and_go_on_joining,
            CommitOffsets: committed.commit_for_a_member,
            TxnCommitOffsets: committed.hold_back_for_a_member,
            FetchOffsets: committed.return_the_offsets,
            DeleteOffsets: committed.delete_unread_offsets_of_consumers,
            Describe: views.describe_the_group,
            DeleteGroup: committed.refuse_to_delete_a_group_in_use,
            SessionDue: expiry.remove_a_silent_member_and_go_on_joining,
            JoinDue: expiry.end_the_join_phase,
            SyncDue: expiry.ignore_an_outdated_timer,
        },
        State.COMPLETING: {
            Join: join.rebalance_if_new_or_changed,
            Sync: sync.wait_for_the_leader_or_assign,
            Heartbeat: sync.renew_the_session,
            Leave: leave.remove_members_and_rebalance,
            CommitOffsets: committed.put_the_commit_off,
            TxnCommitOffsets: committed.hold_back_for_a_member,
            FetchOffsets: committed.return_the_offsets,
            DeleteOffsets: committed.delete_unread_offsets_of_consumers,
            Describe: views.describe_the_group,
            DeleteGroup: committed.refuse_to_delete_a_group_in_use,
            SessionDue: expiry.remove_a_silent_member_and_rebalance,
            JoinDue: expiry.ignore_an_outdated_timer,
            SyncDue: expiry.remove_who_never_synced_and_rebalance,
        },
        State.STABLE: {
            Join: join.rebalance_if_new_changed_or_leader,
            Sync: sync.return_the_assignment,
            Heartbeat: sync.renew_the_session,
            Leave: leave.remove_members_and_rebalance,
            CommitOffsets: committed.commit_for_a_member,
            TxnCommitOffsets: committed.hold_back_for_a_member,
            FetchOffsets: committed.return_the_offsets,
            DeleteOffsets: committed.delete_unread_offsets_of_consumers,
            Describe: views.describe_the_group_and_its_protocol,
            DeleteGroup: committed.refuse_to_delete_a_group_in_use,
            SessionDue: expiry.remove_a_silent_member_and_rebalance,
            JoinDue: expiry.ignore_an_outdated_timer,
            SyncDue: expiry.remove_who_never_synced_and_rebalance,
        },
        State.DEAD: {
            Join: join.send_joiner_to_the_coordinator,
            Sync: sync.send_syncer_to_the_coordinator,
            Heartbeat: sync.send_heartbeat_to_the_coordinator,
            Leave: leave.send_leaver_to_the_coordinator,
            CommitOffsets: committed.send_committer_to_the_coordinator,
            TxnCommitOffsets: committed.send_producer_to_the_coordinator,
            FetchOffsets: committed.return_no_offsets,
            DeleteOffsets: committed.refuse_to_delete_offsets_of_no_group,
            Describe: views.describe_the_group,
            DeleteGroup: committed.refuse_to_delete_a_missing_group,
            SessionDue: expiry.ignore_an_outdated_timer,
            JoinDue: expiry.ignore_an_outdated_timer,
            SyncDue: expiry.ignore_an_outdated_timer,
        },
    }
)

FOREIGN: Row = MappingProxyType(  # the group is of a kind that is not served: what would end or change it
    {
        Join: foreign.join_foreign,
        DeleteOffsets: foreign.delete_offsets_foreign,
        DeleteGroup: foreign.delete_foreign,
        Describe: foreign.describe_foreign,
    }
)

SHARD_WIDE: Row = MappingProxyType(
    {
        EndTransaction: lambda draft, _, command: committed.end_transaction(draft, command),
        CleanOffsets: lambda draft, _, command: committed.clean_offsets(draft, command),
        TopicsDeleted: lambda draft, _, command: committed.topics_deleted(draft, command),
    }
)

DUE: Mapping[str, type] = MappingProxyType({"session": SessionDue, "join": JoinDue, "sync": SyncDue})

check(ABSENT, ANSWERS, State, asked={*Command.__args__, *DUE.values()} - {Expire, *SHARD_WIDE})


# -- docs/states.md


def printed() -> str:
    """Return docs/states.md."""
    columns = [("no group", ABSENT), *((str(state), row) for state, row in ANSWERS.items())]
    lines = [
        "# The classic group: its states and answers",
        "",
        "Printed from the table that runs (`python -m coterie.coordinator.group.table`); a test compares.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> Empty: GroupCreated",
        *diagram(),
        "```",
        "",
        *table(columns, ABSENT),
        "",
        "What each does; the codes in brackets are rows of the catalogue of Kafka's behaviours:",
        "",
        *legend((row for _, row in columns), ABSENT),
        "",
        "Groups of kinds that are not served are as empty ones, but for what would end or change them:",
        "",
        *(f"- **{kind.__name__}**: {described(handler)}" for kind, handler in FOREIGN.items()),
        "",
        "## Reasons",
        "",
        "Every decision has one as its `why`, and may have steps that happened on the way. The story of a",
        "group tells them; a test that cites one of the rows in brackets has to reach one of its reasons.",
        "",
        *listed(GROUP),
    ]
    return "\n".join(lines)


def diagram() -> list[str]:
    return [
        f"    {source} --> {to}: {fact.__name__}"
        for fact, (sources, to) in MOVES.items()
        for source in State
        if source in sources
    ]


if __name__ == "__main__":
    print(printed(), end="")
