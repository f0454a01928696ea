"""Record batches: headers in place, records through every compression, against other people's codecs."""

import gzip
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.wire.records import batches
from coterie.wire.records.batches import (
    HEADER_SIZE,
    Marker,
    Record,
    build_batch,
    build_marker,
    check_crc,
    read_header,
    read_marker,
    records_of,
    restamp,
    scan,
)
from coterie.wire.records.compression import (
    CODECS,
    compress,
    decompress,
)
from examples import drawn

DATA = Path(__file__).resolve().parents[2] / "data"
MARKER_OF_KAFKA = (
    "0206b791ef003000000000000001a1fea55c27000001a1fea55c270000000000"
    "0000000000ffffffff000000012000000008000000010c00000000000000"
)
EVERY_CODEC = pytest.mark.parametrize("codec", CODECS)
PAYLOADS = st.one_of(st.binary(max_size=200), st.binary(max_size=40).map(lambda some: some * 3000))
RECORDS = st.lists(
    st.builds(
        Record,
        st.integers(0, 3),
        st.integers(-(2**40), 2**40),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
).map(lambda records: spread(records))


def spread(records: list[Record]) -> list[Record]:
    """Return the records with offsets that rise: each one's own is the gap before it."""
    offset = -1
    placed = []
    for record in records:
        offset += 1 + record.offset
        placed.append(record._replace(offset=offset))
    return placed


def some_records(count: int = 3) -> list[Record]:
    return [Record(number, 1000 + number, b"k%d" % number, b"v" * 50) for number in range(count)]


def with_crc(batch: bytearray) -> bytes:
    """Return the batch with the checksum that its bytes now need."""
    from crc32c import crc32c

    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def test_a_header_says_everything():
    batch = build_batch(
        some_records(),
        base_offset=0,
        codec="zstd",
        leader_epoch=4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=9,
        transactional=True,
        control=True,
    )

    header = read_header(batch)

    assert (header.base_offset, header.last_offset, header.count) == (0, 2, 3)
    assert (header.size, header.length) == (len(batch), len(batch) - 12)
    assert (header.leader_epoch, header.magic) == (4, 2)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1002)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 9)
    assert (CODECS[header.codec], header.transactional, header.control) == ("zstd", True, True)
    assert not header.append_time
    assert check_crc(batch, 0, header)


@EVERY_CODEC
def test_records_come_back_out_of_a_batch(codec):
    records = [Record(5, 10, b"", b"", (("h", None), ("é", b"x"))), Record(9, 8, None, None)]

    batch = build_batch(records, base_offset=5, codec=codec)

    assert list(records_of(batch)) == records
    assert list(records_of(b"before" + batch + b"after", 6)) == records
    assert read_header(batch).last_offset == 9


@settings(max_examples=drawn(50), deadline=None)
@given(records=RECORDS, codec=st.sampled_from(CODECS), base_offset=st.integers(0, 2**62))
def test_any_records_come_back(records, codec, base_offset):
    placed = [record._replace(offset=base_offset + record.offset) for record in records]

    batch = build_batch(placed, base_offset=base_offset, codec=codec)

    assert list(records_of(batch)) == placed
    assert check_crc(batch, 0, read_header(batch))


def test_with_append_time_every_record_has_the_brokers_timestamp():
    batch = bytearray(build_batch(some_records()))

    restamp(batch, 0, base_offset=100, leader_epoch=3, append_time_ms=5555)

    header = read_header(batch)
    assert (header.append_time, header.max_timestamp, header.leader_epoch) == (True, 5555, 3)
    assert check_crc(batch, 0, header)
    assert [(record.offset, record.timestamp) for record in records_of(batch)] == [
        (100, 5555),
        (101, 5555),
        (102, 5555),
    ]


