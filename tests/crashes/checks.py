"""What must hold whenever a broker is there: held against what it owes."""

from __future__ import annotations

from collections.abc import Iterator

from coterie.base.ids import TopicPartition
from coterie.broker.node import Node
from coterie.storage.log.partition import PartitionLog
from coterie.storage.log.producers import marker_of
from coterie.wire.records.batches import Record, read_header, records_of, scan
from crashes.model import Batch, Partition, TopicOwed, Transactions

__all__ = ["Lost", "batches_of", "check_partition", "demand", "read_new", "settle"]

READ_BYTES = 400


class Lost(AssertionError):
    """A promise that was not kept; `str()` says which, and where."""


def demand(held: bool, what: str) -> None:
    """Raise `Lost` unless a promise was kept."""
    if not held:
        raise Lost(what)


def settle(
    name: TopicPartition, topic: TopicOwed, log: PartitionLog, *, power_lost: bool, busy: bool
) -> None:
    """See what a crash has left of a partition, and owe that from now on; raise `Lost` if it is too little.

    `busy`: what was under way may have moved the start of the log on its own account. It moves back with a
    loss of power alone, whatever the disk had refused.
    """
    owed = topic.partitions[name.partition]
    least = owed.certain if power_lost else owed.end
    demand(log.end_offset >= least, f"{name} ends at {log.end_offset}, and up to {least} nothing may be lost")
    left = log.end_offset  # where the log ended before the start has written to it
    if power_lost:
        owed.batches, left = _before_new_markers(owed, log)
        owed.reached = min(owed.reached, owed.certain, left)  # a gap below was agreed upon by a start before
        if owed.end < log.start_offset:  # nothing was left that may be read: the log begins anew
            owed.reached = log.start_offset
    read_new(owed, log)
    owed.maybe.clear()
    lowest = owed.start
    if power_lost:
        lowest = min(owed.deleted, left)
    highest = max(owed.start, owed.maybe_deleted)
    if busy or topic.retained or (power_lost and owed.certain <= highest):  # nothing there need be
        highest = log.end_offset
    demand(
        lowest <= log.start_offset <= highest,
        f"{name} starts at {log.start_offset}, not within {lowest} and {highest}",
    )
    owed.batches = [batch for batch in owed.batches if batch.end <= log.end_offset]
    if not (power_lost and topic.compacted):  # there gaps are no damage
        wanted = max(owed.end, log.start_offset)
        demand(log.end_offset == wanted, f"{name} ends at {log.end_offset}, where no batch does")
    owed.start, owed.reached = log.start_offset, log.end_offset
    owed.deleted = min(owed.deleted, owed.start)
    if power_lost:
        owed.batches = _agreeing(owed, topic, log)
        owed.certain = log.end_offset
        for batch in reversed(owed.batches):  # what the start itself has written since is not
            if topic.flushed or not batch.by_coordinator:
                break
            owed.certain = batch.base


def _before_new_markers(owed: Partition, log: PartitionLog) -> tuple[list[Batch], int]:
    """Return what was acknowledged up to where the start itself has written in the place of what is lost,
    and where that is; the end of the log if it has written nothing.
    """
    written = {batch.base: batch for batch in owed.batches}
    for base, data in batches_of(log):
        header = read_header(data)
        if not (header.control and header.count):  # a marker that a compaction has emptied is an old one
            continue
        if base not in written or _batch_of(data) != written[base]:
            return [batch for batch in owed.batches if batch.end <= base], base
    return owed.batches, log.end_offset


def read_new(owed: Partition, log: PartitionLog) -> None:
    """Owe what lies behind what is known: one batch that was sent and refused, and the coordinator's markers.

    Raise `Lost` for anything else.
    """
    sent = list(owed.maybe)
    while owed.end < log.end_offset:
        if owed.end < log.start_offset or not (data := log.read(owed.end, max_bytes=1)):
            return  # what led up to the end is lost: the log begins there, or is compacted and has a gap
        found = _batch_of(data)
        refused = [one for one in sent if one.at(found.base) == found]
        demand(found.base == owed.end and (refused or found.by_coordinator), f"{found} was written by nobody")
        owed.batches.append(found)
        if refused:
            sent.clear()


