"""What a peer has sent before it closed: done if it wanted no answer, left alone if it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.net.connection import Connection
from coterie.broker.net.request_queue import RequestQueue, here_and_now
from coterie.wire.api.codec import (
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)
from coterie.wire.records.batches import Record, build_batch
from unit.broker.group_api_rig import ApiRig
from unit.broker.rig import Line, Rig

PRODUCE, FETCH, METADATA, VERSION = 0, 1, 3, 9
LARGE = 300_000


class Busy:
    """A broker whose requests wait for their turn, and one of whose connections is about to be closed."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.line = Line()
        self._thought: list[tuple[Any, ...]] = []
        queue = RequestQueue(
            rig.soon.append, clock=self._clock, aside=lambda *work: self._thought.append(work)
        )
        self.connection = Connection(rig.node, queue)
        self.connection.connection_made(self.line)
        self._now_s = 0.0

    def _clock(self) -> float:
        self._now_s += 1.0  # every slice is over as soon as it is looked at
        return self._now_s

    def closes_after(self, *requests: object, slices: int = 0) -> None:
        """Send all of them at once, and close when so many slices of work are done."""
        self.connection.data_received(b"".join(encode_request(n, "x", one) for n, one in enumerate(requests)))
        for _ in range(slices):
            if self.rig.soon:
                self.rig.soon.pop(0)()
        self.connection.connection_lost(None)
        while self._thought or self.rig.soon:
            self.rig.settle()
            if self._thought:
                here_and_now(*self._thought.pop(0))

    def written(self) -> int:
        log = self.rig.node.replica_manager.log_of("t", 0)
        assert log is not None
        return log.end_offset


@pytest.fixture(params=["producer", "gzip"], ids=["as-sent", "packed-anew-aside"])
def busy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Busy]:
    rig = Rig(tmp_path)
    rig.node.topic_manager.create_topic("t", partitions=1, configs={"compression.type": request.param})
    yield Busy(rig)
    rig.close()


def record(rig: Rig, *, acks: int = 0, size: int = 1) -> object:
    batch = build_batch([Record(0, rig.now_ms, None, bytes(size))])
    data = build(entity("produce", VERSION, "PartitionProduceData"), index=0, records=batch)
    topic = build(entity("produce", VERSION, "TopicProduceData"), name="t", partition_data=(data,))
    return build(request_type(PRODUCE, VERSION), acks=acks, timeout=1000, topic_data=(topic,))


@pytest.mark.parametrize("size", [1, LARGE], ids=["small", "large"])
def test_what_was_sent_without_wanting_an_answer_is_written_though_its_sender_has_closed(
    busy: Busy, size: int
):
    busy.closes_after(*[record(busy.rig, size=size) for _ in range(5)])

    assert busy.written() == 5
    assert not busy.rig.node.peers.begun_bytes


@pytest.mark.parametrize(
    "wanting",
    [lambda rig: record(rig, acks=-1), lambda _: build(request_type(METADATA, VERSION))],
    ids=["acks-all", "metadata"],
)
def test_behind_a_request_whose_answer_nobody_can_get_any_more_nothing_is_done(
    busy: Busy, wanting: Callable[[Rig], object]
):
    first = record(busy.rig)

    busy.closes_after(first, wanting(busy.rig), record(busy.rig))

    assert busy.written() == 1
    assert busy.line.written == b""


@pytest.mark.parametrize("slices", range(6))
def test_a_fetch_of_many_partitions_waits_no_longer_than_its_client_whenever_that_hangs_up(slices: int):
    rig = ApiRig()
    rig.node.topic_manager.create_topic("wide", partitions=130)
    rig.settle()
    waiting = len(rig.node.purgatory)
    asked = tuple(build(entity("fetch", 11, "FetchPartition"), partition=n) for n in range(130))
    topic = build(entity("fetch", 11, "FetchTopic"), topic="wide", partitions=asked)
    fetch = build(request_type(FETCH, 11), max_wait=2**31 - 1, min_bytes=1, topics=(topic,))

    Busy(rig).closes_after(fetch, slices=slices)

    assert len(rig.node.purgatory) == waiting
    rig.close()
