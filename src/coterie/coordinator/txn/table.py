"""The state machine as a table that runs: every state answers every command, checked at import.

`python -m coterie.coordinator.txn.table` prints it, and the diagram of the states, as docs/transactions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.base.printed import legend, listed, table
from coterie.base.reasons import TRANSACTION
from coterie.coordinator.machine import Decision, Row, check
from coterie.coordinator.txn import begin, end, expiry, views
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
from coterie.coordinator.txn.model import State, Transaction

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Draft


def refuse_in_an_impossible_state(draft: Draft, txn: Transaction, command: Any) -> Decision:
    """Answer UNKNOWN_SERVER_ERROR: no coordinator ever writes this state to the log."""
    draft.reply(command.call, refusal(command, Code.UNKNOWN_SERVER_ERROR))
    return draft.decision("state-of-nobody")


ABSENT: Row = MappingProxyType(  # the transactional id is not there
    {
        InitProducerId: begin.give_a_new_producer_id,
        AddPartitions: begin.refuse_partitions_of_an_unknown_id,
        VerifyPartitions: begin.refuse_to_verify_an_unknown_id,
        EndTransaction: end.refuse_end_of_an_unknown_id,
        EndTransactionBeforeV5: end.refuse_end_of_an_unknown_id,
        MarkersWritten: end.ignore_markers_of_an_unknown_id,
        TimeoutDue: expiry.ignore_an_unknown_id,
        IdDue: expiry.ignore_an_unknown_id,
        Describe: views.describe_an_unknown_id,
    }
)

IDLE_ROW: Row = MappingProxyType(
    {
        InitProducerId: begin.bump_the_epoch,
        AddPartitions: begin.begin_a_transaction,
        VerifyPartitions: begin.verify_the_partitions,
        EndTransaction: end.repeat_the_answer_or_abort,
        EndTransactionBeforeV5: end.repeat_the_answer_to_the_same_end,
        MarkersWritten: end.ignore_late_markers,
        TimeoutDue: expiry.ignore_an_outdated_check,
        IdDue: expiry.forget_an_unused_id,
        Describe: views.describe_the_transaction,
    }
)

ENDING_ROW: Row = MappingProxyType(
    {
        InitProducerId: begin.have_init_retried,
        AddPartitions: begin.have_partitions_retried,
        VerifyPartitions: begin.have_verification_retried,
        EndTransaction: end.have_end_retried,
        EndTransactionBeforeV5: end.have_the_owners_end_retried,
        MarkersWritten: end.complete_the_transaction,
        TimeoutDue: expiry.ignore_an_outdated_check,
        IdDue: expiry.ignore_an_outdated_check,
        Describe: views.describe_the_transaction,
    }
)

NEVER_ROW: Row = MappingProxyType(
    {
        InitProducerId: refuse_in_an_impossible_state,
        AddPartitions: refuse_in_an_impossible_state,
        VerifyPartitions: refuse_in_an_impossible_state,
        EndTransaction: refuse_in_an_impossible_state,
        EndTransactionBeforeV5: refuse_in_an_impossible_state,
        MarkersWritten: end.ignore_late_markers,
        TimeoutDue: expiry.ignore_an_outdated_check,
        IdDue: expiry.ignore_an_outdated_check,
        Describe: views.describe_the_transaction,
    }
)

ANSWERS: Mapping[State, Row] = MappingProxyType(
    {
        State.EMPTY: {
            **IDLE_ROW,
            EndTransaction: end.abort_without_a_transaction,
            EndTransactionBeforeV5: end.refuse_end_without_a_transaction,
        },
        State.ONGOING: {
            InitProducerId: begin.abort_the_open_transaction,
            AddPartitions: begin.add_the_partitions,
            VerifyPartitions: begin.verify_the_partitions,
            EndTransaction: end.end_and_bump_the_epoch,
            EndTransactionBeforeV5: end.end_in_the_same_epoch,
            MarkersWritten: end.ignore_late_markers,
            TimeoutDue: expiry.abort_a_hanging_transaction,
            IdDue: expiry.ignore_an_outdated_check,
            Describe: views.describe_the_transaction,
        },
        State.PREPARE_COMMIT: ENDING_ROW,
        State.PREPARE_ABORT: ENDING_ROW,
        State.COMPLETE_COMMIT: IDLE_ROW,
        State.COMPLETE_ABORT: IDLE_ROW,
        State.DEAD: {**NEVER_ROW, Describe: views.describe_an_unknown_id},
        State.PREPARE_EPOCH_FENCE: NEVER_ROW,
    }
)

SHARD_WIDE: Row = MappingProxyType(
    {TimeoutsDue: expiry.find_hanging_transactions, IdsDue: expiry.find_unused_ids}
)
DUE: Mapping[tuple[str, ...], type] = MappingProxyType({TIMEOUTS: TimeoutsDue, IDS: IdsDue})
DUE_OF_ONE: Mapping[str, type] = MappingProxyType(
    {completion_key("")[0]: MarkersWritten, TIMEOUTS[0]: TimeoutDue, IDS[0]: IdDue}
)

check(
    ABSENT,
    ANSWERS,
    State,
    asked={*Command.__args__, EndTransactionBeforeV5, *DUE_OF_ONE.values()} - {Expire},
)
assert set(DUE.values()) == set(SHARD_WIDE)


# -- docs/transactions.md


def printed() -> str:
    """Return docs/transactions.md."""
    columns = [("no such id", ABSENT), *((str(state), row) for state, row in ANSWERS.items())]
    lines = [
        "# Transactional ids: states and answers",
        "",
        "This page shows how the transaction coordinator answers: the states of a transactional id, what",
        "each request does in each state, and the reasons that its decisions have. It is printed from the",
        "table that the broker runs (`python -m coterie.coordinator.txn.table`), and a test checks that it",
        "is up to date. The states are Kafka's. An arrow is labelled with the fact that is written to",
        "`__transaction_state`. `CONCURRENT_TRANSACTIONS` tells a client to retry.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        *diagram(),
        "```",
        "",
        *table(columns, ABSENT),
        "",
        "What each answer means:",
        "",
        *legend((row for _, row in columns), ABSENT),
        "",
        "Timers of a whole shard (a partition of `__transaction_state`):",
        "",
        *legend([SHARD_WIDE], SHARD_WIDE),
        "",
        "## Reasons",
        "",
        "Every decision has one of these as its `why`. The KIP that it follows is in brackets.",
        "",
        *listed(TRANSACTION),
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
