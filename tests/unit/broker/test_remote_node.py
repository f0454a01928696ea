"""A broker whose logs lie in a database: what outlives it, who takes over, what it does without that."""

from __future__ import annotations

from heapq import heappop
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.leadership import ElectedLeaders, Led, NodeEndpoint
from coterie.broker.runtime.pieces import at_once
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.pretended import BROKEN, Fate
from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import build, entity
from coterie.wire.records.batches import Record, build_batch, records_of, scan
from unit.broker import remote_node_rig
from unit.broker.group_api_rig import BEAT, COMMIT, commit_topic, fetch_topic
from unit.broker.remote_node_rig import DatabaseAndDisk, StoreOfOne
from unit.broker.rig import Client
from unit.broker.test_transactions import TxnRig

PRODUCE, FETCH, LIST_OFFSETS, OFFSET_FETCH, DELETE_RECORDS, EPOCH_END, LOG_DIRS = 0, 1, 2, 9, 21, 23, 35
ORDERS = TopicPartition("orders", 0)


class RemoteRig(TxnRig):
    """A broker over a database: what is asked of it, by the few fields that matter here."""

    remote = True
    disk: DatabaseAndDisk
    store: StoreOfOne  # type: ignore[assignment]

    def __init__(self, disk: Any = None, **settings: Any) -> None:
        settings.setdefault("offsets_topic_num_partitions", 1)
        super().__init__(disk, **settings)

    def next_life(self) -> RemoteRig:
        """Return a broker that takes over from this one, which hears nothing of it and goes on."""
        return RemoteRig(self.disk, **self.told)

    def killed(self) -> RemoteRig:
        """Return the next life after a kill."""
        self.store.crash()
        return self.next_life()

    def pass_ms(self, span_ms: int) -> None:
        """Let time pass for the store, too."""
        until_ms, timers = self.now_ms + span_ms, self.store.timers
        while timers and timers[0][0] <= until_ms:
            at_ms, _, do = heappop(timers)
            super().pass_ms(at_ms - self.now_ms)
            do()
            self.settle()
        super().pass_ms(until_ms - self.now_ms)

    def log(self) -> RemoteLog:
        return self.store.logs[ORDERS]

    def produce(self, client: Client, *values: str, sequence: int = -1) -> None:
        records = [Record(place, self.now_ms, None, value.encode()) for place, value in enumerate(values)]
        terms = {} if sequence < 0 else {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
        data = part(PRODUCE, 9, "PartitionProduceData", index=0, records=build_batch(records, **terms))
        topic = part(PRODUCE, 9, "TopicProduceData", name="orders", partition_data=(data,))
        client.send(PRODUCE, 9, acks=-1, timeout=1_000, topic_data=(topic,))

    def produced(self, *values: str, sequence: int = -1) -> tuple[Code, int]:
        client = self.client()
        self.produce(client, *values, sequence=sequence)
        return produced(client)

    def fetched(self, offset: int = 0, *, committed: bool = False) -> list[str]:
        wanted = part(
            FETCH, 11, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        topic = part(FETCH, 11, "FetchTopic", topic="orders", partitions=(wanted,))
        answer = self.client().ask(FETCH, 11, topics=(topic,), isolation_level=int(committed), min_bytes=0)
        (one,) = answer.responses[0].partitions
        assert one.error_code == Code.NONE
        data = one.records or b""
        found = [(header, record) for at, header in scan(data) for record in records_of(data, at)]
        return [(record.value or b"").decode() for header, record in found if not header.control]

    def commit(self, client: Client, offset: int, *, group_id: str = "g") -> None:
        topic = commit_topic(self, 9, "orders", (0, offset, ""))
        client.send(COMMIT, 9, group_id=group_id, generation_id_or_member_epoch=-1, topics=(topic,))

    def committed_offset(self, group_id: str = "g") -> int:
        topics = (fetch_topic(self, 7, "orders", 0),)
        answer = self.client().ask(OFFSET_FETCH, 7, group_id=group_id, topics=topics)
        offset: int = answer.topics[0].partitions[0].committed_offset
        return offset


def part(api_key: int, version: int, kind: str, **fields: Any) -> Any:
    return build(entity(APIS[api_key].name, version, kind), **fields)


def produced(client: Client) -> tuple[Code, int]:
    (answer,) = client.answers()
    (one,) = answer.responses[0].partition_responses
    return one.error_code, one.base_offset


def code_of(client: Client) -> Code:
    (answer,) = client.answers()
    code: Code = answer.topics[0].partitions[0].error_code
    return code


@pytest.fixture
def rig() -> RemoteRig:
    return RemoteRig()


# -- what outlives a broker


def test_a_kill_takes_nothing_that_was_answered(rig: RemoteRig):
    members = rig.stable("team", "a", "b")
    rig.committed("g", ("orders", 0, 42))
    assert rig.produced("one", "two", sequence=0) == (Code.NONE, 0)
    owner = rig.owner()
    rig.add(owner, ORDERS)
    rig.write(owner)
    rig.end(owner, commit=False)

    again = rig.killed()

    beat = again.client().ask(BEAT, 3, group_id="team", generation_id=1, member_id=members["b"])
    assert beat.error_code == Code.NONE
    assert again.committed_offset() == 42
    assert again.fetched() == ["one", "two", "value"]
    assert again.produced("one", "two", sequence=0) == (Code.NONE, 0)  # it is known
    assert again.produced("three", sequence=2) == (Code.NONE, 4)
    assert again.owner().producer_id == owner.producer_id


def test_a_transaction_that_a_kill_left_open_is_hidden_until_it_is_ended(rig: RemoteRig):
    owner = rig.owner()
    rig.add(owner, ORDERS)
    rig.write(owner)
    rig.settle()

    again = rig.killed()
    again.produced("behind it")

    assert again.log().last_stable_offset == 0
    again.owner()
    assert again.log().last_stable_offset == again.log().end_offset
    assert again.markers() == [(False, owner.epoch + 1, 1)]


def test_each_life_leads_in_an_epoch_of_its_own(rig: RemoteRig):
    rig.produced("one")
    again = rig.killed()
    again.produced("two")

    asked = part(
        EPOCH_END, 4, "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1, leader_epoch=0
    )
    topic = part(EPOCH_END, 4, "OffsetForLeaderTopic", topic="orders", partitions=(asked,))
    answer = again.client().ask(EPOCH_END, 4, topics=(topic,))

    (one,) = answer.topics[0].partitions
    assert (one.leader_epoch, one.end_offset) == (0, 1)
    assert again.log().latest_epoch == 1


# -- who is taken over from


def test_whoever_was_taken_over_from_appends_nothing(rig: RemoteRig):
    rig.stable("team", "a")
    rig.produced("before")
    rig.committed("g", ("orders", 0, 1))
    other = rig.next_life()
    late, committer = rig.client(), rig.client()

    rig.produce(late, "late")
    rig.commit(committer, 99)

    assert produced(late) == (Code.NOT_LEADER_OR_FOLLOWER, -1)
    assert code_of(committer) == Code.NOT_COORDINATOR
    assert rig.store.told == ["fenced", "fenced"]
    assert (other.fetched(), other.committed_offset()) == (["before"], 1)
    assert other.produced("after") == (Code.NONE, 1)


def test_whoever_was_taken_over_from_with_an_append_under_way_leaves_it_to_the_next_leader(rig: RemoteRig):
    writer = rig.client()
    rig.produced("before")
    rig.store.engine.choose = lambda _: Fate(answer_ms=None)
    rig.produce(writer, "under way")
    assert writer.answers() == []

    other = rig.next_life()
    rig.store.end()
    rig.settle()

    assert produced(writer) == (Code.NOT_LEADER_OR_FOLLOWER, -1)
    assert other.fetched() == ["before", "under way"]


def one_of_two(rig: RemoteRig) -> ElectedLeaders:
    """Have the broker be one of two, that leads everything so far."""
    here = rig.settings.node_id
    leaders = ElectedLeaders(here, [NodeEndpoint(here, "here", 1), NodeEndpoint(here + 1, "there", 2)])
    for name, log in rig.store.logs.items():
        leaders.elect(name, Led(here, log.latest_epoch))
    rig.node = rig.a_node(leaders)
    return leaders


@pytest.mark.parametrize("elsewhere", [True, False], ids=["elsewhere", "here again"])
def test_a_fetch_that_waits_at_a_log_that_is_given_up_is_sent_to_the_leader(rig: RemoteRig, elsewhere: bool):
    leaders = one_of_two(rig)
    client = rig.client()
    terms = {"current_leader_epoch": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    wanted = part(FETCH, 16, "FetchPartition", partition=0, **terms)
    topic = part(FETCH, 16, "FetchTopic", topic_id=rig.topic_id("orders"), partitions=(wanted,))
    client.send(FETCH, 16, topics=(topic,), max_wait=5_000, min_bytes=1)
    assert client.answers() == []

    leaders.elect(ORDERS, Led(rig.settings.node_id + elsewhere, 1))
    rig.store.drop(ORDERS)
    rig.node.purgatory.force_watching(ORDERS)
    rig.settle()

    (answer,) = client.answers()
    (one,) = answer.responses[0].partitions
    assert one.error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert one.current_leader.leader_id == rig.settings.node_id + elsewhere
    assert one.current_leader.leader_epoch == 1


# -- while the database is away


def test_while_the_database_is_away_what_comes_is_held_and_then_answered(rig: RemoteRig):
    rig.produced("before")
    rig.store.engine.go_away()
    writer, committer = rig.client(), rig.client()
    rig.produce(writer, "held", sequence=0)
    rig.commit(committer, 7)

    rig.pass_ms(5_000)
    assert (writer.answers(), committer.answers()) == ([], [])
    assert rig.fetched() == ["before"]
    rig.store.engine.come_back()
    rig.pass_ms(2_000)

    assert produced(writer) == (Code.NONE, 1)
    assert code_of(committer) == Code.NONE
    assert (rig.fetched(), rig.committed_offset()) == (["before", "held"], 7)
    assert len(rig.disk.tables.rows(rig.log().partition_id)) == 2


def test_while_too_much_is_held_nobody_is_read_from(rig: RemoteRig, monkeypatch: pytest.MonkeyPatch):
    peers = rig.node.peers

    def full() -> None:
        peers.pause_reading()
        rig.store.when_room(peers.resume_reading)

    monkeypatch.setattr(rig.store, "full", full)
    rig.store.engine.go_away()
    client, other = rig.client(), rig.client()
    for lane in rig.store.lanes:
        lane.held_bytes_max = 10_000
    rig.produce(client, "x" * 9_000)
    assert client.line.reading
    rig.produce(other, "y" * 9_000)
    assert not client.line.reading
    assert not other.line.reading

    rig.store.engine.come_back()
    rig.pass_ms(2_000)

    assert client.line.reading
    assert other.line.reading
    assert [produced(one) for one in (client, other)] == [(Code.NONE, 0), (Code.NONE, 1)]


# -- what deletes, lists and describes


def delete_records(rig: RemoteRig, client: Client, offset: int) -> None:
    asked = part(DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=0, offset=offset)
    topic = part(DELETE_RECORDS, 2, "DeleteRecordsTopic", name="orders", partitions=(asked,))
    client.send(DELETE_RECORDS, 2, topics=(topic,), timeout=1_000)


def deleted(client: Client) -> list[tuple[Code, int]]:
    return [
        (one.error_code, one.low_watermark)
        for answer in client.answers()
        for one in answer.topics[0].partitions
    ]


def test_records_are_deleted_when_the_database_knows_it(rig: RemoteRig):
    for value in ("one", "two", "three"):
        rig.produced(value)
    sizes = [len(batch.data) for batch in rig.log().tail.since(0)]
    client = rig.client()

    delete_records(rig, client, 2)
    assert (deleted(client), rig.log().start_offset) == ([], 0)
    rig.store.reader.answer()
    rig.settle()

    assert deleted(client) == [(Code.NONE, 2)]
    assert (rig.log().start_offset, rig.log().size_bytes) == (2, sizes[2])
    again = rig.killed()
    assert (again.log().start_offset, again.fetched(2)) == (2, ["three"])
    assert again.log().earliest_epoch == 0


def test_who_deletes_records_of_a_log_that_is_led_elsewhere_by_then_is_told(rig: RemoteRig):
    rig.produced("one")
    client = rig.client()
    delete_records(rig, client, 1)

    rig.store.drop(ORDERS)
    rig.store.reader.answer()
    rig.settle()

    ((code, _),) = deleted(client)
    assert code == Code.UNKNOWN_TOPIC_OR_PARTITION  # of a broker alone that has no log


def test_who_was_taken_over_from_before_its_deletion_is_written_down_deletes_nothing(rig: RemoteRig):
    for value in ("one", "two"):
        rig.produced(value)
    client = rig.client()
    delete_records(rig, client, 1)

    other = rig.next_life()
    rig.store.reader.answer()
    rig.settle()

    assert deleted(client) == [(Code.NOT_LEADER_OR_FOLLOWER, -1)]
    assert rig.log().start_offset == other.log().start_offset == 0
    assert other.killed().fetched() == ["one", "two"]


def test_offsets_are_found_by_time(rig: RemoteRig):
    rig.produced("one")
    rig.now_ms += 1_000
    rig.produced("two")
    asked = part(LIST_OFFSETS, 5, "ListOffsetsPartition", partition_index=0, timestamp=rig.now_ms - 500)
    topic = part(LIST_OFFSETS, 5, "ListOffsetsTopic", name="orders", partitions=(asked,))

    answer = rig.client().ask(LIST_OFFSETS, 5, topics=(topic,), replica_id=-1)

    assert answer.topics[0].partitions[0].offset == 1


def test_sizes_are_told_and_no_room_that_nobody_knows(rig: RemoteRig):
    rig.produced("one")

    answer = rig.client().ask(LOG_DIRS, 4, topics=None)

    (result,) = answer.results
    assert (result.error_code, result.log_dir) == (Code.NONE, "")
    assert (result.total_bytes, result.usable_bytes) == (-1, -1)
    sizes = {topic.name: [one.partition_size for one in topic.partitions] for topic in result.topics}
    assert sizes["orders"] == [rig.log().size_bytes, 0]


def test_housekeeping_deletes_what_its_topic_s_settings_do_not_keep(rig: RemoteRig):
    rig.produced("one", sequence=0)
    at_once(rig.node.topic_manager.configure_topics({"orders": {"retention.ms": "86400000"}}))
    rig.pass_ms(3_600_000)
    assert rig.fetched() == ["one"]

    configs = {"retention.ms": "1", "cleanup.policy": "delete"}
    at_once(rig.node.topic_manager.configure_topics({"orders": configs}))
    rig.pass_ms(3_600_000)

    assert (rig.log().start_offset, rig.disk.tables.rows(rig.log().partition_id)) == (1, [])
    assert len(rig.log().active_producers()) == 1
    assert rig.killed().produced("two") == (Code.NONE, 1)


def test_a_topic_that_is_made_again_has_nothing_of_the_one_before(rig: RemoteRig):
    rig.produced("old")
    before = rig.log().partition_id
    at_once(rig.node.topic_manager.delete_topics(["orders"]))
    rig.node.topic_manager.create_topic("orders", partitions=1)

    assert rig.log().partition_id != before
    assert rig.fetched() == []
    assert rig.disk.tables.rows(before) == []


def test_a_stop_leaves_all_that_was_decided(rig: RemoteRig):
    client = rig.client()
    rig.commit(client, 3)
    rig.store.drained(rig.node.stop)
    rig.settle()

    assert code_of(client) == Code.NONE
    assert rig.store.logs == {}
    assert rig.next_life().committed_offset() == 3


# -- what is not in memory


@pytest.fixture
def recalling(monkeypatch: pytest.MonkeyPatch) -> RemoteRig:
    """A broker that keeps nothing in memory of what has landed."""
    monkeypatch.setattr(remote_node_rig, "TAIL_BYTES", 0)
    return RemoteRig()


def test_a_consumer_reads_what_is_not_in_memory(recalling: RemoteRig):
    for value in ("one", "two", "three"):
        recalling.produced(value)

    assert not recalling.log().at_hand(0)
    assert recalling.fetched(0) == ["one", "two", "three"]
    assert recalling.fetched(2) == ["three"]
    assert recalling.fetched(3) == []


def test_who_reads_committed_records_that_are_not_in_memory_is_told_of_those_that_were_aborted(
    recalling: RemoteRig,
):
    owner = recalling.owner()
    recalling.add(owner, ORDERS)
    recalling.write(owner)
    recalling.end(owner, commit=False)
    recalling.settle()
    recalling.produced("behind it")

    topic = fetch_topic_of(0)
    answer = recalling.client().ask(FETCH, 11, topics=(topic,), isolation_level=1, min_bytes=0)

    (one,) = answer.responses[0].partitions
    assert [aborted.producer_id for aborted in one.aborted_transactions] == [owner.producer_id]
    assert [header.control for _, header in scan(one.records)] == [False, True, False]


def test_who_begins_to_read_at_a_new_leader_that_has_nothing_in_memory_passes_over_what_was_aborted(
    recalling: RemoteRig,
):
    recalling.produced("before")
    owner = recalling.owner()
    for commits in (False, True):
        recalling.add(owner, ORDERS)
        recalling.write(owner, sequence=int(commits))
        recalling.produced("between")
        owner = owner._replace(epoch=recalling.end(owner, commit=commits).producer_epoch)
        recalling.settle()
    again = recalling.killed()
    topic = fetch_topic_of(0)

    answer = again.client().ask(FETCH, 11, topics=(topic,), isolation_level=1, min_bytes=0)

    (one,) = answer.responses[0].partitions
    assert not again.log().at_hand(0)
    assert one.last_stable_offset == one.high_watermark == 7
    aborted = [(each.producer_id, each.first_offset) for each in one.aborted_transactions]
    assert aborted == [(owner.producer_id, 1)]
    assert [header.control for _, header in scan(one.records)] == [0, 0, 0, 1, 0, 0, 1]


def test_while_records_are_read_from_the_database_others_are_answered(recalling: RemoteRig):
    recalling.produced("one")
    client = recalling.client()

    recalling.store.reader.rows_wait = True

    client.send(FETCH, 11, topics=(fetch_topic_of(0),), min_bytes=1, max_wait=500)
    assert recalling.fetched(1) == []
    assert client.answers() == []
    recalling.store.reader.answer()
    recalling.settle()

    (answer,) = client.answers()
    assert answer.responses[0].partitions[0].records


def test_a_consumer_hears_of_a_database_that_cannot_be_read_and_of_records_afterwards(recalling: RemoteRig):
    recalling.produced("one")
    recalling.disk.fates["read-rows"] = Fate(effect_ms=None, failure=BROKEN)

    answer = recalling.client().ask(FETCH, 11, topics=(fetch_topic_of(0),), min_bytes=0)
    assert answer.responses[0].partitions[0].error_code == Code.KAFKA_STORAGE_ERROR

    recalling.disk.fates.clear()
    assert recalling.fetched() == ["one"]


def test_a_time_is_found_in_what_is_not_in_memory(recalling: RemoteRig):
    first_ms = recalling.now_ms
    for value in ("one", "two", "three"):
        recalling.produced(value)
        recalling.pass_ms(1_000)

    assert [offset_at(recalling, first_ms + after_ms) for after_ms in (0, 1, 2_000, 2_001)] == [0, 1, 2, -1]
    assert offset_at(recalling, -3) == 2


def offset_at(rig: RemoteRig, timestamp: int) -> int:
    asked = part(LIST_OFFSETS, 7, "ListOffsetsPartition", partition_index=0, timestamp=timestamp)
    topic = part(LIST_OFFSETS, 7, "ListOffsetsTopic", name="orders", partitions=(asked,))
    answer = rig.client().ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=(topic,))
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def fetch_topic_of(offset: int) -> Any:
    wanted = part(FETCH, 11, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return part(FETCH, 11, "FetchTopic", topic="orders", partitions=(wanted,))


def test_a_shard_waits_for_a_database_that_cannot_be_read_and_is_loaded(recalling: RemoteRig):
    recalling.committed("g", ("orders", 0, 42))
    recalling.store.crash()
    recalling.disk.fates["read-rows"] = Fate(effect_ms=None, failure=BROKEN)
    again = recalling.next_life()

    client = again.client()
    client.send(OFFSET_FETCH, 7, group_id="g", topics=(fetch_topic(again, 7, "orders", 0),))
    assert [answer.error_code for answer in client.answers()] == [Code.COORDINATOR_LOAD_IN_PROGRESS]
    again.disk.fates.clear()
    again.pass_ms(1_000)

    assert again.committed_offset() == 42
