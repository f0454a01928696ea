"""Several brokers, each of which leads some partitions: who serves them, and what elections change.

They stand over logs that outlive their leaders, in one virtual time, without sockets. News of an election
reaches each broker when a test lets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.net.connection import Connection
from coterie.broker.net.request_queue import RequestQueue, here_and_now
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import ElectedLeaders, Leadership, Led, NodeEndpoint
from coterie.broker.runtime.markers import TransactionEnd
from coterie.storage.log.contract import StorageFailed
from coterie.storage.memory import Faults
from coterie.wire.api.apis import APIS
from coterie.wire.api.codec import decode_response, encode_request
from coterie.wire.api.entities import build, entity, request_type, response_type
from coterie.wire.records.batches import Record, build_batch, read_header, scan
from unit.broker.group_api_rig import JOIN, ApiRig, join_terms
from unit.broker.rig import Client, Line

PRODUCE, FETCH, LIST_OFFSETS, METADATA, DELETE_RECORDS, EPOCH_ENDS = 0, 1, 2, 3, 21, 23
ADD_PARTITIONS, WRITE_MARKERS, DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS, DESCRIBE_PARTITIONS = 24, 27, 60, 61, 75
ELSEWHERE, FENCED, UNKNOWN = (
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
)
ORDERS = TopicPartition("orders", 0)
WAIT_MS = 60_000
row = pytest.mark.row


class OneOfSeveral(ApiRig):
    """A broker that leads what it was elected for; `orders` has two partitions."""

    def __init__(self, node_id: int, live: tuple[NodeEndpoint, ...], **settings: object) -> None:
        self.leaders = ElectedLeaders(node_id, live)
        super().__init__(node_id=node_id, **settings)

    def a_node(self, leadership: Leadership | None = None) -> Node:
        return super().a_node(leadership or self.leaders)


class Brokers:
    """Three of them, and the elections, by partition."""

    def __init__(self, **settings: object) -> None:
        self.live = tuple(NodeEndpoint(n, f"broker{n}", 9_090 + n, f"rack{n}") for n in (1, 2, 3))
        self.rigs = {one.node_id: OneOfSeveral(one.node_id, self.live, **settings) for one in self.live}
        self.led: dict[TopicPartition, Led] = {}
        self._share()

    def _share(self) -> None:
        first = self.rigs[1].store
        for rig in self.rigs.values():
            for name in rig.store.logs:
                rig.store.logs[name] = first.logs[name]

    def create(self, topic: str, partitions: int, leader: int) -> list[TopicPartition]:
        """Make a topic that one broker leads; return its partitions."""
        for rig in self.rigs.values():
            rig.node.topic_manager.create_topic(topic, partitions=partitions)
        self._share()
        names = [TopicPartition(topic, number) for number in range(partitions)]
        for name in names:
            self.elect(leader, name)
        return names

    def __getitem__(self, node_id: int) -> OneOfSeveral:
        return self.rigs[node_id]

    def elect(self, leader: int | None, name: TopicPartition = ORDERS, *, heard_by: Any = (1, 2, 3)) -> int:
        """Have a broker lead a partition, or none; return the epoch. Who led it hears of it first."""
        before = self.led.get(name, Led(None, 0))
        self.led[name] = Led(leader, before.epoch + 1)
        for node_id in sorted(heard_by, key=lambda one: one != before.leader):
            self.tell(node_id, name)
        return before.epoch + 1

    def tell(self, node_id: int, name: TopicPartition = ORDERS) -> None:
        """Let a broker hear of the last election."""
        self.rigs[node_id].node.elections.heard(name, *self.led[name])
        self.rigs[node_id].settle()


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def part(api_key: int, version: int, kind: str, /, **values: Any) -> Any:
    return build(entity(APIS[api_key].name, version, kind), **values)


def named(rig: ApiRig, version: int, since: int, topic: str, *, key: str = "name") -> dict[str, Any]:
    """Return a topic as a request names it: by id from a version on."""
    return {"topic_id": rig.topic_id(topic)} if version >= since else {key: topic}


def produce_terms(
    rig: ApiRig, version: int = 9, partitions: tuple[int, ...] = (0,), topic: str = "orders"
) -> dict[str, Any]:
    batch = build_batch([Record(0, rig.now_ms, None, b"v")])
    data = tuple(part(PRODUCE, version, "PartitionProduceData", index=n, records=batch) for n in partitions)
    asked = part(PRODUCE, version, "TopicProduceData", partition_data=data, **named(rig, version, 13, topic))
    return {"acks": -1, "timeout": 1_000, "topic_data": (asked,)}


def fetch_terms(
    rig: ApiRig,
    version: int = 11,
    partitions: tuple[int, ...] = (0,),
    topic: str = "orders",
    *,
    epoch: int = -1,
    offset: int = 0,
    wait_ms: int = 0,
) -> dict[str, Any]:
    wanted = {"current_leader_epoch": epoch, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    asked = tuple(part(FETCH, version, "FetchPartition", partition=n, **wanted) for n in partitions)
    topics = (
        part(FETCH, version, "FetchTopic", partitions=asked, **named(rig, version, 13, topic, key="topic")),
    )
    return {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 26, "topics": topics}


def list_terms(_: ApiRig, *, epoch: int = -1, timestamp: int = -1) -> dict[str, Any]:
    terms = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": epoch}
    asked = part(LIST_OFFSETS, 6, "ListOffsetsPartition", **terms)
    return {"topics": (part(LIST_OFFSETS, 6, "ListOffsetsTopic", name="orders", partitions=(asked,)),)}


def ends_terms(_: ApiRig, *, epoch: int = -1, of: int = 0) -> dict[str, Any]:
    asked = part(
        EPOCH_ENDS, 4, "OffsetForLeaderPartition", partition=0, current_leader_epoch=epoch, leader_epoch=of
    )
    return {"topics": (part(EPOCH_ENDS, 4, "OffsetForLeaderTopic", topic="orders", partitions=(asked,)),)}


def delete_terms(_: ApiRig) -> dict[str, Any]:
    asked = part(DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=0, offset=0)
    return {"topics": (part(DELETE_RECORDS, 2, "DeleteRecordsTopic", name="orders", partitions=(asked,)),)}


def producers_terms(_: ApiRig) -> dict[str, Any]:
    return {"topics": (part(DESCRIBE_PRODUCERS, 0, "TopicRequest", name="orders", partition_indexes=(0,)),)}


def markers_terms(_: ApiRig) -> dict[str, Any]:
    topic = part(WRITE_MARKERS, 1, "WritableTxnMarkerTopic", name="orders", partition_indexes=(0,))
    who = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0, "transaction_result": True}
    return {"markers": (part(WRITE_MARKERS, 1, "WritableTxnMarker", topics=(topic,), **who),)}


def produced(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]


def fetched(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def listed(answer: Any) -> Any:
    return answer.topics[0].partitions[0]


Terms = Callable[[Any], dict[str, Any]]
Read = Callable[[Any], Any]
ASKED: dict[int, tuple[int, Terms, Read]] = {
    PRODUCE: (9, produce_terms, produced),
    FETCH: (11, fetch_terms, fetched),
    LIST_OFFSETS: (6, list_terms, listed),
    EPOCH_ENDS: (4, ends_terms, listed),
    DELETE_RECORDS: (2, delete_terms, listed),
    DESCRIBE_PRODUCERS: (0, producers_terms, listed),
    WRITE_MARKERS: (1, markers_terms, lambda answer: answer.markers[0].topics[0].partitions[0]),
}


def code_of(rig: ApiRig, api_key: int) -> Code:
    """Return the code of a request about the first partition of `orders`."""
    version, terms, read = ASKED[api_key]
    return Code(read(rig.client().ask(api_key, version, **terms(rig))).error_code)


# -- who leads, and who does not


@pytest.mark.parametrize("api_key", ASKED, ids=lambda api_key: APIS[api_key].title)
def test_only_the_leader_serves_a_partition(brokers: Brokers, api_key: int):
    brokers.elect(2)

    assert code_of(brokers[2], api_key) == Code.NONE
    assert code_of(brokers[1], api_key) == code_of(brokers[3], api_key) == ELSEWHERE


@pytest.mark.parametrize("api_key", ASKED, ids=lambda api_key: APIS[api_key].title)
def test_a_partition_without_a_leader_is_served_by_nobody(brokers: Brokers, api_key: int):
    brokers.elect(2)
    brokers.elect(None)

    assert [code_of(rig, api_key) for rig in brokers.rigs.values()] == [ELSEWHERE] * 3


def test_a_partition_that_there_is_nowhere_is_not_looked_for_elsewhere(brokers: Brokers):
    beyond = brokers[1].client().ask(FETCH, 11, **fetch_terms(brokers[1], partitions=(2,)))
    absent = brokers[1].client().ask(FETCH, 11, **fetch_terms(brokers[1], topic="absent"))

    assert fetched(beyond).error_code == fetched(absent).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_produce_whose_sender_wants_no_answer_ends_its_connection_where_another_leads(brokers: Brokers):
    """As in Kafka: so the client learns of it and asks who leads."""
    brokers.elect(2)
    client = brokers[1].client()

    client.send(PRODUCE, 9, **{**produce_terms(brokers[1]), "acks": 0})

    assert client.line.closed
    assert brokers[1].store.logs[ORDERS].end_offset == 0


def test_a_partition_that_another_leads_may_join_a_transaction(brokers: Brokers):
    """Its coordinator has nothing to say about who leads."""
    rig = brokers[1]
    rig.node.topic_manager.ensure_internal("__transaction_state")
    rig.settle()
    for partition in range(rig.node.topics.get("__transaction_state").partitions):  # type: ignore[union-attr]
        brokers.elect(1, TopicPartition("__transaction_state", partition), heard_by=(1,))
    brokers.elect(2)
    client = rig.client()
    owner = client.ask(
        22, 4, transactional_id="tx", transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )
    topic = part(ADD_PARTITIONS, 3, "AddPartitionsToTxnTopic", name="orders", partitions=(0, 1, 2))

    answer = client.ask(
        ADD_PARTITIONS,
        3,
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=owner.producer_id,
        v3_and_below_producer_epoch=owner.producer_epoch,
        v3_and_below_topics=(topic,),
    )

    [of_topic] = answer.results_by_topic_v3_and_below
    codes = {one.partition_index: Code(one.partition_error_code) for one in of_topic.results_by_partition}
    assert codes[2] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert codes[0] == codes[1] == Code.OPERATION_NOT_ATTEMPTED


# -- who is named instead (KIP-951)


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_a_produce_is_told_who_leads_where_clients_go_there(brokers: Brokers, version: int):
    epoch = brokers.elect(3)
    rig = brokers[1]

    answer = rig.client().ask(PRODUCE, version, **produce_terms(rig, version, partitions=(0, 1)))

    told = produced(answer)
    assert told.error_code == ELSEWHERE
    if version >= 10:
        assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (3, epoch)
        assert endpoints(answer) == [(3, "broker3", 9_093, "rack3")]


@pytest.mark.parametrize("version", [15, 16, 17])
def test_a_fetch_is_told_who_leads_where_clients_go_there(brokers: Brokers, version: int):
    epoch = brokers.elect(3)
    brokers.elect(3, TopicPartition("orders", 1))
    rig = brokers[1]

    answer = rig.client().ask(FETCH, version, **fetch_terms(rig, version, partitions=(0, 1)))

    assert [one.error_code for one in answer.responses[0].partitions] == [ELSEWHERE, ELSEWHERE]
    if version >= 16:
        told = fetched(answer).current_leader
        assert (told.leader_id, told.leader_epoch) == (3, epoch)
        assert endpoints(answer) == [(3, "broker3", 9_093, "rack3")]


def test_of_a_partition_that_nobody_leads_nothing_is_told_beside_one_that_somebody_does(brokers: Brokers):
    """librdkafka 2.16.1 takes an index that nobody has written for that of a partition whose leader is -1."""
    brokers.elect(None)
    epoch = brokers.elect(3, TopicPartition("orders", 1))
    rig = brokers[1]

    answer = rig.client().ask(FETCH, 17, **fetch_terms(rig, 17, partitions=(0, 1)))

    told = [one.current_leader for one in answer.responses[0].partitions]
    assert [(one.leader_id, one.leader_epoch) for one in told] == [(-1, -1), (3, epoch)]
    assert endpoints(answer) == [(3, "broker3", 9_093, "rack3")]


def endpoints(answer: Any) -> list[tuple[int, str, int, str | None]]:
    return [(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]


# -- epochs (KIP-320)


@pytest.mark.parametrize("api_key", [FETCH, LIST_OFFSETS, EPOCH_ENDS], ids=lambda key: APIS[key].title)
def test_an_election_begins_an_epoch_and_ends_the_one_before(brokers: Brokers, api_key: int):
    brokers.elect(1)
    epoch = brokers.elect(2)
    version, terms, read = ASKED[api_key]

    def code(sent: int) -> Code:
        asked: Any = terms
        return Code(
            read(brokers[2].client().ask(api_key, version, **asked(brokers[2], epoch=sent))).error_code
        )

    assert [code(sent) for sent in (epoch - 1, epoch, epoch + 1, -1)] == [
        FENCED,
        Code.NONE,
        UNKNOWN,
        Code.NONE,
    ]


def test_who_fetches_in_an_epoch_that_is_over_is_told_the_present_one(brokers: Brokers):
    brokers.elect(2)
    epoch = brokers.elect(2)

    answer = brokers[2].client().ask(FETCH, 17, **fetch_terms(brokers[2], 17, epoch=epoch - 1))

    told = fetched(answer)
    assert told.error_code == FENCED
    assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (2, epoch)
    assert endpoints(answer) == [(2, "broker2", 9_092, "rack2")]


def test_each_leader_writes_in_its_own_epoch_and_says_where_that_of_another_ended(brokers: Brokers):
    """A consumer that has read what another leader wrote finds out by this whether that is still there."""
    for leader, count in ((1, 2), (3, 1), (2, 3)):
        brokers.elect(leader)
        for _ in range(count):
            client = brokers[leader].client()
            assert produced(client.ask(PRODUCE, 9, **produce_terms(brokers[leader]))).error_code == Code.NONE

    log = brokers[2].store.logs[ORDERS]
    assert [header.leader_epoch for _, header in scan(log.read(0, max_bytes=1 << 20))] == [1, 1, 2, 3, 3, 3]
    ends = [
        listed(brokers[2].client().ask(EPOCH_ENDS, 4, **ends_terms(brokers[2], of=of))) for of in (1, 2, 3)
    ]
    assert [(one.leader_epoch, one.end_offset) for one in ends] == [(1, 2), (2, 3), (3, 6)]
    latest = listed(brokers[2].client().ask(LIST_OFFSETS, 6, **list_terms(brokers[2])))
    assert (latest.offset, latest.leader_epoch) == (6, 3)


def test_a_leader_whose_log_cannot_write_the_epoch_down_does_not_lead(brokers: Brokers):
    brokers.elect(1)
    disk = brokers[1].disk  # where the log is that all have
    disk.faults = Faults(refuse={"save"})

    with pytest.raises(OSError, match=r"."):
        brokers.elect(2, heard_by=(2,))
    assert code_of(brokers[2], FETCH) == ELSEWHERE
    disk.faults = Faults()
    brokers.tell(2)

    assert code_of(brokers[2], FETCH) == Code.NONE
    assert brokers[2].store.logs[ORDERS].latest_epoch == 2


# -- what clients are told of the cluster


def test_metadata_names_leaders_and_epochs_by_the_last_elections_and_all_that_live(brokers: Brokers):
    brokers.elect(1)
    brokers.elect(3)
    rig = brokers[1]
    rig.leaders.set_live(one for one in reversed(brokers.live) if one.node_id != 1)
    asked = (part(METADATA, 12, "MetadataRequestTopic", name="orders"),)

    answer = rig.client().ask(METADATA, 12, topics=asked)

    assert [(one.node_id, one.host, one.port, one.rack) for one in answer.brokers] == [*brokers.live[1:]]
    assert answer.controller_id == 2
    led, leaderless = answer.topics[0].partitions
    assert (led.error_code, led.leader_id, led.leader_epoch) == (Code.NONE, 3, 2)
    assert (leaderless.error_code, leaderless.leader_id) == (Code.LEADER_NOT_AVAILABLE, -1)
    assert (led.replica_nodes, led.isr_nodes, led.offline_replicas) == ((1,), (), (1,))


def test_a_leader_that_is_not_known_to_live_is_none(brokers: Brokers):
    brokers.elect(3)
    brokers[1].leaders.set_live(())

    answer = brokers[1].client().ask(METADATA, 12, topics=None)

    assert (answer.brokers, answer.controller_id) == ((), -1)
    [led] = {one.leader_id for topic in answer.topics for one in topic.partitions}
    assert led == -1


def test_a_description_of_partitions_names_no_leader_where_there_is_none(brokers: Brokers):
    """Without an error, as Kafka has it there."""
    brokers.elect(2)
    asked = (part(DESCRIBE_PARTITIONS, 0, "TopicRequest", name="orders"),)

    answer = (
        brokers[3]
        .client()
        .ask(DESCRIBE_PARTITIONS, 0, topics=asked, response_partition_limit=100, cursor=None)
    )

    led, leaderless = answer.topics[0].partitions
    assert (led.error_code, led.leader_id, led.leader_epoch) == (Code.NONE, 2, 1)
    assert (leaderless.error_code, leaderless.leader_id, leaderless.leader_epoch) == (Code.NONE, -1, 0)


def test_any_broker_describes_the_cluster(brokers: Brokers):
    answers = [rig.client().ask(DESCRIBE_CLUSTER, 0) for rig in brokers.rigs.values()]

    for answer in answers:
        assert [(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers] == [*brokers.live]
        assert answer.controller_id == 1


# -- what waits


def waiting(brokers: Brokers, node_id: int, version: int = 17, **terms: Any) -> Client:
    """Return a client whose fetch waits at a broker."""
    client = brokers[node_id].client()
    client.send(FETCH, version, **fetch_terms(brokers[node_id], version, wait_ms=WAIT_MS, **terms))
    assert client.answers() == []
    return client


def test_a_fetch_that_waits_is_sent_to_the_next_leader_at_once(brokers: Brokers):
    brokers.elect(1)
    client, untouched = waiting(brokers, 1), brokers.elect(1, TopicPartition("orders", 1))
    other = waiting(brokers, 1, partitions=(1,))

    epoch = brokers.elect(2)

    [answer] = client.answers()
    told = fetched(answer)
    assert told.error_code == ELSEWHERE
    assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (2, epoch)
    assert untouched == 1
    assert other.answers() == []


def test_a_fetch_that_waits_is_told_that_nobody_leads(brokers: Brokers):
    brokers.elect(1)
    client = waiting(brokers, 1)

    brokers.elect(None)

    [answer] = client.answers()
    assert (fetched(answer).error_code, fetched(answer).current_leader.leader_id) == (ELSEWHERE, -1)


def test_of_a_fetch_that_waits_for_several_the_others_are_read_when_one_moves(brokers: Brokers):
    other = TopicPartition("orders", 1)
    brokers.elect(1)
    brokers.elect(1, other)
    terms = {"partitions": (0, 1)}
    client = brokers[1].client()
    client.send(FETCH, 17, **{**fetch_terms(brokers[1], 17, wait_ms=WAIT_MS, **terms), "min_bytes": 10_000})
    brokers[1].client().ask(PRODUCE, 9, **produce_terms(brokers[1], partitions=(1,)))
    assert client.answers() == []

    brokers.elect(2)

    [answer] = client.answers()
    moved, stays = answer.responses[0].partitions
    assert (moved.error_code, moved.records) == (ELSEWHERE, b"")
    assert (stays.error_code, read_header(stays.records).count) == (Code.NONE, 1)


def test_a_fetch_that_waits_in_an_epoch_that_ends_is_fenced_at_once(brokers: Brokers):
    epoch = brokers.elect(1)
    client = waiting(brokers, 1, epoch=epoch)

    brokers.elect(1)

    [answer] = client.answers()
    assert fetched(answer).error_code == FENCED
    assert fetched(answer).current_leader.leader_epoch == epoch + 1


@pytest.mark.parametrize("slices", range(12))
def test_a_fetch_of_many_partitions_does_not_wait_where_one_moves_at_whatever_stop(slices: int):
    brokers = Brokers()
    names = brokers.create("wide", 130, leader=1)
    rig, soon, moved = brokers[1], brokers[1].soon, names[100]
    ticks = iter(range(1_000_000))
    queue = RequestQueue(rig.soon.append, clock=lambda: float(next(ticks)))
    line, connection = Line(), Connection(rig.node, queue)
    connection.connection_made(line)
    terms = fetch_terms(rig, 17, tuple(range(130)), "wide", wait_ms=WAIT_MS)
    connection.data_received(encode_request(1, "wide", build(request_type(FETCH, 17), **terms)))
    for _ in range(slices):
        if soon:
            soon.pop(0)()

    brokers.elect(2, moved)
    rig.settle()

    _, answer = decode_response(response_type(FETCH, 17), line.written[4:])
    codes = {one.partition_index: Code(one.error_code) for one in answer.responses[0].partitions}
    assert codes == {name.partition: ELSEWHERE if name == moved else Code.NONE for name in names}


def test_what_is_looked_for_by_time_is_not_told_by_who_no_longer_leads(brokers: Brokers):
    brokers.elect(1)
    brokers[1].client().ask(PRODUCE, 9, **produce_terms(brokers[1]))
    asides: list[Any] = []
    queue = RequestQueue(brokers[1].soon.append, aside=lambda *work: asides.append(work))
    line, connection = Line(), Connection(brokers[1].node, queue)
    connection.connection_made(line)
    terms = list_terms(brokers[1], timestamp=brokers[1].now_ms - 1)
    connection.data_received(encode_request(1, "x", build(request_type(LIST_OFFSETS, 6), **terms)))
    brokers[1].settle()
    assert len(asides) == 1

    brokers.elect(2)
    here_and_now(*asides[0])
    brokers[1].settle()

    _, answer = decode_response(response_type(LIST_OFFSETS, 6), line.written[4:])
    assert (listed(answer).error_code, listed(answer).offset) == (ELSEWHERE, -1)


@pytest.mark.parametrize("slices", [0, 1, 2, 3, 5, 10, 40])
def test_records_are_not_deleted_by_who_no_longer_leads(slices: int):
    """It writes down where the log starts before the log does; between the two others are served."""
    brokers = Brokers()
    names = brokers.create("wide", 130, leader=1)
    rig, last, ticks = brokers[1], names[-1], iter(range(1_000_000))
    rig.client().ask(PRODUCE, 9, **produce_terms(rig, partitions=tuple(range(130)), topic="wide"))
    line, connection = (
        Line(),
        Connection(rig.node, RequestQueue(rig.soon.append, clock=lambda: float(next(ticks)))),
    )
    connection.connection_made(line)
    asked = tuple(
        part(DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=n, offset=1) for n in range(130)
    )
    topics = (part(DELETE_RECORDS, 2, "DeleteRecordsTopic", name="wide", partitions=asked),)
    connection.data_received(encode_request(1, "x", build(request_type(DELETE_RECORDS, 2), topics=topics)))
    for _ in range(slices):
        rig.soon.pop(0)()

    brokers.elect(2, last)
    rig.settle()

    _, answer = decode_response(response_type(DELETE_RECORDS, 2), line.written[4:])
    codes = {one.partition_index: Code(one.error_code) for one in answer.topics[0].partitions}
    assert codes == {name.partition: ELSEWHERE if name == last else Code.NONE for name in names}
    assert rig.store.logs[last].start_offset == 0


# -- news


def test_news_that_is_older_than_what_is_known_changes_nothing(brokers: Brokers):
    """Nor does the same news again."""
    brokers.elect(1)
    old = brokers.elect(2)
    brokers.elect(1)
    client = waiting(brokers, 1)

    for rig in brokers.rigs.values():
        rig.node.elections.heard(ORDERS, 2, old)
        rig.node.elections.heard(ORDERS, 3, old + 1)

    assert client.answers() == []
    assert [code_of(brokers[n], LIST_OFFSETS) for n in (1, 2, 3)] == [Code.NONE, ELSEWHERE, ELSEWHERE]


def test_who_is_elected_before_it_has_the_topic_leads_in_that_epoch_once_it_has(brokers: Brokers):
    name, rig = TopicPartition("later", 1), brokers[2]
    brokers.elect(1, name)
    brokers.elect(2, name)
    rig.node.topic_manager.create_topic("later", partitions=1)

    rig.node.topic_manager.add_partitions("later", 2)

    answer = rig.client().ask(FETCH, 17, **fetch_terms(rig, 17, (0, 1), "later", epoch=2))
    assert [one.error_code for one in answer.responses[0].partitions] == [ELSEWHERE, Code.NONE]
    assert rig.store.logs[name].latest_epoch == 2


def test_a_topic_whose_log_cannot_begin_in_its_epoch_is_not_made(brokers: Brokers):
    name, rig = TopicPartition("later", 0), brokers[2]
    brokers.elect(1, name)
    brokers.elect(2, name)
    saves = rig.disk.save

    def refusing(path: str, data: bytes, *, sync: bool = False) -> None:
        if "leader-epoch" in path and b"2" in data:
            raise OSError(5, "Input/output error")
        saves(path, data, sync=sync)

    rig.disk.save = refusing  # type: ignore[method-assign]
    with pytest.raises(StorageFailed, match="Input/output error"):
        rig.node.topic_manager.create_topic("later", partitions=1)

    assert rig.node.topics.get("later") is None
    assert name not in rig.store.logs


def test_who_hears_late_sends_clients_to_who_led_before(brokers: Brokers):
    brokers.elect(1)
    brokers.elect(2, heard_by=(1, 2))

    def leader(node_id: int) -> int:
        answer = brokers[node_id].client().ask(FETCH, 17, **fetch_terms(brokers[node_id], 17))
        told: int = fetched(answer).current_leader.leader_id
        return told

    assert (leader(1), leader(3)) == (2, 1)
    brokers.tell(3)
    assert leader(3) == 2


@row("LO-8", "DE-6")
def test_the_groups_of_a_partition_go_with_its_leadership(brokers: Brokers):
    """Who waits to join is sent elsewhere; who leads next loads what was written."""
    for rig in brokers.rigs.values():
        rig.node.topic_manager.ensure_internal(OFFSETS_TOPIC)
    partition = brokers[1].node.coordinator.host_of("g").partition
    name = TopicPartition(OFFSETS_TOPIC, partition)
    log = brokers[1].store.logs[name]
    for rig in brokers.rigs.values():
        rig.store.logs[name] = log
    brokers.elect(1, name)
    client = brokers[1].client()
    client.send(JOIN, 3, **join_terms(3, group_id="g"))

    brokers.elect(2, name)

    assert [answer.error_code for answer in client.answers()] == [Code.NOT_COORDINATOR]
    host = brokers[2].node.coordinator.host_of("g")
    assert (host.status, host.epoch) == (host.ACTIVE, 2)
    assert brokers[1].node.coordinator.host_of("g").unavailable() == Code.NOT_COORDINATOR


@row("LO-8")
def test_who_is_elected_for_groups_before_it_has_their_topic_serves_them_once_it_has(brokers: Brokers):
    rig, client = brokers[3], brokers[3].client()
    for partition in range(rig.settings.offsets_topic_num_partitions):
        brokers.elect(1, TopicPartition(OFFSETS_TOPIC, partition), heard_by=())
        brokers.elect(3, TopicPartition(OFFSETS_TOPIC, partition), heard_by=(3,))

    client.send(JOIN, 3, **join_terms(3, group_id="g"))
    rig.pass_ms(0)

    assert [answer.error_code for answer in client.answers()] == [Code.NONE]
    host = rig.node.coordinator.host_of("g")
    assert (host.status, host.epoch) == (host.ACTIVE, 2)
    brokers.elect(2, TopicPartition(OFFSETS_TOPIC, host.partition), heard_by=(3,))
    assert rig.node.coordinator.host_of("g").unavailable() == Code.NOT_COORDINATOR


# -- whatever happens, in whatever order


class Reader:
    """A client with one fetch that waits at a broker, in the epoch that the broker knew."""

    def __init__(self, brokers: Brokers, node_id: int) -> None:
        self.node_id, rig = node_id, brokers[node_id]
        self.client = rig.client()
        self.epoch = rig.leaders.leader_epoch(*ORDERS)
        end = rig.store.logs[ORDERS].end_offset
        terms = fetch_terms(rig, 17, epoch=self.epoch, offset=end, wait_ms=WAIT_MS)
        self.client.send(FETCH, 17, **terms)
        self.code: Code | None = None

    def look(self) -> None:
        for answer in self.client.answers():
            assert self.code is None, "answered once"
            self.code = Code(fetched(answer).error_code)


class Course:
    """Elections, news of them, and clients that write and read, in any order."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.readers: list[Reader] = []
        self.epochs: list[int] = []  # of what was acknowledged, in order

    def elect(self, leader: int | None) -> None:
        """Have a broker lead: who did hears of it before anybody else, who will may hear of it late."""
        before = self.brokers.led.get(ORDERS, Led(None, 0)).leader
        self.brokers.elect(leader, heard_by=() if before is None else (before,))

    def tell(self, node_id: int) -> None:
        if ORDERS in self.brokers.led:
            self.brokers.tell(node_id)

    def produce(self, node_id: int) -> None:
        rig = self.brokers[node_id]
        leads, log = rig.leaders.leads(*ORDERS), rig.store.logs[ORDERS]
        told = produced(rig.client().ask(PRODUCE, 13, **produce_terms(rig, 13)))
        assert (told.error_code == Code.NONE) == leads
        if leads:
            assert told.base_offset == len(self.epochs)
            self.epochs.append(log.latest_epoch)

    def fetch(self, node_id: int) -> None:
        self.readers.append(Reader(self.brokers, node_id))

    def check(self) -> None:
        leading = [n for n, rig in self.brokers.rigs.items() if rig.node.led_log(ORDERS) is not None]
        assert len(leading) <= 1, "one leads"
        for reader in self.readers:
            reader.look()
            leaders = self.brokers[reader.node_id].leaders
            serves = [reader.node_id] == leading and leaders.leader_epoch(*ORDERS) == reader.epoch
            assert serves or reader.code is not None, "nobody waits at who does not lead, or in an old epoch"
        log = self.brokers[1].store.logs[ORDERS]
        assert [header.leader_epoch for _, header in scan(log.read(0, max_bytes=1 << 20))] == self.epochs
        assert self.epochs == sorted(self.epochs)

    def hops(self, node_id: int) -> list[int]:
        """Return the brokers that a client asks which goes where it is sent, up to who serves it."""
        asked = [node_id]
        while True:
            rig = self.brokers[asked[-1]]
            told = fetched(rig.client().ask(FETCH, 17, **fetch_terms(rig, 17)))
            if told.error_code == Code.NONE or told.current_leader.leader_id in (-1, *asked):
                return asked
            asked.append(told.current_leader.leader_id)


