"""Partitions as applications name them: as TopicPartitions, or as plain pairs. Pure."""

from collections.abc import Iterable

from coterie.base.ids import TopicPartition
from coterie.client.errors import WrongUse

__all__ = ["Partitions", "many", "partition_of"]

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
