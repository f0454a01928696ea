"""A node on a pretended disk that fails and fills up, with connections, and a clock that a test turns."""

from __future__ import annotations

from coterie.broker.config.settings import BrokerSettings
from coterie.storage.memory import MemoryDisk, MemoryStore
from unit.broker.rig import Rig


class DiskRig(Rig):
    """A node that can be ended as by `kill -9` and started again on its disk."""

    def __init__(self, **settings: object) -> None:
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        defaults = {"log.dirs": "data", "group.initial.rebalance.delay.ms": "0"}
        self.settings = BrokerSettings.of(defaults | {"offsets.topic.num.partitions": "1"} | named)
        self.now_ms = 1_700_000_000_000
        self.disk = MemoryDisk()
        self.start()

    def start(self) -> None:
        """Start on the disk as it is."""
        self.soon = []
        self.memory = MemoryStore.open(now_ms=self.now_ms, disk=self.disk)
        self.store = self.memory  # type: ignore[assignment]
        self.node = self.a_node()
        self.node.start()
        self.settle()

    def crash(self) -> None:
        """End as by `kill -9` and start again."""
        self.disk = self.memory.crash()
        self.start()
