"""The four compressions of Kafka's record batches, framed as its Java clients write and read them."""

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any

from coterie.base.errors import Corrupt

# By the number that a batch's attributes carry.
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# A few kilobytes can claim to be gigabytes. Kafka passes what it decompresses on piece by piece; here a batch
# is whole in memory, so one that would be more than this is refused: 256 times Kafka's own limit of a batch.
MOST_BYTES = 256 << 20
# How much room is tried first, and how many times more where that is too little.
ROOM_TIMES, ROOM_LEAST_BYTES = 8, 1 << 12
# What the codecs say, through Rust's standard library, when there is no room for what comes next.
NO_ROOM = "failed to write whole buffer"

INT32 = Struct(">i")
UINT32_LITTLE = Struct("<I")

# Snappy as Java frames it (xerial): magic, version, compatible version; then blocks after their sizes.
XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER = XERIAL_MAGIC + INT32.pack(1) + INT32.pack(1)
XERIAL_BLOCK_BYTES = 32 * 1024
# Three bytes of snappy stand for at most 64: more than this, a block cannot claim.
SNAPPY_EXPANSION = 22

# An LZ4 frame: magic, version 1 with independent blocks (Java refuses dependent ones) of up to 64 KiB,
# no checksums, and the checksum of those two bytes.
LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
LZ4_BLOCK_BYTES = 64 * 1024
LZ4_STORED = 0x80000000
LZ4_END = b"\0\0\0\0"


class Unbounded(Corrupt):
    """There are more bytes in what was compressed than the reader has room for."""


def codec_of(number: int) -> str:
    """Return the codec of that number, or raise Corrupt: a batch has room for three that nobody knows."""
    if number >= len(CODECS):
        raise Corrupt(f"compression {number}", expected=f"less than {len(CODECS)}")
    return CODECS[number]


def compress(codec: str, data: bytes) -> bytes:
    """Return the data compressed with one of CODECS."""
    return data if codec == "none" else COMPRESSORS[codec](data)


def decompress(codec: str, data: bytes, *, most: int | None = None) -> bytes:
    """Return the decompressed bytes, or raise Corrupt: for rubbish, and for more than `most` bytes."""
    if codec == "none":
        return bytes(data)
    from cramjam import DecompressionError

    try:
        return DECOMPRESSORS[codec](data, MOST_BYTES if most is None else min(most, MOST_BYTES))
    except (DecompressionError, StructError, ValueError, OverflowError) as failure:
        raise Corrupt(f"{codec} data: {failure}", at=0) from failure


def _native(codec: str) -> Any:
    """Return cramjam's module of a codec. Imported late: a broker passes batches on as they are."""
    import cramjam

    return getattr(cramjam, codec)


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _compressed(codec: str, data: bytes) -> bytes:
    return bytes(_native(codec).compress(data))


def _snappy(data: bytes) -> bytes:
    snappy = _native("snappy")
    out = [XERIAL_HEADER]
    for piece in _pieces(data, XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(piece))
        out += INT32.pack(len(block)), block
    return b"".join(out)


def _lz4(data: bytes) -> bytes:
    lz4 = _native("lz4")
    out = [LZ4_HEADER]
    for piece in _pieces(data, LZ4_BLOCK_BYTES):
        block = bytes(lz4.compress_block(piece, store_size=False))
        if len(block) < len(piece):
            out += UINT32_LITTLE.pack(len(block)), block
        else:
            out += UINT32_LITTLE.pack(len(piece) | LZ4_STORED), piece
    out.append(LZ4_END)
    return b"".join(out)


def _into_room(codec: str, data: bytes, most: int) -> bytes:
    """Return the data, or raise Corrupt beyond `most` bytes. The codecs know no limit but their room."""
    from cramjam import DecompressionError

    decompress_into = _native(codec).decompress_into
    room = max(ROOM_LEAST_BYTES, ROOM_TIMES * len(data))
    while True:
        room = min(room, most)
        out = bytearray(room)
        try:
            size = decompress_into(data, out)
        except DecompressionError as failure:
            if str(failure) != NO_ROOM:
                raise
            if room == most:
                limit = f"at most {most} bytes"
                raise Unbounded(f"{codec} data of {len(data)} bytes", at=0, expected=limit) from failure
            room *= ROOM_TIMES
            continue
        return bytes(memoryview(out)[:size])


def _unsnappy(data: bytes, most: int) -> bytes:
    """Return the data of xerial frames, or of the bare snappy that other clients write."""
    if not data.startswith(XERIAL_MAGIC):
        return _unsnappy_block(data, most)
    out: list[bytes] = []
    at, left = len(XERIAL_HEADER), most
    while at < len(data):
        (size,) = INT32.unpack_from(data, at)
        at += INT32.size
        if not 0 <= size <= len(data) - at:
            raise Corrupt(f"snappy block of {size} bytes", at=at, expected="at most what is left")
        out.append(_unsnappy_block(data[at : at + size], left))
        left -= len(out[-1])
        at += size
    return b"".join(out)


def _unsnappy_block(block: bytes, most: int) -> bytes:
    snappy = _native("snappy")
    claimed = snappy.decompress_raw_len(block)
    if claimed > SNAPPY_EXPANSION * len(block):
        raise Corrupt(f"snappy block that claims {claimed} bytes", at=0, expected="less")
    if claimed > most:
        raise Unbounded(f"snappy block that claims {claimed} bytes", at=0, expected=f"at most {most} bytes")
    return bytes(snappy.decompress_raw(block))


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(_compressed, "gzip"),
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": partial(_compressed, "zstd"),
}
DECOMPRESSORS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": partial(_into_room, "gzip"),
    "snappy": _unsnappy,
    "lz4": partial(_into_room, "lz4"),
    "zstd": partial(_into_room, "zstd"),
}
assert {"none", *COMPRESSORS} == {"none", *DECOMPRESSORS} == set(CODECS)
