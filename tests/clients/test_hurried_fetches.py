"""What librdkafka asks for behind its own fetch it gets at once, however long that would wait for records."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest

from .adapters import Message
from .adapters.confluent import Confluent, ConfluentConsumer
from .adapters.model import CALL_S

NewTopic = Callable[..., str]

FETCH_WAIT_S = 10


@pytest.mark.ours("Apache Kafka has whatever comes behind a fetch wait until that is over")
def test_offsets_topics_and_commits_do_not_wait_for_the_fetch_before_them(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    Confluent().produce(bootstrap, [Message(topic=topic, partition=0, value=b"v")])
    place = (topic, 0)
    settings = {"group.id": f"group-{uuid.uuid4()}", "fetch.wait.max.ms": FETCH_WAIT_S * 1000}

    with ConfluentConsumer(bootstrap, settings) as consumer:
        consumer.subscribe([topic])
        consumer.take(1)
        begun = time.monotonic()
        consumer.commit()
        for _ in range(2):  # behind each it fetches again
            assert consumer.bounds(place) == (0, 1)
            assert consumer.offset_at_time(place, 0) == 0
            assert topic in consumer.inner.list_topics(timeout=CALL_S).topics
        assert consumer.committed(place) == 1
        took_s = time.monotonic() - begun

    assert took_s < FETCH_WAIT_S  # each but the first would wait for nearly as long
