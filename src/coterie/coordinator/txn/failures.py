"""What everybody is answered who cannot be served: what never reaches a shard, and what its log refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.coordinator.machine import LOG_ERRORS
from coterie.coordinator.txn.commands import (
    AddPartitions,
    Answer,
    Command,
    Describe,
    DescribeAnswer,
    EndTransaction,
    Expire,
    InitProducerId,
    MarkersWritten,
    PartitionsAnswer,
    ProducerAnswer,
    VerifyAnswer,
    VerifyPartitions,
)
from coterie.coordinator.txn.expiry import completion_key
from coterie.coordinator.txn.settings import RETRY_MS, TransactionSettings

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Draft

CLIENT_CODES: Mapping[Code, Code] = MappingProxyType(
    {**LOG_ERRORS, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Code.COORDINATOR_NOT_AVAILABLE}
)


class NoProducerId(Exception):
    """Raised by what makes producer ids when it cannot make one now: the client is asked to come back."""


def unfit(command: Command, settings: TransactionSettings) -> Code:
    """Return why a request is refused before anybody looks for its transactional id, NONE if it is not."""
    if not getattr(command, "transactional_id", "there is none"):
        return Code.INVALID_REQUEST
    if isinstance(command, InitProducerId) and not 0 < command.timeout_ms <= settings.max_timeout_ms:
        return Code.INVALID_TRANSACTION_TIMEOUT
    return Code.NONE


def refusal(command: Command, code: Code) -> Answer:
    """Return the answer with this code to a command that has a call."""
    return REFUSALS[type(command)](command, code)


REFUSALS: Mapping[type, Callable[[Any, Code], Answer]] = MappingProxyType(
    {
        InitProducerId: lambda command, code: ProducerAnswer(code),
        EndTransaction: lambda command, code: ProducerAnswer(code),
        AddPartitions: lambda command, code: PartitionsAnswer(code),
        VerifyPartitions: lambda command, code: VerifyAnswer((code,) * len(command.partitions)),
        Describe: lambda command, code: DescribeAnswer(code),
    }
)
assert {*REFUSALS, MarkersWritten, Expire} == set(Command.__args__)


def after_failure(draft: Draft, command: Command, code: Code) -> None:
    """Do what follows for a command whose facts could not be appended and have been undone.

    A completion is tried again a little later, for its markers are written; what a look has found is found
    again by the next.
    """
    if isinstance(command, MarkersWritten):
        draft.arm(completion_key(command.transactional_id), draft.now_ms + RETRY_MS)
    elif not isinstance(command, Expire):
        draft.reply(command.call, refusal(command, CLIENT_CODES.get(code, code)))
    elif command.key[0] == "complete":
        draft.arm(command.key, draft.now_ms + RETRY_MS)
