"""What a batch must be before it may enter a log, answered as Apache Kafka 4.3.1 answers (tried out on one).

Only the header is read. Records are decoded for compacted topics, whose keys matter, and to tell which
records of a refused batch are at fault. So rubbish behind a right checksum gets into other topics, where
Kafka refuses it with INVALID_RECORD: to decode every record would cost more than all the rest of an append.
No input or output.
"""

from struct import Struct

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.store.config import FOREVER, LogConfig
from coterie.store.log import AppendRefused
from coterie.wire.batches import HEADER_SIZE, BatchHeader, check_crc, read_header, records_of, scan

__all__ = ["client_batch", "coordinator_batches"]

LENGTH_AND_MAGIC = Struct(">8xi4xb")
OVERHEAD = 12  # offset and length, which the length does not count
LEAST_LENGTH = 14
UP_TO_MAGIC = 17
CODECS = 5
NO_TIMESTAMP = -1


def client_batch(
    records: bytes | bytearray, config: LogConfig, now_ms: int
) -> tuple[BatchHeader, bytes | bytearray]:
    """Return the one batch that a producer may send at a time, and its header. Raises `AppendRefused`.

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
        raise _invalid(f"{header.count} records for the offsets 0 to {header.last_offset_delta}")
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
    if _records_matter(header, config, now_ms):
        _check_records(records, header, config, now_ms)
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


def _records_matter(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Return whether the header alone does not settle that all records are welcome."""
    if config.compacted or (config.append_time and header.append_time):
        return True
    if config.append_time:
        return False
    return (
        header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
        or config.message_timestamp_before_max_ms != FOREVER
    )


def _check_records(records: bytes | bytearray, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    keyless: list[tuple[int, str]] = []
    untimely: list[tuple[int, str]] = []
    try:
        for place, record in enumerate(records_of(records, 0)):
            if config.compacted and record.key is None:
                keyless.append((place, "a compacted topic takes no record without a key"))
            elif fault := _fault_of_time(record.timestamp, header, config, now_ms):
                untimely.append((place, fault))
    except Corrupt as error:
        raise _invalid(str(error)) from None
    if untimely:
        at_fault = sorted(keyless + untimely)
        raise AppendRefused(Code.INVALID_TIMESTAMP, "records were refused for their timestamp", at_fault)
    if keyless:
        raise AppendRefused(Code.INVALID_RECORD, f"{len(keyless)} records without a key", keyless)


def _fault_of_time(timestamp: int, header: BatchHeader, config: LogConfig, now_ms: int) -> str:
    if config.append_time:
        return "a producer may not set LogAppendTime" if header.append_time else ""
    if timestamp == NO_TIMESTAMP:
        return ""
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if earliest <= timestamp <= latest:
        return ""
    return f"timestamp {timestamp} is not within {earliest} and {latest}"


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
