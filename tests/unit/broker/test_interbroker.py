"""What brokers ask each other: connections, what gathers for them, and which of two is the later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import TRANSACTIONS_TOPIC
from coterie.broker.interbroker import sender
from coterie.broker.interbroker.connection import PeerConnection
from coterie.broker.interbroker.lives import (
    NAMES_MAX,
    SenderLives,
    SenderName,
    epochs_of,
    meant_for_others,
)
from coterie.broker.interbroker.markers import MarkerElsewhere, MarkerRequests
from coterie.broker.interbroker.sender import PAUSES_MS, SETUP_MS
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import ElectedLeaders, Leadership, NodeEndpoint
from coterie.broker.runtime.markers import TransactionEnd
from coterie.coordinator.txn.model import State
from coterie.wire.api.codec import decode_request, encode_response, read_request_header
from coterie.wire.api.entities import build, response_type
from unit.broker.group_api_rig import ApiRig, part, reply_part
from unit.broker.late_rig import LateRig

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
PEER = NodeEndpoint(2, "broker2", 9_092)
SELF = NodeEndpoint(1, "broker1", 9_092)
TIMEOUT_MS = 30_000
INIT, ADD_PARTITIONS, END, WRITE_MARKERS = 22, 24, 26, 27
MINUTE = timedelta(minutes=1)


def end_of(producer_id: int = 7, **terms: Any) -> TransactionEnd:
    return TransactionEnd(producer_id, 3, 5, commit=True, transaction_version=2)._replace(**terms)


class Line:
    """One attempt to connect, and what is sent over it."""

    def __init__(self, host: str, port: int, connection: PeerConnection) -> None:
        self.address, self.connection = (host, port), connection
        self.requests: list[tuple[int, str | None, Any]] = []
        self.cancelled = self.aborted = False

    def cancel(self) -> None:
        self.cancelled = True

    def write(self, data: bytes) -> None:
        header = read_request_header(data, 4)
        request = decode_request(header, data)
        self.requests.append((header.correlation_id, header.client_id, request))

    def abort(self) -> None:
        self.aborted = True

    def answer(self, at: int, code: Code = Code.NONE, *, correlation_id: int | None = None) -> None:
        """Answer the request that was sent at a place, all of it with one code."""
        sent, _, request = self.requests[at]
        answer = answer_to(request, code)
        number = sent if correlation_id is None else correlation_id
        self.connection.data_received(encode_response(number, answer))


def answer_to(request: Any, code: Code) -> Any:
    """Return an answer to a WriteTxnMarkers; what is asked for last is answered first."""
    result, topic_type = "WritableTxnMarkerResult", "WritableTxnMarkerTopicResult"
    return build(
        response_type(WRITE_MARKERS, 2),
        markers=tuple(
            reply_part(
                WRITE_MARKERS,
                2,
                result,
                producer_id=marker.producer_id,
                topics=tuple(
                    reply_part(
                        WRITE_MARKERS,
                        2,
                        topic_type,
                        name=topic.name,
                        partitions=tuple(
                            reply_part(
                                WRITE_MARKERS,
                                2,
                                "WritableTxnMarkerPartitionResult",
                                partition_index=number,
                                error_code=code,
                            )
                            for number in reversed(topic.partition_indexes)
                        ),
                    )
                    for topic in reversed(marker.topics)
                ),
            )
            for marker in reversed(request.markers)
        ),
    )


class Asking(ApiRig):
    """Broker 1 of two, the other of which leads `orders`; a test makes its connections, and breaks them."""

    def __init__(self, **settings: object) -> None:
        self.lines: list[Line] = []
        self.leaders = ElectedLeaders(1, [SELF, PEER])
        super().__init__(**settings)
        self.node.topic_manager.ensure_internal(TRANSACTIONS_TOPIC)
        for number in range(50):
            self.node.elections.heard(TopicPartition(TRANSACTIONS_TOPIC, number), 2, 1)
        for name in (A, B):
            self.node.elections.heard(name, 2, 1)
        self.markers = self.node.transaction_markers
        self.told: list[Code] = []

    def a_node(self, leadership: Leadership | None = None) -> Node:
        node = super().a_node(self.leaders)
        node.connect = self.connect
        return node

    def connect(self, host: str, port: int, connection: PeerConnection) -> Line:
        self.lines.append(Line(host, port, connection))
        return self.lines[-1]

    def write(self, watched: TopicPartition = A, end: TransactionEnd | None = None) -> None:
        """Have a marker written by the other broker."""
        self.markers.write(watched, end or end_of(), self.told.append)
        self.settle()

    def opened(self) -> Line:
        """Open the newest connection, and return it."""
        line = self.lines[-1]
        line.connection.connection_made(line)
        self.settle()
        return line

    def ask(self, name: str = "tx", *, add: bool = False) -> list[Mapping[TopicPartition, Code]]:
        """Ask about partitions; return where the answer will be."""
        told: list[Mapping[TopicPartition, Code]] = []
        self.node.transaction_partitions.partitions(name, 7, 3, [A, B], add=add, deliver=told.append)
        self.settle()
        return told


@pytest.fixture
def rig() -> Asking:
    return Asking()


def wanted(request: Any) -> list[tuple[int, str, tuple[int, ...]]]:
    """Return what a request asks for, by producer and topic."""
    return [
        (marker.producer_id, topic.name, topic.partition_indexes)
        for marker in request.markers
        for topic in marker.topics
    ]


# -- what gathers, and how it is answered


def test_the_markers_of_several_transactions_go_as_one_request(rig: Asking):
    for watched, producer_id in ((A, 7), (B, 7), (A, 8)):
        rig.write(watched, end_of(producer_id))

    line = rig.opened()

    assert line.address == ("broker2", 9_092)
    assert len(rig.lines) == 1
    ((_, _, request),) = line.requests
    assert wanted(request) == [(7, "orders", (0, 1)), (8, "orders", (0,))]
    assert rig.told == []
    line.answer(0)
    assert rig.told == [Code.NONE] * 3


def test_a_marker_carries_how_its_transaction_ends_and_its_coordinators_epoch(rig: Asking):
    rig.write(A, TransactionEnd(9, 4, 6, commit=False, transaction_version=1))

    (marker,) = rig.opened().requests[0][2].markers

    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (9, 4, 6)
    assert (marker.transaction_result, marker.transaction_version) == (False, 1)


def test_what_comes_in_one_round_goes_out_together_while_requests_are_under_way(rig: Asking):
    rig.write(A)
    line = rig.opened()
    rig.markers.write(B, end_of(), rig.told.append)
    rig.markers.write(A, end_of(8), rig.told.append)
    rig.settle()

    assert [wanted(request) for _, _, request in line.requests] == [
        [(7, "orders", (0,))],
        [(7, "orders", (1,)), (8, "orders", (0,))],
    ]
    line.answer(0)
    line.answer(1, Code.INVALID_PRODUCER_EPOCH)
    assert rig.told == [Code.NONE, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_EPOCH]


def test_a_few_requests_are_under_way_and_the_rest_gathers(rig: Asking, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "UNDER_WAY_MAX", 2)
    rig.write(A, end_of(1))
    line = rig.opened()
    for producer_id in (2, 3, 4):
        rig.write(A, end_of(producer_id))

    assert len(line.requests) == 2
    line.answer(0)
    assert wanted(line.requests[2][2]) == [(3, "orders", (0,)), (4, "orders", (0,))]


def test_two_ends_of_one_producer_are_not_in_one_request_nor_a_partition_twice():
    deliver: Callable[[Code], None] = [].append
    late = MarkerElsewhere(A, end_of(coordinator_epoch=6), deliver)
    first, again, other = (
        MarkerElsewhere(A, end_of(), deliver),
        MarkerElsewhere(A, end_of(), deliver),
        MarkerElsewhere(B, end_of(), deliver),
    )
    gathered = deque([first, late, again, other])

    assert MarkerRequests(ElectedLeaders(1)).cut(gathered)[1] == (first, other)
    assert MarkerRequests(ElectedLeaders(1)).cut(gathered)[1] == (late,)
    assert MarkerRequests(ElectedLeaders(1)).cut(gathered)[1] == (again,)


def test_a_request_is_of_bounded_length(monkeypatch: pytest.MonkeyPatch):
    deliver: Callable[[Code], None] = [].append
    gathered = deque(
        MarkerElsewhere(TopicPartition("t", number), end_of(), deliver) for number in range(2_500)
    )

    counts = [len(MarkerRequests(ElectedLeaders(1)).cut(gathered)[1]) for _ in range(3)]

    assert counts == [1_000, 1_000, 500]


def test_a_code_of_a_newer_broker_is_no_answer_and_is_asked_for_again(rig: Asking):
    newer: Any = 9_999
    rig.write(A)

    rig.opened().answer(0, newer)

    assert rig.told == [Code.NETWORK_EXCEPTION]


def test_of_a_marker_of_which_nothing_is_said_nobody_knows_whether_it_is_written(rig: Asking):
    rig.write(A)
    rig.write(B)
    line = rig.opened()
    correlation_id, _, request = line.requests[0]
    (answered,) = answer_to(request, Code.NONE).markers
    (topic,) = answered.topics
    topic = replace(topic, partitions=topic.partitions[:1])  # the last partition's
    answer = build(response_type(WRITE_MARKERS, 2), markers=(replace(answered, topics=(topic,)),))

    line.connection.data_received(encode_response(correlation_id, answer))

    assert rig.told == [Code.NETWORK_EXCEPTION, Code.NONE]


# -- connections that end


@pytest.mark.parametrize(
    "rubbish",
    [b"\0\0\0\2xx", b"\x7f\0\0\0", b"\0\0\0\x06\0\0\0\1\xff\xff"],
    ids=["too short", "too long", "no answer"],
)
def test_who_answers_what_cannot_be_read_is_given_up(rig: Asking, rubbish: bytes):
    rig.write()
    line = rig.opened()

    line.connection.data_received(rubbish)

    assert line.aborted
    assert rig.told == [Code.NETWORK_EXCEPTION]


def test_an_answer_to_another_request_than_the_next_ends_the_connection(rig: Asking):
    """It would be taken for what it is not: who asks goes by order as the broker does."""
    rig.write()
    line = rig.opened()

    line.answer(0, correlation_id=9)

    assert line.aborted
    assert rig.told == [Code.NETWORK_EXCEPTION]
    line.answer(0)  # nor is anything taken that comes behind it
    assert rig.told == [Code.NETWORK_EXCEPTION]


def test_an_answer_that_comes_in_bytes_is_taken_once_it_is_whole(rig: Asking):
    rig.write()
    line = rig.opened()
    correlation_id, _, request = line.requests[0]
    frame = encode_response(correlation_id, answer_to(request, Code.NONE))

    for at in range(len(frame)):
        assert rig.told == []
        line.connection.data_received(frame[at : at + 1])

    assert rig.told == [Code.NONE]


def test_who_waits_when_a_connection_breaks_hears_that_nobody_knows(rig: Asking):
    rig.write(A)
    line = rig.opened()
    rig.markers.write(B, end_of(), rig.told.append)

    line.connection.connection_lost(ConnectionResetError())

    assert rig.told == [Code.NETWORK_EXCEPTION] * 2


def test_pauses_between_attempts_grow_until_an_answer_has_come(rig: Asking):
    rig.write()
    for pause_ms in (*PAUSES_MS, PAUSES_MS[-1]):
        rig.lines[-1].connection.connection_lost(ConnectionRefusedError())
        rig.write()
        attempts = len(rig.lines)
        rig.pass_ms(pause_ms - 1)
        assert len(rig.lines) == attempts
        rig.pass_ms(1)
        assert len(rig.lines) == attempts + 1

    rig.opened().answer(0)
    rig.lines[-1].connection.connection_lost(None)
    rig.write()
    attempts = len(rig.lines)
    rig.pass_ms(PAUSES_MS[0])

    assert len(rig.lines) == attempts + 1


def test_a_producer_is_answered_at_once_while_no_connection_is_to_be_opened(rig: Asking):
    """Its coordinator may be another broker by the time that it tries again, as every producer does."""
    told = rig.ask()
    rig.lines[-1].connection.connection_lost(ConnectionRefusedError())
    later = rig.ask()

    assert told == later == [dict.fromkeys((A, B), Code.NETWORK_EXCEPTION)]
    assert len(rig.lines) == 1


def test_who_is_silent_is_given_up(rig: Asking):
    rig.write()
    line = rig.opened()
    rig.pass_ms(TIMEOUT_MS - 1)
    assert rig.told == []

    rig.pass_ms(1)

    assert line.aborted
    assert rig.told == [Code.NETWORK_EXCEPTION]


def test_a_request_has_its_own_time_and_not_what_those_before_have_left(rig: Asking):
    rig.write(A)
    line = rig.opened()
    rig.pass_ms(20_000)
    rig.write(B)
    line.answer(0)
    rig.pass_ms(TIMEOUT_MS - 1)
    assert rig.told == [Code.NONE]

    rig.pass_ms(1)

    assert rig.told == [Code.NONE, Code.NETWORK_EXCEPTION]


def test_an_attempt_that_takes_too_long_is_given_up_and_its_connection_refused(rig: Asking):
    rig.write()
    line = rig.lines[0]

    rig.pass_ms(SETUP_MS)

    assert line.cancelled
    assert rig.told == [Code.NETWORK_EXCEPTION]
    line.connection.connection_made(line)  # all the same
    assert line.aborted
    assert line.requests == []


@pytest.mark.parametrize("live", [[SELF], [SELF, PEER._replace(port=9_093)]], ids=["gone", "moved"])
@pytest.mark.parametrize("open_", [False, True])
def test_no_answer_is_waited_for_of_a_broker_that_is_not_there_any_more(
    rig: Asking, live: list[NodeEndpoint], open_: bool
):
    rig.write()
    line = rig.opened() if open_ else rig.lines[0]

    rig.leaders.set_live(live)

    assert rig.told == [Code.NETWORK_EXCEPTION]
    assert line.aborted == open_
    assert line.cancelled != open_
    rig.write()
    assert [one.address[1] for one in rig.lines[1:]] == [one.port for one in live[1:]]


def test_a_broker_that_is_there_as_before_goes_on_being_asked(rig: Asking):
    rig.write()
    line = rig.opened()

    rig.leaders.set_live([SELF, PEER, NodeEndpoint(3, "broker3", 9_092)])
    line.answer(0)

    assert rig.told == [Code.NONE]


def test_what_waits_for_a_connection_is_of_bounded_number(rig: Asking, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "GATHERED_MAX", 2)
    for _ in range(3):
        rig.write()

    assert rig.told == [Code.NETWORK_EXCEPTION]


def test_a_broker_that_stops_ends_its_connections(rig: Asking):
    rig.write()
    line = rig.opened()

    rig.node.stop()

    assert line.aborted
    assert rig.told == [Code.NETWORK_EXCEPTION]


def test_without_a_way_to_connect_everything_is_asked_again_later(rig: Asking):
    rig.node.connect = None
    del rig.node.transaction_markers
    rig.markers = rig.node.transaction_markers

    rig.write()

    assert rig.told == [Code.NETWORK_EXCEPTION]


# -- markers: who writes them


def test_a_marker_goes_to_whoever_leads_by_then(rig: Asking):
    """Nobody may, for a while; the coordinator asks again until somebody does."""
    rig.node.elections.heard(A, None, 2)
    rig.write()
    assert rig.told == [Code.NOT_LEADER_OR_FOLLOWER]

    rig.node.elections.heard(A, 1, 3)
    rig.write()

    assert rig.told[1:] == [Code.NONE]
    assert rig.node.replica_manager.logs[A].end_offset == 1
    assert rig.lines == []


def test_only_the_coordinators_own_metadata_says_that_a_partition_is_gone(rig: Asking):
    """That of another broker may be older than the partition: a marker would count as written."""
    rig.write(TopicPartition("gone", 0))
    rig.write(A)
    rig.opened().answer(0, Code.UNKNOWN_TOPIC_OR_PARTITION)

    assert rig.told == [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NOT_LEADER_OR_FOLLOWER]


def test_markers_of_a_connection_that_was_given_up_are_not_written(rig: Asking):
    """They would end the next transaction of a producer which has the same epoch in it (KIP-98)."""
    rig.node.elections.heard(A, 1, 2)
    log = rig.node.replica_manager.logs[A]
    name = SenderName(2, lambda: UUID(int=5))
    first, second = (rig.client(name.next_client_id("markers")) for _ in range(2))

    assert code_of(second.ask(WRITE_MARKERS, 2, markers=(a_marker(),))) == Code.NONE
    first.send(WRITE_MARKERS, 2, markers=(a_marker(),))

    assert first.line.closed
    assert first.answers() == []
    assert log.end_offset == 1
    assert rig.client("kafka-transactions").ask(WRITE_MARKERS, 2, markers=(a_marker(),)).markers
    assert log.end_offset == 2


def test_a_partition_that_a_marker_names_often_gets_it_once(rig: Asking):
    """A few bytes that are sent again would be a row's part each, for whoever takes over to read."""
    rig.node.elections.heard(A, 1, 2)
    topic = part(WRITE_MARKERS, 2, "WritableTxnMarkerTopic", name="orders", partition_indexes=(0, 0, 0))
    marker = replace(a_marker(), topics=(topic, topic))

    answer = rig.client("kafka-transactions").ask(WRITE_MARKERS, 2, markers=(marker, a_marker()))

    assert code_of(answer) == Code.NONE
    assert rig.node.replica_manager.logs[A].end_offset == 2


