"""Record batches of Kafka's message format 2: headers in place, and the records of a batch when wanted.

A broker passes batches through: it reads and stamps headers, and nothing here touches the records
of a batch unless `records_of` or `build_batch` is called.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from coterie.base.errors import Corrupt
from coterie.wire.records.checksum import crc32c
from coterie.wire.records.compression import CODECS, codec_of, compress, decompress
from coterie.wire.varints import read_varlong, varlong

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
assert HEADER.size == HEADER_SIZE

# What a batch's length does not count: the base offset and the length itself.
LENGTH_STARTS = 12
SMALLEST_LENGTH = HEADER_SIZE - LENGTH_STARTS
MAGIC = 2

# Where things are that are written in place.
BASE_OFFSET_AT = 0
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
# The checksum covers the batch from the attributes on: base offset and epoch may be stamped without it.
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43

CODEC_BITS = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
HORIZON_BIT = 0x40
"""Says that the base timestamp is when tombstones may go (KIP-534), and not the first record's."""

INT16 = Struct(">h")
INT32 = Struct(">i")
UINT32 = Struct(">I")
INT64 = Struct(">q")
SIZE_AND_MAGIC = Struct(">8xi4xb")
LEAST_INT64, MOST_INT64 = -(2**63), 2**63 - 1

# The key of a marker is its version and its kind, its value a version and the coordinator's epoch.
ABORT, COMMIT = 0, 1
MARKER_KEY = Struct(">hh")
MARKER_VALUE = Struct(">hi")
MARKER_RECORD = Struct(">5s2xhc2xic")
"""As everybody writes it: what is before the key, kind, what is before the value, epoch, headers."""
MARKER_SIZE = HEADER_SIZE + MARKER_RECORD.size
MARKER_FRAME = (b"\x20\0\0\0\x08", b"\x0c", b"\0")
"""The record's length, attributes, deltas and its key's length; its value's; no headers."""


class BatchHeader(NamedTuple):
    """The 61 bytes before the records of a batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses

    @property
    def size(self) -> int:
        """Return the bytes of the whole batch, which `length` does not count all."""
        return LENGTH_STARTS + self.length

    @property
    def last_offset(self) -> int:
        """Return the offset of the last record, which compaction may have taken out."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Return the compression as an index of CODECS; 5 to 7 are nobody's."""
        return self.attributes & CODEC_BITS

    @property
    def transactional(self) -> bool:
        """Return whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """Return whether the batch holds a marker that consumers do not see."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def append_time(self) -> bool:
        """Return whether `max_timestamp` is the time at which the broker appended the batch."""
        return bool(self.attributes & APPEND_TIME_BIT)


NULL = varlong(-1)
"""The size of a key or a value that is null."""
NO_ATTRIBUTES, NO_HEADERS = b"\0", b"\0"
"""What stands in a record for attributes, none of which are in use, and for a number of headers of 0."""

T = TypeVar("T", bound=tuple[object, ...])
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
AT_ONCE = 100  # records that are read before the first of them is handed out


class Record(NamedTuple):
    """One record, its offset and timestamp absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Marker(NamedTuple):
    """What a control batch says: how a transaction ended, and in which epoch of its coordinator."""

    commit: bool
    coordinator_epoch: int


def read_header(buf: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
    """Return the header of the batch at `at`. Corrupt if it is cut, too short, or of another magic."""
    if len(buf) - at < HEADER_SIZE:
        raise Corrupt("batch header", at=at, expected=f"{HEADER_SIZE} bytes")
    header = BatchHeader._make(HEADER.unpack_from(buf, at))
    if header.magic != MAGIC:
        raise Corrupt(f"magic {header.magic}", at=at + MAGIC_AT, expected=f"{MAGIC}")
    if header.length < SMALLEST_LENGTH:
        raise Corrupt(f"batch length {header.length}", at=at, expected=f"at least {SMALLEST_LENGTH}")
    return header


def scan(buf: bytes | bytearray | memoryview, at: int = 0) -> list[tuple[int, BatchHeader]]:
    """Return the place of each whole batch, and its header. A batch that is cut at the end is left out."""
    found: list[tuple[int, BatchHeader]] = []
    end = len(buf)
    while end - at >= HEADER_SIZE:
        header = read_header(buf, at)
        if header.size > end - at:
            break
        found.append((at, header))
        at += header.size
    return found


def ends_of(buf: bytes | bytearray | memoryview) -> list[int]:
    """Return the end of each whole batch, where the next begins: for readers of all headers at once."""
    ends: list[int] = []
    at, end = 0, len(buf)
    while end - at >= HEADER_SIZE:
        length, magic = SIZE_AND_MAGIC.unpack_from(buf, at)
        if magic != MAGIC or length < SMALLEST_LENGTH:
            read_header(buf, at)  # raises Corrupt
        at += LENGTH_STARTS + length
        if at > end:
            break
        ends.append(at)
    return ends


def check_crc(buf: bytes | bytearray | memoryview, at: int, header: BatchHeader) -> bool:
    """Return whether the batch's checksum is that of its bytes."""
    return _crc_of(buf, at, header.size) == header.crc


