"""Transactions through a node: every version of their APIs, markers, failing disks, restarts, leadership."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.api.transactions import CHARACTERS_AT_ONCE
from coterie.broker.net.request_queue import RequestQueue, here_and_now
from coterie.broker.runtime.leadership import ElectedLeaders
from coterie.broker.runtime.markers import TransactionEnd
from coterie.broker.runtime.pieces import at_once
from coterie.broker.runtime.transactions import TransactionHost
from coterie.coordinator.txn.model import Producer
from coterie.coordinator.txn.settings import RETRY_MS
from coterie.storage.memory import Faults, MemoryStore
from coterie.wire.payloads.transaction_state import TransactionLogValue, transaction_record
from coterie.wire.records.batches import Record, build_batch, read_marker, scan
from unit.broker.group_api_rig import ApiRig, part, versions

PRODUCE, FETCH, FIND, API_VERSIONS = 0, 1, 10, 18
INIT, ADD, OFFSETS, END, MARKERS, DESCRIBE, LIST = 22, 24, 25, 26, 27, 65, 66
ORDERS = TopicPartition("orders", 0)
NO_PRODUCER_ID = Producer(-1, -1)
TIMEOUT = timedelta(seconds=60)


class TxnRig(ApiRig):
    """A node with two partitions of `__transaction_state`, and a client that speaks about "tid"."""

    def __init__(self, disk: Any = None, **settings: Any) -> None:
        settings.setdefault("transaction_state_log_num_partitions", 2)
        super().__init__(disk, **settings)
        self.one = self.client()

    def started_again(self, *, settled: bool = True) -> TxnRig:
        self.settle()
        return TxnRig(self.store.crash(), settled=settled, **self.told)  # type: ignore[attr-defined]

    def init(self, version: int = 5, *, expected: Producer = NO_PRODUCER_ID, **terms: Any) -> Any:
        terms = init_terms(**terms)
        if version >= 3:
            terms |= {"producer_id": expected.producer_id, "producer_epoch": expected.epoch}
        return self.one.ask(INIT, version, **terms)

    def owner(self) -> Producer:
        answer = self.init()
        return Producer(answer.producer_id, answer.producer_epoch)

    def add(self, producer: Producer, *partitions: TopicPartition, version: int = 3, **terms: Any) -> Any:
        """Return the codes, by partition."""
        topics = tuple(
            part(ADD, version, "AddPartitionsToTxnTopic", name=topic, partitions=(number,))
            for topic, number in partitions
        )
        if version < 4:
            answer = self.one.ask(
                ADD,
                version,
                v3_and_below_transactional_id=terms.get("transactional_id", "tid"),
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )
            return codes_of(answer.results_by_topic_v3_and_below)
        transaction = part(
            ADD,
            version,
            "AddPartitionsToTxnTransaction",
            transactional_id="tid",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=topics,
            **({"verify_only": False} | terms),
        )
        answer = self.one.ask(ADD, version, transactions=(transaction,))
        (result,) = answer.results_by_transaction
        assert (answer.error_code, result.transactional_id) == (Code.NONE, "tid")
        return codes_of(result.topic_results)

    def end(self, producer: Producer, *, commit: bool = True, version: int = 5) -> Any:
        return self.one.ask(END, version, **end_terms(producer, commit=commit))

    def write(self, producer: Producer, sequence: int = 0) -> None:
        """Write to orders-0 in the transaction, past the handlers."""
        batch = build_batch(
            [Record(0, self.now_ms, None, b"value")],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        self.node.replica_manager.append(*ORDERS, batch, now_ms=self.now_ms, origin="coordinator")

    def host(self) -> TransactionHost:
        return self.node.transactions.host_of("tid")

    def state(self) -> str:
        return self.host().shard.transactions["tid"].state.value

    def markers(self, watched: TopicPartition = ORDERS) -> list[tuple[bool, int, int]]:
        """Return what markers say: commit or not, the producer's epoch, the coordinator's."""
        log = self.node.replica_manager.log_of(*watched)
        assert log is not None
        data = log.read(0, max_bytes=1 << 20)
        found = []
        for at, header in scan(data):
            if header.control:
                marker = read_marker(data, at)
                found.append((marker.commit, header.producer_epoch, marker.coordinator_epoch))
        return found

    def listed(self, version: int = 2, **terms: Any) -> Any:
        return self.one.ask(LIST, version, **({"state_filters": (), "producer_id_filters": ()} | terms))


def init_terms(**terms: Any) -> dict[str, Any]:
    return {"transactional_id": "tid", "transaction_timeout": TIMEOUT} | terms


def codes_of(topics: Any) -> dict[TopicPartition, Code]:
    return {
        TopicPartition(topic.name, one.partition_index): Code(one.partition_error_code)
        for topic in topics
        for one in topic.results_by_partition
    }


def end_terms(producer: Producer, *, commit: bool) -> dict[str, Any]:
    return {
        "transactional_id": "tid",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "committed": commit,
    }


@pytest.fixture
def rig():
    made = TxnRig()
    yield made
    made.disk.faults = Faults()
    made.close()


# -- finding the way


def test_a_client_is_told_that_epochs_are_bumped(rig):
    """Java uses EndTxn 5 only then; a feature that may be 0 is supported for those who can read it."""
    name = {"client_software_name": "x", "client_software_version": "1"}
    old, new = (rig.one.ask(API_VERSIONS, version, **name) for version in (3, 4))

    for answer in (old, new):
        (finalized,) = answer.finalized_features
        assert (finalized.name, finalized.max_version_level) == ("transaction.version", 2)
    assert [(one.name, one.min_version, one.max_version) for one in new.supported_features] == [
        ("transaction.version", 0, 2)
    ]
    assert old.supported_features == ()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_clients_hear_of_no_features(rig, version):
    assert not hasattr(rig.one.ask(API_VERSIONS, version), "finalized_features")


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_of_a_transactional_id_is_here(rig, version):
    terms = {"key_type": 1, "key": "tid"} if version < 4 else {"key_type": 1, "coordinator_keys": ("tid",)}

    answer = rig.one.ask(FIND, version, **terms)

    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, found.port) == (Code.NONE, 9092)
    topic = rig.node.topics.get(TRANSACTIONS_TOPIC)
    assert dict(topic.configs) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


# -- InitProducerId


@pytest.mark.parametrize("version", versions(INIT))
def test_a_producer_without_a_transactional_id_gets_an_id_of_its_own(rig, version):
    first, second = rig.init(version, transactional_id=None), rig.init(version, transactional_id=None)

    assert first.producer_epoch == second.producer_epoch == 0
    assert first.producer_id != second.producer_id
    assert rig.node.topics.get(TRANSACTIONS_TOPIC) is None


@pytest.mark.parametrize("version", versions(INIT))
def test_a_transactional_id_gets_an_owner(rig, version):
    first, second = rig.init(version), rig.init(version)

    assert (first.error_code, first.producer_epoch) == (Code.NONE, 0)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"transactional_id": ""}, Code.INVALID_REQUEST),
        ({"transaction_timeout": timedelta(0)}, Code.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout": timedelta(hours=1)}, Code.INVALID_TRANSACTION_TIMEOUT),
        ({"expected": Producer(5, -1)}, Code.INVALID_REQUEST),
        ({"expected": Producer(-1, 5)}, Code.INVALID_REQUEST),
        ({"transactional_id": None, "expected": Producer(5, -1)}, Code.INVALID_REQUEST),
    ],
)
def test_an_owner_has_to_say_who_it_is_and_how_patient(rig, terms, code):
    answer = rig.init(**terms)

    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize(("version", "code"), [(3, Code.INVALID_PRODUCER_EPOCH), (4, Code.PRODUCER_FENCED)])
def test_a_fenced_owner_is_told_so_in_words_that_it_knows(rig, version, code):
    rig.owner()

    assert rig.init(version, expected=Producer(99, 0)).error_code == code


def test_a_full_disk_gives_no_producer_ids(rig):
    rig.disk.faults.refuse = {"save"}

    nowhere, nobody = rig.init(), rig.init(transactional_id=None)
    rig.disk.faults.refuse = set()
    rig.node.topic_manager.ensure_internal(TRANSACTIONS_TOPIC)
    rig.disk.faults.refuse = {"save"}
    there = rig.init()
    rig.disk.faults.refuse = set()

    assert nowhere.error_code == Code.COORDINATOR_NOT_AVAILABLE
    assert nobody.error_code == there.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert rig.init().error_code == Code.NONE


# -- AddPartitionsToTxn, AddOffsetsToTxn


@pytest.mark.parametrize("version", versions(ADD))
def test_partitions_join_a_transaction(rig, version):
    producer = rig.owner()
    other = TopicPartition("other", 0)

    assert rig.add(producer, ORDERS, other, version=version) == {ORDERS: Code.NONE, other: Code.NONE}
    assert list(rig.host().shard.transactions["tid"].partitions) == [ORDERS, other]


@pytest.mark.parametrize("version", versions(ADD))
def test_a_partition_that_is_not_there_keeps_the_others_out(rig, version):
    producer = rig.owner()
    gone = TopicPartition("orders", 9)

    assert rig.add(producer, ORDERS, gone, version=version) == {
        ORDERS: Code.OPERATION_NOT_ATTEMPTED,
        gone: Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert rig.state() == "Empty"


@pytest.mark.parametrize("version", versions(ADD))
def test_a_stale_epoch_adds_nothing(rig, version):
    producer = rig.owner()
    fenced = Code.INVALID_PRODUCER_EPOCH if version < 2 else Code.PRODUCER_FENCED

    assert rig.add(producer._replace(epoch=7), ORDERS, version=version) == {ORDERS: fenced}


@pytest.mark.parametrize("version", versions(ADD))
def test_no_transaction_of_a_client_writes_to_an_internal_topic(rig, version):
    """AU-20: in Kafka they count as denied even without an authorizer."""
    producer = rig.owner()
    internal = TopicPartition("__transaction_state", 0)

    assert rig.add(producer, ORDERS, internal, version=version) == {
        ORDERS: Code.OPERATION_NOT_ATTEMPTED,
        internal: Code.TOPIC_AUTHORIZATION_FAILED,
    }
    assert rig.state() == "Empty"


def test_many_transactions_are_answered_in_their_order(rig):
    producer = rig.owner()
    topics = (part(ADD, 5, "AddPartitionsToTxnTopic", name="orders", partitions=(0, 1)),)
    asked = tuple(
        part(
            ADD,
            5,
            "AddPartitionsToTxnTransaction",
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=0,
            verify_only=verify,
            topics=topics,
        )
        for name, verify in (("tid", True), ("nobody", False), ("", False), ("nobody", True))
    )

    answer = rig.one.ask(ADD, 5, transactions=asked)

    told = [
        (r.transactional_id, set(codes_of(r.topic_results).values())) for r in answer.results_by_transaction
    ]
    assert told == [
        ("tid", {Code.TRANSACTION_ABORTABLE}),
        ("nobody", {Code.INVALID_PRODUCER_ID_MAPPING}),
        ("", {Code.INVALID_REQUEST}),
        ("nobody", {Code.INVALID_PRODUCER_ID_MAPPING}),
    ]


def test_no_transactions_are_answered_with_none(rig):
    assert rig.one.ask(ADD, 4, transactions=()).results_by_transaction == ()


@pytest.mark.parametrize("version", versions(OFFSETS))
def test_the_partition_of_a_groups_offsets_joins(rig, version):
    producer = rig.owner()
    terms = {"transactional_id": "tid", "producer_id": producer.producer_id, "group_id": "g"}

    joined = rig.one.ask(OFFSETS, version, producer_epoch=0, **terms)
    fenced = rig.one.ask(OFFSETS, version, producer_epoch=5, **terms)

    assert joined.error_code == Code.NONE
    assert fenced.error_code == (Code.INVALID_PRODUCER_EPOCH if version < 2 else Code.PRODUCER_FENCED)
    partition = coordinator_partition("g", partition_count=2)
    assert list(rig.host().shard.transactions["tid"].partitions) == [TopicPartition(OFFSETS_TOPIC, partition)]


# -- EndTxn


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", versions(END))
def test_an_end_writes_markers_and_lets_readers_on(rig, version, commit):
    producer = rig.owner()
    rig.add(producer, ORDERS)
    rig.write(producer)
    log = rig.node.replica_manager.log_of(*ORDERS)
    assert log.last_stable_offset == 0

    answer = rig.end(producer, commit=commit, version=version)

    bumped = version >= 5
    assert answer.error_code == Code.NONE
    if bumped:
        assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, 1)
    assert rig.markers() == [(commit, int(bumped), 0)]
    assert log.last_stable_offset == 2
    assert rig.state() == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.parametrize("version", versions(END))
def test_a_stale_epoch_ends_nothing(rig, version):
    producer = rig.owner()
    fenced = Code.INVALID_PRODUCER_EPOCH if version < 2 else Code.PRODUCER_FENCED

    assert rig.end(producer._replace(epoch=9), version=version).error_code == fenced


def test_offsets_of_groups_are_ended_by_their_coordinator(rig):
    producer = rig.owner()
    partition = coordinator_partition("g", partition_count=2)
    rig.one.ask(
        OFFSETS, 4, transactional_id="tid", producer_id=producer.producer_id, producer_epoch=0, group_id="g"
    )

    rig.end(producer)

    assert rig.markers(TopicPartition(OFFSETS_TOPIC, partition)) == [(True, 1, 0)]
    assert rig.state() == "CompleteCommit"


def test_a_reply_waits_for_its_append(rig):
    producer = rig.owner()
    rig.node.replica_manager.log_of(TRANSACTIONS_TOPIC, rig.host().partition)
    before = rig.host().log.end_offset
    answers = []

    rig.node.transactions.partitions(
        "tid", producer.producer_id, 0, [ORDERS], add=True, deliver=answers.append
    )
    assert (answers, rig.host().log.end_offset) == ([], before)
    rig.settle()

    assert (answers, rig.host().log.end_offset) == ([{ORDERS: Code.NONE}], before + 1)


def test_what_comes_in_one_round_goes_out_as_one_batch(rig):
    transactions = rig.node.transactions
    host = rig.host()
    names = [name for name in map(str, range(20)) if transactions.host_of(name) is host][:5]
    clients = [rig.client() for _ in names]
    for client, name in zip(clients, names, strict=True):
        client.send_at_once(INIT, 1, transactional_id=name, transaction_timeout=TIMEOUT)
    rig.settle()

    assert all(client.answers()[0].error_code == Code.NONE for client in clients)
    headers = [header for _, header in scan(host.log.read(0, max_bytes=1 << 20))]
    assert [header.count for header in headers] == [5]


# -- joining by writing


def test_partitions_join_by_being_written_to_or_are_looked_for(rig):
    producer = rig.owner()
    transactions, told = rig.node.transactions, []
    who = ("tid", producer.producer_id, producer.epoch)

    transactions.partitions(*who, [ORDERS], add=False, deliver=told.append)
    transactions.partitions(*who, [ORDERS], add=True, deliver=told.append)
    rig.settle()
    transactions.partitions(*who, [ORDERS], add=False, deliver=told.append)
    transactions.partitions("tid", producer.producer_id, 4, [ORDERS], add=True, deliver=told.append)

    assert [one[ORDERS] for one in told] == [
        Code.TRANSACTION_ABORTABLE,
        Code.NONE,
        Code.NONE,
        Code.INVALID_PRODUCER_EPOCH,
    ]


def test_what_joins_waits_for_the_end_of_the_transaction_before(rig):
    producer, told = an_end_that_cannot_be_marked(rig), []

    rig.node.transactions.partitions("tid", producer.producer_id, 1, [ORDERS], add=True, deliver=told.append)
    assert told == []
    rig.disk.faults = Faults()
    rig.pass_ms(RETRY_MS)

    assert told == [{ORDERS: Code.NONE}]
    assert rig.state() == "Ongoing"


@pytest.fixture(params=[ADD, OFFSETS])
def asking(request, rig):
    """A client that has something join while the transaction before it ends, as classic ones do."""
    rig.node.topic_manager.ensure_internal(OFFSETS_TOPIC)
    producer = an_end_that_cannot_be_marked(rig)
    who = {"producer_id": producer.producer_id, "producer_epoch": 1}
    if request.param == OFFSETS:
        rig.one.send(OFFSETS, 4, transactional_id="tid", group_id="g", **who)
        return rig, lambda answer: answer.error_code
    topic = part(ADD, 3, "AddPartitionsToTxnTopic", name="orders", partitions=(0,))
    terms = {f"v3_and_below_{name}": value for name, value in ({"transactional_id": "tid"} | who).items()}
    rig.one.send(ADD, 3, v3_and_below_topics=(topic,), **terms)
    return rig, lambda answer: codes_of(answer.results_by_topic_v3_and_below)[ORDERS]


def test_what_a_client_adds_waits_for_the_end_of_the_transaction_before(asking):
    rig, code_of = asking
    assert rig.one.answers() == []

    rig.disk.faults = Faults()
    rig.pass_ms(RETRY_MS)

    (answer,) = rig.one.answers()
    assert code_of(answer) == Code.NONE
    assert rig.state() == "Ongoing"


def test_what_a_client_adds_waits_only_so_long(asking):
    rig, code_of = asking
    rig.pass_ms(99)
    assert rig.one.answers() == []

    rig.pass_ms(1)

    (answer,) = rig.one.answers()
    assert code_of(answer) == Code.CONCURRENT_TRANSACTIONS


def test_what_another_broker_asks_does_not_wait(rig):
    """Its other questions, which come over the same connection, would have to."""
    producer = an_end_that_cannot_be_marked(rig)

    assert rig.add(producer, ORDERS, version=5) == {ORDERS: Code.CONCURRENT_TRANSACTIONS}


def test_what_joins_waits_only_so_long(rig):
    producer, told = an_end_that_cannot_be_marked(rig), []

    rig.node.transactions.partitions("tid", producer.producer_id, 1, [ORDERS], add=True, deliver=told.append)
    rig.pass_ms(99)
    assert told == []
    rig.pass_ms(1)

    assert told == [{ORDERS: Code.CONCURRENT_TRANSACTIONS}]


def an_end_that_cannot_be_marked(rig: TxnRig) -> Producer:
    """A transaction whose end is settled, on a disk that was full before its marker was written."""
    producer = rig.owner()
    rig.add(producer, ORDERS)
    rig.write(producer)
    replicas = rig.node.replica_manager
    append = replicas.append

    def fill(_: object) -> None:
        rig.disk.faults = Faults(capacity=0)

    def append_once(topic: str, partition: int, *what: Any, **terms: Any) -> Any:
        appended = append(topic, partition, *what, **terms)
        replicas.when_landed(TopicPartition(topic, partition), appended, fill)
        return appended

    replicas.append = append_once  # type: ignore[method-assign]
    answer = rig.end(producer)
    del replicas.append
    assert answer.error_code == Code.NONE
    assert rig.state() == "PrepareCommit"
    return producer


# -- failing disks, restarts


def test_a_full_disk_changes_nothing_and_says_so(rig):
    producer = rig.owner()
    rig.add(producer, ORDERS)
    rig.disk.faults = Faults(capacity=0)

    refused = rig.end(producer)
    rig.disk.faults = Faults()

    assert refused.error_code == Code.NOT_COORDINATOR
    assert rig.state() == "Ongoing"
    assert rig.end(producer).error_code == Code.NONE
    assert rig.markers() == [(True, 1, 0)]


def test_a_marker_that_could_not_be_written_is_written_later(rig):
    an_end_that_cannot_be_marked(rig)
    rig.pass_ms(5 * RETRY_MS)
    assert (rig.state(), rig.markers()) == ("PrepareCommit", [])

    rig.disk.faults = Faults()
    rig.pass_ms(2 * RETRY_MS)

    assert (rig.state(), rig.markers()) == ("CompleteCommit", [(True, 1, 0)])


def test_a_restart_finds_everything(rig):
    producer = rig.owner()
    rig.add(producer, ORDERS)

    again = rig.started_again()

    assert again.state() == "Ongoing"
    assert again.end(producer).error_code == Code.NONE
    again.close()


def test_a_restart_writes_the_markers_that_were_missing(rig):
    an_end_that_cannot_be_marked(rig)
    rig.disk.faults = Faults()

    again = rig.started_again()

    assert again.markers() == [(True, 1, 0)]
    assert again.state() == "CompleteCommit"
    again.close()


def test_a_start_ends_what_a_log_has_open_and_a_loss_of_power_took_from_the_coordinator(rig):
    """Found by the crash points: an epoch was given out twice, and the next transaction passed for it."""
    producer = rig.owner()
    lost = Producer(producer.producer_id, producer.epoch + 4)
    rig.write(lost)

    again = rig.started_again()

    assert (again.state(), again.markers()) == ("CompleteAbort", [(False, lost.epoch + 1, 0)])
    log = again.node.replica_manager.log_of(*ORDERS)
    assert log is not None
    assert log.last_stable_offset == log.end_offset
    assert again.owner() == Producer(producer.producer_id, lost.epoch + 2)
    again.close()


def test_after_a_clean_stop_nobody_doubts_what_the_coordinator_knows(rig):
    producer = rig.owner()
    rig.write(Producer(producer.producer_id, producer.epoch + 4))
    rig.node.stop()

    again = TxnRig(rig.disk, **rig.told)

    assert (again.state(), again.markers()) == ("Empty", [])
    again.close()


def stopped_cleanly(rig: TxnRig) -> TxnRig:
    rig.node.stop()
    return TxnRig(rig.disk, **rig.told)


def test_an_epoch_that_the_logs_have_is_not_given_out_again_by_the_start_after_the_next_either(rig):
    producer = rig.owner()
    lost = Producer(producer.producer_id, producer.epoch + 4)
    rig.write(lost)
    end = TransactionEnd(lost.producer_id, lost.epoch, 0, commit=True)
    rig.node.marker_writer.write(ORDERS, end, lambda code: None)

    again = stopped_cleanly(rig.started_again())

    assert again.owner() == Producer(producer.producer_id, lost.epoch + 1)
    again.close()


def what_a_loss_of_power_has_taken_from_a_transaction(rig: TxnRig) -> Producer:
    """Have it written to orders-0, and its coordinator not know of that."""
    producer = rig.owner()
    rig.add(producer, TopicPartition("orders", 1))
    rig.write(producer)
    return producer


def ended_everywhere(rig: TxnRig) -> bool:
    log = rig.node.replica_manager.log_of(*ORDERS)
    assert log is not None
    return log.last_stable_offset == log.end_offset


def test_a_partition_that_a_start_put_back_into_a_transaction_is_in_it_after_a_clean_stop(rig):
    producer = what_a_loss_of_power_has_taken_from_a_transaction(rig)

    again = stopped_cleanly(rig.started_again())

    assert again.end(producer).error_code == Code.NONE
    assert again.markers() == [(True, 1, 0)]
    assert ended_everywhere(again)
    again.close()


def test_a_start_that_was_stopped_before_it_had_asked_the_logs_leaves_that_to_the_next(rig):
    producer = what_a_loss_of_power_has_taken_from_a_transaction(rig)

    again = stopped_cleanly(rig.started_again(settled=False))

    assert again.end(producer).error_code == Code.NONE
    assert ended_everywhere(again)
    again.close()


def test_a_start_that_came_to_nothing_leaves_it_to_the_next_to_ask_the_logs(rig):
    """A port that is taken, for one: the store was opened, and nobody has looked at what is in it."""
    producer = what_a_loss_of_power_has_taken_from_a_transaction(rig)
    rig.settle()
    disk = rig.store.crash()
    MemoryStore.open(now_ms=rig.now_ms, disk=disk).close()

    again = TxnRig(disk, **rig.told)

    assert again.end(producer).error_code == Code.NONE
    assert ended_everywhere(again)
    again.close()


def test_what_a_full_disk_kept_from_being_written_down_is_written_later_or_recalled_again(rig):
    producer = what_a_loss_of_power_has_taken_from_a_transaction(rig)
    rig.settle()
    disk = rig.store.crash()
    again = TxnRig(disk, settled=False, **rig.told)
    disk.faults = Faults(capacity=0)
    again.settle()
    before = again.host().in_doubt()
    disk.faults = Faults()
    again.pass_ms(2 * RETRY_MS)

    assert (before, again.host().in_doubt()) == (True, False)
    third = stopped_cleanly(again)
    assert third.end(producer).error_code == Code.NONE
    assert ended_everywhere(third)
    third.close()


def what_a_loss_of_power_has_taken_from_an_end(rig: TxnRig) -> Producer:
    """Have the marker of a first transaction, acknowledged, be lost from orders-0 while a second is open."""
    first = rig.owner()
    rig.write(first)
    other = TopicPartition("orders", 1)
    rig.add(first, other)
    answer = rig.end(first)
    second = Producer(answer.producer_id, answer.producer_epoch)
    rig.add(second, other)
    return second


def test_what_an_earlier_transaction_left_open_is_aborted_while_its_owner_goes_on(rig):
    second = what_a_loss_of_power_has_taken_from_an_end(rig)

    again = rig.started_again()
    before = (again.state(), again.markers(), ended_everywhere(again))
    again.add(second, ORDERS)
    again.write(second)

    assert before == ("Ongoing", [(False, second.epoch, 0)], True)
    assert again.end(second).error_code == Code.NONE
    assert again.markers() == [(False, second.epoch, 0), (True, second.epoch + 1, 0)]
    assert ended_everywhere(again)
    again.close()


def test_who_asks_for_producer_ids_on_a_full_disk_does_not_fill_the_log(rig, caplog):
    """Found with a disk that was full: each request, which anybody can send, had a line."""
    rig.disk.faults = Faults(capacity=0)

    codes = {Code(rig.init(transactional_id=None).error_code) for _ in range(10)}
    rig.disk.faults = Faults()

    assert codes == {Code.COORDINATOR_LOAD_IN_PROGRESS}
    assert caplog.text.count("no producer ids can be reserved") == 1


def started_on_a_full_disk(rig: TxnRig) -> TxnRig:
    rig.settle()
    again = TxnRig(rig.store.crash(), settled=False, **rig.told)  # type: ignore[attr-defined]
    again.disk.faults = Faults(capacity=0)
    again.settle()
    again.disk.faults = Faults()
    return again


def test_while_what_an_earlier_transaction_left_open_cannot_be_aborted_its_owner_is_to_come_back(rig):
    """Found by reading: what was open joined the next transaction there, and was committed with it."""
    second = what_a_loss_of_power_has_taken_from_an_end(rig)

    again = started_on_a_full_disk(rig)
    before = again.markers(), again.host().in_doubt(), again.state()
    told = again.add(second, ORDERS, version=4)[ORDERS], Code(again.end(second).error_code)
    again.pass_ms(2 * RETRY_MS)

    assert before == ([], True, "Ongoing")
    assert told == (Code.CONCURRENT_TRANSACTIONS, Code.CONCURRENT_TRANSACTIONS)
    assert (again.markers(), again.host().in_doubt()) == ([(False, second.epoch, 0)], False)
    assert again.add(second, ORDERS) == {ORDERS: Code.NONE}
    again.write(second)
    assert again.end(second).error_code == Code.NONE
    assert again.markers() == [(False, second.epoch, 0), (True, second.epoch + 1, 0)]
    assert ended_everywhere(again)
    again.close()


def test_who_writes_goes_on_as_soon_as_what_an_earlier_transaction_left_open_is_aborted(rig):
    second = what_a_loss_of_power_has_taken_from_an_end(rig)
    again = started_on_a_full_disk(rig)
    joined: list[Any] = []
    joining = (second.producer_id, second.epoch, [ORDERS])
    again.pass_ms(RETRY_MS - 10)
    again.node.transactions.partitions("tid", *joining, add=True, deliver=joined.append)
    again.settle()
    waits = not joined

    again.pass_ms(20)

    assert waits
    assert again.markers() == [(False, second.epoch, 0)]
    assert joined == [{ORDERS: Code.NONE}]
    again.close()


def test_a_stop_before_what_was_left_open_is_aborted_leaves_that_to_the_next_start(rig):
    second = what_a_loss_of_power_has_taken_from_an_end(rig)

    again = stopped_cleanly(started_on_a_full_disk(rig))

    assert again.markers() == [(False, second.epoch, 0)]
    assert ended_everywhere(again)
    again.close()


def test_an_end_that_its_producer_has_left_behind_is_brought_to_its_end(rig):
    """Found by reading: the next transaction had begun in orders-0, so the marker was refused for ever."""
    an_end_that_cannot_be_marked(rig)
    rig.disk.faults = Faults()
    host = rig.host()
    producer = Producer(host.shard.transactions["tid"].producer_id, host.shard.transactions["tid"].epoch)
    end = TransactionEnd(producer.producer_id, producer.epoch, 0, commit=True, transaction_version=2)
    rig.node.marker_writer.write(ORDERS, end, lambda code: None)
    rig.write(producer)

    again = rig.started_again()

    assert again.state() == "CompleteCommit"
    assert again.markers() == [(True, producer.epoch, 0), (False, producer.epoch + 1, 0)]
    assert ended_everywhere(again)
    assert again.owner().epoch > producer.epoch + 1
    again.close()


def test_while_it_loads_everybody_is_asked_to_come_back(rig):
    producer = rig.owner()
    again = rig.started_again(settled=False)
    answers: list[Any] = []
    again.node.transactions.partitions(
        "tid", producer.producer_id, 0, [ORDERS], add=True, deliver=answers.append
    )
    again.one.send_at_once(LIST, 0, state_filters=(), producer_id_filters=())

    assert answers == [{ORDERS: Code.COORDINATOR_LOAD_IN_PROGRESS}]
    assert again.one.answers()[0].error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    again.settle()
    assert again.listed().error_code == Code.NONE
    again.close()


def test_a_log_that_cannot_be_read_takes_its_partition_out_of_service(rig):
    rig.owner()
    batch = build_batch([Record(0, 0, b"\0\0\0\3tid", b"\0\1rubbish")])
    host = rig.host()
    rig.node.replica_manager.append(TRANSACTIONS_TOPIC, host.partition, batch, now_ms=0, origin="coordinator")

    again = rig.started_again()

    assert again.init().error_code == Code.NOT_COORDINATOR
    again.close()


def test_a_log_that_compaction_has_emptied_is_loaded(rig):
    rig.owner()
    log = rig.host().log
    log.append(build_batch([Record(0, 0, b"\0\0\0\3tid", None)]), now_ms=0, origin="coordinator")

    again = rig.started_again()

    assert again.init().producer_epoch == 0
    again.close()


def test_a_producer_id_that_another_broker_gave_out_is_never_given_out_again(rig):
    """Files of Apache Kafka are gone on with: its coordinator's log tells of the ids it gave out.

    What clients wrote tells nothing (TH-10): a made-up id would use up all there are.
    """
    rig.node.topic_manager.ensure_internal(TRANSACTIONS_TOPIC)
    partition = coordinator_partition("tid", partition_count=2)
    value = TransactionLogValue(70, 3, 60_000, 4, (), 0, 0, next_producer_id=-1)
    batch = build_batch([Record(0, 0, *transaction_record("tid", value))])
    rig.node.replica_manager.append(TRANSACTIONS_TOPIC, partition, batch, now_ms=0, origin="coordinator")
    rig.write(Producer(90, 0))
    rig.write(Producer(2**63 - 1, 0))

    again = rig.started_again(settled=False)
    again.one.send_at_once(INIT, 5, **init_terms(transactional_id=None))
    again.settle()

    assert again.one.answers()[0].error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert again.init(transactional_id=None).producer_id == 71
    assert again.init(transactional_id="new").producer_id == 72
    assert again.init().producer_id == 70
    again.close()


# -- leadership


def test_another_leader_answers_from_the_log_in_a_newer_epoch(rig):
    producer = rig.owner()
    rig.add(producer, ORDERS)
    transactions, partition = rig.node.transactions, rig.host().partition

    transactions.elected(partition, 3)
    transactions.opened(partition)
    transactions.elected(partition, 3)  # no news
    loading = rig.host().unavailable()
    rig.settle()
    rig.end(producer)

    assert loading is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert rig.markers() == [(True, 1, 3)]


def test_who_has_resigned_sends_everybody_elsewhere(rig):
    producer = rig.owner()
    transactions, host, told = rig.node.transactions, rig.host(), []
    transactions.partitions("tid", producer.producer_id, 0, [ORDERS], add=True, deliver=told.append)

    transactions.resigned(host.partition, 0)  # of an epoch that is no news
    assert told == []
    transactions.resigned(host.partition)
    transactions.resigned(host.partition)
    transactions.parts = transactions.parts._replace(leadership=ElectedLeaders(rig.settings.node_id))
    rig.settle()

    assert told == [{ORDERS: Code.NOT_COORDINATOR}]
    assert rig.init().error_code == Code.NOT_COORDINATOR
    assert host.unavailable() is Code.NOT_COORDINATOR


def test_a_partition_that_was_written_by_another_leader_is_loaded_when_it_is_asked_for(rig):
    rig.owner()
    transactions, partition = rig.node.transactions, rig.host().partition
    transactions.resigned(partition)

    assert rig.init().error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert rig.init().producer_epoch == 1


def test_our_own_mistake_takes_one_partition_out_of_service(rig, caplog):
    rig.owner()
    host = rig.host()
    host.shard.transactions["tid"] = object()

    assert rig.init().error_code == Code.NOT_COORDINATOR
    assert "is taken out of service" in caplog.text
    another = next(n for n in map(str, range(9)) if rig.node.transactions.host_of(n) is not host)
    assert rig.init(transactional_id=another).error_code == Code.NONE


# -- time


def test_a_transaction_that_hangs_is_aborted(rig):
    producer = rig.owner()
    rig.add(producer, ORDERS)
    rig.write(producer)

    rig.pass_ms(71_000)

    assert (rig.state(), rig.markers()) == ("CompleteAbort", [(False, 1, 0)])


def test_the_settings_say_how_long_and_how_often():
    rig = TxnRig(
        transactional_id_expiration_ms=1_000,
        transaction_remove_expired_transaction_cleanup_interval_ms=100,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=50,
        transaction_max_timeout_ms=500,
    )
    assert rig.init().error_code == Code.INVALID_TRANSACTION_TIMEOUT
    answer = rig.init(transaction_timeout=timedelta(milliseconds=500))
    rig.add(Producer(answer.producer_id, 0), ORDERS)

    rig.pass_ms(551)
    assert rig.state() == "CompleteAbort"
    rig.pass_ms(1_100)

    assert not rig.host().shard.transactions
    rig.close()


# -- markers by request


def marker(version: int, producer: Producer, *partitions: TopicPartition, **terms: Any) -> Any:
    topics = tuple(
        part(MARKERS, version, "WritableTxnMarkerTopic", name=topic, partition_indexes=(number,))
        for topic, number in partitions
    )
    if version < 2:
        terms.pop("transaction_version", None)
    return part(
        MARKERS,
        version,
        "WritableTxnMarker",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=topics,
        **({"transaction_result": False, "coordinator_epoch": 0} | terms),
    )


@pytest.mark.parametrize("version", versions(MARKERS))
def test_an_administrator_ends_what_hangs(rig, version):
    """KIP-664."""
    producer = rig.owner()
    rig.write(producer)
    offsets, gone = TopicPartition(OFFSETS_TOPIC, 1), TopicPartition("gone", 0)
    rig.node.topic_manager.ensure_internal(OFFSETS_TOPIC)
    wanted = marker(version, producer, ORDERS, offsets, gone)

    answer = rig.one.ask(MARKERS, version, markers=(wanted,))

    (result,) = answer.markers
    told = {
        TopicPartition(topic.name, one.partition_index): one.error_code
        for topic in result.topics
        for one in topic.partitions
    }
    assert result.producer_id == producer.producer_id
    assert told == {ORDERS: Code.NONE, offsets: Code.NONE, gone: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert rig.markers() == rig.markers(offsets) == [(False, 0, 0)]


def test_a_marker_of_an_epoch_in_which_a_transaction_is_open_is_late(rig):
    producer = rig.owner()
    rig.write(producer)
    wanted = marker(2, producer, ORDERS, transaction_version=2)

    (result,) = rig.one.ask(MARKERS, 2, markers=(wanted,)).markers

    assert result.topics[0].partitions[0].error_code == Code.INVALID_PRODUCER_EPOCH


def test_no_markers_are_answered_with_none(rig):
    assert rig.one.ask(MARKERS, 1, markers=()).markers == ()


def test_a_coordinator_that_was_overtaken_leaves_the_transaction_as_it_is(rig, caplog):
    """As Apache Kafka does: whoever overtook it ends the transaction."""
    producer = rig.owner()
    rig.add(producer, ORDERS)
    rig.write(producer)
    rig.one.ask(MARKERS, 1, markers=(marker(1, producer, ORDERS, coordinator_epoch=8),))

    rig.end(producer)
    rig.pass_ms(10 * RETRY_MS)

    assert rig.state() == "PrepareCommit"
    assert "no marker into orders-0: TRANSACTION_COORDINATOR_FENCED" in caplog.text


def test_a_topic_that_is_deleted_needs_no_marker(rig):
    producer = rig.owner()
    rig.add(producer, ORDERS)
    at_once(rig.node.topic_manager.delete_topics(["orders"]))

    rig.end(producer)

    assert rig.state() == "CompleteCommit"


# -- views


def test_describe_shows_each_that_is_asked_for(rig):
    producer = rig.owner()
    rig.add(producer, ORDERS, TopicPartition("orders", 1), TopicPartition("other", 0))

    answer = rig.one.ask(DESCRIBE, 0, transactional_ids=("tid", "nobody", ""))

    shown, nobody, nameless = answer.transaction_states
    assert (shown.error_code, shown.transactional_id, shown.transaction_state) == (
        Code.NONE,
        "tid",
        "Ongoing",
    )
    assert (shown.producer_id, shown.producer_epoch) == producer
    assert shown.transaction_timeout == TIMEOUT
    assert shown.transaction_start_time.timestamp() * 1000 == rig.now_ms
    assert {topic.topic: topic.partitions for topic in shown.topics} == {"orders": (0, 1), "other": (0,)}
    assert nobody.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert nameless.error_code == Code.INVALID_REQUEST
    assert rig.one.ask(DESCRIBE, 0, transactional_ids=()).transaction_states == ()


@pytest.mark.parametrize("version", versions(LIST))
def test_list_shows_who_passes_the_filters(rig, version):
    rig.add(rig.owner(), ORDERS)
    rig.init(transactional_id="another")

    everybody = rig.listed(version)
    some = rig.listed(version, state_filters=("Ongoing", "Bogus"))

    assert {one.transactional_id for one in everybody.transaction_states} == {"tid", "another"}
    assert [(one.transactional_id, one.transaction_state) for one in some.transaction_states] == [
        ("tid", "Ongoing")
    ]
    assert some.unknown_state_filters == ("Bogus",)


@pytest.mark.parametrize(
    ("terms", "found"),
    [
        ({"duration_filter": 4_999}, {"tid"}),
        ({"duration_filter": 5_000}, set()),
        ({"transactional_id_pattern": "t.d"}, {"tid"}),
        ({"transactional_id_pattern": "t"}, set()),
        ({"transactional_id_pattern": ""}, {"tid"}),
        ({"producer_id_filters": (123_456,)}, set()),
    ],
)
def test_list_filters_by_age_name_and_producer(rig, terms, found):
    rig.add(rig.owner(), ORDERS)
    rig.pass_ms(5_000)

    assert {one.transactional_id for one in rig.listed(**terms).transaction_states} == found


@pytest.mark.parametrize("pattern", ["(", "t(?=id)", r"(t)\1id", "t++id", r"\p{Klingon}", r"\Cid"])
def test_a_pattern_that_is_none_is_refused(rig, pattern):
    """Kafka's patterns are RE2's, which knows nothing that takes longer than the text is."""
    answer = rig.listed(transactional_id_pattern=pattern)

    assert answer.error_code == Code.INVALID_REGULAR_EXPRESSION
    assert answer.transaction_states == ()


def test_others_ask_while_ids_are_held_against_a_pattern(rig):
    """A thread matches them, few at a time; and one who hangs up is forgotten."""
    ids = ["tid", *(f"{at}{'x' * CHARACTERS_AT_ONCE}" for at in range(3))]
    for one in ids:
        rig.init(transactional_id=one)
    waiting, gone, other = rig.client(), rig.client(), rig.client()
    asides: list[Any] = []
    queue = RequestQueue(rig.soon.append, lambda: 0.0, lambda *asked: asides.append(asked))
    for client in (waiting, gone):
        client.connection._queue = queue
    terms = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": "(.*x){99}|tid"}

    for client in (waiting, gone):
        client.send_at_once(LIST, 2, **terms)
    gone.connection.connection_lost(None)
    matched = []
    while asides:
        (work, arguments, finish, items) = asides.pop(0)
        matched.append(arguments[0])
        here_and_now(work, arguments, finish, items)
        rig.settle()
        other.send_at_once(DESCRIBE, 0, transactional_ids=())
        assert len(other.answers()) == 1

    assert sorted(matched, key=repr) == sorted([ids[:1], *([one] for one in ids)], key=repr)
    (answer,) = waiting.answers()
    assert {one.transactional_id for one in answer.transaction_states} == set(ids)
    assert gone.answers() == []
