"""What a batch must be before it may enter a log, answered as Apache Kafka 4.3.1 answers (tried out on one).

Every record is walked over (`wire.records.walk`): its lengths have to fit, and the greatest timestamp of a
batch is that of its records, whatever the header says. Records are decoded for compacted topics, whose keys
matter, and to tell which records of a refused batch are at fault. No input or output.
"""

from struct import Struct
from typing import NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.plain import counted
from coterie.storage.config import LogConfig
from coterie.storage.log.contract import AppendRefused, TakesLong
from coterie.storage.rewrite import fitted, sealed
from coterie.wire.records.batches import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_SIZE,
    BatchHeader,
    check_crc,
    read_header,
    records_of,
    scan,
)
from coterie.wire.records.compression import CODECS as CODEC_NAMES
from coterie.wire.records.compression import Unbounded, codec_of, decompress
from coterie.wire.records.walk import EndlessLength, youngest_delta

LENGTH_AND_MAGIC = Struct(">8xi4xb")
OVERHEAD = 12  # offset and length, which the length does not count
LEAST_LENGTH = 14
UP_TO_MAGIC = 17
CODECS = len(CODEC_NAMES)
RARE_BITS = CONTROL_BIT | 4  # of types of compression, zstd has it and those that are nobody's
NO_TIMESTAMP, TIMESTAMP_MOST = -1, 2**63 - 1
# A few kilobytes can hold tens of millions of records, which nobody would ever finish reading one by one.
RECORDS_MOST = 1_000_000
UNPACKED_BYTES_MOST = 64 << 20
ERRORS_MOST = 1_000  # of the records that are at fault, so many are told
# What has no more records and bytes is looked through in no time. To walk over a record takes half a
# microsecond, to decode it three times as long.
PROMPT_RECORDS, PROMPT_BYTES = 500, 1 << 16
PROMPT_RECORDS_WALKED, PROMPT_BYTES_UNPACKED = 5_000, 1 << 18


Batch = tuple[BatchHeader, bytes | bytearray]
"""A batch whose header has been checked."""


class Prepared(NamedTuple):
    """A batch that may enter a log, as it is to stand there."""

    header: BatchHeader
    records: bytes | bytearray


def prepare(records: bytes, config: LogConfig, now_ms: int) -> Prepared | AppendRefused:
    """Return a producer's batch made ready, or why it is refused. It may take its time, and needs no log."""
    try:
        return prepared(headed(records, config), config, now_ms)
    except AppendRefused as refused:
        return refused


def _is_prompt(batch: Batch, config: LogConfig) -> bool:
    """Return whether `prepared_promptly` is worth trying: few records, few bytes to unpack, none to pack."""
    header, records = batch
    if _codec_wanted(header, config) != header.codec:
        return False
    if config.settled_by_walk:
        return header.count <= PROMPT_RECORDS_WALKED and (not header.codec or len(records) <= PROMPT_BYTES)
    return not header.codec and header.count <= PROMPT_RECORDS and len(records) <= PROMPT_BYTES


def prepared_promptly(batch: Batch, config: LogConfig, now_ms: int) -> Batch:
    """Return the batch as `prepared` does, or raise `TakesLong` where that would take its time."""
    header, records = batch
    if (
        config.plain_as_it_comes
        and not header.attributes & (CODEC_BITS | APPEND_TIME_BIT)
        and header.count <= PROMPT_RECORDS_WALKED
    ):
        # Nearly all there is, and hot: one walk, and nothing else.
        try:
            youngest = header.base_timestamp + youngest_delta(records, HEADER_SIZE, header.count)
        except Corrupt:
            pass  # `_prepared` says what is wrong
        else:
            if youngest == header.max_timestamp and (
                NO_TIMESTAMP <= youngest <= now_ms + config.message_timestamp_after_max_ms
            ):
                return batch
    if _is_prompt(batch, config):
        try:
            return _prepared(batch, config, now_ms, most=PROMPT_BYTES_UNPACKED)
        except Unbounded:
            pass
    raise TakesLong


def prepared(batch: Batch, config: LogConfig, now_ms: int) -> Prepared:
    """Return the batch with its records looked at, and in the form its topic wants. Raises `AppendRefused`.

    As in Kafka, the greatest timestamp is that of the records, whatever their producer's header says.
    """
    try:
        return _prepared(batch, config, now_ms, most=UNPACKED_BYTES_MOST)
    except Unbounded as error:
        raise _invalid(str(error)) from None


