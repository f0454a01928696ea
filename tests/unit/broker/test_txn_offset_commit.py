"""TxnOffsetCommit through a node: verified or joined, written as a transaction, ended by markers, loaded."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.api.offsets import OFFSETS_AT_ONCE
from coterie.broker.runtime.leadership import ElectedLeaders
from coterie.broker.runtime.markers import TransactionEnd
from coterie.broker.runtime.pieces import at_once
from coterie.storage.log.contract import AppendRefused
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, read_key
from coterie.wire.records.batches import BatchHeader, read_marker, records_of, scan
from unit.broker.group_api_rig import ApiRig, ask_fetch, commit_topic, fetch_topic, part, versions
from unit.broker.rig import Client

INIT, ADD_OFFSETS, END, WRITE_MARKERS, TXN_COMMIT = 22, 25, 26, 27, 28
row = pytest.mark.row


class Producer:
    """A transactional producer of few words."""

    def __init__(self, rig: ApiRig, transactional_id: str = "tx", *, version: int = 5) -> None:
        self.rig, self.version = rig, version
        self.client: Client = rig.client(transactional_id)
        self.terms: dict[str, Any] = {"transactional_id": transactional_id}
        answer = self.client.ask(INIT, 4, **self.terms, transaction_timeout=timedelta(seconds=60))
        assert answer.error_code == Code.NONE
        self.terms |= {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}

    def add_offsets(self, group: str = "g") -> None:
        assert self.client.ask(ADD_OFFSETS, 3, group_id=group, **self.terms).error_code == Code.NONE

    def commit(self, *offsets: tuple[str, int, int], group: str = "g", **terms: Any) -> list[Code]:
        """Commit (topic, partition, offset) each, and return the code of each as it was answered."""
        version = self.version
        topics = tuple(
            part(
                TXN_COMMIT,
                version,
                "TxnOffsetCommitRequestTopic",
                name=topic,
                partitions=(
                    part(
                        TXN_COMMIT,
                        version,
                        "TxnOffsetCommitRequestPartition",
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata=None,
                    ),
                ),
            )
            for topic, partition, offset in offsets or (("orders", 0, 42),)
        )
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        answer = self.client.ask(
            TXN_COMMIT, version, group_id=group, topics=topics, **(self.terms | member | terms)
        )
        return [Code(p.error_code) for t in answer.topics for p in t.partitions]

    def end(self, *, commit: bool = True) -> None:
        assert self.client.ask(END, 4, committed=commit, **self.terms).error_code == Code.NONE
        self.rig.settle()


def stable(rig: ApiRig, group: str = "g") -> int | Code:
    topics = (fetch_topic(rig, 9, "orders", 0),)
    answer = ask_fetch(rig.client(), 9, group, topics, require_stable=True)
    found = answer.topics[0].partitions[0]
    return Code(found.error_code) if found.error_code else found.committed_offset


def batches(rig: ApiRig, group: str = "g") -> list[tuple[BatchHeader, Any]]:
    """Return what a group's partition holds: the keys of each batch's records, or the marker."""
    partition = rig.node.coordinator.host_of(group).partition
    data = rig.store.logs[TopicPartition(OFFSETS_TOPIC, partition)].read(0, max_bytes=1 << 20)
    return [
        (header, read_marker(data, at) if header.control else [read_key(r.key) for r in records_of(data, at)])
        for at, header in scan(data)
    ]


@row("TX-3", "TX-7", "RT-5", "RT-7", "OM-3")
@pytest.mark.parametrize("version", versions(TXN_COMMIT))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_when_their_transaction_commits(version: int, commit: bool):
    """Before version 5 the group is added first; from then on the commit itself joins (KIP-890)."""
    rig = ApiRig()
    rig.committed("g", ("orders", 0, 1))
    producer = Producer(rig, version=version)
    if version < 5:
        producer.add_offsets()

    assert producer.commit() == [Code.NONE]
    assert stable(rig) == Code.UNSTABLE_OFFSET_COMMIT
    producer.end(commit=commit)

    assert stable(rig) == (42 if commit else 1)
    (_, pending, marker) = batches(rig)
    assert (pending[0].transactional, pending[0].base_sequence) == (True, -1)
    assert pending[0].producer_id == marker[0].producer_id == producer.terms["producer_id"]
    assert pending[1] == [OffsetCommitKey("g", "orders", 0)]
    assert marker[1].commit is commit


@row("TX-3")
@pytest.mark.parametrize(("version", "code"), [(3, Code.INVALID_TXN_STATE), (4, Code.TRANSACTION_ABORTABLE)])
def test_a_commit_that_no_transaction_covers_is_refused(version: int, code: Code):
    rig = ApiRig()
    producer = Producer(rig, version=version)

    assert producer.commit() == [code]

    assert batches(rig) == []


@row("TX-3")
def test_a_fenced_producer_commits_nothing():
    rig = ApiRig()
    old = Producer(rig)
    Producer(rig)

    assert old.commit() == [Code.INVALID_PRODUCER_EPOCH]


def test_a_producer_is_asked_about_once_for_a_transaction(monkeypatch: pytest.MonkeyPatch):
    """The second commit of a transaction asks nobody."""
    rig = ApiRig()
    producer = Producer(rig)
    producer.commit()
    asked: list[Any] = []
    monkeypatch.setattr(rig.node.transactions, "partitions", lambda *args, **terms: asked.append(args))

    assert producer.commit(("orders", 1, 7)) == [Code.NONE]

    assert asked == []


@row("TX-1")
def test_what_does_not_exist_is_refused_and_the_rest_is_kept():
    rig = ApiRig()
    producer = Producer(rig)

    codes = producer.commit(("orders", 0, 1), ("orders", 9, 1), ("nothing", 0, 1))

    assert sorted(codes) == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.commit(("nothing", 0, 1), group="") == [Code.UNKNOWN_TOPIC_OR_PARTITION]


@row("TX-2")
def test_a_group_must_be_named():
    assert Producer(ApiRig()).commit(group="") == [Code.INVALID_GROUP_ID]


@pytest.mark.parametrize(
    ("version", "code"),
    [
        pytest.param(1, Code.COORDINATOR_NOT_AVAILABLE, marks=row("TX-8")),
        (2, Code.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_a_group_that_is_loading(version: int, code: Code):
    rig = ApiRig()
    producer = Producer(rig, version=version)
    producer.add_offsets()
    host = rig.node.coordinator.host_of("g")
    host.status = host.LOADING

    assert producer.commit() == [code]


@row("TX-5")
def test_a_member_commits_in_a_transaction():
    rig = ApiRig()
    ids = rig.stable("g", "a")
    producer = Producer(rig)

    wrong = producer.commit(generation_id=9, member_id=ids["a"])
    right = producer.commit(generation_id=1, member_id=ids["a"])

    assert (wrong, right) == ([Code.ILLEGAL_GENERATION], [Code.NONE])


@row("RT-5")
def test_what_was_decided_before_is_appended_before():
    """A plain commit of the same round of requests is in the log first, in a batch of its own."""
    rig = ApiRig()
    producer = Producer(rig)
    rig.committed("g", ("orders", 1, 1))

    producer.commit()

    assert [header.transactional for header, _ in batches(rig)] == [False, True]


@row("LO-1", "OM-2", "OM-3")
def test_a_transaction_that_was_open_at_a_kill_is_ended_after_it():
    rig = ApiRig()
    producer = Producer(rig)
    producer.commit()

    again = rig.started_again()
    assert stable(again) == Code.UNSTABLE_OFFSET_COMMIT
    producer.rig, producer.client = again, again.client("tx")
    producer.end()

    assert stable(again) == 42
    assert stable(again.started_again()) == 42


@row("RT-7")
@pytest.mark.parametrize("code", [Code.TRANSACTION_COORDINATOR_FENCED, Code.KAFKA_STORAGE_ERROR])
def test_a_marker_that_cannot_be_appended_leaves_the_transaction_open(
    code: Code, monkeypatch: pytest.MonkeyPatch
):
    rig = ApiRig()
    producer = Producer(rig)
    producer.commit()
    told: list[Code] = []
    host = rig.node.coordinator.host_of("g")
    end = TransactionEnd(producer.terms["producer_id"], producer.terms["producer_epoch"], 0, commit=True)

    def refuse(*args: Any, **terms: Any) -> None:
        raise AppendRefused(code, "not now")

    with monkeypatch.context() as patched:
        patched.setattr(rig.node.replica_manager, "append", refuse)
        rig.node.coordinator.end_transaction(host.partition, end, told.append)
    assert told == [code]
    assert stable(rig) == Code.UNSTABLE_OFFSET_COMMIT

    rig.node.coordinator.end_transaction(host.partition, end, told.append)
    rig.settle()

    assert told == [code, Code.NONE]
    assert stable(rig) == 42


@row("RT-7")
def test_a_marker_for_a_partition_that_is_elsewhere_is_sent_back():
    rig = ApiRig()
    told: list[Code] = []
    rig.node.topic_manager.ensure_internal(OFFSETS_TOPIC)
    rig.node.leadership = ElectedLeaders(rig.settings.node_id)

    rig.node.coordinator.end_transaction(0, TransactionEnd(1, 0, 0, commit=True), told.append)

    assert told == [Code.NOT_LEADER_OR_FOLLOWER]


@row("LO-8", "DE-6")
def test_only_news_of_leadership_counts():
    """LO-8: an epoch that is not newer is ignored, both ways; one that is comes with a new shard."""
    rig = ApiRig()
    rig.committed("g", ("orders", 0, 5))
    coordinator = rig.node.coordinator
    partition = coordinator.host_of("g").partition
    coordinator.elected(partition, 3)
    coordinator.opened(partition)
    rig.settle()
    elected = coordinator.hosts[partition]

    coordinator.elected(partition, 3)
    coordinator.resigned(partition, 3)
    assert coordinator.hosts[partition] is elected
    coordinator.elected(partition, 4)
    assert elected.status == elected.AWAY
    coordinator.resigned(partition, 5)

    assert partition not in coordinator.hosts


def test_a_topic_that_goes_while_the_transaction_is_asked_is_not_committed_for():
    rig = ApiRig()
    rig.committed("g", ("other", 0, 1))
    producer = Producer(rig)
    ask_at_once, delete = producer.client.send_at_once, rig.node.topic_manager.delete_topics

    def send_at_once(*asked: Any, **terms: Any) -> None:
        ask_at_once(*asked, **terms)
        at_once(delete(["orders"]))

    producer.client.send_at_once = send_at_once  # type: ignore[method-assign]
    codes = producer.commit(("orders", 0, 42), ("other", 0, 7))

    assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE]
    shard = rig.node.coordinator.host_of("g").shard
    assert set(shard.pending.partitions_of("g")) == {("other", 0)}


# -- very many at once


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("opened", [False, True], ids=["first", "again"])
def test_a_transaction_that_ends_between_two_parts_of_its_offsets_gets_no_more_of_them(
    version: int, opened: bool
):
    """What came after the marker would count for nobody, and hold readers of committed offsets back."""
    rig = ApiRig(offsets_topic_num_partitions=1)
    rig.node.topic_manager.create_topic("wide", partitions=3 * OFFSETS_AT_ONCE)
    producer = Producer(rig, version=version)
    if version < 5:
        producer.add_offsets()
    if opened:
        producer.commit(("other", 0, 1))
    works: list[Any] = []
    rig.node.scheduler.work = works.append

    one = partial(part, TXN_COMMIT, version, "TxnOffsetCommitRequestPartition", committed_offset=1)
    partitions = tuple(one(partition_index=index) for index in range(3 * OFFSETS_AT_ONCE))
    topic = part(TXN_COMMIT, version, "TxnOffsetCommitRequestTopic", name="wide", partitions=partitions)
    producer.client.send(TXN_COMMIT, version, group_id="g", topics=(topic,), **producer.terms)
    (work,) = works
    next(work)  # the first part is in the log
    rig.client("another").ask(END, 4, committed=True, **producer.terms)
    rig.settle()
    at_once(work)
    (answer,) = producer.client.answers()
    codes = [Code(told.error_code) for told in answer.topics[0].partitions]

    assert codes[:OFFSETS_AT_ONCE] == [Code.NONE] * OFFSETS_AT_ONCE
    assert Code.NONE not in codes[OFFSETS_AT_ONCE:]
    log = rig.store.logs[TopicPartition(OFFSETS_TOPIC, 0)]
    assert log.last_stable_offset == log.end_offset
    assert rig.node.coordinator.host_of("g").shard.offsets["g"]["wide"].keys() == set(range(OFFSETS_AT_ONCE))


@pytest.mark.parametrize("version", versions(TXN_COMMIT))
def test_a_transaction_that_ends_before_its_offsets_are_written_gets_none_of_them(
    version: int, monkeypatch: pytest.MonkeyPatch
):
    """What was decided before had to be written first, in two goes: the marker overtook the commit."""
    rig = ApiRig(offsets_topic_num_partitions=1)
    producer = Producer(rig, version=version)
    if version < 5:
        producer.add_offsets()
    producer.commit(("other", 0, 1))
    host = rig.node.coordinator.host_of("g")
    topic = commit_topic(rig, 9, "orders", (1, 5, ""))
    rig.client().send_at_once(8, 9, group_id="h", generation_id_or_member_epoch=-1, topics=(topic,))
    with monkeypatch.context() as patched:
        patched.setattr(host, "_append_gathered", lambda **terms: False)
        one = part(
            TXN_COMMIT, version, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=42
        )
        asked = part(TXN_COMMIT, version, "TxnOffsetCommitRequestTopic", name="orders", partitions=(one,))
        producer.client.send_at_once(TXN_COMMIT, version, group_id="g", topics=(asked,), **producer.terms)
    assert host.records
    told: list[Code] = []

    end = TransactionEnd(producer.terms["producer_id"], producer.terms["producer_epoch"], 0, commit=True)
    rig.node.coordinator.end_transaction(host.partition, end, told.append)
    rig.settle()
    (answer,) = producer.client.answers()

    assert told == [Code.NONE]
    assert answer.topics[0].partitions[0].error_code == Code.INVALID_TXN_STATE
    assert host.log.last_stable_offset == host.log.end_offset
    assert stable(rig) == -1
