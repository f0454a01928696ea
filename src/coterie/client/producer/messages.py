"""The requests that a producer makes, and what it reads from the answers. Pure.

Up to which version a request may go depends on the transactions of the cluster: `MOST_BEFORE_V2` is for
brokers before KIP-890, to which partitions are added by a request of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from coterie.base.codes import Code
from coterie.base.ids import GroupMetadata, OffsetAndMetadata, TopicPartition
from coterie.client.net.messages import by_topic, committed_topics, numbers_of, request
from coterie.client.partitions import offset_and_metadata
from coterie.client.producer.accumulator import BatchAnswer
from coterie.client.producer.batcher import Identity
from coterie.wire.api.apis import ApiKey

MOST_BEFORE_V2: Mapping[int, int] = {ApiKey.PRODUCE: 11, ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}


def produce(
    version: int,
    batches: Iterable[tuple[TopicPartition, bytes]],
    *,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
) -> Any:
    """Return a request that has one encoded batch for each of these partitions."""
    topics = [
        {
            "name": topic,
            "partition_data": [{"index": place.partition, "records": data} for place, data in group],
        }
        for topic, group in groupby(sorted(batches), key=lambda one: one[0].topic)
    ]
    return request(
        ApiKey.PRODUCE,
        version,
        transactional_id=transactional_id,
        acks=acks,
        timeout=timeout_ms,
        topic_data=topics,
    )


def read_produce(answer: Any) -> dict[TopicPartition, BatchAnswer]:
    """Return the broker's answer to each partition's batch."""
    return {
        TopicPartition(topic.name, one.index): BatchAnswer(
            Code(one.error_code), one.base_offset, append_time_of(one), said_of(one)
        )
        for topic in answer.responses
        for one in topic.partition_responses
    }


def append_time_of(one: Any) -> int:
    """Return the time at which the broker appended, -1 where the records keep their own."""
    when = one.log_append_time
    return -1 if when is None else round(when.timestamp() * 1000)


def said_of(one: Any) -> str | None:
    """Return the broker's words for a refusal, which newer versions have."""
    errors = getattr(one, "record_errors", ())
    said = [getattr(one, "error_message", None)]
    said += (f"record {error.batch_index}: {error.batch_index_error_message}" for error in errors)
    return "; ".join(text for text in said if text) or None


def init_producer(
    version: int, *, transactional_id: str | None, transaction_timeout_ms: int, identity: Identity
) -> Any:
    """Return the request for the producer's identity; one that had an id keeps it in a new epoch."""
    return request(
        ApiKey.INIT_PRODUCER_ID,
        version,
        transactional_id=transactional_id,
        transaction_timeout=transaction_timeout_ms,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )


def add_partitions(
    version: int, transactional_id: str, identity: Identity, places: Iterable[TopicPartition]
) -> Any:
    """Return the request that adds partitions to a transaction."""
    topics = [{"name": topic, "partitions": numbers_of(group)} for topic, group in by_topic(places)]
    return request(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        version,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=topics,
    )


def read_add_partitions(answer: Any) -> Code:
    """Return the code that counts: the first that is not only about the others' failure."""
    codes = [
        Code(one.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]
    return first_refusal(codes)


def first_refusal(codes: Sequence[Code]) -> Code:
    """Return the first code that says what went wrong, or NONE."""
    telling = [code for code in codes if code not in (Code.NONE, Code.OPERATION_NOT_ATTEMPTED)]
    return next(iter(telling), Code.NONE)


def add_offsets(version: int, transactional_id: str, identity: Identity, group_id: str) -> Any:
    """Return the request that adds a group's offsets to a transaction."""
    return request(
        ApiKey.ADD_OFFSETS_TO_TXN,
        version,
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group_id,
    )


def transaction_offsets(
    version: int,
    transactional_id: str,
    identity: Identity,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> Any:
    """Return the commit of a group's offsets within a transaction."""
    return request(
        ApiKey.TXN_OFFSET_COMMIT,
        version,
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=group.generation,
        member_id=group.member_id,
        group_instance_id=group.instance_id,
        topics=committed_topics({one: offset_and_metadata(offset) for one, offset in offsets.items()}),
    )


def read_transaction_offsets(answer: Any) -> Code:
    """Return the first code that is a refusal, or NONE."""
    return first_refusal([Code(one.error_code) for topic in answer.topics for one in topic.partitions])


def end_transaction(version: int, transactional_id: str, identity: Identity, *, commit: bool) -> Any:
    """Return the request that ends a transaction."""
    return request(
        ApiKey.END_TXN,
        version,
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )


def read_identity(answer: Any) -> Identity:
    """Return the producer's identity from now on, NO_IDENTITY where the version does not say."""
    producer_id = getattr(answer, "producer_id", -1)
    return Identity(producer_id, getattr(answer, "producer_epoch", -1))
