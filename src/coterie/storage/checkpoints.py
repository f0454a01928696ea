"""The small text files of Kafka's data directory, as bytes: checkpoints, meta.properties, partition.metadata.

Every reader raises `Corrupt` for what it cannot read. Files with the offsets of many partitions lie in the
data directory, those of one partition in its own.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition, uuid_from_text, uuid_text

START_OFFSETS = "log-start-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
META = "meta.properties"
EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
LONGEST_NUMBER = len(str(-(2**63)))
NO_BROKER_EPOCH = -1


class Meta(NamedTuple):
    """Whose data directory this is."""

    cluster_id: str
    node_id: int
    directory_id: str


def write_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return a checkpoint of an offset for each partition: version 0, their number, a line each."""
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def read_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint. Kafka leaves such a file empty until it first writes it."""
    rows = _rows(data, words=3)
    return {TopicPartition(topic, _number(partition)): _number(offset) for topic, partition, offset in rows}


def write_epochs(epochs: list[tuple[int, int]]) -> bytes:
    """Return the leader epochs of a partition, each with the offset where it began."""
    lines = [f"{epoch} {start}\n" for epoch, start in epochs]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def read_epochs(data: bytes) -> list[tuple[int, int]]:
    """Return the leader epochs of a partition, oldest first; both columns grow."""
    epochs = [(_number(epoch), _number(start)) for epoch, start in _rows(data, words=2)]
    for older, newer in pairwise(epochs):
        if not (older[0] < newer[0] and older[1] <= newer[1]):
            raise Corrupt(f"epoch {newer} after {older}", expected="growing epochs")
    return epochs


def write_meta(meta: Meta) -> bytes:
    """Return meta.properties, as Kafka's own brokers need it to take the directory for theirs."""
    lines = (
        "#",
        f"node.id={meta.node_id}",
        f"directory.id={meta.directory_id}",
        "version=1",
        f"cluster.id={meta.cluster_id}",
    )
    return "".join(line + "\n" for line in lines).encode()


def read_meta(data: bytes) -> Meta:
    """Return the Meta of a meta.properties of version 1."""
    pairs = dict(line.split("=", 1) for line in _text(data).splitlines() if "=" in line and line[0] != "#")
    if pairs.get("version") != "1" or "cluster.id" not in pairs:
        raise Corrupt("a meta.properties without a cluster", expected="version=1 and a cluster.id")
    return Meta(pairs["cluster.id"], _number(pairs.get("node.id", "0")), pairs.get("directory.id", ""))


def write_clean_stop(broker_epoch: int) -> bytes:
    """Return the mark of a clean stop, with the epoch of the registration that the broker had.

    Kafka's controller takes a broker whose mark has another epoch than it remembers for one that crashed.
    """
    return f'{{"version":0,"brokerEpoch":{broker_epoch}}}'.encode()


def read_clean_stop(data: bytes) -> int:
    """Return the epoch in a mark of a clean stop, -1 if it says none: older Kafkas leave it empty."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return NO_BROKER_EPOCH
    return epoch if type(epoch) is int and NO_BROKER_EPOCH < epoch < 2**63 else NO_BROKER_EPOCH


def write_partition_metadata(topic_id: UUID) -> bytes:
    """Return partition.metadata, which ties a directory to one life of a topic."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def read_partition_metadata(data: bytes) -> UUID:
    """Return the id of the topic that a partition belongs to."""
    pairs = dict(line.split(": ", 1) for line in _text(data).splitlines() if ": " in line)
    if pairs.get("version") != "0":
        raise Corrupt("a partition.metadata of another version", expected="version: 0")
    return uuid_from_text(pairs.get("topic_id", ""))


def _rows(data: bytes, *, words: int) -> list[list[str]]:
    text = _text(data)
    lines = text.splitlines()
    if not lines:
        return []
    if text[-1] != "\n":  # the last number may have lost digits
        raise Corrupt("a checkpoint cut short", at=len(data))
    if len(lines) < 2 or lines[0] != "0":
        raise Corrupt("a checkpoint of another version", at=0, expected="0")
    rows = [line.split(" ") for line in lines[2:]]
    if len(rows) != _number(lines[1]) or any(len(row) != words for row in rows):
        raise Corrupt("a checkpoint cut short", expected=f"{lines[1]} lines of {words} words")
    return rows


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Corrupt("a file that is no text", at=error.start) from None


def _number(text: str) -> int:
    if len(text) > LONGEST_NUMBER or not (text.isascii() and text.removeprefix("-").isdigit()):
        raise Corrupt(f"{text[: 2 * LONGEST_NUMBER]!r} is no number", expected="one of 64 bits at most")
    return int(text)
