"""The state machine as a table that runs: every state answers every command, checked at import.

`python -m coterie.coordinator.txn.table` prints it, and the diagram of the states, as docs/transactions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from coterie.base.codes import Code
from coterie.base.printed import legend, table
from coterie.coordinator.machine.decision import Decision
from coterie.coordinator.machine.table import Row, check
from coterie.coordinator.txn import end, expiry, init, partitions, views
from coterie.coordinator.txn.apply import IDLE, MOVES
from coterie.coordinator.txn.commands import (
    AddPartitions,
    Command,
    Describe,
    EndTransaction,
    Expire,
    InitProducerId,
    MarkersWritten,
    VerifyPartitions,
)
from coterie.coordinator.txn.decision import Draft
from coterie.coordinator.txn.end import EndTransactionBeforeV5
from coterie.coordinator.txn.expiry import (
    IDS,
    TIMEOUTS,
    IdDue,
    IdsDue,
    TimeoutDue,
    TimeoutsDue,
    completion_key,
)
from coterie.coordinator.txn.facts import IdForgotten
from coterie.coordinator.txn.failures import refusal
from coterie.coordinator.txn.model import BUMPS_EPOCH_SINCE, State, Transaction
from coterie.coordinator.txn.reasons import WHYS


def never(draft: Draft, txn: Transaction, command: Any) -> Decision:
    """Give up on the request: no coordinator writes such a state, somebody else must have."""
    draft.reply(command.call, refusal(command, Code.UNKNOWN_SERVER_ERROR))
    return draft.decision("state-of-nobody")


NOWHERE: Row = MappingProxyType(  # the transactional id is not there
    {
        InitProducerId: init.init_nowhere,
        AddPartitions: partitions.add_nowhere,
        VerifyPartitions: partitions.verify_nowhere,
        EndTransaction: end.end_nowhere,
        EndTransactionBeforeV5: end.end_nowhere,
        MarkersWritten: end.marked_nowhere,
        TimeoutDue: expiry.otherwise_nowhere,
        IdDue: expiry.otherwise_nowhere,
        Describe: views.describe_nowhere,
    }
)

IDLE_ROW: Row = MappingProxyType(
    {
        InitProducerId: init.init_idle,
        AddPartitions: partitions.add_idle,
        VerifyPartitions: partitions.verify,
        EndTransaction: end.end_complete,
        EndTransactionBeforeV5: end.end_old_complete,
        MarkersWritten: end.pass_over,
        TimeoutDue: expiry.otherwise,
        IdDue: expiry.forget_unused,
        Describe: views.describe,
    }
)

ENDING_ROW: Row = MappingProxyType(
    {
        InitProducerId: init.init_ending,
        AddPartitions: partitions.add_ending,
        VerifyPartitions: partitions.verify_ending,
        EndTransaction: end.end_ending,
        EndTransactionBeforeV5: end.end_old_ending,
        MarkersWritten: end.complete,
        TimeoutDue: expiry.otherwise,
        IdDue: expiry.otherwise,
        Describe: views.describe,
    }
)

NEVER_ROW: Row = MappingProxyType(
    {
        InitProducerId: never,
        AddPartitions: never,
        VerifyPartitions: never,
        EndTransaction: never,
        EndTransactionBeforeV5: never,
        MarkersWritten: end.pass_over,
        TimeoutDue: expiry.otherwise,
        IdDue: expiry.otherwise,
        Describe: views.describe,
    }
)

ANSWERS: Mapping[State, Row] = MappingProxyType(
    {
        State.EMPTY: {
            **IDLE_ROW,
            EndTransaction: end.end_empty,
            EndTransactionBeforeV5: end.end_old_empty,
        },
        State.ONGOING: {
            InitProducerId: init.init_ongoing,
            AddPartitions: partitions.add_ongoing,
            VerifyPartitions: partitions.verify,
            EndTransaction: end.end_ongoing,
            EndTransactionBeforeV5: end.end_old_ongoing,
            MarkersWritten: end.pass_over,
            TimeoutDue: expiry.abort_hanging,
            IdDue: expiry.otherwise,
            Describe: views.describe,
        },
        State.PREPARE_COMMIT: ENDING_ROW,
        State.PREPARE_ABORT: ENDING_ROW,
        State.COMPLETE_COMMIT: IDLE_ROW,
        State.COMPLETE_ABORT: IDLE_ROW,
        State.DEAD: {**NEVER_ROW, Describe: views.describe_nowhere},
        State.PREPARE_EPOCH_FENCE: NEVER_ROW,
    }
)

SHARD_WIDE: Row = MappingProxyType({TimeoutsDue: expiry.timeouts_due, IdsDue: expiry.ids_due})
DUE: Mapping[tuple[str, ...], type] = MappingProxyType({TIMEOUTS: TimeoutsDue, IDS: IdsDue})
DUE_OF_ONE: Mapping[str, type] = MappingProxyType(
    {completion_key("")[0]: MarkersWritten, TIMEOUTS[0]: TimeoutDue, IDS[0]: IdDue}
)

check(
    NOWHERE,
    ANSWERS,
    State,
    asked={*Command.__args__, EndTransactionBeforeV5, *DUE_OF_ONE.values()} - {Expire},
)
assert set(DUE.values()) == set(SHARD_WIDE)


def answer(draft: Draft, command: Command) -> Decision:
    """Return what the transactional id of the command, in the state that it is in, makes of it."""
    kind: type = type(command)
    if isinstance(command, Expire):
        if command.key in DUE:
            return SHARD_WIDE[DUE[command.key]](draft, None, command)
        kind, transactional_id = DUE_OF_ONE[command.key[0]], command.key[1]
    else:
        transactional_id = command.transactional_id
    if isinstance(command, EndTransaction) and command.client_version < BUMPS_EPOCH_SINCE:
        kind = EndTransactionBeforeV5
    txn = draft.shard.transactions.get(transactional_id)
    row = NOWHERE if txn is None else ANSWERS[txn.state]
    return row[kind](draft, txn, command)


# -- docs/transactions.md


def printed() -> str:
    """Return docs/transactions.md."""
    columns = [("no such id", NOWHERE), *((str(state), row) for state, row in ANSWERS.items())]
    lines = [
        "# A transactional id: its states and answers",
        "",
        "Printed from the table that runs (`python -m coterie.coordinator.txn.table`); a test compares.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        *diagram(),
        "```",
        "",
        *table(columns, NOWHERE),
        "",
        "What each does:",
        "",
        *legend((row for _, row in columns), NOWHERE),
        "",
        "What a whole shard does, whatever the states of its transactional ids:",
        "",
        *legend([SHARD_WIDE], SHARD_WIDE),
        "",
        "The reason that each decision carries, and what of Kafka's it follows:",
        "",
        *(f"- `{slug}` ({', '.join(why.rows)}): {why.meaning}" for slug, why in WHYS.items()),
        "",
    ]
    return "\n".join(lines)


def diagram() -> list[str]:
    moves = [
        f"    {'[*]' if source is None else source.value} --> {to}: {fact.__name__}"
        for (fact, to), sources in MOVES.items()
        for source in (None, *State)
        if source in sources
    ]
    gone = [f"    {source} --> [*]: {IdForgotten.__name__}" for source in State if source in IDLE]
    return moves + gone


if __name__ == "__main__":
    print(printed(), end="")
