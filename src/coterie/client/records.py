"""The records that a consumer hands out, and the one pass that reads a batch's bytes into them. Pure."""

from typing import Any, NamedTuple

from coterie.base.errors import Corrupt
from coterie.wire.batches import HEADER_SIZE, BatchHeader, check_crc, codec_of, decompress, read_headers
from coterie.wire.varints import read_varlong

__all__ = ["ConsumerRecord", "payload_of", "rows_of"]

CREATED, APPENDED = 0, 1


class ConsumerRecord(NamedTuple):
    """One record. Key and value are bytes unless the consumer has deserialisers."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    timestamp_type: int
    """0: when it was created, 1: when the broker appended it."""
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]


def payload_of(buf: bytes, at: int, header: BatchHeader, *, check: bool) -> bytes:
    """Return the bytes of the batch's records, decompressed; Corrupt if the checksum is not theirs."""
    if check and not check_crc(buf, at, header):
        raise Corrupt("record batch", at=at, expected=f"checksum {header.crc:#010x}")
    body = buf[at + HEADER_SIZE : at + header.size]
    return decompress(codec_of(header.codec), body) if header.codec else body


def rows_of(data: bytes, header: BatchHeader, topic: str, partition: int) -> list[ConsumerRecord]:
    """Return the records of one batch, whose payload is `data`. Corrupt if they are rubbish.

    Every consumed record comes through here: lengths of up to two bytes are read in place.
    """
    at = 0
    try:
        rows, at = _rows(data, header, topic, partition)
    except (IndexError, UnicodeDecodeError) as failure:
        raise Corrupt("record", expected="a whole one") from failure
    if at != len(data) or (rows and rows[-1].offset > header.last_offset):
        raise Corrupt("record batch", at=at, expected=f"{header.count} records and no more")
    return rows


def _rows(data: bytes, header: BatchHeader, topic: str, partition: int) -> tuple[list[ConsumerRecord], int]:
    """Return the records and where the last one ends. Lengths are zigzag: what is odd is negative."""
    rows: list[ConsumerRecord] = []
    add, new, kind = rows.append, tuple.__new__, ConsumerRecord
    base, stamped = header.base_offset, APPENDED if header.append_time else CREATED
    start = header.max_timestamp if stamped else header.base_timestamp
    at = 0
    for _ in range(header.count):
        first = data[at]
        if first < 128:
            at += 1
            end = at + (first >> 1)
        elif (byte := data[at + 1]) < 128:
            at += 2
            end = at + ((first - 128 + (byte << 7)) >> 1)
        else:
            size, at = read_varlong(data, at)
            end = at + size
        first = data[at + 1]
        if first < 128:
            at += 2
            time = (first >> 1) ^ -(first & 1)
        else:
            time, at = read_varlong(data, at + 1)
        first = data[at]
        if first < 128:
            at += 1
            delta = first >> 1
        elif (byte := data[at + 1]) < 128:
            at += 2
            delta = (first - 128 + (byte << 7)) >> 1
        else:
            delta, at = read_varlong(data, at)
        key, at = (None, at + 1) if data[at] == 1 else _sized(data, at)
        first = data[at]
        if first & 1:
            value, stop = _sized(data, at)
        elif first < 128:
            stop = at + 1 + (first >> 1)
            value = data[at + 1 : stop]
        elif (byte := data[at + 1]) < 128:
            stop = at + 2 + ((first - 128 + (byte << 7)) >> 1)
            value = data[at + 2 : stop]
        else:
            value, stop = _sized(data, at)
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if data[stop]:
            headers, at = read_headers(data, stop, end)
        else:
            at = stop + 1
        if at != end:
            raise Corrupt("record", at=at, expected=f"its end at {end}")
        add(new(kind, (topic, partition, base + delta, start if stamped else start + time, stamped,
                       key, value, headers)))  # fmt: skip
    return rows, at


def _sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the bytes whose length is at `at`, and where they end."""
    size, at = read_varlong(data, at)
    if size < 0:
        return None, at
    return data[at : at + size], at + size