def test_stamping_offset_and_epoch_leaves_the_checksum_alone():
    batches = bytearray(build_batch(some_records()) * 2)
    _, (second, before) = scan(batches)

    restamp(batches, second, base_offset=77, leader_epoch=1, append_time_ms=None)

    header = read_header(batches, second)
    assert header == before._replace(base_offset=77, leader_epoch=1)
    assert check_crc(batches, second, header)
    assert read_header(batches).base_offset == 0


def test_a_flipped_bit_shows_in_the_checksum():
    batch = build_batch(some_records())

    for at in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 1
        assert not check_crc(damaged, 0, read_header(batch))


def test_scan_finds_whole_batches_and_leaves_a_cut_tail_out():
    batches = [build_batch(some_records(count)) for count in (1, 5, 2)]
    log = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]

    for length in range(len(log) + 1):
        whole = [start for start, batch in zip(starts, batches, strict=True) if start + len(batch) <= length]
        assert [at for at, _ in scan(log[:length])] == whole

    assert [header.count for _, header in scan(memoryview(log), starts[1])] == [5, 2]


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_another_magic_is_corrupt(magic):
    batch = bytearray(build_batch(some_records()))
    struct.pack_into(">b", batch, 16, magic)

    with pytest.raises(Corrupt, match="magic"):
        read_header(batch)


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_a_batch_that_is_shorter_than_its_header_is_corrupt(length):
    """A length of less than nothing would make `scan` go round and round."""
    batch = bytearray(build_batch(some_records()))
    struct.pack_into(">i", batch, 8, length)

    with pytest.raises(Corrupt, match="length"):
        scan(batch)


def test_a_header_that_is_cut_is_corrupt():
    batch = build_batch(some_records())

    for length in range(HEADER_SIZE):
        with pytest.raises(Corrupt):
            read_header(batch[:length])


@EVERY_CODEC
@settings(max_examples=drawn(60), deadline=None)
@given(data=st.data())
def test_damaged_batches_are_read_or_are_corrupt_and_nothing_else(codec, data):
    batch = bytearray(build_batch(some_records(), codec=codec))
    at = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
    poison = data.draw(st.binary(min_size=1, max_size=5) | st.sampled_from([b"\xff" * 5, b"\x80" * 9]))
    batch[at : at + len(poison)] = poison

    with suppress(Corrupt):
        list(records_of(batch))


def test_more_or_fewer_records_than_were_announced_are_corrupt():
    for count in (0, 2, 4, -1, 2**31 - 1):
        batch = bytearray(build_batch(some_records()))
        struct.pack_into(">i", batch, 57, count)
        with pytest.raises(Corrupt):
            list(records_of(with_crc(batch)))


def test_an_unknown_compression_is_corrupt():
    batch = bytearray(build_batch(some_records()))
    batch[22] |= 7

    with pytest.raises(Corrupt, match="compression 7"):
        list(records_of(batch))


@EVERY_CODEC
@given(data=PAYLOADS)
@settings(max_examples=25, deadline=None)
def test_what_is_compressed_can_be_decompressed(codec, data):
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", CODECS[1:])
@settings(max_examples=drawn(60), deadline=None)
@given(data=st.binary(max_size=60))
def test_rubbish_is_not_decompressed(codec, data):
    with suppress(Corrupt):
        decompress(codec, data)


def test_bare_snappy_is_read_as_well():
    import cramjam

    data = b"many words, many words, many words" * 100

    assert decompress("snappy", bytes(cramjam.snappy.compress_raw(data))) == data


def test_snappy_is_written_in_javas_frames_of_32_kib():
    """xerial: what SnappyInputStream expects."""
    framed = compress("snappy", bytes(40_000))

    assert framed.startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
    (first,) = struct.unpack_from(">i", framed, 16)
    (second,) = struct.unpack_from(">i", framed, 20 + first)
    assert 24 + first + second == len(framed)


def test_a_snappy_block_that_claims_four_gigabytes_is_corrupt():
    with pytest.raises(Corrupt, match="claims"):
        decompress("snappy", b"\xff\xff\xff\xff\x0f" + bytes(10))


