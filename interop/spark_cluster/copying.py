"""A member of a group that copies a topic into a ledger's table, and the account of what it wrote."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from deltalake import DeltaTable
from pipeline.processes.checkpoint import last_committed, under_way
from pipeline.processes.process_tree import readers_first, signal_all

from interop.spark.topics import Topic
from interop.spark_cluster.cluster import STORAGE, Cluster, wait_until
from interop.spark_cluster.machines import Program

__all__ = ["Copying", "fill"]

AT_ONCE = 50_000
ENDS_WITHIN_S = 900.0


class Copying:
    """The application, the topic that it reads and the table that it writes. It may be started again."""

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        source: Mapping[str, str] = MappingProxyType({}),
        *,
        supervised: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`source` has further options of its source, `settings` are of its session."""
        self._supervised = supervised
        self.topic, self.name = topic, topic.name
        self._cluster = cluster
        self._wanted: dict[str, Any] = {
            "what": "copy",
            "settings": dict(settings),
            "source": topic.options(
                **{
                    "group.id": self.name,
                    "columns": "topic,partition,offset,value",
                    "includeSource": "true",
                    **source,
                }
            ),
            "table": f"s3://tables/{self.name}",
            "storage": STORAGE,
            "checkpoint": f"s3a://checkpoints/{self.name}",
        }
        self.program: Program | None = None

    def start(self) -> None:
        """Start it."""
        (self._cluster.machines["driver"].disk / "stop").unlink(missing_ok=True)
        self.program = self._cluster.submit(self._wanted, supervised=self._supervised)

    @property
    def checkpoint(self) -> Path:
        """Its checkpoint, as the object store keeps it."""
        return self._cluster.objects / "checkpoints" / self.name

    @property
    def in_a_batch(self) -> bool:
        """Whether a batch is under way."""
        return under_way(self.checkpoint) is not None

    @property
    def batches(self) -> int:
        """How many batches have ended."""
        return last_committed(self.checkpoint) + 1

    def refuse_end(self) -> None:
        """Raise AssertionError if the application has ended."""
        assert self.program is not None
        assert self.program.ended is None, f"the application has ended:\n{self.program.last_words()}"

    def wait_for_batch(self) -> None:
        """Wait until a batch is under way."""
        self._wait(lambda: self.in_a_batch, "a batch is under way")

    def wait_for_batches(self, more: int) -> None:
        """Wait until so many more batches have ended."""
        wanted = self.batches + more
        self._wait(lambda: self.batches >= wanted, f"batch {wanted} ends")

    def wait_for_all(self) -> None:
        """Wait until all that was produced is committed."""
        ends = self.topic.ends()

        def all_of_it() -> bool:
            time.sleep(0.5)
            return self.topic.committed(self.name) == ends

        self._wait(all_of_it, "all is copied, and committed")

    def _wait(self, condition: Any, what: str) -> None:
        def holds() -> object:
            self.refuse_end()
            return condition()

        wait_until(holds, what, within_s=ENDS_WITHIN_S)

    def kill_driver(self) -> None:
        """Kill all that the application has on the driver's machine, at once, but its supervisor."""
        assert self.program is not None
        supervisor, *driver = self.program.family
        assert supervisor.command.startswith("/bin/sh"), supervisor
        signal_all(readers_first(driver), signal.SIGKILL)

    def stop(self) -> None:
        """Have it stop, and wait for its end."""
        assert self.program is not None
        (self._cluster.machines["driver"].disk / "stop").touch()
        wait_until(lambda: self.program.ended is not None, "the application ends", ENDS_WITHIN_S)  # type: ignore[union-attr]
        assert self.program.ended == 0, f"the application has failed:\n{self.program.last_words()}"

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.program is not None and self.program.ended is not None

    def insist_on_each_once(self) -> None:
        """Raise AssertionError unless the table has each record of the topic once."""
        table = DeltaTable(self._wanted["table"], storage_options=STORAGE)
        rows = table.to_pyarrow_table(columns=["partition", "offset", "generation"])
        partitions, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
        for partition, end in self.topic.ends().items():
            found = np.sort(offsets[partitions == partition])
            missing = end - len(np.unique(found))
            assert not missing, f"{missing} records of partition {partition} are lost"
            assert len(found) == end, f"{len(found) - end} records of partition {partition} are there again"
        assert len(rows) == sum(self.topic.ends().values()), "more was written than was read"

    def generations(self) -> set[int]:
        """Return in which generations of the group the table's rows were read."""
        table = DeltaTable(self._wanted["table"], storage_options=STORAGE)
        return set(table.to_pyarrow_table(columns=["generation"])["generation"].to_pylist())


def fill(topic: Topic, records: int) -> None:
    """Produce so many records."""
    while records:
        now = min(records, AT_ONCE)
        topic.produce(now)
        records -= now
