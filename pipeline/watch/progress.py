"""How far the group is: what it has committed against what was produced, asked of the broker.

`watch_progress` does so in a thread with a client of its own, until it is told to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.applications.events import now_ms
from pipeline.plan import GROUP, PARTITIONS, TOPIC

PATIENCE_S = 30
REQUEST_S = 5
LOOK_EVERY_S = 0.4


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at the group: for each partition its end and what the group has committed."""

    at_ms: int
    ends: tuple[int, ...]
    committed: tuple[int, ...]

    @property
    def lag(self) -> tuple[int, ...]:
        return tuple(end - done for end, done in zip(self.ends, self.committed, strict=True))

    @property
    def produced(self) -> int:
        return sum(self.ends)

    @property
    def done(self) -> int:
        return sum(self.committed)


class LagReader:
    """Asks for the committed offsets of the group and the ends of its topic. Joins nothing."""

    def __init__(self, bootstrap: str, *, group: str, topic: str, partitions: int) -> None:
        from confluent_kafka import TopicPartition

        self._settings = {
            "bootstrap.servers": bootstrap,
            "client.id": "reader",
            "log_level": 2,
            "group.id": group,
        }
        self._consumer = self._new_consumer()
        self._places = [TopicPartition(topic, partition) for partition in range(partitions)]

    def _new_consumer(self) -> Any:
        from confluent_kafka import Consumer

        return Consumer(self._settings)

    def renew(self) -> None:
        """Ask as a new client: librdkafka's may hold on to a leader that has died."""
        self._consumer.close()
        self._consumer = self._new_consumer()

    def read(self) -> Progress:
        """Return the group's progress now. Commits are read first: a lag is never taken for too small."""
        committed = self._consumer.committed(self._places, timeout=REQUEST_S)
        return Progress(
            at_ms=now_ms(),
            committed=tuple(max(0, place.offset) for place in committed),
            ends=tuple(self._end(place) for place in self._places),
        )

    def _end(self, place: Any) -> int:
        _, high = self._consumer.get_watermark_offsets(place, timeout=REQUEST_S)
        return int(high)

    def close(self) -> None:
        self._consumer.close()


def watch_progress(bootstrap: str, note: Callable[[Progress], None], stop: threading.Event) -> None:
    """Tell how far the group is, a few times a second."""
    reader = LagReader(bootstrap, group=GROUP, topic=TOPIC, partitions=PARTITIONS)
    try:
        while not stop.wait(LOOK_EVERY_S):
            note(with_retries(reader.read, between=reader.renew))
    finally:
        reader.close()


def with_retries(look: Callable[[], Any], *, between: Callable[[], None] = lambda: None) -> Any:
    """Return the result of a request; a broker that is not ready yet is asked again for a while, after
    `between`.
    """
    from confluent_kafka import KafkaException

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return look()
        except KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_EVERY_S)
            between()


def final_progress(bootstrap: str) -> Progress:
    """Return the group's progress after its members have gone."""
    reader = LagReader(bootstrap, group=GROUP, topic=TOPIC, partitions=PARTITIONS)
    try:
        found: Progress = with_retries(reader.read, between=reader.renew)
        return found
    finally:
        reader.close()
