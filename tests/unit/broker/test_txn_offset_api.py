"""TxnOffsetCommit in every version, by real requests: what is checked, by whom, and what it leads to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from coterie.base.codes import Code
from coterie.wire.api.entities import (
    build,
    response_type,
)
from unit.broker.group_api_rig import (
    API_VERSIONS,
    FIND,
    ApiRig,
    ask_fetch,
    fetch_topic,
    part,
    reply_part,
    versions,
)

INIT, ADD_OFFSETS, END, COMMIT = 22, 25, 26, 28
NONE, UNSTABLE = Code.NONE, Code.UNSTABLE_OFFSET_COMMIT
row = pytest.mark.row


def asked(version: int, topic: str, partitions: tuple[int, ...]) -> Any:
    """Return a topic of a request: offset 5 for each of the partitions."""
    kind = "TxnOffsetCommitRequestPartition"
    offsets = tuple(part(COMMIT, version, kind, partition_index=p, committed_offset=5) for p in partitions)
    return part(COMMIT, version, "TxnOffsetCommitRequestTopic", name=topic, partitions=offsets)


class Producer(NamedTuple):
    """A producer `t` with its id, epoch and the broker it talks to."""

    rig: ApiRig
    producer_id: int
    epoch: int

    def commit(self, version: int, group_id: str, *topics: tuple[str, tuple[int, ...]], **terms: Any) -> Any:
        """Commit offset 5 of each partition of the topics in a transaction."""
        fields = {
            "transactional_id": "t",
            "group_id": group_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "topics": tuple(asked(version, *topic) for topic in topics),
        }
        return self.rig.client().ask(COMMIT, version, **fields | terms)

    def add(self, group_id: str) -> Code:
        """Have the group's offsets join the transaction, as clients before version 5 do."""
        named = {"producer_id": self.producer_id, "producer_epoch": self.epoch}
        return (
            self.rig.client().ask(ADD_OFFSETS, 3, transactional_id="t", group_id=group_id, **named).error_code
        )

    def end(self, *, commit: bool) -> Code:
        named = {"producer_id": self.producer_id, "producer_epoch": self.epoch}
        answer = self.rig.client().ask(END, 3, transactional_id="t", committed=commit, **named)
        self.rig.pass_ms(1_000)
        return answer.error_code


def loading_code(client: Any, producer: Producer, version: int) -> Code:
    """Ask without letting what was put off happen."""
    topics = ("orders", (0,))
    rig = producer.rig
    settle, rig.settle = rig.settle, lambda: None  # type: ignore[method-assign]
    try:
        return producer.commit(version, "g", topics).topics[0].partitions[0].error_code
    finally:
        rig.settle = settle  # type: ignore[method-assign]


def a_producer(rig: ApiRig) -> Producer:
    rig.client().ask(FIND, 4, key_type=1, coordinator_keys=("t",))
    answer = rig.client().ask(
        INIT,
        4,
        transactional_id="t",
        transaction_timeout=timedelta(seconds=60),
        producer_id=-1,
        producer_epoch=-1,
    )
    assert answer.error_code == NONE
    return Producer(rig, answer.producer_id, answer.producer_epoch)


def told(version: int, *answered: tuple[str, tuple[tuple[int, Code], ...]]) -> Any:
    """Return a whole answer."""
    kind = "TxnOffsetCommitResponsePartition"
    topics = tuple(
        reply_part(
            COMMIT,
            version,
            "TxnOffsetCommitResponseTopic",
            name=name,
            partitions=tuple(
                reply_part(COMMIT, version, kind, partition_index=p, error_code=code) for p, code in codes
            ),
        )
        for name, codes in answered
    )
    return build(response_type(COMMIT, version), topics=topics)


def offset_of(rig: ApiRig, *, stable: bool) -> tuple[int, Code]:
    answer = ask_fetch(rig.client(), 7, "g", (fetch_topic(rig, 7, "orders", 0),), require_stable=stable)
    (partition,) = answer.topics[0].partitions
    return partition.committed_offset, partition.error_code


@row("TX-1")
@pytest.mark.parametrize("version", versions(COMMIT))
def test_what_is_not_there_is_answered_at_once(version: int):
    """Neither the transaction nor the group is asked then."""
    producer = a_producer(ApiRig())
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION

    nothing = producer.commit(version, "g")
    absent = producer.commit(version, "g", ("nowhere", (0,)), ("orders", (9,)))

    assert nothing == told(version)
    assert absent == told(version, ("nowhere", ((0, unknown),)), ("orders", ((9, unknown),)))


