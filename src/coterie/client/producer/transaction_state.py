"""The state of a producer's transactions, and what follows from each answer of a coordinator. Pure.

Since KIP-890 (version 2) brokers add what is written to the transaction by themselves, and each end gives the
producer its next epoch. Before, partitions and groups are added by requests, and the epoch stays unless
something went wrong (KIP-360).
"""

from collections.abc import Mapping
from enum import Enum

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.producer.errors import (
    ProducerFenced,
    TransactionFailed,
    TransactionFatal,
    TransactionMisuse,
)
from coterie.wire.api.apis import APIS, ApiKey


class State(Enum):
    """Where a transactional producer is."""

    UNKNOWN = "unknown"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    BROKEN = "broken"
    FATAL = "fatal"


class Step(Enum):
    """What moves it."""

    INITIALIZED = "initialized"
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"
    ENDED = "ended"
    BREAK = "break"
    FAIL = "fail"


class Verdict(Enum):
    """What to do about a code."""

    DONE = "done"
    AGAIN = "again"
    ELSEWHERE = "elsewhere"
    """Look for the coordinator, then ask again."""
    ABORTABLE = "abortable"
    ANEW = "anew"
    """Abortable, and only by asking for the identity anew: the coordinator does not know this one."""
    FENCED = "fenced"
    FATAL = "fatal"


class Transacting:
    """A transactional id's state at its producer."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNKNOWN
        self.version_2 = True
        self.cause: CoterieError | None = None
        """Why the transaction cannot be committed, or why the producer is of no more use."""
        self.begun = False
        """Whether the coordinator may have heard of the transaction."""
        self.anew = False
        """Whether it ends by asking for the identity anew."""
        self.wanted: set[TopicPartition] = set()
        """Partitions that are to be added before they can be written to."""
        self.joined: set[TopicPartition] = set()
        self.groups: set[str] = set()

    @property
    def useless(self) -> bool:
        """Return whether the producer can do no more."""
        return self.state is State.FATAL

    @property
    def to_abort(self) -> bool:
        """Return whether there is a transaction that cannot be committed."""
        return self.state is State.BROKEN

    def move(self, step: Step) -> None:
        """Take a step, or raise why it does not fit."""
        following = STEPS[self.state][step]
        if isinstance(following, str):
            if self.cause is not None:
                raise self.cause
            raise TransactionMisuse(following)
        self.state = following
        if step is Step.ENDED:
            self.cause, self.begun, self.anew = None, False, False
            self.wanted.clear()
            self.joined.clear()
            self.groups.clear()

    def check_open(self, *, before: bool = False) -> None:
        """Raise why nothing can be written now, if so; what was asked for `before` its end may be."""
        if self.state is not State.OPEN and not (before and self.state is State.COMMITTING):
            if self.cause is not None:
                raise self.cause
            raise TransactionMisuse(
                f"the producer has the transactional id {self.transactional_id}: "
                "send within `async with producer.transaction():`"
            )

    def may_write(self, place: TopicPartition) -> bool:
        """Return whether the partition can be written to; if it is to be added before, take note of that."""
        if self.state not in (State.OPEN, State.COMMITTING):
            return False
        if not self.version_2 and place not in self.joined:
            self.wanted.add(place)
            return False
        self.begun = True
        return True

    def added(self, places: set[TopicPartition]) -> None:
        """Take note that the coordinator has these partitions."""
        self.joined |= places
        self.wanted -= places
        self.begun = True

    def broken(self, error: CoterieError) -> None:
        """Take note that the transaction has to be aborted."""
        if self.state in (State.OPEN, State.COMMITTING):
            self.cause = error
            self.move(Step.BREAK)

    def failed(self, error: CoterieError) -> None:
        """Take note that the producer is of no more use."""
        if self.state is not State.FATAL:
            self.cause = error
            self.move(Step.FAIL)

    def batch_failed(self, error: CoterieError) -> None:
        """Carry on from a batch that was not written: there is nothing to commit without it."""
        if isinstance(error, RefusedBy):
            self.refused(verdict(ApiKey.PRODUCE, error.code), error)
        else:
            self.broken(error)

    def refused(self, how: Verdict, error: CoterieError) -> None:
        """Carry on from a refusal."""
        if how in (Verdict.FENCED, Verdict.FATAL):
            self.failed(error)
            return
        self.anew = self.anew or how is Verdict.ANEW
        self.broken(error)


def refusal(api_key: int, code: Code, transactional_id: str) -> RefusedBy:
    """Return the error for a code that is not worth another try."""
    how = verdict(api_key, code)
    what = f"{APIS[api_key].title} of transactional id {transactional_id}"
    if api_key == ApiKey.END_TXN and code == Code.INVALID_TXN_STATE:
        what += ": it has ended already, perhaps because it took longer than transaction_timeout_ms"
    if how is Verdict.FENCED:
        why = "another producer has the transactional id now, or the transaction was open for too long"
        return ProducerFenced(code, f"{what}: {why}")
    return (TransactionFatal if how is Verdict.FATAL else TransactionFailed)(code, what)


def verdict(api_key: int, code: Code) -> Verdict:
    """Return the verdict on a code: as Kafka's own producer reacts to it."""
    special = SPECIAL.get(api_key, {}).get(code)
    return special or COMMON.get(code) or OTHERWISE[api_key]