def test_markers_meant_for_the_leader_of_another_epoch_are_not_written(rig: Asking):
    """The partition may have moved away and back, and its coordinator have had the marker written there."""
    name = SenderName(2, lambda: UUID(int=5)).next_client_id("markers")
    rig.node.elections.heard(A, 1, 2)
    then = rig.client(f"{name}-{epochs_of([A], rig.leaders)}")
    rig.node.elections.heard(A, 1, 3)
    now = rig.client(f"{name}-{epochs_of([A], rig.leaders)}")

    codes = [code_of(one.ask(WRITE_MARKERS, 2, markers=(a_marker(),))) for one in (then, now)]

    assert codes == [Code.NOT_LEADER_OR_FOLLOWER, Code.NONE]
    assert rig.node.replica_manager.logs[A].end_offset == 1


def test_a_request_names_the_leader_epochs_of_its_partitions_in_any_order(rig: Asking):
    rig.write(A)
    rig.write(B)

    ((_, client_id, _),) = rig.opened().requests

    assert client_id is not None
    assert client_id.endswith(f"-{epochs_of([B, A], rig.leaders)}")
    rig.node.elections.heard(B, 2, 2)
    assert meant_for_others(client_id, [A, B], rig.leaders)


def code_of(answer: Any) -> Code:
    """Return what is said of the only partition."""
    code: Code = answer.markers[0].topics[0].partitions[0].error_code
    return code


