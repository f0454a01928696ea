"""The records that a consumer hands out, and the one pass that reads a batch's bytes into them. Pure."""

from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

from coterie.base.errors import Corrupt
from coterie.client.errors import Undecodable
from coterie.wire.records.batches import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    RowKind,
    build_batch,
    check_crc,
    read_header,
    read_rows,
)
from coterie.wire.records.columns import LEAST, Run, begins_uniform, run_at
from coterie.wire.records.compression import (
    codec_of,
    decompress,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with defaults, which typing has from Python 3.13 on

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")

CREATED, APPENDED = 0, 1
# Where records are not uniform, so many are read before it is tried again.
STRETCH = 100
COMPILED_FROM = 250  # records of a batch: the columns of fewer cost more than they save (decision 15)


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """One record. Key and value are bytes unless the consumer has deserializers, None where there is none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    timestamp_type: int
    """0: when it was created, 1: when the broker appended it."""
    key: K | None
    value: V | None
    headers: tuple[tuple[str, bytes | None], ...]


def deserialized(
    records: list[ConsumerRecord],
    *,
    key: Callable[[bytes], Any] | None,
    value: Callable[[bytes], Any] | None,
) -> tuple[list[ConsumerRecord[Any, Any]], Undecodable | None]:
    """Return the records with keys and values deserialized, up to the first that cannot be.

    Where there are no bytes, nothing is deserialized: None stays None.
    """
    if key is None and value is None:
        return records, None
    done: list[ConsumerRecord[Any, Any]] = []
    for record in records:
        what = "key"
        try:
            new_key = record.key if key is None or record.key is None else key(record.key)
            what = "value"
            new_value = record.value if value is None or record.value is None else value(record.value)
        except Exception as error:  # noqa: BLE001  # the application's code: it may raise anything
            return done, Undecodable(record, what, error)
        done.append(record._replace(key=new_key, value=new_value))
    return done, None


class Payload(NamedTuple):
    """The bytes of a batch's records, which lie between these places."""

    data: bytes
    start: int
    end: int


def payload_of(buf: bytes, at: int, header: BatchHeader, *, check: bool) -> Payload:
    """Return a batch's records, decompressed; Corrupt if the checksum is not theirs."""
    if check and not check_crc(buf, at, header):
        raise Corrupt("record batch", at=at, expected=f"checksum {header.crc:#010x}")
    start, end = at + HEADER_SIZE, at + header.size
    if not header.codec:
        return Payload(buf, start, end)
    data = decompress(codec_of(header.codec), buf[start:end])
    return Payload(data, 0, len(data))


class Rows(Protocol):
    """The records of one batch, made as they are taken: a few hundred that live at a time do not trouble the
    garbage collector, which would take half of a consumer's time otherwise.
    """

    left: int
    """How many there still are."""
    slow_records: int
    """How many a compiled reader would have read much faster."""

    def take(self, most: int) -> list[ConsumerRecord]:
        """Return the next records, so many at most, or raise Corrupt and stay before them."""
        ...


Decode = Callable[[Payload, BatchHeader, str, int], Rows]
"""From a batch's payload, its header, topic and partition to the records."""


def compiled_rows() -> Decode | None:
    """Return the compiled reader, ready to run, None where the extra `spark` is not installed.

    Loading it takes half a second of a processor: longer than it saves those who read little. Records of one
    size, and batches of few records, are read by the plain reader, which is faster there.
    """
    try:
        from coterie.arrow.rows import ColumnRows
    except ImportError:
        return None
    smallest = build_batch([Record(0, 0, None, b"")])
    ColumnRows.of(smallest, HEADER_SIZE, len(smallest), read_header(smallest), ConsumerRecord, ("", 0))

    def decode(payload: Payload, header: BatchHeader, topic: str, partition: int) -> Rows:
        found = None
        if header.count >= COMPILED_FROM and not begins_uniform(*payload, header.count):
            found = ColumnRows.of(*payload, header, ConsumerRecord, (topic, partition))
        return found or PlainRows(payload, header, topic, partition)

    return decode


class PlainRows:
    """The records of a batch, read in Python. Corrupt if they are rubbish."""

    def __init__(self, payload: Payload, header: BatchHeader, topic: str, partition: int) -> None:
        self.left = max(0, header.count)
        self.slow_records = 0
        self._data, self._at, self._end = payload
        self._header, self._place = header, (topic, partition)
        self._made = RowKind(ConsumerRecord, self._place)
        if not self.left:
            self._check_end(self._at, header.base_offset)

    def take(self, most: int) -> list[ConsumerRecord]:
        """Return the next records, so many at most, or raise Corrupt and stay before them."""
        count, at = min(most, self.left), self._at
        rows: list[ConsumerRecord] = []
        try:
            while len(rows) < count:
                more, at = self._next(at, count - len(rows))
                rows += more
        except IndexError as failure:
            raise Corrupt("record", expected="a whole one") from failure
        if rows and count == self.left:
            self._check_end(at, rows[-1].offset)
        self._at = at
        self.left -= count
        return rows

    def _next(self, at: int, most: int) -> tuple[list[ConsumerRecord], int]:
        """Return some records from `at` on, and where they end."""
        header = self._header
        bases = header.base_offset, header.base_timestamp
        run = run_at(self._data, at, self._end, most, *bases) if most >= LEAST else None
        if run is not None:
            return self._columns(run), run.end
        rows: list[ConsumerRecord] = []
        end = read_rows(self._data, at, min(most, STRETCH), header, rows, self._made)
        if end > self._end:
            raise Corrupt("record", at=end, expected=f"its end before {self._end}")
        if header.count >= COMPILED_FROM:
            self.slow_records += len(rows)
        return rows, end

    def _columns(self, run: Run) -> list[ConsumerRecord]:
        """Return the records of a run."""
        topic, partition = self._place
        stamped = self._header.append_time
        columns = zip(
            repeat(topic),
            repeat(partition),
            run.offsets,
            repeat(self._header.max_timestamp) if stamped else run.timestamps,
            repeat(APPENDED if stamped else CREATED),
            run.keys,
            run.values,
            repeat(()),
            strict=False,  # what is the same for all has no end
        )
        return [*map(tuple.__new__, repeat(ConsumerRecord), columns)]

    def _check_end(self, at: int, last_offset: int) -> None:
        if at != self._end or last_offset > self._header.last_offset:
            raise Corrupt("record batch", at=at, expected=f"{self._header.count} records and no more")
