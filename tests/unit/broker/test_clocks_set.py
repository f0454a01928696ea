"""A clock that is set while the broker runs: what is committed bears the right date, and deadlines go on."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.wire.payloads.transaction_state import read_transaction_value
from coterie.wire.records.batches import Record, records_of, scan
from unit.broker.group_api_rig import COMMIT, ApiRig, ask_fetch, commit_topic, fetch_topic
from unit.broker.test_transactions import ORDERS, TxnRig

MONTH_MS = 30 * 86_400_000
DESCRIBE_TRANSACTIONS = 65
LOOKS = {"offsets_retention_check_interval_ms": 1_000}
EITHER_WAY = pytest.mark.parametrize("set_by_ms", [MONTH_MS, -MONTH_MS], ids=["was behind", "was ahead"])


def committed(rig: ApiRig, group_id: str) -> int:
    """Return what a group has committed for orders-0, -1 for nothing, after a look at what has expired."""
    rig.pass_ms(2_000)
    found = ask_fetch(rig.client(), 9, group_id, (fetch_topic(rig, 9, "orders", 0),))
    offset: int = found.topics[0].partitions[0].committed_offset
    return offset


def written(rig: ApiRig, topic: str) -> list[Record]:
    """Return all records of an internal topic, the partitions one after the other."""
    found: list[Record] = []
    for where, log in rig.store.logs.items():
        offset = log.start_offset
        while where.topic == topic and offset < log.end_offset:
            data = log.read(offset, max_bytes=1 << 20)
            for at, header in scan(data):
                found += records_of(data, at)
                offset = header.last_offset + 1
    return found


def dates(rig: ApiRig, topic: str) -> list[int]:
    """Return when the records of an internal topic were written, as they say."""
    return [record.timestamp for record in written(rig, topic)]


def started_by_the_right_clock(rig: Any) -> Any:
    """Return a broker on what the rig's disk holds, whose clock says from the start what the wall's says."""
    again = rig.started_again(settled=False)
    again.now_ms = rig.now_ms + rig.wall_ahead_ms
    again.settle()
    return again


def commit_as_member(rig: ApiRig, member_id: str) -> None:
    client = rig.client()
    for offset in (5, 7):  # the second takes the fast path
        terms = {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": member_id}
        client.ask(COMMIT, 9, topics=(commit_topic(rig, 9, "orders", (0, offset, "")),), **terms)


@EITHER_WAY
def test_what_is_committed_after_the_clock_was_set_is_there_after_the_next_start(set_by_ms: int):
    rig = ApiRig(**LOOKS)
    member_id = rig.stable("g", "a")["a"]
    rig.wall_ahead_ms = set_by_ms

    commit_as_member(rig, member_id)
    rig.committed("alone", ("orders", 0, 8))

    assert dates(rig, OFFSETS_TOPIC).count(rig.now_ms + set_by_ms) == 3
    assert (committed(rig, "g"), committed(rig, "alone")) == (7, 8)
    again = started_by_the_right_clock(rig)
    assert (committed(again, "g"), committed(again, "alone")) == (7, 8)
    again.close()


@EITHER_WAY
def test_a_group_that_is_left_after_the_clock_was_set_keeps_its_commits(set_by_ms: int):
    rig = ApiRig(**LOOKS)
    member_id = rig.stable("g", "a")["a"]
    rig.wall_ahead_ms = set_by_ms
    commit_as_member(rig, member_id)

    rig.pass_ms(11_000)  # its session ends

    assert rig.node.coordinator.host_of("g").shard.groups["g"].state.value == "Empty"
    assert committed(rig, "g") == 7
    again = started_by_the_right_clock(rig)
    assert committed(again, "g") == 7
    again.close()


@EITHER_WAY
def test_setting_the_clock_expires_nothing_and_ends_no_session(set_by_ms: int):
    rig = ApiRig(**LOOKS)
    member_id = rig.stable("g", "a")["a"]
    commit_as_member(rig, member_id)
    rig.committed("alone", ("orders", 0, 8))

    rig.wall_ahead_ms = set_by_ms

    assert (committed(rig, "g"), committed(rig, "alone")) == (7, 8)
    rig.pass_ms(5_000)
    assert rig.node.coordinator.host_of("g").shard.groups["g"].members
    rig.pass_ms(4_000)
    assert not rig.node.coordinator.host_of("g").shard.groups["g"].members


def test_commits_expire_in_the_end_by_a_clock_that_was_set():
    rig = ApiRig(**LOOKS)
    rig.wall_ahead_ms = MONTH_MS
    rig.committed("alone", ("orders", 0, 8))
    again = started_by_the_right_clock(rig)

    again.now_ms += 7 * 86_400_000 - 10_000
    assert committed(again, "alone") == 8
    again.now_ms += 10_000

    assert committed(again, "alone") == -1
    again.close()


def begun(rig: TxnRig) -> int:
    """Return when the transaction began, as the log says."""
    value = read_transaction_value(written(rig, TRANSACTIONS_TOPIC)[-1].value or b"")
    assert value is not None
    [described] = rig.one.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=("tid",)).transaction_states
    assert described.transaction_start_time.timestamp() * 1_000 == value.start_timestamp
    return value.start_timestamp


@EITHER_WAY
def test_a_transaction_has_its_time_whatever_the_wall_says_and_its_date_from_there(set_by_ms: int):
    rig = TxnRig()
    producer = rig.owner()
    rig.wall_ahead_ms = set_by_ms
    rig.add(producer, ORDERS)
    rig.write(producer)
    began_ms = rig.now_ms

    assert begun(rig) == began_ms + set_by_ms
    rig.pass_ms(50_000)
    rig.wall_ahead_ms = 2 * set_by_ms
    rig.pass_ms(9_000)
    assert rig.state() == "Ongoing"
    rig.pass_ms(12_000)

    assert rig.state() == "CompleteAbort"
    assert set(dates(rig, TRANSACTIONS_TOPIC)[-2:]) == {rig.now_ms - 1_000 + 2 * set_by_ms}
    rig.close()


@EITHER_WAY
def test_a_transaction_of_a_clock_that_was_set_goes_on_after_the_next_start(set_by_ms: int):
    rig = TxnRig()
    producer = rig.owner()
    rig.wall_ahead_ms = set_by_ms
    rig.add(producer, ORDERS)
    began_ms = begun(rig)

    again = started_by_the_right_clock(rig)
    again.pass_ms(20_000)

    assert (again.state(), begun(again)) == ("Ongoing", began_ms)
    again.pass_ms(50_000)
    assert again.state() == "CompleteAbort"
    again.close()


def test_a_transaction_that_began_in_the_future_hangs_no_longer_than_others():
    rig = TxnRig()
    producer = rig.owner()
    rig.wall_ahead_ms = MONTH_MS
    rig.add(producer, ORDERS)

    again = rig.started_again()  # the clock says the truth again
    again.pass_ms(71_000)

    assert again.state() == "CompleteAbort"
    again.close()
