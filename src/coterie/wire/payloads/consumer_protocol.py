"""The payloads that consumers put into JoinGroup and SyncGroup: what they want, what they get (5.1).

A broker never needs them but for the topics; the leader of a group reads and writes all of them.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, starmap
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple, Self

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition, partitions_of

PROTOCOL_TYPE = "consumer"
HIGHEST_VERSION = 3
NO_GENERATION = -1

INT16 = Struct(">h")
INT32 = Struct(">i")


@lru_cache(maxsize=256)
def _int32s(count: int) -> Struct:
    """Return the Struct of so many 32-bit numbers."""
    return Struct(f">{count}i")


class Reader:
    """Reads one payload from front to back. Corrupt where it ends too early or claims too much."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def int16(self) -> int:
        """Return the next two bytes as a number."""
        return self._number(INT16)

    def int32(self) -> int:
        """Return the next four bytes as a number."""
        return self._number(INT32)

    def count(self) -> int:
        """Return the length of an array, which cannot be null here nor more than the bytes that are left."""
        number = self.int32()
        if not 0 <= number <= len(self.data) - self.at:
            raise Corrupt(f"array of {number} items", at=self.at, expected="as many as fit")
        return number

    def text(self) -> str:
        """Return a string that is not null."""
        found = self.nullable_text()
        if found is None:
            raise Corrupt("null", at=self.at, expected="a string")
        return found

    def nullable_text(self) -> str | None:
        """Return a string or None."""
        raw = self._sized(self.int16())
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as failure:
            raise Corrupt("string", at=self.at, expected="UTF-8") from failure

    def nullable_bytes(self) -> bytes | None:
        """Return bytes or None."""
        return self._sized(self.int32())

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return partitions that are grouped by topic."""
        return tuple(chain.from_iterable(starmap(partitions_of, self.by_topic())))

    def by_topic(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return each topic with the numbers of its partitions."""
        return [self._topic() for _ in range(self.count())]

    def _topic(self) -> tuple[str, tuple[int, ...]]:
        """Return one topic of an array of partitions.

        A leader reads thousands of these, often of one partition each: few calls are made on the way.
        """
        data, at = self.data, self.at
        try:
            (size,) = INT16.unpack_from(data, at)
            end = at + INT16.size + size
            (count,) = INT32.unpack_from(data, max(end, at))
            if size < 0 or count < 0 or end + INT32.size * (count + 1) > len(data):
                raise Corrupt("partitions", at=at, expected="no more than is there")
            numbers = _int32s(count)
            self.at = end + INT32.size + numbers.size
            return data[at + INT16.size : end].decode(), numbers.unpack_from(data, end + INT32.size)
        except StructError as failure:
            raise Corrupt("partitions", at=at, expected="more bytes") from failure
        except UnicodeDecodeError as failure:
            raise Corrupt("string", at=at, expected="UTF-8") from failure

    def _number(self, shape: Struct) -> int:
        try:
            number: int = shape.unpack_from(self.data, self.at)[0]
        except StructError as failure:
            raise Corrupt("payload", at=self.at, expected=f"{shape.size} more bytes") from failure
        self.at += shape.size
        return number

    def _sized(self, size: int) -> bytes | None:
        if size == -1:
            return None
        stop = self.at + size
        if size < 0 or stop > len(self.data):
            raise Corrupt(f"{size} bytes", at=self.at, expected="at most what is left")
        found = self.data[self.at : stop]
        self.at = stop
        return found


def _text(text: str | None) -> bytes:
    if text is None:
        return INT16.pack(-1)
    raw = text.encode()
    return INT16.pack(len(raw)) + raw


def _bytes(data: bytes | None) -> bytes:
    return INT32.pack(-1) if data is None else INT32.pack(len(data)) + data


def _texts(texts: Iterable[str]) -> bytes:
    encoded = [_text(text) for text in texts]
    return INT32.pack(len(encoded)) + b"".join(encoded)


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Return partitions grouped by topic, topics in the order in which they first come."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    out = [INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        out += _text(topic), INT32.pack(len(numbers)), *map(INT32.pack, numbers)
    return b"".join(out)


def _read_version(reader: Reader) -> int:
    """Return the version to read by: a newer one than we know is read as ours (EN-4)."""
    version = reader.int16()
    if version < 0:
        raise Corrupt(f"version {version}", at=0, expected="0 or more")
    return min(version, HIGHEST_VERSION)


class Subscription(NamedTuple):
    """What a consumer tells the leader of its group: the topics it wants and what it owns (EN-1)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """The generation in which it got what it owns; negative for none (EN-6)."""
    rack: str | None = None

    def encode(self, version: int = HIGHEST_VERSION) -> bytes:
        """Return the payload as Kafka's client writes it: everything sorted (EN-3)."""
        out = [INT16.pack(version), _texts(sorted(self.topics)), _bytes(self.user_data)]
        if version >= 1:
            out.append(_partitions(sorted(self.owned)))
        if version >= 2:
            out.append(INT32.pack(self.generation))
        if version >= 3:
            out.append(_text(self.rack))
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the Subscription of a payload of any version, or raise Corrupt (EN-4: no empty rack)."""
        reader = Reader(data)
        version = _read_version(reader)
        topics = tuple(reader.text() for _ in range(reader.count()))
        user_data = reader.nullable_bytes()
        owned = reader.partitions() if version >= 1 else ()
        generation = reader.int32() if version >= 2 else NO_GENERATION
        rack = reader.nullable_text() if version >= 3 else None
        return cls(topics, user_data, owned, generation, rack or None)


class Assignment(NamedTuple):
    """What the leader gives to one consumer; all versions are laid out alike (EN-2)."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None

    def encode(self, version: int = HIGHEST_VERSION) -> bytes:
        """Return the payload as Kafka's client writes it: by topic, as they first come (EN-2, EN-3)."""
        return b"".join((INT16.pack(version), _partitions(self.partitions), _bytes(self.user_data)))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the Assignment of a payload, or raise Corrupt. No bytes at all mean no partitions."""
        if not data:
            return cls()
        reader = Reader(data)
        _read_version(reader)
        partitions = reader.partitions()
        return cls(partitions, reader.nullable_bytes())


class PreviousAssignment(NamedTuple):
    """The user data of a `sticky` member: what it was given last, and in which generation (SK-1)."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int | None = None

    def encode(self) -> bytes:
        """Return version 1, or where no generation is known version 0, which has none."""
        generation = b"" if self.generation is None else INT32.pack(self.generation)
        return _partitions(self.partitions) + generation

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the user data, read as version 1 or else as 0: it does not say (SK-1). Or raise Corrupt."""
        topics, generation = read_previous(data)
        return cls(tuple(chain.from_iterable(starmap(partitions_of, topics))), generation)


def read_previous(data: bytes) -> tuple[list[tuple[str, tuple[int, ...]]], int | None]:
    """Return a previous assignment as topics with partition numbers, and its generation; or raise Corrupt.

    Where no generation is said, there is none (EN-6).
    """
    reader = Reader(data)
    topics = reader.by_topic()
    left = len(data) - reader.at
    return topics, reader.int32() if left >= INT32.size else None


def read_topics_v0(data: bytes) -> tuple[str, ...]:
    """Return the topics of a subscription read as version 0, whatever it is (CG-10), or raise Corrupt.

    A broker reads no further, so that it understands members that are newer than itself.
    """
    reader = Reader(data)
    reader.int16()
    topics = tuple(reader.text() for _ in range(reader.count()))
    reader.nullable_bytes()
    return topics
