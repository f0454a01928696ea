"""The small text files of a data directory, against what Apache Kafka 4.3.1 writes."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.storage.checkpoints import (
    Meta,
    read_epochs,
    read_meta,
    read_offsets,
    read_partition_metadata,
    write_epochs,
    write_meta,
    write_offsets,
    write_partition_metadata,
)
from coterie.storage.epochs import end_of, from_start, until_end

partitions = st.tuples(st.text("abc._-", min_size=1), st.integers(0, 99)).map(lambda t: TopicPartition(*t))


def test_files_are_written_as_kafka_writes_them():
    assert write_offsets({TopicPartition("t", 1): 7, TopicPartition("a", 0): 3}) == b"0\n2\na 0 3\nt 1 7\n"
    assert write_epochs([(1, 0)]) == b"0\n1\n1 0\n"
    assert write_partition_metadata(UUID(int=1)) == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


def test_kafka_s_meta_properties_are_read():
    text = (
        b"#\n#Sat Nov 21 11:33:38 UTC 2026\nnode.id=1\ndirectory.id=y94kel1H3OTob0BlrGaNjA\n"
        b"version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
    )

    assert read_meta(text) == Meta("MkU3OEVBNTcwNTJENDM2Qk", 1, "y94kel1H3OTob0BlrGaNjA")


def test_meta_reads_back():
    meta = Meta("c", 3, "d")

    assert read_meta(write_meta(meta)) == meta


@given(st.dictionaries(partitions, st.integers(0, 2**63 - 1)))
def test_offsets_read_back(offsets: dict[TopicPartition, int]):
    assert read_offsets(write_offsets(offsets)) == offsets


def test_epochs_read_back_and_a_topic_s_id_too():
    assert read_epochs(write_epochs([(0, 0), (4, 17)])) == [(0, 0), (4, 17)]
    assert read_partition_metadata(write_partition_metadata(UUID(int=77))) == UUID(int=77)


def test_an_empty_checkpoint_holds_nothing():
    assert read_offsets(b"") == {}
    assert read_offsets(b"0\n0\n") == {}


@pytest.mark.parametrize(
    "data", [b"1\n0\n", b"0\n", b"0\n1\n", b"0\n1\nt 0\n", b"0\n1\nt 0 x\n", b"0\nx\n", b"\xff"]
)
def test_a_damaged_checkpoint_is_corrupt(data: bytes):
    with pytest.raises(Corrupt):
        read_offsets(data)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_checkpoint_that_lost_its_last_digits_is_no_checkpoint(cut: int):
    """A loss of power leaves the beginning of what was not flushed: epoch 5 began at 12, not at 1234."""
    with pytest.raises(Corrupt):
        read_epochs(write_epochs([(0, 0), (5, 1234)])[:-cut])


@pytest.mark.parametrize("data", [b"0\n2\n1 5\n0 6\n", b"0\n2\n0 5\n1 4\n"])
def test_epochs_that_go_back_are_corrupt(data: bytes):
    with pytest.raises(Corrupt):
        read_epochs(data)


@given(st.binary(max_size=60))
def test_rubbish_raises_corrupt_and_nothing_else(data: bytes):
    for read in (read_offsets, read_epochs, read_meta, read_partition_metadata):
        try:
            read(data)
        except Corrupt:
            continue


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, (0, 4)), (1, (0, 4)), (2, (2, 9)), (3, (2, 9)), (5, (5, 20)), (6, (-1, -1)), (-1, (-1, -1))],
)
def test_an_epoch_ends_where_the_next_one_begins(asked: int, answer: tuple[int, int]):
    assert end_of([(0, 0), (2, 4), (5, 9)], asked, end_offset=20) == answer


def test_an_epoch_before_all_ends_where_the_first_begins():
    assert end_of([(3, 10), (4, 12)], 1, end_offset=20) == (1, 10)
    assert end_of([], 0, end_offset=0) == (-1, -1)


def test_epochs_are_cut_with_their_log():
    epochs = [(0, 0), (2, 4), (5, 9)]

    assert until_end(epochs, 10) == epochs
    assert until_end(epochs, 9) == epochs
    assert from_start(epochs, 6) == [(2, 6), (5, 9)]
    assert from_start(epochs, 9) == [(5, 9)]
    assert from_start([(3, 7)], 2) == [(3, 7)]


def test_a_log_that_was_cut_stays_in_its_latest_epoch():
    """Consumers have committed it, and wait for a leader of that epoch or a later one."""
    epochs = [(0, 0), (2, 4), (5, 9)]

    assert until_end(epochs, 6) == [(0, 0), (2, 4), (5, 6)]
    assert until_end(epochs, 4) == [(0, 0), (5, 4)]
    assert until_end(epochs, 0) == [(5, 0)]
    assert until_end([], 3) == []