def _batch_of(data: bytes) -> Batch:
    header = read_header(data)
    who = (header.producer_id, header.producer_epoch, header.base_sequence)
    if not header.control:
        return Batch(header.base_offset, tuple(records_of(data)), *who)
    marker = marker_of(data)
    assert marker is not None
    return Batch(header.base_offset, (), *who, ends="commit" if marker.commit else "abort")


def _agreeing(owed: Partition, topic: TopicOwed, log: PartitionLog) -> list[Batch]:
    """Return what was acknowledged without what a loss of power may have taken, as the log seems to know it.

    From a compacted log anything may be missing that was not certain, and nobody need know any more what
    was in the part that is deleted; or it still knows, by what is left there or by a snapshot behind it.
    """
    there = _bases(log)
    left = [batch for batch in owed.batches if batch.end > log.start_offset]
    readings = [owed.batches, left]
    if topic.compacted:
        readings = [
            [one for one in some if one.base < owed.certain or one.base in there] for some in readings
        ]
        readings += [
            [one for one in owed.batches if one.base < max(owed.certain, known) or one.base in there]
            for known in (batch.end for batch in owed.batches if batch.end <= log.start_offset)
        ]
    return next((some for some in readings if _agrees(log, Transactions.of(some))), readings[0])


def check_partition(name: TopicPartition, topic: TopicOwed, log: PartitionLog) -> None:
    """Raise `Lost` unless readers of a partition, of every kind, see what they shall see."""
    owed = topic.partitions[name.partition]
    known = owed.known
    demand(log.end_offset == owed.end, f"{name} ends at {log.end_offset}, not at {owed.end}")
    demand(log.start_offset >= owed.start, f"{name} starts at {log.start_offset}, before {owed.start}")
    owed.start = log.start_offset
    written = {record.offset: record for batch in owed.batches for record in batch.records}
    seen = everything(log)
    for record in seen:
        demand(written.get(record.offset) == record, f"{name} has {record}, which was not written")
    wanted = [record for record in written.values() if record.offset >= log.start_offset]
    stable = max(min(known.opened.values(), default=log.end_offset), log.start_offset)
    demand(
        log.last_stable_offset == stable, f"{name} is stable up to {log.last_stable_offset}, not to {stable}"
    )
    committed = [one for one in known.committed(owed.batches) if one.offset >= log.start_offset]
    if topic.compacted:
        check_compacted(name, committed, seen_committed(log))
    else:
        demand(seen == wanted, f"{name} has lost {_first_missing(wanted, seen)}")
        told = seen_committed(log)
        demand(
            told == committed, f"{name}: readers of committed records get other ones: {_odd(told, committed)}"
        )
        check_aborted(name, known, log)
    check_producers(name, owed, known, log)


def check_aborted(name: TopicPartition, known: Transactions, log: PartitionLog) -> None:
    """The list has what was aborted; one that began in what is deleted may be missing if nothing is left.

    Where a start has read it anew, it begins at the first record that is left.
    """
    spans = [(one[0], max(one[1], log.start_offset)) for one in known.aborted if one[2] >= log.start_offset]
    begun = {one[:2] for one in known.aborted}
    listed = [tuple(one) for one in log.aborted_transactions(log.start_offset, log.end_offset)]
    needed = {one for one in spans if one in begun}
    odd = {one for one in listed if one not in spans and one[1] >= log.start_offset}
    demand(needed <= set(listed) and not odd, f"{name} lists the aborted transactions {listed}, not {spans}")


def check_compacted(name: TopicPartition, committed: list[Record], seen: list[Record]) -> None:
    """Of each key the newest committed record is there, and nothing that it has replaced outlives it."""
    demand(
        set(seen) <= set(committed), f"{name}: readers of committed records get {set(seen) - set(committed)}"
    )
    newest = {record.key: record for record in committed}
    there = set(seen)
    for record in newest.values():
        if record.value is not None:
            demand(record in there, f"{name} has lost {record}, the newest of its key")
        elif record not in there:
            older = [one for one in seen if one.key == record.key]
            demand(not older, f"{name}: {older} came back, which {record} had deleted")


