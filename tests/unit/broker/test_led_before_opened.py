"""A broker that is told that it leads before the log is there: clients come back until it is."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.leadership import Led
from unit.broker.group_api_rig import LIST
from unit.broker.member_rig import GROUPS, ME, ORDERS, OTHER, TRANSACTIONS, MemberRig
from unit.broker.test_landing import code_of, offset_of
from unit.broker.test_leadership import fetch_terms, fetched

FETCH, INIT, LIST_TRANSACTIONS = 1, 22, 66
LOADING, ELSEWHERE = Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR
row = pytest.mark.row


def taken_away(rig: MemberRig, name: TopicPartition) -> Any:
    """Return the log of a partition that is led no more, and is not there any more."""
    rig.elect(name, OTHER, 2)
    return rig.store.logs.pop(name)


def offset(rig: MemberRig, group_id: str = "g") -> int:
    client = rig.client()
    rig.fetch_offset(client, group_id)
    (answer,) = client.answers()
    return offset_of(answer)


@row("LO-9")
def test_groups_whose_log_is_not_there_yet_are_loading():
    """Members go on: their heartbeats are taken meanwhile."""
    rig = MemberRig()
    member = rig.stable("g", "a")["a"]
    rig.committed("alone", ("orders", 0, 5))
    log = taken_away(rig, GROUPS)

    rig.elect(GROUPS, ME, 3)

    joining = rig.client()
    rig.join(joining)
    assert [answer.error_code for answer in joining.answers()] == [LOADING]
    assert rig.beat(rig.client(), "g", member) == Code.NONE
    assert rig.found("g") == (Code.NONE, ME)
    assert rig.client().ask(LIST, 4).error_code == LOADING
    rig.store.logs[GROUPS] = log
    rig.open(GROUPS)
    assert rig.beat(rig.client(), "g", member) == Code.NONE
    assert offset(rig, "alone") == 5
    assert rig.host.epoch == log.latest_epoch == 3


def test_transactional_ids_whose_log_is_not_there_yet_are_loading():
    rig = MemberRig()
    log = taken_away(rig, TRANSACTIONS)
    rig.elect(TRANSACTIONS, ME, 3)
    terms = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}

    answer = rig.client().ask(INIT, 4, transactional_id="tx", **terms)

    assert answer.error_code == LOADING
    listing = {"state_filters": (), "producer_id_filters": ()}
    assert rig.client().ask(LIST_TRANSACTIONS, 0, **listing).error_code == LOADING
    rig.store.logs[TRANSACTIONS] = log
    rig.open(TRANSACTIONS)
    assert rig.client().ask(INIT, 4, transactional_id="tx", **terms).error_code == Code.NONE
    assert rig.client().ask(LIST_TRANSACTIONS, 0, **listing).error_code == Code.NONE


@row("LO-8")
def test_a_log_of_an_earlier_term_is_never_gone_on_with():
    """Whoever asks meanwhile does not have it loaded, though it is there."""
    rig = MemberRig()
    rig.committed("g", ("orders", 0, 5))
    before = rig.host

    rig.elect(GROUPS, ME, 3)
    client = rig.client()
    rig.commit(client, 6)

    assert [code_of(answer) for answer in client.answers()] == [LOADING]
    assert before.status == before.AWAY
    log = rig.store.logs.pop(GROUPS)
    rig.commit(client, 6)
    assert [code_of(answer) for answer in client.answers()] == [LOADING]
    rig.store.logs[GROUPS] = log
    rig.open(GROUPS)
    assert offset(rig) == 5


@row("LO-8")
def test_a_log_that_is_opened_for_nothing_or_twice_changes_nothing():
    rig = MemberRig()
    rig.committed("g", ("orders", 0, 5))
    host = rig.host

    rig.elections.opened(GROUPS)
    rig.elections.opened(ORDERS)
    assert rig.host is host
    assert host.status == host.ACTIVE
    rig.elect(GROUPS, OTHER, 2)
    rig.elections.opened(GROUPS)

    assert rig.host.unavailable() == ELSEWHERE


@row("LO-8")
def test_no_shard_begins_in_an_epoch_below_one_that_was_heard_of():
    rig = MemberRig()
    coordinator = rig.node.coordinator
    coordinator.elected(0, 5)
    coordinator.resigned(0, 7)

    coordinator.elected(0, 6)
    coordinator.opened(0)
    rig.settle()
    assert 0 not in coordinator.hosts
    coordinator.elected(0, 8)

    assert coordinator.hosts[0].epoch == 8


def test_groups_that_are_first_asked_for_when_they_are_led_and_not_there_are_loading():
    """Nobody has had to do with groups before."""
    rig = MemberRig(leads=False)
    log = rig.store.logs.pop(GROUPS)
    rig.leaders.elect(GROUPS, Led(ME, 4))

    assert rig.host.unavailable() == LOADING
    assert rig.node.coordinator.incomplete() == LOADING
    rig.store.logs[GROUPS] = log
    rig.open(GROUPS)

    assert (rig.host.status, rig.host.epoch) == (rig.host.ACTIVE, 4)


def test_what_is_to_be_loaded_is_not_taken_for_loaded_while_the_broker_is_suspended():
    """Who hands shards over to it would give it the next."""
    rig = MemberRig()
    log = rig.store.logs.pop(GROUPS)
    rig.elect(GROUPS, ME, 2)
    seen = [rig.elections.is_loading()]

    for step in (rig.elections.suspend, rig.elections.resume):
        step()
        seen.append(rig.elections.is_loading())
    rig.store.logs[GROUPS] = log
    rig.open(GROUPS)

    assert seen == [True, True, True]
    assert not rig.elections.is_loading()


@row("LO-8")
def test_who_resigns_before_the_log_is_there_sends_clients_elsewhere():
    rig = MemberRig()
    rig.store.logs.pop(GROUPS)
    rig.elect(GROUPS, ME, 2)
    assert rig.host.unavailable() == LOADING

    rig.elect(GROUPS, OTHER, 3)

    assert rig.host.unavailable() == ELSEWHERE
    assert rig.found("g") == (Code.NONE, OTHER)


def test_a_log_that_goes_while_it_is_loaded_takes_nobody_along(caplog: pytest.LogCaptureFixture):
    """It is another's by then; nothing is logged as our mistake."""
    rig = MemberRig()
    rig.committed("g", ("orders", 0, 5))
    rig.elections.elected(GROUPS, ME, 2)
    rig.store.logs[GROUPS].lead(2)
    rig.elections.opened(GROUPS)

    rig.elections.elected(GROUPS, OTHER, 3)
    del rig.store.logs[GROUPS]
    rig.settle()

    assert rig.host.unavailable() == ELSEWHERE
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@row("LO-8")
def test_a_partition_of_a_topic_that_is_made_anew_is_led_from_the_first_epoch_on():
    rig = MemberRig()
    rig.elect(GROUPS, ME, 7)
    waiting = rig.client()
    waiting.send(FETCH, 17, **fetch_terms(rig, 17, wait_ms=9_000))

    for name in (GROUPS, ORDERS):
        rig.elections.deleted(name)
        del rig.store.logs[name]
    assert rig.host.unavailable() == ELSEWHERE
    assert [fetched(answer).error_code for answer in waiting.answers()] == [Code.NOT_LEADER_OR_FOLLOWER]
    for name in (GROUPS, ORDERS):
        rig.elect(name, ME, 0)

    assert (rig.host.unavailable(), rig.host.epoch) == (LOADING, 0)
    assert rig.leaders.leads(*ORDERS)


@row("LO-8")
def test_after_an_engine_has_gone_back_all_its_elections_are_news():
    rig = MemberRig()
    rig.elect(GROUPS, ME, 7)
    rig.elect(ORDERS, OTHER, 7)
    rig.elections.suspend()

    rig.elections.forget()
    assert rig.host.unavailable() == ELSEWHERE
    rig.elect(GROUPS, ME, 2)
    rig.elect(ORDERS, ME, 2)

    assert (rig.host.unavailable(), rig.host.epoch) == (LOADING, 2)
    assert rig.leaders.leads(*ORDERS)
