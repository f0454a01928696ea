"""Apache Kafka's own metadata log and its snapshots, as they lie in a data directory. Read, never written."""

import re
from collections.abc import Generator, Iterator, Mapping
from itertools import zip_longest

from coterie.base.errors import Corrupt
from coterie.storage.disk import Disk
from coterie.storage.log.recovery import sound_batches
from coterie.wire.records.batches import records_of

CLUSTER_LOG = "__cluster_metadata-0"
SEGMENT = re.compile(r"(\d{20})\.log", re.ASCII)
SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)


def cluster_files(disk: Disk, path: str) -> dict[str, int]:
    """Return the segments and snapshots of a data directory with their sizes; nothing if it has none.

    While these are the same, Kafka has not been here.
    """
    found = disk.files(f"{path}/{CLUSTER_LOG}") if CLUSTER_LOG in disk.directories(path) else {}
    return {
        name: info.size
        for name, info in sorted(found.items())
        if SEGMENT.fullmatch(name) or SNAPSHOT.fullmatch(name)
    }


def cluster_values(disk: Disk, path: str, files: Mapping[str, int]) -> Iterator[bytes]:
    """Yield the values of the newest snapshot's records, then those of the log from there on.

    Raises Corrupt if anything is missing or damaged, the last batch included: whoever goes by less than all
    of it may delete what a later record says to keep. Raises OSError.
    """
    snapshots = sorted(name for name in files if SNAPSHOT.fullmatch(name))
    reached = 0
    if snapshots:
        yield from _values(disk, f"{path}/{CLUSTER_LOG}/{snapshots[-1]}", 0)
        reached = int(snapshots[-1][:20])
    segments = sorted(name for name in files if SEGMENT.fullmatch(name))
    for name, following in zip_longest(segments, segments[1:]):
        if following is not None and int(following[:20]) <= reached:
            continue
        base = int(name[:20])
        if base > reached:
            raise Corrupt(f"{CLUSTER_LOG} goes on at {base}", expected=f"what comes from {reached} on")
        reached = yield from _values(disk, f"{path}/{CLUSTER_LOG}/{name}", base, since=reached)


def _values(disk: Disk, path: str, base: int, *, since: int = 0) -> Generator[bytes, None, int]:
    """Yield the values of a file's records from an offset on; return the offset behind its last."""
    file = disk.open(path)
    try:
        size, position, end = file.size(), 0, base
        for found in sound_batches(file, size, base_offset=base, gapless=True):
            position, end = found.position + found.header.size, found.header.last_offset + 1
            if found.header.control:  # of the quorum, not of the cluster
                continue
            for record in records_of(found.data, found.at):
                if record.value is None:
                    raise Corrupt(f"{path}: record {record.offset} without a value")
                if record.offset >= since:
                    yield record.value
        if position != size:
            raise Corrupt(f"{path}: no whole batch", at=position)
    finally:
        file.close()
    return max(end, since)
