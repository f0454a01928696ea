"""The records of a chunk, read by a kernel that numba compiles: one pass, values copied by memcpy.

Importing this module needs numba (`pip install coterie[fast]`); `records` falls back to `plain` without it.
The compiled kernel is cached beside this file, or in a temporary folder where that is read-only.
"""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
from numba.core import cgutils, config, types
from numba.extending import intrinsic

from coterie.base.errors import Corrupt
from coterie.columns.plan import Chunk, Segment
from coterie.columns.types import HEADERS, MOST_MS, TIMESTAMP

__all__ = ["columns_of"]


def own_folder(path: Path) -> bool:
    """Return whether `path` is (now) a folder that only we may write: cached code is run."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def choose_cache() -> None:
    """Send numba's cache to a temporary folder of ours where the package's folder is read-only."""
    here = Path(__file__).parent
    if os.environ.get("NUMBA_CACHE_DIR") or os.access(here, os.W_OK):
        return
    folder = Path(tempfile.gettempdir()) / f"coterie-numba-{os.getuid()}"
    folder = folder if own_folder(folder) else Path(tempfile.mkdtemp(prefix="coterie-numba-"))
    config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


choose_cache()
compiled = numba.njit(cache=True, nogil=True)

# Columns of the table of segments that the kernel is given.
AT, END, COUNT, OFFSET, LAST_DELTA, TIME, MAX_TIME, APPEND = range(8)
# What the kernel answers: the counts of what it wrote, and where it stumbled (-1: nowhere).
ROWS, KEY_BYTES, VALUE_BYTES, HEADERS_SEEN, NAME_BYTES, TAG_BYTES, FAULT = range(7)


class Out(NamedTuple):
    """The Arrow buffers that the kernel fills: as large as they could need to be, touched as they are."""

    offsets: np.ndarray
    stamps: np.ndarray
    types: np.ndarray
    keys: np.ndarray
    key_ends: np.ndarray
    key_valid: np.ndarray
    values: np.ndarray
    value_ends: np.ndarray
    value_valid: np.ndarray
    header_ends: np.ndarray
    headers_valid: np.ndarray
    names: np.ndarray
    name_ends: np.ndarray
    tags: np.ndarray
    tag_ends: np.ndarray
    tag_valid: np.ndarray


def memcpy(context: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:
    """memcpy(&target[to], &source[at], size): libc's, five times faster than a loop of bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, source, at, size = arguments
        held = [
            context.make_array(kind)(context, builder, value)
            for kind, value in ((signature.args[0], target), (signature.args[2], source))
        ]
        there = builder.gep(held[0].data, [to])
        here = builder.gep(held[1].data, [at])
        cgutils.raw_memcpy(builder, there, here, size, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


# To the compiler a function of five arguments; to the type checker, whatever it is.
copy: Any = intrinsic(memcpy)


@compiled
def varint(data, at, end):  # type: ignore[no-untyped-def]
    """Return the zig-zag number at `at` and where it ends, or -1 for that."""
    if at < end and data[at] < 0x80:
        byte = np.uint64(data[at])
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), at + 1
    value = np.uint64(0)
    shift = np.uint64(0)
    while True:
        if at < 0 or at >= end or shift > np.uint64(63):
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            break
        shift += np.uint64(7)
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at


@compiled
def blob(data, at, end, target, used):  # type: ignore[no-untyped-def]
    """Copy length-prefixed bytes to target[used:]: their length (negative: null), where they end, or -1."""
    length, at = varint(data, at, end)
    if at < 0 or length < 0:
        return length, at
    if length > end - at:
        return length, np.int64(-1)
    copy(target, used, data, at, length)
    return length, at + length


@compiled
def headers_at(data, at, end, out, tally):  # type: ignore[no-untyped-def]
    """Write the record's headers; return where they end, or -1. The tally is kept by the caller."""
    count, at = varint(data, at, end)
    if at < 0 or count < 0 or count > end - at:
        return np.int64(-1)
    for _ in range(count):
        row = tally[HEADERS_SEEN]
        size, at = blob(data, at, end, out.names, tally[NAME_BYTES])
        if at < 0 or size < 0:
            return np.int64(-1)
        tally[NAME_BYTES] += size
        size, at = blob(data, at, end, out.tags, tally[TAG_BYTES])
        if at < 0:
            return np.int64(-1)
        if size < 0:
            out.tag_valid[row >> 3] &= ~np.uint8(1 << (row & 7))
        else:
            tally[TAG_BYTES] += size
        tally[HEADERS_SEEN] = row + 1
        out.name_ends[row + 1] = tally[NAME_BYTES]
        out.tag_ends[row + 1] = tally[TAG_BYTES]
    return at


