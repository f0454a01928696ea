"""Answers to Fetch read without a copy of their records: as kio reads them, and no byte of them trusted."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    decode_response,
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)
from coterie.wire.api.fetched import READ_REPLICA_FROM, FetchedPartition, read_fetched
from coterie.wire.records.visible import AbortedTransaction

VERSIONS = range(7, 13)
INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
ABORTED = st.lists(st.builds(AbortedTransaction, INT64, INT64), max_size=3)
PARTITIONS = st.lists(
    st.builds(
        FetchedPartition,
        *(st.sampled_from(["a", "flights", "ü"]), INT32, st.just(6), ABORTED, st.binary()),
        st.integers(-1, 2**31 - 1),
    ),
    max_size=4,
)


def encoded(version: int, partitions: list[FetchedPartition], error_code: int = 0) -> bytes:
    """Return the frame of an answer without its size, each partition under a topic of its own."""

    def nested(name: str) -> type:
        return entity("fetch", version, name, "response")

    topics = [
        build(
            nested("FetchableTopicResponse"),
            topic=one.topic,
            partitions=(
                build(
                    nested("PartitionData"),
                    partition_index=one.partition,
                    error_code=one.error_code,
                    high_watermark=9,
                    aborted_transactions=tuple(
                        build(nested("AbortedTransaction"), **each._asdict()) for each in one.aborted
                    ),
                    preferred_read_replica=one.preferred_replica,
                    records=one.records,
                ),
            ),
        )
        for one in partitions
    ]
    answer = build(response_type(ApiKey.FETCH, version), error_code=error_code, responses=tuple(topics))
    return encode_response(41, answer)[4:]


@pytest.mark.parametrize("version", VERSIONS)
@given(PARTITIONS, st.sampled_from([0, 70]))
def test_an_answer_says_what_was_put_into_it(version, partitions, error_code):
    frame = encoded(version, partitions, error_code)

    correlation_id, answer = read_fetched(frame, version=version)

    if version < READ_REPLICA_FROM:
        partitions = [one._replace(preferred_replica=-1) for one in partitions]
    assert (correlation_id, answer.error_code, answer.partitions) == (41, error_code, partitions)


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_the_same(version):
    put_in = [FetchedPartition("flights", 3, 0, [AbortedTransaction(7, 12)], b"records")]
    frame = encoded(version, put_in)

    _, theirs = decode_response(response_type(ApiKey.FETCH, version), frame)
    _, ours = read_fetched(frame, version=version)

    (topic,) = theirs.responses
    (part,) = topic.partitions
    assert ours.partitions == put_in
    assert (topic.topic, part.partition_index, part.records) == ("flights", 3, b"records")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_records_of_a_view_are_where_they_came(version):
    frame = bytearray(encoded(version, [FetchedPartition("flights", 0, 0, [], b"records")]))
    at = frame.index(b"records")

    _, answer = read_fetched(memoryview(frame), version=version)
    frame[at] = ord("R")

    assert bytes(answer.partitions[0].records) == b"Records"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_is_cut_anywhere_is_refused(version):
    frame = encoded(version, [FetchedPartition("flights", 3, 0, [AbortedTransaction(7, 12)], b"records")])

    for end in range(len(frame)):
        with pytest.raises(Corrupt):
            read_fetched(frame[:end], version=version)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data())
def test_bytes_that_were_changed_are_read_or_refused(version, data):
    frame = bytearray(encoded(version, [FetchedPartition("flights", 3, 0, [], b"records")]))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))

    with suppress(Corrupt):
        read_fetched(bytes(frame), version=version)