def _crc_of(buf: bytes | bytearray | memoryview, at: int, size: int) -> int:
    return crc32c(memoryview(buf)[at + ATTRIBUTES_AT : at + size])


def restamp(
    buf: bytearray | memoryview,
    at: int,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None,
) -> None:
    """Write what a broker decides into the batch at `at`. Only an append time changes the checksum."""
    INT64.pack_into(buf, at + BASE_OFFSET_AT, base_offset)
    INT32.pack_into(buf, at + LEADER_EPOCH_AT, leader_epoch)
    if append_time_ms is None:
        return
    (attributes,) = INT16.unpack_from(buf, at + ATTRIBUTES_AT)
    INT16.pack_into(buf, at + ATTRIBUTES_AT, attributes | APPEND_TIME_BIT)
    INT64.pack_into(buf, at + MAX_TIMESTAMP_AT, append_time_ms)
    length, _ = SIZE_AND_MAGIC.unpack_from(buf, at)
    UINT32.pack_into(buf, at + CRC_AT, _crc_of(buf, at, LENGTH_STARTS + length))


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: str = "none",
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    append_time: bool = False,
) -> bytes:
    """Return one batch of the records, whose offsets count from `base_offset`, in order, gaps allowed.

    With `append_time` the greatest timestamp of the records is given out as the broker's.
    """
    assert records, "a batch has at least one record"
    base_timestamp = records[0].timestamp
    encoded = b"".join([_encode(record, base_offset, base_timestamp) for record in records])
    body = compress(codec, encoded)
    head = head_for(
        body,
        count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        codec=codec,
        base_offset=base_offset,
        last_offset_delta=records[-1].offset - base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        append_time=append_time,
    )
    return head + body


