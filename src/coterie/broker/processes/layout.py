"""The directory of several brokers: one for each, by its id, and the file of their metadata.

It is made ready while no broker runs: what others keep there is refused with a sentence, and partitions are
moved where the number of brokers has changed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from uuid import uuid4

from coterie.base.errors import CoterieError
from coterie.base.ids import ZERO_UUID, TopicPartition, uuid_text
from coterie.base.plain import counted, first_of
from coterie.broker.cluster.image import Delta, Image
from coterie.broker.cluster.statements import ReadDelta
from coterie.broker.processes import METADATA
from coterie.broker.processes.changes import ArrangeBrokers, arranged_at, broker_ids_of
from coterie.broker.processes.moving import CannotMove, carry_out, moves
from coterie.broker.processes.sqlite import MetadataFailed, MetadataUnusable, SqliteMetadata
from coterie.broker.topics.registry import new_id
from coterie.storage.checkpoints import META
from coterie.storage.directory import IGNORED, things_of_others
from coterie.storage.disk import Disk, OsDisk
from coterie.storage.files import unusable
from coterie.storage.lock import DirectoryLock
from coterie.storage.log.contract import DirectoryInUse

log = logging.getLogger("coterie.broker")

FILES_OF_METADATA = frozenset({METADATA, f"{METADATA}-wal", f"{METADATA}-shm", f"{METADATA}-journal"})
IN_USE_MAX_S = 5.0  # for so long brokers may be ending whose parent was killed
LOOK_AGAIN_S = 0.05


class CannotArrange(CoterieError):
    """A directory is of no use for several brokers, or not for so many; `str()` is a sentence."""


@contextmanager
def arranged(
    root: str, broker_ids: Sequence[int] | None, *, given_up: Sequence[int] = ()
) -> Iterator[SqliteMetadata]:
    """Have a directory be ready for these brokers, or for those that it was ready for last (None), and nobody
    else use it within the block. Yield a connection to their metadata. Raises `CannotArrange`, also where the
    directory of a broker is lost, but for those that are `given_up`.
    """
    with ExitStack() as held:
        try:
            os.makedirs(root, exist_ok=True)
            held.callback(DirectoryLock(root).release)
            metadata = _arrange(root, None if broker_ids is None else tuple(broker_ids), given_up)
        except DirectoryInUse as error:
            raise CannotArrange(str(error)) from error
        except FileExistsError as error:
            raise CannotArrange(f"cannot use {root}: it is a file, not a directory") from error
        except OSError as error:
            raise CannotArrange(unusable(root, error)) from error
        except (MetadataUnusable, MetadataFailed, CannotMove) as error:
            raise CannotArrange(str(error)) from error
        held.callback(metadata.close)
        yield metadata


def _arrange(root: str, broker_ids: tuple[int, ...] | None, given_up: Sequence[int]) -> SqliteMetadata:
    disk, where = OsDisk(), f"{root}/{METADATA}"
    _refuse_things_of_others(disk, root)
    brokers = [one for one in disk.directories(root) if one.isdecimal()]
    if not disk.exists(where):
        _refuse_brokers_without_metadata(disk, root, brokers)
    with ExitStack() as held:
        for broker_id in brokers:
            held.callback(_lock(f"{root}/{broker_id}").release)
        metadata = SqliteMetadata(where, made_for=uuid_text(new_id()))
        try:
            problem = metadata.problem()
            if problem is not None:
                raise CannotArrange(f"{problem}; put a copy of it back")
            disk.sync_directory(root)
            _move(disk, root, metadata, broker_ids, given_up)
        except BaseException:
            metadata.close()
            raise
    return metadata


def _move(
    disk: OsDisk,
    root: str,
    metadata: SqliteMetadata,
    wanted: tuple[int, ...] | None,
    given_up: Sequence[int],
) -> None:
    """Have the metadata say which brokers there are, and the directories of partitions lie with theirs."""
    before = image_of(metadata)
    broker_ids = broker_ids_of(before) if wanted is None else wanted
    # Who only reads says by itself what is missing.
    lost = {} if wanted is None else _given_up(disk, root, before, given_up)
    _refuse_other_disks(disk, root, before, broker_ids)
    metadata.sweep(_agreed_upto(before))
    metadata.execute(ArrangeBrokers(broker_ids, tuple(given_up)))
    for broker_id, names in lost.items():
        sentence = "broker %d begins anew, since its directory is lost, and with it what was in %s"
        log.warning(sentence, broker_id, first_of(names))
    moving = moves(disk, root, image_of(metadata))
    if moving:
        carry_out(disk, root, moving, uuid4())
        log.info("%s: %s moved to other brokers", root, counted(len(moving), "partition"))
    _describe_kept(disk, root, broker_ids)


def _agreed_upto(image: Image) -> int:
    """Return the version up to which every broker has deleted the logs of deleted topics, which it does
    before it registers. One that never came up since has them still.
    """
    epochs = (image.brokers[broker_id].broker_epoch for broker_id in broker_ids_of(image))
    return min((arranged_at(image), *epochs))


def _describe_kept(disk: OsDisk, root: str, broker_ids: tuple[int, ...]) -> None:
    """Log which directories are there of brokers that there were once: what topics have in them was moved."""
    for one in sorted(filter(str.isdecimal, disk.directories(root)), key=int):
        if int(one) in broker_ids:
            continue
        held = sorted(disk.directories(f"{root}/{one}"))
        if held:
            sentence = "%s/%s is not used: there is no broker %s now; it holds %s, which nobody serves"
            log.warning(sentence, root, one, one, first_of(held))
        else:
            sentence = "%s/%s is not used: there is no broker %s now, and it holds no partition"
            log.info(sentence, root, one, one)


def lost_by(disk: Disk, root: str, image: Image, broker_id: int) -> list[TopicPartition]:
    """Return the partitions that were in a broker's directory, where that is gone, or empty; none otherwise,
    and where the broker has never come up: it makes the directory when it does.

    One without its `meta.properties` counts as empty: a broker that ran on as its disk went may have made
    logs of new topics in the place where that was mounted.
    """
    row, where = image.brokers.get(broker_id), f"{root}/{broker_id}"
    if row is None or row.incarnation == ZERO_UUID or disk.exists(f"{where}/{META}"):
        return []
    return [
        TopicPartition(topic.name, one.number)
        for topic in sorted(image.topics(), key=lambda topic: topic.name)
        for one in image.partitions(topic.topic_id)
        if one.leader == broker_id
    ]


def said_of_lost(root: str, broker_id: int, lost: Sequence[TopicPartition]) -> str:
    """Return the sentence about a broker's directory that is lost."""
    return (
        f"{root}/{broker_id} is gone, or empty, and broker {broker_id} had {counted(len(lost), 'partition')}"
        f" in it, of which there is no other replica ({first_of(lost)}): put it back; is its disk mounted?"
        f" If it is lost for good, start with --lost {broker_id}: these partitions begin anew then, empty,"
        " and so do groups and transactions that were in them"
    )