def check_producers(name: TopicPartition, owed: Partition, known: Transactions, log: PartitionLog) -> None:
    """A producer goes on where it was; what is deleted may be forgotten, but nothing made up."""
    told = {one.producer_id: (one.epoch, one.last_sequence) for one in log.active_producers()}
    for producer, state in told.items():
        demand(
            known.producers.get(producer) == state,
            f"{name} takes producer {producer} to be at {state}, not at {known.producers.get(producer)}",
        )
    there = {one.producer for one in owed.batches if one.producer >= 0 and one.base >= log.start_offset}
    demand(there <= told.keys(), f"{name} has forgotten the producers {there - told.keys()}")
    for producer in known.producers:
        demand(
            log.open_transaction(producer) == known.opened.get(producer, -1) or producer not in there,
            f"{name}: the transaction of {producer} is open from {log.open_transaction(producer)} on, "
            f"not from {known.opened.get(producer, -1)}",
        )


def check_topics(node: Node, owed: dict[str, TopicOwed]) -> None:
    """The topics that are there are those that are owed, with their ids, settings and logs."""
    told = {
        one.name: (one.topic_id, one.partitions, dict(one.configs))
        for one in node.topics.all()
        if not one.internal
    }
    wanted = {name: (one.topic_id, len(one.partitions), one.configs) for name, one in owed.items()}
    odd = {
        name: (told.get(name), wanted.get(name))
        for name in {*told, *wanted}
        if told.get(name) != wanted.get(name)
    }
    demand(not odd, f"there are other topics than owed (told, owed): {odd}")
    names = {
        TopicPartition(name, place) for name, one in owed.items() for place in range(len(one.partitions))
    }
    logs = {name for name in node.store.logs if not name.topic.startswith("__")}
    demand(logs == names, f"the logs are {logs}, not {names}")


# -- readers


def everything(log: PartitionLog) -> list[Record]:
    """Return all records of a log but the markers', as a read_uncommitted consumer gets them."""
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=READ_BYTES)
        if not data:
            break
        batches = scan(data)
        for at, header in batches:
            if header.count and not header.control:
                found += [one for one in records_of(data, at) if one.offset >= offset]
        offset = batches[-1][1].last_offset + 1
    return found


def seen_committed(log: PartitionLog) -> list[Record]:
    """Return what a read_committed consumer makes of a log: it passes over what was aborted."""
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.last_stable_offset:
        data, aborted = log.read_committed(offset, max_bytes=READ_BYTES)
        if not data:
            break
        ahead = sorted(aborted, key=lambda one: one.first_offset)
        void: set[int] = set()
        batches = scan(data)
        for at, header in batches:
            while ahead and ahead[0].first_offset <= header.last_offset:
                void.add(ahead.pop(0).producer_id)
            if header.control:
                void.discard(header.producer_id)
            elif header.count and not (header.transactional and header.producer_id in void):
                found += [one for one in records_of(data, at) if one.offset >= offset]
        offset = batches[-1][1].last_offset + 1
    return found


def _agrees(log: PartitionLog, known: Transactions) -> bool:
    told = {one.producer_id: (one.epoch, one.last_sequence) for one in log.active_producers()}
    opened = {one: since for one in known.producers if (since := log.open_transaction(one)) >= 0}
    return told == known.producers and opened == known.opened


def batches_of(log: PartitionLog) -> Iterator[tuple[int, bytes]]:
    """Yield where each batch of a log begins, and the batch."""
    offset = log.start_offset
    while offset < log.end_offset and (data := log.read(offset, max_bytes=READ_BYTES)):
        for at, header in scan(data):
            yield header.base_offset, data[at : at + header.size]
            offset = header.last_offset + 1


def _bases(log: PartitionLog) -> set[int]:
    """Return where the batches of a log begin."""
    return {base for base, _ in batches_of(log)}


def _first_missing(wanted: list[Record], seen: list[Record]) -> object:
    there = set(seen)
    return next((one for one in wanted if one not in there), "nothing, but gives it in another order")


def _odd(told: list[Record], wanted: list[Record]) -> object:
    return {
        "too many": [one for one in told if one not in wanted][:2],
        "missing": [one for one in wanted if one not in told][:2],
    }
