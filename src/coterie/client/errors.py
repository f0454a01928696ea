"""What goes wrong between a client and a cluster, and which refusals are worth another try.

docs/errors.md draws the whole tree and says of each error what to do.
"""

from typing import TYPE_CHECKING

from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.base.ids import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from coterie.client.consumer.records import ConsumerRecord


class Disconnected(CoterieError):
    """The connection broke, or could not be made. Whether the request was carried out is not known."""


class ClientTimeout(CoterieError):
    """No answer in time. Says what was asked of whom, and what the last try ended with."""

    last: Exception | None = None
    """What the last of several tries ended with, where it was tried for as long as a call may take."""


def given_up(said: str, last: Exception | None) -> ClientTimeout:
    """Return the error of what was tried for as long as a call may take, and what the last try ended with."""
    error = ClientTimeout(said)
    error.last = last
    return error


class Unsupported(CoterieError):
    """The broker speaks no version of an API that we speak."""


class ListenerFailed(CoterieError):
    """The application's rebalance listener or assignor raised; `__cause__` has it. The member goes on."""


class WrongSetting(CoterieError):
    """A client's setting that does not exist or cannot be meant so. Says what to write instead."""


class SettingsNotNamed(WrongSetting, TypeError):
    """Settings were given as a dictionary, as confluent-kafka's clients take them. Name each of them."""


class MissingLibrary(CoterieError):
    """A library that only this feature needs is not installed. Says which, and how to install it."""


class WrongUse(CoterieError):
    """A call that makes no sense as things are. Says what to call or to set first."""


class Closed(WrongUse):
    """The client was closed before. Make another one."""


class NotAssigned(WrongUse):
    """The partition is not this consumer's now, perhaps since a rebalance a moment ago."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} is not assigned to this consumer; its assignment() says what is")
        self.partition = partition


class NoOffset(CoterieError):
    """There is no offset to read from: none is committed, or the log no longer has it, and
    `auto_offset_reset` is "none". Seek, or set it to "earliest" or "latest".
    """

    def __init__(self, partitions: tuple[TopicPartition, ...], why: str) -> None:
        names = ", ".join(map(str, partitions))
        super().__init__(
            f'{names}: {why}, and auto_offset_reset is "none"; seek, or set it to "earliest" or "latest"'
        )
        self.partitions = partitions


class LogTruncated(CoterieError):
    """A new leader's log lacks records that were read here (KIP-320), and `auto_offset_reset` is "none".
    Seek, to `end` if it is known; what was made of the lost records may have to be undone.
    """

    def __init__(self, partition: TopicPartition, position: OffsetAndMetadata, end: int | None) -> None:
        agreed = "nothing that was read here is known there" if end is None else f"it goes along up to {end}"
        super().__init__(
            f"{partition} was read up to offset {position.offset} of epoch {position.leader_epoch},"
            f" and its new leader does not have that: {agreed}; seek to where reading is to go on"
        )
        self.partition, self.position, self.end = partition, position, end


class Undecodable(CoterieError):
    """A deserialiser failed. `record` is the raw one; seek to its offset + 1 to go on after it."""

    def __init__(self, record: "ConsumerRecord", what: str, cause: Exception) -> None:
        place = f"{record.topic}-{record.partition} at offset {record.offset}"
        super().__init__(
            f"the {what} of {place} cannot be decoded ({type(cause).__name__}: {cause});"
            f" seek to {record.offset + 1} to leave it out"
        )
        self.record = record


RETRIABLE = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_CONTROLLER,
        Code.NOT_ENOUGH_REPLICAS,
        Code.CONCURRENT_TRANSACTIONS,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.UNKNOWN_TOPIC_ID,
    }
)
