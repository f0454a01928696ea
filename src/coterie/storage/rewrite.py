"""Batches written anew: with other flags, other compression, or fewer records. No input or output."""

from coterie.wire.records.batches import (
    APPEND_TIME_BIT,
    ATTRIBUTES_AT,
    CODEC_BITS,
    CRC_AT,
    HEADER_SIZE,
    LENGTH_STARTS,
    BatchHeader,
)
from coterie.wire.records.batches import HEADER as LAYOUT
from coterie.wire.records.checksum import crc32c
from coterie.wire.records.compression import (
    CODECS,
    codec_of,
    compress,
    decompress,
)


def checksum(data: bytes) -> int:
    """Return the CRC32C that Kafka puts into batches and snapshots."""
    return int(crc32c(data))


def sealed(header: BatchHeader, body: bytes) -> bytes:
    """Return the batch of this header and these bytes of records, its length and checksum made to fit."""
    head = bytearray(LAYOUT.pack(*header._replace(length=HEADER_SIZE - LENGTH_STARTS + len(body), crc=0)))
    crc = crc32c(body, crc32c(bytes(head[ATTRIBUTES_AT:])))
    head[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4)
    return bytes(head) + body


def fitted(
    records: bytes | bytearray, header: BatchHeader, *, codec: str, append_time: bool
) -> tuple[BatchHeader, bytes | bytearray]:
    """Return the batch in the compression that its topic wants (any, for `producer`), without a false flag.

    A producer that claims LogAppendTime where the topic has CreateTime is not believed. The bytes of the
    records stay as they are, compressed anew at most. Raises Corrupt if they cannot be decompressed.
    """
    wanted = (
        header.codec if codec == "producer" else CODECS.index("none" if codec == "uncompressed" else codec)
    )
    if wanted == header.codec and (append_time or not header.append_time):
        return header, records
    body = bytes(records[HEADER_SIZE:])
    if wanted != header.codec:
        body = compress(CODECS[wanted], decompress(codec_of(header.codec), body))
    flags = header.attributes & ~(CODEC_BITS | APPEND_TIME_BIT) | wanted
    header = header._replace(attributes=flags, length=HEADER_SIZE - LENGTH_STARTS + len(body))
    return header, sealed(header, body)
