"""Batches written anew: with other flags, other compression, or fewer records. No input or output."""

from coterie.wire.records.batches import (
    APPEND_TIME_BIT,
    CODEC_BITS,
    HEADER_SIZE,
    SMALLEST_LENGTH,
    BatchHeader,
    sealed_head,
)
from coterie.wire.records.compression import (
    CODECS,
    codec_of,
    compress,
    decompress,
)


def sealed(header: BatchHeader, body: bytes) -> tuple[BatchHeader, bytes]:
    """Return the batch of this header and these bytes of records, its length and checksum made to fit."""
    header = header._replace(length=SMALLEST_LENGTH + len(body))
    return header, sealed_head(header, body) + body


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
    return sealed(header._replace(attributes=flags), body)
