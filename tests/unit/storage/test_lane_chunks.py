"""Chunks: appends of one partition that follow each other are one row, up to a size, and none is split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coterie.storage.log.aborted import AbortedSpan
from coterie.storage.remote.chunk import CHUNK_BYTES, PendingAppend, chunks_of


def an_append(
    base_offset: int,
    *,
    partition: int = 0,
    records: int = 1,
    size: int = 4,
    leader_epoch: int = 0,
    max_timestamp: int = 0,
    aborted: tuple[AbortedSpan, ...] = (),
) -> PendingAppend:
    """Return an append whose bytes and headers say where it is."""
    head = b"%d:%d;" % (partition, base_offset)
    data = head.ljust(size, b".")
    return PendingAppend(
        partition,
        base_offset,
        base_offset + records - 1,
        leader_epoch,
        max_timestamp,
        1,
        len(data),
        [data[:2], memoryview(data)[2:]],
        head,
        lambda _: None,
        aborted,
    )


def test_appends_that_follow_each_other_are_one_row_though_others_lie_between():
    chunks = chunks_of(
        [an_append(5, max_timestamp=9), an_append(0, partition=1), an_append(6, records=2, max_timestamp=7)]
    )

    first, other = chunks
    assert (first.key, first.last_offset, first.batches, first.max_timestamp) == ((0, 5), 7, 2, 9)
    assert first.data == b"0:5;0:6;"
    assert first.heads == b"0:5;0:6;"
    assert (other.key, other.data) == ((1, 0), b"1:0;")


def test_another_leader_epoch_begins_a_row():
    assert [
        chunk.key for chunk in chunks_of([an_append(0), an_append(1, leader_epoch=1)])
    ] == [(0, 0), (0, 1)]  # fmt: skip


def test_an_append_that_does_not_follow_begins_a_row():
    assert len(chunks_of([an_append(0), an_append(2)])) == 2


def test_a_row_brings_the_aborted_transactions_of_all_its_markers():
    spans = [AbortedSpan(9, 0, 1, 2), AbortedSpan(8, 1, 3, 4)]

    (chunk,) = chunks_of([an_append(1, aborted=(spans[0],)), an_append(2), an_append(3, aborted=(spans[1],))])

    assert [*chunk.aborted] == spans


def test_a_single_part_is_not_copied():
    data = b"whole"
    append = an_append(0)._replace(parts=[data], size=len(data))

    assert chunks_of([append])[0].data is data


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(1, 3),
            st.sampled_from([10, CHUNK_BYTES // 2, CHUNK_BYTES, 200_000]),
        ),
        max_size=12,
    )
)
def test_rows_are_all_that_was_put_in_order_each_append_whole_and_none_too_long(wanted):
    ends = dict.fromkeys(range(3), 0)
    appends = []
    for partition, records, size in wanted:
        appends.append(an_append(ends[partition], partition=partition, records=records, size=size))
        ends[partition] += records

    chunks = chunks_of(appends)

    for partition in range(3):
        mine = [chunk for chunk in chunks if chunk.partition_id == partition]
        put = [append for append in appends if append.partition_id == partition]
        assert b"".join(bytes(chunk.data) for chunk in mine) == b"".join(b"".join(one.parts) for one in put)
        assert b"".join(chunk.heads for chunk in mine) == b"".join(one.heads for one in put)
        assert sum(chunk.batches for chunk in mine) == len(put)
        assert all(len(chunk.data) <= CHUNK_BYTES or chunk.batches == 1 for chunk in mine)
        begins = {append.base_offset for append in put}
        assert all(chunk.base_offset in begins for chunk in mine)
        behind = [chunk.last_offset + 1 for chunk in mine]
        assert [chunk.base_offset for chunk in mine] == [0, *behind][: len(mine)]
