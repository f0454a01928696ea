"""Partitions, offsets and times as applications give them: plain or with a type of ours, and ms. Pure."""

from collections.abc import Iterable

from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.errors import WrongUse

INT64_MAX = 2**63 - 1
LONGEST_TIMEOUT_MS = 2**31 - 1

Partitions = Iterable[TopicPartition | tuple[str, int]]


def many(partitions: Partitions) -> tuple[TopicPartition, ...]:
    """Return the partitions, plain pairs or not, each once."""
    return tuple(dict.fromkeys(partition_of(one) for one in partitions))


def partition_of(pair: TopicPartition | tuple[str, int]) -> TopicPartition:
    """Return the partition that a pair names; a topic alone, which Python would take apart, names none."""
    match pair:
        case (str(topic), int(number)) if number >= 0:
            return TopicPartition(topic, number)
    raise WrongUse(f"{pair!r} is no partition: give pairs like ('orders', 0), or await partitions_for(topic)")


def offset_and_metadata(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """Return an offset with the epoch and the text beside it, or raise WrongUse for what is none."""
    if isinstance(offset, OffsetAndMetadata):
        return offset
    if not isinstance(offset, int):
        raise WrongUse(f"an offset is a whole number, or an OffsetAndMetadata, not {offset!r}")
    return OffsetAndMetadata(offset)


def checked_stamp(timestamp: int) -> int:
    """Return a time if it is one: milliseconds since 1970, as Java's clients take them.

    Where brokers are asked for offsets, numbers below 0 stand for places in the log: -1 for its end.
    """
    if not isinstance(timestamp, int) or not 0 <= timestamp <= INT64_MAX:
        raise WrongUse(f"a timestamp is milliseconds since 1970, a whole number, not {timestamp!r}")
    return timestamp


def checked_timeout_s(timeout_ms: float) -> float:
    """Return the timeout in seconds: 25 days at most, which is as good as for ever."""
    if not isinstance(timeout_ms, int | float) or not timeout_ms >= 0:
        raise WrongUse(f"timeout_ms is {timeout_ms!r}; give a number of milliseconds, 0 or more")
    return min(timeout_ms, LONGEST_TIMEOUT_MS) / 1000
