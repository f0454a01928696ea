"""The state machine as a table that runs: every state answers every command, checked at import.

`python -m coterie.coordinator.group.table` prints it, and the diagram of the states, as docs/states.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coterie.base.marks import listed
from coterie.base.printed import legend, table, told_of
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
from coterie.coordinator.group.decision import Draft
from coterie.coordinator.group.model import State
from coterie.coordinator.group.offsets import committed
from coterie.coordinator.group.reasons import SECTIONS
from coterie.coordinator.machine.decision import Decision
from coterie.coordinator.machine.table import Row, check

NOWHERE: Row = MappingProxyType(  # the group is not there
    {
        Join: join.join_nowhere,
        Sync: sync.sync_nowhere,
        Heartbeat: sync.beat_nowhere,
        Leave: leave.leave_nowhere,
        CommitOffsets: committed.commit_nowhere,
        TxnCommitOffsets: committed.txn_commit_nowhere,
        FetchOffsets: committed.fetch_nothing,
        DeleteOffsets: committed.delete_offsets_nowhere,
        Describe: views.describe_nowhere,
        DeleteGroup: committed.delete_nowhere,
        SessionDue: expiry.ignore_nowhere,
        JoinDue: expiry.ignore_nowhere,
        SyncDue: expiry.ignore_nowhere,
    }
)

ANSWERS: Mapping[State, Row] = MappingProxyType(
    {
        State.EMPTY: {
            Join: join.join_empty,
            Sync: sync.sync_empty,
            Heartbeat: sync.beat_empty,
            Leave: leave.leave_empty,
            CommitOffsets: committed.commit_empty,
            TxnCommitOffsets: committed.txn_commit_empty,
            FetchOffsets: committed.fetch,
            DeleteOffsets: committed.delete_offsets,
            Describe: views.describe,
            DeleteGroup: committed.delete_empty,
            SessionDue: expiry.session_due_elsewhere,
            JoinDue: expiry.ignore,
            SyncDue: expiry.ignore,
        },
        State.PREPARING: {
            Join: join.join_preparing,
            Sync: sync.sync_preparing,
            Heartbeat: sync.keep_and_recall,
            Leave: leave.leave_preparing,
            CommitOffsets: committed.commit_working,
            TxnCommitOffsets: committed.txn_commit_working,
            FetchOffsets: committed.fetch,
            DeleteOffsets: committed.delete_offsets_working,
            Describe: views.describe,
            DeleteGroup: committed.delete_working,
            SessionDue: expiry.session_due_preparing,
            JoinDue: expiry.join_due,
            SyncDue: expiry.ignore,
        },
        State.COMPLETING: {
            Join: join.join_completing,
            Sync: sync.sync_completing,
            Heartbeat: sync.keep,
            Leave: leave.leave_working,
            CommitOffsets: committed.commit_completing,
            TxnCommitOffsets: committed.txn_commit_working,
            FetchOffsets: committed.fetch,
            DeleteOffsets: committed.delete_offsets_working,
            Describe: views.describe,
            DeleteGroup: committed.delete_working,
            SessionDue: expiry.session_due_working,
            JoinDue: expiry.ignore,
            SyncDue: expiry.sync_due,
        },
        State.STABLE: {
            Join: join.join_stable,
            Sync: sync.sync_stable,
            Heartbeat: sync.keep,
            Leave: leave.leave_working,
            CommitOffsets: committed.commit_working,
            TxnCommitOffsets: committed.txn_commit_working,
            FetchOffsets: committed.fetch,
            DeleteOffsets: committed.delete_offsets_working,
            Describe: views.describe_stable,
            DeleteGroup: committed.delete_working,
            SessionDue: expiry.session_due_working,
            JoinDue: expiry.ignore,
            SyncDue: expiry.sync_due,
        },
        State.DEAD: {
            Join: join.join_dead,
            Sync: sync.sync_dead,
            Heartbeat: sync.beat_dead,
            Leave: leave.leave_dead,
            CommitOffsets: committed.commit_dead,
            TxnCommitOffsets: committed.txn_commit_dead,
            FetchOffsets: committed.fetch_nothing,
            DeleteOffsets: committed.delete_offsets_nowhere,
            Describe: views.describe,
            DeleteGroup: committed.delete_nowhere,
            SessionDue: expiry.ignore,
            JoinDue: expiry.ignore,
            SyncDue: expiry.ignore,
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

check(NOWHERE, ANSWERS, State, asked={*Command.__args__, *DUE.values()} - {Expire, *SHARD_WIDE})


def answer(draft: Draft, command: Command) -> Decision:
    """Return what the group of the command, in the state that it is in, makes of it."""
    kind: type = type(command)
    if isinstance(command, (CleanOffsets, EndTransaction, TopicsDeleted)):  # a union is made anew each time
        return SHARD_WIDE[kind](draft, None, command)
    if isinstance(command, Expire):
        kind, group_id = DUE[command.key[0]], command.key[1]
    else:
        group_id = command.group_id
    group = draft.shard.groups.get(group_id)
    row = NOWHERE if group is None else ANSWERS[group.state]
    if kind in FOREIGN and group_id in draft.shard.foreign:
        row = FOREIGN
    return row[kind](draft, group, command)


# -- docs/states.md


def printed() -> str:
    """Return docs/states.md."""
    columns = [("no group", NOWHERE), *((str(state), row) for state, row in ANSWERS.items())]
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
        *table(columns, NOWHERE),
        "",
        "What each does; the codes in brackets are rows of the catalogue of Kafka's behaviours:",
        "",
        *legend((row for _, row in columns), NOWHERE),
        "",
        "Groups of kinds that are not served are as empty ones, but for what would end or change them:",
        "",
        *(f"- **{kind.__name__}**: {told_of(handler)}" for kind, handler in FOREIGN.items()),
        "",
        "## Whys",
        "",
        "Every decision has a why, and may have steps that happened on the way. The story of a group tells",
        "them; a test that cites one of the rows in brackets has to reach one of its slugs.",
        "",
        *listed(SECTIONS),
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