@compiled
def record_at(data, at, end, segment, first, until, out, tally):  # type: ignore[no-untyped-def]
    """Write the record data[at:end] as a row if it lies in the range; return False on bad bytes."""
    row = tally[ROWS]
    time_delta, at = varint(data, at + 1, end)
    if at < 0:
        return False
    delta, at = varint(data, at, end)
    if at < 0 or delta < 0 or delta > segment[LAST_DELTA]:
        return False
    key_size, at = blob(data, at, end, out.keys, tally[KEY_BYTES])
    if at < 0:
        return False
    value_size, at = blob(data, at, end, out.values, tally[VALUE_BYTES])
    if at < 0:
        return False
    seen, names, tags = tally[HEADERS_SEEN], tally[NAME_BYTES], tally[TAG_BYTES]
    if headers_at(data, at, end, out, tally) != end:
        return False
    offset = segment[OFFSET] + delta
    if offset < first or offset >= until:
        for header in range(seen, tally[HEADERS_SEEN]):
            out.tag_valid[header >> 3] |= np.uint8(1 << (header & 7))
        tally[HEADERS_SEEN], tally[NAME_BYTES], tally[TAG_BYTES] = seen, names, tags
        return True
    stamp = segment[MAX_TIME] if segment[APPEND] else segment[TIME] + time_delta
    out.offsets[row] = offset
    out.stamps[row] = max(-MOST_MS, min(MOST_MS, stamp)) * 1000
    out.types[row] = segment[APPEND]
    if key_size < 0:
        out.key_valid[row >> 3] &= ~np.uint8(1 << (row & 7))
    else:
        tally[KEY_BYTES] += key_size
    if value_size < 0:
        out.value_valid[row >> 3] &= ~np.uint8(1 << (row & 7))
    else:
        tally[VALUE_BYTES] += value_size
    if tally[HEADERS_SEEN] == seen:
        out.headers_valid[row >> 3] &= ~np.uint8(1 << (row & 7))
    out.key_ends[row + 1] = tally[KEY_BYTES]
    out.value_ends[row + 1] = tally[VALUE_BYTES]
    out.header_ends[row + 1] = tally[HEADERS_SEEN]
    tally[ROWS] = row + 1
    return True


@compiled
def read(data, segments, first, until, out, tally):  # type: ignore[no-untyped-def]
    """Write the rows of all segments; tally[FAULT] says where bad bytes stopped it."""
    for segment in segments:
        at = segment[AT]
        for _ in range(segment[COUNT]):
            length, body = varint(data, at, segment[END])
            if body < 0 or length < 1 or length > segment[END] - body:
                tally[FAULT] = at
                return
            at = body + length
            if not record_at(data, body, at, segment, first, until, out, tally):
                tally[FAULT] = body
                return
        if at != segment[END]:
            tally[FAULT] = at
            return


def bits(count: int) -> np.ndarray:
    """Return a validity bitmap of so many rows, all valid."""
    return np.full((count + 7) // 8, 255, np.uint8)


def ends(count: int) -> np.ndarray:
    """Return Arrow's offsets of so many values; the first is 0."""
    made = np.empty(count + 1, np.int32)
    made[0] = 0
    return made


def room_for(chunk: Chunk) -> Out:
    """Return buffers into which the chunk's rows will fit, whatever they hold.

    A header takes two bytes at least, and what is not written costs no memory. The kernel trusts these
    sizes: they hold for hostile bytes, too.
    """
    rows, size = chunk.rows, len(chunk.data)
    headers = size // 2
    return Out(
        offsets=np.empty(rows, np.int64),
        stamps=np.empty(rows, np.int64),
        types=np.empty(rows, np.int32),
        keys=np.empty(size, np.uint8),
        key_ends=ends(rows),
        key_valid=bits(rows),
        values=np.empty(size, np.uint8),
        value_ends=ends(rows),
        value_valid=bits(rows),
        header_ends=ends(rows),
        headers_valid=bits(rows),
        names=np.empty(size, np.uint8),
        name_ends=ends(headers),
        tags=np.empty(size, np.uint8),
        tag_ends=ends(headers),
        tag_valid=bits(headers),
    )


def columns_of(chunk: Chunk, *, first: int, until: int, headers: bool) -> dict[str, pa.Array]:
    """Return the columns that come out of the records themselves: all but topic and partition."""
    out = room_for(chunk)
    tally = np.zeros(7, np.int64)
    tally[FAULT] = -1
    segments = np.array(chunk.segments, np.int64).reshape(-1, len(Segment._fields))
    read(np.frombuffer(chunk.data, np.uint8), segments, first, until, out, tally)
    if tally[FAULT] >= 0:
        raise Corrupt("record", at=int(tally[FAULT]), expected="a whole one")
    rows = int(tally[ROWS])
    columns = {
        "key": blobs(pa.binary(), rows, out.key_valid, out.key_ends, out.keys, int(tally[KEY_BYTES])),
        "value": blobs(
            pa.binary(), rows, out.value_valid, out.value_ends, out.values, int(tally[VALUE_BYTES])
        ),
        "offset": pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(out.offsets)]),
        "timestamp": pa.Array.from_buffers(TIMESTAMP, rows, [None, pa.py_buffer(out.stamps)]),
        "timestampType": pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(out.types)]),
    }
    if headers:
        columns["headers"] = headers_column(out, tally, rows)
    return columns


def blobs(
    kind: pa.DataType, rows: int, valid: np.ndarray | None, stops: np.ndarray, data: np.ndarray, used: int
) -> pa.Array:
    """Return an array of bytes or text over these buffers."""
    mask = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(stops), pa.py_buffer(data[:used])])


def headers_column(out: Out, tally: np.ndarray, rows: int) -> pa.Array:
    """Return the lists of headers; a record without any has null, as in Spark's source."""
    count = int(tally[HEADERS_SEEN])
    names = blobs(pa.string(), count, None, out.name_ends, out.names, int(tally[NAME_BYTES]))
    tags = blobs(pa.binary(), count, out.tag_valid, out.tag_ends, out.tags, int(tally[TAG_BYTES]))
    pairs = pa.StructArray.from_arrays([names, tags], fields=list(HEADERS.value_type))
    buffers = [pa.py_buffer(out.headers_valid), pa.py_buffer(out.header_ends)]
    return pa.Array.from_buffers(HEADERS, rows, buffers, children=[pairs])
