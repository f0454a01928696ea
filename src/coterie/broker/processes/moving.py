"""The directories of partitions follow the metadata: each is moved to the broker that leads it, while no
broker runs.

Each step is one that can be done again: what is known of a partition is written down beside its new place
first, and its directory is moved then, in one step. Whoever is stopped meanwhile goes on at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.broker.cluster.image import Image
from coterie.storage.checkpoints import CLEAN_SHUTDOWN, Checkpoints
from coterie.storage.directory import STRAY_SUFFIX, id_in, is_log, name_aside, partition_of
from coterie.storage.disk import Disk

log = logging.getLogger("coterie.broker")


class CannotMove(CoterieError):
    """A partition's directory cannot be moved to its broker; `str()` is a sentence that says why."""


class Move(NamedTuple):
    """A partition whose directory lies with one broker, and belongs to another."""

    partition: TopicPartition
    topic_id: UUID
    source: int
    target: int


def moves(disk: Disk, root: str, image: Image) -> list[Move]:
    """Return the partitions whose directories are to be moved, by source and target."""
    found = []
    lying = dict(_partitions_in(disk, root))
    for broker_id, names in lying.items():
        for name in names:
            topic = image.topic(name.topic)
            row = topic and image.partition(topic.topic_id, name.partition)
            if row is None or row.leader is None or row.leader == broker_id:
                continue  # of no topic, perhaps of one that was deleted: its broker sees to it
            if id_in(disk, f"{root}/{broker_id}/{name}") not in (row.topic_id, None):
                continue
            if name in lying.get(row.leader, ()) and _is_of(disk, root, row.leader, name, row.topic_id):
                sentence = "%s/%d/%s is there twice; the one of broker %d counts"
                log.warning(sentence, root, broker_id, name, row.leader)
                continue
            found.append(Move(name, row.topic_id, broker_id, row.leader))
    return sorted(found, key=lambda one: (one.source, one.target, one.partition))


def _partitions_in(disk: Disk, root: str) -> Iterator[tuple[int, frozenset[TopicPartition]]]:
    """Yield each directory of a broker, by its id, and the partitions in it."""
    for directory in disk.directories(root):
        if directory.isdecimal() and str(int(directory)) == directory:
            where = f"{root}/{directory}"
            names = filter(None, map(partition_of, disk.directories(where)))
            yield int(directory), frozenset(one for one in names if is_log(disk.files(f"{where}/{one}")))


def _is_of(disk: Disk, root: str, broker_id: int, name: TopicPartition, topic_id: UUID) -> bool:
    return id_in(disk, f"{root}/{broker_id}/{name}") in (topic_id, None)


def carry_out(disk: Disk, root: str, moves: Sequence[Move], unique: UUID) -> None:
    """Move directories of partitions; `unique` is for the name of what lies in the way. Raises
    OSError, `CannotMove`.
    """
    pairs = sorted({(one.source, one.target) for one in moves})
    for source, target in pairs:
        mine = [one for one in moves if (one.source, one.target) == (source, target)]
        _move_between(disk, f"{root}/{source}", f"{root}/{target}", mine, unique)


def _move_between(disk: Disk, source: str, target: str, moves: Sequence[Move], unique: UUID) -> None:
    disk.make_directory(target)
    disk.sync_directory(target.rpartition("/")[0])
    if not disk.exists(f"{source}/{CLEAN_SHUTDOWN}"):  # or the other's mark vouches for what was not closed
        disk.remove(f"{target}/{CLEAN_SHUTDOWN}")
        disk.sync_directory(target)
    _carry_checkpoints(disk, source, target, [one.partition for one in moves])
    for one in moves:
        _clear_the_way(disk, target, one, unique)
        disk.rename(f"{source}/{one.partition}", f"{target}/{one.partition}")
    disk.sync_directory(target)
    disk.sync_directory(source)


def _carry_checkpoints(disk: Disk, source: str, target: str, names: Sequence[TopicPartition]) -> None:
    """Have the target's checkpoints say of partitions what the source's say."""
    theirs, mine = Checkpoints(disk, source), Checkpoints(disk, target)
    if not mine.compacted_is_known:  # else what is written now would pass for all there is
        mine.compacted = dict.fromkeys(filter(None, map(partition_of, disk.directories(target))), 0)
    if not theirs.compacted_is_known:
        theirs.compacted = dict.fromkeys(names, 0)
    for offsets, others in (
        (mine.starts, theirs.starts),
        (mine.flushed, theirs.flushed),
        (mine.compacted, theirs.compacted),
    ):
        for name in names:
            offsets.pop(name, None)
            if name in others:
                offsets[name] = others[name]
    mine.save()


def _clear_the_way(disk: Disk, target: str, move: Move, unique: UUID) -> None:
    """Set aside the log of another topic of the name, which nobody serves."""
    where = f"{target}/{move.partition}"
    if not disk.exists(where):
        return
    if not is_log(disk.files(where)):
        raise CannotMove(f"{where} is in the way of partition {move.partition}; move it away")
    aside = f"{target}/{name_aside(move.partition, unique, STRAY_SUFFIX)}"
    disk.rename(where, aside)
    log.warning("%s is of another life of its topic; now %s", where, aside)