def image_of(metadata: SqliteMetadata) -> Image:
    """Return the metadata as they stand. Raises `MetadataFailed`."""
    delta = metadata.execute(ReadDelta(0))
    assert isinstance(delta, Delta)
    return Image().after(delta)


def _lock(directory: str) -> DirectoryLock:
    """Return the lock of a broker's directory; one whose parent was killed is about to end. Raises
    `DirectoryInUse`.
    """
    end = time.monotonic() + IN_USE_MAX_S
    while True:
        try:
            return DirectoryLock(directory)
        except DirectoryInUse:
            if time.monotonic() > end:
                raise
            time.sleep(LOOK_AGAIN_S)


# -- refusals


def _refuse_things_of_others(disk: OsDisk, root: str) -> None:
    held = {*disk.files(root), *disk.directories(root)}
    if METADATA in held:
        return
    others = [*held - FILES_OF_METADATA - IGNORED - {one for one in held if one.isdecimal()}]
    if not others:
        return
    if not things_of_others(disk, root):
        raise CannotArrange(
            f"{root} is the directory of one broker; serve it without --processes, "
            "or name another directory, where each of several brokers has one of its own"
        )
    raise CannotArrange(
        f"cannot use {root}: it holds other things ({first_of(sorted(others))}) and nothing of a broker's; "
        "name a directory that is new or empty, or that --processes has been given before"
    )


def _refuse_brokers_without_metadata(disk: OsDisk, root: str, brokers: Sequence[str]) -> None:
    """Insist that a file is there which brokers have gone by: a new one would know none of their topics."""
    places = [f"{root}/{one}" for one in brokers]
    held = [where for where in places if disk.directories(where) or disk.files(where)]
    if held:
        raise CannotArrange(
            f"{root}/{METADATA} is missing, which says what lies in {', '.join(held)}; put it back "
            "with its -wal, or name another directory: none of the topics is known without it"
        )


def _given_up(
    disk: OsDisk, root: str, image: Image, given_up: Sequence[int]
) -> dict[int, list[TopicPartition]]:
    """Return the partitions that each broker has lost that is given up. Raises `CannotArrange` where another
    has lost its directory, or one of these has not.
    """
    lost = {broker_id: lost_by(disk, root, image, broker_id) for broker_id in broker_ids_of(image)}
    for broker_id, names in lost.items():
        if names and broker_id not in given_up:
            raise CannotArrange(said_of_lost(root, broker_id, names))
    for broker_id in given_up:
        if not lost.get(broker_id):
            raise CannotArrange(f"broker {broker_id} has lost nothing: leave out --lost {broker_id}")
    return {broker_id: names for broker_id, names in lost.items() if names}


def _refuse_other_disks(disk: OsDisk, root: str, image: Image, broker_ids: tuple[int, ...]) -> None:
    """Insist that partitions can be moved, before the metadata says that they are."""
    before = broker_ids_of(image)
    if {*before} <= {*broker_ids} and {*before} >= {*broker_ids}:
        return
    there = [f"{root}/{one}" for one in {*before, *broker_ids} if disk.exists(f"{root}/{one}")]
    if len({os.stat(one).st_dev for one in (root, *there)}) > 1:
        raise CannotArrange(
            f"{root} has directories on several disks, between which partitions are not moved; "
            f"start {len(before)} processes, of brokers {', '.join(map(str, before))}"
        )
