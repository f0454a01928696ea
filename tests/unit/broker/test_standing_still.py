"""A broker that stands still: suspended, since others may lead, or drained, since another is about to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.coordinator.group.commands import OffsetToCommit, TxnCommitOffsets
from coterie.coordinator.txn.model import State
from unit.broker.group_api_rig import JOIN, LIST, part
from unit.broker.member_rig import GROUPS, ME, ORDERS, OTHER, SESSION_MS, TRANSACTIONS, MemberRig
from unit.broker.rig import Client
from unit.broker.test_landing import code_of, offset_of, produce, produced
from unit.broker.test_leadership import fetch_terms, fetched
from unit.broker.test_leadership import part as api_part

FETCH, INIT, ADD_PARTITIONS, END, LIST_TRANSACTIONS = 1, 22, 24, 26, 66
LOADING, ELSEWHERE, MISSING = (
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.NOT_COORDINATOR,
    Code.COORDINATOR_NOT_AVAILABLE,
)
HOUR_MS = 3_600_000
row = pytest.mark.row


@pytest.fixture
def rig() -> MemberRig:
    return MemberRig()


def joined(answers: list[Any]) -> list[Code]:
    return [Code(answer.error_code) for answer in answers]


def commit(rig: MemberRig, group_id: str = "alone", offset: int = 1) -> list[Code]:
    client = rig.client()
    rig.commit(client, offset, group_id)
    return [code_of(answer) for answer in client.answers()]


def committed(rig: MemberRig, group_id: str = "alone") -> int:
    client = rig.client()
    rig.fetch_offset(client, group_id)
    (answer,) = client.answers()
    return offset_of(answer)


def members(rig: MemberRig, group_id: str = "g") -> set[str]:
    group = rig.host.shard.groups.get(group_id)
    return set() if group is None else set(group.members)


Halt = Callable[[MemberRig], object]
Halted = tuple[Halt, Halt, Code]


def suspend(rig: MemberRig) -> None:
    rig.elections.suspend()


def resume(rig: MemberRig) -> None:
    rig.elections.resume()
    rig.settle()


def drain(rig: MemberRig) -> None:
    rig.drained()


def lead_again(rig: MemberRig, *names: TopicPartition) -> None:
    """Have this broker lead on what was drained, or all that it leads, in the next epochs."""
    for name in names or tuple(rig.leaders.own()):
        rig.elections.heard(name, ME, rig.leaders.leader_epoch(*name) + 1)
    rig.settle()


SUSPENDED: Halted = suspend, resume, ELSEWHERE
DRAINING: Halted = drain, lead_again, LOADING
either = pytest.mark.parametrize(
    ("halt", "go_on", "code"), [SUSPENDED, DRAINING], ids=["suspended", "draining"]
)


# -- what clients are told


@either
def test_groups_are_not_answered_by_any_path_and_are_again_afterwards(
    rig: MemberRig, halt: Halt, go_on: Halt, code: Code
):
    """The fast path has learnt what members send: it is not to answer either."""
    member, client = rig.stable("g", "a")["a"], rig.client()
    commit(rig)
    for _ in range(2):
        assert rig.beat(client, "g", member) == Code.NONE
        rig.commit_as(client, "g", member, 1)
        assert [code_of(answer) for answer in client.answers()] == [Code.NONE]

    halt(rig)

    for _ in range(2):
        assert rig.beat(client, "g", member) == (Code.NONE if code is LOADING else code)
        rig.commit_as(client, "g", member, 2)
        assert [code_of(answer) for answer in client.answers()] == [code]
    rig.join(client, "new")
    assert joined(client.answers()) == [code]
    assert commit(rig, offset=2) == [code]
    go_on(rig)
    assert rig.beat(client, "g", member) == Code.NONE
    assert committed(rig) == 1
    assert "new" not in rig.host.shard.groups


@row("FC-7")
def test_the_coordinator_of_a_suspended_brokers_shards_is_not_available(rig: MemberRig):
    """Others may lead them by now; of those that others lead anyhow it says what it knows."""
    suspend(rig)

    assert rig.found("g") == (MISSING, -1)
    assert rig.found("tx", kind=1) == (MISSING, -1)
    rig.elect(TRANSACTIONS, OTHER, 2)
    assert rig.found("tx", kind=1) == (Code.NONE, OTHER)
    resume(rig)
    assert rig.found("g") == (Code.NONE, ME)


def test_the_coordinator_of_draining_shards_stays_who_it_is(rig: MemberRig):
    drain(rig)

    assert rig.found("g") == (Code.NONE, ME)


@row("LS-4")
@pytest.mark.parametrize(("halt", "code"), [(suspend, MISSING), (drain, LOADING)])
def test_lists_of_all_groups_and_transactional_ids_would_have_gaps(rig: MemberRig, halt: Halt, code: Code):
    commit(rig)
    listing = {"state_filters": (), "producer_id_filters": ()}
    init(rig, rig.client())

    halt(rig)

    assert rig.client().ask(LIST, 4).error_code == code
    assert rig.client().ask(LIST_TRANSACTIONS, 0, **listing).error_code == code


@either
def test_data_is_neither_written_nor_read(rig: MemberRig, halt: Halt, go_on: Halt, code: Code):
    client = rig.client()
    produce(client, b"a")
    client.answers()

    halt(rig)

    produce(client, b"b")
    assert [produced(answer)[0] for answer in client.answers()] == [Code.NOT_LEADER_OR_FOLLOWER]
    told = fetched(client.ask(FETCH, 17, **fetch_terms(rig, 17)))
    assert told.error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert told.current_leader.leader_id == (-1 if code is ELSEWHERE else ME)
    go_on(rig)
    assert fetched(client.ask(FETCH, 17, **fetch_terms(rig, 17))).error_code == Code.NONE
    assert rig.store.logs[ORDERS].end_offset == 1


@either
def test_a_fetch_that_waits_waits_on(rig: MemberRig, halt: Halt, go_on: Halt, code: Code):
    patient, impatient = rig.client(), rig.client()
    patient.send(FETCH, 17, **fetch_terms(rig, 17, wait_ms=9_000))
    impatient.send(FETCH, 17, **fetch_terms(rig, 17, wait_ms=1_000))

    halt(rig)
    rig.pass_ms(2_000)

    assert [fetched(one).error_code for one in impatient.answers()] == [Code.NOT_LEADER_OR_FOLLOWER]
    assert patient.answers() == []
    go_on(rig)
    produce(rig.client(), b"a")
    assert [fetched(one).error_code for one in patient.answers()] == [Code.NONE]


# -- time


@either
@pytest.mark.parametrize("for_ms", [0, HOUR_MS])
def test_no_session_runs_out_meanwhile_and_all_begin_anew(
    rig: MemberRig, halt: Halt, go_on: Halt, code: Code, for_ms: int
):
    """Nor where it took no time: whoever was stopped halts, and may find the way on in its sockets."""
    member = rig.stable("g", "a")["a"]
    rig.pass_ms(SESSION_MS - 1)

    halt(rig)
    rig.pass_ms(for_ms)
    go_on(rig)

    rig.pass_ms(SESSION_MS - 1)
    assert members(rig) == {member}
    rig.pass_ms(1)
    assert members(rig) == set()


def test_who_is_heard_after_a_suspension_has_its_whole_session_from_then_on(rig: MemberRig):
    member, client = rig.stable("g", "a")["a"], rig.client()
    suspend(rig)
    rig.pass_ms(HOUR_MS + 1)
    resume(rig)

    rig.pass_ms(SESSION_MS - 1)
    assert rig.beat(client, "g", member) == Code.NONE
    rig.pass_ms(SESSION_MS - 1)

    assert members(rig) == {member}
    rig.pass_ms(1)
    assert members(rig) == set()


def test_a_rebalance_waits_for_members_as_if_no_time_had_passed(rig: MemberRig):
    """Who could not join again meanwhile is not left behind."""
    member, newcomer = rig.stable("g", "a")["a"], rig.client()
    rig.join(newcomer, rebalance_timeout=timedelta(seconds=60), session_timeout=timedelta(minutes=5))
    rig.pass_ms(5_000)

    suspend(rig)
    rig.pass_ms(HOUR_MS)
    resume(rig)

    assert newcomer.answers() == []
    assert member in members(rig)
    rejoining = rig.client()
    rejoining.send(JOIN, 5, **rejoin(member))
    assert joined(newcomer.answers()) == joined(rejoining.answers()) == [Code.NONE]


def rejoin(member: str) -> dict[str, Any]:
    protocol = part(JOIN, 5, "JoinGroupRequestProtocol", name="range", metadata=b"m")
    return {
        "group_id": "g",
        "session_timeout": timedelta(minutes=5),
        "rebalance_timeout": timedelta(seconds=60),
        "member_id": member,
        "group_instance_id": "i-a",
        "protocol_type": "consumer",
        "protocols": (protocol,),
    }


def test_a_rebalance_ends_when_its_time_is_over_that_did_not_stand_still(rig: MemberRig):
    """The one that has not come back is left behind; sessions are longer than that here."""
    slow = rig.client()
    rig.join(slow, rebalance_timeout=timedelta(seconds=60), session_timeout=timedelta(minutes=5))
    rig.pass_ms(0)
    (answer,) = slow.answers()
    rig.sync(slow, "g", answer.member_id)
    newcomer = rig.client()
    rig.join(newcomer, rebalance_timeout=timedelta(seconds=60), session_timeout=timedelta(minutes=5))
    rig.pass_ms(20_000)

    suspend(rig)
    rig.pass_ms(HOUR_MS)
    resume(rig)

    rig.pass_ms(39_999)
    assert newcomer.answers() == []
    rig.pass_ms(1)
    assert joined(newcomer.answers()) == [Code.NONE]
    assert answer.member_id not in members(rig)


def test_several_suspensions_add_up():
    rig = MemberRig(group_initial_rebalance_delay_ms=3_000)
    newcomer = rig.client()
    rig.join(newcomer)
    for _ in range(3):
        rig.pass_ms(500)
        suspend(rig)
        rig.pass_ms(HOUR_MS)
        resume(rig)

    rig.pass_ms(1_499)
    assert newcomer.answers() == []
    rig.pass_ms(1)
    assert joined(newcomer.answers()) == [Code.NONE]


# -- what is under way


@either
def test_what_was_decided_before_is_answered_when_it_lands(
    rig: MemberRig, halt: Halt, go_on: Halt, code: Code
):
    """It lasts, whoever leads by now; what waited behind it, and was not decided, is sent elsewhere."""
    member, client, writer, late = rig.stable("g", "a")["a"], rig.client(), rig.client(), rig.client()
    rig.beat(client, "g", member)
    rig.by_hand = True
    rig.commit(writer, 1, "alone")
    client.send(12, 4, group_id="g", generation_id=1, member_id=member)
    rig.commit(late, 2, "alone")
    assert writer.answers() == late.answers() == client.answers() == []

    halt(rig)
    while rig.rounds:
        rig.land()

    assert [code_of(answer) for answer in writer.answers()] == [Code.NONE]
    assert [code_of(answer) for answer in late.answers()] == [Code.NONE]
    assert joined(client.answers()) == [Code.NONE if code is LOADING else code]


def test_a_refusal_meanwhile_is_told(rig: MemberRig):
    writer = rig.client()
    rig.by_hand = True
    rig.commit(writer, 1, "alone")
    suspend(rig)

    rig.refuse()

    assert [code_of(answer) for answer in writer.answers()] == [ELSEWHERE]


@pytest.fixture
def waiting(rig: MemberRig) -> tuple[MemberRig, str, Client]:
    """A member whose commit has waited for the log nearly twice as long as its session lasts."""
    member, client = rig.stable("g", "a")["a"], rig.client()
    rig.pass_ms(1_000)
    rig.by_hand = True
    rig.commit_as(client, "g", member, 1)
    rig.pass_ms(2 * SESSION_MS - 1)
    assert member in members(rig)
    return rig, member, client


def test_no_member_loses_its_place_while_its_commit_waits_for_the_log(
    waiting: tuple[MemberRig, str, Client],
):
    """Its heartbeats are behind the commit on its connection, unread until that is answered."""
    rig, member, client = waiting
    rig.land()
    rig.by_hand = False
    assert [code_of(answer) for answer in client.answers()] == [Code.NONE]
    assert rig.beat(client, "g", member) == Code.NONE

    rig.pass_ms(SESSION_MS - 1)
    assert member in members(rig)
    rig.pass_ms(1)
    assert member not in members(rig)


def test_whoever_has_said_nothing_meanwhile_goes_once_the_log_has_landed(
    waiting: tuple[MemberRig, str, Client],
):
    rig, member, _ = waiting
    rig.land()
    rig.by_hand = False

    rig.pass_ms(1_000)

    assert member not in members(rig)


def test_a_log_that_lands_nothing_keeps_nobody_for_longer_than_a_session_more(
    waiting: tuple[MemberRig, str, Client],
):
    rig, member, _ = waiting
    rig.pass_ms(1_000)
    assert member not in members(rig)


def test_a_member_that_is_silent_loses_its_place_while_others_commit(rig: MemberRig):
    member, client = rig.stable("g", "a")["a"], rig.client()
    rig.by_hand = True
    for _ in range(30):
        rig.commit(client, 1, "alone")
        rig.pass_ms(SESSION_MS // 20)
        rig.land()
    while rig.rounds:
        rig.land()
    assert member not in members(rig)


@row("DE-6")
@either
def test_who_waits_to_join_waits_on_and_is_sent_elsewhere_when_another_leads(
    halt: Halt, go_on: Halt, code: Code
):
    rig = MemberRig(group_initial_rebalance_delay_ms=3_000)
    client = rig.client()
    rig.join(client)

    halt(rig)
    assert client.answers() == []
    rig.elect(GROUPS, OTHER, 2)

    assert joined(client.answers()) == [ELSEWHERE]


def test_a_shard_that_was_being_loaded_is_loaded_when_it_goes_on(rig: MemberRig):
    commit(rig, offset=5)
    rig.store.logs[GROUPS].lead(2)
    rig.elections.elected(GROUPS, ME, 2)
    rig.elections.opened(GROUPS)
    suspend(rig)
    rig.settle()
    assert rig.host.unavailable() == ELSEWHERE

    resume(rig)

    assert committed(rig) == 5


def test_a_shard_whose_log_comes_meanwhile_is_loaded_when_it_goes_on(rig: MemberRig):
    commit(rig, offset=5)
    log = rig.store.logs.pop(GROUPS)
    rig.elect(GROUPS, ME, 2)
    suspend(rig)
    assert rig.host.unavailable() == ELSEWHERE
    rig.store.logs[GROUPS] = log
    rig.open(GROUPS)
    assert rig.host.unavailable() == ELSEWHERE

    resume(rig)

    assert committed(rig) == 5


def test_who_is_elected_while_suspended_serves_when_it_goes_on(rig: MemberRig):
    rig.elect(GROUPS, OTHER, 2)
    suspend(rig)

    rig.elections.heard(GROUPS, ME, 3)
    rig.settle()

    assert rig.host.unavailable() == ELSEWHERE
    resume(rig)
    assert commit(rig) == [Code.NONE]


def test_what_is_drained_and_suspended_is_drained_when_it_goes_on(rig: MemberRig):
    drain(rig)
    suspend(rig)
    assert commit(rig) == [ELSEWHERE]

    resume(rig)

    assert commit(rig) == [LOADING]


# -- draining


def test_a_drain_is_over_once_when_all_has_landed(rig: MemberRig):
    clients = [rig.client() for _ in range(3)]
    rig.by_hand = True
    for number, client in enumerate(clients):
        rig.commit(client, number, f"g{number}")

    done = rig.drained()

    assert done == []
    while rig.rounds:
        assert done == []
        rig.land()
    assert done == ["drained"]
    assert [code_of(answer) for client in clients for answer in client.answers()] == [Code.NONE] * 3


def test_a_drain_appends_what_is_gathered_without_waiting_for_its_turn(rig: MemberRig):
    rig.by_hand = True
    client = rig.client()
    with rig.one_round():
        rig.commit(client, 1)
        rig.elections.drain(lambda: None)
        assert rig.store.logs[GROUPS].end_offset == 1


def test_a_drain_is_over_when_what_it_waited_for_is_refused(rig: MemberRig):
    client = rig.client()
    rig.by_hand = True
    rig.commit(client, 1)
    done = rig.drained()

    rig.refuse()

    assert done == ["drained"]
    assert [code_of(answer) for answer in client.answers()] == [ELSEWHERE]


def test_a_drain_of_nothing_is_over_at_once(rig: MemberRig):
    assert rig.drained() == ["drained"]
    assert rig.drained(TopicPartition("orders", 1)) == ["drained"]


def test_a_few_partitions_are_drained_alone(rig: MemberRig):
    second = ORDERS._replace(partition=1)

    assert rig.drained(second, TRANSACTIONS) == ["drained"]

    assert commit(rig) == [Code.NONE]
    assert init(rig, rig.client()).error_code == LOADING
    assert rig.node.led_log(second) is None
    assert rig.node.led_log(ORDERS) is not None
    lead_again(rig, second, TRANSACTIONS)
    assert init(rig, rig.client()).error_code == Code.NONE
    assert rig.node.led_log(second) is not None


def test_what_is_kept_in_a_later_epoch_after_a_drain_serves_from_its_log(rig: MemberRig):
    """So a leader makes sure that an offer that was not answered happens no more."""
    commit(rig, offset=5)
    assert rig.drained(GROUPS) == ["drained"]

    rig.elections.heard(GROUPS, ME, 2)
    rig.settle()

    assert committed(rig) == 5
    assert rig.host.epoch == 2


# -- fenced


def test_who_is_fenced_sends_everybody_elsewhere():
    rig = MemberRig(group_initial_rebalance_delay_ms=3_000)
    joining, reading = rig.client(), rig.client()
    rig.join(joining)
    reading.send(FETCH, 17, **fetch_terms(rig, 17, wait_ms=9_000))
    suspend(rig)

    rig.elections.fenced()
    rig.settle()

    assert joined(joining.answers()) == [ELSEWHERE]
    assert [fetched(one).error_code for one in reading.answers()] == [Code.NOT_LEADER_OR_FOLLOWER]
    assert commit(rig) == [ELSEWHERE]
    assert rig.found("g") == (MISSING, -1)
    rig.elections.heard(GROUPS, ME, 1)
    assert commit(rig) == [ELSEWHERE], "it is no news"
    rig.elections.heard(GROUPS, ME, 2)
    rig.settle()
    assert commit(rig) == [Code.NONE]


# -- transactions


def init(rig: MemberRig, client: Client, timeout_s: int = 60) -> Any:
    terms = {"transaction_timeout": timedelta(seconds=timeout_s), "producer_id": -1, "producer_epoch": -1}
    return client.ask(INIT, 4, transactional_id="tx", **terms)


def begun(rig: MemberRig, client: Client, timeout_s: int = 60) -> dict[str, Any]:
    """Begin a transaction; return what its producer says of itself."""
    owner = init(rig, client, timeout_s)
    who = {"producer_id": owner.producer_id, "producer_epoch": owner.producer_epoch, "transactional_id": "tx"}
    topic = api_part(ADD_PARTITIONS, 3, "AddPartitionsToTxnTopic", name="orders", partitions=(0,))
    asked = {f"v3_and_below_{name}": value for name, value in (who | {"topics": (topic,)}).items()}
    client.ask(ADD_PARTITIONS, 3, **asked)
    return who


def state(rig: MemberRig) -> State:
    return rig.node.transactions.host_of("tx").shard.transactions["tx"].state


@either
def test_the_markers_of_a_transaction_that_has_ended_are_written_when_its_coordinator_goes_on(
    rig: MemberRig, halt: Halt, go_on: Halt, code: Code
):
    client = rig.client()
    who = begun(rig, client)
    rig.by_hand = True
    client.send(END, 3, **who, committed=True)

    halt(rig)
    while rig.rounds:
        rig.land()
    rig.by_hand = False
    rig.pass_ms(5_000)

    assert joined(client.answers()) == [Code.NONE]
    assert state(rig) is State.PREPARE_COMMIT
    assert rig.store.logs[ORDERS].end_offset == 0
    go_on(rig)
    rig.pass_ms(1_000)
    assert state(rig) is State.COMPLETE_COMMIT
    assert rig.store.logs[ORDERS].end_offset == 1


@either
def test_a_marker_that_is_written_meanwhile_counts_when_the_coordinator_goes_on(
    rig: MemberRig, halt: Halt, go_on: Halt, code: Code
):
    client = rig.client()
    who = begun(rig, client)
    rig.by_hand = True
    client.send(END, 3, **who, committed=True)
    rig.land()
    assert rig.store.logs[ORDERS].end_offset == 1

    halt(rig)
    while rig.rounds:
        rig.land()
    assert state(rig) is State.PREPARE_COMMIT
    go_on(rig)
    while rig.rounds:
        rig.land()

    assert state(rig) is State.COMPLETE_COMMIT
    assert rig.store.logs[ORDERS].end_offset == (1 if halt is suspend else 2)  # who loads it writes once more


@either
def test_no_transaction_is_aborted_meanwhile_and_the_next_look_comes_as_after_loading(
    rig: MemberRig, halt: Halt, go_on: Halt, code: Code
):
    who = begun(rig, rig.client(), timeout_s=60)
    assert who

    halt(rig)
    rig.pass_ms(HOUR_MS)
    assert state(rig) is State.ONGOING
    go_on(rig)

    interval_ms = rig.settings.transaction_settings().timeouts_interval_ms
    rig.pass_ms(interval_ms - 1)
    assert state(rig) is State.ONGOING
    rig.pass_ms(1_000)
    assert state(rig) is State.COMPLETE_ABORT


@either
def test_offsets_of_a_transaction_that_wait_for_their_turn_are_refused(
    rig: MemberRig, halt: Halt, go_on: Halt, code: Code
):
    """Whoever has asked is told, and is not left without an answer for good."""
    host, told = rig.host, []
    halt(rig)
    call = host.new_call(told.append)
    command = TxnCommitOffsets(
        group_id="g",
        call=call,
        producer_id=7,
        producer_epoch=0,
        member_id="",
        instance_id=None,
        generation=-1,
        offsets=(OffsetToCommit("orders", 0, 1, -1, ""),),
    )
    host.execute_in_transaction(command, None)

    assert told == [code]
    assert host.calls == {}