COMMON: Mapping[Code, Verdict] = {
    Code.NONE: Verdict.DONE,
    Code.NOT_COORDINATOR: Verdict.ELSEWHERE,
    Code.COORDINATOR_NOT_AVAILABLE: Verdict.ELSEWHERE,
    Code.NETWORK_EXCEPTION: Verdict.ELSEWHERE,
    Code.COORDINATOR_LOAD_IN_PROGRESS: Verdict.AGAIN,
    Code.CONCURRENT_TRANSACTIONS: Verdict.AGAIN,
    Code.KAFKA_STORAGE_ERROR: Verdict.AGAIN,
    Code.TRANSACTION_ABORTABLE: Verdict.ABORTABLE,
    Code.INVALID_PRODUCER_ID_MAPPING: Verdict.ANEW,
    Code.UNKNOWN_PRODUCER_ID: Verdict.ANEW,
    Code.INVALID_PRODUCER_EPOCH: Verdict.FENCED,
    Code.PRODUCER_FENCED: Verdict.FENCED,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
    Code.CLUSTER_AUTHORIZATION_FAILED: Verdict.FATAL,
    Code.UNSUPPORTED_VERSION: Verdict.FATAL,
    Code.INVALID_TXN_STATE: Verdict.FATAL,
}
SPECIAL: Mapping[int, Mapping[Code, Verdict]] = {
    # A broker cannot tell who was fenced from whose transaction timed out: the coordinator will say.
    ApiKey.PRODUCE: {
        Code.INVALID_PRODUCER_EPOCH: Verdict.ABORTABLE,
        Code.INVALID_TXN_STATE: Verdict.ABORTABLE,
    },
    ApiKey.INIT_PRODUCER_ID: {
        Code.INVALID_PRODUCER_ID_MAPPING: Verdict.FATAL,
        Code.UNKNOWN_PRODUCER_ID: Verdict.FATAL,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        Code.UNKNOWN_TOPIC_OR_PARTITION: Verdict.AGAIN,
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        Code.REQUEST_TIMED_OUT: Verdict.ELSEWHERE,
        Code.UNKNOWN_TOPIC_OR_PARTITION: Verdict.AGAIN,
        Code.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
        Code.FENCED_INSTANCE_ID: Verdict.ABORTABLE,
        Code.UNKNOWN_MEMBER_ID: Verdict.ABORTABLE,
        Code.ILLEGAL_GENERATION: Verdict.ABORTABLE,
        Code.STALE_MEMBER_EPOCH: Verdict.ABORTABLE,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {
        Code.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
    },
    ApiKey.FIND_COORDINATOR: {
        Code.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
    },
}
OTHERWISE: Mapping[int, Verdict] = {
    ApiKey.PRODUCE: Verdict.ABORTABLE,
    ApiKey.ADD_PARTITIONS_TO_TXN: Verdict.ABORTABLE,
    ApiKey.INIT_PRODUCER_ID: Verdict.FATAL,
    ApiKey.ADD_OFFSETS_TO_TXN: Verdict.FATAL,
    ApiKey.TXN_OFFSET_COMMIT: Verdict.FATAL,
    ApiKey.END_TXN: Verdict.FATAL,
    ApiKey.FIND_COORDINATOR: Verdict.FATAL,
}

NOT_STARTED = "the producer has not started: use `async with Producer(...) as producer:`"
NOT_OPEN = "there is no transaction: begin one with `async with producer.transaction():`"
STILL_OPEN = "a transaction is open: leave its block before the next one begins"
HAS_TO_ABORT = "the transaction has to be aborted: leave its block"
ENDING = "the end of the transaction is under way"
UNSETTLED = "whether the transaction is committed is not known: it can only be asked about again"
STARTED = "the producer has started already"
USELESS = "the producer is of no more use: close it"

# From state and step to the next state, or to what is said where the step does not fit.
STEPS: Mapping[State, Mapping[Step, State | str]] = {
    State.UNKNOWN: {
        Step.INITIALIZED: State.READY, Step.BEGIN: NOT_STARTED, Step.COMMIT: NOT_STARTED,
        Step.ABORT: NOT_STARTED, Step.ENDED: NOT_STARTED, Step.BREAK: NOT_STARTED, Step.FAIL: State.FATAL,
    },
    State.READY: {
        Step.INITIALIZED: STARTED, Step.BEGIN: State.OPEN, Step.COMMIT: NOT_OPEN,
        Step.ABORT: NOT_OPEN, Step.ENDED: NOT_OPEN, Step.BREAK: NOT_OPEN, Step.FAIL: State.FATAL,
    },
    State.OPEN: {
        Step.INITIALIZED: STARTED, Step.BEGIN: STILL_OPEN, Step.COMMIT: State.COMMITTING,
        Step.ABORT: State.ABORTING, Step.ENDED: STILL_OPEN, Step.BREAK: State.BROKEN, Step.FAIL: State.FATAL,
    },
    State.COMMITTING: {
        Step.INITIALIZED: STARTED, Step.BEGIN: ENDING, Step.COMMIT: State.COMMITTING,
        Step.ABORT: UNSETTLED, Step.ENDED: State.READY, Step.BREAK: State.BROKEN, Step.FAIL: State.FATAL,
    },
    State.ABORTING: {
        Step.INITIALIZED: STARTED, Step.BEGIN: ENDING, Step.COMMIT: ENDING,
        Step.ABORT: State.ABORTING, Step.ENDED: State.READY, Step.BREAK: ENDING, Step.FAIL: State.FATAL,
    },
    State.BROKEN: {
        Step.INITIALIZED: STARTED, Step.BEGIN: HAS_TO_ABORT, Step.COMMIT: HAS_TO_ABORT,
        Step.ABORT: State.ABORTING, Step.ENDED: HAS_TO_ABORT, Step.BREAK: HAS_TO_ABORT,
        Step.FAIL: State.FATAL,
    },
    State.FATAL: {
        Step.INITIALIZED: USELESS, Step.BEGIN: USELESS, Step.COMMIT: USELESS, Step.ABORT: USELESS,
        Step.ENDED: USELESS, Step.BREAK: USELESS, Step.FAIL: State.FATAL,
    },
}  # fmt: skip
assert STEPS.keys() == set(State)
assert all(row.keys() == set(Step) for row in STEPS.values())
