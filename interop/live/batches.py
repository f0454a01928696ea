"""Record batches of the walks: built in each broker's own words, read back under the shared names."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from coterie.wire.records.batches import Record, build_batch, read_header, read_marker, records_of, scan

__all__ = ["Unbuilt", "contents_of"]

NOW_MS = int(time.time() * 1000)  # old records would be deleted, by each broker when it comes to that


class Unbuilt(NamedTuple):
    """A batch of one producer, whose id each broker has made up for itself."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    values: tuple[bytes, ...]
    transactional: bool = True

    def built(self, producer_id: int) -> bytes:
        """Return the bytes under a broker's own producer id."""
        records = [Record(at, NOW_MS + at, b"key", value) for at, value in enumerate(self.values)]
        return build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            transactional=self.transactional,
        )


def contents_of(data: bytes) -> list[dict[str, Any]]:
    """Return what fetched batches say, but for times and checksums; their producers under `producer_id`."""
    return [batch_at(data, at) for at, _ in scan(data)]


def batch_at(data: bytes, at: int) -> dict[str, Any]:
    """Return one batch in plain values; of a marker only what it says, its bytes hold the time."""
    header = read_header(data, at)
    batch: dict[str, Any] = {
        "base_offset": header.base_offset,
        "leader_epoch": header.leader_epoch,
        "last_offset_delta": header.last_offset_delta,
        "attributes": header.attributes,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
    }
    if header.control:
        batch["marker"] = list(read_marker(data, at))
    else:
        batch["values"] = [record.value for record in records_of(data, at)]
    return batch
