"""Appends that land later, a round at a time: who waits for them, what is seen meanwhile, and what a refusal
undoes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.runtime.markers import TransactionEnd
from coterie.coordinator.group.commands import OffsetToCommit, TxnCommitOffsets
from coterie.coordinator.txn.model import State
from coterie.coordinator.txn.settings import RETRY_MS
from coterie.storage.log.partition import PartitionLog
from coterie.storage.log.producers import ONGOING
from coterie.wire.api.entities import entity
from coterie.wire.records.batches import Record, build_batch
from unit.broker.group_api_rig import BEAT, join_terms
from unit.broker.late_rig import LateRig
from unit.broker.rig import Client

PRODUCE, FETCH, JOIN, INIT, ADD_PARTITIONS, END = 0, 1, 11, 22, 24, 26
MARKERS = 27
ORDERS = TopicPartition("orders", 0)
row = pytest.mark.row


@pytest.fixture
def rig() -> LateRig:
    return LateRig()


def produce(client: Client, *values: bytes, sequence: int = -1, acks: int = -1) -> None:
    records = [Record(place, 1_700_000_000_000, None, value) for place, value in enumerate(values)]
    terms = {} if sequence < 0 else {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
    data = part(PRODUCE, 9, "PartitionProduceData", index=0, records=build_batch(records, **terms))
    topic = part(PRODUCE, 9, "TopicProduceData", name="orders", partition_data=(data,))
    client.send(PRODUCE, 9, acks=acks, timeout=1_000, topic_data=(topic,))


def part(api_key: int, version: int, kind: str, **fields: Any) -> Any:
    from coterie.wire.api.apis import APIS
    from coterie.wire.api.entities import build

    return build(entity(APIS[api_key].name, version, kind), **fields)


def produced(answer: Any) -> tuple[Code, int]:
    (topic,) = answer.responses
    (one,) = topic.partition_responses
    return one.error_code, one.base_offset


def code_of(answer: Any) -> Code:
    code: Code = answer.topics[0].partitions[0].error_code
    return code


def offset_of(answer: Any) -> int:
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


# -- groups


@row("P-9")
def test_a_commit_is_answered_when_it_has_landed(rig):
    one = rig.client()

    rig.commit(one, 5)

    assert one.answers() == []
    rig.land()
    assert [code_of(answer) for answer in one.answers()] == [Code.NONE]


@row("P-9", "OF-6")
def test_a_reader_of_what_is_in_flight_waits_for_it(rig):
    writer, reader = rig.client(), rig.client()
    rig.commit(writer, 5)

    rig.fetch_offset(reader)

    assert reader.answers() == []
    rig.land()
    assert [offset_of(answer) for answer in reader.answers()] == [5]


def test_what_comes_while_a_round_is_under_way_goes_with_the_next(rig):
    clients = [rig.client() for _ in range(4)]
    log = rig.node.coordinator.host_of("g").log
    for number, client in enumerate(clients):
        rig.commit(client, number, group_id=f"g{number}")

    assert (log.high_watermark, log.end_offset) == (0, 1)
    rig.land()
    assert [len(client.answers()) for client in clients] == [1, 0, 0, 0]
    assert (log.high_watermark, log.end_offset) == (1, 4)
    rig.land()
    assert [len(client.answers()) for client in clients] == [0, 1, 1, 1]
    assert rig.rounds == []


def test_a_refusal_undoes_what_is_in_flight_and_what_is_gathered_behind_it(rig):
    """What the log had before is what readers get, and each is answered, in the order of asking."""
    rig.commit(rig.client(), 1)
    rig.land()
    first, second, reader = rig.client(), rig.client(), rig.client()
    rig.commit(first, 2)
    rig.commit(second, 3)
    rig.fetch_offset(reader)

    rig.refuse()

    assert [code_of(client.answers()[0]) for client in (first, second)] == [Code.NOT_COORDINATOR] * 2
    assert offset_of(reader.answers()[0]) == 1
    log = rig.node.coordinator.host_of("g").log
    assert log.end_offset == log.high_watermark == 1
    rig.commit(first, 4)
    rig.land()
    assert code_of(first.answers()[0]) == Code.NONE


def test_a_member_whose_join_is_refused_late_is_no_member(rig):
    one = rig.client()
    rig.commit(rig.client(), 1)
    one.send(JOIN, 5, **join_terms(5, group_id="g", group_instance_id="i"))
    rig.pass_ms(0)
    assert one.answers() == []

    rig.refuse()

    assert [answer.error_code for answer in one.answers()] == [Code.NOT_COORDINATOR]
    assert rig.node.coordinator.host_of("g").shard.groups == {}


@row("P-9")
def test_a_heartbeat_waits_for_what_was_decided_before_it_and_for_nothing_behind(rig):
    """Else it would never be answered where others commit all the time."""
    rig.by_hand = False
    ids = rig.stable("other", "a")
    rig.by_hand = True
    member = rig.client()
    rig.commit(rig.client(), 1)

    member.send(BEAT, 4, group_id="other", generation_id=1, member_id=ids["a"])
    rig.commit(rig.client(), 2)

    assert member.answers() == []
    rig.land()
    assert [answer.error_code for answer in member.answers()] == [Code.NONE]
    assert len(rig.rounds) == 1


def test_a_heartbeat_that_has_waited_waits_on_where_its_own_group_has_moved(rig):
    rig.by_hand = False
    ids = rig.stable("g", "a")
    rig.by_hand = True
    member, other = rig.client(), rig.client()
    rig.commit(rig.client(), 1, group_id="h")
    member.send(BEAT, 4, group_id="g", generation_id=1, member_id=ids["a"])

    other.send(JOIN, 3, **join_terms(3, group_id="g"))

    rig.land()
    assert [answer.error_code for answer in member.answers()] == [Code.REBALANCE_IN_PROGRESS]


def test_who_resigns_sends_everybody_elsewhere_though_it_may_land_all_the_same(rig):
    one, two = rig.client(), rig.client()
    rig.commit(one, 1)
    rig.commit(two, 2)

    rig.node.coordinator.resigned(0)
    rig.settle()

    assert [code_of(client.answers()[0]) for client in (one, two)] == [Code.NOT_COORDINATOR] * 2
    rig.land()
    assert one.answers() == []


def txn_commit(rig: LateRig, deliver: Any) -> None:
    """Have offsets committed in a transaction whose producer the log knows in a later epoch."""
    host = rig.node.coordinator.host_of("g")
    offset = OffsetToCommit("orders", 0, 1, 0, "", rig.topic_id("orders"))
    terms = {"member_id": "", "instance_id": None, "generation": -1, "producer_id": 7, "producer_epoch": 0}
    command = TxnCommitOffsets(group_id="g", call=host.new_call(deliver), offsets=(offset,), **terms)
    host.execute_in_transaction(command, ONGOING)
    rig.settle()


@pytest.fixture
def fenced(rig: LateRig) -> LateRig:
    """A rig whose log of commits knows producer 7 in epoch 1, with a commit in flight."""
    offsets = rig.node.coordinator.host_of("g")
    rig.settle()
    terms = {"producer_id": 7, "producer_epoch": 1}
    batch = build_batch([Record(0, 1, b"\0\x7f", b"v")], **terms, base_sequence=-1, transactional=True)
    rig.node.replica_manager.append(OFFSETS_TOPIC, offsets.partition, batch, now_ms=1, origin="coordinator")
    rig.settle()
    rig.land()
    rig.commit(rig.client(), 1)
    return rig


def test_who_waits_for_what_is_in_flight_is_not_refused_for_the_transaction_of_another(fenced):
    one, answers = fenced.client(), []
    one.send(JOIN, 5, **join_terms(5, group_id="g"))

    txn_commit(fenced, answers.append)
    fenced.land()

    assert [answer.codes for answer in answers] == [(Code.INVALID_PRODUCER_EPOCH,)]
    assert [answer.error_code for answer in one.answers()] == [Code.MEMBER_ID_REQUIRED]


def test_who_was_refused_is_answered_though_what_is_in_flight_before_is_refused_then(fenced):
    one, reader, answers = fenced.client(), fenced.client(), []
    one.send(JOIN, 5, **join_terms(5, group_id="g"))
    txn_commit(fenced, answers.append)
    fenced.fetch_offset(reader)

    fenced.refuse()

    assert [answer.codes for answer in answers] == [(Code.NOT_COORDINATOR,)]
    assert [answer.error_code for answer in one.answers()] == [Code.NOT_COORDINATOR]
    assert [offset_of(answer) for answer in reader.answers()] == [-1]
    assert fenced.node.coordinator.host_of("g").calls == {}


def test_who_is_elected_again_loads_what_was_in_flight_once_it_has_landed(rig):
    """It was given up when this node resigned, and landed all the same."""
    rig.commit(rig.client(), 1)
    reader = rig.client()

    rig.node.coordinator.resigned(0)
    rig.node.coordinator.elected(0, 1)
    rig.node.coordinator.opened(0)
    rig.settle()

    assert rig.node.coordinator.loading()
    rig.land()
    assert not rig.node.coordinator.loading()
    rig.fetch_offset(reader)
    assert [offset_of(answer) for answer in reader.answers()] == [1]


# -- records


@pytest.mark.parametrize("acks", [-1, 1])
def test_records_are_acknowledged_and_seen_when_they_have_landed(rig, acks: int):
    producer = rig.client()
    log = rig.node.replica_manager.logs[ORDERS]

    produce(producer, b"one", b"two", acks=acks)

    assert producer.answers() == []
    assert (log.end_offset, log.high_watermark, log.read(0, max_bytes=1_000)) == (2, 0, b"")
    rig.land()
    assert produced(producer.answers()[0]) == (Code.NONE, 0)
    assert log.high_watermark == 2
    assert log.read(0, max_bytes=1_000) != b""


def test_a_producer_that_wants_no_answer_gets_none(rig):
    producer = rig.client()

    produce(producer, b"one", acks=0)
    rig.land()

    assert producer.answers() == []
    assert rig.node.replica_manager.logs[ORDERS].high_watermark == 1


@pytest.mark.parametrize("waits", [False, True])
def test_a_producer_that_wants_no_answer_has_its_connection_closed_by_a_late_refusal(rig, waits: bool):
    """As in Kafka, where all refusals come at once: so the client learns of it."""
    producer, other = rig.client(), rig.client()
    produce(producer, b"one", acks=0)
    produce(producer, b"two", acks=0)
    produce(other, b"three", acks=-1)
    if waits:
        produce(producer, b"four", acks=-1)

    rig.refuse()

    assert producer.line.closed
    assert {produced(answer) for answer in producer.answers()} <= {(Code.NOT_LEADER_OR_FOLLOWER, -1)}
    assert not other.line.closed


def test_records_that_are_refused_late_are_refused(rig):
    one, two = rig.client(), rig.client()
    produce(one, b"one")
    produce(two, b"two")

    rig.refuse()

    assert [produced(c.answers()[0]) for c in (one, two)] == [(Code.NOT_LEADER_OR_FOLLOWER, -1)] * 2
    assert rig.node.replica_manager.logs[ORDERS].end_offset == 0
    produce(one, b"again")
    rig.land()
    assert produced(one.answers()[0]) == (Code.NONE, 0)


@pytest.mark.parametrize("refused", [False, True])
def test_records_of_a_transaction_are_acknowledged_when_they_have_landed(rig, refused: bool):
    """Its coordinator is asked before they are appended."""
    rig.by_hand = False
    client = rig.client()
    terms = {"transactional_id": "tx"}
    begun = client.ask(INIT, 4, **terms, transaction_timeout=timedelta(seconds=60))
    who = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    joined = part(ADD_PARTITIONS, 3, "AddPartitionsToTxnTopic", name="orders", partitions=(0,))
    first = {f"v3_and_below_{name}": value for name, value in (terms | who | {"topics": (joined,)}).items()}
    client.ask(ADD_PARTITIONS, 3, **first)
    rig.by_hand = True
    batch = build_batch([Record(0, 1, None, b"v")], **who, base_sequence=0, transactional=True)
    data = part(PRODUCE, 9, "PartitionProduceData", index=0, records=batch)
    topic = part(PRODUCE, 9, "TopicProduceData", name="orders", partition_data=(data,))

    client.send(PRODUCE, 9, **terms, acks=-1, timeout=1_000, topic_data=(topic,))

    assert client.answers() == []
    if refused:
        rig.refuse()
    else:
        rig.land()
    code = Code.NOT_LEADER_OR_FOLLOWER if refused else Code.NONE
    assert [produced(answer)[0] for answer in client.answers()] == [code]


def test_a_batch_that_comes_again_is_acknowledged_with_the_first(rig):
    one, two = rig.client(), rig.client()
    produce(one, b"one", sequence=0)

    produce(two, b"one", sequence=0)

    assert (one.answers(), two.answers()) == ([], [])
    rig.land()
    assert [produced(client.answers()[0]) for client in (one, two)] == [(Code.NONE, 0)] * 2
    assert rig.node.replica_manager.logs[ORDERS].end_offset == 1


def test_after_a_refusal_a_producer_goes_on_where_the_log_does(rig):
    """Its batch is no repeat of one that never landed, and the one after that does not follow."""
    one = rig.client()
    produce(one, b"zero", sequence=0)
    rig.land()
    produce(one, b"one", sequence=1)
    rig.refuse()
    one.answers()

    produce(one, b"two", sequence=2)
    produce(one, b"one", sequence=1)
    rig.land()

    assert [produced(answer)[0] for answer in one.answers()] == [
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.NONE,
    ]


def an_open_transaction(rig: LateRig) -> PartitionLog:
    """Have producer 7 write one record in a transaction, which lands; return the log."""
    terms = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    batch = build_batch([Record(0, 1, None, b"v")], **terms, transactional=True)
    rig.node.replica_manager.append(*ORDERS, batch, now_ms=rig.now_ms, origin="coordinator")
    rig.settle()
    rig.land()
    return rig.node.replica_manager.logs[ORDERS]


def test_a_transaction_is_stable_when_its_marker_has_landed(rig):
    log = an_open_transaction(rig)
    told: list[Code] = []

    rig.node.marker_writer.write(ORDERS, TransactionEnd(7, 0, 0, commit=False), told.append)
    rig.settle()

    assert (told, log.last_stable_offset, log.high_watermark, log.end_offset) == ([], 0, 1, 2)
    rig.land()
    assert (told, log.last_stable_offset) == ([Code.NONE], 2)
    _, aborted = log.read_committed(0, max_bytes=1_000)
    assert [one.first_offset for one in aborted] == [0]


def test_a_marker_that_is_refused_late_leaves_the_transaction_open(rig):
    log = an_open_transaction(rig)
    told: list[Code] = []
    rig.node.marker_writer.write(ORDERS, TransactionEnd(7, 0, 0, commit=True), told.append)
    rig.settle()

    rig.refuse()

    assert told == [Code.NOT_LEADER_OR_FOLLOWER]
    assert log.open_transaction(7) == log.last_stable_offset == 0


def test_who_hears_of_a_refusal_may_ask_for_more_when_all_that_was_refused_is_undone(rig):
    """Its next request is on its connection already. It is for a shard that has been refused as well."""
    one, two = rig.client(), rig.client()
    marker_type = "WritableTxnMarker"
    topic = part(MARKERS, 1, "WritableTxnMarkerTopic", name=OFFSETS_TOPIC, partition_indexes=(0,))
    terms = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0, "transaction_result": True}
    with rig.one_round():
        produce(one, b"v")
        one.send(MARKERS, 1, markers=(part(MARKERS, 1, marker_type, topics=(topic,), **terms),))
        rig.commit(two, 5)

    rig.refuse()
    rig.land()

    refused, marked = one.answers()
    assert produced(refused) == (Code.NOT_LEADER_OR_FOLLOWER, -1)
    assert marked.markers[0].topics[0].partitions[0].error_code == Code.NONE
    assert code_of(two.answers()[0]) == Code.NOT_COORDINATOR
    host = rig.node.coordinator.host_of("g")
    assert (host.is_appending, host.log.high_watermark) == (False, 1)


def test_a_marker_that_is_refused_when_its_coordinator_was_elected_again_is_written_by_the_new_one(rig):
    rig.by_hand = False
    client, transactions = rig.client(), rig.node.transactions
    terms: dict[str, Any] = {"transactional_id": "tx"}
    begun = client.ask(INIT, 4, **terms, transaction_timeout=timedelta(seconds=60))
    terms |= {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    joined = part(ADD_PARTITIONS, 3, "AddPartitionsToTxnTopic", name="orders", partitions=(0,))
    asked = {f"v3_and_below_{name}": value for name, value in (terms | {"topics": (joined,)}).items()}
    client.ask(ADD_PARTITIONS, 3, **asked)
    rig.by_hand = True
    client.send(END, 3, **terms, committed=True)
    rig.land()
    host = transactions.host_of("tx")

    transactions.elected(host.partition, host.epoch + 1)
    transactions.opened(host.partition)
    rig.settle()
    rig.refuse()
    rig.pass_ms(RETRY_MS)
    while rig.rounds:
        rig.land()

    assert transactions.host_of("tx").shard.transactions["tx"].state is State.COMPLETE_COMMIT
