"""Decisions become batches: each is whole, alone in what it may not share, and none costs another its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from itertools import islice, pairwise
from random import Random
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.runtime.pieces import Pieces, at_once
from coterie.broker.runtime.replica_manager import ReplicaManager
from coterie.broker.runtime.shards import HostedShard
from coterie.broker.runtime.transactions import TransactionHost
from coterie.coordinator.group.commands import CleanOffsets
from coterie.coordinator.txn.expiry import TIMEOUTS
from coterie.coordinator.txn.model import State
from coterie.wire.api.codec import (
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    request_type,
)
from coterie.wire.records.batches import Record, build_batch, scan
from unit.broker.group_api_rig import COMMIT, ApiRig, ask_fetch, commit_topic, fetch_topic, part
from unit.broker.rig import Client
from unit.broker.test_txn_offset_commit import TXN_COMMIT, Producer

PRODUCE, FETCH, DELETE_TOPICS, ADD = 0, 1, 20, 24
row = pytest.mark.row


def pipelined(client: Client, *requests: tuple[int, int, dict[str, Any]]) -> None:
    """Send requests in one piece, and leave undone what is put off."""
    data = b""
    for api_key, version, fields in requests:
        client.asked.append((api_key, version))
        request = build(request_type(api_key, version), **fields)
        data += encode_request(len(client.asked), client.client_id, request)
    client.connection.data_received(data)


def plain_commit(rig: ApiRig, group: str, topic: str, places: Iterable[int], written: int) -> Any:
    """A commit for these partitions, of the offset behind their number, with so many characters of three
    bytes each.
    """
    offsets = tuple((place, place + 1, "\u4e00" * written) for place in places)
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": (commit_topic(rig, 9, topic, *offsets),),
    }
    return COMMIT, 9, fields


def commit_in_transaction(producer: Producer, group: str, topic: str, place: int) -> Any:
    offset = part(
        TXN_COMMIT,
        5,
        "TxnOffsetCommitRequestPartition",
        partition_index=place,
        committed_offset=place + 1,
        committed_leader_epoch=-1,
        committed_metadata=None,
    )
    topics = (part(TXN_COMMIT, 5, "TxnOffsetCommitRequestTopic", name=topic, partitions=(offset,)),)
    member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    return TXN_COMMIT, 5, {"group_id": group, "topics": topics, **member, **producer.terms}


def long_poll(partition: int, offset: int, topic: str = OFFSETS_TOPIC) -> Any:
    """A fetch that waits for more, of the coordinator's log or of another."""
    wanted = part(
        FETCH,
        11,
        "FetchPartition",
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    fields = {
        "max_wait": timedelta(milliseconds=500),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": (part(FETCH, 11, "FetchTopic", topic=topic, partitions=(wanted,)),),
        "forgotten_topics_data": (),
        "rack_id": "",
    }
    return FETCH, 11, fields


def codes(client: Client) -> list[set[int]]:
    """Return what each commit of a client was answered."""
    return [{p.error_code for t in answer.topics for p in t.partitions} for answer in client.answers()]


def committed(rig: ApiRig, group: str, topic: str = "orders", partition: int = 0) -> int:
    answer = ask_fetch(rig.client(), 9, group, (fetch_topic(rig, 9, topic, partition),), require_stable=False)
    return int(answer.topics[0].partitions[0].committed_offset)


def batches(rig: ApiRig, topic: str, partition: int) -> list[Any]:
    data = rig.store.logs[TopicPartition(topic, partition)].read(0, max_bytes=1 << 26)
    return [header for _, header in scan(data)]


@row("P-9", "RT-5")
def test_commits_that_each_fit_are_taken_though_a_reply_brings_the_next_one_in_between():
    rig = ApiRig(offsets_topic_num_partitions=1)
    rig.committed("g", ("orders", 0, 0))
    rig.store.logs[TopicPartition(OFFSETS_TOPIC, 0)].configure(limited(rig, 20_000))
    one, other = rig.client(), rig.client()

    large = plain_commit(rig, "g", "orders", [0], 4_000)
    pipelined(one, large, large)
    pipelined(other, large)
    rig.settle()

    assert codes(one) == [{Code.NONE}, {Code.NONE}]
    assert codes(other) == [{Code.NONE}]


@row("TX-7", "RT-5")
def test_no_plain_commit_is_written_in_the_transaction_of_the_one_before_it_on_its_connection():
    """It went with the transaction when that was aborted."""
    rig = ApiRig()
    rig.node.topic_manager.create_topic("many", partitions=62)
    producer = Producer(rig)
    group = "g" * 4_960
    filling = plain_commit(rig, group, "many", range(62), 3_957)  # a whole batch
    client = rig.client()

    pipelined(client, commit_in_transaction(producer, group, "orders", 0), filling)
    rig.settle()

    assert codes(client) == [{Code.NONE}, {Code.NONE}]
    producer.end(commit=False)
    assert committed(rig.started_again(), group, "many", 3) == 4


@row("P-9")
def test_what_is_decided_while_a_reader_of_the_coordinators_log_is_woken_goes_into_the_next_batch():
    """It was answered as if it were in the batch that woke the reader, and written nowhere."""
    rig = ApiRig()
    host = rig.node.coordinator.host_of("g")
    reader = rig.client()
    pipelined(
        reader, long_poll(host.partition, host.log.end_offset), plain_commit(rig, "g", "orders", [0], 0)
    )

    rig.committed("g", ("orders", 1, 42))
    rig.settle()

    assert len(reader.answers()) == 2
    assert committed(rig, "g") == committed(rig.started_again(), "g") == 1


def a_write(rig: ApiRig, partition: int) -> Any:
    batch = build_batch([Record(0, rig.now_ms, None, b"value")])
    data = part(PRODUCE, 8, "PartitionProduceData", index=partition, records=batch)
    topics = (part(PRODUCE, 8, "TopicProduceData", name="many", partition_data=(data,)),)
    return PRODUCE, 8, {"transactional_id": None, "acks": 1, "timeout": timedelta(), "topic_data": topics}


def test_readers_who_wake_one_another_by_what_they_write_are_all_woken_and_end_no_coordinator():
    """Each was woken within the waking of the one before, until the stack was used up."""
    rig, count = ApiRig(offsets_topic_num_partitions=1), 80
    rig.node.topic_manager.create_topic("many", partitions=count + 1)
    rig.committed("g", ("orders", 0, 0))
    readers = [rig.client() for _ in range(2 * count)]
    for number in range(count):
        wait = long_poll(number, 0, "many")
        pipelined(readers[2 * number], wait, plain_commit(rig, "g", "many", [number], 0))
        pipelined(readers[2 * number + 1], wait, a_write(rig, number + 1))

    pipelined(rig.client(), a_write(rig, 0))
    rig.settle()

    assert {len(reader.answers()) for reader in readers} == {2}
    assert rig.node.coordinator.active()
    assert found(rig) == {number: number + 1 for number in range(count)}


def begun(rig: ApiRig, producers: list[Producer], partitions: int, *, at_once: bool) -> Counter[int]:
    """Have producers begin transactions of many partitions; return how often each code was answered."""
    topic = part(ADD, 3, "AddPartitionsToTxnTopic", name="many", partitions=tuple(range(partitions)))
    for one in producers:
        terms = {f"v3_and_below_{name}": value for name, value in one.terms.items()}
        one.client.send_at_once(ADD, 3, v3_and_below_topics=(topic,), **terms)
        if not at_once:
            rig.settle()
    rig.settle()
    return Counter(
        result.partition_error_code
        for one in producers
        for answer in one.client.answers()
        for result in answer.results_by_topic_v3_and_below[0].results_by_partition[:1]
    )


def a_rig_with_producers(count: int, partitions: int) -> tuple[ApiRig, list[Producer]]:
    rig = ApiRig(transaction_state_log_num_partitions=1)
    rig.node.topic_manager.create_topic("many", partitions=partitions)
    rig.settle()
    return rig, [Producer(rig, f"tx{number}") for number in range(count)]


def test_transactions_that_begin_in_one_round_cost_none_the_other_when_they_exceed_a_batch():
    rig, producers = a_rig_with_producers(20, 500)
    limit = 20_000
    rig.store.logs[TopicPartition(TRANSACTIONS_TOPIC, 0)].configure(limited(rig, limit))

    assert begun(rig, producers, 500, at_once=True) == {Code.NONE: 20}
    assert max(header.size for header in batches(rig, TRANSACTIONS_TOPIC, 0)) <= limit


def test_the_markers_of_a_transaction_of_many_partitions_are_written_with_others_heard_between():
    """Ten thousand took a third of a second, in which no heartbeat was answered."""
    rig, (producer,) = a_rig_with_producers(1, 300)
    assert begun(rig, [producer], 300, at_once=False) == {Code.NONE: 1}
    (host,) = rig.node.transactions.active()
    puts_off: list[Pieces[None]] = []
    rig.node.scheduler.work = puts_off.append  # type: ignore[method-assign]

    producer.end()
    (markers,) = puts_off
    written = [sum(log.end_offset for log in rig.store.logs.values()) for _ in markers]

    assert max(after - before for before, after in pairwise(written)) == 1
    assert {log.end_offset for name, log in rig.store.logs.items() if name.topic == "many"} == {1}
    assert host.shard.transactions["tx0"].state is State.COMPLETE_COMMIT


def test_the_logs_are_asked_of_many_producers_after_a_kill_with_others_heard_between():
    """Of a thousand in each of two hundred logs it took 53 ms, in one go."""
    rig, producers = a_rig_with_producers(20, 200)
    for number in range(200):
        log = rig.store.logs[TopicPartition("many", number)]
        for one in producers:
            who = {name: one.terms[name] for name in ("producer_id", "producer_epoch")}
            log.append(build_batch([Record(0, 0, None, b"")], base_sequence=0, **who), now_ms=rig.now_ms)

    host = TransactionHost(rig.node.transactions, 0, status=HostedShard.LOADING, epoch=0)
    stops = sum(1 for _ in host.load())

    assert host.status == HostedShard.ACTIVE
    assert stops >= 200 * len(producers) / 520 + len(producers)  # and one for each batch that is read


def test_transactions_that_hang_are_aborted_though_together_they_exceed_a_batch():
    """They were one decision, which the log refused: they hung for ever, a restart changed nothing."""
    rig, producers = a_rig_with_producers(20, 500)
    log = rig.store.logs[TopicPartition(TRANSACTIONS_TOPIC, 0)]
    log.configure(limited(rig, 20_000))
    assert begun(rig, producers, 500, at_once=False) == {Code.NONE: 20}

    rig.pass_ms(75_000)

    (host,) = rig.node.transactions.active()
    assert {txn.state for txn in host.shard.transactions.values()} == {State.COMPLETE_ABORT}


def test_what_the_log_refuses_to_abort_is_left_to_the_next_look():
    """From a thousand on, the next look came at once, and failed as the last had."""
    rig, producers = a_rig_with_producers(1_000, 1)
    begun(rig, producers, 1, at_once=False)
    rig.store.logs[TopicPartition(TRANSACTIONS_TOPIC, 0)].configure(limited(rig, 100))
    (host,) = rig.node.transactions.active()
    rig.now_ms += 75_000

    for _ in range(3):
        rig.node.purgatory.expire(rig.now_ms)
        rig.settle()

    assert len(host.shard.ongoing) == 1_000
    assert rig.node.purgatory.at(host.timer(TIMEOUTS)) > rig.now_ms


def limited(rig: ApiRig, most: int) -> Any:
    """Return the settings of a log of small batches."""
    return rig.settings.log_config({"max.message.bytes": str(most)})


# -- what need not be done at once


def a_group_with_much(partitions: int = 100, **settings: Any) -> ApiRig:
    """A broker of small batches, with a group whose commits' tombstones are too many for one."""
    rig = ApiRig(offsets_topic_num_partitions=1, **settings)
    rig.node.topic_manager.add_partitions("orders", partitions)
    rig.committed("g", *(("orders", number, 5) for number in range(partitions)))
    topic = rig.node.topics.get(OFFSETS_TOPIC)
    assert topic is not None
    at_once(
        rig.node.topic_manager.configure_topics(
            {OFFSETS_TOPIC: {**topic.configs, "max.message.bytes": "2000"}}
        )
    )
    return rig


def commits(rig: ApiRig) -> int:
    return sum(host.shard.offsets.count_of("g") for host in rig.node.coordinator.active())


def deleted(rig: ApiRig, *, settled: bool = True) -> None:
    client = rig.client()
    client.send_at_once(DELETE_TOPICS, 5, topic_names=("orders",), timeout=timedelta(seconds=5))
    if settled:
        rig.settle()
        assert client.answers()[0].responses[0].error_code == Code.NONE


EXPIRING = {"offsets_retention_minutes": 1, "offsets_retention_check_interval_ms": 60_000}


@row("XP-10", "DE-4")
def test_the_commits_of_a_group_expire_though_their_tombstones_exceed_a_batch():
    rig = a_group_with_much(**EXPIRING)

    rig.pass_ms(180_000)

    assert commits(rig) == 0
    assert "g" not in rig.node.coordinator.active()[0].shard.groups
    assert max(header.size for header in batches(rig, OFFSETS_TOPIC, 0)[1:]) <= 2_000


@row("XP-10")
def test_a_group_of_which_a_kill_has_left_a_part_is_loaded_with_it_and_loses_the_rest():
    rig = a_group_with_much(**EXPIRING)
    rig.now_ms += 180_000
    (host,) = rig.node.coordinator.active()
    cleaning = host.carry_out_in_parts(CleanOffsets(group_ids=("g",)))
    next(cleaning)

    again = ApiRig(rig.store.crash(), **rig.told)  # type: ignore[attr-defined]

    assert 0 < commits(again) < 100
    assert committed(again, "g", "orders", 99) == 5
    again.pass_ms(360_000)
    assert commits(again) == 0
    assert not again.node.coordinator.active()[0].shard.groups


@row("OM-7", "XP-10")
def test_a_topic_is_deleted_with_more_commits_of_one_group_than_there_is_room_for_in_a_batch():
    """They stayed, and kept the name from ever being given again."""
    rig = a_group_with_much()

    deleted(rig)

    assert commits(rig) == 0
    rig.node.topic_manager.create_topic("orders", partitions=1)
    assert committed(rig.started_again(), "g") == -1


@row("XP-10")
def test_what_the_log_refuses_of_many_parts_is_left_to_who_asks_next():
    rig = a_group_with_much(**EXPIRING)
    rig.disk.faults.refuse = {"write"}
    rig.pass_ms(180_000)
    assert commits(rig) == 100

    rig.disk.faults.refuse = set()
    rig.pass_ms(60_000)

    assert commits(rig) == 0


@row("XP-10")
def test_what_is_too_large_for_the_log_even_in_parts_is_given_up_until_somebody_asks_again():
    """Each part was refused by itself, and asked for again at once, for ever."""
    rig = a_group_with_much(**EXPIRING)
    rig.store.logs[TopicPartition(OFFSETS_TOPIC, 0)].configure(limited(rig, 70))
    rig.now_ms += 180_000
    (host,) = rig.node.coordinator.active()

    parts = host.carry_out_in_parts(CleanOffsets(group_ids=("g",)))
    assert len(list(islice(parts, 10))) < 10

    assert commits(rig) == 100
    rig.store.logs[TopicPartition(OFFSETS_TOPIC, 0)].configure(limited(rig, 2_000))
    rig.pass_ms(60_000)
    assert commits(rig) == 0


@row("OM-7")
def test_a_topic_that_is_deleted_while_its_many_commits_are_loaded_leaves_none_of_them():
    rig = a_group_with_much().started_again(settled=False)

    deleted(rig, settled=False)
    rig.settle()

    assert rig.node.coordinator.active()
    assert commits(rig) == 0


@row("OM-7")
def test_nobody_is_told_what_was_committed_for_a_deleted_topic_while_the_log_refuses_to_drop_it():
    """A shard that was loading dropped it once, if at all, and answered."""
    rig = a_group_with_much().started_again(settled=False)
    deleted(rig, settled=False)
    rig.disk.faults.refuse = {"write"}
    rig.settle()

    rig.pass_ms(5_000)
    (host,) = rig.node.coordinator.hosts.values()
    assert host.unavailable() is Code.COORDINATOR_LOAD_IN_PROGRESS
    rig.disk.faults.refuse = set()
    rig.pass_ms(1_000)

    assert host.unavailable() is Code.NONE
    assert commits(rig) == 0


# -- whatever comes together


class Lines:
    """Connections that send several requests at once: commits, in transactions and not, and long polls.

    Each commits for partitions of its own, so that what it leaves does not hang on who came first.
    """

    LIMIT, LINES, PARTITIONS, LARGEST = 20_000, 3, 120, 5_000

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rig = ApiRig(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
        self.rig.node.topic_manager.create_topic("many", partitions=self.PARTITIONS)
        self.rig.committed("g", ("orders", 0, 0))
        self.log = self.rig.store.logs[TopicPartition(OFFSETS_TOPIC, 0)]
        self.log.configure(limited(self.rig, self.LIMIT))
        self.producers = [Producer(self.rig, f"tx{number}") for number in range(2)]
        self.clients = [self.rig.client() for _ in range(self.LINES)]
        self.free = iter(range(self.PARTITIONS))
        self.kept: dict[int, int] = {}
        self.open: dict[str, dict[int, int]] = {}

    def commit(self) -> tuple[int, int, dict[str, Any]]:
        places = [next(self.free) for _ in range(self.random.randint(1, 3))]
        self.kept |= {place: place + 1 for place in places}
        return plain_commit(self.rig, "g", "many", places, self.random.randrange(self.LARGEST // 3))

    def commit_in_transaction(self) -> tuple[int, int, dict[str, Any]]:
        producer, place = self.random.choice(self.producers), next(self.free)
        self.open.setdefault(producer.terms["transactional_id"], {})[place] = place + 1
        return commit_in_transaction(producer, "g", "many", place)

    def long_poll(self) -> tuple[int, int, dict[str, Any]]:
        return long_poll(0, self.log.end_offset)

    def round(self) -> None:
        """Have some connections send some requests each, before the broker does what it has put off."""
        kinds = (self.commit, self.commit, self.commit_in_transaction, self.long_poll)
        for client in self.random.sample(self.clients, self.random.randint(1, self.LINES)):
            pipelined(client, *(self.random.choice(kinds)() for _ in range(self.random.randint(1, 3))))
        self.rig.settle()
        self.rig.pass_ms(1_000)  # the long polls are over

    def end(self) -> None:
        """Have every transaction end somehow."""
        for producer in self.producers:
            left = self.open.pop(producer.terms["transactional_id"], None)
            if left is not None:
                commit = self.random.random() < 0.5
                producer.end(commit=commit)
                self.kept |= left if commit else {}

    def refused(self) -> set[int]:
        """Return the codes of what was not done."""
        commits = [a for client in self.clients for a in client.answers() if hasattr(a, "topics")]
        return {p.error_code for a in commits for t in a.topics for p in t.partitions} - {Code.NONE}


def found(rig: ApiRig) -> dict[int, int]:
    """Return what the group has committed, by partition."""
    answer = ask_fetch(rig.client(), 9, "g", None, require_stable=False)
    topics = {topic.name: topic.partitions for topic in answer.topics}
    return {place.partition_index: place.committed_offset for place in topics.get("many", ())}


def lived(seed: int) -> tuple[set[int], bool, bool]:
    """Return which codes were answered to what was not done, and whether what was done is there: before a
    kill, and after it.
    """
    lines = Lines(seed)
    for _ in range(8):
        lines.round()
        if lines.random.random() < 0.3:
            lines.end()
    lines.end()
    there = found(lines.rig) == lines.kept
    return lines.refused(), there, found(lines.rig.started_again()) == lines.kept


SOUND = (set(), True, True)
SEEDS = range(15)


@row("P-9", "RT-5", "TX-7")
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_asked_together_is_done_and_lasts(seed: int):
    assert lived(seed) == SOUND


def nobody_asks_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostedShard, "has_room", lambda self, weight: True)


def readers_are_woken_within_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    append = ReplicaManager.append
    monkeypatch.setattr(
        ReplicaManager,
        "append",
        lambda self, *where, **terms: append(self, *where, **(terms | {"wakes": True})),
    )


@pytest.mark.parametrize(
    "fault",
    [
        nobody_asks_for_room,
        readers_are_woken_within_an_append,
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_planted_fault_in_how_batches_are_made_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch):
    fault(monkeypatch)

    assert any(lived(seed) != SOUND for seed in SEEDS)
