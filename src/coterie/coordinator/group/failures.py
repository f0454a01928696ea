"""What everybody is answered when the log refused a batch (P-10, SG-12, ST-6).

The batch's facts have been undone by then, so a call that they parked is parked no more and one that they
answered waits again. Each command of the batch is answered here for its own call; who had waited before the
batch waits on, but for the syncs that a leader's failed assignment would have answered. Deadlines that the
undone decisions took off are armed again by `Shard.append_failed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.coordinator.group.classic import join_phase
from coterie.coordinator.group.commands import (
    Answer,
    CleanOffsets,
    Command,
    CommitAnswer,
    CommitOffsets,
    DeleteGroup,
    DeleteGroupAnswer,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    Describe,
    EndTransaction,
    Expire,
    FetchAnswer,
    FetchOffsets,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Sync,
    SyncAnswer,
    TopicsDeleted,
    TxnCommitOffsets,
)
from coterie.coordinator.group.model import State
from coterie.coordinator.group.settings import RETRY_MS
from coterie.coordinator.machine import LOG_ERRORS

if TYPE_CHECKING:
    from coterie.coordinator.group.shard import Draft

CLIENT_CODES: Mapping[Code, Code] = MappingProxyType(
    {
        **LOG_ERRORS,
        Code.INVALID_FETCH_SIZE: Code.UNKNOWN_SERVER_ERROR,
        Code.NETWORK_EXCEPTION: Code.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


def client_code(code: Code) -> Code:
    """Return the code that a client gets for an error of the log (P-10)."""
    return CLIENT_CODES.get(code, code)


def after_failure(draft: Draft, command: Command, code: Code) -> None:
    """Answer the command's call, if it has one, and do what else its failure asks for."""
    AFTER[type(command)](draft, command, client_code(code))


def join_failed(draft: Draft, command: Join, code: Code) -> None:
    """Answer with no member id. A static member's return also shows the generation that goes on (ST-6)."""
    group = draft.shard.groups.get(command.group_id)
    answer = JoinAnswer(code, "")
    if group is None:
        draft.then("new-group-undone")
    elif group.state is State.STABLE and not command.member_id:
        returned = command.instance_id is not None and command.instance_id in group.static
        if returned:
            draft.then("return-undone")
            answer = JoinAnswer(
                code, "", group.generation, group.protocol_type, group.protocol, group.leader or ""
            )
    draft.reply(command.call, answer)


def sync_failed(draft: Draft, command: Sync, code: Code) -> None:
    """Tell the error. If it was the leader's, tell everybody who waits for it, and rebalance (SG-12)."""
    draft.reply(command.call, SyncAnswer(code))
    group = draft.shard.groups.get(command.group_id)
    if group is None or group.state is not State.COMPLETING:
        return
    if command.generation == group.generation and command.member_id == group.leader:
        draft.then("assignment-lost")
        draft.restart_session(group.members[command.member_id])
        join_phase.start_rebalance(draft, group, code=code)


def fetch_failed(draft: Draft, command: FetchOffsets, code: Code) -> None:
    """Tell NOT_COORDINATOR where 15 would be due: clients before 3.9 do not know that here (OF-10)."""
    if code is Code.COORDINATOR_NOT_AVAILABLE:
        draft.then("told-as-not-coordinator")
        code = Code.NOT_COORDINATOR
    draft.reply(command.call, FetchAnswer(code))


def expire_failed(draft: Draft, command: Expire, code: Code) -> None:
    """Try again a little later what is still due; nobody else would ask. EX-8 is Kafka's way."""
    group = draft.shard.groups.get(command.key[1])
    if group is None:
        return
    draft.then("tried-again-soon")
    due_ms = draft.now_ms + RETRY_MS
    if command.key[0] == "session":
        if command.key[2] in group.members or command.key[2] in group.pending:
            draft.arm(command.key, due_ms)
        return
    phase_due_ms = group.join_due_ms if command.key[0] == "join" else group.sync_due_ms
    if phase_due_ms is not None:
        draft.arm(command.key, max(phase_due_ms, due_ms))


def commit_failed(draft: Draft, command: CommitOffsets | TxnCommitOffsets, code: Code) -> None:
    draft.reply(command.call, CommitAnswer((code,) * len(command.offsets)))


def do_nothing(draft: Draft, command: Command, code: Code) -> None:
    """Do nothing: the next round of cleaning comes by itself."""


def answer_with(answer: Callable[[Code], Answer]) -> Callable[[Draft, Any, Code], None]:
    """Return a function that answers a call with the code and nothing else."""

    def failed(draft: Draft, command: Any, code: Code) -> None:
        draft.reply(command.call, answer(code))

    return failed


AFTER: Mapping[type, Callable[[Draft, Any, Code], None]] = MappingProxyType(
    {
        Join: join_failed,
        Sync: sync_failed,
        Heartbeat: answer_with(HeartbeatAnswer),
        Leave: answer_with(LeaveAnswer),
        CommitOffsets: commit_failed,
        TxnCommitOffsets: commit_failed,
        EndTransaction: do_nothing,
        FetchOffsets: fetch_failed,
        DeleteOffsets: answer_with(DeleteOffsetsAnswer),
        Describe: do_nothing,
        DeleteGroup: answer_with(DeleteGroupAnswer),
        Expire: expire_failed,
        CleanOffsets: do_nothing,
        TopicsDeleted: do_nothing,
    }
)
assert set(AFTER) == set(Command.__args__)
