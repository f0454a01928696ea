"""Looking for a record by its time in one batch, which may be long to decode. No input or output."""

from collections.abc import Iterator

from coterie.base.errors import Corrupt
from coterie.storage.log.contract import OffsetAt
from coterie.storage.log.validate import UNPACKED_BYTES_MOST
from coterie.wire.records.batches import BatchHeader, Record, read_header, records_of


def first_from(batch: bytes, timestamp_ms: int, offset: int) -> OffsetAt | None:
    """Return the first record from an offset on that is as young as this, None if there is none."""
    header = read_header(batch)
    for record in _records(batch, header):
        if record.timestamp >= timestamp_ms and record.offset >= offset:
            return OffsetAt(record.offset, record.timestamp, header.leader_epoch)
    return None


def youngest_of(batch: bytes, offset: int) -> OffsetAt | None:
    """Return the record with the highest timestamp from an offset on, the first of several."""
    header, best = read_header(batch), None
    for record in _records(batch, header):
        if record.offset >= offset and (best is None or record.timestamp > best.timestamp):
            best = OffsetAt(record.offset, record.timestamp, header.leader_epoch)
    return best


def _records(batch: bytes, header: BatchHeader) -> Iterator[Record]:
    """Yield the records of a batch; one that cannot be decoded passes for one record."""
    whole = True
    records = records_of(batch, most=UNPACKED_BYTES_MOST)
    while whole:
        try:
            yield next(records)
        except StopIteration:
            return
        except Corrupt:
            whole = False
    yield Record(header.base_offset, header.max_timestamp, None, None)