def _prepared(batch: Batch, config: LogConfig, now_ms: int, *, most: int) -> Prepared:
    header, records = batch
    youngest = _youngest(header, records, most)
    if not config.settled_by_walk or (
        header.append_time
        if config.append_time
        else youngest > now_ms + config.message_timestamp_after_max_ms
    ):
        _check_records(records, header, config, now_ms)
    if youngest != header.max_timestamp and not config.append_time:
        header = header._replace(max_timestamp=youngest)
        header, records = sealed(header, bytes(records[HEADER_SIZE:]))
    if _codec_wanted(header, config) != header.codec or (header.append_time and not config.append_time):
        header, records = fitted(
            records, header, codec=config.compression_type, append_time=config.append_time
        )
    return Prepared(header, records)


def _youngest(header: BatchHeader, records: bytes | bytearray, most: int) -> int:
    """Return the greatest timestamp of records that are whole. Raises `AppendRefused`, and `Unbounded`."""
    data, at = records, HEADER_SIZE
    try:
        if header.codec:
            data, at = decompress(codec_of(header.codec), bytes(records[HEADER_SIZE:]), most=most), 0
    except Unbounded:
        raise
    except Corrupt as error:
        raise AppendRefused(Code.UNKNOWN_SERVER_ERROR, str(error)) from None
    try:
        delta = youngest_delta(data, at, header.count)
    except EndlessLength as error:
        raise AppendRefused(Code.UNKNOWN_SERVER_ERROR, str(error)) from None
    except Corrupt as error:
        raise _invalid(str(error)) from None
    if header.append_time:
        return header.max_timestamp
    youngest = header.base_timestamp + delta
    if youngest > TIMESTAMP_MOST:
        raise AppendRefused(Code.INVALID_TIMESTAMP, f"timestamp {youngest} is beyond all that can be written")
    return max(youngest, NO_TIMESTAMP)


def _codec_wanted(header: BatchHeader, config: LogConfig) -> int:
    codec = config.compression_type
    return (
        header.codec
        if codec == "producer"
        else CODEC_NAMES.index("none" if codec == "uncompressed" else codec)
    )


