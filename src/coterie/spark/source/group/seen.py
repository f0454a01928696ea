"""What a session knows of its partitions between two questions to the cluster."""

from typing import NamedTuple

from coterie.base.ids import TopicPartition
from coterie.client.member import Generation


class Seen(NamedTuple):
    """What the cluster said of the partitions that a generation gave to this member."""

    generation: Generation
    owned: frozenset[TopicPartition]
    committed: dict[TopicPartition, int | None]
    notes: dict[TopicPartition, str]
    """What is noted beside the committed offsets."""
    earliest: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    behind: dict[TopicPartition, int]
    """Where logs end of which more was read than counts as there: a transaction may be under way (LSO)."""
    begun: bool = False
    """Whether each partition is known to have a committed offset, and a note of this query's."""