def a_marker() -> Any:
    topic = part(WRITE_MARKERS, 2, "WritableTxnMarkerTopic", name="orders", partition_indexes=(0,))
    end = {"producer_id": 7, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
    return part(WRITE_MARKERS, 2, "WritableTxnMarker", topics=(topic,), **end)


def test_a_connection_is_over_once_a_later_one_of_its_sender_has_asked():
    lives = SenderLives()
    name, other = SenderName(1, lambda: UUID(int=1)), SenderName(1, lambda: UUID(int=2))
    first, second, third = (name.next_client_id("markers") for _ in range(3))
    partitions = name.next_client_id("partitions")

    assert not lives.is_over(second)
    assert not lives.is_over(second)
    assert lives.is_over(first)
    assert not lives.is_over(third)
    assert lives.is_over(second)
    assert not lives.is_over(partitions)
    assert not lives.is_over(other.next_client_id("markers"))  # another process of the same broker
    assert not any(map(lives.is_over, (None, "", "broker-1", "broker-1-markers-5", "a client")))


def test_strangers_who_call_themselves_brokers_take_little_memory():
    lives = SenderLives()
    for node_id in range(NAMES_MAX + 10):
        lives.is_over(SenderName(node_id, lambda: UUID(int=1)).next_client_id("markers"))

    assert len(lives._latest) == NAMES_MAX


class LateAsking(Asking, LateRig):
    """The same over logs whose appends land when a test says so."""


class Transacting(LateAsking):
    """The coordinator of "tx", and a client that begins a transaction with orders-0, and ends it."""

    def __init__(self) -> None:
        super().__init__()
        coordinator = TopicPartition(TRANSACTIONS_TOPIC, coordinator_partition("tx", partition_count=50))
        self.node.elections.heard(coordinator, 1, 2)
        self.settle()
        self.one = self.client()
        asked = {"transactional_id": "tx", "transaction_timeout": MINUTE}
        self.one.send(INIT, 5, **asked, producer_id=-1, producer_epoch=-1)
        self.land()
        self.producer_id = self.one.answers()[0].producer_id
        self.who = {"transactional_id": "tx", "producer_id": self.producer_id, "producer_epoch": 0}

    def begin(self) -> None:
        """Have the client add the partition."""
        topic = part(ADD_PARTITIONS, 3, "AddPartitionsToTxnTopic", name="orders", partitions=(0,))
        terms = {f"v3_and_below_{name}": value for name, value in self.who.items()}
        self.one.send(ADD_PARTITIONS, 3, v3_and_below_topics=(topic,), **terms)

    def end(self) -> None:
        """Have the client commit."""
        self.one.send(END, 4, committed=True, **self.who)

    @property
    def state(self) -> State:
        """That of the transaction."""
        return self.node.transactions.host_of("tx").shard.transactions["tx"].state


def test_markers_leave_once_it_lasts_that_the_transaction_ends():
    """The broker might die, and another decide that it was aborted."""
    rig = Transacting()
    rig.begin()
    rig.land()

    rig.end()
    assert rig.lines == []
    rig.land()

    assert rig.one.answers()[1].error_code == Code.NONE
    ((_, _, request),) = rig.opened().requests
    assert wanted(request) == [(rig.producer_id, "orders", (0,))]
    assert request.markers[0].coordinator_epoch == 2
    rig.lines[0].answer(0)
    rig.settle()
    rig.land()
    assert rig.state is State.COMPLETE_COMMIT


def test_the_next_transaction_goes_into_the_log_right_behind_the_end_of_the_one_before():
    """It waits until the markers are written, and not until it lasts that they are."""
    rig = Transacting()
    rig.begin()
    rig.land()
    rig.end()
    rig.land()
    rig.one.answers()

    rig.begin()
    rig.opened().answer(0)
    rig.settle()
    assert rig.one.answers() == []
    rig.land()

    (added,) = rig.one.answers()
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == Code.NONE
    assert rig.state is State.ONGOING
    assert rig.rounds == []


def test_where_the_end_of_the_one_before_is_refused_by_the_log_so_is_the_next_transaction():
    rig = Transacting()
    rig.begin()
    rig.land()
    rig.end()
    rig.land()
    rig.one.answers()

    rig.begin()
    rig.opened().answer(0)
    rig.settle()
    rig.refuse()

    (added,) = rig.one.answers()
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code != Code.NONE
    assert rig.state is State.PREPARE_COMMIT


def test_who_writes_a_marker_answers_once_it_lasts():
    rig = LateAsking()
    rig.node.elections.heard(A, 1, 2)
    client = rig.client(SenderName(2, lambda: UUID(int=5)).next_client_id("markers"))

    client.send(WRITE_MARKERS, 2, markers=(a_marker(),))
    assert client.answers() == []
    rig.land()

    assert code_of(client.answers()[0]) == Code.NONE


# -- partitions: who allows them


def test_questions_about_several_transactions_go_as_one_request(rig: Asking):
    told = [rig.ask("tx"), rig.ask("other"), rig.ask("tx")]
    line = rig.opened()

    first, second = (request for _, _, request in line.requests)
    assert [one.transactional_id for one in first.transactions] == ["tx", "other"]
    assert [one.transactional_id for one in second.transactions] == ["tx"]
    assert first.transactions[0].verify_only
    answer_partitions(line, 0, {"tx": Code.NONE, "other": Code.INVALID_TXN_STATE})
    assert told == [
        [{A: Code.NONE, B: Code.NONE}],
        [{A: Code.INVALID_TXN_STATE, B: Code.INVALID_TXN_STATE}],
        [],
    ]


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH),
        (Code.NOT_COORDINATOR, Code.NOT_COORDINATOR),
        (Code.TRANSACTION_ABORTABLE, Code.TRANSACTION_ABORTABLE),
        (Code.OPERATION_NOT_ATTEMPTED, Code.NETWORK_EXCEPTION),
    ],
)
def test_a_coordinators_answer_is_told_as_a_writer_expects_it(rig: Asking, said: Code, means: Code):
    told = rig.ask()

    answer_partitions(rig.opened(), 0, {"tx": said})

    assert told == [{A: means, B: means}]


