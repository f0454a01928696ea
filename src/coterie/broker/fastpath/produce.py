"""Produce: batches from a request's bytes into logs in files, without an entity.

It takes what nearly all producers send: a flexible version, an answer wanted, no transaction, few batches,
nothing compressed, logs in files. All else is the handler's, which also answers where a log does not take a
batch at once: it is told what has come of those before it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.broker.api.produce import Begun
from coterie.broker.fastpath.templates import (
    API_AT,
    CLIENT_ID_AT,
    CORRELATION_AT,
    KNOWN_MAX,
    ONE_BYTE_MAX,
    SIZE_BYTES,
    read_light,
)
from coterie.broker.net.context import WAITS, Answerless, Read
from coterie.storage.log.contract import AppendRefused, TakesLong
from coterie.storage.log.partition import PartitionLog
from coterie.wire.records.batches import CODEC_BITS, HEADER_SIZE, TRANSACTIONAL_BIT
from coterie.wire.varints import read_uvarint

if TYPE_CHECKING:
    from coterie.broker.fastpath import FastPathParts
    from coterie.broker.net.connection import Connection
    from coterie.broker.topics.topic import Topic
    from coterie.storage.log.contract import Appended

FIRST, LAST, BY_ID_SINCE = 9, 13, 13
BATCHES_MOST, RECORDS_MOST = 16, 3_000  # the handler answers what has more in pieces
ID_BYTES = 16
NOTHING = b"\0"  # tagged fields, or a transactional id
VERSION_AND_CLIENT_ID = Struct(">h4xh")  # with the correlation id between
HEAD = Struct(">h4xB")  # acks, timeout, number of topics and one more
INT32 = Struct(">i")
ATTRIBUTES_AND_COUNT = Struct(">22xB34xI")  # of a batch
UNLIKE_MOST = CODEC_BITS | TRANSACTIONAL_BIT
ANSWER_HEAD = Struct(">i4sBB")  # size, correlation id, nothing, number of topics and one more
# Partition, code, base offset, append time, log start; no records at fault, no text, nothing.
PARTITION = Struct(">ihqqqBBB")
ANSWER_END = bytes(5)  # throttle time, nothing


class Asked(NamedTuple):
    """The batches for one topic, and the bytes that name it."""

    key: bytes
    batches: list[tuple[TopicPartition, bytes]]


class ProducePath:
    """Appends what producers send. Which bytes name which topic is remembered."""

    def __init__(self, parts: FastPathParts) -> None:
        self._topics = parts.topics
        self._led_log = parts.led_log
        self._replica_manager = parts.replica_manager
        self._clock = parts.clock
        self._by_id: dict[bytes, Topic] = {}
        self._by_name: dict[bytes, Topic] = {}

    def take(self, connection: Connection, sized: bytes) -> Answerless | Read | None:
        """Append the batches of a request and answer it; else the handler has to."""
        try:
            asked = self._read(sized)
        except (StructError, IndexError, UnicodeDecodeError, Corrupt):
            return None  # the handler says what is wrong
        if asked is None:
            return None
        appended: dict[TopicPartition, Appended] = {}
        parts = self._append(asked, appended)
        if parts is None:
            read = read_light(sized)
            return None if read is None else read._replace(request=Begun(read.request, appended))
        body = b"".join(parts)
        size = ANSWER_HEAD.size - SIZE_BYTES + len(body)
        correlation_id = sized[CORRELATION_AT : CORRELATION_AT + 4]
        connection.send_answer(ANSWER_HEAD.pack(size, correlation_id, 0, len(asked) + 1) + body)
        return WAITS

    def _append(self, asked: list[Asked], appended: dict[TopicPartition, Appended]) -> list[bytes] | None:
        """Append, and return the answer but for its head; None where a log does not take a batch at once.
        What has come of those before it is in `appended`.
        """
        append, now_ms = self._replica_manager.append, self._clock.now_ms()
        parts: list[bytes] = []
        for key, batches in asked:
            parts += key, (len(batches) + 1).to_bytes(1)
            for name, batch in batches:
                try:
                    appended[name] = one = append(*name, batch, now_ms=now_ms, promptly=True)
                except (AppendRefused, TakesLong):
                    return None
                start = one.start_offset
                parts.append(
                    PARTITION.pack(name.partition, 0, one.base_offset, one.append_time_ms, start, 1, 0, 0)
                )
            parts.append(NOTHING)
        parts.append(ANSWER_END)
        return parts

    def _read(self, sized: bytes) -> list[Asked] | None:
        """Return the batches by topic, None if the handler is to answer. What is cut raises as it is read."""
        version, length = VERSION_AND_CLIENT_ID.unpack_from(sized, API_AT + 2)
        if not FIRST <= version <= LAST or length < -1:
            return None
        at = CLIENT_ID_AT + max(length, 0)
        str(sized[CLIENT_ID_AT:at], "utf-8")
        if sized[at : at + 2] != NOTHING + NOTHING:
            return None
        acks, topics = HEAD.unpack_from(sized, at + 2)
        at += 2 + HEAD.size
        if acks not in (-1, 1) or not 1 < topics <= BATCHES_MOST:
            return None
        asked: list[Asked] = []
        names: set[TopicPartition] = set()
        left = RECORDS_MOST
        for _ in range(topics - 1):
            begin, at = at, at + (ID_BYTES if version >= BY_ID_SINCE else sized[at])
            key = sized[begin:at]
            topic = self._by_id_of(key) if version >= BY_ID_SINCE else self._by_name_of(key)
            partitions = sized[at]
            if topic is None or topic.internal or not 1 < partitions <= BATCHES_MOST:
                return None
            at += 1
            batches = []
            for _ in range(partitions - 1):
                (index,) = INT32.unpack_from(sized, at)
                size, at = read_uvarint(sized, at + INT32.size)
                attributes, count = ATTRIBUTES_AND_COUNT.unpack_from(sized, at)
                end = at + size - 1
                name = TopicPartition(topic.name, index)
                left -= count
                if size <= HEADER_SIZE or attributes & UNLIKE_MOST or sized[end] or left < 0:
                    return None
                if name in names or type(self._led_log(name)) is not PartitionLog:
                    return None
                names.add(name)
                batches.append((name, sized[at:end]))
                at = end + 1
            if sized[at]:
                return None
            at += 1
            asked.append(Asked(key, batches))
        return asked if at == len(sized) - 1 and not sized[at] and len(names) <= BATCHES_MOST else None

    def _by_id_of(self, key: bytes) -> Topic | None:
        known = self._by_id.get(key)
        if known is None or self._topics.get(known.name) is not known:
            known = self._topics.by_id(UUID(bytes=key)) if len(key) == ID_BYTES else None
            _remember(self._by_id, key, known)
        return known

    def _by_name_of(self, key: bytes) -> Topic | None:
        """Return the topic whose name these bytes are, its length and one more in front."""
        known = self._by_name.get(key)
        if known is None or self._topics.get(known.name) is not known:
            short = 1 < len(key) <= ONE_BYTE_MAX and key[0] == len(key)
            known = self._topics.get(key[1:].decode()) if short else None
            _remember(self._by_name, key, known)
        return known


def _remember(known: dict[bytes, Topic], key: bytes, topic: Topic | None) -> None:
    if topic is None:
        known.pop(key, None)
        return
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[key] = topic
