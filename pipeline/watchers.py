"""Two watchers beside the job's script, each in a thread with a client of its own: story and progress.

They run until they are told to stop and close their clients themselves; what they see is handed to the event
loop.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from pipeline.lag import Gauge, Progress
from pipeline.plan import GROUP, PARTITIONS, TOPIC, WARM_UP
from pipeline.story import Rebalance, Watch

PATIENCE_S = 10
LOOK_EVERY_S = 0.4


def watch_story(bootstrap: str, tell: Callable[[Rebalance], None], stop: threading.Event) -> None:
    """Tell every rebalance as it happens."""
    watch = Watch(bootstrap, group=GROUP, topic=TOPIC)
    try:
        while not stop.is_set():
            for rebalance in patient(lambda: watch.poll(within_s=0.1)):
                tell(rebalance)
    finally:
        watch.close()


def watch_progress(bootstrap: str, tell: Callable[[Progress], None], stop: threading.Event) -> None:
    """Tell how far the group is, a few times a second."""
    gauge = Gauge(bootstrap, group=GROUP, topic=TOPIC, partitions=PARTITIONS)
    try:
        while not stop.wait(LOOK_EVERY_S):
            tell(patient(gauge.read))
    finally:
        gauge.close()


def patient(look: Callable[[], Any]) -> Any:
    """Return what a look finds; a broker that is not ready yet is asked again for a while."""
    from confluent_kafka import KafkaException

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return look()
        except KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_EVERY_S)


def final_progress(bootstrap: str) -> Progress:
    """Return where the group stands after its members have gone."""
    gauge = Gauge(bootstrap, group=GROUP, topic=TOPIC, partitions=PARTITIONS)
    try:
        found: Progress = patient(gauge.read)
        return found
    finally:
        gauge.close()


def create_topics(bootstrap: str) -> None:
    """Create the topic of the flights, and one with a single record on which Spark can warm up."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "run"})
    wanted = [NewTopic(TOPIC, PARTITIONS, 1), NewTopic(WARM_UP, 1, 1)]
    for made in admin.create_topics(wanted).values():
        made.result(timeout=20)
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "run"})
    producer.produce(
        WARM_UP, json.dumps({"carrier": "UA", "hour": 5, "dep_delay": 2, "arr_delay": 11}).encode()
    )
    assert producer.flush(20) == 0
