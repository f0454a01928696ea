"""What the coordinator itself wrote of a group: each generation, who led it, and who was given what."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.base.hashes import coordinator_partition
from coterie.client.blocking.consumer import BlockingConsumer
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    read_group_value,
    read_key,
)
from coterie.wire.payloads.consumer_protocol import Assignment

__all__ = ["Generation", "Witness"]

INTERNAL_TOPIC, INTERNAL_PARTITIONS = "__consumer_offsets", 50


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation as it was written; members go by their client ids, which the tests choose."""

    number: int
    protocol: str | None
    leader: str | None
    given: dict[str, frozenset[int]]

    @classmethod
    def of(cls, value: GroupMetadataValue) -> Generation:
        """Return what the group's record says."""
        names = {member.member_id: member.client_id for member in value.members}
        given = {
            member.client_id: frozenset(
                one.partition for one in Assignment.decode(member.assignment).partitions
            )
            for member in value.members
        }
        return cls(value.generation, value.protocol, names.get(value.leader or ""), given)

    @property
    def twice(self) -> list[int]:
        """The partitions that were given to two members."""
        given = [partition for some in self.given.values() for partition in some]
        return sorted({partition for partition in given if given.count(partition) > 1})


class Witness:
    """Reads a group's records from the topic in which its coordinator keeps them."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._group = group
        self._consumer = BlockingConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        self._consumer.start()
        partition = coordinator_partition(group, partition_count=INTERNAL_PARTITIONS)
        self._consumer.assign([(INTERNAL_TOPIC, partition)])
        self.generations: list[Generation] = []

    def read(self) -> Generation | None:
        """Read on; returns what was written last."""
        for records in self._consumer.getmany(timeout_ms=50).values():
            for record in records:
                if record.key and record.value and read_key(record.key) == GroupMetadataKey(self._group):
                    self.generations.append(Generation.of(read_group_value(record.value)))
        return self.generations[-1] if self.generations else None

    def close(self) -> None:
        """Hang up."""
        self._consumer.close()
