"""A transactional producer's state: every step in every state, and what follows from each code."""

from __future__ import annotations

import pytest

from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.producer.errors import (
    DeliveryTimeout,
    NotWritten,
    ProducerFenced,
    TransactionFailed,
    TransactionFatal,
    TransactionMisuse,
)
from coterie.client.producer.transaction_state import (
    STEPS,
    State,
    Step,
    Transacting,
    Verdict,
    refusal,
    verdict,
)
from coterie.wire.api.apis import ApiKey

PLACE = TopicPartition("flights", 0)
LOST = DeliveryTimeout("late")
ASKED = [
    ApiKey.PRODUCE,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.FIND_COORDINATOR,
]


def a_producer(*steps: Step, version_2: bool = True) -> Transacting:
    state = Transacting("tx")
    state.version_2 = version_2
    for step in (Step.INITIALIZED, *steps):
        state.move(step)
    return state


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("step", Step)
def test_every_step_in_every_state_leads_on_or_says_what_to_do(state: State, step: Step):
    producer = Transacting("tx")
    producer.state = state
    following = STEPS[state][step]

    if isinstance(following, State):
        producer.move(step)
        assert producer.state is following
    else:
        with pytest.raises(TransactionMisuse, match=following.split("`")[0]):
            producer.move(step)
        assert producer.state is state


def test_nothing_is_written_outside_of_a_transaction():
    with pytest.raises(TransactionMisuse, match="within `async with"):
        a_producer().check_open()

    assert not a_producer().may_write(PLACE)


def test_since_kip_890_partitions_need_not_be_added():
    producer = a_producer(Step.BEGIN)

    assert (producer.begun, producer.may_write(PLACE), producer.begun) == (False, True, True)


def test_before_kip_890_partitions_are_added_first():
    producer = a_producer(Step.BEGIN, version_2=False)

    before = producer.may_write(PLACE)
    wanted = set(producer.wanted)
    producer.added({PLACE})

    assert (before, wanted) == (False, {PLACE})
    assert producer.may_write(PLACE)
    assert producer.begun


def test_an_end_clears_what_the_transaction_had():
    producer = a_producer(Step.BEGIN, version_2=False)
    producer.added({PLACE})
    producer.move(Step.COMMIT)
    producer.move(Step.ENDED)

    assert (producer.state, producer.begun, producer.joined) == (State.READY, False, set())


def test_a_batch_that_is_not_written_breaks_the_transaction_and_aborting_mends_it():
    producer = a_producer(Step.BEGIN)
    producer.batch_failed(LOST)

    with pytest.raises(DeliveryTimeout):
        producer.check_open()
    with pytest.raises(DeliveryTimeout):
        producer.move(Step.COMMIT)
    producer.move(Step.ABORT)
    producer.move(Step.ENDED)
    producer.move(Step.BEGIN)
    producer.check_open()


def test_a_batch_that_fails_while_the_abort_is_under_way_changes_nothing():
    producer = a_producer(Step.BEGIN, Step.ABORT)

    producer.batch_failed(LOST)

    assert (producer.state, producer.cause) == (State.ABORTING, None)


def test_a_fenced_producer_is_of_no_more_use():
    producer = a_producer(Step.BEGIN)
    fenced = refusal(ApiKey.END_TXN, Code.PRODUCER_FENCED, "tx")
    producer.refused(verdict(ApiKey.END_TXN, Code.PRODUCER_FENCED), fenced)

    for step in (Step.BEGIN, Step.COMMIT, Step.ABORT):
        with pytest.raises(ProducerFenced):
            producer.move(step)


def test_a_broker_that_sees_an_old_epoch_leaves_it_to_the_coordinator_to_say_why():
    producer = a_producer(Step.BEGIN)

    producer.batch_failed(NotWritten(Code.INVALID_PRODUCER_EPOCH, "old"))

    assert producer.state is State.BROKEN


def test_an_identity_that_the_coordinator_has_forgotten_is_asked_for_anew():
    producer = a_producer(Step.BEGIN)
    code = Code.INVALID_PRODUCER_ID_MAPPING
    producer.refused(verdict(ApiKey.TXN_OFFSET_COMMIT, code), refusal(ApiKey.TXN_OFFSET_COMMIT, code, "tx"))

    assert (producer.state, producer.anew) == (State.BROKEN, True)


@pytest.mark.parametrize("api_key", ASKED)
def test_every_code_of_every_answer_has_a_verdict_and_an_error(api_key: ApiKey):
    errors = {code: refusal(api_key, code, "tx") for code in Code if code}

    assert [code for code, error in errors.items() if not fits(error, code, verdict(api_key, code))] == []


def fits(error: Exception, code: Code, how: Verdict) -> bool:
    """Return whether the error of a code is of the kind that its verdict asks for."""
    return (
        how is not Verdict.DONE
        and isinstance(error, CoterieError)
        and isinstance(error, ProducerFenced) == (how is Verdict.FENCED)
        and isinstance(error, TransactionFatal) == (how in (Verdict.FENCED, Verdict.FATAL))
        and error.code is code
    )


@pytest.mark.parametrize(
    ("api_key", "code", "how"),
    [
        (ApiKey.INIT_PRODUCER_ID, Code.CONCURRENT_TRANSACTIONS, Verdict.AGAIN),
        (ApiKey.INIT_PRODUCER_ID, Code.NOT_COORDINATOR, Verdict.ELSEWHERE),
        (ApiKey.INIT_PRODUCER_ID, Code.INVALID_TRANSACTION_TIMEOUT, Verdict.FATAL),
        (ApiKey.ADD_PARTITIONS_TO_TXN, Code.TOPIC_AUTHORIZATION_FAILED, Verdict.ABORTABLE),
        (ApiKey.ADD_PARTITIONS_TO_TXN, Code.INVALID_TXN_STATE, Verdict.FATAL),
        (ApiKey.ADD_OFFSETS_TO_TXN, Code.GROUP_AUTHORIZATION_FAILED, Verdict.ABORTABLE),
        (ApiKey.TXN_OFFSET_COMMIT, Code.ILLEGAL_GENERATION, Verdict.ABORTABLE),
        (ApiKey.TXN_OFFSET_COMMIT, Code.COORDINATOR_LOAD_IN_PROGRESS, Verdict.AGAIN),
        (ApiKey.END_TXN, Code.INVALID_PRODUCER_EPOCH, Verdict.FENCED),
        (ApiKey.END_TXN, Code.TRANSACTION_ABORTABLE, Verdict.ABORTABLE),
        (ApiKey.END_TXN, Code.INVALID_TXN_STATE, Verdict.FATAL),
        (ApiKey.PRODUCE, Code.INVALID_PRODUCER_EPOCH, Verdict.ABORTABLE),
        (ApiKey.PRODUCE, Code.PRODUCER_FENCED, Verdict.FENCED),
        (ApiKey.PRODUCE, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Verdict.FATAL),
    ],
)
def test_verdicts_are_those_of_kafkas_own_producer(api_key: int, code: Code, how: Verdict):
    assert verdict(api_key, code) is how


def test_what_fits_no_transaction_says_so_as_misuse_and_what_the_coordinator_refuses_as_a_refusal():
    assert isinstance(refusal(ApiKey.TXN_OFFSET_COMMIT, Code.ILLEGAL_GENERATION, "tx"), TransactionFailed)
