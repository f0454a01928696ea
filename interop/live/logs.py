"""What the two brokers have written of a group or of a transactional id: the same records, in the same order.

Both let a client fetch `__consumer_offsets` and `__transaction_state`. Times differ, and ids that a broker
makes up get their shared names; the rest of every record must be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from coterie.base.hashes import coordinator_partition
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    UnknownKey,
    read_group_value,
    read_key,
    read_offset_value,
)
from coterie.wire.payloads.transaction_state import (
    TransactionLogKey,
    read_transaction_key,
    read_transaction_value,
)
from coterie.wire.records.batches import read_header, read_marker, records_of, scan
from interop.live.line import Line, NoAnswer
from interop.live.names import Names

__all__ = ["written_of_group", "written_of_transaction"]

FETCH, FETCH_VERSION = 1, 11
PARTITIONS = 50
PIECE_BYTES = 1 << 20
TIMES = (
    "commit_timestamp",
    "expire_timestamp",
    "current_state_timestamp",
    "last_update_timestamp",
    "start_timestamp",
)


async def written_of_group(line: Line, group_id: str, names: Names, side: int) -> list[Any]:
    """Return the records of a group, and the markers behind its transactional commits."""
    partition = coordinator_partition(group_id, partition_count=PARTITIONS)
    data = await read_log(line, "__consumer_offsets", partition)
    return tombstones_sorted(group_records(data, group_id, names, side))


async def written_of_transaction(line: Line, transactional_id: str, names: Names, side: int) -> list[Any]:
    """Return the records of a transactional id."""
    partition = coordinator_partition(transactional_id, partition_count=PARTITIONS)
    data = await read_log(line, "__transaction_state", partition)
    found = []
    for at, _ in scan(data):
        for record in records_of(data, at):
            if read_transaction_key(record.key or b"") == TransactionLogKey(transactional_id):
                value = None if record.value is None else read_transaction_value(record.value)
                found.append({"version": (record.value or b"")[:2], "value": named(value, names, side)})
    return found


async def read_log(line: Line, topic: str, partition: int) -> bytes:
    """Return every batch of a partition."""
    pieces: list[bytes] = []
    offset = 0
    while True:
        partition_type = entity("fetch", FETCH_VERSION, "FetchPartition")
        wanted = build(
            partition_type, partition=partition, fetch_offset=offset, partition_max_bytes=PIECE_BYTES
        )
        topic_type = entity("fetch", FETCH_VERSION, "FetchTopic")
        request = build(
            entity("fetch", FETCH_VERSION, "FetchRequest"),
            max_bytes=PIECE_BYTES,
            topics=(build(topic_type, topic=topic, partitions=(wanted,)),),
        )
        answer = await line.ask(FETCH, FETCH_VERSION, request)
        assert not isinstance(answer, NoAnswer), answer
        piece = answer.responses[0].partitions[0].records
        headers = scan(piece or b"")
        if not headers:
            return b"".join(pieces)
        pieces.append(piece[: headers[-1][0] + headers[-1][1].size])
        offset = headers[-1][1].last_offset + 1


def group_records(data: bytes, group_id: str, names: Names, side: int) -> Iterator[Any]:
    """Yield what a log says of a group; a marker only where its producer has committed for it."""
    writers: set[int] = set()
    for at, _ in scan(data):
        header = read_header(data, at)
        if header.control:
            if header.producer_id in writers:
                yield {"producer_id": header.producer_id, "commit": read_marker(data, at).commit}
                writers.discard(header.producer_id)
            continue
        for record in records_of(data, at):
            key = read_key(record.key or b"")
            if isinstance(key, UnknownKey) or key.group != group_id:
                continue
            if header.transactional:
                writers.add(header.producer_id)
            yield {
                "transactional": header.transactional,
                "epoch": header.producer_epoch,
                "key": list(key),
                "version": (record.value or b"")[:2],
                "value": named(value_of(key, record.value), names, side),
            }


def tombstones_sorted(records: Iterable[Any]) -> list[Any]:
    """Return the records, neighbouring tombstones in an order of their own: Kafka has them from hash maps."""
    found: list[Any] = []
    for deletes, run in groupby(records, key=lambda record: record.get("value", "a marker") is None):
        together = list(run)
        found += sorted(together, key=repr) if deletes else together
    return found


def value_of(key: OffsetCommitKey | GroupMetadataKey, value: bytes | None) -> Any:
    """Return what a record's value says, None for a tombstone."""
    if value is None:
        return None
    return read_offset_value(value) if isinstance(key, OffsetCommitKey) else read_group_value(value)


def named(value: Any, names: Names, side: int) -> Any:
    """Return a value by the names of its fields, times as whether there is one, members in any order."""
    if hasattr(value, "_asdict"):
        fields = {
            name: (inner != -1) if name in TIMES else named(inner, names, side)
            for name, inner in value._asdict().items()
        }
        return names.shared(fields, side)
    if isinstance(value, tuple | list):
        return sorted((named(item, names, side) for item in value), key=repr)
    return value