def test_a_broker_that_may_not_ask_lets_nobody_write(rig: Asking):
    told = rig.ask()

    answer_partitions(rig.opened(), 0, {}, Code.CLUSTER_AUTHORIZATION_FAILED)

    assert told == [dict.fromkeys((A, B), Code.INVALID_TXN_STATE)]


def test_what_a_coordinator_says_nothing_about_is_not_allowed(rig: Asking):
    told = rig.ask()

    answer_partitions(rig.opened(), 0, {})

    assert told == [dict.fromkeys((A, B), Code.NETWORK_EXCEPTION)]


def test_without_a_coordinator_nobody_may_write(rig: Asking):
    rig.leaders.set_live([SELF])

    assert rig.ask() == [dict.fromkeys((A, B), Code.COORDINATOR_NOT_AVAILABLE)]
    assert rig.lines == []


def test_partitions_that_join_are_asked_for_again_while_the_transaction_before_ends(rig: Asking):
    """Soon at first, then every 20 ms, for 100 ms at most, by Kafka's defaults; who only verifies is told at
    once.
    """
    verified, joined = rig.ask("verified"), rig.ask("joins", add=True)
    line = rig.opened()
    answer_partitions(
        line, 0, {"verified": Code.CONCURRENT_TRANSACTIONS, "joins": Code.CONCURRENT_TRANSACTIONS}
    )
    assert verified == [dict.fromkeys((A, B), Code.CONCURRENT_TRANSACTIONS)]
    for number, pause_ms in enumerate((2, 4, 8, 16, 20, 20, 20, 20), 1):
        assert joined == []
        rig.pass_ms(pause_ms - 1)
        assert len(line.requests) == number
        rig.pass_ms(1)
        assert len(line.requests) == number + 1
        answer_partitions(line, number, {"joins": Code.CONCURRENT_TRANSACTIONS})

    assert joined == [dict.fromkeys((A, B), Code.CONCURRENT_TRANSACTIONS)]


