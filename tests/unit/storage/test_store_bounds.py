"""The broker's own topics under a day's worth of commits: their files stay bounded."""

import pytest
from store_rig import NOW, Rig, a_marker, keyed

from coterie.storage.log.partition import (
    PartitionLog,
)

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
SEGMENT = 20_000
SETTINGS = {
    "cleanup_policy": "compact",
    "segment_bytes": SEGMENT,
    "delete_retention_ms": 60 * MINUTE,
    "file_delete_delay_ms": MINUTE,
}


pytestmark = pytest.mark.parametrize("rig", ["memory"], indirect=True)


def serve(rig: Rig, now_ms: int) -> None:
    """Do what the broker's housekeeping does, each minute here."""
    rig.log.tick(now_ms)
    rig.store.tick(now_ms)
    rig.log.flush()
    if rig.log.compacting.need(now_ms):
        assert rig.log.compacting.run(now_ms)


def bytes_on_disk(rig: Rig) -> int:
    return sum(info.size for info in rig.store.disk.files(rig.directory).values())


def largest_over_a_day(
    rig: Rig, log: PartitionLog, keys: int, *, transactional: bool = False
) -> tuple[int, int]:
    """Commit for every key once a minute; return the largest size of all files, and their greatest number."""
    largest = most = 0
    for minute in range(DAY // MINUTE):
        now_ms = NOW + minute * MINUTE
        pairs = [(f"group topic {key}", f"{minute:060d}") for key in range(keys)]
        if transactional:
            producer = {"producer_id": minute % 3, "producer_epoch": 0, "transactional": True}
            log.append(keyed(*pairs, at=now_ms, **producer), now_ms=now_ms, origin="coordinator")
            marker = a_marker(commit=minute % 4 > 0, pid=minute % 3, at=now_ms)
            log.append(marker, now_ms=now_ms, origin="coordinator")
        else:
            log.append(keyed(*pairs, at=now_ms), now_ms=now_ms, origin="coordinator")
        serve(rig, now_ms)
        largest = max(largest, bytes_on_disk(rig))
        most = max(most, len(rig.names()))
    return largest, most


@pytest.mark.parametrize("transactional", [False, True])
def test_offsets_that_are_committed_all_day_keep_their_files_bounded(rig: Rig, transactional: bool):
    log = rig.log_of(**SETTINGS)

    largest, most = largest_over_a_day(rig, log, 10, transactional=transactional)

    # The segment that grows, one that waits for its turn, what is being replaced, and the last of each key;
    # markers stay for an hour, which is 60 of 80 bytes here.
    assert log.end_offset > 14_000
    assert largest < 4 * SEGMENT
    assert most < 32


def test_the_records_of_transactional_ids_stay_bounded_with_tombstones_between(rig: Rig):
    """As `__transaction_state`: an id moves through its states, expires, and makes room for the next."""
    log = rig.log_of(**SETTINGS)
    largest = 0
    for step in range(4000):
        now_ms = NOW + step * MINUTE // 2
        state = None if step % 10 == 9 else f"{step % 10}" * 200
        log.append(keyed((f"id {step // 10}", state), at=now_ms), now_ms=now_ms, origin="coordinator")
        serve(rig, now_ms)
        largest = max(largest, bytes_on_disk(rig))

    assert largest < 4 * SEGMENT