@row("TX-2", "P-4")
@pytest.mark.parametrize("version", versions(COMMIT))
def test_the_nameless_group_is_refused(version: int):
    answer = a_producer(ApiRig()).commit(version, "", ("orders", (0,)))

    assert answer == told(version, ("orders", ((0, Code.INVALID_GROUP_ID),)))


@row("TX-3", "TX-1")
@pytest.mark.parametrize("version", range(5))
def test_old_versions_are_checked_with_the_transactions_coordinator(version: int):
    """Without an AddOffsetsToTxn before, it can only be aborted; clients before version 4 do not know of it.

    What is not there is told first, as in Kafka's answer.
    """
    producer = a_producer(ApiRig())
    topics = ("orders", (0, 9)), ("nowhere", (0,))
    code = Code.TRANSACTION_ABORTABLE if version >= 4 else Code.INVALID_TXN_STATE
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION

    refused = producer.commit(version, "g", *topics)
    assert producer.add("g") == NONE
    taken = producer.commit(version, "g", *topics)

    assert refused == told(version, ("orders", ((9, unknown), (0, code))), ("nowhere", ((0, unknown),)))
    assert taken == told(version, ("orders", ((9, unknown), (0, NONE))), ("nowhere", ((0, unknown),)))


@row("TX-3", "TX-4", "1.7-3", "1.7-1")
def test_from_version_5_on_the_offsets_join_the_transaction_by_themselves():
    rig = ApiRig()
    producer = a_producer(rig)

    answer = producer.commit(5, "g", ("orders", (0,)))

    assert answer == told(5, ("orders", ((0, NONE),)))
    assert offset_of(rig, stable=True) == (-1, UNSTABLE)
    assert offset_of(rig, stable=False) == (-1, NONE)


@row("TX-3")
@pytest.mark.parametrize("version", versions(COMMIT))
def test_a_producer_that_is_not_the_transactions_is_refused(version: int):
    producer = a_producer(ApiRig())

    later = producer.commit(version, "g", ("orders", (0,)), producer_epoch=producer.epoch + 5)
    other = producer.commit(version, "g", ("orders", (0,)), producer_id=producer.producer_id + 999)

    assert later == told(version, ("orders", ((0, Code.INVALID_PRODUCER_EPOCH),)))
    assert other == told(version, ("orders", ((0, Code.INVALID_PRODUCER_ID_MAPPING),)))


@pytest.mark.parametrize(
    "version", [pytest.param(0, marks=row("TX-8")), pytest.param(1, marks=row("TX-8")), 2, 3, 4, 5]
)
def test_clients_before_version_2_do_not_hear_of_loading(version: int):
    rig = ApiRig(offsets_topic_num_partitions=1)
    rig.committed("g", ("orders", 0, 1))
    producer = a_producer(rig)
    rig.node.coordinator.resigned(0)
    rig.soon.clear()
    host = rig.node.coordinator.host_of("g")
    assert host.status == host.LOADING
    client = rig.client()

    code = loading_code(client, producer, version)

    assert code == (Code.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else Code.COORDINATOR_NOT_AVAILABLE)


@row("OM-3", "RT-7", "OF-9")
@pytest.mark.parametrize(("commit", "offset"), [(True, 5), (False, 1)])
def test_the_end_of_the_transaction_decides_what_counts(commit: bool, offset: int):
    rig = ApiRig()
    rig.committed("g", ("orders", 0, 1))
    producer = a_producer(rig)
    producer.commit(5, "g", ("orders", (0,)))
    assert offset_of(rig, stable=False) == (1, NONE)

    assert producer.end(commit=commit) == NONE

    assert offset_of(rig, stable=True) == (offset, NONE)


@row("TX-4", "TX-5")
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_member_of_a_group_that_is_gone_is_told_so(version: int):
    """With generation and member id, which are there from version 3 on."""
    producer = a_producer(ApiRig())
    assert producer.add("g") == NONE

    gone = producer.commit(version, "g", ("orders", (0,)), generation_id=3, member_id="m")
    producer.commit(version, "g", ("orders", (0,)))
    stranger = producer.commit(version, "g", ("orders", (0,)), generation_id=3, member_id="m")

    assert gone == told(version, ("orders", ((0, Code.ILLEGAL_GENERATION),)))
    assert stranger == told(version, ("orders", ((0, Code.UNKNOWN_MEMBER_ID),)))


@row("0.4-10", "0.4-11")
def test_the_transactional_apis_of_groups_are_advertised():
    answer = ApiRig().client().ask(API_VERSIONS, 3, client_software_name="x", client_software_version="1")

    said = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert (said[ADD_OFFSETS], said[COMMIT]) == ((0, 4), (0, 5))
