"""One topic as the registry holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from coterie.base.topic_names import INTERNAL_TOPICS

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
    partitions: int
    replicas: tuple[int, ...]  # of every partition: this broker alone
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        """Whether the broker keeps its own state in it."""
        return self.name in INTERNAL_TOPICS
