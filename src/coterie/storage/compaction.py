"""The compaction of a log in files: which segments, and the swap of files. What stays of a batch is
`storage.cleaning`'s to say.

`run_compaction` reads closed segments and writes `.cleaned` files, so it may run in another thread or
process; the log itself plans before and swaps after.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from coterie.base.errors import Corrupt
from coterie.storage.cleaning import CleaningTerms, Need, Newest, Survey, Sweep, need_of
from coterie.storage.config import LogConfig
from coterie.storage.disk import Disk
from coterie.storage.log.aborted import AbortedIndex, AbortedSpan
from coterie.storage.log.contract import StorageFailed
from coterie.storage.log.recovery import Sound, sound_batches
from coterie.storage.log.segment import (
    ABORTED,
    CLEANED,
    FILES,
    LOG,
    OFFSETS_OF_A_SEGMENT,
    SWAP,
    Segment,
    name_of,
)

# -- what is to be done


class LogToClean(NamedTuple):
    """The segments that may be compacted: those compacted before, and the dirty ones after them."""

    segments: Sequence[Segment]
    first_dirty: int
    upto: int
    clean_bytes: int
    dirty_bytes: int
    oldest_dirty_ms: int


class CompactionPlan(NamedTuple):
    """A compaction as plain values, which another process can be given."""

    directory: str
    groups: tuple[tuple[int, ...], ...]
    first_dirty: int
    upto: int
    now_ms: int
    wall_ms: int
    delete_retention_ms: int
    interval: int
    producers: frozenset[int]
    """Those that the log remembers."""
    aborted: Sequence[AbortedSpan]
    """The aborted transactions of the range."""


class SegmentGroup(NamedTuple):
    """Segments that became one, of `size` bytes."""

    bases: tuple[int, ...]
    size: int
    aborted: tuple[AbortedSpan, ...]


class CompactionResult(NamedTuple):
    """What was written for a plan; or, where the log is damaged, which file and where, and nothing else; or
    why it has `failed` this time: the disk refused, or a segment of the plan went while it was carried out.
    """

    plan: CompactionPlan
    groups: tuple[SegmentGroup, ...]
    damage: str = ""
    failed: str = ""


def log_to_clean(
    segments: Sequence[Segment], config: LogConfig, *, first_dirty: int, settled: int, now_ms: int
) -> LogToClean:
    """Return the segments that may be compacted now: not the one that grows, nothing too young, and nothing
    that is not `settled`: undecided, or not flushed, or its marker is not. What replaces a record must not be
    lost after it.
    """
    count = 0
    young = now_ms - config.min_compaction_lag_ms
    for segment, following in itertools.pairwise(segments):
        dirty = following.base_offset > first_dirty
        if following.base_offset > settled:
            break
        if dirty and config.min_compaction_lag_ms > 0 and segment.newest_ms > young:
            break
        count += 1
    chosen = segments[:count]
    upto = segments[count].base_offset
    dirty_ones = [
        one
        for one, following in zip(chosen, segments[1:], strict=False)
        if following.base_offset > first_dirty
    ]
    dirty_bytes = sum(one.size for one in dirty_ones)
    oldest = min((one.first_ms for one in dirty_ones if one.first_ms > 0), default=now_ms)
    clean_bytes = sum(one.size for one in chosen) - dirty_bytes
    return LogToClean(chosen, first_dirty, upto, clean_bytes, dirty_bytes, oldest)


def need(found: LogToClean, config: LogConfig, now_ms: int) -> Need | None:
    """Return the need of a log of which enough is dirty, by its share of the whole or by its age."""
    return need_of(
        config,
        clean_bytes=found.clean_bytes,
        dirty_bytes=found.dirty_bytes,
        oldest_dirty_ms=found.oldest_dirty_ms,
        now_ms=now_ms,
    )


def plan(
    found: LogToClean,
    config: LogConfig,
    directory: str,
    *,
    producers: Iterable[int],
    aborted: Sequence[AbortedSpan],
    now_ms: int,
    wall_ms: int,
) -> CompactionPlan | None:
    """Return the CompactionPlan of a range; None if there is nothing dirty in it."""
    if not found.dirty_bytes:
        return None
    return CompactionPlan(
        directory=directory,
        groups=tuple(_grouped(found.segments, config, upto=found.upto)),
        first_dirty=found.first_dirty,
        upto=found.upto,
        now_ms=now_ms,
        wall_ms=wall_ms,
        delete_retention_ms=config.delete_retention_ms,
        interval=config.index_interval_bytes,
        producers=frozenset(producers),
        aborted=aborted,
    )


def _grouped(segments: Sequence[Segment], config: LogConfig, *, upto: int) -> Iterator[tuple[int, ...]]:
    """Yield the bases of neighbours that fit into one segment together."""
    group: list[int] = []
    size = 0
    ends = [*(one.base_offset for one in segments[1:]), upto]
    for segment, end in zip(segments, ends, strict=True):
        fits = size + segment.size <= config.segment_bytes
        if group and not (fits and end - 1 - group[0] <= OFFSETS_OF_A_SEGMENT):
            yield tuple(group)
            group, size = [], 0
        group.append(segment.base_offset)
        size += segment.size
    if group:
        yield tuple(group)


# -- the work


def run_compaction(plan: CompactionPlan, disk: Disk) -> CompactionResult:
    """Write a `.cleaned` segment for each group of the plan. Changes nothing that exists.

    What fails takes its files away again, whatever it fails of: a full disk needs their room.
    """
    groups = []
    whole = False
    try:
        sweep = Sweep(_terms_of(plan), _newest_of(plan, disk))
        for bases in plan.groups:
            groups.append(_clean_group(plan, bases, sweep, disk))
        whole = True
    except StorageFailed as error:
        return CompactionResult(plan, (), str(error))
    except OSError as error:  # a full disk, or a file that went: by retention, DeleteRecords, with the topic
        return CompactionResult(plan, (), failed=str(error))
    finally:
        if not whole:
            with suppress(OSError):
                discard(plan, disk)
    return CompactionResult(plan, tuple(groups))


def _newest_of(plan: CompactionPlan, disk: Disk) -> Newest:
    survey = Survey(plan.first_dirty, plan.producers, plan.aborted)
    for bases in plan.groups:
        for base in bases:
            for found in _batches(plan, base, disk):
                try:
                    survey.take(*found[1:])
                except Corrupt as error:
                    raise _undecodable(plan, base, found, error) from error
    return survey.newest


def _batches(plan: CompactionPlan, base: int, disk: Disk) -> Iterator[Sound]:
    """Yield the batches of a closed segment. StorageFailed says which file is damaged, and where."""
    path = f"{plan.directory}/{name_of(base)}{LOG}"
    file = disk.open(path)
    try:
        size, reached = file.size(), 0
        for found in sound_batches(file, size, base_offset=base):
            yield found
            reached = found.position + found.header.size
    finally:
        file.close()
    if reached != size:
        raise StorageFailed(f"{path} is damaged at byte {reached}")


def _undecodable(plan: CompactionPlan, base: int, found: Sound, error: Corrupt) -> StorageFailed:
    path = f"{plan.directory}/{name_of(base)}{LOG}"
    return StorageFailed(f"{path} cannot be decoded from byte {found.position} on: {error}")


def _terms_of(plan: CompactionPlan) -> CleaningTerms:
    return CleaningTerms(
        first_dirty=plan.first_dirty,
        upto=plan.upto,
        now_ms=plan.now_ms,
        wall_ms=plan.wall_ms,
        delete_retention_ms=plan.delete_retention_ms,
        producers=plan.producers,
        aborted=plan.aborted,
    )


def _clean_group(plan: CompactionPlan, bases: tuple[int, ...], sweep: Sweep, disk: Disk) -> SegmentGroup:
    """Write what stays of some segments into one, flushed to the disk, with its indexes."""
    writing = Segment.create(
        disk, plan.directory, bases[0], now_ms=plan.now_ms, interval=plan.interval, suffix=CLEANED
    )
    try:
        for base in bases:
            for found in _batches(plan, base, disk):
                try:
                    kept = sweep.stays(*found[1:])
                except Corrupt as error:
                    raise _undecodable(plan, base, found, error) from error
                if kept is not None:
                    head, batch = kept
                    span = (head, head.base_offset, head.max_timestamp)
                    writing.append([batch], len(batch), [span], sync=False)
        writing.settle()
        aborted = sweep.take_aborted()
        writing.aborted = AbortedIndex(aborted)
        writing.settle_aborted()
        writing.sync_aborted()
        writing.sync_indexes()
        writing.file.sync()
    finally:
        writing.release()
    return SegmentGroup(bases, writing.size, aborted)


# -- the swap


def cleaned_to_swap(stem: str, disk: Disk) -> None:
    """From here on the compacted segment counts: opening after a crash puts it in place.

    Where the disk refuses nothing has changed: the log's file, which decides, is renamed last.
    """
    _rename(stem, CLEANED, SWAP, disk)


def swap_to_final(stem: str, disk: Disk) -> None:
    """Give a compacted segment its name, once those that it replaces have gone.

    What has it already, because the disk refused the rest before, keeps it.
    """
    for ending in FILES:
        with suppress(FileNotFoundError):
            disk.rename(stem + ending + SWAP, stem + ending)


def _rename(stem: str, old: str, new: str, disk: Disk) -> None:
    for ending in FILES:
        try:
            disk.rename(stem + ending + old, stem + ending + new)
        except FileNotFoundError:
            if ending != ABORTED:  # which most segments do not have
                raise


def discard(plan: CompactionPlan, disk: Disk) -> None:
    """Remove what was written for a plan that comes to nothing."""
    for bases in plan.groups:
        for ending in FILES:
            disk.remove(f"{plan.directory}/{name_of(bases[0])}{ending}{CLEANED}")
