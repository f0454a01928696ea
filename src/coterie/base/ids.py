"""Names of things: a topic's partition, a group's members, a Spark sink's groups, Kafka's form of a uuid."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from typing import NamedTuple, Protocol
from uuid import UUID

from coterie.base.errors import Corrupt

ZERO_UUID = UUID(int=0)
PRODUCER_ID_BLOCK = 1_000
"""So many producer ids a broker reserves at once: `ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE`."""


class TopicPartition(NamedTuple):
    """One partition of a topic, by the topic's name. Sorts by topic, then partition, as Kafka's lists do."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# Past the constructor that NamedTuple writes in Python: a leader makes partitions by the ten thousand.
_new = partial(tuple.__new__, TopicPartition)


def partitions_of(topic: str, numbers: Iterable[int]) -> list[TopicPartition]:
    """Return the partitions of a topic that have these numbers."""
    return list(map(_new, zip(repeat(topic), numbers, strict=False)))


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, and what the committer noted beside it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """A member of a group, as a transaction commits offsets for it; without one, as nobody's member."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class Identified(Protocol):
    """A member of a group, by the ids that Kafka knows of it."""

    @property
    def member_id(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...


RANDOM = re.compile(r"([0-9a-f]{4})[0-9a-f]{4}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""The id that a broker adds to a client's name, and the part of it that is printed."""


def short_id(member_id: str) -> str:
    """Return a member id without most of its random part."""
    return RANDOM.sub(r"\1…", member_id)


class ShortNames:
    """The short names of a group's members, the same wherever people read of them.

    A static member is called by its instance id, a dynamic one by its client id: both stay when the client is
    started again. Where members of one generation share a client id, each of them is called by its own id,
    shortened if that tells it from the others.
    """

    def __init__(self, generations: Iterable[Iterable[Identified]] = ()) -> None:
        self._members: dict[str, tuple[str, str | None]] = {}
        self._shared: set[str] = set()
        self._short: Counter[str] = Counter()
        for members in generations:
            self.learn(members)

    def learn(self, members: Iterable[Identified]) -> None:
        """Take in the members of a generation; names of those that share a client id change with it."""
        taken: set[str] = set()
        for one in members:
            if one.member_id not in self._members:
                self._members[one.member_id] = one.client_id, one.instance_id
                self._short[short_id(one.member_id)] += 1
            name = one.instance_id or one.client_id
            if name in taken:
                self._shared.add(name)
            taken.add(name)

    def of(self, member_id: str) -> str:
        """Return the short name of a member, also of one that no generation has."""
        client_id, instance_id = self._members.get(member_id, ("", None))
        name = instance_id or client_id
        if name and (instance_id or name not in self._shared):
            return name
        shortened = short_id(member_id)
        return shortened if self._short[shortened] <= 1 else member_id


def uuid_text(uuid: UUID) -> str:
    """Return Kafka's 22 characters for a uuid: url-safe base64 without padding."""
    return urlsafe_b64encode(uuid.bytes)[:22].decode()


def uuid_from_text(text: str) -> UUID:
    """Return the uuid that Kafka wrote as these 22 characters, or raise Corrupt."""
    if len(text) != 22 or not text.isascii() or not text.replace("-", "a").replace("_", "a").isalnum():
        raise Corrupt(f"{text!r} is not a uuid", expected="22 characters of url-safe base64")
    return UUID(bytes=urlsafe_b64decode(text + "=="))


# A Spark sink notes the batches that it has written in groups: one for each query, and one for each of its
# tasks (docs/spark.md). What these commit under a partition's name are batches' numbers and no offsets: there
# is no lag, and nobody is stuck.
NOTES = "coterie-sink"
"""What the names of such groups begin with."""
NOTES_NAMED = NOTES + "-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-[0-9]+)?"
"""The whole of it, with Spark's id of the query and a task's number: for Python's and Java's expressions."""


def notes_batches(group_id: str) -> bool:
    """Return whether what a group by this name commits are numbers of batches."""
    return group_id.startswith(NOTES) and re.fullmatch(NOTES_NAMED, group_id) is not None
