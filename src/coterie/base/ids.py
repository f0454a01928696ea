"""Names of things: a topic's partition, and Kafka's way to write a uuid."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt

__all__ = ["ZERO_UUID", "OffsetAndMetadata", "TopicPartition", "uuid_from_text", "uuid_text"]

ZERO_UUID = UUID(int=0)


class TopicPartition(NamedTuple):
    """One partition of a topic, by the topic's name. Sorts by topic, then partition, as Kafka's lists do."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, and what the committer noted beside it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def uuid_text(uuid: UUID) -> str:
    """Return Kafka's 22 characters for a uuid: url-safe base64 without padding."""
    return urlsafe_b64encode(uuid.bytes)[:22].decode()


def uuid_from_text(text: str) -> UUID:
    """Return the uuid that Kafka wrote as these 22 characters, or raise Corrupt."""
    if len(text) != 22 or not text.isascii() or not text.replace("-", "a").replace("_", "a").isalnum():
        raise Corrupt(f"{text!r} is not a uuid", expected="22 characters of url-safe base64")
    return UUID(bytes=urlsafe_b64decode(text + "=="))