def test_partitions_join_once_the_transaction_before_has_ended(rig: Asking):
    joined = rig.ask(add=True)
    line = rig.opened()
    answer_partitions(line, 0, {"tx": Code.CONCURRENT_TRANSACTIONS})
    rig.pass_ms(2)

    answer_partitions(line, 1, {"tx": Code.NONE})

    assert joined == [dict.fromkeys((A, B), Code.NONE)]


def answer_partitions(line: Line, at: int, codes: dict[str, Code], code: Code = Code.NONE) -> None:
    """Answer an AddPartitionsToTxn; each transaction that is named gets its code."""
    correlation_id, _, request = line.requests[at]
    results = tuple(
        reply_part(
            ADD_PARTITIONS,
            5,
            "AddPartitionsToTxnResult",
            transactional_id=one.transactional_id,
            topic_results=tuple(
                reply_part(
                    ADD_PARTITIONS,
                    5,
                    "AddPartitionsToTxnTopicResult",
                    name=topic.name,
                    results_by_partition=tuple(
                        reply_part(
                            ADD_PARTITIONS,
                            5,
                            "AddPartitionsToTxnPartitionResult",
                            partition_index=number,
                            partition_error_code=codes[one.transactional_id],
                        )
                        for number in topic.partitions
                    ),
                )
                for topic in one.topics
            ),
        )
        for one in request.transactions
        if one.transactional_id in codes
    )
    answer = build(response_type(ADD_PARTITIONS, 5), error_code=code, results_by_transaction=results)
    line.connection.data_received(encode_response(correlation_id, answer))


# -- a broker alone


def test_a_broker_alone_asks_nobody():
    rig = ApiRig()
    node = rig.node

    assert node.load_transaction_partitions() is node.transactions
    assert node.transactions.marker_writer is node.marker_writer
    assert {"transaction_markers", "transaction_partitions", "sender_name"}.isdisjoint(vars(node))