def head_for(
    body: bytes,
    *,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    codec: str = "none",
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    append_time: bool = False,
) -> bytes:
    """Return the 61 bytes that go before these records, which are compressed already if they are to be."""
    attributes = (
        CODECS.index(codec)
        | APPEND_TIME_BIT * append_time
        | TRANSACTIONAL_BIT * transactional
        | CONTROL_BIT * control
    )
    header = (
        base_offset,
        SMALLEST_LENGTH + len(body),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return sealed_head(header, body)


def sealed_head(header: tuple[int, ...], body: bytes) -> bytes:
    """Return the bytes of a header, with the checksum that it has to have before this body."""
    head = HEADER.pack(*header)
    crc = crc32c(body, crc32c(head[ATTRIBUTES_AT:]))
    return b"".join((head[:CRC_AT], UINT32.pack(crc), head[ATTRIBUTES_AT:]))


def build_marker(
    *, commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp: int
) -> bytes:
    """Return the control batch that ends a producer's transaction in one partition."""
    key = MARKER_KEY.pack(0, COMMIT if commit else ABORT)
    record = Record(0, timestamp, key, MARKER_VALUE.pack(0, coordinator_epoch))
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def read_marker(
    buf: bytes | bytearray | memoryview, at: int = 0, header: BatchHeader | None = None
) -> Marker:
    """Return the Marker of the control batch at `at`, whose header may be known. Corrupt if it is about
    anything but a transaction.

    Newer versions of key and value begin as these do.
    """
    header = read_header(buf, at) if header is None else header
    if header.size == MARKER_SIZE <= len(buf) - at and header.control and header.count == 1:
        before, kind, between, coordinator_epoch, behind = MARKER_RECORD.unpack_from(buf, at + HEADER_SIZE)
        if (before, between, behind) == MARKER_FRAME and kind in (ABORT, COMMIT) and not header.codec:
            return Marker(kind == COMMIT, coordinator_epoch)
    record = next(records_of(buf, at), None) if header.control else None
    if record is None or record.key is None or len(record.key) < MARKER_KEY.size:
        raise Corrupt("batch without a transaction marker", at=at)
    _, kind = MARKER_KEY.unpack_from(record.key)
    if kind not in (ABORT, COMMIT):
        raise Corrupt(f"control record of kind {kind}", at=at, expected="0 (abort) or 1 (commit)")
    if record.value is None or len(record.value) < MARKER_VALUE.size:
        raise Corrupt("transaction marker without its coordinator's epoch", at=at)
    _, coordinator_epoch = MARKER_VALUE.unpack_from(record.value)
    return Marker(kind == COMMIT, coordinator_epoch)


def _encode(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    """Return the bytes of a record in a batch with these bases."""
    return encoded(
        varlong(record.timestamp - base_timestamp),
        varlong(record.offset - base_offset),
        sized(record.key),
        sized(record.value),
        encoded_headers(record.headers) if record.headers else NO_HEADERS,
    )


def encoded(when: bytes, where: bytes, key: bytes, value: bytes, headers: bytes = NO_HEADERS) -> bytes:
    """Return the bytes of a record, its length in front: all that Python writes one by one comes from here.

    `when` and `where` are the varints of its timestamp's and its offset's delta, key and value are `sized`.
    """
    body = b"".join((NO_ATTRIBUTES, when, where, key, value, headers))
    return varlong(len(body)) + body


def sized(data: bytes | None) -> bytes:
    """Return bytes with their size in front, as a record holds its key and its value."""
    return NULL if data is None else varlong(len(data)) + data


def encoded_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the headers of a record, their number in front."""
    out = [varlong(len(headers))]
    for name, value in headers:
        out += sized(name.encode()), sized(value)
    return b"".join(out)


def records_of(
    buf: bytes | bytearray | memoryview, at: int = 0, *, most: int | None = None
) -> Iterator[Record]:
    """Yield the records of the batch at `at`, compressed or not, control records too.

    Corrupt if rubbish, or more than `most` bytes unpacked.
    """
    header = read_header(buf, at)
    body = bytes(buf[at + HEADER_SIZE : at + header.size])
    if len(body) != header.size - HEADER_SIZE:
        raise Corrupt("batch", at=at, expected=f"{header.size} bytes")
    data = decompress(codec_of(header.codec), body, most=most) if header.codec else body
    return records_in(data, header)


def records_in(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """Yield the records of a batch with this header, whose bytes, not compressed, are all of `data`.

    Corrupt if rubbish.
    """
    at, left = 0, header.count
    while left > 0:
        rows: list[Record] = []
        try:
            at = read_rows(data, at, min(left, AT_ONCE), header, rows, RowKind(Record))
        except Corrupt:
            yield from rows  # what comes before it is as good as ever
            raise
        yield from rows
        left -= len(rows)
    if at != len(data):
        raise Corrupt("batch", at=at, expected=f"{header.count} records and no more")


def pieces_of(data: bytes, count: int) -> list[bytes]:
    """Return the bytes of so many records that `records_in` has read: as they lie, the length in front."""
    pieces, at = [], 0
    for _ in range(count):
        size, body = read_varlong(data, at)
        pieces.append(data[at : body + size])
        at = body + size
    return pieces


def shifted(piece: bytes, shift: int) -> bytes | None:
    """Return a record's bytes with a timestamp's delta that is greater by `shift`; None beyond 64 bits."""
    _, at = read_varlong(piece, 0)
    delta, rest_at = read_varlong(piece, at + 1)
    if not LEAST_INT64 <= delta + shift <= MOST_INT64:
        return None
    body = piece[at : at + 1] + varlong(delta + shift) + piece[rest_at:]
    return varlong(len(body)) + body


class RowKind(NamedTuple, Generic[T]):
    """What a record is made into: a `Record`; or, with the place that it comes from, a tuple of topic,
    partition, offset, timestamp and its type, key, value and headers.
    """

    kind: type[T]
    place: tuple[str, int] | None = None


def read_rows(data: bytes, at: int, count: int, header: BatchHeader, rows: list[T], made: RowKind[T]) -> int:
    """Add so many records from `at` on to `rows`, and return where they end.

    Raises Corrupt, with those before the bad one in `rows`. Lengths are zigzag: what is odd is negative.
    Those of up to two bytes are read in place: all records that Python reads one by one come through here.
    """
    try:
        return _read_rows(data, at, count, header, rows, made)
    except IndexError as failure:
        raise Corrupt("record", at=at, expected="a whole one") from failure


def _read_rows(data: bytes, at: int, count: int, header: BatchHeader, rows: list[T], made: RowKind[T]) -> int:
    """Return the end, as `read_rows` does; IndexError where the data ends within a record."""
    kind, place = made
    add, new = rows.append, tuple.__new__
    topic, partition = place or ("", -1)
    base, stamped = header.base_offset, int(header.append_time)
    start = header.max_timestamp if stamped else header.base_timestamp
    for _ in range(count):
        first = data[at]
        if first & 1:
            raise Corrupt("record", at=at, expected="no length below 0")
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
            delta = (first >> 1) ^ -(first & 1)
        elif (byte := data[at + 1]) < 128:
            at += 2
            delta = ((first - 128 + (byte << 7)) >> 1) ^ -(first & 1)
        else:
            delta, at = read_varlong(data, at)
        key, at = (None, at + 1) if data[at] == 1 else _read_sized(data, at)
        first = data[at]
        if first & 1:
            value, stop = _read_sized(data, at)
        elif first < 128:
            stop = at + 1 + (first >> 1)
            value = data[at + 1 : stop]
        elif (byte := data[at + 1]) < 128:
            stop = at + 2 + ((first - 128 + (byte << 7)) >> 1)
            value = data[at + 2 : stop]
        else:
            value, stop = _read_sized(data, at)
        headers: Headers = ()
        if data[stop]:
            headers, at = read_headers(data, stop, end)
        else:
            at = stop + 1
        if at != end:
            raise Corrupt("record", at=at, expected=f"its end at {end}")
        stamp = start if stamped else start + time
        if place is None:
            add(new(kind, (base + delta, stamp, key, value, headers)))
        else:
            add(new(kind, (topic, partition, base + delta, stamp, stamped, key, value, headers)))
    return at


def _read_sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the bytes whose length is at `at`, None if it is negative, and where they end."""
    size, at = read_varlong(data, at)
    if size < 0:
        return None, at
    return data[at : at + size], at + size


def read_headers(data: bytes, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    number, at = read_varlong(data, at)
    if not 0 <= number <= end - at:
        raise Corrupt(f"{number} record headers", at=at, expected="as many as fit")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(number):
        name, at = _read_sized(data, at)
        if name is None:
            raise Corrupt("record header without a name", at=at)
        value, at = _read_sized(data, at)
        if at > end:
            raise Corrupt("record header", at=at, expected="within its record")
        headers.append((name.decode(errors="replace"), value))  # as in Java: nobody checks what is sent
    return tuple(headers), at


# -- a batch that is encoded as its records come, for who writes many small ones

RECORD_OVERHEAD_BYTES = 64  # of a record besides its key and its value, at most


def weight_of(records: Iterable[tuple[bytes, bytes | None]]) -> int:
    """Return about how many bytes the records add to a batch, rather too many."""
    return sum(RECORD_OVERHEAD_BYTES + len(key) + len(value or b"") for key, value in records)


class GrowingBatch:
    """Records without headers, none at first. The first one's timestamp is the base of all."""

    __slots__ = ("_base_ms", "_newest_ms", "_parts", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._parts: list[bytes] = []
        self._base_ms = self._newest_ms = 0

    def __len__(self) -> int:
        return self.count

    def add(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Add a record."""
        self.add_sized(sized(key), sized(value), timestamp)

    def add_sized(self, key: bytes, value: bytes, timestamp: int) -> None:
        """Add a record whose key and value are `sized` already."""
        count = self.count
        if not count:
            self._base_ms = self._newest_ms = timestamp
        part = encoded(varlong(timestamp - self._base_ms), varlong(count), key, value)
        self._parts.append(part)
        self.size += len(part)
        self.count = count + 1
        if timestamp > self._newest_ms:
            self._newest_ms = timestamp

    def build(self, *, producer_id: int = -1, producer_epoch: int = -1, transactional: bool = False) -> bytes:
        """Return the batch; there is at least one record."""
        assert self.count, "a batch has at least one record"
        body = b"".join(self._parts)
        head = head_for(
            body,
            count=self.count,
            base_timestamp=self._base_ms,
            max_timestamp=self._newest_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=transactional,
        )
        return head + body
