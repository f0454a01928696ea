"""From which replica a task fetches: one in its executor's rack, where the leader names one (KIP-392)."""

import os
import time
from typing import NamedTuple

from coterie.base.ids import TopicPartition
from coterie.client.net.addresses import Address
from coterie.client.settings import ClientSettings

RACK_VARIABLE = "COTERIE_CLIENT_RACK"
HELD_S = 300
"""So long a replica counts that a leader has named, as Kafka's clients have it (`metadata.max.age.ms`)."""


class NearReplica(NamedTuple):
    """Where a replica is, and until when that counts, on the clock of `time.monotonic`."""

    address: Address
    until_s: float


near_replicas: dict[tuple[ClientSettings, str, TopicPartition], NearReplica] = {}
"""Those that leaders have named to tasks of this worker, for their rack: the next task begins there."""


class NearReplicas:
    """The replicas from which one task fetches instead of from leaders."""

    def __init__(self, client: ClientSettings, rack: str) -> None:
        """The rack is the executor's own where its environment says one."""
        self.rack = os.environ.get(RACK_VARIABLE) or rack
        """What leaders are told; "": they are to answer themselves."""
        self._client = client

    def of(self, at: TopicPartition) -> Address | None:
        """Return the replica of a partition that is asked instead of its leader, None if the leader is."""
        held = near_replicas.get((self._client, self.rack, at)) if self.rack else None
        return held.address if held is not None and time.monotonic() < held.until_s else None

    def prefer(self, at: TopicPartition, replica: Address) -> None:
        """Fetch a partition from a replica that its leader has named."""
        if self.rack:
            near_replicas[self._client, self.rack, at] = NearReplica(replica, time.monotonic() + HELD_S)

    def give_up(self, replica: Address) -> None:
        """Fetch from leaders alone in the rest of the task: a replica refuses, is behind or is silent."""
        for key in [key for key, held in near_replicas.items() if held.address == replica]:
            del near_replicas[key]
        self.rack = ""