def headed(records: bytes | bytearray, config: LogConfig) -> Batch:
    """Return the one batch that a producer may send at a time, its header checked. Raises `AppendRefused`.

    Bytes after it that cannot be a batch yet are dropped, as Kafka drops them.
    """
    size = len(records)
    if size < HEADER_SIZE:
        raise _unreadable(records)
    length, magic = LENGTH_AND_MAGIC.unpack_from(records)
    if magic != 2 or length + OVERHEAD != size:
        records = _one_of_several(records)
        size = len(records)
    header = _header(records)

    if header.base_offset != 0:
        raise _invalid(f"the base offset of a new batch is 0, not {header.base_offset}")
    if size > config.max_message_bytes:
        raise AppendRefused(
            Code.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, where {config.max_message_bytes} are allowed"
        )
    if not check_crc(records, 0, header):
        raise AppendRefused(Code.CORRUPT_MESSAGE, f"the batch does not have its checksum {header.crc:#x}")
    if header.count != header.last_offset_delta + 1 or header.count <= 0:
        raise _invalid(f"{counted(header.count, 'record')} for the offsets 0 to {header.last_offset_delta}")
    if header.count > RECORDS_MOST:
        raise AppendRefused(
            Code.RECORD_LIST_TOO_LARGE, f"a batch of {header.count} records, where {RECORDS_MOST} are allowed"
        )
    if header.attributes & RARE_BITS:
        if header.codec >= CODECS:
            raise AppendRefused(Code.UNKNOWN_SERVER_ERROR, f"there is no compression of type {header.codec}")
        if header.control:
            raise _invalid("only coordinators write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"producer {header.producer_id} sent a batch without a sequence number")
    if size > config.segment_bytes:
        raise AppendRefused(
            Code.RECORD_LIST_TOO_LARGE,
            f"a batch of {size} bytes, where a segment holds {config.segment_bytes}",
        )
    return header, records


def _header(records: bytes | bytearray) -> BatchHeader:
    try:
        return read_header(records)
    except Corrupt as error:
        raise AppendRefused(Code.CORRUPT_MESSAGE, str(error)) from None


def _one_of_several(records: bytes | bytearray) -> bytes | bytearray:
    """Return the first batch if nothing but the start of another follows it."""
    size = _whole_size(records, 0)
    if size == 0:
        raise _unread("no whole record batch was sent")
    magic = records[UP_TO_MAGIC - 1]
    if magic < 2:
        raise _unread(f"a batch of format {magic}; format 2 is the only one since Kafka 4")
    if _whole_size(records, size):
        raise _unread("more than one record batch was sent")
    if size < HEADER_SIZE:
        raise AppendRefused(Code.CORRUPT_MESSAGE, f"a record batch of {size} bytes, less than its header")
    return records[:size]


def _whole_size(records: bytes | bytearray, at: int) -> int:
    """Return the size of the batch at `at`, 0 if it is cut. Raises AppendRefused for what cannot be one."""
    left = len(records) - at
    if left < OVERHEAD:
        return 0
    length = int.from_bytes(records[at + 8 : at + OVERHEAD], signed=True)
    if length < LEAST_LENGTH:
        raise AppendRefused(
            Code.CORRUPT_MESSAGE, f"a record batch of length {length}; {LEAST_LENGTH} is the least"
        )
    if left < UP_TO_MAGIC:
        return 0
    magic = int.from_bytes(records[at + UP_TO_MAGIC - 1 : at + UP_TO_MAGIC], signed=True)
    if not 0 <= magic <= 2:
        raise AppendRefused(Code.CORRUPT_MESSAGE, f"a record batch of the unknown format {magic}")
    return length + OVERHEAD if length + OVERHEAD <= left else 0


def _unreadable(records: bytes | bytearray) -> AppendRefused:
    try:
        _one_of_several(records)
    except AppendRefused as refused:
        return refused
    raise AssertionError("bytes shorter than a header passed for a batch")


def _check_records(records: bytes | bytearray, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Raise `AppendRefused` unless the records, which are whole, are all welcome."""
    keyless: list[tuple[int, str]] = []
    untimely: list[tuple[int, str]] = []
    for place, record in enumerate(records_of(records, 0, most=UNPACKED_BYTES_MOST)):
        if config.compacted and record.key is None:
            keyless.append((place, "a compacted topic takes no record without a key"))
        elif fault := _fault_of_time(record.timestamp, header, config, now_ms):
            untimely.append((place, fault))
        if len(keyless) + len(untimely) >= ERRORS_MOST:
            break
    if untimely:
        at_fault = sorted(keyless + untimely)
        raise AppendRefused(Code.INVALID_TIMESTAMP, "records were refused for their timestamp", at_fault)
    if keyless:
        raise AppendRefused(Code.INVALID_RECORD, f"{counted(len(keyless), 'record')} without a key", keyless)


def _fault_of_time(timestamp: int, header: BatchHeader, config: LogConfig, now_ms: int) -> str:
    if config.append_time:
        return "a producer may not set LogAppendTime" if header.append_time else ""
    if timestamp == NO_TIMESTAMP:
        return ""
    before_ms, after_ms = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    age_ms = now_ms - timestamp
    if age_ms > TIMESTAMP_MOST:  # as in Kafka, which counts in 64 bits: what is so old comes from the future
        age_ms -= 1 << 64
    if -after_ms <= age_ms <= before_ms:
        return ""
    return f"timestamp {timestamp} is not within {now_ms - before_ms} and {now_ms + after_ms}"


def _invalid(message: str) -> AppendRefused:
    return AppendRefused(Code.INVALID_RECORD, message)


def _unread(message: str) -> AppendRefused:
    return AppendRefused(Code.INVALID_RECORD, message, unread=True)


def coordinator_batches(records: bytes | bytearray, config: LogConfig) -> list[BatchHeader]:
    """Return the headers of the batches that a coordinator writes; it is trusted but for their sizes."""
    headers = [header for _, header in scan(records)]
    assert headers, "a coordinator appends at least one batch"
    assert sum(header.size for header in headers) == len(records), "a coordinator appends whole batches"
    for header in headers:
        if header.size > config.max_message_bytes:
            raise AppendRefused(
                Code.MESSAGE_TOO_LARGE,
                f"a batch of {header.size} bytes, where {config.max_message_bytes} are allowed",
            )
    if len(records) > config.segment_bytes:
        raise AppendRefused(
            Code.RECORD_LIST_TOO_LARGE, f"{len(records)} bytes, where a segment holds {config.segment_bytes}"
        )
    return headers
