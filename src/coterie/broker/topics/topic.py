"""One topic as the registry holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from coterie.base.topic_names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from coterie.broker.placement.model import Replicas

KEPT_FOR_EVER: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
"""The settings of a topic of which nobody knows what was set: nothing is deleted, nothing compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic as it stands; a change makes a new one."""

    name: str
    topic_id: UUID
    replicas: tuple[Replicas, ...]  # of each partition
    configs: Mapping[str, str] = field(default_factory=dict)
    partitions: int = field(init=False)  # how many it has

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", len(self.replicas))

    def resized(self, partitions: int) -> Topic:
        """Return the topic with so many partitions; new ones have the replicas of the first."""
        added = self.replicas[:1] * (partitions - self.partitions)
        return replace(self, replicas=self.replicas[:partitions] + added)

    @property
    def internal(self) -> bool:
        """Whether the broker keeps its own state in it."""
        return self.name in INTERNAL_TOPICS
