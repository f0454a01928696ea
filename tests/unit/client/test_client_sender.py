"""Who looks at the clock more than once misses nothing that comes due in between."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, cast

from coterie.base.ids import TopicPartition
from coterie.client.net.cluster import Cluster
from coterie.client.producer.accumulator import Accumulator
from coterie.client.producer.sender import Sender
from coterie.client.producer.settings import ProducerSettings

PLACE = TopicPartition("flights", 0)
LINGER_MS = 5


def test_a_batch_that_comes_due_while_others_are_sent_is_looked_at_again():
    """Machines are busy: milliseconds may lie between two looks at the clock."""

    async def scenario() -> float:
        settings = ProducerSettings.of(
            bootstrap_servers="b:1", linger_ms=LINGER_MS, enable_idempotence=False, metadata_max_age_ms=10**9
        )
        accumulator = Accumulator(settings)
        sender = Sender(settings, cast(Cluster, cast(Any, None)), accumulator)
        clock = count(1000, LINGER_MS + 1)
        sender.now_ms = lambda: float(next(clock))  # type: ignore[method-assign]
        accumulator.opened(accumulator.queue(PLACE), size=100, now_ms=1000).add(b"v", timestamp=1)

        sender._send_due()

        assert sender._timer is not None
        sender._timer.cancel()
        return sender._timer_ms

    assert asyncio.run(scenario()) == 1000 + LINGER_MS