def test_lz4_is_written_in_frames_of_independent_blocks_as_java_wants():
    framed = compress("lz4", bytes(100_000))

    assert framed[:7].hex() == "04224d18604082"
    assert framed.endswith(b"\0\0\0\0")


def test_an_lz4_block_that_does_not_shrink_is_stored():
    noise = bytes((number * number * 31 >> 3) & 255 for number in range(50))

    framed = compress("lz4", noise)

    assert noise in framed
    assert decompress("lz4", framed) == noise


def test_gzip_is_gzip():
    assert gzip.decompress(compress("gzip", b"words")) == b"words"
    assert decompress("gzip", gzip.compress(b"words")) == b"words"


@EVERY_CODEC
def test_aiokafka_reads_our_batches(codec):
    records_module = pytest.importorskip("aiokafka.record.default_records")
    records = [Record(3, 10, b"k", b"v" * 100, (("h", b"x"),)), Record(4, 12, None, b"w")]

    batch = records_module.DefaultRecordBatch(build_batch(records, base_offset=3, codec=codec))

    assert batch.validate_crc()
    read = [Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in batch]
    assert read == records


def test_the_segment_of_a_real_broker_is_read_to_its_end():
    log = (DATA / "consumer_offsets_9.log").read_bytes()

    found = scan(log)

    assert sum(header.size for _, header in found) == len(log)
    assert all(check_crc(log, at, header) for at, header in found)
    offsets = [record.offset for at, _ in found for record in records_of(log, at)]
    assert offsets == list(range(len(offsets)))


def test_a_batch_of_a_real_broker_is_built_again_byte_for_byte():
    log = (DATA / "consumer_offsets_9.log").read_bytes()

    for at, header in scan(log):
        records = list(records_of(log, at))
        again = build_batch(
            records,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
        assert again == log[at : at + header.size]


# -- markers


@given(
    st.booleans(),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**42),
)
def test_a_marker_comes_back_as_it_was_built(
    commit: bool, producer_id: int, epoch: int, coordinator_epoch: int, time: int
):
    batch = build_marker(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=time,
    )

    header = read_header(batch)
    assert read_marker(b"before" + batch, 6) == Marker(commit, coordinator_epoch)
    assert check_crc(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, epoch, -1)
    assert (header.control, header.transactional, header.count, header.size) == (True, True, 1, len(batch))


@given(
    st.booleans(), st.dictionaries(st.integers(16, 77), st.integers(0, 255), max_size=3), st.integers(0, 90)
)
def test_a_marker_of_the_usual_form_is_read_as_any_other_record(
    commit: bool, damaged: dict[int, int], size: int
):
    """Of what is damaged or cut the same is said as well."""
    batch = bytearray(
        build_marker(commit=commit, producer_id=7, producer_epoch=1, coordinator_epoch=5, timestamp=9)
    )
    for at, byte in damaged.items():
        batch[at] = byte
    batch += bytes(12)

    def read() -> Marker | None:
        try:
            return read_marker(batch[:size])
        except Corrupt:
            return None

    usual = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "MARKER_SIZE", -1)
        assert read() == usual


def test_a_marker_is_apache_kafka_s_byte_for_byte():
    """As it lies in a log of Apache Kafka 4.3.1, offset and leader epoch aside."""
    batch = build_marker(
        commit=True, producer_id=0, producer_epoch=0, coordinator_epoch=0, timestamp=1795273612327
    )

    assert batch[16:].hex() == MARKER_OF_KAFKA


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0" * 6),
        (b"\0\0\0", b"\0" * 6),
        (b"\0\0\0\x02", b"\0" * 6),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0" * 5),
    ],
)
def test_what_is_no_marker_is_corrupt(key: bytes | None, value: bytes | None):
    with pytest.raises(Corrupt):
        read_marker(build_batch([Record(0, 0, key, value)], control=True))


def test_a_marker_among_data_is_no_marker():
    with pytest.raises(Corrupt):
        read_marker(build_batch([Record(0, 0, b"\0\0\0\1", b"\0" * 6)]))