def test_a_marker_is_written_by_who_leads_and_by_nobody_else(brokers: Brokers):
    """Its coordinator tries again until it is: a log that is left here is another's by now."""
    end = TransactionEnd(7, 0, 0, commit=True)
    told: list[Code] = []
    brokers.elect(2)
    log = brokers[1].node.replica_manager.logs[ORDERS]

    brokers[1].node.marker_writer.write(ORDERS, end, told.append)
    brokers[1].node.marker_writer.write(TopicPartition("orders", 9), end, told.append)
    assert log.end_offset == 0
    brokers[2].node.marker_writer.write(ORDERS, end, told.append)

    assert told == [Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE]
    assert log.end_offset == 1
    del brokers[2].store.logs[ORDERS]  # it leads, and has not opened its log yet
    brokers[2].node.marker_writer.write(ORDERS, end, told.append)
    assert told[3:] == [Code.NOT_LEADER_OR_FOLLOWER]


NODES = st.sampled_from((1, 2, 3))
STEPS = st.one_of(
    st.tuples(st.just("elect"), st.sampled_from((1, 2, 3, None))),
    st.tuples(st.sampled_from(("tell", "tell", "produce", "fetch")), NODES),
)


@given(steps=st.lists(STEPS, max_size=25))
def test_one_broker_serves_in_each_epoch_and_nobody_waits_at_another(steps: list[tuple[str, Any]]):
    course = Course()
    for act, who in steps:
        getattr(course, act)(who)
        course.check()

    for node_id in (1, 2, 3):
        course.tell(node_id)
        course.check()

    leader = course.brokers.led.get(ORDERS, Led(None, 0)).leader
    for node_id in (1, 2, 3):
        hops = course.hops(node_id)
        assert hops == ([node_id] if leader in (None, node_id) else [node_id, leader])
